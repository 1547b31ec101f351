"""Which devices this box has, and opening one by name."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Protocol, cast, get_args, overload

from pyasc.errors import DeviceError, DeviceNotFoundError, PyascError
from pyasc.hal.base import Device, DeviceInfo, Discovery, Kind, best_device, preference

_log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "pyasc.drivers"

# Our drivers: name to module, and the device names that each one gives; a driver is imported when first asked for.
_OUR_DRIVERS: Mapping[str, tuple[str, str]] = {
    "cpu": ("pyasc.hal.drivers.cpu", "cpu"),
    "opencl": ("pyasc.hal.drivers.opencl", "gpu"),
}
# Kinds that PyASC knows of and has no driver for. What a driver says of the same name comes first.
_WITHOUT_DRIVER: Mapping[str, str] = {
    "hi3559": "no driver in this version for the NNIE of HiSilicon's Hi3559A",
    "mlu220": "no driver in this version for Cambricon's MLU220",
}
_KINDS: Mapping[str, Kind] = {"gpu": "gpu", "npu": "npu"}


class Driver(Protocol):
    """What a driver module, or the object behind an entry point of the group `pyasc.drivers`, has."""

    def discover(self) -> Discovery:
        """The devices that are there, and why others are not; without hardware no exception but reasons."""

    def open_device(self, name: str) -> Device:
        """Open one of the devices that `discover` named."""


class DeviceList(Sequence[DeviceInfo]):
    """The devices of a box, best first, and why others are absent.

    Attributes:
        absent: device kind or name to the reason in one line with the remedy.
    """

    def __init__(self, devices: Sequence[DeviceInfo], absent: Mapping[str, str]) -> None:
        self._devices = tuple(sorted(devices, key=preference))
        self.absent: Mapping[str, str] = MappingProxyType(dict(absent))

    @overload
    def __getitem__(self, index: int) -> DeviceInfo: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[DeviceInfo, ...]: ...

    def __getitem__(self, index: int | slice) -> DeviceInfo | tuple[DeviceInfo, ...]:
        return self._devices[index]

    def __len__(self) -> int:
        return len(self._devices)

    def __repr__(self) -> str:
        return f"DeviceList({[device.name for device in self]}, absent={sorted(self.absent)})"

    def find(self, name: str) -> DeviceInfo:
        """The device of this name or alias.

        Args:
            name: as for `open_device`.
        Raises:
            DeviceNotFoundError: there is none; the text lists what there is and says why the wanted one is absent.
        """
        for device in self:
            if device.name == _canonical(name):
                return device
        if name == "auto":
            found = best_device(self)
        elif name in _KINDS:
            kind = _KINDS[name]
            found = best_device(self, kind) or next((d for d in self if d.kind == kind), None)
        else:
            found = None
        if found is None:
            raise DeviceNotFoundError(self._why_not(name))
        return found

    def _why_not(self, name: str) -> str:
        family = re.sub(r"(:\d+|\d+)$", "", name) if name not in self.absent else name
        reasons = [self.absent[key] for key in (name, name.partition(":")[0], family) if key in self.absent][:1]
        if name == "npu" and not reasons:
            reasons = [f"{key}: {reason}" for key, reason in self.absent.items() if key in _WITHOUT_DRIVER]
        there = ", ".join(device.name for device in self) or "none"
        return f"no device {name!r}{': ' + '; '.join(reasons) if reasons else ''} (this box has: {there})"


def discover_devices() -> DeviceList:
    """Look for devices with every driver.

    Returns:
        best first: hardware before simulators, NPU before GPU before CPU, those that only can be listed last; `.absent` says
        why others are missing.
    """
    devices: dict[str, DeviceInfo] = {}
    absent: dict[str, str] = {}
    for driver in _drivers():
        found = driver.ask()
        for info in found.devices:
            if info.name in devices:
                _log_once(f"driver {driver.name}: device {info.name} is there already, its second one is left out")
            else:
                devices[info.name] = info
        for name, reason in found.absent.items():
            absent.setdefault(name, reason)
    present = {info.name for info in devices.values()} | {info.family for info in devices.values()}
    for name, reason in _WITHOUT_DRIVER.items():
        absent.setdefault(name, reason)
    return DeviceList(tuple(devices.values()), {name: why for name, why in absent.items() if name not in present})


def open_device(name: str = "auto") -> Device:
    """Open a device.

    Args:
        name: a device's own name (`cpu`, `gpu0`, `hi3559`, `mlu220:1`), the best one of a kind that is there (`gpu`, `npu`),
            or the best of all that run models (`auto`).
    Raises:
        DeviceNotFoundError: there is no such device; the text lists what there is, and why the wanted one is absent.
        DeviceError: it is there and cannot be opened.
    """
    driver, found = _find(name)
    return driver.open(found.name)


def find_device(name: str = "auto") -> DeviceInfo:
    """The device that `open_device` would open; no more drivers are asked than that takes.

    Raises:
        DeviceNotFoundError: as `open_device`.
    """
    return _find(name)[1]


def _find(name: str) -> tuple[_Found, DeviceInfo]:
    if name != "auto" and name not in _KINDS:
        wanted = _canonical(name)
        # The driver that most likely has it is asked first, so that opening the CPU does not load OpenCL.
        for driver in sorted(_drivers(), key=lambda d: not (d.gives and wanted.startswith(d.gives))):
            for info in driver.ask().devices:
                if info.name == wanted:
                    return driver, info
    found = discover_devices().find(name)
    for driver in _drivers():
        if any(info.name == found.name for info in driver.ask().devices):
            return driver, found
    raise DeviceNotFoundError(f"device {found.name} has gone while it was being looked for")


@dataclass(frozen=True, slots=True)
class _Found:
    """A driver that can be loaded: ours by module, other people's by entry point; `gives` starts its devices' names."""

    name: str
    source: str | EntryPoint
    gives: str = ""

    def load(self) -> Driver:
        if isinstance(self.source, str):
            return cast("Driver", importlib.import_module(self.source))
        driver: Any = self.source.load()
        missing = [part for part in ("discover", "open_device") if not callable(getattr(driver, part, None))]
        if missing:
            raise DeviceError(f"driver {self.name} ({self.source.value}) has no {' and no '.join(missing)}")
        return cast("Driver", driver)

    def ask(self) -> Discovery:
        """What it finds; a driver that fails counts as one without devices, and says why."""
        try:
            found = self.load().discover()
            _check(found)
        except Exception as error:  # noqa: BLE001 - whatever somebody's driver raises must not hide the other devices
            reason = (
                f"driver {self.name} failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
            _log_once(reason, error)
            return Discovery(absent={self.name: reason})
        return found

    def open(self, name: str) -> Device:
        """Open one of its devices; whatever somebody's driver raises or returns is a DeviceError."""
        try:
            device = self.load().open_device(name)
        except PyascError:
            raise
        except Exception as error:
            raise DeviceError(f"{name}: driver {self.name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(device, Device):
            raise DeviceError(f"{name}: driver {self.name} opened {type(device).__name__} instead of a Device")
        return device


def _check(found: Any) -> None:
    """Raise TypeError unless a driver has returned what `Driver.discover` promises."""
    if not isinstance(found, Discovery):
        raise TypeError(f"discover() returned {type(found).__name__} instead of Discovery")
    for info in found.devices:
        if not isinstance(info, DeviceInfo):
            raise TypeError(f"discover() named {type(info).__name__} instead of DeviceInfo")
        if info.kind not in get_args(Kind):
            raise TypeError(f"discover() named {info.name} of the kind {info.kind!r}, which is none of cpu, gpu, npu")


def _drivers() -> Iterator[_Found]:
    for name, (module, gives) in _OUR_DRIVERS.items():
        yield _Found(name, module, gives)
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)):
        if point.name in _OUR_DRIVERS:
            _log_once(f"driver {point.name} ({point.value}) has the name of a driver of PyASC and is left out")
        else:
            yield _Found(point.name, point)


def _canonical(name: str) -> str:
    """`mlu220:0` is the first one, whose name has no number."""
    return name.removesuffix(":0")


_logged: set[str] = set()


def _log_once(message: str, error: Exception | None = None) -> None:
    if message not in _logged:
        _logged.add(message)
        _log.warning("%s", message, exc_info=error)
