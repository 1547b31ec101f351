"""Drawing tracks, zones and lines into a picture, readable at any resolution."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from pyasc.agent.zones import Shapes
from pyasc.types import Detections, Tracks

Color = tuple[int, int, int]

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_ZONE_COLOR: Color = (255, 200, 0)
_LINE_COLOR: Color = (0, 220, 255)
_WHITE: Color = (255, 255, 255)
_BLACK: Color = (0, 0, 0)
# Successive hues this share of the circle apart stay distinct for any number of them (the golden ratio).
_HUE_STEP = 0.618034


def draw(
    image: NDArray[np.uint8], found: Detections, zones: Shapes | None = None, lines: Shapes | None = None
) -> NDArray[np.uint8]:
    """Draw boxes with label, track number and score, zones and lines.

    Args:
        image: (H, W, 3) uint8 BGR; it is drawn into. Give a copy where the picture itself is still needed.
        found: detections or tracks, in pixels of the picture.
        zones, lines: name to points in 0..1 of the picture. A line has an arrow in its direction `in`.
    Returns:
        the image.
    """
    size = _Size(image)
    for name, corners in (zones or {}).items():
        points = size.pixels(corners)
        cv2.polylines(image, [points], True, _ZONE_COLOR, size.thickness, cv2.LINE_AA)
        _text(image, name, tuple(points[0].tolist()), _ZONE_COLOR, size)
    for name, ends in (lines or {}).items():
        _line(image, name, size.pixels(ends), size)
    numbers: list[Any] = found.track_id.tolist() if isinstance(found, Tracks) else [None] * len(found)
    for number, label, score, box in zip(numbers, found.label, found.score.tolist(), found.xyxy, strict=True):
        color = color_of(number if number is not None else label)
        left, top, right, bottom = size.clip(box)
        cv2.rectangle(image, (left, top), (right, bottom), color, size.thickness)
        text = f"{label} {score:.2f}" if number is None else f"{label} {number} {score:.2f}"
        _text(image, text, (left, top), color, size)
    return image


def color_of(key: int | str) -> Color:
    """A bright BGR colour: the same for the same key, distinct for successive numbers."""
    number = key if isinstance(key, int) else sum(key.encode())
    red, green, blue = colorsys.hsv_to_rgb(number * _HUE_STEP % 1.0, 0.85, 1.0)
    return round(blue * 255), round(green * 255), round(red * 255)


class _Size:
    """Sizes of strokes and letters in proportion to the picture."""

    def __init__(self, image: NDArray[np.uint8]) -> None:
        self.height, self.width = image.shape[:2]
        short = min(self.height, self.width)
        self.thickness = max(1, round(short / 300))
        self.scale = max(0.35, short / 900)

    def pixels(self, points: Sequence[Sequence[float]]) -> NDArray[np.int32]:
        scaled = np.asarray(points, np.float64) * [self.width - 1, self.height - 1]
        rounded: NDArray[np.int32] = np.rint(scaled).astype(np.int32)
        return rounded

    def clip(self, box: NDArray[np.float32]) -> tuple[int, int, int, int]:
        # nan_to_num bounds what OpenCV is given: a coordinate beyond int32 raises.
        values = np.nan_to_num(box.astype(np.float64)).clip(-1, [self.width, self.height] * 2)
        left, top, right, bottom = (int(value) for value in np.rint(values))
        return left, top, right, bottom


def _text(image: NDArray[np.uint8], text: str, anchor: tuple[int, ...], color: Color, size: _Size) -> None:
    """Text on a filled background, above the anchor where there is room, else below, inside the picture."""
    # OpenCV's letters are ASCII only.
    text = text.encode("ascii", "replace").decode()
    weight = max(1, size.thickness // 2)
    (width, height), below = cv2.getTextSize(text, _FONT, size.scale, weight)
    left = min(max(anchor[0], 0), max(0, size.width - width))
    bottom = anchor[1] - below if anchor[1] >= height + 2 * below else anchor[1] + height + below
    bottom = min(max(bottom, height + below), max(height, size.height - below))
    cv2.rectangle(image, (left, bottom - height - below), (left + width, bottom + below), color, cv2.FILLED)
    ink = _BLACK if color[0] * 0.114 + color[1] * 0.587 + color[2] * 0.299 > 110 else _WHITE
    cv2.putText(image, text, (left, bottom), _FONT, size.scale, ink, weight, cv2.LINE_AA)


def _line(image: NDArray[np.uint8], name: str, ends: NDArray[np.int32], size: _Size) -> None:
    start, end = ends.astype(np.float64)
    cv2.line(image, ends[0].tolist(), ends[1].tolist(), _LINE_COLOR, 2 * size.thickness, cv2.LINE_AA)
    along = end - start
    length = float(np.hypot(*along))
    if length > 0:
        right_hand = np.array([-along[1], along[0]]) / length  # y points down
        middle = (start + end) / 2
        tip = np.rint(middle + right_hand * min(size.width, size.height) * 0.06).astype(int)
        base = np.rint(middle).astype(int)
        cv2.arrowedLine(image, base.tolist(), tip.tolist(), _LINE_COLOR, size.thickness, cv2.LINE_AA, tipLength=0.4)
    _text(image, name, tuple(ends[0].tolist()), _LINE_COLOR, size)
