"""The operators of a graph as layers of an accelerator, and which of them one takes.

A layer works on one picture of (height, width, channels); a value of (1, C) counts as (1, 1, C). Refused operators run on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyasc.models.tflite.fuse import clip_range, normalization
from pyasc.models.tflite.graph import Graph, Node

Kind = Literal["conv", "max_pool", "avg_pool", "add", "mul", "concat", "upsample", "act", "space_to_depth", "flatten"]
ActivationKind = Literal["none", "relu", "leaky", "clip", "sigmoid", "silu", "tanh", "hard_swish", "hard_sigmoid"]


@dataclass(frozen=True)
class Activation:
    """A function of each number.

    Attributes:
        kind: its name.
        a, b: leaky: slope below zero; clip: lowest and highest; hard_sigmoid: clip(a * x + b, 0, 1).
    """

    kind: ActivationKind = "none"
    a: float = 0.0
    b: float = 0.0

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The function's values."""
        with np.errstate(over="ignore"):
            made = _FUNCTIONS[self.kind](x, self)
        return np.asarray(made, np.float32)


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(1 / (1 + np.exp(-x)), np.float32)


_FUNCTIONS: dict[str, Callable[[NDArray[np.float32], Activation], Any]] = {
    "none": lambda x, _: x,
    "relu": lambda x, _: np.maximum(x, 0),
    "leaky": lambda x, f: np.where(x > 0, x, x * f.a),
    "clip": lambda x, f: np.clip(x, f.a, f.b),
    "sigmoid": lambda x, _: _sigmoid(x),
    "silu": lambda x, _: x * _sigmoid(x),
    "tanh": lambda x, _: np.tanh(x),
    "hard_swish": lambda x, _: x * np.clip(x + 3, 0, 6) / 6,
    "hard_sigmoid": lambda x, f: np.clip(f.a * x + f.b, 0, 1),
}


@dataclass(frozen=True)
class Layer:
    """One step of an accelerator.

    Attributes:
        kind: what it computes.
        name: of the graph's node.
        inputs, output: names of values of the graph.
        nodes: names of the graph's nodes that it stands for.
        before: the value that the graph has between a fused activation and what comes before it; empty without one.
        activation: of what it computes.
        weights: conv: (OC, KH, KW, IC / groups) float32.
        bias: conv: (OC,) float32.
        kernel, stride, dilation: (vertical, horizontal); upsample: the factor is in `kernel`.
        pads: above, left, below, right.
        groups: of a convolution.
        count_pads: avg_pool: the border counts in the mean.
    """

    kind: Kind
    name: str
    inputs: tuple[str, ...]
    output: str
    nodes: tuple[str, ...]
    before: str = ""
    activation: Activation = field(default_factory=Activation)
    weights: NDArray[np.float32] | None = None
    bias: NDArray[np.float32] | None = None
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    count_pads: bool = False


@dataclass(frozen=True)
class Refusal:
    """An operator that the accelerator does not take.

    Attributes:
        node: the graph's.
        reason: why, for people.
    """

    node: Node
    reason: str


class _RefusedError(Exception):
    """Raised inside of this module with the reason."""


def picture_shape(graph: Graph, name: str) -> tuple[int, int, int]:
    """Height, width and channels of a value.

    Raises:
        _RefusedError: it is neither (1, C, H, W) nor (1, C).
    """
    shape = graph.shape(name)
    if shape[:1] != (1,) or len(shape) not in (2, 4):
        raise _RefusedError(f"'{name}' of the shape {list(shape)} is no picture and no vector")
    return (shape[2], shape[3], shape[1]) if len(shape) == 4 else (1, 1, shape[1])


def lower(graph: Graph) -> tuple[list[Layer], list[Refusal]]:
    """Layers and refused nodes, each in the graph's order; activations are fused into what makes their input.

    Args:
        graph: as `read_graph` gives it, with normalisations folded where they can be.
    """
    layers: list[Layer] = []
    refusals: list[Refusal] = []
    gates = _gates(graph)
    inside = {id(gate) for gate in gates.values()}
    for node in graph.nodes:
        if id(node) in inside:
            continue
        gate = gates.get(id(node))
        try:
            layers.append(_lower(graph, node) if gate is None else _lower_gated(graph, node, gate))
        except _RefusedError as refusal:
            refusals.append(Refusal(node, str(refusal)))
    return _fuse(graph, layers), refusals


