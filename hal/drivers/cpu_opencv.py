"""OpenCV's DNN module as an engine of the CPU driver: always there, reads ONNX."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyasc.errors import ModelFormatError, UnsupportedOperatorError
from pyasc.hal.base import Program
from pyasc.hal.drivers.cpu_session import (
    Engine,
    EngineFailedError,
    EngineUnusableError,
    Session,
    onnx_contents,
    with_batch,
)
from pyasc.hal.onnx_prefix import first_refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

# OpenCV has one number of threads for the whole process: it is set for a run and put back, by one run at a time.
_THREADS = threading.Lock()


def _probe() -> str:
    try:
        import cv2
    except ImportError as error:
        raise EngineUnusableError(f"cannot be imported: {error}; pip install opencv-python-headless") from error
    if not hasattr(cv2, "dnn"):
        raise EngineUnusableError(f"OpenCV {cv2.__version__} was built without its dnn module")
    return str(cv2.__version__)


class OpencvSession(Session):
    """A graph in OpenCV's DNN module.

    OpenCV 5.0 takes its new engine where that knows all operators, else the classic one, which 5.1 does not have any more.
    """

    def __init__(self, program: Program, threads: int, batch: int | None) -> None:
        import cv2

        self.inputs, self.outputs = with_batch(program, batch)
        data = onnx_contents(program)
        self._cv2 = cv2
        self._threads = threads
        try:
            self._net = _read(data)
        except cv2.error as error:
            raise _import_error(program.name, error) from error
        if self._net.empty():
            raise _empty_error(program.name, data)
        self._output_names = [tensor.name for tensor in self.outputs]

    def run(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Compute with the GIL released."""
        cv2 = self._cv2
        with _THREADS:
            before = cv2.getNumThreads()
            if before != self._threads:
                cv2.setNumThreads(self._threads)
            try:
                for tensor, array in zip(self.inputs, arrays, strict=True):
                    self._net.setInput(array, tensor.name)
                outputs = self._net.forward(self._output_names)
            except cv2.error as error:
                raise EngineFailedError(error) from error
            finally:
                if before != self._threads:
                    cv2.setNumThreads(before)
        # OpenCV 4 drops axes of a one-dimensional result; and what it returns may be its own memory.
        return [output.reshape(t.shape).copy() for output, t in zip(outputs, self.outputs, strict=True)]

    def close(self) -> None:
        """Free the network."""
        del self._net


def _read(data: bytes) -> Any:
    import cv2
    import numpy as np

    return cv2.dnn.readNetFromONNX(np.frombuffer(data, np.uint8))


def _empty_error(name: str, data: bytes) -> ModelFormatError | UnsupportedOperatorError:
    """What is wrong with a graph of which OpenCV made an empty network: it tells which node it refuses in its log only."""
    with _quiet():
        kind = first_refused(data, _is_refused)
    if kind is None:
        return ModelFormatError(f"{name}: OpenCV found no network in it")
    return UnsupportedOperatorError(f"{name}: OpenCV does not take the operator {kind} as it is used in this graph")


def _is_refused(data: bytes) -> bool:
    import cv2

    try:
        return bool(_read(data).empty())
    except cv2.error:  # all nodes were read, and it misses the ones that were cut off
        return False


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without OpenCV's log, which would repeat the warning for each part of the graph."""
    import cv2

    # OpenCV 4 has it at the top, OpenCV 5 in `utils.logging`; 0 is silence in both.
    set_level = getattr(cv2, "setLogLevel", None) or cv2.utils.logging.setLogLevel
    before = set_level(0)
    try:
        yield
    finally:
        set_level(before)


def _import_error(name: str, error: Exception) -> ModelFormatError | UnsupportedOperatorError:
    text = _one_line(error)
    if "Node [" in text or "unsupported" in text.lower() or "not implemented" in text.lower():
        return UnsupportedOperatorError(f"{name}: OpenCV: {text}")
    return ModelFormatError(f"{name}: OpenCV: {text}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


ENGINE = Engine("opencv", ("onnx",), _probe, OpencvSession)
