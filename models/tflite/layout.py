"""Axis orders: how a value's axes lie in memory, apart from how ONNX numbers them.

An order is a permutation: axis i in memory is ONNX's axis order[i]. Network activations are (N, C, H, W) for ONNX and lie as NHWC,
so their order is (0, 2, 3, 1). Kept for every value, it makes ONNX's Transpose a change of labels and lets most Reshapes
pass without moving data; a transposition is written only where an operator insists on another order.
"""

from __future__ import annotations

from collections.abc import Sequence

Order = tuple[int, ...]
Shape = tuple[int, ...]

NHWC: Order = (0, 2, 3, 1)


def identity(rank: int) -> Order:
    """ONNX's own order."""
    return tuple(range(rank))


def default_order(rank: int) -> Order:
    """The order of the model's inputs and outputs: NHWC for four axes, else ONNX's."""
    return NHWC if rank == 4 else identity(rank)


def physical(shape: Sequence[int], order: Order) -> Shape:
    """The shape in memory of a value with ONNX's `shape`."""
    return tuple(shape[axis] for axis in order)


def same_memory(shape: Sequence[int], first: Order, second: Order) -> bool:
    """True when two orders differ only in where axes of size 1 stand, so that the bytes are the same."""
    return _moving(shape, first) == _moving(shape, second)


def permutation(source: Order, target: Order) -> Order:
    """What TRANSPOSE needs to get from one order to another: axis i of the result is axis p[i] of the source."""
    return tuple(source.index(axis) for axis in target)


def transposed(order: Order, perm: Sequence[int]) -> Order:
    """The order after ONNX's Transpose with `perm`, the memory unchanged."""
    return tuple(list(perm).index(axis) for axis in order)


def reshaped(shape: Shape, order: Order, new_shape: Shape) -> Order | None:
    """The order after ONNX's Reshape, the memory unchanged; None where the data would have to move.

    The axes of both shapes are cut into the smallest runs of equal size. The memory can stay when the axes of each run lie
    together and in sequence; the runs themselves may lie in any order.
    """
    sequence = _moving(shape, order)
    position = {axis: place for place, axis in enumerate(sequence)}
    runs = []
    for old, new in _runs(shape, new_shape):
        places = [position[axis] for axis in old]
        if places != list(range(places[0], places[0] + len(places))):
            return None
        runs.append((places[0], new))
    moved = [axis for _, new in sorted(runs) for axis in new]
    rank = len(new_shape)
    for order_ in (default_order(rank), identity(rank)):
        if _moving(new_shape, order_) == moved:
            return order_
    ones = [axis for axis in range(rank) if new_shape[axis] == 1]
    return tuple(ones + moved)


def _moving(shape: Sequence[int], order: Order) -> list[int]:
    return [axis for axis in order if shape[axis] != 1]


def _runs(shape: Shape, new_shape: Shape) -> list[tuple[list[int], list[int]]]:
    """Pairs of runs of axes with the same number of elements; axes of size 1 are left out."""
    old = _moving(shape, identity(len(shape)))
    new = _moving(new_shape, identity(len(new_shape)))
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old):
        first, second = [old[i]], [new[j]]
        size, new_size = shape[old[i]], new_shape[new[j]]
        while size != new_size:
            if size < new_size:
                i += 1
                first.append(old[i])
                size *= shape[old[i]]
            else:
                j += 1
                second.append(new[j])
                new_size *= new_shape[new[j]]
        runs.append((first, second))
        i, j = i + 1, j + 1
    return runs
