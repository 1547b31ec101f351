"""A part of a graph as a Caffe network, of layers that the NNIE mapper takes and that other readers of Caffe know too.

A layer's name is that of its only result; names have at most 31 characters, as a compiled network keeps no more of them. A result
that is also read inside of the network ends in `_report`, which makes the mapper hand it out. There is no SiLU: it is a Sigmoid and
a product; what clips is built of ReLUs, and enlarging by whole factors is a deconvolution with a weight of one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import UnsupportedOperatorError
from pyasc.models.npu.caffe_fit import Shape, fit, is_global, is_scale
from pyasc.models.npu.caffe_proto import CaffeLayer, Setting
from pyasc.models.npu.layers import Activation, Layer

NAME_LENGTH = 31
_REPORT = "_report"
# Ends of names by which the mapper is steered.
_STEERING = re.compile(r"_(cpu|hp|report)$", re.IGNORECASE)
_LIMIT = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Blob:
    """An input or a result.

    Attributes:
        value: the graph's name of it.
        node: the network's name of it.
        shape: without the batch, (C, H, W) or (C,).
    """

    value: str
    node: str
    shape: Shape


@dataclass(frozen=True)
class CaffeNetwork:
    """A network.

    Attributes:
        layers: in order, the inputs first.
        inputs: in the order of their layers.
        outputs: in the order of their layers, which is also that of a compiled network.
    """

    layers: tuple[CaffeLayer, ...]
    inputs: tuple[Blob, ...]
    outputs: tuple[Blob, ...]


def to_caffe(
    layers: Sequence[Layer], shapes: Mapping[str, Shape], inputs: Sequence[str], outputs: Collection[str]
) -> CaffeNetwork:
    """Write layers as a Caffe network.

    Args:
        layers: in order.
        shapes: of their values, (1, C, H, W) or (1, C).
        inputs: values that come from outside.
        outputs: values that are wanted.
    Raises:
        UnsupportedOperatorError: a layer has no form in Caffe; names it.
    """
    known = dict(shapes)
    return _Writer(fit(layers, known), known, outputs).write(inputs)


class _Names:
    """Short names that are all different, whatever a reader makes of capitals."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, wanted: str, end: str = "") -> str:
        """A name like `wanted`, whose own end tells more than its beginning."""
        plain = re.sub(r"\W+", "_", wanted, flags=re.ASCII)
        # Exporters name the only result of a node so.
        plain = re.sub(r"_output_0(?!\d)", "", plain).strip("_") or "value"
        if _STEERING.search(plain):
            plain += "_"
        number, mark = 1, end
        while (name := plain[-(NAME_LENGTH - len(mark)) :].lstrip("_") + mark).lower() in self._taken:
            number += 1
            mark = f"_{number}{end}"
        self._taken.add(name.lower())
        return name


@dataclass(frozen=True)
class _Form:
    """What a layer is, without its name and what it reads."""

    type: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    blobs: tuple[NDArray[np.float32], ...] = ()


