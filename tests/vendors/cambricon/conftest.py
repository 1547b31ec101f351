"""The simulated MLU220: its libraries, and a small network with what an independent evaluator makes of it."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from pyasc.hal.base import TensorInfo
from pyasc.models.npu.calibrate import observe
from pyasc.models.npu.cambricon import Function, Port, write_cambricon
from pyasc.models.npu.compiler import Compiled, compile_layers
from pyasc.models.npu.layers import Layer, lower, picture_shape
from pyasc.models.npu.program import Number
from pyasc.models.tflite.graph import read_graph
from pyasc.vendors.header import declarations

ROOT = Path(__file__).resolve().parents[3]
MLU220 = 2
THINGS = 8  # kinds that the simulator counts, and the blocks of device memory

SIZE = 24
_OPERATORS = ("Conv", "Relu", "Add", "MaxPool", "GlobalAveragePool", "Flatten", "Gemm", "Concat")


def network(seed: int = 7) -> onnx.ModelProto:
    """A picture of three channels to a map of 6 x 6 with 6 channels and a vector of 5."""
    rng = np.random.default_rng(seed)
    constants: list[Any] = []

    def weights(name: str, *shape: int) -> None:
        values = rng.normal(0, 1 / np.sqrt(np.prod(shape[1:]) or 1), shape)
        constants.append(numpy_helper.from_array(values.astype(np.float32), name))

    for name, shape in {"w0": (8, 3, 3, 3), "w1": (8, 8, 3, 3), "w2": (6, 16, 1, 1), "w3": (5, 16)}.items():
        weights(name, *shape)
        weights(f"b{name[1]}", shape[0])
    pads = [1, 1, 1, 1]
    nodes = [
        helper.make_node("Conv", ["images", "w0", "b0"], ["c0"], kernel_shape=[3, 3], strides=[2, 2], pads=pads),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], kernel_shape=[3, 3], pads=pads),
        helper.make_node("Add", ["r0", "c1"], ["sum"]),
        helper.make_node("MaxPool", ["sum"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("MaxPool", ["r0"], ["skip"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Concat", ["pool", "skip"], ["both"], axis=1),
        helper.make_node("Conv", ["both", "w2", "b2"], ["map"], kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["both"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["score"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [
            helper.make_tensor_value_info("map", TensorProto.FLOAT, [1, 6, SIZE // 4, SIZE // 4]),
            helper.make_tensor_value_info("score", TensorProto.FLOAT, [1, 5]),
        ],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return onnx.shape_inference.infer_shapes(model)


def pictures(count: int, seed: int = 3) -> NDArray[np.uint8]:
    """(count, 3, SIZE, SIZE), smooth enough to be one: noise with half the range and a slope."""
    rng = np.random.default_rng(seed)
    slope = np.linspace(0, 120, SIZE)[None, None, :, None]
    return np.asarray(rng.integers(0, 128, (count, 3, SIZE, SIZE)) + slope, np.uint8)


def reference(model: onnx.ModelProto, values: NDArray[np.uint8]) -> list[list[NDArray[np.float32]]]:
    """The graph's outputs for each picture, by ONNX's own evaluator in float32."""
    evaluator = ReferenceEvaluator(model)
    return [evaluator.run(None, {"images": picture[None].astype(np.float32) / 255}) for picture in values]


def rounded(model: onnx.ModelProto, compiled: Compiled, number: Number) -> onnx.ModelProto:
    """The graph with every value that is stored rounded as the program stores it, in operators of ONNX alone.

    Weights are rounded here, not taken from the program: one scale for each output channel, symmetric.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    for tensor in made.graph.initializer:
        if tensor.name[0] == "w":
            tensor.CopyFrom(
                numpy_helper.from_array(_rounded_weights(numpy_helper.to_array(tensor), number), tensor.name)
            )
    made.graph.node.extend(_rounding(made, "images", "images_", compiled))
    for node in model.graph.node:
        copy = made.graph.node.add()
        copy.CopyFrom(node)
        copy.input[:] = ["images_" if name == "images" else name for name in node.input]
        if node.output[0] in compiled.tensors:
            copy.output[0] += "_"
            made.graph.node.extend(_rounding(made, copy.output[0], node.output[0], compiled, node.output[0]))
    return made


def _rounded_weights(values: NDArray[np.float32], number: Number) -> NDArray[np.float32]:
    if number == "float16":
        return values.astype(np.float16).astype(np.float32)
    levels = 127 if number == "int8" else 32767
    scales = np.abs(values.reshape(len(values), -1)).max(1).reshape(-1, *[1] * (values.ndim - 1)) / levels
    return np.asarray(np.rint(values / scales) * scales, np.float32)


