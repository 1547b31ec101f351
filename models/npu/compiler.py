"""From layers to a program in an accelerator's numbers.

int8 and int16: weights with one scale for each output channel, data with one for each value, both symmetric, from the ranges that
calibration saw; a network's results are stored in 16 bits. float16: everything in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import ConversionError
from pyasc.hal.base import TensorInfo
from pyasc.models.npu.calibrate import Method, Statistics
from pyasc.models.npu.layers import Activation, Layer
from pyasc.models.npu.program import Number, Operation, Tensor, write_program

_LEVELS = {"int8": 127, "int16": 32767}
_SMALLEST = 1e-8
# Functions that a look-up of 256 numbers gives; the others are cheap and exact in the data's own numbers.
_CURVED = ("sigmoid", "silu", "tanh", "hard_swish", "hard_sigmoid")


@dataclass(frozen=True)
class Compiled:
    """A program and how its values are stored.

    Attributes:
        data: the program.
        tensors: by the name of the graph's value.
    """

    data: bytes
    tensors: Mapping[str, Tensor]


def compile_layers(
    chip: str,
    number: Number,
    layers: Sequence[Layer],
    shapes: Mapping[str, tuple[int, int, int]],
    inputs: Sequence[TensorInfo],
    outputs: Sequence[str],
    statistics: Statistics | None,
    method: Method = "mse",
) -> Compiled:
    """Compile layers.

    Args:
        chip: a key of `program.CHIPS`.
        number: of weights and data.
        layers: in order.
        shapes: height, width and channels of every value.
        inputs: what the caller will give; with a scale and zero point where it is quantised.
        outputs: values that the caller gets.
        statistics: of every value; not needed for float16.
        method: how the ranges are found.
    Raises:
        ConversionError: nothing is known of a value's range.
    """
    return _Compiler(chip, number, shapes, outputs, statistics, method).compile(layers, inputs)


class _Compiler:
    def __init__(
        self,
        chip: str,
        number: Number,
        shapes: Mapping[str, tuple[int, int, int]],
        outputs: Sequence[str],
        statistics: Statistics | None,
        method: Method,
    ) -> None:
        self.chip = chip
        self.number = number
        self.shapes = shapes
        self.outputs = outputs
        self.statistics = statistics
        self.method = method
        self.tensors: list[Tensor] = []
        self.places: dict[str, int] = {}
        self.operations: list[Operation] = []

    def compile(self, layers: Sequence[Layer], inputs: Sequence[TensorInfo]) -> Compiled:
        for info in inputs:
            self._input(info)
        read = {name for layer in layers for name in layer.inputs}
        for layer in layers:
            self._layer(layer, final=layer.output not in read)
        for name in self.outputs:
            self.operations.append(Operation("output", name, (self.places[name],), None))
        data = write_program(self.chip, self.tensors, self.operations)
        return Compiled(data, {name: self.tensors[place] for name, place in self.places.items()})

    def _place(self, name: str, tensor: Tensor) -> int:
        self.places[name] = len(self.tensors)
        self.tensors.append(tensor)
        return self.places[name]

    def _tensor(self, name: str, number: Number, scale: float | None = None, zero: int = 0) -> Tensor:
        if number == "float16":
            return Tensor(number, *self.shapes[name])
        return Tensor(number, *self.shapes[name], scale or self._scale(name, number), zero)

    def _scale(self, name: str, number: Number) -> float:
        if self.statistics is None or name not in self.statistics:
            raise ConversionError(f"nothing is known of the range of '{name}': calibrate with pictures")
        levels = _LEVELS[number]
        method: Method = "minmax" if number == "int16" else self.method
        return max(self.statistics.limit(name, method, levels) / levels, _SMALLEST)

    def _input(self, info: TensorInfo) -> None:
        channels = self.shapes[info.name][2]
        scale, zero = (1.0, 0) if info.scale is None else (info.scale, info.zero_point or 0)
        data = np.array([[zero] * channels, [scale] * channels], np.float32)
        if self.number == "int8" and info.dtype == "uint8":
            tensor = self._tensor(info.name, "int8", scale, zero - 128)  # all 256 levels
        elif self.number != "float16" and info.dtype == "uint8":
            tensor = self._tensor(info.name, self.number, max(255 - zero, zero, 1) * scale / _LEVELS[self.number])
        else:
            tensor = self._tensor(info.name, self.number)
        self.operations.append(Operation("input", info.name, (), self._place(info.name, tensor), data=data))

    def _layer(self, layer: Layer, final: bool) -> None:
        inputs = tuple(self.places[name] for name in layer.inputs)
        first = self.tensors[inputs[0]]
        number: Number = "int16" if final and self.number == "int8" and layer.kind == "conv" else self.number
        activation = self._activation(layer, number)
        if layer.kind in ("max_pool", "upsample", "flatten", "space_to_depth") and layer.activation.kind == "none":
            tensor = Tensor(first.number, *self.shapes[layer.output], first.scale, first.zero)
        else:
            tensor = self._tensor(layer.output, number)
        weights, scales = (None, None) if layer.weights is None else _quantize(layer.weights, first.number)
        operation = Operation(
            layer.kind,
            layer.name,
            inputs,
            self._place(layer.output, tensor),
            kernel=layer.kernel,
            stride=layer.stride,
            dilation=layer.dilation,
            pads=layer.pads,
            groups=layer.groups,
            count_pads=layer.count_pads,
            weights=weights,
            scales=scales,
            bias=layer.bias,
            **activation(tensor),
        )
        self.operations.append(operation)

    def _activation(self, layer: Layer, number: Number) -> Callable[[Tensor], dict[str, Any]]:
        """Its fields of an operation, which depend on how the result is stored."""
        function = layer.activation
        plain = {"activation": function.kind, "a": function.a, "b": function.b}
        if self.chip != "hi3559" or number != "int8" or function.kind not in _CURVED:
            return lambda tensor: plain
        before = self._scale(layer.before or layer.inputs[0], "int8")
        return lambda tensor: {
            "activation": "table",
            "pre_scale": before,
            "table": _table(function, before, tensor.scale),
        }


def _quantize(weights: NDArray[np.float32], number: Number) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
    """Stored weights, and the scale of each output channel."""
    if number == "float16":
        limit = float(np.finfo(np.float16).max)
        return np.clip(weights, -limit, limit).astype(np.float16), np.ones(len(weights), np.float32)
    levels = _LEVELS[number]
    largest = np.abs(weights.reshape(len(weights), -1)).max(1)
    scales = np.maximum(largest / levels, _SMALLEST).astype(np.float32)
    stored = np.rint(weights / scales.reshape(-1, *[1] * (weights.ndim - 1)))
    return np.clip(stored, -levels, levels).astype(number), scales


def _table(function: Activation, before: float, after: float) -> NDArray[np.int8]:
    """What each 8-bit number becomes, in the order of the unsigned byte.

    The chip has no SiLU: it is a sigmoid whose result has 8 bits, and a product.
    """
    stored = np.arange(256, dtype=np.uint8).view(np.int8)
    x = stored.astype(np.float32) * np.float32(before)
    if function.kind in ("silu", "hard_swish"):
        gate = Activation("sigmoid")(x) if function.kind == "silu" else np.clip(x + 3, 0, 6) / 6
        y = x * (np.rint(gate * 127) / 127)
    else:
        y = function(x)
    made: NDArray[np.int8] = np.clip(np.rint(y / np.float32(after)), -128, 127).astype(np.int8)
    return made
