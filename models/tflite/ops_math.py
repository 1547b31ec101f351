"""Elementwise operators, reductions, matrix products and normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from pyasc.models.tflite.broadcast import write_broadcast
from pyasc.models.tflite.fuse import clip_range, normalization
from pyasc.models.tflite.graph import Node, Shape
from pyasc.models.tflite.layout import Order, identity, physical
from pyasc.models.tflite.lowering import Lowering, activation_code, refuse

_UNARY: dict[str, tuple[str, Callable[[], Any] | None]] = {
    "Sigmoid": ("LOGISTIC", None),
    "Tanh": ("TANH", None),
    "Relu": ("RELU", None),
    "HardSwish": ("HARD_SWISH", schema.HardSwishOptionsT),
    "Exp": ("EXP", schema.ExpOptionsT),
    "Sqrt": ("SQRT", None),
    "Abs": ("ABS", schema.AbsOptionsT),
    "Neg": ("NEG", schema.NegOptionsT),
    "Floor": ("FLOOR", None),
    "Log": ("LOG", None),
}
_BINARY = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL", "Div": "DIV", "Min": "MINIMUM", "Max": "MAXIMUM", "Pow": "POW"}
_REDUCTIONS = {"ReduceMean": "MEAN", "ReduceSum": "SUM", "ReduceMax": "REDUCE_MAX", "ReduceMin": "REDUCE_MIN"}


def unary(lowering: Lowering, node: Node) -> None:
    """Operators of one input, in whatever order it lies."""
    op, options = _UNARY[node.op]
    _follow(lowering, node, (op, None, options() if options else None))


def _follow(lowering: Lowering, node: Node, *steps: tuple[str, int | None, Any]) -> None:
    """Write operators (name, second operand or None, options) one after the other on the node's first input."""
    source, output = node.inputs[0], node.outputs[0]
    order = lowering.order(source)
    tensor = lowering.tensor(source, order)
    for op, operand, options in steps:
        if operand is None:
            tensor = lowering.add(op, [tensor], lowering.file.tensors[tensor].shape, output, options)
        else:
            tensor = write_broadcast(lowering, node, op, tensor, operand, options)
    lowering.bind(output, tensor, order)


def leaky_relu(lowering: Lowering, node: Node) -> None:
    """LEAKY_RELU."""
    options = schema.LeakyReluOptionsT(alpha=float(node.attributes.get("alpha", 0.01)))
    _follow(lowering, node, ("LEAKY_RELU", None, options))


def hard_sigmoid(lowering: Lowering, node: Node) -> None:
    """max(0, min(1, alpha x + beta)), written as relu6(6 alpha x + 6 beta) / 6 because RELU6 can be fused."""
    alpha, beta = (float(node.attributes.get(name, value)) for name, value in (("alpha", 0.2), ("beta", 0.5)))
    relu6 = schema.AddOptionsT(fusedActivationFunction=schema.ActivationFunctionType.RELU6)
    steps = (
        ("MUL", lowering.scalar(6 * alpha), schema.MulOptionsT()),
        ("ADD", lowering.scalar(6 * beta), relu6),
        ("MUL", lowering.scalar(1 / 6), schema.MulOptionsT()),
    )
    _follow(lowering, node, *(steps[1:] if np.float32(6 * alpha) == 1 else steps))


def clip(lowering: Lowering, node: Node) -> None:
    """RELU6, RELU, RELU_N1_TO_1, else MINIMUM and MAXIMUM."""
    bounds = clip_range(lowering.graph, node)
    if bounds is None:
        raise refuse(node, "the bounds must be constants")
    names = {(0.0, 6.0): "RELU6", (0.0, np.inf): "RELU", (-1.0, 1.0): "RELU_N1_TO_1"}
    if bounds in names:
        _follow(lowering, node, (names[bounds], None, None))
        return
    low, high = bounds
    steps: list[tuple[str, int | None, Any]] = []
    # ONNX: where low > high all elements become high, so high comes last.
    if low > -np.inf:
        steps.append(("MAXIMUM", lowering.scalar(low), schema.MaximumMinimumOptionsT()))
    if high < np.inf:
        steps.append(("MINIMUM", lowering.scalar(high), schema.MaximumMinimumOptionsT()))
    _follow(lowering, node, *steps)


def binary(lowering: Lowering, node: Node) -> None:
    """Operators of two inputs with broadcasting; both are brought to the order of the larger one that is not a constant."""
    if len(node.inputs) != 2:
        raise refuse(node, f"takes two inputs here, not {len(node.inputs)}")
    output = node.outputs[0]
    shape = lowering.shape(output)
    order = _common_order(lowering, node, len(shape))
    op = _BINARY[node.op]
    if op == "POW" and _power(lowering, node):
        return
    first, second = (_operand(lowering, name, len(shape), order) for name in node.inputs)
    options = getattr(schema, f"{op.title()}OptionsT", schema.MaximumMinimumOptionsT)()
    if hasattr(options, "fusedActivationFunction"):
        options.fusedActivationFunction = activation_code(node)
    lowering.bind(output, write_broadcast(lowering, node, op, first, second, options), order)


