"""libcnrt, one Python name for each C name: `cnrt.lib` has the calls, `cnrt.check` makes exceptions of status codes.

Written for CNRT 4.4 to 4.10, one generation with the same binary interface. Calls that came after 4.4 are looked up when they are
needed: `cnrt.has(name)`.
"""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyasc.errors import DeviceError, DeviceNotFoundError
from pyasc.vendors.cambricon.status import Statuses
from pyasc.vendors.header import check_library, declarations, declare_simulator, is_simulator, library_path

VARIABLE = "PYASC_CNRT_LIB"
_OLDEST, _NEXT = 40400, 50000
# What the driver cannot do without; all of them are in 4.4.
_NEEDED = (
    "cnrtInit",
    "cnrtGetVersion",
    "cnrtGetDeviceCount",
    "cnrtGetDeviceHandle",
    "cnrtSetCurrentDevice",
    "cnrtGetDeviceInfo",
    "cnrtLoadModel",
    "cnrtExtractFunction",
    "cnrtInitRuntimeContext",
    "cnrtForkRuntimeContext",
    "cnrtInvokeRuntimeContext",
    "cnrtRuntimeContextCreateQueue",
    "cnrtPlaceNotifier",
    "cnrtQueryNotifier",
    "cnrtNotifierDuration",
    "cnrtMalloc",
    "cnrtMemcpy",
)
MIB = 1 << 20


class Cnrt:
    """An opened libcnrt that was initialised.

    Attributes:
        ffi, lib: of cffi.
        version: 41001 for 4.10.1.
        simulated: whether it is a simulator.
        path: that it was opened with.
    """

    def __init__(self, ffi: Any, lib: Any, version: int, path: str) -> None:
        self.ffi = ffi
        self.lib = lib
        self.version = version
        self.path = path
        self.simulated = is_simulator(lib)
        newest = ffi.typeof("cnrtRet_t").relements
        self.statuses = Statuses(version, {name: number for name, number in newest.items() if name != _NO_STATUS})
        self.codes = self.statuses.numbers

    @property
    def version_text(self) -> str:
        """`4.10.1`."""
        return f"{self.version // 10000}.{self.version // 100 % 100}.{self.version % 100}"

    def has(self, name: str) -> bool:
        """Whether this library has a call."""
        return hasattr(self.lib, name)

    def check(self, status: int, what: str) -> None:
        """Raise what a status code stands for; success passes, and the warning that a device is a fake one.

        Args:
            status: that a call returned.
            what: who called what.
        """
        if status not in (self.codes["CNRT_RET_SUCCESS"], self.codes["CNRT_RET_WARNING_FAKE_DEVICE"]):
            raise self.statuses.error(status, what)

    def is_status(self, status: int, name: str) -> bool:
        """Whether a status is the one of this name, without its `CNRT_RET_`; false where the version has none of that name."""
        return status == self.codes.get(f"CNRT_RET_{name}")


_NO_STATUS = "CNRT_RET_ERR_MAX"  # one more than the last
_lock = threading.Lock()
_opened: dict[str, Cnrt] = {}


def cnrt() -> Cnrt:
    """The library of this box, or the simulator where `PYASC_SIMULATE` asks for it; opened and initialised once.

    Raises:
        DeviceNotFoundError: it is missing, another library, or of another generation.
        DeviceError: it cannot be initialised.
        ConfigError: `PYASC_SIMULATE` is wrong, or the simulators are not built.
    """
    path = library_path("libcnrt.so", VARIABLE, "mlu220")
    with _lock:
        if path not in _opened:
            _opened[path] = _open(path)
        return _opened[path]


@functools.cache
def _ffi() -> Any:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(declarations(Path(__file__).with_name("cnrt.h")))
    declare_simulator(ffi)
    ffi.cdef("void free(void *pointer);")
    return ffi


def _open(path: str) -> Cnrt:
    # Before the declarations are read: that takes a tenth of a second, and most boxes have no such library.
    check_library(path, _NEEDED, "Cambricon's Neuware with CNRT 4", VARIABLE)
    ffi = _ffi()
    lib = ffi.dlopen(path)
    number = ffi.new("unsigned int *")
    status = lib.cnrtGetVersion(number)
    version = int(number[0]) if status == 0 else 0
    made = Cnrt(ffi, lib, version, path)
    if not _OLDEST <= version < _NEXT:
        raise DeviceNotFoundError(f"{path} is CNRT {made.version_text}; PyASC knows 4.4 to 4.10, which the MLU220 has")
    made.check(lib.cnrtInit(0), f"{path}: cnrtInit")
    atexit.register(_end, made)
    return made


def _end(opened: Cnrt) -> None:
    """At the end of the process; not while something hangs on the device, as the call may wait for it."""
    if not left_behind:
        opened.lib.cnrtDestroy()


# What could not be freed because the device does not answer; a line each.
left_behind: list[str] = []


def take_array(opened: Cnrt, array: Any, count: int, convert: Callable[[Any], Any] = int) -> tuple[Any, ...]:
    """The values of an array that CNRT allocated for its caller; it is freed, with C's free as such arrays have to be."""
    values = tuple(convert(array[index]) for index in range(count))
    opened.lib.free(array)
    return values


def outstanding(opened: Cnrt) -> dict[str, int]:
    """What the simulator counts as not given back: handles by kind, and allocations of device memory.

    Raises:
        DeviceError: the library is none of PyASC's simulators.
    """
    if not opened.simulated:
        raise DeviceError(f"{opened.path} counts nothing: it is no simulator")
    kinds = ("models", "functions", "contexts", "queues", "notifiers", "host_blocks", "descriptors", "allocations")
    return {kind: int(opened.lib.pyasc_sim_outstanding(2, number)) for number, kind in enumerate(kinds)}
