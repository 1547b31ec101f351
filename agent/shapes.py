"""Checks of zones and lines that a schema cannot say."""

from __future__ import annotations

from collections.abc import Sequence

# Of the picture's area: one hundredth of a pixel in a picture of 1000 x 1000.
MIN_AREA = 1e-8

Point = Sequence[float]


def polygon_fault(corners: Sequence[Point]) -> str | None:
    """Why these corners, each [x, y] in 0..1, are no area; None when they are one.

    The first corner is not repeated at the end.
    """
    count = len(corners)
    for index in range(count):
        if tuple(corners[index]) == tuple(corners[index - 1]):
            return f"corners {(index - 1) % count} and {index} are the same point"
    if _area(corners) < MIN_AREA:
        return "the area is zero"
    for first in range(count):
        for second in range(first + 2, count):
            if (second + 1) % count == first:
                continue  # neighbours share a corner
            if _cross(corners[first], corners[first + 1], corners[second], corners[(second + 1) % count]):
                return f"the side from corner {first} crosses the side from corner {second}"
    return None


def line_fault(ends: Sequence[Point]) -> str | None:
    """Why these two ends are no line; None when they are one."""
    return "the two ends are the same point" if tuple(ends[0]) == tuple(ends[1]) else None


def _area(corners: Sequence[Point]) -> float:
    """The shoelace formula."""
    doubled = sum(corners[i - 1][0] * corners[i][1] - corners[i][0] * corners[i - 1][1] for i in range(len(corners)))
    return abs(doubled) / 2


def _cross(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether the segments a-b and c-d have a point in common."""
    if max(a[0], b[0]) < min(c[0], d[0]) or max(c[0], d[0]) < min(a[0], b[0]):
        return False
    if max(a[1], b[1]) < min(c[1], d[1]) or max(c[1], d[1]) < min(a[1], b[1]):
        return False
    sides = _side(a, b, c), _side(a, b, d), _side(c, d, a), _side(c, d, b)
    if sides[0] * sides[1] < 0 and sides[2] * sides[3] < 0:
        return True
    touching = ((sides[0], a, b, c), (sides[1], a, b, d), (sides[2], c, d, a), (sides[3], c, d, b))
    return any(side == 0 and _within(start, end, point) for side, start, end, point in touching)


def _side(a: Point, b: Point, point: Point) -> float:
    return (b[0] - a[0]) * (point[1] - a[1]) - (b[1] - a[1]) * (point[0] - a[0])


def _within(a: Point, b: Point, point: Point) -> bool:
    return min(a[0], b[0]) <= point[0] <= max(a[0], b[0]) and min(a[1], b[1]) <= point[1] <= max(a[1], b[1])
