"""LiteRT (ai-edge-litert), and tflite-runtime, its predecessor with the same interface, as engines of the CPU driver."""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import importlib.metadata
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyasc.errors import ConfigError, ModelFormatError, UnsupportedOperatorError
from pyasc.hal.base import Program, T, TensorInfo
from pyasc.hal.drivers.cpu_session import (
    Engine,
    EngineFailedError,
    EngineUnusableError,
    Session,
    contents,
    with_batch,
)
from pyasc.hal.model_tables import Found, compare_tables
from pyasc.hal.tflite_check import check_tflite

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MODULES = {"ai-edge-litert": "ai_edge_litert.interpreter", "tflite-runtime": "tflite_runtime.interpreter"}

# x (1, 4) -> RELU -> y: tests/golden/relu.tflite, written by make_device_models.py beside it.
_PROBE = base64.b64decode(
    "CAAAAFRGTDO2////FAAAACAAAAA0AAAABAEAAAMAAAABAAAACAAAAAQABAAEAAAAEQAAAFB5QVNDIGRldmljZSB0ZXN0AAAAAQAAABQAAAAAAA4A"
    "GAAUABAADAAIAAQADgAAABQAAAAcAAAASAAAAEwAAABQAAAABAAAAG1haW4AAAAAAQAAABAAAAAAAAoADAAAAAgABAAKAAAACAAAAAwAAAABAAAA"
    "AQAAAAEAAAAAAAAAAQAAAAEAAAABAAAAAAAAAAIAAAA0AAAABAAAAOD///8IAAAADAAAAAEAAAB5AAAAAgAAAAEAAAAEAAAADAAMAAgAAAAAAAQA"
    "DAAAAAgAAAAMAAAAAQAAAHgAAAACAAAAAQAAAAQAAAABAAAAEAAAAAwADAALAAAAAAAEAAwAAAATAAAAAAAAEw=="
)


def _probe(name: str) -> str:
    """Build an interpreter and run it: being importable proves nothing, see `_broken`."""
    import numpy as np

    try:
        module = importlib.import_module(_MODULES[name])
    except ImportError as error:
        raise EngineUnusableError(_not_installed(name, error)) from error
    try:
        # Without the delegate: it would say hello on stderr for each process that only lists devices.
        resolver = module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        interpreter = module.Interpreter(model_content=_PROBE, experimental_op_resolver_type=resolver)
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.array([[-1, 0, 1, 2]], np.float32))
        interpreter.invoke()
        result = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    except Exception as error:
        raise EngineUnusableError(_broken(name, error)) from error
    if result.tolist() != [[0, 0, 1, 2]]:
        raise EngineUnusableError(f"computes RELU(-1, 0, 1, 2) = {result.tolist()}")
    return importlib.metadata.version(name)


def _not_installed(name: str, error: ImportError) -> str:
    if error.name is None or not error.name.startswith(_MODULES[name].partition(".")[0]):
        return f"cannot be imported: {error}"
    if name == "ai-edge-litert":
        return "not installed: pip install ai-edge-litert"
    if sys.version_info >= (3, 12):
        return "not installed, and there is no wheel for Python 3.12 and later: use ai-edge-litert"
    return "not installed: pip install 'pyasc[tflite-runtime]', which needs numpy<2; ai-edge-litert is its faster successor"


def _broken(name: str, error: Exception) -> str:
    import numpy as np

    if name == "tflite-runtime" and int(np.__version__.partition(".")[0]) >= 2:
        # Built against NumPy 1: it imports, and fails with SystemError when an interpreter is built.
        return (
            f"needs numpy<2, this is {np.__version__}, and has no wheel for Python 3.12 and later: use ai-edge-litert"
        )
    return f"cannot run a model: {type(error).__name__}: {error}"


