"""Geometry against OpenCV and exact arithmetic, and the rules of entering, leaving and crossing on paths with known answers."""

from __future__ import annotations

import itertools
from fractions import Fraction

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyasc.agent.zones import LINE_MARGIN, ZONE_FRAMES, Line, LinePassage, Zone, ZoneStay, make_lines, make_zones

SQUARE = Zone("square", ((0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8)))
# An L: the upper right quarter is cut out.
ELL = Zone("ell", ((0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (1.0, 0.5), (1.0, 1.0), (0.0, 1.0)))


@pytest.mark.parametrize(
    ("zone", "point", "inside"),
    [
        (SQUARE, (0.5, 0.5), True),
        (SQUARE, (0.1, 0.5), False),
        (SQUARE, (0.5, 0.9), False),
        (SQUARE, (0.2, 0.5), True),
        (SQUARE, (0.8, 0.8), True),
        (SQUARE, (0.8, 0.81), False),
        (ELL, (0.25, 0.25), True),
        (ELL, (0.75, 0.25), False),
        (ELL, (0.75, 0.75), True),
        (ELL, (1.0, 1.0), True),
        (ELL, (0.5, 0.25), True),
    ],
)
def test_inside_outside_and_border(zone, point, inside):
    assert zone.contains(*point) is inside


@given(
    corners=st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), min_size=3, max_size=3, unique=True),
    point=st.tuples(st.integers(0, 16), st.integers(0, 16)),
)
def test_triangles_agree_with_opencv(corners, point):
    zone = Zone("t", tuple((x / 16, y / 16) for x, y in corners))
    expected = cv2.pointPolygonTest(np.array(corners, np.float32), (float(point[0]), float(point[1])), False) >= 0
    assert zone.contains(point[0] / 16, point[1] / 16) == expected


def stay(points: list[tuple[float, float]]) -> list[tuple[int, bool]]:
    """Frame number and new state of each change."""
    state = ZoneStay(SQUARE)
    return [(index, state.inside) for index, point in enumerate(points) if state.move(*point)]


IN, OUT = (0.5, 0.5), (0.1, 0.1)


def test_a_stay_begins_and_ends_after_some_frames():
    points = [OUT] * 5 + [IN] * 6 + [OUT] * 5
    assert stay(points) == [(4 + ZONE_FRAMES, True), (10 + ZONE_FRAMES, False)]


def test_flicker_at_the_border_is_no_stay():
    assert stay([OUT, IN] * 20) == []
    assert stay([IN] * 10 + [OUT, IN] * 20) == [(ZONE_FRAMES - 1, True)]


# --- lines. LEVEL goes from left to right, so its left hand is up and its right hand is down on the picture.

LEVEL = Line("level", (0.2, 0.5), (0.8, 0.5))
DOWN = Line("down", (0.5, 0.0), (0.5, 1.0))


def crossings(line: Line, points: list[tuple[float, float]], aspect: float = 1.0) -> list[tuple[int, str]]:
    passage = LinePassage(line)
    found = [(index, passage.move(x, y, aspect)) for index, (x, y) in enumerate(points)]
    return [(index, direction) for index, direction in found if direction is not None]


def test_in_is_from_the_left_hand_to_the_right_hand():
    assert crossings(LEVEL, [(0.5, 0.3), (0.5, 0.7)]) == [(1, "in")]
    assert crossings(LEVEL, [(0.5, 0.7), (0.5, 0.3)]) == [(1, "out")]
    # Looking down the picture, the right hand is at the viewer's left.
    assert crossings(DOWN, [(0.7, 0.5), (0.3, 0.5)]) == [(1, "in")]
    assert crossings(DOWN, [(0.3, 0.5), (0.7, 0.5)]) == [(1, "out")]


def test_turning_a_line_turns_the_direction():
    turned = Line("turned", LEVEL.end, LEVEL.start)
    assert crossings(turned, [(0.5, 0.3), (0.5, 0.7)]) == [(1, "out")]


def test_passing_beside_the_segment_is_no_crossing():
    assert crossings(LEVEL, [(0.1, 0.3), (0.1, 0.7)]) == []
    assert crossings(LEVEL, [(0.9, 0.7), (0.9, 0.3)]) == []
    # Across, and back around the end: one crossing.
    assert crossings(LEVEL, [(0.5, 0.3), (0.5, 0.7), (0.9, 0.7), (0.9, 0.3), (0.5, 0.3)]) == [(1, "in")]


