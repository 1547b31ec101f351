"""Operators that move data, and the axis orders that make most of them free, against ONNX Runtime."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from pyasc.errors import UnsupportedOperatorError
from pyasc.models.tflite.layout import identity, physical, reshaped, transposed
from pyasc.models.tflite.writer import to_tflite

EXAMPLES = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def ints(*values: int) -> Any:
    return np.asarray(values, np.int64)


def operators(data: bytes) -> list[str]:
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    file = schema.ModelT.InitFromPackedBuf(data, 0)
    return [names[file.operatorCodes[op.opcodeIndex].builtinCode] for op in file.subgraphs[0].operators]


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of the same number of elements."""
    primes = draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=6))

    def grouped() -> tuple[int, ...]:
        cuts = sorted(draw(st.lists(st.integers(0, len(primes)), max_size=4)))
        bounds = [0, *cuts, len(primes)]
        return tuple(math.prod(primes[a:b]) for a, b in itertools.pairwise(bounds))

    return grouped(), grouped()


@given(shapes=reshapes(), data=st.data())
def test_an_order_that_passes_a_reshape_leaves_the_memory(shapes, data):
    old, new = shapes
    order = tuple(data.draw(st.permutations(range(len(old)))))
    values = np.arange(math.prod(old)).reshape(old)
    result = reshaped(old, order, new)
    if order == identity(len(old)):
        assert result is not None
    if result is not None:
        memory = values.transpose(order).reshape(-1)
        np.testing.assert_array_equal(values.reshape(new).transpose(result).reshape(-1), memory)


