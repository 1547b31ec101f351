"""From a network's outputs to boxes, vectors and probabilities.

Source of the boxes: YOLOv5 v7.0, `models/yolo.py` (Detect) and `utils/general.py` (non_max_suppression). The head's
outputs come before the sigmoid; only cells whose objectness passes the threshold are decoded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import ModelFormatError
from pyasc.hal.base import TensorInfo
from pyasc.models.asc.manifest import Yolov5Head
from pyasc.models.nms import float32_at_most, nms
from pyasc.runtime.values import real

# The reference gives suppression no more than this many candidates of a picture, those of the highest score.
MAX_CANDIDATES = 30_000


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What becomes a detection.

    Attributes:
        confidence: a detection's score, objectness times class, is greater than this; 0..1.
        iou: of two boxes of a class that overlap by more than this the better one stays; 0..1.
        max_detections: at most this many, 1 or more.
        classes: only these class ids; None for all.
        multi_label: one detection for every class of a cell above the threshold instead of the best class alone, as evaluations do.

    Raises:
        ValueError: out of range.
        TypeError: not a number, or `max_detections` not a whole one.
    """

    confidence: float
    iou: float
    max_detections: int
    classes: tuple[int, ...] | None = None
    multi_label: bool = False

    def __post_init__(self) -> None:
        for name in ("confidence", "iou"):
            value = getattr(self, name)
            if not isinstance(value, int | float | np.integer | np.floating):
                raise TypeError(f"{name}: {value!r} is not a number")
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: {value!r} is not in 0..1")
        if not isinstance(self.max_detections, int | np.integer):
            raise TypeError(f"max_detections: {self.max_detections!r} is not a whole number")
        if self.max_detections < 1:
            raise ValueError(f"max_detections: {self.max_detections!r} is below 1")


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Detections in pixels of the network's input, best first.

    Attributes:
        xyxy: (N, 4) float32; may reach outside the input.
        score: (N,) float32.
        class_id: (N,) int64.
        dropped: rows that were left out because they held a value that is not finite.
    """

    xyxy: NDArray[np.float32]
    score: NDArray[np.float32]
    class_id: NDArray[np.int64]
    dropped: int


@dataclass(frozen=True, slots=True)
class _Level:
    """One output of the head: its place in the tables, and the constants of its cells."""

    tensor: TensorInfo
    stride: int
    anchors: NDArray[np.float32]
    columns: int
    cells: int


class Yolov5Decoder:
    """Makes boxes of the outputs of YOLOv5's head; holds tables only, so threads may share it.

    Args:
        head: anchors and strides.
        outputs: as the device gives them: layout, dtype, and scale and zero point where they are quantised.
        classes: how many the model has.
    Raises:
        ModelFormatError: there are no classes, or the outputs have another shape than the head says.
    """

    def __init__(self, head: Yolov5Head, outputs: Sequence[TensorInfo], classes: int) -> None:
        if classes < 1:
            raise ModelFormatError("a YOLOv5 head without labels has no classes to detect")
        self._classes = classes
        self._values = 5 + classes
        levels = zip(outputs, head.strides, head.anchors, strict=True)
        self._levels = [self._level(tensor, stride, anchors) for tensor, stride, anchors in levels]

    def _level(self, tensor: TensorInfo, stride: int, anchors: tuple[tuple[float, float], ...]) -> _Level:
        if tensor.layout not in ("NCHW", "NHWC") or len(tensor.shape) != 4:
            raise ModelFormatError(f"output {tensor.name}: a grid has the layout NCHW or NHWC, not {tensor.layout!r}")
        channels, rows, columns = (tensor.shape[tensor.layout.index(axis)] for axis in "CHW")
        if channels != len(anchors) * self._values:
            raise ModelFormatError(
                f"output {tensor.name}: {channels} channels are not {len(anchors)} anchors x {self._values}"
            )
        return _Level(tensor, stride, np.array(anchors, np.float32), columns, rows * columns)

    def __call__(self, outputs: Sequence[NDArray[Any]], thresholds: Thresholds, row: int = 0) -> Boxes:
        """Decode one picture.

        Args:
            outputs: of the network, in the order of the tables.
            thresholds: what becomes a detection.
            row: of the batch.
        """
        dropped = 0
        parts: list[tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]] = []
        floor = _logit(thresholds.confidence)
        for level, output in zip(self._levels, outputs, strict=True):
            values, cell, anchor, bad = self._survivors(level, output[row], floor)
            dropped += bad
            if len(values):
                parts.append(self._decode(level, values, cell, anchor, thresholds))
        xyxy, score, class_id = (
            (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else _no_boxes()
        )
        order = np.argsort(-score, kind="stable")[:MAX_CANDIDATES]
        xyxy, score, class_id = xyxy[order], score[order], class_id[order]
        kept = nms(xyxy, class_id, thresholds.iou, thresholds.max_detections)
        return Boxes(xyxy[kept], score[kept], class_id[kept], dropped)

    def _survivors(
        self, level: _Level, output: NDArray[Any], floor: float
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64], int]:
        """The rows (n, 5 + classes) whose objectness passes, their cells and anchors, and how many were not finite."""
        anchors = len(level.anchors)
        tensor = level.tensor
        # One pass over memory that is far apart; anchors first in both layouts, so that equal scores come in the same order.
        if tensor.layout == "NHWC":
            grid = output.reshape(level.cells, anchors, self._values)
            objectness = real(np.ascontiguousarray(grid[:, :, 4].T), tensor)
        else:
            grid = output.reshape(anchors, self._values, level.cells)
            objectness = real(np.ascontiguousarray(grid[:, 4]), tensor)
        bad = objectness.size - int(np.count_nonzero(np.isfinite(objectness)))
        if bad:
            objectness = np.where(np.isfinite(objectness), objectness, np.float32(-np.inf))
        anchor, cell = np.nonzero(objectness > floor)
        values = real(grid[cell, anchor] if tensor.layout == "NHWC" else grid[anchor, :, cell], tensor)
        finite = np.asarray(np.isfinite(values).all(axis=1))
        if not finite.all():
            bad += len(finite) - int(np.count_nonzero(finite))
            values, cell, anchor = values[finite], cell[finite], anchor[finite]
        return values, cell, anchor, bad

    def _decode(
        self,
        level: _Level,
        values: NDArray[np.float32],
        cell: NDArray[np.int64],
        anchor: NDArray[np.int64],
        thresholds: Thresholds,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
        objectness = _sigmoid(values[:, 4])
        least = float32_at_most(thresholds.confidence)
        if thresholds.multi_label and self._classes > 1:
            scores = _sigmoid(values[:, 5:]) * objectness[:, None]
            row, class_id = np.nonzero(scores > least)
            score = scores[row, class_id]
        else:
            class_id = values[:, 5:].argmax(axis=1)
            score = _sigmoid(values[np.arange(len(values)), 5 + class_id]) * objectness
            (row,) = np.nonzero(score > least)
            score, class_id = score[row], class_id[row]
        if thresholds.classes is not None:
            wanted = np.isin(class_id, thresholds.classes)
            row, score, class_id = row[wanted], score[wanted], class_id[wanted]
        if len(score) > MAX_CANDIDATES:
            best = np.sort(np.argpartition(-score, MAX_CANDIDATES)[:MAX_CANDIDATES])
            row, score, class_id = row[best], score[best], class_id[best]
        s = _sigmoid(values[row, :4])
        cell = cell[row]
        corner = np.stack([cell % level.columns, cell // level.columns], axis=1).astype(np.float32)
        centre = (s[:, :2] * 2 - np.float32(0.5) + corner) * np.float32(level.stride)
        half = (s[:, 2:] * 2) ** 2 * level.anchors[anchor[row]] / 2
        return np.concatenate([centre - half, centre + half], axis=1), score, class_id


def embeddings(output: NDArray[Any], tensor: TensorInfo, normalize: Literal["l2", "none"]) -> NDArray[np.float32]:
    """Appearance vectors of a batch.

    Args:
        output: of the network.
        tensor: its table.
        normalize: `l2` divides each vector by its length.
    Returns:
        (batch, dim) float32, new; a vector with a value that is not finite is all zeros, and so is one without length.
    """
    vectors = real(output.reshape(output.shape[0], -1), tensor)
    vectors = np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, np.float32(0))
    if normalize == "none":
        return vectors
    # In float64, where no square of a float32 is infinite or vanishes.
    length = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit: NDArray[np.float32] = (vectors / np.where(length > 0, length, 1)).astype(np.float32)
    return unit


def probabilities(
    output: NDArray[Any], tensor: TensorInfo, activation: Literal["softmax", "sigmoid", "none"]
) -> NDArray[np.float32]:
    """Scores of the classes of a batch.

    Returns:
        (batch, classes) float32, new; nan where a logit is nan or the softmax is over an infinite one.
    """
    logits = real(output.reshape(output.shape[0], -1), tensor)
    if activation == "none":
        return np.array(logits, np.float32)
    if activation == "sigmoid":
        return _sigmoid(logits)
    with np.errstate(invalid="ignore"):  # inf - inf is nan, which is for the caller to find
        raised: NDArray[np.float32] = np.exp(logits - logits.max(axis=1, keepdims=True))
    raised /= raised.sum(axis=1, keepdims=True)
    return raised


def _no_boxes() -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    return np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64)


def _logit(confidence: float) -> float:
    """A little below the logit of the threshold: what it lets through in vain the exact comparison stops."""
    if confidence <= 0:
        return -math.inf
    if confidence >= 1:
        return math.inf
    return math.log(confidence / (1 - confidence)) - 1e-3


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # exp of a large number is infinite, and 1 / (1 + inf) is the 0 that is right
        result: NDArray[np.float32] = np.exp(-x)
    result += 1
    return np.reciprocal(result, out=result)
