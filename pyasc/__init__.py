"""PyASC: a Python SDK and an on-device agent for edge boxes with mixed accelerators.

The public names are here and are loaded when first used: `import pyasc` itself loads no NumPy and opens no library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pyasc.agent.analyzer import EdgeAnalyzer
    from pyasc.agent.stream import Stream
    from pyasc.hal.base import DeviceInfo
    from pyasc.hal.memory import copy_to_device, create_buffer
    from pyasc.hal.registry import discover_devices, open_device
    from pyasc.models.model import load_model
    from pyasc.plugins.base import load_plugin
    from pyasc.types import Detections, Frame, Tracks

__all__ = [
    "Detections",
    "DeviceInfo",
    "EdgeAnalyzer",
    "Frame",
    "Stream",
    "Tracks",
    "copy_to_device",
    "create_buffer",
    "discover_devices",
    "load_model",
    "load_plugin",
    "open_device",
]

_HOME = {
    "Detections": "pyasc.types",
    "DeviceInfo": "pyasc.hal.base",
    "EdgeAnalyzer": "pyasc.agent.analyzer",
    "Frame": "pyasc.types",
    "Stream": "pyasc.agent.stream",
    "Tracks": "pyasc.types",
    "copy_to_device": "pyasc.hal.memory",
    "create_buffer": "pyasc.hal.memory",
    "discover_devices": "pyasc.hal.registry",
    "load_model": "pyasc.models.model",
    "load_plugin": "pyasc.plugins.base",
    "open_device": "pyasc.hal.registry",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name == "errors":
        value = importlib.import_module("pyasc.errors")
    else:
        raise AttributeError(f"module 'pyasc' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
