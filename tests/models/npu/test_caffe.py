"""Caffe networks: every layer that we write computes what ONNX Runtime computes, in readers of Caffe that are not ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from pyasc.errors import UnsupportedOperatorError
from pyasc.models.npu.caffe import NAME_LENGTH, CaffeNetwork, to_caffe
from pyasc.models.npu.caffe_proto import caffemodel, prototxt
from pyasc.models.npu.layers import lower
from pyasc.models.tflite.fuse import fuse
from pyasc.models.tflite.graph import Graph, read_graph

Run = Callable[[str, bytes, Mapping[str, Any]], dict[str, Any]]
Read = Callable[[str, bytes], Any]


def model(nodes: str, constants: Mapping[str, Any], x: str = "1,4,9,8", outputs: str = "y") -> onnx.ModelProto:
    """Nodes in ONNX's text form; a constant given by its shape has random numbers."""
    rng = np.random.default_rng(5)
    results = ", ".join(f"float {name}" for name in outputs.split())
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 14]> g (float[{x}] x) => ({results}) {{{nodes}}}'
    )
    for name, value in constants.items():
        array = rng.standard_normal(value).astype(np.float32) if isinstance(value, tuple) else np.asarray(value)
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


def emit(made: onnx.ModelProto) -> tuple[Graph, CaffeNetwork]:
    graph = read_graph(made, {node.op_type for node in made.graph.node})
    fuse(graph)
    layers, refusals = lower(graph)
    assert refusals == []
    return graph, to_caffe(layers, graph.shapes, graph.inputs, graph.outputs)


def types(network: CaffeNetwork) -> list[str]:
    return [layer.type for layer in network.layers[1:]]


