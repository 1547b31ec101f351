"""Geometry of zones and lines: whether a point is in a polygon, which side of a line it is on, and when that has really changed.

Coordinates are 0..1 of the picture's width and height, y downwards, so that they hold at any resolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyasc.agent.shapes import line_fault, polygon_fault
from pyasc.errors import ConfigError, ConfigFault

Point = tuple[float, float]
# Name to points, as in a configuration.
Shapes = Mapping[str, Sequence[Sequence[float]]]
Direction = Literal["in", "out"]

# Frames in a row that a track must be seen inside (outside) before it has entered (left) a zone.
ZONE_FRAMES = 3
# Distance from a line, in picture heights, up to which a point is on neither side. Detectors' boxes jitter by about this much.
LINE_MARGIN = 0.01
# Points this close to a polygon's side are on it: 1e-9 of a picture is no part of any pixel.
_TOUCH = 1e-9


@dataclass(frozen=True, slots=True)
class Zone:
    """A polygon that does not cross itself; its border belongs to it.

    Attributes:
        name: in events.
        corners: at least three, the first not repeated.
    """

    name: str
    corners: tuple[Point, ...]

    def contains(self, x: float, y: float) -> bool:
        """Whether a point is inside or on the border (ray casting, even-odd)."""
        inside = False
        for (x0, y0), (x1, y1) in zip(self.corners, self.corners[1:] + self.corners[:1], strict=True):
            if _on_segment(x, y, x0, y0, x1, y1):
                return True
            if (y0 > y) != (y1 > y) and x < x0 + (y - y0) / (y1 - y0) * (x1 - x0):
                inside = not inside
        return inside


@dataclass(frozen=True, slots=True)
class Line:
    """A directed segment from `start` to `end`.

    Someone who stands at the start and looks to the end, on the picture as it is shown, has a left and a right hand: `in` is from
    left to right, `out` from right to left.
    """

    name: str
    start: Point
    end: Point

    def distance(self, x: float, y: float, aspect: float) -> float:
        """Signed distance of a point from the whole straight line, in picture heights: positive at the right hand.

        Args:
            x, y: of the point.
            aspect: width of the picture divided by its height.
        """
        along_x, along_y = (self.end[0] - self.start[0]) * aspect, self.end[1] - self.start[1]
        to_x, to_y = (x - self.start[0]) * aspect, y - self.start[1]
        length = math.hypot(along_x, along_y)
        # y points down, so this cross product is positive where an upright picture has the right hand.
        return (along_x * to_y - along_y * to_x) / length

    def beside(self, x: float, y: float, aspect: float) -> bool:
        """Whether the foot of the perpendicular from a point is on the segment, its ends included."""
        along_x, along_y = (self.end[0] - self.start[0]) * aspect, self.end[1] - self.start[1]
        part = ((x - self.start[0]) * aspect * along_x + (y - self.start[1]) * along_y) / (along_x**2 + along_y**2)
        return -_TOUCH <= part <= 1 + _TOUCH


class ZoneStay:
    """Whether one track is in one zone, with hysteresis: flicker at the border changes nothing."""

    def __init__(self, zone: Zone) -> None:
        self.zone = zone
        self.inside = False
        self._against = 0

    def move(self, x: float, y: float) -> bool:
        """Take the track's next point; True when `inside` has changed."""
        if self.zone.contains(x, y) == self.inside:
            self._against = 0
            return False
        self._against += 1
        if self._against < ZONE_FRAMES:
            return False
        self.inside, self._against = not self.inside, 0
        return True


class LinePassage:
    """The way of one track by one line.

    A crossing is told once the track has come from beyond the margin at one side to beyond the margin at the other, its path having
    gone through the segment in that direction on balance. To and fro on the line tells nothing, nor does the way around its end.
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        self._last: tuple[float, float, float] | None = None  # x, y, signed distance of the last point
        self._side = 0  # the side of the last point that was not exactly on the line
        self._clear_side = 0  # the side where the track was last beyond the margin
        self._through = 0  # passages through the segment since then, left to right counted up

    def move(self, x: float, y: float, aspect: float) -> Direction | None:
        """Take the track's next point; the direction when that completes a crossing."""
        distance = self.line.distance(x, y, aspect)
        side = (distance > 0) - (distance < 0)
        if side and self._side and side != self._side and self._hits(x, y, distance, aspect):
            self._through += side
        self._side = side or self._side
        self._last = x, y, distance
        if abs(distance) <= LINE_MARGIN:
            return None
        crossed = side == -self._clear_side and self._through * side > 0
        self._clear_side, self._through = side, 0
        if not crossed:
            return None
        return "in" if side > 0 else "out"

    def _hits(self, x: float, y: float, distance: float, aspect: float) -> bool:
        """Whether the movement from the last point to this one meets the line within its ends."""
        assert self._last is not None
        last_x, last_y, last_distance = self._last
        part = last_distance / (last_distance - distance)
        return self.line.beside(last_x + part * (x - last_x), last_y + part * (y - last_y), aspect)


def make_zones(shapes: Shapes | None) -> tuple[Zone, ...]:
    """Zones of a configuration: name to corners; ConfigError names each that is no area of the picture."""
    return tuple(Zone(name, corners) for name, corners in _checked("zones", shapes, polygon_fault, 3, 64))


def make_lines(shapes: Shapes | None) -> tuple[Line, ...]:
    """Lines of a configuration: name to the two ends; ConfigError names each that is no line in the picture."""
    return tuple(Line(name, *ends) for name, ends in _checked("lines", shapes, line_fault, 2, 2))


def _checked(
    kind: str, shapes: Shapes | None, fault: Callable[[Sequence[Point]], str | None], least: int, most: int
) -> list[tuple[str, tuple[Point, ...]]]:
    checked: list[tuple[str, tuple[Point, ...]]] = []
    faults: list[ConfigFault] = []
    for name, given in (shapes or {}).items():
        try:
            points = tuple((float(x), float(y)) for x, y in given)
        except (TypeError, ValueError):
            faults.append(ConfigFault(f"{kind}.{name}", "not a list of points [x, y]"))
            continue
        wrong: str | None
        if not least <= len(points) <= most:
            wrong = f"{len(points)} points; it takes {least}{f' to {most}' if most > least else ''}"
        elif not all(0 <= value <= 1 for point in points for value in point):
            wrong = "a point is not in 0..1 of the picture"
        else:
            wrong = fault(points)
        if wrong:
            faults.append(ConfigFault(f"{kind}.{name}", wrong))
        checked.append((name, points))
    if faults:
        raise ConfigError(faults)
    return checked


def _on_segment(x: float, y: float, x0: float, y0: float, x1: float, y1: float) -> bool:
    length = math.hypot(x1 - x0, y1 - y0)
    if length == 0:
        return abs(x - x0) <= _TOUCH and abs(y - y0) <= _TOUCH
    off = ((x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)) / length
    part = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length
    return abs(off) <= _TOUCH and -_TOUCH <= part <= length + _TOUCH