def _common_order(lowering: Lowering, node: Node, rank: int) -> Order:
    sizes = {
        int(np.prod(lowering.shape(name))): lowering.order(name)
        for name in reversed(node.inputs)
        if not lowering.is_constant(name) and len(lowering.shape(name)) == rank
    }
    return sizes[max(sizes)] if sizes else identity(rank)


def _operand(lowering: Lowering, name: str, rank: int, order: Order) -> int:
    """A tensor that broadcasts as ONNX says: axes aligned at the end in ONNX's order, then laid out in `order`."""
    shape = lowering.shape(name)
    missing = rank - len(shape)
    if lowering.is_constant(name):
        array = np.asarray(lowering.graph.constants[name], np.float32)
        array = array.reshape((1,) * missing + shape).transpose(order)
        # Without its leading ones a constant for each channel is a vector, which is the form that engines look for.
        while array.ndim and array.shape[0] == 1:
            array = array[0]
        return lowering.file.add_constant(name, array)
    if not missing:
        return lowering.tensor(name, order)
    # The axes that the operand lacks go first; they have size 1 and do not move anything.
    own = tuple(axis - missing for axis in order if axis >= missing)
    tensor = lowering.tensor(name, own)
    return lowering.reshape(tensor, physical((1,) * missing + shape, order), name)


def _power(lowering: Lowering, node: Node) -> bool:
    """Write x ** 2 and x ** 0.5 as operators that are faster than POW; False for any other exponent."""
    name = node.inputs[1]
    if not lowering.is_constant(name) or lowering.graph.constants[name].size != 1:
        return False
    if lowering.shape(node.outputs[0]) != lowering.shape(node.inputs[0]):
        return False
    exponent = lowering.number(node, 1)
    known: dict[float, tuple[str, Any]] = {2.0: ("SQUARE", schema.SquareOptionsT()), 0.5: ("SQRT", None)}
    if exponent not in known:
        return False
    op, options = known[exponent]
    _follow(lowering, node, (op, None, options))
    return True


def softmax(lowering: Lowering, node: Node) -> None:
    """SOFTMAX, which works along the last axis in memory."""
    source, output = node.inputs[0], node.outputs[0]
    shape = lowering.shape(source)
    rank = len(shape)
    modern = lowering.graph.opset >= 13
    axis = int(node.attributes.get("axis", -1 if modern else 1)) % rank
    # Before opset 13 all axes from `axis` on count as one.
    if not modern and int(np.prod(shape[axis + 1 :])) != 1:
        raise refuse(node, "before opset 13 only the last axis is supported")
    order = lowering.order(source)
    if order[-1] != axis:
        order = (*(item for item in order if item != axis), axis)
    options = schema.SoftmaxOptionsT(beta=1.0)
    result = lowering.add("SOFTMAX", [lowering.tensor(source, order)], physical(shape, order), output, options)
    lowering.bind(output, result, order)


def reduce(lowering: Lowering, node: Node) -> None:
    """MEAN, SUM, REDUCE_MAX, REDUCE_MIN over any axes."""
    order = lowering.order(node.inputs[0])
    _reduce(lowering, node, _REDUCTIONS[node.op], lowering.tensor(node.inputs[0], order), order)


def reduce_l2(lowering: Lowering, node: Node) -> None:
    """The square root of the sum of squares."""
    source, output = node.inputs[0], node.outputs[0]
    order = lowering.order(source)
    shape = physical(lowering.shape(source), order)
    square = lowering.add("SQUARE", [lowering.tensor(source, order)], shape, output, schema.SquareOptionsT())
    total, new_order = _reduce(lowering, node, "SUM", square, order)
    root = lowering.add("SQRT", [total], lowering.file.tensors[total].shape, output)
    lowering.bind(output, root, new_order)


def _reduce(lowering: Lowering, node: Node, op: str, tensor: int, order: Order) -> tuple[int, Order]:
    """Write the reduction and bind the output to it; returns its tensor and order."""
    source, output = node.inputs[0], node.outputs[0]
    shape = lowering.shape(source)
    axes = lowering.integers(node, 1, "axes")
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        lowering.bind(output, tensor, order)
        return tensor, order
    gone = {axis % len(shape) for axis in (axes or range(len(shape)))}
    keep = bool(node.attributes.get("keepdims", 1))
    places = sorted(order.index(axis) for axis in gone)
    inputs = [tensor, lowering.integers_constant(places, "axes")]
    new_order = order
    if not keep:
        left = [axis for axis in range(len(shape)) if axis not in gone]
        new_order = tuple(left.index(axis) for axis in order if axis not in gone)
    options = schema.ReducerOptionsT(keepDims=keep)
    result = lowering.add(op, inputs, physical(lowering.shape(output), new_order), output, options)
    lowering.bind(output, result, new_order)
    return result, new_order