class _Writer:
    def __init__(self, layers: Sequence[Layer], shapes: Mapping[str, Shape], outputs: Collection[str]) -> None:
        self.source = layers
        self.shapes = shapes
        self.outputs = outputs
        self.readers: dict[str, list[Layer]] = {}
        for layer in layers:
            for name in layer.inputs:
                self.readers.setdefault(name, []).append(layer)
        self.names = _Names()
        self.layers: list[CaffeLayer] = []
        self.tops: dict[str, str] = {}
        # As a value's layer makes it: what is a vector in the graph may still be a picture here.
        self.made: dict[str, Shape] = {}

    def write(self, inputs: Sequence[str]) -> CaffeNetwork:
        for value in inputs:
            self._final(_Form("Input", {"shape": self.shapes[value]}), (), value)
        for layer in self.source:
            self._layer(layer)
        order = {layer.name: place for place, layer in enumerate(self.layers)}
        outputs = sorted(self.outputs, key=lambda value: order[self.tops[value]])
        return CaffeNetwork(tuple(self.layers), self._blobs(inputs), self._blobs(outputs))

    def _blobs(self, values: Sequence[str]) -> tuple[Blob, ...]:
        return tuple(Blob(value, self.tops[value], self.shapes[value][1:]) for value in values)

    def _add(self, form: _Form, bottoms: tuple[str, ...], name: str) -> str:
        self.layers.append(CaffeLayer(form.type, name, bottoms, form.settings, form.blobs))
        return name

    def _inner(self, form: _Form, bottoms: tuple[str, ...], wanted: str) -> str:
        """A layer whose result is no value of the graph; its name."""
        return self._add(form, bottoms, self.names.new(wanted))

    def _final(self, form: _Form, bottoms: tuple[str, ...], value: str) -> None:
        """The layer that makes a value of the graph."""
        reported = bottoms and value in self.outputs and value in self.readers
        self.tops[value] = self._add(form, bottoms, self.names.new(value, _REPORT if reported else ""))
        self.made[value] = self.shapes[value]

    def _layer(self, layer: Layer) -> None:
        value, channels = layer.output, self.shapes[layer.output][1]
        steps = [step if isinstance(step, _Form) else _affine(*step, channels) for step in _steps(layer.activation)]
        if layer.kind in ("act", "flatten") and not steps:
            self._unchanged(layer)
            return
        bottoms = tuple(self.tops[name] for name in layer.inputs)
        if layer.kind != "act":
            form, bottoms = self._computed(layer, bottoms)
            if not steps:
                self._final(form, bottoms, value)
                return
            bottoms = (self._inner(form, bottoms, layer.before or f"{value}_in"),)
        elif len(self.made[layer.inputs[0]]) != len(self.shapes[value]):
            bottoms = (self._inner(_reshaping(self.shapes[value]), bottoms, f"{value}_in"),)
        before, gated = bottoms[0], layer.activation.kind in ("silu", "hard_swish")
        for step in steps if gated else steps[:-1]:
            bottoms = (self._inner(step, bottoms, f"{value}_{step.type.lower()}"),)
        if gated:
            self._final(_Form("Eltwise", {"operation": "PROD"}), (before, *bottoms), value)
        else:
            self._final(steps[-1], bottoms, value)

    def _unchanged(self, layer: Layer) -> None:
        """The same numbers, perhaps with other axes; no layer where nobody can tell."""
        [source], value = layer.inputs, layer.output
        before, after = self.made[source], self.shapes[value]
        matrices = all(reader.kind == "conv" and reader.groups == 1 for reader in self.readers.get(value, []))
        if value not in self.outputs and (before == after or (len(after) == 2 and matrices)):
            self.tops[value], self.made[value] = self.tops[source], before
        else:
            form = _affine(1, 0, after[1]) if before == after else _reshaping(after)
            self._final(form, (self.tops[source],), value)

    def _computed(self, layer: Layer, bottoms: tuple[str, ...]) -> tuple[_Form, tuple[str, ...]]:
        """What a layer computes before its activation, and of what."""
        if layer.kind == "conv":
            return _weighted(layer, self.made[layer.inputs[0]], self.shapes[layer.output]), bottoms
        if layer.kind == "upsample":
            return _enlarging(layer, self.shapes[layer.output][1]), bottoms
        if layer.kind in ("max_pool", "avg_pool"):
            return _pooling(layer, is_global(layer, self.shapes)), bottoms
        if layer.kind == "concat":
            return _Form("Concat", {"axis": 1}), bottoms
        if layer.kind == "add":
            return _Form("Eltwise", {"operation": "SUM"}), bottoms
        if layer.kind == "mul":
            return self._product(layer, bottoms)
        raise UnsupportedOperatorError(f"{layer.name}: Caffe has no layer for {layer.kind}")

    def _product(self, layer: Layer, bottoms: tuple[str, ...]) -> tuple[_Form, tuple[str, ...]]:
        picture, gate = (self.made[name] for name in layer.inputs)
        if picture == gate:
            return _Form("Eltwise", {"operation": "PROD"}), bottoms
        vector = bottoms[1]
        if len(gate) == 4:
            vector = self._inner(_reshaping(gate[:2]), (vector,), f"{layer.output}_flatten")
        # Of two bottoms, the second holds the factors of the first one's axes from `axis` on: of batch and channels.
        return _Form("Scale", {"axis": 0, "bias_term": False}), (bottoms[0], vector)


