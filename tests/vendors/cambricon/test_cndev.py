"""CNDEV on the simulated card: versions in structures, structures that grow, and what it tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

OK, UNSUPPORTED_VERSION, UNINITIALIZED, INVALID_ARGUMENT, INVALID_CARD, UNKNOWN, SHORT, NOT_SUPPORTED = (
    0,
    3,
    4,
    5,
    6,
    7,
    9,
    10,
)
MIB = 1 << 20


@pytest.fixture
def cndev(library: Any, control: Any) -> Iterator[Any]:
    assert library.cndev.cndevInit(0) == OK
    yield library.cndev
    assert library.cndev.cndevRelease() == OK


def ask(library: Any, call: Any, kind: str, version: int = 5, card: int = 0) -> Any:
    """A structure of a kind, as the call filled it."""
    info = library.ffi.new(f"{kind} *")
    info.version = version
    assert call(info, card) == OK
    assert info.version == version
    return info


def test_nothing_works_before_the_start(library: Any) -> None:
    info = library.ffi.new("cndevCardInfo_t *", {"version": 5})
    assert library.cndev.cndevGetDeviceCount(info) == UNINITIALIZED
    assert library.cndev.cndevRelease() == UNINITIALIZED
    assert library.ffi.string(library.cndev.cndevGetErrorString(UNINITIALIZED)) == b"cndevInit was not called"


def test_the_version_must_be_set(library: Any, cndev: Any) -> None:
    info = library.ffi.new("cndevMemoryInfo_t *")
    for wrong in (0, 7, -1):
        info.version = wrong
        assert cndev.cndevGetMemoryUsage(info, 0) == UNSUPPORTED_VERSION
    for right in (1, 3, 5):
        info.version = right
        assert cndev.cndevGetMemoryUsage(info, 0) == OK
    assert cndev.cndevGetMemoryUsage(info, 1) == INVALID_CARD
    assert cndev.cndevGetMemoryUsage(library.ffi.NULL, 0) == INVALID_ARGUMENT


def test_it_tells_what_it_is(library: Any, cndev: Any) -> None:
    count = library.ffi.new("cndevCardInfo_t *", {"version": 5})
    assert cndev.cndevGetDeviceCount(count) == OK
    assert count.Number == 1
    name = ask(library, cndev.cndevGetCardName, "cndevCardName_t")
    assert name.id == cndev.MLU220_M2
    assert library.ffi.string(cndev.cndevGetCardNameString(name.id)) == b"MLU220-M2 (simulated)"
    assert ask(library, cndev.cndevGetCoreCount, "cndevCardCoreCount_t").count == 4
    assert ask(library, cndev.cndevGetClusterCount, "cndevCardClusterCount_t").count == 1
    bus = ask(library, cndev.cndevGetPCIeInfo, "cndevPCIeInfo_t")
    assert (bus.vendor, bus.device_id) == (0xCABC, 0x0220)
    card = library.ffi.new("int *", 9)
    assert cndev.cndevGetDevIdByBDF(5, card, bus.domain, bus.bus, bus.device, bus.function) == OK
    assert card[0] == 0


def test_memory_is_that_of_cnrt_in_megabytes(library: Any, cndev: Any, cnrt: Any) -> None:
    memory = ask(library, cndev.cndevGetMemoryUsage, "cndevMemoryInfo_t")
    assert (memory.PhysicalMemoryTotal, memory.PhysicalMemoryUsed) == (4096, 0)
    pointer = cnrt.allocate(100 * MIB)
    assert ask(library, cndev.cndevGetMemoryUsage, "cndevMemoryInfo_t").PhysicalMemoryUsed == 100
    count = library.ffi.new("unsigned int *", 0)
    assert cndev.cndevGetProcessInfo(count, library.ffi.NULL, 0) == SHORT
    assert count[0] == 1
    process = library.ffi.new("cndevProcessInfo_t *", {"version": 5})
    assert cndev.cndevGetProcessInfo(count, process, 0) == OK
    assert (process.pid, process.PhysicalMemoryUsed) == (os.getpid(), 100 * 1024)  # KiB
    cnrt.ok(cnrt.cnrt.cnrtFree(pointer))


def test_power_and_temperature_of_an_idle_card(library: Any, cndev: Any) -> None:
    power = ask(library, cndev.cndevGetPowerInfo, "cndevPowerInfo_t")
    assert 3.6 < power.Usage + power.Usage_Decimal / 10 < 8.4
    assert power.Cap == 8
    assert 50 <= ask(library, cndev.cndevGetTemperatureInfo, "cndevTemperatureInfo_t").Board <= 80
    busy = ask(library, cndev.cndevGetDeviceUtilizationInfo, "cndevUtilizationInfo_t")
    assert 0 <= busy.BoardUtilization <= 100
    assert ask(library, cndev.cndevGetFanSpeedInfo, "cndevFanSpeedInfo_t").FanSpeed == 0


def test_a_hot_card_is_slow(library: Any, cndev: Any, control: Any) -> None:
    usual = ask(library, cndev.cndevGetFrequencyInfo, "cndevFrequencyInfo_t").Frequency
    control(throttle=40)
    assert ask(library, cndev.cndevGetFrequencyInfo, "cndevFrequencyInfo_t").Frequency == usual * 40 // 100
    assert ask(library, cndev.cndevGetTemperatureInfo, "cndevTemperatureInfo_t").Board > 90


def test_a_card_that_is_gone(library: Any, cndev: Any, control: Any) -> None:
    control(lost=1)
    count = library.ffi.new("cndevCardInfo_t *", {"version": 5})
    assert cndev.cndevGetDeviceCount(count) == OK
    assert count.Number == 0
    assert ask(library, cndev.cndevGetCardHealthState, "cndevCardHealthState_t").health == 0
    memory = library.ffi.new("cndevMemoryInfo_t *", {"version": 5})
    assert cndev.cndevGetMemoryUsage(memory, 0) == UNKNOWN
    control()
    assert ask(library, cndev.cndevGetCardHealthState, "cndevCardHealthState_t").health == 1


GROWN = {
    "Power": ("cndevGetPowerInfo", {2020: 16, 2021: 20, 2022: 28}),
    "Temperature": ("cndevGetTemperatureInfo", {2020: 40, 2021: 128, 2022: 144}),
    "Utilization": ("cndevGetDeviceUtilizationInfo", {2020: 136, 2021: 328, 2022: 328}),
    "Frequency": ("cndevGetFrequencyInfo", {2020: 12, 2021: 16, 2022: 16}),
    "FanSpeed": ("cndevGetFanSpeedInfo", {2020: 8, 2021: 8, 2022: 60}),
    "CardSN": ("cndevGetCardSN", {2020: 16, 2021: 24, 2022: 24}),
    "PCIe": ("cndevGetPCIeInfo", {2020: 40, 2021: 40, 2022: 48}),
}


@pytest.mark.parametrize("year", [2020, 2021, 2022])
@pytest.mark.parametrize("what", GROWN)
def test_a_newer_library_writes_more_than_the_old_structure_holds(
    library: Any, cndev: Any, control: Any, what: str, year: int
) -> None:
    call, sizes = GROWN[what]
    control(cndev=year)
    room = library.ffi.new("unsigned char[512]", bytes([0xEE]) * 512)
    library.ffi.cast("int *", room)[0] = 3
    pointer = library.ffi.cast(library.ffi.typeof(getattr(cndev, call)).args[0], room)
    assert getattr(cndev, call)(pointer, 0) == OK
    written = bytes(room)[: sizes[year]]
    assert bytes(room)[sizes[year] :] == bytes([0xEE]) * (512 - sizes[year])
    assert written[-4:] != bytes([0xEE]) * 4


def test_what_a_simulated_card_does_not_have(library: Any, cndev: Any) -> None:
    node = library.ffi.new("cndevTopologyNode_t **")
    assert cndev.cndevTopologyGetVirtualRootNode(5, node) == NOT_SUPPORTED
    assert cndev.cndevGetNodeByDevId(5, node, 0) == NOT_SUPPORTED
