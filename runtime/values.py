"""The same numbers in another type, scale or order of axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyasc.hal.base import TensorInfo


def real(stored: NDArray[Any], tensor: TensorInfo) -> NDArray[np.float32]:
    """The numbers that stored values stand for, float32; the same array where it holds them already."""
    if tensor.scale is None or tensor.zero_point is None:
        return stored.astype(np.float32, copy=False)
    values: NDArray[np.float32] = stored.astype(np.float32)
    values -= np.float32(tensor.zero_point)
    values *= np.float32(tensor.scale)
    return values


def stored(values: NDArray[np.float32], tensor: TensorInfo) -> NDArray[Any]:
    """Numbers as a tensor stores them: rounded to the nearest, ties to even, and cut to what its type holds."""
    dtype: np.dtype[Any] = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        limit = np.finfo(dtype).max
        return np.clip(values, -limit, limit).astype(dtype, copy=False)
    exact = values.astype(np.float64)
    if tensor.scale is not None and tensor.zero_point is not None:
        exact = exact / tensor.scale + tensor.zero_point
    limits = np.iinfo(dtype)
    return np.clip(np.rint(np.nan_to_num(exact)), limits.min, limits.max).astype(dtype)


def convert(array: NDArray[Any], source: TensorInfo, target: TensorInfo) -> NDArray[Any]:
    """A value in the type, scale, layout and shape of another tensor, C-contiguous; the array itself where nothing changes.

    Args:
        array: of `source`'s shape and dtype.
        source, target: of the same number of elements; a layout is changed where both have one.
    Raises:
        ValueError: `target` holds another number of elements.
    """
    alike = (source.dtype, source.scale, source.zero_point) == (target.dtype, target.scale, target.zero_point)
    made = array if alike else stored(real(array, source), target)
    if source.layout and target.layout and source.layout != target.layout:
        made = made.transpose([source.layout.index(axis) for axis in target.layout])
    if made.shape != target.shape:
        made = made.reshape(target.shape)
    return np.ascontiguousarray(made)