@given(data=st.data())
def test_an_order_after_a_transposition_leaves_the_memory(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    order, perm = (tuple(data.draw(st.permutations(range(len(shape))))) for _ in range(2))
    values = np.arange(math.prod(shape)).reshape(shape)
    result = transposed(order, perm)
    np.testing.assert_array_equal(values.transpose(perm).transpose(result), values.transpose(order))
    assert physical(values.transpose(perm).shape, result) == physical(shape, order)


@EXAMPLES
@given(data=st.data())
def test_chains_of_reshapes_and_transpositions(model, agrees, data):
    """Up to four in a row behind a convolution-like start, where the axes lie as NHWC."""
    shape = (2, 6, 4, 3)
    nodes, constants, name = [helper.make_node("Relu", ["x"], ["v0"])], {}, "v0"
    for step in range(data.draw(st.integers(1, 4))):
        result = f"v{step + 1}"
        if data.draw(st.booleans()):
            perm = data.draw(st.permutations(range(len(shape))))
            nodes.append(helper.make_node("Transpose", [name], [result], perm=perm))
            shape = tuple(shape[axis] for axis in perm)
        else:
            shape = data.draw(st.sampled_from([(12, 12), (2, 3, 2, 4, 3), (2, 6, 12), (12, 4, 3, 1), (2, 24, 3)]))
            constants[f"s{step}"] = ints(*shape)
            nodes.append(helper.make_node("Reshape", [name, f"s{step}"], [result]))
        name = result
    nodes.append(helper.make_node("Neg", [name], ["y"]))
    agrees(model(nodes, {"x": (2, 6, 4, 3)}, ["y"], constants))


def test_the_yolo_head_takes_one_transposition(model, agrees):
    """NCHW -> (N, anchors, values, H, W) -> (N, anchors, H, W, values) -> rows: only the last step moves data."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Reshape", ["s", "five"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 1, 3, 4, 2]),
        helper.make_node("Mul", ["t", "anchors"], ["m"]),
        helper.make_node("Reshape", ["m", "rows"], ["y"]),
    ]
    anchors = np.random.default_rng(0).random((1, 3, 1, 1, 7), np.float32)
    constants = {"five": ints(1, 3, 7, 4, 5), "rows": ints(1, -1, 7), "anchors": anchors}
    converted = agrees(model(nodes, {"x": (1, 21, 4, 5)}, ["y"], constants))
    assert sorted(operators(converted.data)) == ["LOGISTIC", "MUL", "RESHAPE", "RESHAPE", "TRANSPOSE"]


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_concat(model, agrees, axis):
    shapes = {name: [2, 3, 4, 5] for name in "abc"}
    for size, name in enumerate("abc", 1):
        shapes[name][axis] = size
    nodes = [helper.make_node("Concat", [*"abc"], ["y"], axis=axis)]
    agrees(model(nodes, shapes, ["y"]))


def test_concat_with_a_constant_and_another_order(model, agrees):
    constant = np.random.default_rng(0).random((1, 2, 4, 5), np.float32)
    nodes = [
        helper.make_node("Transpose", ["b"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Concat", ["a", "t", "k"], ["y"], axis=1),
    ]
    agrees(model(nodes, {"a": (1, 3, 4, 5), "b": (1, 4, 5, 6)}, ["y"], {"k": constant}))


@pytest.mark.parametrize("sizes", [[2, 2, 2], [1, 2, 3], [6], [1] * 6])
@pytest.mark.parametrize("rank", [4, 5])
def test_split(model, agrees, sizes, rank):
    names = [f"y{i}" for i in range(len(sizes))]
    nodes = [helper.make_node("Split", ["x", "sizes"], names, axis=1)]
    agrees(model(nodes, {"x": (2, 6, 3, 4, 2)[:rank]}, names, {"sizes": ints(*sizes)}))


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([1], [3], [1], [1]),
        ([0, 1], [9999, -1], [2, 3], [1, 1]),
        ([0, 1], [9999, 9999], [2, 3], [2, 2]),
        ([-3], [-1], [-1], [1]),
        ([1, 0, 0, 2], [2, 6, 4, 5], None, None),
    ],
)
def test_slice(model, agrees, starts, ends, axes, steps):
    given_ = {"starts": starts, "ends": ends} | ({"axes": axes, "steps": steps} if axes else {})
    nodes = [helper.make_node("Slice", ["x", *given_], ["y"])]
    agrees(model(nodes, {"x": (2, 6, 4, 5)}, ["y"], {name: ints(*value) for name, value in given_.items()}))


def test_slice_of_opset_9_and_five_axes(model, agrees):
    node = helper.make_node("Slice", ["x"], ["y"], starts=[1, 0], ends=[3, 2], axes=[1, 4])
    agrees(model([node], {"x": (1, 4, 2, 3, 5)}, ["y"], opset=9))


@pytest.mark.parametrize("opset", [11, 13])
def test_squeeze_and_unsqueeze(model, agrees, opset):
    axes = {"ax": ints(0, 2), "bx": ints(1)}
    if opset == 11:
        nodes = [
            helper.make_node("Squeeze", ["x"], ["s"], axes=[0, 2]),
            helper.make_node("Unsqueeze", ["s"], ["y"], axes=[1]),
        ]
        axes = {}
    else:
        nodes = [helper.make_node("Squeeze", ["x", "ax"], ["s"]), helper.make_node("Unsqueeze", ["s", "bx"], ["y"])]
    agrees(model(nodes, {"x": (1, 3, 1, 5)}, ["y"], axes, opset))


@pytest.mark.parametrize("axis", [0, 1, 2, 4])
def test_flatten(model, agrees, axis):
    agrees(model([helper.make_node("Flatten", ["x"], ["y"], axis=axis)], {"x": (2, 3, 4, 5)}, ["y"]))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(model, agrees, mode):
    nodes = [helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2, mode=mode)]
    agrees(model(nodes, {"x": (2, 12, 3, 4)}, ["y"]))


def test_space_to_depth(model, agrees):
    agrees(model([helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2)], {"x": (2, 3, 4, 6)}, ["y"]))


def test_shape_arithmetic_is_computed_at_conversion(model, agrees):
    """The exporter's way to write `x.view(x.size(0), -1)`, and a Resize to the size of another value."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "axis"], ["head"]),
        helper.make_node("Concat", ["head", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "axis": ints(0), "rest": ints(-1)}
    converted = agrees(model(nodes, {"x": (2, 3, 4, 5)}, ["y"], constants))
    assert operators(converted.data) == ["TRANSPOSE", "RESHAPE"]


def test_outputs_that_are_inputs_constants_or_the_same_value(model, agrees):
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Transpose", ["x"], ["moved"], perm=[0, 2, 3, 1]),
        helper.make_node("Dropout", ["x"], ["again"]),
    ]
    agrees(model(nodes, {"x": (1, 3, 4, 5)}, ["same", "moved", "again"]))


def test_what_opset_18_moved_into_inputs_or_attributes(model, agrees):
    nodes = [
        helper.make_node("Pad", ["x", "pads", "", "hw"], ["p"]),
        helper.make_node(
            "Resize", ["p", "", "scales"], ["r"], axes=[2, 3], coordinate_transformation_mode="half_pixel"
        ),
        helper.make_node("Split", ["r"], ["a", "b"], num_outputs=2, axis=1),
        helper.make_node("ReduceMean", ["a", "hw"], ["m"], keepdims=0),
        helper.make_node("ReduceL2", ["b", "hw"], ["n"]),
    ]
    constants = {"pads": ints(1, 0, 2, 1), "hw": ints(2, 3), "scales": np.asarray([2, 2], np.float32)}
    agrees(model(nodes, {"x": (1, 5, 3, 4)}, ["m", "n"], constants, opset=18))


def test_transpositions_of_six_axes_and_no_more(model, agrees):
    def graph(*shape: int) -> onnx.ModelProto:
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=list(range(len(shape)))[::-1], name="flip"),
            helper.make_node("Flatten", ["t"], ["y"], name="flat"),
        ]
        return model(nodes, {"x": shape}, ["y"])

    agrees(graph(2, 3, 2, 3, 2, 3))
    with pytest.raises(UnsupportedOperatorError, match="Flatten 'flat': 7 axes"):
        to_tflite(graph(2, 3, 2, 3, 2, 3, 2))


