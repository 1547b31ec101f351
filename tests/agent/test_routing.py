"""Where a detector runs: by the stream's facts, and when a device fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from pyasc.agent import routing
from pyasc.agent.routing import Mover, Router, parse_route
from pyasc.errors import ConfigError, DeviceError, DeviceLostError
from pyasc.types import Detections

ROUTE: list[Mapping[str, Any]] = [{"when": "resolution > 1080", "device": "mlu220"}, {"device": "hi3559"}]
DEADLINE_S = 10.0


class Wanderer:
    """A detector that says where it is, and fails on the devices that are broken."""

    def __init__(self) -> None:
        self.device = "cpu"
        self.broken: set[str] = set()
        self.moves: list[str] = []
        self.prepared: list[str] = []
        self.mended = threading.Event()

    def config_device(self, device: str, **options: Any) -> None:
        self._check(device)
        self.device = device
        self.moves.append(device)

    def prepare_device(self, device: str) -> None:
        self._check(device)
        self.prepared.append(device)
        self.mended.set()

    def detect(self, image: Any) -> Detections:
        self._check(self.device)
        return Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), [])

    def _check(self, device: str) -> None:
        if device in self.broken:
            raise DeviceLostError(f"{device} does not answer")


@pytest.fixture
def detector() -> Wanderer:
    return Wanderer()


@pytest.fixture
def make_router(detector: Wanderer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Router]]:
    monkeypatch.setattr(routing, "PROBE_FIRST_S", 0.01)
    made: list[Router] = []

    def make(route: list[Mapping[str, Any]] = ROUTE, **more: Any) -> Router:
        made.append(Router(detector, parse_route(route), detector.detect, **more))
        return made[-1]

    yield make
    for router in made:
        router.close()


def test_the_first_entry_that_applies_is_taken(make_router: Callable[..., Router], detector: Wanderer) -> None:
    router = make_router()
    for lines, device in ((720, "hi3559"), (1080, "hi3559"), (1081, "mlu220"), (2160, "mlu220"), (720, "hi3559")):
        router.follow({"resolution": lines})
        assert detector.device == router.device == device
    assert detector.moves == ["hi3559", "mlu220", "hi3559"]


def test_where_no_entry_applies_the_detector_stays(make_router: Callable[..., Router], detector: Wanderer) -> None:
    router = make_router([{"when": "resolution > 1080", "device": "mlu220"}])
    router.follow({"resolution": 720})
    assert (detector.moves, router.device) == ([], None)


@pytest.mark.parametrize(("share", "moves"), [(0.0, ["hi3559", "mlu220", "hi3559"]), (0.1, ["hi3559", "mlu220"])])
def test_hysteresis_keeps_an_entry_whose_numbers_are_nearly_met(
    make_router: Callable[..., Router], detector: Wanderer, share: float, moves: list[str]
) -> None:
    router = make_router([{**ROUTE[0], "hysteresis": share}, ROUTE[1]])
    for lines in (1000, 1100, 1000):
        router.follow({"resolution": lines})
    assert detector.moves == moves
    router.follow({"resolution": 900})
    assert detector.device == "hi3559"


def test_a_busy_device_is_passed_over(make_router: Callable[..., Router], detector: Wanderer) -> None:
    loads = {"mlu220": 0.95}
    router = make_router([{**ROUTE[0], "max_load": 0.9}, ROUTE[1]], load=loads.get)
    router.follow({"resolution": 2160})
    assert detector.device == "hi3559"
    loads["mlu220"] = 0.5
    router.follow({"resolution": 2160})
    assert detector.device == "mlu220"


def test_a_busy_device_is_better_than_none(make_router: Callable[..., Router], detector: Wanderer) -> None:
    router = make_router([{"device": "mlu220", "max_load": 0.9}], load=lambda device: 1.0)
    router.follow({"resolution": 2160})
    assert detector.device == "mlu220"


def test_a_picture_is_detected_on_the_next_device_when_one_fails(
    make_router: Callable[..., Router], detector: Wanderer
) -> None:
    router = make_router()
    router.follow({"resolution": 2160})
    detector.broken.add("mlu220")
    assert len(router.detect("picture")) == 0
    assert (detector.device, router.device) == ("hi3559", "hi3559")
    assert router.faults == {"mlu220": "mlu220 does not answer"}


def test_the_last_entry_failing_leads_to_one_whose_condition_does_not_hold(
    make_router: Callable[..., Router], detector: Wanderer
) -> None:
    router = make_router()
    router.follow({"resolution": 720})
    detector.broken.add("hi3559")
    router.detect("picture")
    assert detector.device == "mlu220"


def test_a_device_that_works_again_is_gone_back_to(make_router: Callable[..., Router], detector: Wanderer) -> None:
    router = make_router()
    router.follow({"resolution": 2160})
    detector.broken.add("mlu220")
    router.detect("picture")
    probe = next(thread for thread in threading.enumerate() if thread.name == "probe mlu220")
    assert not detector.mended.is_set()
    detector.broken.clear()
    probe.join(DEADLINE_S)
    assert not probe.is_alive()
    assert (detector.device, router.faults) == ("mlu220", {})


def test_without_a_device_that_works_the_failure_is_raised(
    make_router: Callable[..., Router], detector: Wanderer
) -> None:
    router = make_router()
    router.follow({"resolution": 2160})
    detector.broken.update(("mlu220", "hi3559"))
    with pytest.raises(DeviceLostError, match="does not answer"):
        router.detect("picture")
    with pytest.raises(DeviceError, match=r"mlu220: .*hi3559: "):
        router.follow({"resolution": 720})


def test_closing_ends_the_trying(make_router: Callable[..., Router], detector: Wanderer) -> None:
    router = make_router()
    router.follow({"resolution": 2160})
    detector.broken.add("mlu220")
    router.detect("picture")
    probe = next(thread for thread in threading.enumerate() if thread.name == "probe mlu220")
    router.close()
    probe.join(DEADLINE_S)
    assert not probe.is_alive()
    assert router.faults


def test_every_device_of_a_route_is_made_ready(make_router: Callable[..., Router], detector: Wanderer) -> None:
    detector.broken.add("hi3559")
    router = make_router()
    router.prepare()
    assert router.faults == {"hi3559": "hi3559 does not answer"}
    assert detector.prepared == ["mlu220"]


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({}, ("route[0].device", "required")),
        ({"device": 3}, ("route[0].device", "required")),
        ({"device": "cpu", "hysteresis": 1.0}, ("route[0].hysteresis", "1.0 is not within 0..1")),
        ({"device": "cpu", "hysteresis": True}, ("route[0].hysteresis", "True is not within 0..1")),
        ({"device": "cpu", "max_load": -1}, ("route[0].max_load", "-1 is not within 0..1")),
        ({"device": "cpu", "priority": 1}, ("route[0].priority", "unknown key")),
    ],
)
def test_a_wrong_entry_is_named(entry: Mapping[str, Any], fault: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_route([entry])
    assert caught.value.faults == (fault,)


def test_a_choice_asked_for_during_one_is_made_after_it() -> None:
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def process() -> None:
        calls.append(len(calls))
        begun.set()
        assert go_on.wait(DEADLINE_S)

    mover = Mover(process)
    mover.request()
    assert begun.wait(DEADLINE_S)
    mover.request()
    mover.request()
    go_on.set()
    assert mover.join(DEADLINE_S)
    assert calls == [0, 1]
    mover.check()


def test_what_choosing_raises_comes_out() -> None:
    def process() -> None:
        raise DeviceError("no device")

    mover = Mover(process)
    mover.request()
    assert mover.join(DEADLINE_S)
    with pytest.raises(DeviceError, match="no device"):
        mover.check()
    mover.check()
