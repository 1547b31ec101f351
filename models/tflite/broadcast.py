"""Operators of two operands that broadcast, written in a form that both TFLite engines take."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyasc.models.tflite.graph import Node, Shape
from pyasc.models.tflite.lowering import Lowering, refuse

_MAX_RUNS = 4
# From this many axes on a broadcast needs this version of the operator; the others have had it from the start.
_BROADCAST_5D = {"SUB": 3, "DIV": 2, "MINIMUM": 3, "MAXIMUM": 3}


def write_broadcast(lowering: Lowering, node: Node, op: str, first: int, second: int, options: Any) -> int:
    """Write `op` on two tensors; returns the tensor of the result, which has as many axes as the operand with more.

    Raises:
        UnsupportedOperatorError: the operands alternate in repeating more often than the engines' kernels take.
    """
    name, inputs = node.outputs[0], [first, second]
    shapes = [lowering.file.tensors[number].shape for number in inputs]
    shape = made = np.broadcast_shapes(*shapes)
    runs = _runs(*shapes)
    if _must_join(op, len(shape), runs):
        if len(runs) > _MAX_RUNS:
            raise refuse(node, f"a broadcast over {len(runs)} runs of axes; {_MAX_RUNS} are supported")
        inputs = [lowering.reshape(number, [run[i] for run in runs], name) for i, number in enumerate(inputs)]
        made = tuple(max(run) for run in runs)
    version = _BROADCAST_5D.get(op, 1) if len(made) > 4 and shapes[0] != shapes[1] else 1
    return lowering.reshape(lowering.add(op, inputs, made, name, options, version), shape, name)


def _runs(first: Shape, second: Shape) -> list[tuple[int, int]]:
    """The sizes of both operands with neighbouring axes joined where both have them or the same one repeats along them."""
    rank = max(len(first), len(second))
    runs: list[tuple[int, int]] = []
    last = None
    for a, b in zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second, strict=True):
        if a == b == 1:
            continue
        kind = (a > 1, b > 1)
        if kind == last:
            runs[-1] = (runs[-1][0] * a, runs[-1][1] * b)
        else:
            runs.append((a, b))
        last = kind
    return runs or [(1, 1)]


def _must_join(op: str, rank: int, runs: list[tuple[int, int]]) -> bool:
    """True where the kernels do not take a broadcast as it is.

    tflite-runtime 2.14 does not refuse it: it ends the process. Tried in both engines, with XNNPACK and without: an operand that
    repeats along the first or the last axes alone is fine up to five axes, every other up to four, and POW up to four.
    """
    if op == "POW":
        return rank > 4
    return any(a != b for a, b in runs) and (rank > 5 or (rank > 4 and len(runs) > 2))
