"""Elementwise operators, reductions and matrix products against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from pyasc.errors import UnsupportedOperatorError
from pyasc.models.tflite.writer import to_tflite

RNG = np.random.default_rng(11)
SHAPES = [(2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 2), (2, 3, 4, 2, 2, 2)]


def weights(*shape: int) -> Any:
    return np.asarray(RNG.standard_normal(shape), np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        *((op, {}) for op in ("Sigmoid", "Tanh", "Relu", "HardSwish", "Exp", "Abs", "Neg", "Floor", "HardSigmoid")),
        *(("LeakyRelu", {"alpha": alpha}) for alpha in (0.01, 0.1)),
        ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    ],
)
def test_unary(model, agrees, op, attributes, shape):
    agrees(model([helper.make_node(op, ["x"], ["y"], **attributes)], {"x": shape}, ["y"], opset=14))


@pytest.mark.parametrize("op", ["Sqrt", "Log"])
def test_unary_of_positive_numbers(model, agrees, op):
    feeds = {"x": np.abs(weights(1, 3, 4, 5)) + np.float32(0.01)}
    agrees(model([helper.make_node(op, ["x"], ["y"])], {"x": (1, 3, 4, 5)}, ["y"]), feeds=feeds)


BOUNDS = [(0, 6), (-1, 1), (0, None), (None, 0.5), (-0.5, 0.75), (None, None)]


# Bounds that cross are defined from opset 13 on: the upper one holds.
@pytest.mark.parametrize(("bounds", "opset"), [*((b, o) for b in BOUNDS for o in (7, 13)), ((0.5, -0.5), 13)])
@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3, 1, 2, 2, 3)])
def test_clip(model, agrees, bounds, opset, shape):
    given = {name: float(value) for name, value in zip(("min", "max"), bounds, strict=True) if value is not None}
    if opset == 7:
        node, constants = helper.make_node("Clip", ["x"], ["y"], **given), {}
    else:
        constants = {name: np.float32(value) for name, value in given.items()}
        node = helper.make_node("Clip", ["x", *(name if name in given else "" for name in ("min", "max"))], ["y"])
    agrees(model([node], {"x": shape}, ["y"], constants, opset))


BROADCASTS = [
    ((1, 3, 4, 5), (1, 3, 4, 5)),
    ((1, 3, 4, 5), (1, 3, 1, 1)),
    ((1, 3, 1, 5), (1, 1, 4, 1)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((2, 3, 4, 5), (5,)),
    ((2, 3, 4, 5), (4, 5)),
    ((2, 3, 4, 5), ()),
    ((4, 5), (2, 3, 4, 5)),
    ((1, 3, 4, 5, 2), (1, 3, 1, 1, 2)),
    ((3, 4), (1, 4)),
]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Min", "Max"])
@pytest.mark.parametrize(("first", "second"), BROADCASTS)
@pytest.mark.parametrize("constant", [None, "a", "b"])
def test_binary(model, agrees, op, first, second, constant):
    shapes = {"a": first, "b": second}
    # Away from zero, so that a quotient is not larger than the tolerance is made for.
    values = {name: np.asarray(np.abs(weights(*shape)) + 0.5, np.float32) for name, shape in shapes.items()}
    inputs = {name: shape for name, shape in shapes.items() if name != constant}
    constants = {constant: values[constant]} if constant else {}
    graph = model([helper.make_node(op, ["a", "b"], ["y"])], inputs, ["y"], constants)
    agrees(graph, feeds={name: values[name] for name in inputs})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_binary_with_activation(model, agrees, op):
    nodes = [helper.make_node(op, ["x", "k"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    agrees(model(nodes, {"x": (1, 3, 4, 5)}, ["y"], {"k": np.float32(0.5)}))


@pytest.mark.parametrize("exponent", [2.0, 0.5, 3.0, -1.0])
def test_pow(model, agrees, exponent):
    feeds = {"x": np.abs(weights(1, 3, 4, 5)) + np.float32(0.1)}
    nodes = [helper.make_node("Pow", ["x", "e"], ["y"])]
    agrees(model(nodes, {"x": (1, 3, 4, 5)}, ["y"], {"e": np.float32(exponent)}), rtol=1e-4, feeds=feeds)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_softmax(model, agrees, shape, axis):
    agrees(model([helper.make_node("Softmax", ["x"], ["y"], axis=axis)], {"x": shape}, ["y"]))


def test_old_softmax_over_several_axes_is_refused(model):
    graph = model([helper.make_node("Softmax", ["x"], ["y"], axis=1, name="s")], {"x": (1, 3, 4, 5)}, ["y"], opset=11)
    with pytest.raises(UnsupportedOperatorError, match="Softmax 's'"):
        to_tflite(graph)


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"])
@pytest.mark.parametrize("axes", [[1], [2, 3], [-1], [0, 2], None])
@pytest.mark.parametrize("keep", [0, 1])
def test_reduce(model, agrees, op, axes, keep):
    node = helper.make_node(op, ["x"], ["y"], keepdims=keep, **({"axes": axes} if axes else {}))
    agrees(model([node], {"x": (2, 3, 4, 5)}, ["y"]))


def test_reduce_with_axes_as_an_input(model, agrees):
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    agrees(model([node], {"x": (2, 3, 4, 5)}, ["y"], {"axes": np.asarray([1, -1], np.int64)}))


def test_l2_normalization(model, agrees):
    nodes = [helper.make_node("ReduceL2", ["x"], ["n"], axes=[1]), helper.make_node("Div", ["x", "n"], ["y"])]
    agrees(model(nodes, {"x": (2, 16)}, ["y"]))


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [None, (4,), (1, 4), (1,), ()])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.5, 2.0)])
def test_gemm(model, agrees, transposed, bias, factors):
    constants = {"w": weights(4, 6) if transposed else weights(6, 4)}
    if bias is not None:
        constants["b"] = weights(*bias)
    node = helper.make_node("Gemm", ["x", *constants], ["y"], transB=transposed, alpha=factors[0], beta=factors[1])
    agrees(model([node], {"x": (3, 6)}, ["y"], constants))


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_takes_normalization_and_activation_in(model, agrees, transposed):
    constants = {name: weights(4) for name in ("b", "s", "o", "m")} | {"v": np.abs(weights(4)) + 0.1}
    constants["w"] = weights(4, 6) if transposed else weights(6, 4)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"], transB=transposed, alpha=0.5, beta=3.0),
        helper.make_node("BatchNormalization", ["g", "s", "o", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    agrees(model(nodes, {"x": (3, 6)}, ["y"], constants))


@pytest.mark.parametrize(
    ("first", "second", "constant"),
    [
        ((2, 6), (6, 4), True),
        ((2, 3, 6), (6, 4), True),
        ((2, 3, 5, 6), (6, 4), True),
        ((2, 3, 6), (2, 6, 4), True),
        ((2, 6), (6, 4), False),
        ((2, 3, 6), (2, 6, 4), False),
        ((2, 3, 5, 6), (2, 3, 6, 4), False),
    ],
)
def test_matmul(model, agrees, first, second, constant):
    inputs = {"a": first} if constant else {"a": first, "b": second}
    constants = {"b": weights(*second)} if constant else {}
    agrees(model([helper.make_node("MatMul", ["a", "b"], ["y"])], inputs, ["y"], constants))


@pytest.mark.parametrize("shape", SHAPES)
def test_batch_normalization(model, agrees, shape):
    constants = {name: weights(3) for name in ("s", "o", "m")} | {"v": np.abs(weights(3)) + 0.1}
    agrees(model([helper.make_node("BatchNormalization", ["x", *constants], ["y"])], {"x": shape}, ["y"], constants))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"])
@pytest.mark.parametrize("shape", [(1, 2, 5, 5, 3), (2, 3, 5, 4, 3), (2, 2, 3, 5, 4, 3)])
@pytest.mark.parametrize("other", [(), (3,), (5, 1, 1), (1, 5, 1), (2, 1, 1, 1), (1, 1, 5, 1, 1), (4, 3)])
@pytest.mark.parametrize("swapped", [False, True])
def test_broadcasts_of_many_axes(model, agrees, op, shape, other, swapped):
    """More axes than the kernels take in a broadcast; tflite-runtime 2.14 would end the process."""
    # Each size of `other` that is not 1 stands for that of the other operand.
    other = tuple(1 if size == 1 else shape[axis - len(other)] for axis, size in enumerate(other))
    names = ["k", "x"] if swapped else ["x", "k"]
    constants = {"k": np.asarray(np.abs(weights(*other)) + 0.5, np.float32)}
    graph = model([helper.make_node(op, names, ["y"])], {"x": shape}, ["y"], constants)
    agrees(graph, rtol=1e-4, feeds={"x": np.abs(weights(*shape)) + np.float32(0.5)})


def test_a_broadcast_that_alternates_too_often_is_refused(model):
    nodes = [helper.make_node("Mul", ["a", "b"], ["y"], name="m")]
    graph = model(nodes, {"a": (2, 1, 2, 1, 2), "b": (1, 3, 1, 3, 1)}, ["y"])
    with pytest.raises(UnsupportedOperatorError, match="Mul 'm': a broadcast over 5 runs"):
        to_tflite(graph)
