"""Greedy non-maximum suppression."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Overlaps are computed for this many boxes with as many others at once: few calls of NumPy, and bounded memory.
_BLOCK = 512


def nms(
    xyxy: NDArray[np.float32], class_id: NDArray[np.int64], iou: float, max_kept: int | None = None
) -> NDArray[np.int64]:
    """The boxes that no better box of their class covers.

    The rule of torchvision's `nms` within each class: a box goes when its IoU with a kept one is greater than `iou`, in float32.
    At most (boxes kept) x (boxes) overlaps are computed.

    Args:
        xyxy: (N, 4) float32, best first.
        class_id: (N,) int.
        iou: threshold, 0..1.
        max_kept: stop at this many.
    Returns:
        (K,) row numbers, best first.
    """
    count = len(xyxy)
    limit = count if max_kept is None else min(count, max_kept)
    threshold = float32_at_most(iou)
    area = (xyxy[:, 2] - xyxy[:, 0]) * (xyxy[:, 3] - xyxy[:, 1])
    kept = np.empty(limit, np.int64)
    found = 0
    for start in range(0, count, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, count))
        for at in range(0, found, _BLOCK):
            better = kept[at : min(at + _BLOCK, found)]
            block = block[~_covers(xyxy, area, class_id, better, block, threshold).any(axis=0)]
        covers = _covers(xyxy, area, class_id, block, block, threshold)
        alive = np.ones(len(block), bool)
        for i, number in enumerate(block.tolist()):
            if not alive[i]:
                continue
            if found == limit:
                return kept
            kept[found] = number
            found += 1
            # A box of no area covers not even itself; those before this one are decided already.
            alive &= ~covers[i]
    return kept[:found]


def _covers(
    xyxy: NDArray[np.float32],
    area: NDArray[np.float32],
    class_id: NDArray[np.int64],
    these: NDArray[np.int64],
    those: NDArray[np.int64],
    threshold: np.float32,
) -> NDArray[np.bool_]:
    """Which of these boxes suppress which of those: (these, those) bool."""
    a, b = xyxy[these, None], xyxy[None, those]
    width = np.minimum(a[..., 2], b[..., 2]) - np.maximum(a[..., 0], b[..., 0])
    height = np.minimum(a[..., 3], b[..., 3]) - np.maximum(a[..., 1], b[..., 1])
    common = np.maximum(width, 0) * np.maximum(height, 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 of boxes without area is no overlap
        overlap = common / (area[these, None] + area[None, those] - common)
    covers: NDArray[np.bool_] = (overlap > threshold) & (class_id[these, None] == class_id[None, those])
    return covers


def float32_at_most(value: float) -> np.float32:
    """The largest float32 not above: comparing with it says the same as comparing with the number itself."""
    nearest = np.float32(value)
    below: np.float32 = np.nextafter(nearest, np.float32(-np.inf))
    return nearest if float(nearest) <= value else below
