"""The compiled form that the simulated accelerators run, byte by byte; its description is vendors/sim/program.h."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Number = Literal["int8", "int16", "float16"]

MAGIC = b"PyASCnpu"
FORMAT = 1
CHIPS = {"hi3559": 1, "mlu220": 2}
NUMBERS: dict[str, int] = {"int8": 1, "int16": 2, "float16": 3}
KINDS = {
    "input": 1,
    "output": 2,
    "conv": 3,
    "max_pool": 4,
    "avg_pool": 5,
    "add": 6,
    "mul": 7,
    "concat": 8,
    "upsample": 9,
    "act": 10,
    "space_to_depth": 11,
    "flatten": 12,
}
ACTIVATIONS = {
    "none": 0,
    "relu": 1,
    "leaky": 2,
    "clip": 3,
    "sigmoid": 4,
    "silu": 5,
    "tanh": 6,
    "hard_swish": 7,
    "hard_sigmoid": 8,
    "table": 9,
}
MAX_INPUTS = 8

_HEADER = struct.Struct("<8s6I")
_TENSOR = struct.Struct("<4Ifi8x")
_OPERATION = struct.Struct(f"<3I{MAX_INPUTS}II6H4HII3fI5I16x")
_NONE = 0xFFFFFFFF
_COUNT_PADS = 1


@dataclass(frozen=True)
class Tensor:
    """A value of a program: real = (stored - zero) * scale.

    Attributes:
        number: how it is stored.
        height, width, channels: of it.
        scale, zero: 1 and 0 for float16.
    """

    number: Number
    height: int
    width: int
    channels: int
    scale: float = 1.0
    zero: int = 0


@dataclass(frozen=True)
class Operation:
    """A step of a program; what the fields mean is said in program.h.

    Attributes:
        kind: one of `KINDS`.
        name: for messages; of inputs and outputs, their name.
        inputs, output: numbers of tensors; no output for the kind `output`.
        activation, a, b: one of `ACTIVATIONS`, and its parameters.
        pre_scale, table: of the activation `table`: 256 int8.
        weights, scales, bias: of a convolution: (OC, KH, KW, IC / groups), (OC,) and (OC,) float32.
        data: of an input: means and factors, (2, C) float32.
    """

    kind: str
    name: str
    inputs: tuple[int, ...]
    output: int | None
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    activation: str = "none"
    a: float = 0.0
    b: float = 0.0
    pre_scale: float = 1.0
    count_pads: bool = False
    weights: NDArray[Any] | None = None
    scales: NDArray[np.float32] | None = None
    bias: NDArray[np.float32] | None = None
    table: NDArray[np.int8] | None = None
    data: NDArray[np.float32] | None = None


class _Data:
    """The last part of a program; equal pieces are stored once."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._bytes = bytearray()
        self._known: dict[bytes, int] = {}

    def add(self, piece: bytes) -> int:
        if piece not in self._known:
            self._bytes += bytes(-len(self._bytes) % 4)
            self._known[piece] = self._start + len(self._bytes)
            self._bytes += piece
        return self._known[piece]

    def array(self, array: NDArray[Any] | None) -> int:
        if array is None:
            return _NONE
        return self.add(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())

    def done(self) -> bytes:
        return bytes(self._bytes)


def write_program(chip: str, tensors: list[Tensor], operations: list[Operation]) -> bytes:
    """A program as bytes.

    Args:
        chip: a key of `CHIPS`.
        tensors: all values; operations name them by their place here.
        operations: in order.
    """
    data = _Data(_HEADER.size + _TENSOR.size * len(tensors) + _OPERATION.size * len(operations))
    records = [_TENSOR.pack(NUMBERS[t.number], t.height, t.width, t.channels, t.scale, t.zero) for t in tensors] + [
        _record(operation, data) for operation in operations
    ]
    body = b"".join(records) + data.done()
    header = _HEADER.pack(MAGIC, FORMAT, _HEADER.size + len(body), CHIPS[chip], len(tensors), len(operations), 0)
    return header + body


def _record(operation: Operation, data: _Data) -> bytes:
    inputs = (*operation.inputs, *[0] * (MAX_INPUTS - len(operation.inputs)))
    return _OPERATION.pack(
        KINDS[operation.kind],
        data.add(operation.name.encode("ascii", "replace") + b"\0"),
        len(operation.inputs),
        *inputs,
        _NONE if operation.output is None else operation.output,
        *operation.kernel,
        *operation.stride,
        *operation.dilation,
        *operation.pads,
        operation.groups,
        ACTIVATIONS[operation.activation],
        operation.a,
        operation.b,
        operation.pre_scale,
        _COUNT_PADS if operation.count_pads else 0,
        data.array(operation.weights),
        data.array(operation.scales),
        data.array(operation.bias),
        data.array(operation.table),
        data.array(operation.data),
    )
