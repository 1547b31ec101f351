"""Every exception that PyASC raises on purpose. This module imports nothing: all layers may use it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class PyascError(Exception):
    """The root of all errors of PyASC; its text is one line that names the cause and, where there is one, the remedy."""


class DeviceError(PyascError):
    """A device or its driver refused or failed.

    Args:
        message: what failed, which call, and what to try.
        code: the vendor's status code, unchanged; None where the failure has none.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class DeviceNotFoundError(DeviceError):
    """No such device on this box, or its library is missing."""


class DeviceBusyError(DeviceError):
    """The device exists and is in use."""


class DeviceLostError(DeviceError):
    """The device stopped answering or was removed."""


class DeviceTimeoutError(DeviceError, TimeoutError):
    """The device did not finish before the caller's deadline."""


class DeviceMemoryError(DeviceError):
    """The device has not enough memory for the request."""


class UnsupportedOperatorError(PyascError):
    """A graph holds an operator that the target cannot run; the text names operator and node."""


class ModelFormatError(PyascError):
    """A model file is damaged, hostile, or not what its name says."""


class ConversionError(PyascError):
    """A model cannot be converted; the text names the layer and the reason."""


class UnsafeCheckpointError(ConversionError):
    """A checkpoint asks for a call that conversion does not need; nothing of it has run."""


class ConfigFault(NamedTuple):
    """One fault of a configuration: where it is and what is wrong."""

    path: str
    message: str


class ConfigError(PyascError, ValueError):
    """A configuration is refused whole.

    Args:
        faults: each fault as (path, message), the path as in `pipelines.gate.detector.model`; or one text without a path.
    """

    def __init__(self, faults: str | Iterable[ConfigFault | tuple[str, str]]) -> None:
        if isinstance(faults, str):
            self.faults: tuple[ConfigFault, ...] = (ConfigFault("", faults),)
        else:
            self.faults = tuple(ConfigFault(*fault) for fault in faults)
        super().__init__("; ".join(f"{path}: {message}" if path else message for path, message in self.faults))


class PluginError(PyascError):
    """A plugin is missing, cannot be loaded, or broke its interface."""


class StreamError(PyascError):
    """A video source cannot be opened or broke."""


class TransportError(PyascError):
    """MQTT or another transport failed."""


class KernelError(PyascError):
    """A kernel cannot be compiled or launched."""


class BundleError(PyascError):
    """A bundle is damaged or cannot be installed."""


class SignatureError(BundleError):
    """A signature is missing, wrong, or of a key that is not trusted."""


class IncompatibleError(BundleError):
    """A bundle is sound but made for another box."""
