"""Whole networks, the file itself, float16, and what is refused."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from pyasc.errors import ConversionError, PyascError, UnsupportedOperatorError
from pyasc.hal.base import TensorInfo
from pyasc.models.convert import prepare
from pyasc.models.tflite.writer import to_tflite

RNG = np.random.default_rng(5)


def weights(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32) * np.float32(0.2)


def ints(*values: int) -> Any:
    return np.asarray(values, np.int64)


def pinned(path: Path, batch: int) -> onnx.ModelProto:
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    return model


def file_of(data: bytes) -> Any:
    return schema.ModelT.InitFromPackedBuf(data, 0)


def op_versions(data: bytes) -> set[tuple[str, int]]:
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    return {(names[code.builtinCode], code.version) for code in file_of(data).operatorCodes}


@pytest.fixture
def small(model) -> onnx.ModelProto:
    """A convolutional network with each kind of weights."""
    nodes = [
        helper.make_node("Conv", ["images", "w1", "b1"], ["c1"], strides=[2, 2], pads=[1, 1, 1, 1], name="stem"),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], group=16, dilations=[2, 2], pads=[2, 2, 2, 2]),
        helper.make_node("Sigmoid", ["c2"], ["s2"]),
        helper.make_node("Mul", ["c2", "s2"], ["m2"]),
        helper.make_node("Conv", ["m2", "w3"], ["grid"], group=2),
        helper.make_node("GlobalAveragePool", ["grid"], ["p3"]),
        helper.make_node("Flatten", ["p3"], ["f3"]),
        helper.make_node("Gemm", ["f3", "w4", "b4"], ["logits"], transB=1),
    ]
    constants = {
        "w1": weights(16, 3, 3, 3),
        "b1": weights(16),
        "w2": weights(16, 1, 3, 3),
        "w3": weights(32, 8, 1, 1),
        "w4": weights(64, 32),
        "b4": weights(64),
    }
    return model(nodes, {"images": (1, 3, 32, 40)}, ["grid", "logits"], constants)


# Whole networks


@pytest.mark.parametrize("batch", [1, 4])
def test_the_demo_appearance_model(agrees, demo_dir, batch):
    """The dynamic batch of the file is pinned. Outputs are of order 10 behind some 40 layers, hence 1e-5 of that each."""
    converted = agrees(pinned(demo_dir / "osnet_x0_25.onnx", batch), atol=2e-4)
    assert converted.inputs == (TensorInfo("images", (batch, 256, 128, 3), "float32", "NHWC"),)
    assert converted.outputs == (TensorInfo("output", (batch, 512), "float32", ""),)
    assert ("TRANSPOSE", 1) not in op_versions(converted.data)


def test_an_appearance_model_with_a_fixed_batch(agrees, shared):
    converted = agrees(onnx.load(shared / "weights" / "osnet_x0_25_msmt17_b1.onnx"), atol=2e-4)
    assert ("TRANSPOSE", 1) not in op_versions(converted.data)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_demo_detector_from_its_checkpoint(run_tflite, reference, demo_dir, precision):
    """In fp16 the graph holds float16 weights behind Casts, so that both engines compute with the same rounded weights."""
    converted = prepare(demo_dir / "yolov5n.pt", image_size=320, precision=precision)
    model = onnx.load_model_from_string(converted.graph)
    tflite = to_tflite(model, "fp16" if precision == "fp16" else "fp32")
    feeds = images(1, 3, 320, 320)
    for got, want in zip(run_tflite(tflite, feeds), reference(model, feeds), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-4)
    assert ("TRANSPOSE", 1) not in op_versions(tflite.data)


def yolov5_head(shared: Path) -> onnx.ModelProto:
    """The reference's export cut at the three convolutions of its head."""
    model = onnx.shape_inference.infer_shapes(onnx.load(shared / "weights" / "yolov5n_640.onnx"))
    heads = [f"/model.24/m.{index}/Conv_output_0" for index in range(3)]
    return onnx.utils.Extractor(model).extract_model(["images"], heads)


def test_yolov5_up_to_its_head(agrees, shared):
    converted = agrees(yolov5_head(shared), atol=2e-4)
    assert [info.shape for info in converted.outputs] == [(1, 80, 80, 255), (1, 40, 40, 255), (1, 20, 20, 255)]
    assert ("TRANSPOSE", 1) not in op_versions(converted.data)


def test_yolov5_with_its_decoding(agrees, shared):
    """Boxes are in pixels, up to 640 and more."""
    agrees(onnx.load(shared / "weights" / "yolov5n_640.onnx"), atol=2e-4, rtol=1e-4)


