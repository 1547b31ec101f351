"""The simulators of the vendors' chips: where their libraries are, and whether they are asked for.

They are C libraries with the vendors' names and symbols, built with the package where there is a C compiler, or by
`make -C vendors/sim` alone. Nothing loads them unless a user asks: by the environment variable `PYASC_SIMULATE`
(`hi3559,mlu220`), `--simulate`, or `simulate` in the agent's file, which both set the variable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pyasc.errors import ConfigError

VARIABLE = "PYASC_SIMULATE"
# The chips that are simulated, each with the vendor's libraries for it.
FAMILIES = {"hi3559": ("libmpi.so", "libnnie.so"), "mlu220": ("libcnrt.so", "libcndev.so")}
_LIBRARIES = Path(__file__).resolve().parent / "sim" / "lib"
_HEADERS = {"hi3559": "hisilicon", "mlu220": "cambricon"}


def check_families(families: Iterable[str]) -> list[str]:
    """What is wrong with names of families, one text for each that is not simulated."""
    return [
        f"there is no simulator of {name!r} (there are: {', '.join(FAMILIES)})"
        for name in families
        if name not in FAMILIES
    ]


def simulated_families() -> frozenset[str]:
    """The families that `PYASC_SIMULATE` asks for.

    Raises:
        ConfigError: it names one that is not simulated.
    """
    asked = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    if faults := check_families(asked):
        raise ConfigError([(VARIABLE, fault) for fault in faults])
    return frozenset(asked)


def simulate(families: Iterable[str]) -> None:
    """Ask for simulators, besides those that are asked for already, in this process and those that it starts.

    Raises:
        ConfigError: there is no such simulator.
    """
    wanted = list(families)
    if faults := check_families(wanted):
        raise ConfigError(faults[0])
    os.environ[VARIABLE] = ",".join(sorted({*wanted, *simulated_families()}))


def library_folder() -> Path:
    """The folder of the simulators' libraries.

    Raises:
        ConfigError: they are not built.
    """
    missing = [name for names in FAMILIES.values() for name in names if not (_LIBRARIES / name).is_file()]
    if missing:
        raise ConfigError(
            f"the simulators are not built, {missing[0]} is missing: install a C compiler and make, and install pyasc again"
        )
    return _LIBRARIES


def header_folders() -> list[Path]:
    """The folders of the header files that C programs for the simulated libraries may include."""
    return [_LIBRARIES.parent.parent / folder for folder in _HEADERS.values()]