def _rounding(
    model: onnx.ModelProto, name: str, to: str, compiled: Compiled, key: str = "images"
) -> list[onnx.NodeProto]:
    tensor = compiled.tensors[key]
    if tensor.number == "float16":
        half = f"{to}.half"
        return [
            helper.make_node("Cast", [name], [half], to=TensorProto.FLOAT16),
            helper.make_node("Cast", [half], [to], to=TensorProto.FLOAT),
        ]
    low, high = (-128, 127) if tensor.number == "int8" else (-32767, 32767)
    constants = {"scale": tensor.scale, "low": low - tensor.zero, "high": high - tensor.zero}
    for constant, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), f"{to}.{constant}"))
    steps = [f"{to}.{step}" for step in ("divided", "whole", "kept")]
    return [
        helper.make_node("Div", [name, f"{to}.scale"], [steps[0]]),
        helper.make_node("Round", [steps[0]], [steps[1]]),
        helper.make_node("Clip", [steps[1], f"{to}.low", f"{to}.high"], [steps[2]]),
        helper.make_node("Mul", [steps[2], f"{to}.scale"], [to]),
    ]


@dataclass(frozen=True)
class Built:
    """A compiled function and the outputs' shapes, (C, H, W)."""

    function: Function
    compiled: Compiled
    outputs: list[tuple[int, int, int]]


def build(
    model: onnx.ModelProto,
    number: Number,
    *,
    dtype: str = "uint8",
    pixel: tuple[int, int, int] = (3, 0, 1),
    output_dtype: str = "float32",
    batches: tuple[int, ...] = (1,),
) -> Built:
    """Compile the network.

    Args:
        model: of `network`.
        number: of weights and data.
        dtype: of the input as the caller gives it.
        pixel: its channels, and where the first of the picture's is and the way to the next.
        output_dtype: as the caller gets it.
        batches: of the function.
    """
    graph = read_graph(model, _OPERATORS)
    layers, refusals = lower(graph)
    assert not refusals
    names = {"images", *(name for layer in layers for name in _names(layer))} - {""}
    shapes = {name: picture_shape(graph, name) for name in names if name in graph.shapes}
    statistics = None
    if number != "float16":
        calibration = ({"images": picture[None].astype(np.float32) / 255} for picture in pictures(8))
        statistics = observe(model, names, calibration)
    quantised = {"scale": 1 / 255, "zero_point": 0} if dtype == "uint8" else {}
    info = TensorInfo("images", (1, 3, SIZE, SIZE), dtype, "NCHW", **quantised)
    compiled = compile_layers("mlu220", number, layers, shapes, [info], graph.outputs, statistics, "minmax")
    channels, first, step = pixel
    inputs = (Port("images", dtype, SIZE, SIZE, channels, first, step),)
    outputs = tuple(Port(name, output_dtype, *shapes[name]) for name in graph.outputs)
    order = [(shapes[name][2], shapes[name][0], shapes[name][1]) for name in graph.outputs]
    return Built(Function(compiled.data, inputs, outputs, batches), compiled, order)


def _names(layer: Layer) -> tuple[str, ...]:
    return (*layer.inputs, layer.output, layer.before)


class Small:
    """The network, compiled in several ways."""

    SIZE = SIZE

    def __init__(self) -> None:
        self.model = network()
        self.pictures = pictures(4)
        self.expected = reference(self.model, self.pictures)

    def build(self, number: Number = "float16", **options: Any) -> Built:
        """See `build`."""
        return build(self.model, number, **options)

    def rounded(self, built: Built, number: Number) -> list[list[NDArray[np.float32]]]:
        """What the pictures give where every stored value is rounded, by ONNX's evaluator."""
        return reference(rounded(self.model, built.compiled, number), self.pictures)


@pytest.fixture(scope="session")
def small() -> Small:
    return Small()


