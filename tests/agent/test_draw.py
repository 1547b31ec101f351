"""What is drawn: where there is something, where there is nothing, at any size."""

from __future__ import annotations

import numpy as np
import pytest

from pyasc.agent.draw import color_of, draw
from pyasc.types import Detections, Tracks


def one(box, label="person", number=None):
    parts = (np.array([box], np.float32), np.array([0.5], np.float32), np.zeros(1, np.int64), [label])
    return Detections(*parts) if number is None else Tracks(*parts, np.array([number], np.int64))


def nothing():
    return Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), [])


@pytest.mark.parametrize("size", [(1, 1), (48, 64), (480, 640), (2160, 3840), (3000, 200)])
def test_any_size_is_drawn_into_and_returned(size):
    height, width = size
    image = np.zeros((height, width, 3), np.uint8)
    zones = {"z": [[0, 0], [1, 0], [1, 1]]}
    result = draw(
        image, one([width * 0.2, height * 0.4, width * 0.8, height * 0.9], number=3), zones, {"l": [[0, 0], [1, 1]]}
    )
    assert result is image
    assert image.any()


def test_a_box_is_an_outline_in_the_tracks_colour():
    image = np.zeros((300, 400, 3), np.uint8)
    draw(image, one([100, 150, 200, 250], number=7))
    assert image[250, 150].tolist() == list(color_of(7))
    assert image[200, 100].tolist() == list(color_of(7))
    assert not image[200, 150].any()
    assert not image[280, 150].any()


def test_the_text_stands_above_the_box_and_below_its_edge_at_the_top():
    above, inside = np.zeros((300, 400, 3), np.uint8), np.zeros((300, 400, 3), np.uint8)
    draw(above, one([100, 150, 200, 250], number=7))
    draw(inside, one([100, 0, 200, 250], number=7))
    assert above[130:149, 100:180].any()
    assert inside[3:20, 105:180].any()


def test_the_arrow_of_a_line_points_in():
    # From the left to the right of the picture: the right hand is below.
    image = np.zeros((300, 400, 3), np.uint8)
    draw(image, nothing(), lines={"": [[0.1, 0.5], [0.9, 0.5]]})
    assert image[155:170, 195:205].any()
    assert not image[130:145, 195:205].any()


@pytest.mark.parametrize("box", [[np.nan] * 4, [-1e30, -1e30, 1e30, 1e30], [-50, -50, -10, -10], [5, 5, 5, 5]])
def test_odd_boxes_and_labels_do_no_harm(box):
    draw(np.zeros((60, 80, 3), np.uint8), one(box, label="Größe 人 " + "x" * 100))


def test_successive_tracks_have_distinct_colours():
    colors = [np.array(color_of(number), int) for number in range(12)]
    assert min(np.abs(a - b).sum() for i, a in enumerate(colors) for b in colors[:i]) > 40
