"""Peak operations a second, against what cpufp measured on such boards (https://github.com/pigirons/cpufp, benchmark_result)."""

from __future__ import annotations

import os

import pytest

from pyasc.hal.drivers.cpu import open_device
from pyasc.hal.peak import parse_peak_ops


def _arm(*parts: str, features: str = "fp asimd") -> str:
    return "".join(
        f"processor\t: {number}\nBogoMIPS\t: 48.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n"
        for number, part in enumerate(parts)
    )


def _amd(logical: int, features: str) -> str:
    return "".join(
        f"processor\t: {number}\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nphysical id\t: 0\ncore id\t\t: {number // 2}\n"
        f"cpu cores\t: {logical // 2}\nflags\t\t: fpu fma {features}\n\n"
        for number in range(logical)
    )


def test_an_rk3399_has_the_sum_of_both_kinds_of_cores() -> None:
    text = _arm(*["0xd03"] * 4, *["0xd08"] * 2)
    clocks = {0: 1.416e9, 1: 1.416e9, 2: 1.416e9, 3: 1.416e9, 4: 1.8e9, 5: 1.8e9}
    peak = parse_peak_ops(text, set(range(6)), clocks.get)
    assert peak["fp32"] == pytest.approx(45.029e9 + 28.698e9, rel=0.02)
    assert "int8" not in peak
    assert parse_peak_ops(text, {4, 5}, clocks.get)["fp32"] == pytest.approx(28.698e9, rel=0.02)


def test_an_rk3588_has_dot_products_too() -> None:
    text = _arm(*["0xd05"] * 4, *["0xd0b"] * 4, features="fp asimd asimddp")
    clocks = {number: 1.83e9 if number < 4 else 2.38e9 for number in range(8)}
    peak = parse_peak_ops(text, set(range(8)), clocks.get)
    assert peak["fp32"] == pytest.approx(58.261e9 + 150.15e9, rel=0.02)
    assert peak["int8"] == pytest.approx(233.06e9 + 602.2e9, rel=0.02)


def test_two_threads_of_a_core_count_once() -> None:
    # Ryzen 7 8845HS, eight cores; the clock is the one at which a single core gave 163.58 GFLOPS with 32 a cycle.
    peak = parse_peak_ops(_amd(16, "avx512_vnni"), set(range(16)), lambda number: 5.11e9)
    assert peak == pytest.approx({"fp32": 8 * 163.58e9, "int8": 8 * 647.97e9}, rel=0.02)
    assert parse_peak_ops(_amd(16, ""), {0, 1, 2}, lambda number: 1e9) == {"fp32": 64e9}


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", _arm("0xd03", "0xd09"), _arm("0xfff"), _amd(2, "").replace("25", "6"), "processor: x\n\n"],
)
def test_an_unknown_core_makes_the_whole_unknown(text: str) -> None:
    assert parse_peak_ops(text, {0, 1}, lambda number: 1e9) == {}


def test_an_unknown_clock_makes_the_whole_unknown() -> None:
    assert parse_peak_ops(_arm("0xd03", "0xd03"), {0, 1}, {0: 1e9}.get) == {}


def test_the_device_has_figures_of_its_precisions_alone() -> None:
    with open_device("cpu") as device:
        assert set(device.info.peak_ops) <= set(device.info.precisions)
        assert all(value > 1e9 for value in device.info.peak_ops.values())
        assert len(os.sched_getaffinity(0)) == device.info.cores
