"""ONNX Runtime as an engine of the CPU driver: an extra, faster than OpenCV."""

from __future__ import annotations

from collections.abc import Sequence
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

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _probe() -> str:
    try:
        import onnxruntime
    except ImportError as error:
        if error.name == "onnxruntime":
            raise EngineUnusableError("not installed: pip install 'pyasc[onnxruntime]'") from error
        raise EngineUnusableError(f"cannot be imported: {error}") from error
    if "CPUExecutionProvider" not in onnxruntime.get_available_providers():
        raise EngineUnusableError(f"onnxruntime {onnxruntime.__version__} was built without its CPU provider")
    return str(onnxruntime.__version__)


class OnnxruntimeSession(Session):
    """A graph in ONNX Runtime on the CPU."""

    def __init__(self, program: Program, threads: int, batch: int | None) -> None:
        import onnxruntime

        self.inputs, self.outputs = with_batch(program, batch)
        data = onnx_contents(program)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # errors come as exceptions
        try:
            self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exception classes share no base below Exception
            raise _model_error(program.name, error) from error
        self._output_names = [tensor.name for tensor in self.outputs]

    def run(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Compute on the caller's arrays with the GIL released."""
        feeds = {tensor.name: array for tensor, array in zip(self.inputs, arrays, strict=True)}
        try:
            outputs: list[NDArray[Any]] = self._session.run(self._output_names, feeds)
        except Exception as error:
            raise EngineFailedError(error) from error
        return outputs

    def close(self) -> None:
        """Free the session and its threads."""
        del self._session


def _model_error(name: str, error: Exception) -> ModelFormatError | UnsupportedOperatorError:
    text = f"{name}: ONNX Runtime: {' '.join(str(error).split())}"
    if any(part in text for part in ("NOT_IMPLEMENTED", "is not a registered function/op", "No Op registered for")):
        return UnsupportedOperatorError(text)
    return ModelFormatError(text)


ENGINE = Engine("onnxruntime", ("onnx",), _probe, OnnxruntimeSession)