W, B = {"w": (6, 4, 3, 3)}, {"b": (6,)}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "convolution": ("y = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w, b)", W | B, "Convolution"),
    "no bias": ("y = Conv(x, w)", W, "Convolution"),
    "uneven window": ("y = Conv<pads=[0,2,0,2], strides=[1,2]>(x, w)", {"w": (6, 4, 1, 5)}, "Convolution"),
    "dilated": ("y = Conv<pads=[2,2,2,2], dilations=[2,2]>(x, w)", W, "Convolution"),
    "grouped": ("y = Conv<group=2>(x, w, b)", {"w": (6, 2, 3, 3)} | B, "Convolution"),
    "depthwise": ("y = Conv<group=4, pads=[1,1,1,1]>(x, w)", {"w": (4, 1, 3, 3)}, "Convolution"),
    "border below only": ("y = Conv<pads=[0,0,1,1], strides=[2,2]>(x, w)", W, "Convolution"),
    "wide border below": ("y = Conv<pads=[0,1,4,3], dilations=[2,1]>(x, w)", W, "Convolution"),
    "border above only": ("y = Conv<pads=[2,1,0,0]>(x, w)", W, "Convolution"),
    "same upper": ('y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)', {"w": (6, 4, 4, 4)}, "Convolution"),
    "same lower": ('y = Conv<auto_pad="SAME_LOWER">(x, w)', {"w": (6, 4, 2, 2)}, "Convolution"),
    "max pool": ("y = MaxPool<kernel_shape=[5,5], pads=[2,2,2,2]>(x)", {}, "Pooling"),
    "pool rounded up": ("y = MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)", {}, "Pooling"),
    "pool rounded down": ("y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)", {}, "Pooling Convolution"),
    "pool as in ResNet": (
        "y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)",
        {},
        "Pooling Convolution",
    ),
    "pool with border below": ("y = MaxPool<kernel_shape=[3,2], strides=[2,2], pads=[0,0,1,0]>(x)", {}, "Pooling"),
    "mean": ("y = AveragePool<kernel_shape=[3,2], strides=[2,2]>(x)", {}, "Pooling"),
    "mean rounded up": ("y = AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)", {}, "Pooling"),
    "mean rounded down": ("y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)", {}, "Convolution"),
    "mean with its border": (
        "y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x)",
        {},
        "Pooling",
    ),
    "mean with a border below": (
        "y = AveragePool<kernel_shape=[3,3], pads=[0,0,1,1], count_include_pad=1>(x)",
        {},
        "Convolution",
    ),
    "global mean": ("y = GlobalAveragePool(x)", {}, "Pooling"),
    "global maximum": ("y = GlobalMaxPool(x)", {}, "Pooling"),
    "mean without axes": ("y = ReduceMean<axes=[2,3], keepdims=0>(x)", {}, "Pooling Flatten"),
    "sum": ("a = Relu(x) b = Tanh(x) y = Add(a, b)", {}, "ReLU TanH Eltwise"),
    "sum of three": ("a = Relu(x) b = Tanh(x) y = Sum(a, x, b)", {}, "ReLU TanH Eltwise"),
    "product": ("a = Sigmoid(x) b = Tanh(x) y = Mul(a, b)", {}, "Sigmoid TanH Eltwise"),
    "gate of each channel": (
        "a = GlobalAveragePool(x) b = Sigmoid(a) y = Mul(b, x)",
        {},
        "Pooling Sigmoid Flatten Scale",
    ),
    "concatenation": ("a = Relu(x) y = Concat<axis=1>(x, a, x)", {}, "ReLU Concat"),
    "enlarged": (
        'y = Resize<coordinate_transformation_mode="asymmetric", mode="nearest", nearest_mode="floor">(x, , s)',
        {"s": np.array([1, 1, 2, 2], np.float32)},
        "Deconvolution",
    ),
    "enlarged unevenly": (
        'y = Resize<coordinate_transformation_mode="asymmetric", mode="nearest", nearest_mode="floor">(x, , s)',
        {"s": np.array([1, 1, 3, 2], np.float32)},
        "Deconvolution",
    ),
    "relu": ("y = Relu(x)", {}, "ReLU"),
    "leaky": ("y = LeakyRelu<alpha=0.1>(x)", {}, "ReLU"),
    "slope": ("y = PRelu(x, s)", {"s": np.array([0.25], np.float32)}, "ReLU"),
    "sigmoid": ("y = Sigmoid(x)", {}, "Sigmoid"),
    "tanh": ("y = Tanh(x)", {}, "TanH"),
    "silu": ("a = Sigmoid(x) y = Mul(x, a)", {}, "Sigmoid Eltwise"),
    "silu after a convolution": ("a = Conv(x, w) s = Sigmoid(a) y = Mul(a, s)", W, "Convolution Sigmoid Eltwise"),
    "relu6": ("y = Clip(x, l, h)", {"l": np.float32(0), "h": np.float32(1.5)}, "ReLU Scale ReLU Scale"),
    "clip": ("y = Clip(x, l, h)", {"l": np.float32(-0.5), "h": np.float32(0.7)}, "Scale ReLU Scale ReLU Scale"),
    "clip below": ("y = Clip(x, l)", {"l": np.float32(-0.5)}, "Scale ReLU Scale"),
    "clip above": ("y = Clip(x, , h)", {"h": np.float32(0.5)}, "Scale ReLU Scale"),
    "hard sigmoid": ("y = HardSigmoid<alpha=0.3, beta=0.4>(x)", {}, "Scale ReLU Scale ReLU Scale"),
    "hard swish": ("y = HardSwish(x)", {}, "Scale ReLU Scale ReLU Scale Eltwise"),
    "factor of each channel": ("y = Mul(x, c)", {"c": (1, 4, 1, 1)}, "Scale"),
    "offset": ("y = Add(x, c)", {"c": np.float32(0.5)}, "Scale"),
    "normalisation": (
        "y = BatchNormalization(x, s, c, m, v)",
        {"s": (4,), "c": (4,), "m": (4,), "v": np.array([1, 2, 3, 0.5], np.float32)},
        "Scale",
    ),
    "matrix": ("a = Flatten(x) y = Gemm<transB=1>(a, m, b)", {"m": (6, 288)} | B, "InnerProduct"),
    "matrices": (
        "a = GlobalAveragePool(x) f = Flatten(a) h = MatMul(f, m) r = Relu(h) y = MatMul(r, n)",
        {"m": (4, 5), "n": (5, 3)},
        "Pooling InnerProduct ReLU InnerProduct",
    ),
    "vector normalised": (
        "a = GlobalAveragePool(x) f = Flatten(a) h = MatMul(f, m) y = BatchNormalization(h, s, c, n, v)",
        {"m": (4, 3), "s": (3,), "c": (3,), "n": (3,), "v": np.array([1, 2, 3], np.float32)},
        "Pooling InnerProduct Scale",
    ),
    "vector": ("a = GlobalAveragePool(x) y = Flatten(a)", {}, "Pooling Flatten"),
    "vector with activation": ("a = GlobalAveragePool(x) f = Flatten(a) y = Relu(f)", {}, "Pooling Flatten ReLU"),
    "space to depth": (
        "p = Conv(x, w) y = SpaceToDepth<blocksize=2>(p)",
        {"w": (4, 4, 4, 3)},
        "Convolution Convolution",
    ),
    "nothing": ("a = Identity(x) y = Relu(a)", {}, "ReLU"),
    "only a copy": ("y = Identity(x)", {}, "Scale"),
}


