"""libcndev: how a card fares. It is not needed to run models; without it, figures are missing.

Structures begin with the version of the interface that the caller speaks, and grow with each release of the library: each one here
has more room than its declaration, and only fields that never moved are read.
"""

from __future__ import annotations

import atexit
import functools
import threading
from pathlib import Path
from typing import Any

from pyasc.errors import DeviceError, DeviceNotFoundError
from pyasc.vendors.header import check_library, declarations, declare_simulator, is_simulator, library_path

VARIABLE = "PYASC_CNDEV_LIB"
_NEEDED = ("cndevInit", "cndevGetDeviceCount", "cndevGetMemoryUsage", "cndevGetTemperatureInfo", "cndevGetPowerInfo")
_ROOM = 8192  # bytes; the longest that is known has 4104
_UNSUPPORTED_VERSION = 3
_NEWEST, _OLDEST = 5, 1
_MIB = 1 << 20


class Cndev:
    """An opened libcndev that was initialised.

    Attributes:
        ffi, lib: of cffi.
        simulated: whether it is a simulator.
        path: that it was opened with.
    """

    def __init__(self, ffi: Any, lib: Any, path: str) -> None:
        self.ffi = ffi
        self.lib = lib
        self.path = path
        self.simulated = is_simulator(lib)
        self._version = _OLDEST

    def agree(self) -> None:
        """Find the newest version of the interface that both speak.

        Raises:
            DeviceError: there is none, or the library fails.
        """
        for version in range(_NEWEST, _OLDEST - 1, -1):
            self._version = version
            info = self._room("cndevCardInfo_t")
            status = int(self.lib.cndevGetDeviceCount(info[1]))
            if status != _UNSUPPORTED_VERSION:
                break
        self._check(status, "cndevGetDeviceCount")

    def memory(self, card: int) -> tuple[int, int] | None:
        """Bytes of a card's memory, and those that are used; None where it is not told."""
        info = self._ask("cndevGetMemoryUsage", "cndevMemoryInfo_t", card)
        if info is None or info.PhysicalMemoryTotal <= 0:
            return None
        return int(info.PhysicalMemoryTotal) * _MIB, int(info.PhysicalMemoryUsed) * _MIB

    def temperature_c(self, card: int) -> float | None:
        """Of the board, in degrees Celsius; None where it is not told."""
        info = self._ask("cndevGetTemperatureInfo", "cndevTemperatureInfo_t", card)
        return None if info is None else float(info.Board)

    def power_w(self, card: int) -> float | None:
        """What the card takes; None where it is not told."""
        info = self._ask("cndevGetPowerInfo", "cndevPowerInfo_t", card)
        return None if info is None else info.Usage + _fraction(info.Usage_Decimal)

    def power_limit_w(self, card: int) -> float | None:
        """What the card may take; None where it is not told."""
        info = self._ask("cndevGetPowerInfo", "cndevPowerInfo_t", card)
        return None if info is None or info.Cap <= 0 else float(info.Cap)

    def load(self, card: int) -> float | None:
        """How busy its cores are, 0..1; None where it is not told."""
        info = self._ask("cndevGetDeviceUtilizationInfo", "cndevUtilizationInfo_t", card)
        return None if info is None else min(max(info.BoardUtilization / 100, 0.0), 1.0)

    def frequency_hz(self, card: int) -> int | None:
        """Clock of the cores; None where it is not told."""
        info = self._ask("cndevGetFrequencyInfo", "cndevFrequencyInfo_t", card)
        return None if info is None or info.Frequency <= 0 else int(info.Frequency) * 1_000_000

    def driver(self, card: int) -> str | None:
        """Version of the driver, `4.9.2`; None where it is not told."""
        info = self._ask("cndevGetVersionInfo", "cndevVersionInfo_t", card)
        if info is None:
            return None
        return f"{info.DriverMajorVersion}.{info.DriverMinorVersion}.{info.DriverBuildVersion}"

    def _room(self, kind: str) -> tuple[Any, Any]:
        """The memory of a structure, which has to be kept, and the structure in it."""
        memory = self.ffi.new(f"uint64_t[{_ROOM // 8}]")
        info = self.ffi.cast(f"{kind} *", memory)
        info.version = self._version
        return memory, info

    def _ask(self, call: str, kind: str, card: int) -> Any:
        """A filled structure; None where the library has no such call, or the card does not tell."""
        function = getattr(self.lib, call, None)
        if function is None:
            return None
        memory, info = self._room(kind)
        if function(info, card) != 0:
            return None
        return _Kept(memory, info)

    def _check(self, status: int, call: str) -> None:
        if status != 0:
            name = self.ffi.typeof("cndevRet_t").elements.get(status, "an unknown status")
            raise DeviceError(f"{self.path}: {call} failed: {name} ({status})", status)


class _Kept:
    """A structure together with its memory, which cffi would free otherwise."""

    def __init__(self, memory: Any, info: Any) -> None:
        self._memory = memory
        self._info = info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._info, name)


def _fraction(decimals: int) -> float:
    """The digits after the point: 7 is 0.7, 25 is 0.25."""
    return float(f"0.{max(int(decimals), 0)}")


_lock = threading.Lock()
_opened: dict[str, Cndev] = {}


def cndev() -> Cndev:
    """The library of this box, or the simulator where `PYASC_SIMULATE` asks for it; opened and initialised once.

    Raises:
        DeviceNotFoundError: it is missing, or another library.
        DeviceError: it cannot be initialised.
        ConfigError: `PYASC_SIMULATE` is wrong, or the simulators are not built.
    """
    path = library_path("libcndev.so", VARIABLE, "mlu220")
    with _lock:
        if path not in _opened:
            _opened[path] = _open(path)
        return _opened[path]


@functools.cache
def _ffi() -> Any:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(declarations(Path(__file__).with_name("cndev.h")))
    declare_simulator(ffi)
    return ffi


def _open(path: str) -> Cndev:
    check_library(path, _NEEDED, "Cambricon's Neuware", VARIABLE)
    lib = _ffi().dlopen(path)
    made = Cndev(_ffi(), lib, path)
    made._check(int(lib.cndevInit(0)), "cndevInit")
    try:
        made.agree()
    except DeviceError as error:
        lib.cndevRelease()
        raise DeviceNotFoundError(str(error), error.code) from error
    atexit.register(lib.cndevRelease)
    return made
