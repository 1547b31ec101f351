"""The host's processor: what `/proc/cpuinfo` says of it on x86 and on Arm, its temperature and its clock."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

# Arm's main ID register (MIDR): implementer, and the part numbers of the cores that edge boxes have; Arm ARM, D19.2, and the
# "Main ID Register" page of each core's technical reference manual.
_ARM_VENDORS = {0x41: "Arm", 0x42: "Broadcom", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x51: "Qualcomm", 0x61: "Apple"}
_ARM_PARTS = {
    0xD03: "Cortex-A53",
    0xD04: "Cortex-A35",
    0xD05: "Cortex-A55",
    0xD07: "Cortex-A57",
    0xD08: "Cortex-A72",
    0xD09: "Cortex-A73",
    0xD0A: "Cortex-A75",
    0xD0B: "Cortex-A76",
    0xD0C: "Neoverse-N1",
    0xD0D: "Cortex-A77",
    0xD41: "Cortex-A78",
    0xC07: "Cortex-A7",
    0xC0F: "Cortex-A15",
}

# Sensors of the processor, by the names of their Linux drivers, best first.
_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "cpu-thermal", "soc-thermal", "acpitz")
# What psutil raises for the /sys and /proc of vendors' kernels; NotImplementedError is a RuntimeError.
_UNREADABLE = (OSError, ValueError, IndexError, AttributeError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Processor:
    """The host's processor.

    Attributes:
        vendor: `GenuineIntel`, `AuthenticAMD`, `Arm` …; `unknown` where the kernel does not tell.
        model: product name, on Arm the kinds of cores.
        features: instruction set extensions as the kernel names them: `avx2`, `asimd` …
        architecture: as `uname -m`: `x86_64`, `aarch64`.
    """

    vendor: str
    model: str
    features: frozenset[str]
    architecture: str


def parse_cpuinfo(text: str, architecture: str) -> Processor:
    """Read the text of `/proc/cpuinfo`."""
    fields: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values = fields.setdefault(key.strip(), [])
            if value.strip() not in values:
                values.append(value.strip())
    features = frozenset(" ".join(fields.get("flags", []) + fields.get("Features", [])).split())
    if "CPU implementer" in fields:
        vendor = _ARM_VENDORS.get(_number(fields["CPU implementer"][0]), f"implementer {fields['CPU implementer'][0]}")
        parts = [_ARM_PARTS.get(_number(part), f"part {part}") for part in fields.get("CPU part", [])]
        model = " + ".join(parts)
    else:
        vendor = fields.get("vendor_id", ["unknown"])[0]
        model = fields.get("model name", [""])[0]
    return Processor(vendor, model or architecture, features, architecture)


@functools.cache
def processor() -> Processor:
    """The processor of this host."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_cpuinfo(text, os.uname().machine)


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def temperature_c() -> float | None:
    """Degrees Celsius of the processor, the hottest of its sensors; None where there is no sensor that can be read."""
    try:
        sensors = psutil.sensors_temperatures()
    except _UNREADABLE:
        return None
    for name in (*_SENSORS, *sensors):
        values = [sensor.current for sensor in sensors.get(name, ()) if sensor.current is not None]
        if values:
            return round(max(values), 1)
    return None


def frequency_hz() -> float | None:
    """The clock of the processor now, the mean of its cores; None where the kernel does not tell."""
    try:
        frequency = psutil.cpu_freq()
    except _UNREADABLE:
        return None
    return None if frequency is None else frequency.current * 1e6


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return -1
