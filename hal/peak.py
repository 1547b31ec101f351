"""Peak operations a second of the host's processor, for the cores whose rate a cycle is known."""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from pathlib import Path

# A multiplication and an addition are two operations. Measured with FMA and dot-product instructions by cpufp
# (https://github.com/pigirons/cpufp, benchmark_result): RK3399, BCM2711, RK3588, BCM2712, Ryzen 6900HX and 8845HS, divided by the
# clock. Keys are Arm's part number, or vendor and family.
_PER_CYCLE: dict[str, dict[str, int]] = {
    "0xd03": {"fp32": 8},  # Cortex-A53
    "0xd05": {"fp32": 8, "int8": 32},  # Cortex-A55
    "0xd08": {"fp32": 8},  # Cortex-A72
    "0xd0b": {"fp32": 16, "int8": 64},  # Cortex-A76
    "AuthenticAMD 25": {"fp32": 32, "int8": 128},  # Zen 3 and Zen 4, int8 with VNNI
}
_INT8_FEATURES = {"asimddp", "avx512_vnni"}  # 8-bit dot products, as the kernel names them
_FREQUENCY = "/sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq"  # kHz


def peak_ops() -> dict[str, float]:
    """Operations a second by precision, of the cores that this process may use.

    Empty where a core is not in the table, or the kernel does not tell its highest clock, as in most virtual machines: the clock of
    the moment is not the highest.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return parse_peak_ops(text, os.sched_getaffinity(0), _highest_hz)


def parse_peak_ops(text: str, usable: Set[int], highest_hz: Callable[[int], float | None]) -> dict[str, float]:
    """As `peak_ops`.

    Args:
        text: of `/proc/cpuinfo`.
        usable: numbers of the logical processors that count; two of one core count once.
        highest_hz: clock of a logical processor, None where unknown.
    """
    cores: dict[object, dict[str, float]] = {}
    for block in text.split("\n\n"):
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        number = fields.get("processor", "")
        if not number.isdecimal() or int(number) not in usable:
            continue
        rates = _PER_CYCLE.get(_key(fields))
        clock = highest_hz(int(number))
        if rates is None or clock is None:
            return {}
        if not _INT8_FEATURES & set(f"{fields.get('flags', '')} {fields.get('Features', '')}".split()):
            rates = {"fp32": rates["fp32"]}
        core = (fields.get("physical id"), fields["core id"]) if "core id" in fields else number
        cores[core] = {precision: rate * clock for precision, rate in rates.items()}
    kinds = list(cores.values())
    return {p: sum(kind[p] for kind in kinds) for p in ("fp32", "int8") if kinds and all(p in kind for kind in kinds)}


def _key(fields: dict[str, str]) -> str:
    if fields.get("CPU implementer") == "0x41":
        return fields.get("CPU part", "")
    return f"{fields.get('vendor_id')} {fields.get('cpu family')}"


def _highest_hz(number: int) -> float | None:
    try:
        return float(Path(_FREQUENCY.format(number)).read_text(encoding="ascii")) * 1e3
    except (OSError, ValueError):
        return None
