"""How many frame periods passed between two frames, so that what is counted in frames means the same at another frame rate."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from typing import NamedTuple

_log = logging.getLogger(__name__)

# Intervals that differ from a whole number of periods by less than this are the jitter of a steady stream and count as one period.
_JITTER = 1 / 3
# The period is the median of this many intervals: a new frame rate is the usual one after half of them.
_WINDOW = 64
# Intervals outside of this range are no frame periods: the same picture again, or a clock gone mad.
_SHORTEST_S, _LONGEST_S = 1e-6, 1e9


class Tick(NamedTuple):
    """One step of the clock.

    Attributes:
        steps: frame periods since the last frame; a whole number where it is one but for jitter.
        stretch: the frame period as a multiple of the one before, 1.0 while it stays.
    """

    steps: float
    stretch: float


class FrameClock:
    """Turns capture times into frame periods.

    Args:
        frame_rate: nominal frames a second; None takes the median of the last intervals.
    """

    def __init__(self, frame_rate: float | None = None) -> None:
        self._fixed = frame_rate is not None
        self._period_s = 1 / frame_rate if frame_rate else None
        self._intervals: deque[float] = deque(maxlen=_WINDOW)
        self._last_s: float | None = None
        self._warned = False

    def tick(self, time_s: float | None) -> Tick:
        """Take the time of the next frame, in seconds; None means one period after the last.

        A time that does not come after the last one by at least a microsecond, or is not a number, counts as one period and is
        logged once.
        """
        if time_s is None:
            if self._last_s is not None and self._period_s is not None:
                self._last_s += self._period_s
            return Tick(1.0, 1.0)
        last_s = self._last_s
        if not math.isfinite(time_s) or (last_s is not None and time_s - last_s < _SHORTEST_S):
            if not self._warned:
                _log.warning("frame time %s after %s does not go forward, counted as one frame period", time_s, last_s)
                self._warned = True
            if math.isfinite(time_s):
                self._last_s = time_s
            return Tick(1.0, 1.0)
        self._last_s = time_s
        if last_s is None:
            return Tick(1.0, 1.0)
        interval_s = min(time_s - last_s, _LONGEST_S)
        stretch = 1.0 if self._fixed else self._learn(interval_s)
        assert self._period_s is not None
        steps = interval_s / self._period_s
        whole = max(1, round(steps))
        return Tick(float(whole) if abs(steps - whole) <= _JITTER else steps, stretch)

    def _learn(self, interval_s: float) -> float:
        """Take an interval into the period; returns how many times as long the period became."""
        self._intervals.append(interval_s)
        before = self._period_s
        self._period_s = statistics.median_low(self._intervals)
        stretch = 1.0 if before is None else self._period_s / before
        return 1.0 if abs(stretch - 1) <= _JITTER else stretch
