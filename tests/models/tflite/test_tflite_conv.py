"""Convolution, pooling, padding and resizing against ONNX Runtime, over their parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from pyasc.errors import UnsupportedOperatorError
from pyasc.models.tflite.writer import to_tflite

RNG = np.random.default_rng(7)
# The fixtures hold no state between examples.
EXAMPLES = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
pair = st.tuples


def weights(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@EXAMPLES
@given(
    size=pair(st.integers(5, 13), st.integers(5, 13)),
    kernel=pair(st.integers(1, 5), st.integers(1, 5)),
    strides=pair(st.integers(1, 3), st.integers(1, 3)),
    pads=pair(*[st.integers(0, 3)] * 4),
    dilations=pair(st.integers(1, 2), st.integers(1, 2)),
    channels=st.sampled_from([(1, 3, 4), (2, 2, 3), (4, 1, 1), (4, 1, 2), (3, 1, 1)]),
    bias=st.booleans(),
)
def test_conv(model, agrees, size, kernel, strides, pads, dilations, channels, bias):
    group, depth, out = channels
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    assume(all(size[i] + pads[i] + pads[i + 2] >= extent[i] for i in (0, 1)))
    constants = {"w": weights(group * out, depth, *kernel)}
    if bias:
        constants["b"] = weights(group * out)
    node = helper.make_node(
        "Conv", ["x", *constants], ["y"], strides=strides, pads=pads, dilations=dilations, group=group
    )
    agrees(model([node], {"x": (2, group * depth, *size)}, ["y"], constants))


@pytest.mark.parametrize("rule", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("kernel", "stride", "size"), [(3, 2, 8), (3, 2, 9), (4, 1, 7), (2, 3, 10), (1, 2, 6)])
def test_conv_auto_pad(model, agrees, rule, kernel, stride, size):
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=rule, strides=[stride, stride])
    agrees(model([node], {"x": (1, 3, size, size)}, ["y"], {"w": weights(4, 3, kernel, kernel)}))


@pytest.mark.parametrize("activation", ["Relu", "Clip06", "Clip-11", "Clip02", "LeakyRelu"])
def test_conv_with_activation(model, agrees, activation):
    constants = {"w": weights(4, 3, 3, 3)}
    inputs = ["c"]
    if activation.startswith("Clip"):
        low, high = {"06": (0.0, 6.0), "-11": (-1.0, 1.0), "02": (0.0, 2.0)}[activation[4:]]
        constants |= {"low": np.float32(low), "high": np.float32(high)}
        inputs += ["low", "high"]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(activation[:4] if activation.startswith("Clip") else activation, inputs, ["y"]),
    ]
    agrees(model(nodes, {"x": (1, 3, 8, 8)}, ["y"], constants))


@pytest.mark.parametrize("tail", ["Relu", None])
def test_batch_normalization_goes_into_the_convolution(model, agrees, tail):
    constants = {"w": weights(4, 3, 3, 3), "b": weights(4), "s": weights(4), "o": weights(4), "m": weights(4)}
    constants["v"] = np.abs(weights(4)) + 0.1
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "o", "m", "v"], ["n"], epsilon=1e-3),
    ]
    if tail:
        nodes.append(helper.make_node(tail, ["n"], ["y"]))
    converted = agrees(model(nodes, {"x": (1, 3, 8, 8)}, ["y" if tail else "n"], constants))
    assert operators(converted.data) == ["CONV_2D"]


def test_a_convolution_with_two_readers_keeps_its_result(model, agrees):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
        helper.make_node("Sigmoid", ["c"], ["z"]),
    ]
    agrees(model(nodes, {"x": (1, 3, 8, 8)}, ["y", "z"], {"w": weights(4, 3, 3, 3)}))


def test_a_convolution_that_is_an_output_keeps_its_result(model, agrees):
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    agrees(model(nodes, {"x": (1, 3, 8, 8)}, ["c", "y"], {"w": weights(4, 3, 3, 3)}))


@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "extra"),
    [
        (2, 2, (0, 0, 0, 0), 0),
        (3, 2, (1, 1, 1, 1), 1),
        (4, 2, (1, 1, 1, 1), 0),
        (3, 1, (1, 1, 1, 1), 0),
        (3, 2, (0, 1, 1, 0), 0),
        (5, 3, (1, 1, 1, 1), 0),
        (2, 3, (0, 0, 0, 0), 0),
    ],
)
def test_conv_transpose(model, agrees, kernel, stride, pads, extra):
    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"], ["y"], strides=[stride] * 2, pads=pads, output_padding=[extra] * 2
    )
    constants = {"w": weights(3, 5, kernel, kernel), "b": weights(5)}
    agrees(model([node], {"x": (1, 3, 6, 7)}, ["y"], constants))


def test_conv_transpose_with_padding_by_rule_is_refused(model):
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="up", output_shape=[12, 14], strides=[2, 2])
    graph = model([node], {"x": (1, 3, 6, 7)}, ["y"], {"w": weights(3, 5, 3, 3)})
    with pytest.raises(UnsupportedOperatorError, match="ConvTranspose 'up': auto_pad and output_shape"):
        to_tflite(graph)


def test_outputs_that_nothing_reads_are_left_out(model, agrees):
    nodes = [
        helper.make_node("Dropout", ["x"], ["d", "mask"]),
        helper.make_node("MaxPool", ["d"], ["y", "indices"], kernel_shape=[2, 2]),
    ]
    agrees(model(nodes, {"x": (1, 3, 6, 6)}, ["y"]))
    with pytest.raises(UnsupportedOperatorError, match="MaxPool 'y': 'indices' is int64"):
        to_tflite(model(nodes, {"x": (1, 3, 6, 6)}, ["y", "indices"]))


pool_geometry = {
    "size": pair(st.integers(5, 12), st.integers(5, 12)),
    "kernel": pair(st.integers(1, 4), st.integers(1, 4)),
    "strides": pair(st.integers(1, 3), st.integers(1, 3)),
    "pads": pair(*[st.integers(0, 3)] * 4),
    "ceil": st.booleans(),
}


def windows_fit(size: Any, kernel: Any, strides: Any, pads: Any, ceil: bool) -> bool:
    """What ONNX defines: no padding as large as the window, no window that starts beyond the input and its first padding."""
    if any(pads[i] >= kernel[i % 2] for i in range(4)):
        return False
    spare = [(size[i] + pads[i] + pads[i + 2] - kernel[i]) % strides[i] for i in (0, 1)]
    return not ceil or all(s == 0 or strides[i] - s < kernel[i] - pads[i + 2] for i, s in enumerate(spare))


@EXAMPLES
@given(**pool_geometry)
def test_max_pool(model, agrees, size, kernel, strides, pads, ceil):
    assume(windows_fit(size, kernel, strides, pads, ceil))
    node = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=kernel, strides=strides, pads=pads, ceil_mode=int(ceil)
    )
    agrees(model([node], {"x": (1, 3, *size)}, ["y"]))


@EXAMPLES
@given(count=st.booleans(), **pool_geometry)
def test_average_pool(model, agrees, size, kernel, strides, pads, ceil, count):
    assume(windows_fit(size, kernel, strides, pads, ceil))
    node = helper.make_node(
        "AveragePool",
        ["x"],
        ["y"],
        kernel_shape=kernel,
        strides=strides,
        pads=pads,
        ceil_mode=int(ceil),
        count_include_pad=int(count),
    )
    agrees(model([node], {"x": (1, 3, *size)}, ["y"]))


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pool_and_flatten(model, agrees, op):
    nodes = [helper.make_node(op, ["x"], ["p"]), helper.make_node("Flatten", ["p"], ["y"])]
    converted = agrees(model(nodes, {"x": (2, 3, 5, 7)}, ["y"]))
    assert "TRANSPOSE" not in operators(converted.data)


@pytest.mark.parametrize(
    ("mode", "rank"), [("constant", 2), ("constant", 4), ("constant", 5), ("reflect", 2), ("reflect", 4)]
)
def test_pad(model, agrees, mode, rank):
    pads = np.asarray([*range(1, rank + 1), *([0] * (rank - 1)), 2], np.int64) % 3
    node = helper.make_node("Pad", ["x", "pads", "fill"], ["y"], mode=mode)
    constants = {"pads": pads, "fill": np.float32(1.5)}
    agrees(model([node], {"x": (3, 4, 5, 4, 3)[:rank]}, ["y"], constants))


NEAREST = [
    ("asymmetric", "floor", (2.0, 2.0)),
    ("asymmetric", "floor", (3.0, 2.0)),
    ("half_pixel", "round_prefer_floor", (2.0, 2.0)),
    ("half_pixel", "round_prefer_ceil", (0.5, 0.5)),
    ("asymmetric", "floor", (0.5, 0.5)),
    ("align_corners", "round_prefer_ceil", (2.0, 2.0)),
]


@pytest.mark.parametrize(("rule", "rounding", "scales"), NEAREST)
def test_resize_nearest(model, agrees, rule, rounding, scales):
    node = helper.make_node(
        "Resize",
        ["x", "", "scales"],
        ["y"],
        mode="nearest",
        coordinate_transformation_mode=rule,
        nearest_mode=rounding,
    )
    agrees(model([node], {"x": (1, 3, 6, 8)}, ["y"], {"scales": np.asarray((1, 1, *scales), np.float32)}))


def test_resize_that_tflite_cannot_do_is_refused(model):
    node = helper.make_node(
        "Resize",
        ["x", "", "scales"],
        ["y"],
        name="up",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="ceil",
    )
    graph = model([node], {"x": (1, 3, 6, 8)}, ["y"], {"scales": np.asarray((1, 1, 2, 2), np.float32)})
    with pytest.raises(UnsupportedOperatorError, match=r"Resize 'up': nearest with asymmetric and ceil"):
        to_tflite(graph)


@pytest.mark.parametrize("rule", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("sizes", [(12, 16), (3, 4), (9, 20)])
def test_resize_linear(model, agrees, rule, sizes):
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear", coordinate_transformation_mode=rule)
    # float32 coordinates: up to 20 * 2^-23 of a step between neighbours that differ by a few units.
    agrees(model([node], {"x": (1, 3, 6, 8)}, ["y"], {"sizes": np.asarray((1, 3, *sizes), np.int64)}), atol=1e-4)


@pytest.mark.parametrize("opset", [9, 10])
def test_upsample(model, agrees, opset):
    op = {9: "Upsample", 10: "Resize"}[opset]
    node = helper.make_node(op, ["x", "scales"], ["y"], mode="nearest")
    graph = model([node], {"x": (1, 3, 5, 7)}, ["y"], {"scales": np.asarray((1, 1, 2, 2), np.float32)}, opset)
    agrees(graph)


def operators(data: bytes) -> list[str]:
    from ai_edge_litert import schema_py_generated as schema

    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    file = schema.ModelT.InitFromPackedBuf(data, 0)
    return [names[file.operatorCodes[op.opcodeIndex].builtinCode] for op in file.subgraphs[0].operators]