# float16


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its filters and matrices, not its biases, rounded to float16."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for tensor in result.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.ndim < 2:
            continue
        tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float16).astype(np.float32), tensor.name))
    return result


def images(*shape: int) -> dict[str, Any]:
    return {"images": np.random.default_rng(3).random(shape, np.float32)}


def test_float16_computes_in_float32_with_rounded_weights(small, run_tflite, reference):
    feeds = images(1, 3, 32, 40)
    converted = to_tflite(small, "fp16")
    assert {info.dtype for info in converted.inputs + converted.outputs} == {"float32"}
    for got, want in zip(run_tflite(converted, feeds), reference(rounded(small), feeds), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)


def test_float16_yolov5_computes_with_rounded_weights_and_halves_the_file(run_tflite, reference, shared):
    head, feeds = yolov5_head(shared), images(1, 3, 640, 640)
    converted = to_tflite(head, "fp16")
    assert len(converted.data) < 0.52 * len(to_tflite(head).data)
    initializers = {tensor.name for tensor in head.graph.initializer}
    assert all(name in initializers for node in head.graph.node if node.op_type == "Conv" for name in node.input[1:])
    for got, want in zip(run_tflite(converted, feeds), reference(rounded(head), feeds), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-4)


def test_float16_stores_every_filter_and_matrix_as_float16(small):
    tensors = file_of(to_tflite(small, "fp16").data).subgraphs[0].tensors
    narrow = sorted(tuple(t.shape) for t in tensors if t.type == schema.TensorType.FLOAT16)
    assert narrow == [(1, 3, 3, 16), (16, 3, 3, 3), (32, 1, 1, 8), (64, 32)]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_weights_that_two_operators_use_are_stored_once(model, run_tflite, reference, precision):
    nodes = [helper.make_node("Conv", [name, "w"], [f"y{name}"]) for name in ("images", "other")]
    inputs = {"images": (1, 32, 8, 8), "other": (1, 32, 4, 4)}
    graph = model(nodes, inputs, ["yimages", "yother"], {"w": weights(32, 32, 3, 3)})
    converted = to_tflite(graph, precision)
    assert len(converted.data) < 1.3 * 32 * 32 * 9 * (2 if precision == "fp16" else 4)
    feeds = images(1, 32, 8, 8) | {"other": images(1, 32, 4, 4)["images"]}
    # The weights, of order 0.2, are rounded to 2^-11 of that in fp16; a sum has 288 terms.
    for got, want in zip(run_tflite(converted, feeds), reference(graph, feeds), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5 if precision == "fp32" else 1e-2)


def test_weights_beyond_float16_stay_float32(model, run_tflite, reference):
    graph = model([helper.make_node("Conv", ["images", "w"], ["y"])], {"images": (1, 2, 4, 4)}, ["y"])
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.full((3, 2, 1, 1), 7e4, np.float32), "w"))
    feeds = images(1, 2, 4, 4)
    np.testing.assert_allclose(run_tflite(to_tflite(graph, "fp16"), feeds)[0], reference(graph, feeds)[0], rtol=1e-5)


