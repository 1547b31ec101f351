"""Runs a graph in ONNX Runtime and its conversion in every TFLite engine that is installed, and compares.

Each engine runs twice: with XNNPACK, which takes most operators, and with its own kernels alone, which have to take them on a box
without XNNPACK. With NumPy 2 there is ai-edge-litert only: tflite-runtime 2.14 needs NumPy 1. CI runs this folder a second time in
an environment with NumPy 1 and both.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper

from pyasc.hal.tflite_check import check_tflite
from pyasc.models.tflite.writer import TfliteModel, to_tflite

Array = NDArray[Any]
Runner = Callable[[TfliteModel, Mapping[str, Array]], list[Array]]

ENGINES = ["ai_edge_litert", "ai_edge_litert-plain"]
if importlib.util.find_spec("tflite_runtime") is not None and np.__version__.startswith("1."):
    ENGINES += ["tflite_runtime", "tflite_runtime-plain"]


@pytest.fixture(params=ENGINES)
def run_tflite(request: pytest.FixtureRequest) -> Runner:
    """Runs a conversion on inputs in ONNX's layout; returns outputs in ONNX's layout, the model's names and shapes checked."""
    package, _, plain = request.param.partition("-")
    engine = importlib.import_module(f"{package}.interpreter")
    kinds = engine.OpResolverType
    kernels = kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES if plain else kinds.AUTO

    def run(converted: TfliteModel, feeds: Mapping[str, Array]) -> list[Array]:
        check_tflite(converted.data, "converted")  # as the cpu driver does before it loads a file
        interpreter = engine.Interpreter(
            model_content=converted.data, num_threads=1, experimental_op_resolver_type=kernels
        )
        interpreter.allocate_tensors()
        details = interpreter.get_input_details()
        assert [d["name"] for d in details] == [info.name for info in converted.inputs]
        for detail, info in zip(details, converted.inputs, strict=True):
            assert tuple(detail["shape"]) == info.shape
            feed = feeds[info.name]
            interpreter.set_tensor(detail["index"], feed.transpose(0, 2, 3, 1) if info.layout == "NHWC" else feed)
        interpreter.invoke()
        results = []
        details = interpreter.get_output_details()
        assert [d["name"] for d in details] == [info.name for info in converted.outputs]
        for detail, info in zip(details, converted.outputs, strict=True):
            result = interpreter.get_tensor(detail["index"])
            assert result.shape == info.shape
            assert result.dtype == info.dtype
            results.append(result.transpose(0, 3, 1, 2) if info.layout == "NHWC" else result)
        return results

    return run


def run_onnx(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    opset: int = 13,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, ir_version=7, opset_imports=[helper.make_opsetid("", opset)])


def random_feeds(model: onnx.ModelProto) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    known = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in model.graph.input
        if value.name not in known
    }


@pytest.fixture
def model() -> Callable[..., onnx.ModelProto]:
    """`make_model`, for the test modules of this folder."""
    return make_model


@pytest.fixture
def reference() -> Callable[..., list[Array]]:
    """`run_onnx`, for the test modules of this folder."""
    return run_onnx


@pytest.fixture
def agrees(run_tflite: Runner) -> Callable[..., TfliteModel]:
    """Converts a model, compares all outputs with ONNX Runtime's on random inputs, and returns the conversion.

    The default tolerance: both engines compute in float32 and differ in the order of sums; over the up to some hundred terms of
    order 1 that these graphs add, that is below 1e-5 each way, and the approximations of exp and tanh stay below it as well.
    """

    def check(
        model: onnx.ModelProto, atol: float = 2e-5, rtol: float = 2e-5, feeds: dict[str, Array] | None = None
    ) -> TfliteModel:
        feeds = feeds or random_feeds(model)
        converted = to_tflite(model)
        expected = run_onnx(model, feeds)
        for name, got, want in zip(model.graph.output, run_tflite(converted, feeds), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol, atol, err_msg=name.name)
        return converted

    return check