def _gates(graph: Graph) -> dict[int, Node]:
    """For each product x * f(x), by its id, the Sigmoid or HardSigmoid that makes f(x) for it alone."""
    readers = graph.consumers()
    found: dict[int, Node] = {}
    for gate in graph.nodes:
        following = readers.get(gate.outputs[0], [])
        if gate.op not in ("Sigmoid", "HardSigmoid") or len(following) != 1 or gate.outputs[0] in graph.outputs:
            continue
        [product] = following
        if product.op != "Mul" or product.activation != "NONE" or product.outputs[0] == gate.inputs[0]:
            continue
        known = gate.op == "Sigmoid" or np.allclose(_hard_sigmoid(gate), (1 / 6, 0.5), rtol=1e-6)
        if known and sorted(product.inputs) == sorted([gate.inputs[0], gate.outputs[0]]):
            found[id(product)] = gate
    return found


def _lower_gated(graph: Graph, product: Node, gate: Node) -> Layer:
    picture_shape(graph, gate.inputs[0])
    kind: ActivationKind = "silu" if gate.op == "Sigmoid" else "hard_swish"
    nodes = (gate.name, product.name)
    return Layer("act", product.name, (gate.inputs[0],), product.outputs[0], nodes, activation=Activation(kind))


def _lower(graph: Graph, node: Node) -> Layer:
    if node.op not in _RULES:
        raise _RefusedError("the accelerator has no such operator")
    for name in (*node.inputs, *node.outputs[:1]):
        if name and name not in graph.constants:
            picture_shape(graph, name)
    layer = _RULES[node.op](graph, node)
    if node.activation == "NONE":
        return layer
    kind = {"RELU": Activation("relu"), "RELU6": Activation("clip", 0, 6), "RELU_N1_TO_1": Activation("clip", -1, 1)}
    return replace(layer, activation=kind[node.activation])


def _plain(kind: Kind, node: Node, **more: Any) -> Layer:
    inputs = more.pop("inputs", (node.inputs[0],))
    return Layer(kind, node.name, tuple(inputs), node.outputs[0], (node.name,), **more)


def _constant(graph: Graph, node: Node, index: int) -> NDArray[np.float32]:
    if not node.has(index) or node.inputs[index] not in graph.constants:
        raise _RefusedError(f"its input {index} is no constant")
    return np.asarray(graph.constants[node.inputs[index]], np.float32)


def _pair(node: Node, name: str, default: int = 1) -> tuple[int, int]:
    values = node.attributes.get(name) or [default, default]
    if len(values) != 2:
        raise _RefusedError(f"{name} {list(values)}: only two axes are supported")
    return int(values[0]), int(values[1])


