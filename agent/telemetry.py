"""The figures of the box."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil

from pyasc import __version__
from pyasc.agent.clock import rfc3339

# Sensors of the processor, by the names of their Linux drivers, best first. As in hal/processor.py, which the control
# process, small and apart from all drivers, does not load.
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "cpu-thermal", "soc-thermal", "acpitz")


class BoxFigures:
    """Processor, memory, disk, temperature and uptime; the load of the processor is since the call before."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._process = psutil.Process()
        psutil.cpu_percent()

    def read(self) -> dict[str, Any]:
        """The box's part of a telemetry message: percent, bytes, degrees Celsius (None where no sensor is), seconds."""
        memory = psutil.virtual_memory()
        return {
            "time": rfc3339(),
            "cpu": psutil.cpu_percent(),
            "load": round(os.getloadavg()[0], 2),
            "memory": {"total": memory.total, "available": memory.available, "percent": memory.percent},
            "disk": self._disk(),
            "temperature": cpu_temperature(),
            "uptime": round(time.time() - psutil.boot_time(), 1),
            "agent": {"version": __version__, "rss": self._process.memory_info().rss},
        }

    def _disk(self) -> dict[str, Any] | None:
        try:
            disk = psutil.disk_usage(str(self._state_dir))
        except OSError:
            return None
        return {"total": disk.total, "free": disk.free, "percent": disk.percent}


def cpu_temperature() -> float | None:
    """Degrees Celsius of the processor, the hottest of its sensors; None where there is no sensor."""
    try:
        sensors = psutil.sensors_temperatures()
    except (
        OSError,
        ValueError,
        IndexError,
        AttributeError,
        RuntimeError,
    ):  # what vendors' kernels put into /sys is not always readable
        return None
    for name in (*_CPU_SENSORS, *sensors):
        values = [sensor.current for sensor in sensors.get(name, ()) if sensor.current is not None]
        if values:
            return round(max(values), 1)
    return None


def rss_of(pid: int | None) -> int | None:
    """Bytes of memory that a process holds; None when it is gone."""
    if pid is None:
        return None
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None
