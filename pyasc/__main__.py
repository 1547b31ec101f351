"""`python -m pyasc` is the `pyasc` command."""

from pyasc.cli import main

if __name__ == "__main__":
    main()
