"""The live tracks of a tracker, a row each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyasc.plugins import kalman
from pyasc.plugins.gallery import Gallery
from pyasc.types import Detections, Tracks


class TrackTable:
    """T live tracks as columns of T values, oldest first; numbers go up from 1 and are never used twice.

    Attributes:
        states: of the Kalman filter.
        track_id: (T,) int64.
        class_id: (T,) int64, of the last detection, as are the next two.
        score: (T,) float32.
        label: T strings.
        hits: (T,) int64, detections so far.
        misses: (T,) int64, frames since the last detection.
        age: (T,) float64, frame periods since the last detection.
        confirmed: (T,) bool; the others are tentative.
        gallery: T appearance memories.
    """

    def __init__(self) -> None:
        self._next_id = 1
        self.clear()

    def clear(self) -> None:
        """Forget all tracks; the numbers go on."""
        self.states = kalman.empty()
        self.track_id = np.empty(0, np.int64)
        self.class_id = np.empty(0, np.int64)
        self.score = np.empty(0, np.float32)
        self.label: list[str] = []
        self.hits = np.empty(0, np.int64)
        self.misses = np.empty(0, np.int64)
        self.age = np.empty(0, np.float64)
        self.confirmed = np.empty(0, np.bool_)
        self.gallery: list[Gallery] = []

    def __len__(self) -> int:
        return len(self.track_id)

    def advance(self, steps: float) -> None:
        """Move all tracks on by one frame that is a number of frame periods later."""
        self.states = kalman.predict(self.states, steps)
        self.misses += 1
        self.age += steps

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Drop the tracks outside the mask (T,)."""
        if rows.all():
            return
        self.states = self.states[rows]
        for column in ("track_id", "class_id", "score", "hits", "misses", "age", "confirmed"):
            setattr(self, column, getattr(self, column)[rows])
        kept = np.flatnonzero(rows)
        self.label = [self.label[i] for i in kept]
        self.gallery = [self.gallery[i] for i in kept]

    def correct(self, rows: NDArray[np.int64], found: Detections, xyah: NDArray[np.float64]) -> None:
        """Give each of these tracks the detection of the same place in `found`."""
        better = kalman.correct(self.states[rows], xyah)
        self.states.mean[rows], self.states.cov[rows] = better.mean, better.cov
        self.class_id[rows], self.score[rows] = found.class_id, found.score
        for row, label in zip(rows, found.label, strict=True):
            self.label[row] = label
        self.hits[rows] += 1
        self.misses[rows] = 0
        self.age[rows] = 0

    def append(self, found: Detections, xyah: NDArray[np.float64], budget: int) -> None:
        """Start a tentative track at each detection."""
        count = len(found)
        self.states = kalman.concatenate(self.states, kalman.initiate(xyah))
        self.track_id = np.append(self.track_id, np.arange(self._next_id, self._next_id + count))
        self._next_id += count
        self.class_id = np.append(self.class_id, found.class_id)
        self.score = np.append(self.score, found.score)
        self.label += found.label
        self.hits = np.append(self.hits, np.ones(count, np.int64))
        self.misses = np.append(self.misses, np.zeros(count, np.int64))
        self.age = np.append(self.age, np.zeros(count))
        self.confirmed = np.append(self.confirmed, np.zeros(count, np.bool_))
        self.gallery += [Gallery(budget) for _ in range(count)]

    def output(self, rows: NDArray[np.bool_]) -> Tracks:
        """The tracks of the mask (T,) as they stand, with the boxes of the filter."""
        with np.errstate(over="ignore"):
            boxes = self.states.xyxy().astype(np.float32)
        # A height that shrinks while nobody sees the object ends below zero; such a box is no box.
        sound = np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        chosen: Any = np.flatnonzero(rows & sound)
        return Tracks(
            boxes[chosen],
            self.score[chosen],
            self.class_id[chosen],
            [self.label[i] for i in chosen],
            self.track_id[chosen],
        )
