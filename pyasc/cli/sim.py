"""`pyasc sim`: the simulators' libraries, for programs in other languages."""

from __future__ import annotations

import click


@click.group("sim")
def command() -> None:
    """The simulated accelerators."""


@command.command("path")
@click.option("--include", is_flag=True, help="Print compiler options for the header files instead, `-I FOLDER ...`.")
def path(include: bool) -> None:
    """Print the folder of the simulators' libraries.

    A C program for a vendor's SDK is linked with `-L $(pyasc sim path) -Wl,-rpath,$(pyasc sim path)`, or runs with that folder in
    LD_LIBRARY_PATH.
    """
    from pyasc.vendors.simulators import header_folders, library_folder

    folder = library_folder()
    print(" ".join(f"-I {folder}" for folder in header_folders()) if include else folder)
