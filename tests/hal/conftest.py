"""Small models as programs, and waiting for a condition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyasc.hal.base import Program, TensorInfo

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
_PICTURE = (1, 8, 8, 3)
# Name of a model in tests/golden to shapes of its inputs and outputs; written by make_device_models.py there.
_TABLES: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = {
    "relu": ({"x": (1, 4)}, {"y": (1, 4)}),
    "custom": ({"x": (1, 4)}, {"y": (1, 4)}),
    "external": ({"x": (1, 4)}, {"y": (1, 4)}),
    "mixing": ({"x": (1, 4)}, {"y": (1, 4)}),
    "two_heads": ({"picture": _PICTURE, "bias": _PICTURE}, {"sum": _PICTURE, "flat": (1, 192)}),
    "convs": ({"x": (1, 256, 256, 16)}, {"y": (1, 256, 256, 16)}),
}
_CONVS_NCHW = (1, 16, 256, 256)

MakeProgram = Callable[[str, str], Program]


def _tensors(shapes: dict[str, tuple[int, ...]]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name, shape, "float32") for name, shape in shapes.items())


@pytest.fixture
def program() -> MakeProgram:
    """`program("relu", "tflite")`: a model of tests/golden."""

    def make(name: str, format_: str) -> Program:
        inputs, outputs = _TABLES[name]
        if (name, format_) == ("convs", "onnx"):
            inputs, outputs = {"x": _CONVS_NCHW}, {"y": _CONVS_NCHW}
        data = memoryview((GOLDEN / f"{name}.{format_}").read_bytes())
        return Program(name, format_, data, _tensors(inputs), _tensors(outputs))

    return make


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """`wait_until(condition)`: return when it holds, fail after 30 s."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come to hold"
            pause.wait(0.002)

    return wait
