"""What the CPU driver's engines have in common."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyasc.errors import ConfigError
from pyasc.hal.base import Program, T, TensorInfo
from pyasc.hal.model_tables import compare_tables
from pyasc.hal.onnx_check import check_onnx
from pyasc.hal.processor import usable_cores

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Engine:
    """An inference engine of the CPU driver.

    Attributes:
        name: as users write it.
        formats: of the programs that it runs.
        probe: returns its version when it works on this box, else raises EngineUnusableError.
        open: makes a program ready: (program, threads, batch) to a session.
        busy_waits: its threads hold their cores while they wait for one another.
    """

    name: str
    formats: tuple[str, ...]
    probe: Callable[[], str]
    open: Callable[[Program, int, int | None], Session]
    busy_waits: bool = False

    def default_threads(self) -> int:
        """Threads when none are asked for: one for each core that the process may use, or for every other one."""
        cores = usable_cores()
        return max(1, cores // 2) if self.busy_waits else cores


class EngineUnusableError(Exception):
    """An engine cannot be used here; the text is the reason with the remedy."""


class EngineFailedError(Exception):
    """An engine refuses to compute, or fails at it; the text is its own, in one line."""

    def __init__(self, error: Exception) -> None:
        super().__init__(" ".join(str(error).split()))


class Session(abc.ABC):
    """A program in an engine. Not thread-safe: the executable calls it under a lock."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    _own_inputs: list[NDArray[Any]] | None = None

    @abc.abstractmethod
    def run(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Run once on checked arrays; the outputs are the caller's own.

        Raises:
            EngineFailedError: from the engine.
            ValueError: it gave as many values as fit no output.
        """

    def run_in_place(self, write: Callable[[list[NDArray[Any]]], None], read: Callable[[list[NDArray[Any]]], T]) -> T:
        """Run once on what `write` puts into the inputs, and return what `read` makes of the outputs; neither keeps an array."""
        if self._own_inputs is None:
            import numpy as np

            self._own_inputs = [np.empty(tensor.shape, tensor.dtype) for tensor in self.inputs]
        write(self._own_inputs)
        return read(self.run(self._own_inputs))

    def close(self) -> None:
        """Free the engine's memory."""


def with_batch(program: Program, batch: int | None) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """The program's tables for another batch size.

    Raises:
        ConfigError: an input or output has no first axis of size 1 that could be the batch.
    """
    if batch is None or batch == 1:
        return program.inputs, program.outputs
    for tensor in (*program.inputs, *program.outputs):
        if not tensor.shape or tensor.shape[0] != 1:
            raise ConfigError(
                [("batch", f"{program.name}: {tensor.name} {tensor.shape} has no batch axis of size 1 to enlarge")]
            )

    def enlarged(tensors: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
        return tuple(replace(tensor, shape=(batch, *tensor.shape[1:])) for tensor in tensors)

    return enlarged(program.inputs), enlarged(program.outputs)


def contents(program: Program) -> bytes:
    """The program's bytes as an object that engines take; without a copy where it is a `bytes` already."""
    whole = program.data.obj
    if isinstance(whole, bytes) and len(whole) == program.data.nbytes:
        return whole
    return bytes(program.data)


def onnx_contents(program: Program) -> bytes:
    """The bytes of an ONNX program whose structure is sound and whose inputs and outputs are the program's.

    Raises:
        ModelFormatError: it is damaged, reads other files, or is not what the program's tables say.
    """
    data = contents(program)
    tables = check_onnx(data, program.name)
    compare_tables(program, tables.inputs, tables.outputs)
    return data