def gemm(lowering: Lowering, node: Node) -> None:
    """FULLY_CONNECTED; its weights are (outputs, inputs), the transpose of ONNX's B."""
    if node.attributes.get("transA", 0):
        raise refuse(node, "transA is not supported")
    weight = lowering.floats(node, 1) * np.float32(node.attributes.get("alpha", 1.0))
    weight = weight if node.attributes.get("transB", 0) else weight.T
    bias = np.zeros(len(weight), np.float32)
    if node.has(2):
        addend = lowering.floats(node, 2) * np.float32(node.attributes.get("beta", 1.0))
        if addend.size not in (1, len(weight)) or (addend.ndim == 2 and addend.shape[0] != 1):
            raise refuse(node, f"C of shape {list(addend.shape)} is not one value an output")
        bias = bias + addend.reshape(-1)
    _fully_connected(lowering, node, weight, bias)


def matmul(lowering: Lowering, node: Node) -> None:
    """FULLY_CONNECTED for a constant matrix on the right, else BATCH_MATMUL."""
    first, second = node.inputs
    if lowering.is_constant(second) and len(lowering.shape(second)) == 2 and not lowering.is_constant(first):
        weight = lowering.floats(node, 1).T
        _fully_connected(lowering, node, weight, np.zeros(len(weight), np.float32))
        return
    output = node.outputs[0]
    if min(len(lowering.shape(first)), len(lowering.shape(second))) < 2:
        raise refuse(node, "vectors are not supported")
    inputs = [lowering.tensor(name, identity(len(lowering.shape(name)))) for name in node.inputs]
    shape = lowering.shape(output)
    result = lowering.add("BATCH_MATMUL", inputs, shape, output, schema.BatchMatMulOptionsT())
    lowering.bind(output, result, identity(len(shape)))


def _fully_connected(lowering: Lowering, node: Node, weight: NDArray[Any], bias: NDArray[Any]) -> None:
    source, output = node.inputs[0], node.outputs[0]
    shape: Shape = lowering.shape(output)
    if weight.ndim != 2 or lowering.shape(source)[-1] != weight.shape[1]:
        raise refuse(node, f"{list(lowering.shape(source))} does not fit weights {list(weight.shape)}")
    inputs = [
        lowering.tensor(source, identity(len(lowering.shape(source)))),
        lowering.weight(weight, node.inputs[1]),
        lowering.file.add_constant(f"{output};bias", bias),
    ]
    keep = len(shape) != 2
    options = schema.FullyConnectedOptionsT(fusedActivationFunction=activation_code(node), keepNumDims=keep)
    result = lowering.add("FULLY_CONNECTED", inputs, shape, output, options, 5 if keep else 1)
    lowering.bind(output, result, identity(len(shape)))


def batch_normalization(lowering: Lowering, node: Node) -> None:
    """MUL and ADD of a constant for each channel; one that follows a convolution was folded into it before."""
    parameters = normalization(lowering.graph, node)
    if parameters is None:
        raise refuse(node, "the parameters must be constants of one length, and training_mode 0")
    order = lowering.order(node.inputs[0])
    rank = len(order)
    if rank < 2 or len(parameters[0]) != lowering.shape(node.inputs[0])[1]:
        raise refuse(node, f"{len(parameters[0])} parameters do not fit {list(lowering.shape(node.inputs[0]))}")
    # Axis 1 of ONNX's order, wherever it lies; the axes after it broadcast.
    column = (-1, *[1] * (rank - 1 - order.index(1)))
    factor, offset = (
        lowering.file.add_constant(f"{node.name};{role}", value.astype(np.float32).reshape(column))
        for role, value in zip(("scale", "offset"), parameters, strict=True)
    )
    _follow(lowering, node, ("MUL", factor, schema.MulOptionsT()), ("ADD", offset, schema.AddOptionsT()))


OPERATORS = {
    **dict.fromkeys(_UNARY, unary),
    **dict.fromkeys(_BINARY, binary),
    **dict.fromkeys(_REDUCTIONS, reduce),
    "LeakyRelu": leaky_relu,
    "HardSigmoid": hard_sigmoid,
    "Clip": clip,
    "Softmax": softmax,
    "ReduceL2": reduce_l2,
    "Gemm": gemm,
    "MatMul": matmul,
    "BatchNormalization": batch_normalization,
}