def _steps(function: Activation) -> list[_Form | tuple[float, float]]:
    """An activation as layers one after the other, of which a pair is a factor and an offset; what a gate multiplies with."""
    if function.kind == "leaky":
        return [_Form("ReLU", {"negative_slope": function.a})]
    if function.kind == "clip":
        return _clip(function.a, function.b)
    if function.kind == "hard_sigmoid":
        return [(function.a, function.b), *_clip(0, 1)]
    if function.kind == "hard_swish":
        return [(1 / 6, 0.5), *_clip(0, 1)]
    types = {"none": [], "relu": ["ReLU"], "sigmoid": ["Sigmoid"], "silu": ["Sigmoid"], "tanh": ["TanH"]}
    return [_Form(type_) for type_ in types[function.kind]]


def _clip(low: float, high: float) -> list[_Form | tuple[float, float]]:
    """min(max(x, low), high), where max(x, low) = ReLU(x - low) + low and min(x, high) = high - ReLU(high - x)."""
    if low <= -_LIMIT and high >= _LIMIT:
        return []
    relu = _Form("ReLU")
    lower: list[_Form | tuple[float, float]] = [relu] if low == 0 else [(1, -low), relu]
    if high >= _LIMIT:
        return lower if low == 0 else [*lower, (1, low)]
    if low <= -_LIMIT:
        return [(-1, high), relu, (-1, high)]
    return [*lower, (-1, high - low), relu, (-1, high)]


def _reshaping(shape: Shape) -> _Form:
    """The same numbers as a vector or as a picture of one pixel; the mapper's Reshape makes no vectors."""
    return _Form("Flatten") if len(shape) == 2 else _Form("Reshape", {"shape": (0, *shape[1:])})


def _affine(factor: float, offset: float, channels: int) -> _Form:
    blobs = [np.full(channels, factor, np.float32)]
    if offset:
        blobs.append(np.full(channels, offset, np.float32))
    return _Form("Scale", {"axis": 1, "bias_term": bool(offset)}, tuple(blobs))


def _weighted(layer: Layer, source: Shape, target: Shape) -> _Form:
    """A convolution, a matrix, or a factor for each channel."""
    assert layer.weights is not None
    assert layer.bias is not None
    has_bias = bool(layer.bias.any())
    weights, bias = layer.weights, (layer.bias,) * has_bias
    if is_scale(layer):
        return _Form("Scale", {"axis": 1, "bias_term": has_bias}, (weights.reshape(-1), *bias))
    if len(target) == 2:
        # The accelerator's order of a picture's numbers has the channels last, Caffe's has them first.
        if len(source) == 4:
            weights = weights.reshape(-1, *source[2:], source[1]).transpose(0, 3, 1, 2)
        matrix = weights.reshape(target[1], -1)
        return _Form("InnerProduct", {"num_output": target[1], "bias_term": has_bias}, (matrix, *bias))
    settings: dict[str, Setting] = {"num_output": target[1], "bias_term": has_bias}
    settings |= _sides("pad", "pad", layer.pads[:2]) | _sides("kernel_size", "kernel", layer.kernel)
    settings |= _sides("stride", "stride", layer.stride)
    if layer.groups != 1:
        settings["group"] = layer.groups
    if layer.dilation != (1, 1):
        settings["dilation"] = layer.dilation[:1] if layer.dilation[0] == layer.dilation[1] else layer.dilation
    return _Form("Convolution", settings, (weights.transpose(0, 3, 1, 2), *bias))


def _enlarging(layer: Layer, channels: int) -> _Form:
    settings: dict[str, Setting] = {"num_output": channels, "bias_term": False}
    settings |= _sides("kernel_size", "kernel", layer.kernel) | _sides("stride", "stride", layer.kernel)
    return _Form("Deconvolution", settings | {"group": channels}, (np.ones((channels, 1, *layer.kernel), np.float32),))


def _pooling(layer: Layer, whole: bool) -> _Form:
    settings: dict[str, Setting] = {"pool": "MAX" if layer.kind == "max_pool" else "AVE"}
    if whole:
        return _Form("Pooling", settings | {"global_pooling": True})
    settings |= _sides("kernel_size", "kernel", layer.kernel) | _sides("stride", "stride", layer.stride)
    return _Form("Pooling", settings | _sides("pad", "pad", layer.pads[:2]))


def _sides(both: str, each: str, values: Sequence[int]) -> dict[str, Setting]:
    """A setting of two axes, in Caffe's shorter form where they are the same."""
    if values[0] == values[1]:
        return {both: values[0]}
    return {f"{each}_h": values[0], f"{each}_w": values[1]}
