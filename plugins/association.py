"""Which detection belongs to which track: assignment, matching cascade, overlap.

Source: Wojke, Bewley and Paulus 2017, section 2.3, listing 1. Assignment: Jonker and Volgenant 1987, by the library lapx.
"""

from __future__ import annotations

import lap
import numpy as np
from numpy.typing import NDArray

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]

# What leaving a pair unmatched costs above the limit, as in the published program.
_MARGIN = 1e-5


def assign(cost: NDArray[np.float64], limit: float) -> Pairs:
    """Pair rows with columns at the lowest total cost; a pair above the limit counts as the limit and is not made.

    Args:
        cost: (T, N); infinity or NaN for a pair that is not possible.
        limit: the highest cost of a pair that is made.
    Returns:
        row and column numbers of the pairs, rows ascending.
    """
    possible = cost <= limit
    rows, columns = np.flatnonzero(possible.any(axis=1)), np.flatnonzero(possible.any(axis=0))
    if not len(rows):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    possible = possible[np.ix_(rows, columns)]
    bounded = np.where(possible, cost[np.ix_(rows, columns)], limit + _MARGIN)
    _, column_of, _ = lap.lapjv(bounded, extend_cost=True)
    column_of = np.asarray(column_of, np.int64)
    made = np.flatnonzero(column_of >= 0)
    made = made[possible[made, column_of[made]]]
    return rows[made], columns[column_of[made]]


def cascade(cost: NDArray[np.float64], limit: float, misses: NDArray[np.int64]) -> Pairs:
    """Assign the tracks in the order of the frames since they were seen; what one group takes the next cannot have.

    Args:
        cost: (T, N), as for `assign`.
        limit: as for `assign`.
        misses: (T,) frames since each track was seen.
    Returns:
        row and column numbers of the pairs, groups in order.
    """
    taken_rows, taken_columns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    free = np.ones(cost.shape[1], np.bool_)
    for level in np.unique(misses):
        group, left = np.flatnonzero(misses == level), np.flatnonzero(free)
        if not len(left):
            break
        rows, columns = assign(cost[np.ix_(group, left)], limit)
        taken_rows.append(group[rows])
        taken_columns.append(left[columns])
        free[left[columns]] = False
    return np.concatenate(taken_rows), np.concatenate(taken_columns)


def iou(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union of boxes (T, 4) and (N, 4), xyxy, as (T, N); 0 for a box without an area."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    union = _area(first)[:, None] + _area(second)[None] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))


def _area(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1))
