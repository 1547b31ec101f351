"""A model that runs in parts, some of them on the CPU."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyasc.errors import DeviceTimeoutError, ModelFormatError
from pyasc.hal.base import Executable, TensorInfo, check_arrays
from pyasc.runtime.values import convert

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PartsExecutable(Executable):
    """Runs executables one after the other, each on the values that those before it made.

    Args:
        device: name of the device that the model was loaded for.
        parts: in order; the names of their inputs and outputs say which value goes where.
        inputs, outputs: names of the values that the caller gives and gets.
        release: closes the parts and what they need; this executable's `close` closes it.
    Raises:
        ModelFormatError: a part reads a value that no part before it makes, or none makes an output.
    """

    def __init__(
        self,
        device: str,
        parts: Sequence[Executable],
        inputs: Sequence[str],
        outputs: Sequence[str],
        release: contextlib.ExitStack,
    ) -> None:
        self.device = device
        self._parts = tuple(parts)
        self._release = release
        own = next((part for part in self._parts if part.device == device), None)
        if own is None:
            raise ModelFormatError(f"none of its parts runs on {device}")
        self.precision = own.precision
        self.engine = " + ".join(dict.fromkeys((own.engine, *(part.engine for part in self._parts))))
        read: dict[str, TensorInfo] = {}
        made: dict[str, TensorInfo] = {}
        for part in self._parts:
            for tensor in part.inputs:
                if tensor.name not in made and tensor.name not in inputs:
                    raise ModelFormatError(f"nothing makes {tensor.name}, which a part on {part.device} reads")
                read.setdefault(tensor.name, tensor)
            made.update((tensor.name, tensor) for tensor in part.outputs)
        if missing := [f"reads {name}" for name in inputs if name not in read] + [
            f"makes {name}" for name in outputs if name not in made
        ]:
            raise ModelFormatError(f"no part {missing[0]}")
        self.inputs = tuple(read[name] for name in inputs)
        self.outputs = tuple(made[name] for name in outputs)

    def run(self, inputs: Sequence[NDArray[Any]], timeout_s: float = 30.0) -> list[NDArray[Any]]:
        """Run all parts; see `Executable.run`. `timeout_s` is for all of them together."""
        check_arrays(self.inputs, inputs)
        deadline = time.monotonic() + timeout_s
        values = {tensor.name: (array, tensor) for tensor, array in zip(self.inputs, inputs, strict=True)}
        for part in self._parts:
            left = deadline - time.monotonic()
            if left < 0:
                raise DeviceTimeoutError(f"{self.device}: the parts of the model took longer than {timeout_s:g} s")
            taken = [convert(*values[tensor.name], tensor) for tensor in part.inputs]
            made = part.run(taken, left)
            values.update((tensor.name, (array, tensor)) for tensor, array in zip(part.outputs, made, strict=True))
        return [convert(*values[tensor.name], tensor) for tensor in self.outputs]

    def close(self) -> None:
        """Close all parts; a second call does nothing."""
        self._release.close()
