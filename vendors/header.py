"""C header files as declarations for cffi, and libraries opened with them.

The headers in `hisilicon` and `cambricon` are for C programs too, so they have a few lines that cffi does not read.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyasc.errors import DeviceNotFoundError
from pyasc.vendors.simulators import library_folder, simulated_families

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CPLUSPLUS = re.compile(r"#ifdef __cplusplus\n.*?#endif\n", re.DOTALL)
_NUMBER = re.compile(r"#define \w+ (0x[0-9A-Fa-f]+|\d+)$")
# What the simulators export beside the vendor's calls; a library that has it, or is linked to one that has it, is a simulator.
_SIMULATOR = "const char *pyasc_sim_version(void); int64_t pyasc_sim_outstanding(int chip, int thing);"


def declarations(path: Path) -> str:
    """What cffi reads of a header file: types, functions, and constants that are plain numbers."""
    text = _CPLUSPLUS.sub("", _COMMENT.sub("", path.read_text(encoding="ascii")).replace("\r", ""))
    joined = text.replace("\\\n", " ")
    return "\n".join(line for line in joined.splitlines() if not line.startswith("#") or _NUMBER.match(line.rstrip()))


def library_path(name: str, variable: str, family: str) -> str:
    """Where a vendor's library is looked for.

    Args:
        name: its file name, `libcnrt.so`.
        variable: of the environment, which may name the file.
        family: whose simulator is taken where `PYASC_SIMULATE` asks for it.
    Returns:
        what to open; without a slash the loader of the system looks for it.
    Raises:
        ConfigError: `PYASC_SIMULATE` is wrong, or the simulators are not built.
    """
    if path := os.environ.get(variable):
        return path
    if family in simulated_families():
        return str(library_folder() / name)
    return name


def check_library(path: str, needed: Sequence[str], what: str, variable: str) -> None:
    """Raise DeviceNotFoundError, one line with the remedy, unless a library can be opened and is the one that it should be.

    It stays open for the rest of the process.

    Args:
        path: of `library_path`.
        needed: functions without which it is another library.
        what: its name for people.
        variable: that may name another file.
    """
    remedy = f"install {what}, or let {variable} name the file"
    try:
        exported = ctypes.CDLL(path)
    except OSError as error:
        raise DeviceNotFoundError(f"{_why(path, str(error))}; {remedy}") from error
    missing = [name for name in needed if not hasattr(exported, name)]
    if missing:
        raise DeviceNotFoundError(f"{path} is another library than {what}: it has no {missing[0]}; {remedy}")


def _why(path: str, reason: str) -> str:
    """The loader's reason; its words for a file that is not there are longer than need be."""
    if reason.startswith(f"{path}:") and "No such file" in reason:
        return f"there is no {path}"
    return f"{path} cannot be opened: {reason.removeprefix(f'{path}: ')}"


def declare_simulator(ffi: Any) -> None:
    """Declare what tells a simulator from the vendor's library."""
    ffi.cdef(_SIMULATOR)


def is_simulator(library: Any) -> bool:
    """Whether an opened library is one of PyASC's simulators, or linked to one."""
    return hasattr(library, "pyasc_sim_version")