def test_the_end_of_a_segment_belongs_to_it():
    assert crossings(LEVEL, [(0.2, 0.3), (0.2, 0.7)]) == [(1, "in")]


def test_a_slanting_path_is_judged_where_it_meets_the_line():
    assert crossings(LEVEL, [(0.1, 0.3), (0.9, 0.7)]) == [(1, "in")]
    assert crossings(LEVEL, [(0.0, 0.4), (0.35, 0.8)]) == []


def test_jitter_on_the_line_counts_once():
    jitter = [(0.5, 0.5 + (LINE_MARGIN * 0.9 if k % 2 else -LINE_MARGIN * 0.9)) for k in range(31)]
    assert crossings(LEVEL, [(0.5, 0.3), *jitter, (0.5, 0.7)]) == [(32, "in")]
    assert crossings(LEVEL, [(0.5, 0.3), *jitter, (0.5, 0.3)]) == []
    assert crossings(LEVEL, jitter) == []


def test_stopping_exactly_on_the_line():
    assert crossings(LEVEL, [(0.5, 0.3), (0.5, 0.5), (0.5, 0.5), (0.5, 0.7)]) == [(3, "in")]
    assert crossings(LEVEL, [(0.5, 0.3), (0.5, 0.5), (0.5, 0.3)]) == []
    # It meets the line beyond its end, and leaves it there.
    assert crossings(LEVEL, [(0.9, 0.3), (0.9, 0.5), (0.5, 0.7)]) == []


def test_the_margin_is_in_picture_heights_whatever_the_aspect():
    step = LINE_MARGIN * 1.5
    assert crossings(LEVEL, [(0.5, 0.5 - step), (0.5, 0.5 + step)], aspect=16 / 9) == [(1, "in")]
    # 1.5 hundredths of the width of a tall picture are less than a hundredth of its height.
    assert crossings(DOWN, [(0.5 + step, 0.5), (0.5 - step, 0.5)], aspect=9 / 16) == []


def meets(line: Line, a: tuple[float, float], b: tuple[float, float]) -> int:
    """Exact: 1 (-1) when the segment a-b goes through the line to its right (left) hand, 0 when it does not meet it."""
    (px, py), (qx, qy), (ax, ay), (bx, by) = ((Fraction(x), Fraction(y)) for x, y in (line.start, line.end, a, b))
    determinant = (qx - px) * (by - ay) - (qy - py) * (bx - ax)
    if determinant == 0:
        return 0
    along_line = ((ax - px) * (by - ay) - (ay - py) * (bx - ax)) / determinant
    along_path = ((ax - px) * (qy - py) - (ay - py) * (qx - px)) / determinant
    if not (0 <= along_line <= 1 and 0 < along_path < 1):
        return 0
    return 1 if determinant > 0 else -1


sixteenths = st.integers(0, 16).map(lambda number: number / 16)
points = st.tuples(sixteenths, sixteenths)


@given(start=points, end=points, path=st.lists(points, min_size=2, max_size=12))
def test_paths_with_clear_steps_agree_with_exact_arithmetic(start, end, path):
    if start == end:
        return
    line = Line("line", start, end)
    clear = [point for point in path if abs(line.distance(*point, 1.0)) > LINE_MARGIN]
    expected = [
        (index, "in" if way > 0 else "out")
        for index, (a, b) in enumerate(itertools.pairwise(clear), 1)
        if (way := meets(line, a, b))
    ]
    assert crossings(line, clear) == expected


@given(path=st.lists(points, max_size=40))
def test_an_endless_line_is_crossed_in_turns(path):
    directions = [direction for _, direction in crossings(Line("whole", (0.0, 0.5), (1.0, 0.5)), path)]
    assert all(a != b for a, b in itertools.pairwise(directions))


def test_shapes_of_a_configuration():
    zones, lines = make_zones({"z": [[0, 0], [1, 0], [1, 1]]}), make_lines({"l": [[0, 0.5], [1, 0.5]]})
    assert zones == (Zone("z", ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0))),)
    assert lines == (Line("l", (0.0, 0.5), (1.0, 0.5)),)
    assert (make_zones(None), make_lines(None)) == ((), ())