def test_a_reshaped_value_survives_what_is_computed_from_it(model, agrees):
    """The engines' own kernels share memory along reshapes and wrote the product over its factor, which the Concat still needs."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"]),
        helper.make_node("Reshape", ["a", "five"], ["r"]),
        helper.make_node("Mul", ["k", "r"], ["m"]),
        helper.make_node("Concat", ["m", "r"], ["y"], axis=3),
    ]
    factors = np.random.default_rng(0).random((3,), np.float32) + np.float32(1)
    graph = model(nodes, {"x": (1, 4, 5, 3)}, ["y"], {"five": ints(1, 4, 5, 1, 3), "k": factors})
    agrees(graph)


def test_a_value_read_after_its_reshape_is_not_overwritten(model, agrees):
    """The product lies over the sum; the kernels saw no reader but the Reshape of that memory, wrote the second there."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["sum"]),
        helper.make_node("Mul", ["sum", "k"], ["product"]),
        helper.make_node("Reshape", ["product", "flat"], ["r"]),
        helper.make_node("Mul", ["r", "k"], ["second"]),
        helper.make_node("Softmax", ["second"], ["y"], axis=1),
        helper.make_node("Softmax", ["product"], ["z"], axis=2),
    ]
    constants = {"flat": ints(1, 60), "k": np.float32([1.5])}
    agrees(model(nodes, {"x": (1, 5, 12)}, ["y", "z"], constants))


def test_a_reshaped_output_is_not_overwritten(model, agrees):
    nodes = [
        helper.make_node("Add", ["x", "x"], ["sum"]),
        helper.make_node("Mul", ["sum", "k"], ["product"]),
        helper.make_node("Reshape", ["product", "flat"], ["r"]),
        helper.make_node("Mul", ["r", "k"], ["second"]),
        helper.make_node("Mul", ["second", "k"], ["third"]),
        helper.make_node("Softmax", ["third"], ["y"], axis=1),
    ]
    constants = {"flat": ints(1, 60), "k": np.float32([1.5])}
    agrees(model(nodes, {"x": (1, 5, 12)}, ["product", "y"], constants))


def test_only_a_reshape_whose_source_is_read_later_costs_a_copy(model):
    nodes = [
        helper.make_node("Add", ["x", "x"], ["sum"]),
        helper.make_node("Reshape", ["sum", "flat"], ["r"]),
        helper.make_node("Reshape", ["r", "square"], ["s"]),
        helper.make_node("Mul", ["s", "k"], ["y"]),
    ]
    constants = {"flat": ints(1, 60), "square": ints(6, 10), "k": np.float32([1.5])}
    converted = to_tflite(model(nodes, {"x": (1, 5, 12)}, ["y"], constants))
    assert operators(converted.data) == ["ADD", "RESHAPE", "MUL"]