def test_float16_initializers_that_a_cast_widens_are_weights(model, agrees):
    nodes = [
        helper.make_node("Cast", ["w16"], ["w"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Cast", ["b16"], ["b"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Conv", ["x", "w", "b"], ["y"]),
    ]
    constants = {"w16": weights(40, 8, 3, 3).astype(np.float16), "b16": weights(40).astype(np.float16)}
    graph = model(nodes, {"x": (1, 8, 6, 6)}, ["y"], constants)
    assert op_versions(agrees(graph).data) == {("CONV_2D", 1)}
    narrow = [
        t for t in file_of(to_tflite(graph, "fp16").data).subgraphs[0].tensors if t.type == schema.TensorType.FLOAT16
    ]
    stored = file_of(to_tflite(graph, "fp16").data).buffers
    assert [tuple(t.shape) for t in narrow] == [(40, 3, 3, 8)]
    expected = np.ascontiguousarray(constants["w16"].transpose(0, 2, 3, 1))
    assert stored[narrow[0].buffer].data.tobytes() == expected.tobytes()


def test_an_unknown_precision_is_refused(small):
    with pytest.raises(ValueError, match="precision: 'int8'"):
        to_tflite(small, "int8")  # type: ignore[arg-type]  # the error is what is tested


# The file


def test_file_header_alignment_and_signature(small):
    data = to_tflite(small).data
    assert data[4:8] == b"TFL3"
    file = file_of(data)
    assert file.version == 3
    base = np.frombuffer(data, np.uint8)
    root = schema.Model.GetRootAs(data)
    offsets = [
        int(array.__array_interface__["data"][0] - base.__array_interface__["data"][0])
        for array in (root.Buffers(i).DataAsNumpy() for i in range(root.BuffersLength()))
        if isinstance(array, np.ndarray)
    ]
    assert len(offsets) > 5
    assert all(offset % 64 == 0 for offset in offsets)
    interpreter = Interpreter(model_content=data)
    assert interpreter.get_signature_list() == {
        "serving_default": {"inputs": ["images"], "outputs": ["grid", "logits"]}
    }
    names = [tensor.name for tensor in file.subgraphs[0].tensors]
    assert len(names) == len(set(names))


def test_operator_versions_are_those_that_the_forms_need(small):
    """Source: tensorflow/lite/tools/versioning/op_version.cc."""
    expected = {
        ("CONV_2D", 1),
        ("CONV_2D", 6),  # in groups
        ("DEPTHWISE_CONV_2D", 2),  # dilated
        *((op, 1) for op in ("LOGISTIC", "MUL", "MEAN", "RESHAPE", "FULLY_CONNECTED", "PAD")),
    }
    assert op_versions(to_tflite(small).data) == expected
    assert op_versions(to_tflite(small, "fp16").data) == expected | {("DEQUANTIZE", 3)}  # of float16


def test_the_same_model_gives_the_same_bytes_in_every_process(small, tmp_path):
    path = tmp_path / "small.onnx"
    onnx.save(small, path)
    program = (
        "import hashlib, onnx, sys; from pyasc.models.tflite.writer import to_tflite; "
        "print(hashlib.sha256(to_tflite(onnx.load(sys.argv[1]), 'fp16').data).hexdigest())"
    )
    command = [sys.executable, "-c", program, str(path)]
    other = subprocess.run(
        command, env={"PYTHONHASHSEED": "77"}, check=True, capture_output=True, text=True, timeout=60
    )
    assert other.stdout.strip() == hashlib.sha256(to_tflite(small, "fp16").data).hexdigest()


# What is refused


def refused(error: type[PyascError], pattern: str, graph: onnx.ModelProto) -> None:
    with pytest.raises(error, match=pattern) as caught:
        to_tflite(graph)
    assert "\n" not in str(caught.value)


def test_unknown_operators_are_named_with_their_node(model):
    node = helper.make_node("NonMaxSuppression", ["a", "b"], ["y"], name="nms_1")
    refused(
        UnsupportedOperatorError, "NonMaxSuppression 'nms_1'", model([node], {"a": (1, 5, 4), "b": (1, 2, 5)}, ["y"])
    )
    node = helper.make_node("Fused", ["x"], ["y"], name="f", domain="com.example")
    refused(UnsupportedOperatorError, "com.example.Fused 'f'", model([node], {"x": (1, 2)}, ["y"]))
    node = helper.make_node("NoSuchThing", ["x"], ["y"])
    refused(UnsupportedOperatorError, "NoSuchThing 'y'", model([node], {"x": (1, 2)}, ["y"]))


def test_an_unsupported_operator_that_no_output_needs_is_no_obstacle(model, agrees):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Det", ["x"], ["z"])]
    agrees(model(nodes, {"x": (1, 3, 4, 4)}, ["y"]))


def test_sizes_that_are_not_fixed_are_named(demo_dir, model):
    refused(
        ConversionError, r"'images' has the shape \['batch', 3, 256, 128\]", onnx.load(demo_dir / "osnet_x0_25.onnx")
    )
    relu = helper.make_node("Relu", ["x"], ["y"])
    refused(ConversionError, r"'x' has the shape \[1, 0\]", model([relu], {"x": (1, 0)}, ["y"]))
    refused(ConversionError, r"'x' has the shape \[1, -5\]", model([relu], {"x": (1, -5)}, ["y"]))
    refused(ConversionError, "too large", model([relu], {"x": (1, 1 << 40)}, ["y"]))


def test_other_types_than_float32_are_refused(model):
    graph = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, 4)}, ["y"], opset=14)
    graph.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    refused(UnsupportedOperatorError, "'x' is int32", graph)
    cast = helper.make_node("Cast", ["x"], ["y"], name="c", to=onnx.TensorProto.INT64)
    refused(UnsupportedOperatorError, "Cast 'c': 'y' is int64", model([cast], {"x": (1, 4)}, ["y"]))