@pytest.fixture(scope="session")
def libraries() -> Path:
    """The folder of the simulators' libraries."""
    folder = ROOT / "vendors" / "sim"
    subprocess.run(["make", "-s", "-C", str(folder)], check=True, timeout=280)
    return folder / "lib"


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the simulated card settings by name, as in `control(hang=1)`; without any it has the usual ones."""
    file = tmp_path / "control"

    def write(**settings: int) -> None:
        new = tmp_path / "control.new"
        new.write_text("".join(f"mlu220.{name}={value}\n" for name, value in settings.items()))
        new.replace(file)

    write()
    monkeypatch.setenv("PYASC_SIM_CONTROL", str(file))
    return write


class Library:
    """libcnrt and libcndev through cffi, and what a test wants to do with them in one line."""

    def __init__(self, folder: Path) -> None:
        self.ffi = cffi.FFI()
        headers = ROOT / "vendors" / "cambricon"
        self.ffi.cdef(declarations(headers / "cnrt.h") + declarations(headers / "cndev.h"))
        self.ffi.cdef("int64_t pyasc_sim_outstanding(int chip, int thing);")
        self.cnrt = self.ffi.dlopen(str(folder / "libcnrt.so"))
        self.cndev = self.ffi.dlopen(str(folder / "libcndev.so"))
        self._sim = self.ffi.dlopen(str(folder / "libpyascsim.so"))
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]

    def ok(self, status: int) -> None:
        assert status == 0, self.name(status)

    def name(self, status: int) -> str:
        return str(self.ffi.string(self.cnrt.cnrtGetErrorName(status)).decode())

    def free(self, pointer: Any) -> None:
        """As the program that called: malloc's free."""
        self._free(int(self.ffi.cast("uintptr_t", pointer)))

    def outstanding(self) -> list[int]:
        return [int(self._sim.pyasc_sim_outstanding(MLU220, kind)) for kind in range(THINGS)]

    def use_device(self) -> None:
        """Make the card this thread's device."""
        device = self.ffi.new("cnrtDev_t *")
        self.ok(self.cnrt.cnrtGetDeviceHandle(device, 0))
        self.ok(self.cnrt.cnrtSetCurrentDevice(device[0]))

    def upload(self, array: NDArray[Any]) -> Any:
        """A copy on the device."""
        data = np.ascontiguousarray(array)
        pointer = self.allocate(data.nbytes)
        self.ok(self.cnrt.cnrtMemcpy(pointer, self.ffi.from_buffer(data), data.nbytes, 0))
        return pointer

    def allocate(self, size: int) -> Any:
        pointer = self.ffi.new("void **")
        self.ok(self.cnrt.cnrtMalloc(pointer, size))
        return pointer[0]

    def download(self, pointer: Any, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        array = np.empty(shape, dtype)
        self.ok(self.cnrt.cnrtMemcpy(self.ffi.from_buffer(array), pointer, array.nbytes, 2))
        return array

    def open(self, path: Path, data: bytes, initialise: bool = True) -> Opened:
        """A model with its function and its context."""
        path.write_bytes(data)
        made = Opened(self)
        self.ok(self.cnrt.cnrtLoadModel(made.model, str(path).encode()))
        self.ok(self.cnrt.cnrtCreateFunction(made.function))
        self.ok(self.cnrt.cnrtExtractFunction(made.function, made.model[0], b"subnet0"))
        self.ok(self.cnrt.cnrtCreateRuntimeContext(made.context, made.function[0], self.ffi.NULL))
        if initialise:
            self.ok(self.cnrt.cnrtSetRuntimeContextDeviceId(made.context[0], 0))
            self.ok(self.cnrt.cnrtInitRuntimeContext(made.context[0], self.ffi.NULL))
            self.ok(self.cnrt.cnrtRuntimeContextCreateQueue(made.context[0], made.queue))
        return made


class Opened:
    """Handles of a model, and the device memory that its runs made."""

    def __init__(self, library: Library) -> None:
        self.library = library
        new = library.ffi.new
        self.model, self.function = new("cnrtModel_t *"), new("cnrtFunction_t *")
        self.context, self.queue = new("cnrtRuntimeContext_t *"), new("cnrtQueue_t *")
        self.memory: list[Any] = []

    def invoke(self, picture: NDArray[Any], sizes: list[int]) -> tuple[int, list[Any]]:
        """Queue one run: the status, and where its outputs of these sizes, in bytes, will be."""
        library = self.library
        outputs = [library.allocate(size) for size in sizes]
        pointers = [library.upload(picture), *outputs]
        self.memory += pointers
        params = library.ffi.new("void *[]", pointers)
        return library.cnrt.cnrtInvokeRuntimeContext(self.context[0], params, self.queue[0], library.ffi.NULL), outputs

    def run(self, picture: NDArray[Any], shapes: list[tuple[int, ...]], dtype: str = "float32") -> list[NDArray[Any]]:
        """One run; the outputs, NHWC."""
        size = np.dtype(dtype).itemsize
        status, outputs = self.invoke(picture, [int(np.prod(shape)) * size for shape in shapes])
        self.library.ok(status)
        self.library.ok(self.library.cnrt.cnrtSyncQueue(self.queue[0]))
        return [self.library.download(pointer, shape, dtype) for pointer, shape in zip(outputs, shapes, strict=True)]

    def close(self) -> None:
        cnrt, ok = self.library.cnrt, self.library.ok
        if self.queue[0]:
            ok(cnrt.cnrtDestroyQueue(self.queue[0]))
        for pointer in self.memory:
            ok(cnrt.cnrtFree(pointer))
        ok(cnrt.cnrtDestroyRuntimeContext(self.context[0]))
        ok(cnrt.cnrtDestroyFunction(self.function[0]))
        ok(cnrt.cnrtUnloadModel(self.model[0]))


@pytest.fixture(scope="session")
def library(libraries: Path) -> Library:
    return Library(libraries)


@pytest.fixture
def cnrt(library: Library, control: Callable[..., None]) -> Iterator[Library]:
    """CNRT started, with the card as this thread's device; everything must be given back in the end."""
    library.ok(library.cnrt.cnrtInit(0))
    library.use_device()
    yield library
    control()
    library.cnrt.cnrtDestroy()
    assert library.outstanding() == [0] * THINGS


@pytest.fixture
def open_model(cnrt: Library, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Open a built model with options of `write_cambricon`, see `Library.open`; closed in the end."""
    opened: list[Opened] = []

    def make(built: Built, initialise: bool = True, **options: Any) -> Opened:
        data = write_cambricon([built.function], **options)
        opened.append(cnrt.open(tmp_path / "model.cambricon", data, initialise))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
