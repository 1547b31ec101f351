"""Frame periods from capture times."""

from __future__ import annotations

import logging
import math

import pytest

from pyasc.plugins.frame_clock import FrameClock, Tick


def steps(clock: FrameClock, times: list[float | None]) -> list[float]:
    return [clock.tick(time).steps for time in times]


@pytest.mark.parametrize("rate", [5, 7, 24, 29.97, 30, 60, 120])
def test_a_steady_rate_counts_one_each(rate: float) -> None:
    exact = [1000 + k / rate for k in range(200)]
    assert steps(FrameClock(), [*exact]) == [1.0] * 200
    assert steps(FrameClock(rate), [*exact]) == [1.0] * 200
    milliseconds = [round(time, 3) for time in exact]
    assert steps(FrameClock(), [*milliseconds]) == [1.0] * 200


def test_jitter_of_a_steady_rate_counts_one_each() -> None:
    late = [0.0, 0.003, -0.002, 0.002, 0.0, -0.003, 0.001]
    times: list[float | None] = [k / 25 + late[k % len(late)] for k in range(300)]
    assert steps(FrameClock(), times) == [1.0] * 300


def test_dropped_frames_count() -> None:
    clock = FrameClock()
    assert steps(clock, [0.0, 0.04, 0.08, 0.12, 0.24, 0.28, 1.28]) == [1, 1, 1, 1, 3, 1, 25]


def test_odd_ratio_is_kept() -> None:
    clock = FrameClock(30)
    assert steps(clock, [0.0, 0.05])[1] == pytest.approx(1.5)
    assert steps(clock, [0.055])[0] == pytest.approx(0.15)


def test_no_time_is_one_period() -> None:
    clock = FrameClock(10)
    assert steps(clock, [None, 5.0, None, None, 5.3, 5.5]) == [1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("wrong", [2.0, 0.0, -50.0, math.nan, math.inf])
def test_time_that_does_not_go_forward_is_one_period_and_logged_once(
    wrong: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FrameClock(10)
    with caplog.at_level(logging.WARNING):
        assert steps(clock, [1.9, 2.0, wrong, wrong]) == [1, 1, 1, 1]
        after = 2.0 if not math.isfinite(wrong) else wrong
        assert steps(clock, [after + 0.1, after + 0.3]) == pytest.approx([1, 2])
    assert len(caplog.records) == 1


def test_a_new_rate_becomes_the_period_after_a_while() -> None:
    clock = FrameClock()
    ticks = [clock.tick(k / 30) for k in range(100)] + [clock.tick(100 / 30 + k * 4 / 30) for k in range(100)]
    assert {tick.stretch for tick in ticks[:101]} == {1.0}
    changed = [k for k, tick in enumerate(ticks) if tick.stretch != 1]
    assert len(changed) == 1
    assert 20 < changed[0] - 100 < 60
    assert ticks[changed[0]].stretch == pytest.approx(4)
    assert [tick.steps for tick in ticks[101 : changed[0]]] == [4.0] * (changed[0] - 101)
    assert [tick.steps for tick in ticks[changed[0] :]] == [1.0] * (200 - changed[0])


def test_a_given_rate_stays() -> None:
    clock = FrameClock(30)
    assert {clock.tick(k * 4 / 30) for k in range(1, 300)} == {Tick(1.0, 1.0), Tick(4.0, 1.0)}


def test_no_interval_is_too_odd() -> None:
    clock = FrameClock()
    times: list[float | None] = [-1e308, 1e308, 0.0, 5e-324, 1e-6, 1.0, 1.0 + 1e-12, 1e9]
    assert all(math.isfinite(step) and step > 0 for step in steps(clock, times))
