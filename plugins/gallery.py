"""The appearance memory of tracks. Source: Wojke, Bewley and Paulus 2017, section 2.2, equation 2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Gallery:
    """The last unit vectors of one track, at most `budget` of them; its memory grows with what it holds and no further.

    Args:
        budget: how many vectors are kept; the oldest goes first.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._count = 0
        self._ring: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return min(self._count, self._budget)

    def add(self, vector: NDArray[np.float32]) -> None:
        """Remember a copy of a unit vector (D,)."""
        if self._ring is None:
            self._ring = np.empty((min(4, self._budget), len(vector)), np.float32)
        elif self._count == len(self._ring) < self._budget:
            grown = np.empty((min(2 * self._count, self._budget), len(vector)), np.float32)
            grown[: self._count] = self._ring
            self._ring = grown
        self._ring[self._count % self._budget] = vector
        self._count += 1

    def distance(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """The smallest cosine distance of each unit vector (N, D) to those remembered, (N,); infinite where there are none."""
        if self._ring is None:
            return np.full(len(vectors), np.inf, np.float32)
        return np.asarray(1.0 - (self._ring[: len(self)] @ vectors.T).max(axis=0))


def cosine_distances(
    galleries: Sequence[Gallery], vectors: NDArray[np.float32], wanted: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Distances of T galleries and N unit vectors, (T, N) float64; infinite where they are not wanted.

    A product for each gallery with the few vectors in its gate reads each gallery once and is faster than one product of all
    with all, most of which the gate would throw away.
    """
    cost = np.full(wanted.shape, np.inf)
    for row in np.flatnonzero(wanted.any(axis=1)).tolist():
        columns = np.flatnonzero(wanted[row])
        cost[row, columns] = galleries[row].distance(vectors[columns])
    return cost


def unit_vectors(vectors: NDArray[np.floating]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Divide each of the vectors (N, D) by its length.

    Returns:
        (N, D) float32 and the mask (N,) of the rows that have a direction: neither zero nor with NaN or infinity in them.
        The other rows are zero.
    """
    wide = np.asarray(vectors, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.linalg.norm(wide, axis=1, keepdims=True)
    sound = np.isfinite(length) & (length > 0)
    unit = np.divide(wide, length, out=np.zeros_like(wide), where=sound)
    return unit.astype(np.float32), sound[:, 0]
