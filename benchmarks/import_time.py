"""What `import pyasc` and the `pyasc` command cost, beside the bare interpreter and beside `import numpy`.

python benchmarks/import_time.py [--rounds 20]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from contest import report

CASES = {
    "python": "pass",
    "import pyasc": "import pyasc",
    "pyasc --version": "import sys; sys.argv = ['pyasc', '--version']; from pyasc.cli import main; main()",
    "import numpy": "import numpy",
}


def _once(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    """Run the cases in turn and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks/import_time.json"))
    args = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(args.rounds):
        for name, code in CASES.items():
            times[name].append(_once(code))
    median = {name: statistics.median(values) for name, values in times.items()}
    results = {name: {"wall_ms": value, "over_python_ms": value - median["python"]} for name, value in median.items()}
    ratios = {
        "import pyasc / import numpy": results["import pyasc"]["over_python_ms"]
        / results["import numpy"]["over_python_ms"]
    }
    report(f"start-up, median of {args.rounds}; goal of import pyasc: 50 ms", results, ratios, args.output)


if __name__ == "__main__":
    main()
