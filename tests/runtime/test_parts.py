"""A model in parts computes what it computes whole."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper

from pyasc.errors import DeviceTimeoutError, ModelFormatError
from pyasc.hal.base import Executable, Program, TensorInfo
from pyasc.hal.registry import open_device
from pyasc.models.npu.extract import extract
from pyasc.models.tflite.writer import to_tflite
from pyasc.runtime.parts import PartsExecutable
from pyasc.runtime.values import convert

SHAPE = (1, 4, 8, 8)
SHAPES = dict.fromkeys("xaby", SHAPE)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """The convolution a of x, its softmax b, and y = a + b."""
    weights = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=1),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    ends = [[helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, SHAPE)] for name in "xy"]
    graph = helper.make_graph(nodes, "test", *ends, [onnx.numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])


@pytest.fixture
def parts(model: onnx.ModelProto) -> Iterator[tuple[list[Executable], contextlib.ExitStack]]:
    """Its three nodes, each loaded by itself."""
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(open_device("cpu"))
        loaded: list[Executable] = []
        for inputs, outputs in (("x", "a"), ("a", "b"), ("ab", "y")):
            made = to_tflite(extract(model, list(inputs), list(outputs), SHAPES))
            program = Program(outputs, "tflite", memoryview(made.data), made.inputs, made.outputs)
            loaded.append(stack.enter_context(device.load(program, threads=1)))
        yield loaded, stack


def nhwc(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1))


def test_the_parts_together_give_what_the_whole_gives(
    model: onnx.ModelProto, parts: tuple[list[Executable], contextlib.ExitStack]
) -> None:
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    [wanted] = session.run(None, {"x": x})
    with PartsExecutable("cpu", parts[0], ["x"], ["y"], parts[1]) as executable:
        assert [tensor.shape for tensor in (*executable.inputs, *executable.outputs)] == [(1, 8, 8, 4)] * 2
        for _ in range(2):
            [y] = executable.run([nhwc(x)])
            np.testing.assert_allclose(y, nhwc(wanted), rtol=1e-5, atol=1e-6)
        with pytest.raises(ValueError, match="input x"):
            executable.run([x])
        with pytest.raises(DeviceTimeoutError, match="longer than 0 s"):
            executable.run([nhwc(x)], timeout_s=0)
    with pytest.raises(ValueError, match="closed"):
        executable.run([nhwc(x)])


@pytest.mark.parametrize(
    ("device", "first", "inputs", "outputs", "message"),
    [
        ("cpu", 0, ["x"], ["z"], "no part makes z"),
        ("cpu", 0, ["x", "z"], ["y"], "no part reads z"),
        ("cpu", 1, ["x"], ["y"], "nothing makes a, which a part on cpu reads"),
        ("hi3559", 0, ["x"], ["y"], "none of its parts runs on hi3559"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    parts: tuple[list[Executable], contextlib.ExitStack],
    device: str,
    first: int,
    inputs: list[str],
    outputs: list[str],
    message: str,
) -> None:
    with pytest.raises(ModelFormatError, match=message):
        PartsExecutable(device, parts[0][first:], inputs, outputs, contextlib.ExitStack())


REAL = TensorInfo("t", (1, 2, 1, 3), "float32", "NCHW")
FIXED = TensorInfo("t", (1, 2, 1, 3), "int32", "NCHW", 1 / 4096, 0)
BYTES = TensorInfo("t", (1, 1, 3, 2), "uint8", "NHWC", 0.5, 10)


def test_numbers_change_their_type_scale_and_layout() -> None:
    values = np.array([[[[0, 1, -5]], [[0.3, 200, 1e6]]]], np.float32)
    fixed = convert(values, REAL, FIXED)
    assert fixed.tolist() == [[[[0, 4096, -20480]], [[1229, 819200, 2**31 - 1]]]]
    # Bytes are x / 0.5 + 10, rounded and cut to 0..255; channels come last.
    assert convert(values, REAL, BYTES).tolist() == [[[[10, 11], [12, 255], [0, 255]]]]
    back = convert(fixed, FIXED, REAL)
    np.testing.assert_allclose(back[..., :2], values[..., :2], atol=1 / 8192)
    assert convert(values, REAL, dataclasses.replace(REAL, name="other")) is values
    assert convert(values, REAL, TensorInfo("t", (1, 6), "float16")).dtype == np.float16


def test_what_is_not_finite_is_stored_as_something() -> None:
    values = np.array([[[[np.nan, np.inf, -np.inf]]] * 2], np.float32).reshape(1, 2, 1, 3)
    assert convert(values, REAL, FIXED)[0, 0, 0].tolist() == [0, 2**31 - 1, -(2**31)]