@pytest.mark.parametrize("case", CASES)
def test_layer_computes_what_onnx_runtime_computes(case: str, run_caffe: Run) -> None:
    nodes, constants, expected = CASES[case]
    made = model(nodes, constants)
    _, network = emit(made)
    assert types(network) == expected.split()
    x = np.random.default_rng(1).standard_normal((1, 4, 9, 8)).astype(np.float32)
    [wanted] = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    tops = run_caffe(prototxt("n", network.layers), caffemodel("n", network.layers), {network.inputs[0].node: x})
    [output] = network.outputs
    assert tops[output.node].shape[1:] == output.shape == wanted.shape[1:]
    np.testing.assert_allclose(tops[output.node], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "constants", "x", "named"),
    [
        ("y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)", {}, "1,4,9,8", "y: .* leaves out the border"),
        ("y = MaxPool<kernel_shape=[2,2], pads=[0,0,1,1]>(x)", {}, "1,4,9,8", "y: Caffe has no pool with a border"),
        ("y = Conv<pads=[0,0,3,0], dilations=[2,1]>(x, w)", W, "1,4,9,8", "y: Caffe has no border that gives 8 of 9"),
        ("y = Conv(x, w)", {"w": (2, 4, 256, 1)}, "1,4,300,8", "y: a window of 256 x 1 .* takes 255"),
        ("y = Conv<group=2304>(x, w)", {"w": (2304, 1, 3, 3)}, "1,2304,4,4", "y: 2304 groups; the mapper takes 2048"),
    ],
)
def test_what_caffe_cannot_say_is_refused_by_name(nodes: str, constants: dict[str, Any], x: str, named: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=f"^{named}"):
        emit(model(nodes, constants, x))


def test_results_come_in_the_order_of_the_layers_and_inner_ones_are_reported(read_caffe: Read) -> None:
    _, network = emit(model("a = Relu(x) b = Tanh(a) c = Sigmoid(x)", {}, outputs="c b a"))
    assert [(blob.value, blob.node) for blob in network.outputs] == [("a", "a_report"), ("b", "b"), ("c", "c")]
    net = read_caffe(prototxt("n", network.layers), caffemodel("n", network.layers))
    assert [(layer.type, *layer.bottom, *layer.top) for layer in net.layer] == [
        ("Input", "x"),
        ("ReLU", "x", "a_report"),
        ("TanH", "a_report", "b"),
        ("Sigmoid", "x", "c"),
    ]


def test_names_are_short_different_and_steer_nothing() -> None:
    long = "/model.24/very/long/name/of/a/layer/conv"
    names = [f"{long}.{k}/Conv_output_0" for k in range(3)] + [
        "detect_cpu",
        "DETECT_CPU",
        "first_hp",
        "a_report",
        "/",
        "é",
    ]
    made = model("y = Relu(x)", {}, outputs="y")
    del made.graph.node[:], made.graph.output[:]
    for name in names:
        made.graph.node.append(onnx.helper.make_node("Relu", ["x"], [name]))
        made.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    _, network = emit(made)
    made_names = [layer.name for layer in network.layers]
    assert len({name.lower()[:NAME_LENGTH] for name in made_names}) == len(names) + 1
    assert max(map(len, made_names)) == NAME_LENGTH
    assert all(name.isascii() and name.replace("_", "a").isalnum() for name in made_names)
    assert not any(name.lower().endswith(("_cpu", "_hp", "_report")) for name in made_names)
    assert [blob.value for blob in network.outputs] == names