class TfliteSession(Session):
    """A program in an interpreter."""

    def __init__(self, engine: str, program: Program, threads: int, batch: int | None) -> None:
        module = importlib.import_module(_MODULES[engine])
        self.inputs, self.outputs = with_batch(program, batch)
        data = contents(program)
        check_tflite(data, program.name)
        try:
            self._interpreter = module.Interpreter(model_content=data, num_threads=threads)
        except (ValueError, RuntimeError) as error:
            raise _model_error(program.name, error) from error
        details = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        # Sizes of outputs in the file are a note for people; the interpreter works them out, and the trial run compares them.
        outputs = [replace(_found(detail), shape=None) for detail in details[1]]
        compare_tables(program, [_found(detail) for detail in details[0]], outputs)
        self._input_index = _indices(self.inputs, details[0])
        self._output_index = _indices(self.outputs, details[1])
        self._allocate(program, {int(detail["index"]): tuple(detail["shape"]) for detail in details[0]})

    def _allocate(self, program: Program, shapes: Mapping[int, tuple[int, ...]]) -> None:
        """Give each input its shape, where it is another one than the file's, and plan the memory."""
        try:
            for tensor, index in zip(self.inputs, self._input_index, strict=True):
                if shapes[index] != tensor.shape:
                    self._interpreter.resize_tensor_input(index, tensor.shape, strict=False)
            self._interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            if self.inputs != program.inputs:
                message = f"{program.name}: the graph is fixed to its own batch size: {_one_line(error)}"
                raise ConfigError([("batch", message)]) from error
            raise _model_error(program.name, error) from error

    def run(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Copy the inputs in, compute with the GIL released, copy the outputs out."""
        for index, array in zip(self._input_index, arrays, strict=True):
            self._interpreter.set_tensor(index, array)
        self._invoke()
        return [self._interpreter.get_tensor(index) for index in self._output_index]

    def run_in_place(self, write: Callable[[list[NDArray[Any]]], None], read: Callable[[list[NDArray[Any]]], T]) -> T:
        """As `Session.run_in_place`, in the interpreter's own memory: of YOLOv5n that saves copies of 5 MB and 9 MB a picture."""
        with _views_let_go():
            write([self._interpreter.tensor(index)() for index in self._input_index])
        self._invoke()
        with _views_let_go():
            return read([_read_only(self._interpreter.tensor(index)()) for index in self._output_index])

    def _invoke(self) -> None:
        try:
            self._interpreter.invoke()
        except RuntimeError as error:
            raise EngineFailedError(error) from error

    def close(self) -> None:
        """Free the interpreter, its threads and its copy of the model."""
        del self._interpreter


@contextlib.contextmanager
def _views_let_go() -> Iterator[None]:
    """Of an exception that comes through, forget the local variables of the frames that it has left.

    The interpreter refuses to run while anybody has a view of its memory, and whoever keeps an exception, as an interactive session
    does with the last one, would keep the arrays that it flew past.
    """
    outer = sys.exc_info()[1]
    try:
        yield
    except BaseException as error:
        link: BaseException | None = error
        while link is not None and link is not outer:
            traceback.clear_frames(link.__traceback__)
            link = link.__cause__ or link.__context__
        raise


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def _found(detail: dict[str, Any]) -> Found:
    import numpy as np

    scale, zero_point = detail["quantization"]
    quantized = scale != 0
    sizes = zip(detail["shape"], detail["shape_signature"], strict=True)
    return Found(
        name=detail["name"],
        shape=tuple(None if signature < 0 else int(size) for size, signature in sizes),
        dtype=np.dtype(detail["dtype"]).name,
        scale=float(scale) if quantized else None,
        zero_point=int(zero_point) if quantized else None,
    )


def _indices(tensors: Sequence[TensorInfo], details: Sequence[dict[str, Any]]) -> list[int]:
    by_name = {detail["name"]: int(detail["index"]) for detail in details}
    return [by_name[tensor.name] for tensor in tensors]


def _model_error(name: str, error: Exception) -> ModelFormatError | UnsupportedOperatorError:
    text = _one_line(error)
    if "unresolved custom op" in text or "Didn't find op for builtin opcode" in text:
        return UnsupportedOperatorError(f"{name}: {text}")
    return ModelFormatError(f"{name}: {text}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


# tflite-runtime's thread pool spins for milliseconds at the end of each operator. With a thread for each core of two, detector and
# appearance model beside each other gave 12 frames/s on the demo clip, with one thread each 28; LiteRT's pool lost nothing.
ENGINES = tuple(
    Engine(
        name,
        ("tflite",),
        functools.partial(_probe, name),
        functools.partial(TfliteSession, name),
        busy_waits=name == "tflite-runtime",
    )
    for name in _MODULES
)