def test_graphs_that_do_not_hold_together_are_refused(model):
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="c")
    inputs: dict[str, Any] = {"x": (1, 3, 8, 8)}
    refused(UnsupportedOperatorError, "Conv 'c'.*3 channels", model([conv], inputs, ["y"], {"w": weights(4, 2, 3, 3)}))
    refused(
        ConversionError,
        r"Conv 'c': 'y' has the shape \[1, 4, 0, 0\]",
        model([conv], {"x": (1, 3, 2, 2)}, ["y"], {"w": weights(4, 3, 3, 3)}),
    )
    refused(ConversionError, "reads 'w'", model([conv], inputs, ["y"]))
    refused(ConversionError, "'q'", model([conv], inputs, ["q"], {"w": weights(4, 3, 3, 3)}))
    twice = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"])]
    refused(ConversionError, "'y', which exists", model(twice, inputs, ["y"]))
    loop = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    refused(ConversionError, "reads 'b'", model(loop, inputs, ["b"]))
    shape = helper.make_node("Reshape", ["x", "s"], ["y"], name="r")
    refused(PyascError, "Reshape 'r'", model([shape], inputs, ["y"], {"s": ints(5, 7)}))
    refused(ConversionError, "opset 6", model([helper.make_node("Relu", ["x"], ["y"])], inputs, ["y"], opset=6))


def test_weights_in_other_files_are_refused(small):
    small.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    small.graph.initializer[0].external_data.add(key="location", value="../../etc/passwd")
    refused(ConversionError, "'w1' is stored in another file", small)


@pytest.mark.parametrize("bomb", ["fill", "double"])
def test_constants_that_grow_without_bounds_are_refused(model, bomb):
    """A terabyte from a few bytes, at once and by doubling."""
    if bomb == "fill":
        nodes = [helper.make_node("ConstantOfShape", ["size"], ["k"])]
        constants = {"size": ints(1 << 20, 1 << 20)}
    else:
        names = ["size", *(f"k{i}" for i in range(40)), "k"]
        nodes = [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in itertools.pairwise(names)]
        constants = {"size": np.zeros(8, np.float32)}
    nodes.append(helper.make_node("Add", ["x", "k"], ["y"]))
    refused(ConversionError, "grow beyond all measure", model(nodes, {"x": (1,)}, ["y"], constants))


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_models_end_in_one_clear_error_or_in_a_model(small, data):
    bytes_ = bytearray(small.SerializeToString())
    # The first two kilobytes hold the nodes; most of the rest is weights.
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, 700))
        bytes_[place] = data.draw(st.integers(0, 255))
    try:
        damaged = onnx.ModelProto.FromString(bytes(bytes_))
    except DecodeError:
        assume(False)
    try:
        result = to_tflite(damaged).data[4:8].decode()
    except PyascError as error:
        result = str(error)
    assert result == "TFL3" or (len(result) > 10 and "\n" not in result)


@pytest.mark.parametrize("size", [1 << 31, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize(
    ("op", "attributes", "kernel"),
    [
        ("Conv", {"strides": [None, 1]}, (4, 3, 3, 3)),
        ("Conv", {"dilations": [None, None]}, (4, 3, 1, 1)),
        ("Conv", {"dilations": [None, None], "group": 3}, (3, 1, 1, 1)),
        ("MaxPool", {"kernel_shape": [1, 1], "strides": [None, None]}, None),
        ("AveragePool", {"kernel_shape": [1, 1], "strides": [None, None]}, None),
    ],
    ids=["stride", "dilation", "depthwise", "max", "average"],
)
def test_attributes_beyond_the_32_bits_of_the_file_are_refused(model, op, attributes, kernel, size):
    values = {
        key: value if isinstance(value, int) else [size if number is None else number for number in value]
        for key, value in attributes.items()
    }
    constants = {} if kernel is None else {"w": weights(*kernel)}
    graph = model(
        [helper.make_node(op, ["x", *constants], ["y"], name="huge", **values)],
        {"x": (1, 3, 4, 4)},
        ["y"],
        constants,
        11,
    )
    with pytest.raises(ConversionError, match=f"{op} 'huge': {size} does not fit into the 32 bits"):
        to_tflite(graph)


def test_constants_beyond_the_32_bits_of_the_file_are_refused(model):
    constants = {"from": ints(0), "to": ints(1 << 40), "axis": ints(2), "step": ints(1 << 40)}
    graph = model(
        [helper.make_node("Slice", ["x", *constants], ["y"], name="huge")], {"x": (1, 3, 4, 4)}, ["y"], constants
    )
    with pytest.raises(ConversionError, match="Slice 'huge': 1099511627776 does not fit"):
        to_tflite(graph)


def test_padding_that_only_fills_memory_is_refused(model):
    """The result is small; what the windows slide over would not be."""
    pads, strides = [1 << 20] * 4, [1 << 19] * 2
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="huge", pads=pads, strides=strides)
    graph = model([node], {"x": (1, 3, 4, 4)}, ["y"], {"w": weights(4, 3, 3, 3)})
    with pytest.raises(ConversionError, match="Conv 'huge': PAD would make"):
        to_tflite(graph)