def _pads(
    graph: Graph, node: Node, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Above, left, below, right, such that the windows give just the output's size; ceil_mode may leave some below and right."""
    given = list(node.attributes.get("pads") or [0, 0, 0, 0])
    rule = node.attributes.get("auto_pad", "NOTSET")
    before, after = [], []
    source, target = picture_shape(graph, node.inputs[0]), picture_shape(graph, node.outputs[0])
    for axis in (0, 1):
        total = (target[axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1 - source[axis]
        if rule == "SAME_UPPER":
            start = max(total, 0) // 2
        elif rule == "SAME_LOWER":
            start = max(total, 0) - max(total, 0) // 2
        else:
            start = given[axis]
        before.append(start)
        after.append(max(total - start, 0))
    if min(before) < 0:
        raise _RefusedError(f"pads {given} cut off a part of the picture")
    return before[0], before[1], after[0], after[1]


def _conv(graph: Graph, node: Node) -> Layer:
    weights = _constant(graph, node, 1)
    if weights.ndim != 4:
        raise _RefusedError("only two spatial axes are supported")
    bias = _constant(graph, node, 2) if node.has(2) else np.zeros(weights.shape[0], np.float32)
    kernel = (int(weights.shape[2]), int(weights.shape[3]))
    stride, dilation = _pair(node, "strides"), _pair(node, "dilations")
    return _plain(
        "conv",
        node,
        weights=weights.transpose(0, 2, 3, 1),
        bias=bias,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        pads=_pads(graph, node, kernel, stride, dilation),
        groups=int(node.attributes.get("group", 1)),
    )


def _fully_connected(graph: Graph, node: Node, weights: NDArray[np.float32], bias: NDArray[np.float32]) -> Layer:
    """A product with a matrix (outputs, inputs)."""
    if (picture := _flattened(graph, node.inputs[0])) is not None:
        # The graph counts channels first, the accelerator last.
        weights = weights.reshape(-1, *picture).transpose(0, 2, 3, 1).reshape(len(weights), -1)
    return _plain("conv", node, weights=np.ascontiguousarray(weights[:, None, None, :]), bias=bias)


def _flattened(graph: Graph, name: str) -> tuple[int, int, int] | None:
    """Channels, height and width of the picture whose numbers a vector holds, where only matrices read it; else None."""
    maker = next((node for node in graph.nodes if name in node.outputs), None)
    if maker is None or maker.op not in ("Flatten", "Reshape") or name in graph.outputs:
        return None
    high, wide, channels = picture_shape(graph, maker.inputs[0])
    if high * wide == 1 or graph.shape(name) != (1, channels * high * wide):
        return None
    if any(reader.op not in ("Gemm", "MatMul") or reader.inputs[0] != name for reader in graph.consumers()[name]):
        return None
    return channels, high, wide


def _gemm(graph: Graph, node: Node) -> Layer:
    weights = _constant(graph, node, 1) * np.float32(node.attributes.get("alpha", 1.0))
    if node.attributes.get("transA", 0):
        raise _RefusedError("its first matrix is transposed")
    if not node.attributes.get("transB", 0):
        weights = weights.T
    bias = np.zeros(len(weights), np.float32)
    if node.has(2):
        bias = bias + _constant(graph, node, 2).reshape(-1) * np.float32(node.attributes.get("beta", 1.0))
    return _fully_connected(graph, node, weights, bias)


def _matmul(graph: Graph, node: Node) -> Layer:
    weights = _constant(graph, node, 1)
    if weights.ndim != 2 or len(graph.shape(node.inputs[0])) != 2:
        raise _RefusedError("only a vector times a matrix of constants is supported")
    return _fully_connected(graph, node, weights.T, np.zeros(weights.shape[1], np.float32))


def _per_channel(
    graph: Graph, node: Node, factor: NDArray[np.float64], offset: NDArray[np.float64], source: str
) -> Layer:
    channels = picture_shape(graph, source)[2]
    weights = np.broadcast_to(factor.astype(np.float32), (channels,)).reshape(channels, 1, 1, 1)
    bias = np.broadcast_to(offset.astype(np.float32), (channels,))
    return _plain("conv", node, inputs=(source,), weights=weights, bias=np.array(bias), groups=channels)


def _batch_normalization(graph: Graph, node: Node) -> Layer:
    parameters = normalization(graph, node)
    if parameters is None:
        raise _RefusedError("its parameters are no constants")
    return _per_channel(graph, node, *parameters, node.inputs[0])


def _channel_values(graph: Graph, name: str, rank: int) -> NDArray[np.float64]:
    """A constant as one number, or one for each channel."""
    value = np.asarray(graph.constants[name], np.float64)
    shape = (1,) * (rank - value.ndim) + value.shape
    if value.size == 1:
        return value.reshape(1)
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        raise _RefusedError(f"the constant '{name}' of the shape {list(value.shape)} is not one number a channel")
    return value.reshape(-1)


def _binary(graph: Graph, node: Node) -> Layer:
    left, right = node.inputs[:2]
    constants = [name in graph.constants for name in (left, right)]
    if any(constants):
        source, constant = (left, right) if constants[1] else (right, left)
        values = _channel_values(graph, constant, len(graph.shape(source)))
        none = np.zeros(1)
        if node.op == "Add":
            return _per_channel(graph, node, none + 1, values, source)
        if node.op == "Mul":
            return _per_channel(graph, node, values, none, source)
        if node.op == "Sub":
            return _per_channel(
                graph, node, none + (1 if constants[1] else -1), -values if constants[1] else values, source
            )
        if node.op == "Div" and constants[1] and (values != 0).all():
            return _per_channel(graph, node, 1 / values, none, source)
        raise _RefusedError("a division by what is computed")
    shapes = [picture_shape(graph, name) for name in (left, right)]
    if node.op == "Add" and shapes[0] == shapes[1]:
        return _plain("add", node, inputs=(left, right))
    if node.op == "Mul":
        if shapes[0][:2] == (1, 1):
            left, right, shapes = right, left, shapes[::-1]
        if shapes[0] == shapes[1] or shapes[1] == (1, 1, shapes[0][2]):
            return _plain("mul", node, inputs=(left, right))
    raise _RefusedError(f"{node.op} of {list(graph.shape(left))} and {list(graph.shape(right))}")


def _sum(graph: Graph, node: Node) -> Layer:
    if len(node.inputs) < 2 or len(node.inputs) > 8 or any(name in graph.constants for name in node.inputs):
        raise _RefusedError(f"a sum of {len(node.inputs)} values, or of constants")
    if len({picture_shape(graph, name) for name in node.inputs}) != 1:
        raise _RefusedError("a sum of different shapes")
    return _plain("add", node, inputs=node.inputs)


def _concat(graph: Graph, node: Node) -> Layer:
    rank = len(graph.shape(node.outputs[0]))
    if node.attributes.get("axis", 0) % rank != 1:
        raise _RefusedError("only channels can be joined")
    if any(name in graph.constants for name in node.inputs) or not 1 <= len(node.inputs) <= 8:
        raise _RefusedError(f"{len(node.inputs)} values, or constants, are joined")
    return _plain("concat", node, inputs=node.inputs)


def _pool(graph: Graph, node: Node) -> Layer:
    kernel, stride = _pair(node, "kernel_shape"), _pair(node, "strides")
    if _pair(node, "dilations") != (1, 1):
        raise _RefusedError("a pool with dilation")
    pads = _pads(graph, node, kernel, stride, (1, 1))
    counts = bool(node.attributes.get("count_include_pad", 0)) and any(pads)
    if counts and node.attributes.get("ceil_mode", 0):
        raise _RefusedError("ceil_mode with count_include_pad")
    if pads[0] >= kernel[0] or pads[2] >= kernel[0] or pads[1] >= kernel[1] or pads[3] >= kernel[1]:
        raise _RefusedError("a border as wide as the window")
    kind: Kind = "max_pool" if node.op == "MaxPool" else "avg_pool"
    return _plain(kind, node, kernel=kernel, stride=stride, pads=pads, count_pads=counts)


def _global_pool(graph: Graph, node: Node) -> Layer:
    high, wide, _ = picture_shape(graph, node.inputs[0])
    return _plain("max_pool" if node.op == "GlobalMaxPool" else "avg_pool", node, kernel=(high, wide))


def _reduce_mean(graph: Graph, node: Node) -> Layer:
    axes = node.attributes.get("axes")
    if axes is None and node.has(1):
        axes = _constant(graph, node, 1).astype(int).tolist()
    rank = len(graph.shape(node.inputs[0]))
    if axes is None or rank != 4 or sorted(int(axis) % 4 for axis in axes) != [2, 3]:
        raise _RefusedError("only the mean over height and width is supported")
    return _global_pool(graph, node)


def _resize(graph: Graph, node: Node) -> Layer:
    high, wide, _ = picture_shape(graph, node.inputs[0])
    to_high, to_wide, _ = picture_shape(graph, node.outputs[0])
    if node.attributes.get("mode", "nearest") != "nearest" or to_high % high or to_wide % wide:
        raise _RefusedError("only nearest neighbours and whole factors are supported")
    rule = node.attributes.get("coordinate_transformation_mode", "half_pixel" if node.op == "Resize" else "asymmetric")
    rounding = node.attributes.get("nearest_mode", "round_prefer_floor" if node.op == "Resize" else "floor")
    # For whole factors these give the same pixels: floor(y / factor).
    if (rule, rounding) not in (
        ("asymmetric", "floor"),
        ("half_pixel", "round_prefer_floor"),
        ("half_pixel", "round_prefer_ceil"),
    ):
        raise _RefusedError(f"{rule} with {rounding} takes other pixels")
    return _plain("upsample", node, kernel=(to_high // high, to_wide // wide))


def _space_to_depth(graph: Graph, node: Node) -> Layer:
    block = int(node.attributes["blocksize"])
    return _plain("space_to_depth", node, stride=(block, block))


def _reshape(graph: Graph, node: Node) -> Layer:
    if picture_shape(graph, node.inputs[0]) == picture_shape(graph, node.outputs[0]):
        return _plain("act", node)
    if _flattened(graph, node.outputs[0]) is None:
        raise _RefusedError("numbers change their places")
    return _plain("flatten", node)


def _pad(graph: Graph, node: Node) -> Layer:
    # Exporters leave one without any border before some pools.
    if graph.shape(node.inputs[0]) != graph.shape(node.outputs[0]):
        raise _RefusedError("a border of its own, not that of a convolution or pool")
    return _plain("act", node)


def _slope(graph: Graph, node: Node) -> Layer:
    slopes = np.unique(_constant(graph, node, 1))
    if slopes.size != 1:
        raise _RefusedError("a slope of its own for each channel")
    return _plain("act", node, activation=Activation("leaky", float(slopes[0])))


def _clip(graph: Graph, node: Node) -> Layer:
    bounds = clip_range(graph, node)
    if bounds is None:
        raise _RefusedError("its bounds are no constants")
    limit = float(np.finfo(np.float32).max)
    return _plain("act", node, activation=Activation("clip", max(bounds[0], -limit), min(bounds[1], limit)))


def _hard_sigmoid(node: Node) -> tuple[float, float]:
    return float(node.attributes.get("alpha", 0.2)), float(node.attributes.get("beta", 0.5))


def _act(kind: ActivationKind) -> Callable[[Graph, Node], Layer]:
    def rule(_graph: Graph, node: Node) -> Layer:
        activation = Activation(kind)
        if kind == "leaky":
            activation = Activation(kind, float(node.attributes.get("alpha", 0.01)))
        elif kind == "hard_sigmoid":
            activation = Activation(kind, *_hard_sigmoid(node))
        return _plain("act", node, activation=activation)

    return rule


_RULES: dict[str, Callable[[Graph, Node], Layer]] = {
    "Add": _binary,
    "AveragePool": _pool,
    "BatchNormalization": _batch_normalization,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Div": _binary,
    "Dropout": _act("none"),
    "Flatten": _reshape,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "HardSigmoid": _act("hard_sigmoid"),
    "HardSwish": _act("hard_swish"),
    "Identity": _act("none"),
    "LeakyRelu": _act("leaky"),
    "MatMul": _matmul,
    "MaxPool": _pool,
    "Mul": _binary,
    "PRelu": _slope,
    "Pad": _pad,
    "ReduceMean": _reduce_mean,
    "Relu": _act("relu"),
    "Reshape": _reshape,
    "Resize": _resize,
    "Sigmoid": _act("sigmoid"),
    "SpaceToDepth": _space_to_depth,
    "Squeeze": _reshape,
    "Sub": _binary,
    "Sum": _sum,
    "Tanh": _act("tanh"),
    "Unsqueeze": _reshape,
    "Upsample": _resize,
}


def _fuse(graph: Graph, layers: list[Layer]) -> list[Layer]:
    """Take each activation into the layer before it, where nothing else reads that layer's output."""
    readers: dict[str, int] = {}
    for name in [*graph.outputs, *(name for node in graph.nodes for name in node.inputs)]:
        readers[name] = readers.get(name, 0) + 1
    made: dict[str, Layer] = {}
    for layer in layers:
        source = made.get(layer.inputs[0]) if layer.kind == "act" and layer.activation.kind != "none" else None
        # x * sigmoid(x) reads x twice.
        reads = 2 if layer.activation.kind in ("silu", "hard_swish") and len(layer.nodes) == 2 else 1
        if source is not None and source.activation.kind == "none" and readers[source.output] == reads:
            del made[source.output]
            nodes = (*source.nodes, *layer.nodes)
            layer = replace(source, output=layer.output, nodes=nodes, before=source.output, activation=layer.activation)
        made[layer.output] = layer
    return list(made.values())
