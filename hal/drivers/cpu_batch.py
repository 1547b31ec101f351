"""The trial of a program that was just loaded: it runs, gives what its tables promise, and treats a batch as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyasc.errors import ConfigError, ModelFormatError, UnsupportedOperatorError
from pyasc.hal.base import Program
from pyasc.hal.drivers.cpu_options import CpuOptions
from pyasc.hal.drivers.cpu_session import Engine, EngineFailedError, Session

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Kernels for another batch size add in another order: float32 carries about 7 digits, sums of thousands of terms lose some.
RELATIVE_TOLERANCE = 1e-3


def check_batch(engine: Engine, session: Session, program: Program, options: CpuOptions) -> None:
    """Run a new session once; with an enlarged batch, compare each of its rows with the same row run alone.

    Raises:
        ConfigError: the graph cannot be run with this batch size, or mixes the rows of a batch.
        ModelFormatError: the outputs are not those of the tables.
        UnsupportedOperatorError: the engine refuses the graph when it runs.
    """
    enlarged = session.inputs != program.inputs
    arrays = _samples(session)
    try:
        outputs = session.run(arrays)
    except (EngineFailedError, ValueError) as error:
        text = f"{program.name}: {engine.name} cannot run it: {error}"
        if enlarged:
            raise ConfigError([("batch", text)]) from error
        raise UnsupportedOperatorError(text) from error
    for tensor, output in zip(session.outputs, outputs, strict=True):
        if output.shape != tensor.shape or output.dtype.name != tensor.dtype:
            found, wanted = f"{output.dtype} {output.shape}", f"{tensor.dtype} {tensor.shape}"
            source = "the batch asks for" if enlarged else "the manifest promises"
            text = f"{program.name}: output {tensor.name} is {found}, {source} {wanted}"
            raise ConfigError([("batch", text)]) if enlarged else ModelFormatError(text)
    if enlarged:
        _compare_rows(engine, program, options, arrays, outputs)


def _samples(session: Session) -> list[NDArray[Any]]:
    """Different rows, the same in every process; halves rather than zeros, so that no row of a batch is left unseen."""
    import numpy as np

    random = np.random.default_rng(0)
    arrays = []
    for tensor in session.inputs:
        dtype = np.dtype(tensor.dtype)
        values = random.random(tensor.shape, np.float32)
        arrays.append((values * 100).astype(dtype) if dtype.kind in "iu" else values.astype(dtype))
    return arrays


def _compare_rows(
    engine: Engine, program: Program, options: CpuOptions, arrays: list[NDArray[Any]], outputs: list[NDArray[Any]]
) -> None:
    import numpy as np

    single = engine.open(program, options.threads, None)
    try:
        for row in (0, arrays[0].shape[0] - 1):
            alone = single.run([np.ascontiguousarray(array[row : row + 1]) for array in arrays])
            for tensor, one, many in zip(program.outputs, alone, outputs, strict=True):
                scale = float(np.abs(one.astype(np.float64)).max(initial=0.0))
                if not np.allclose(many[row : row + 1], one, rtol=RELATIVE_TOLERANCE, atol=RELATIVE_TOLERANCE * scale):
                    text = f"{program.name} is no model for batches: {tensor.name} of a row depends on the other rows"
                    raise ConfigError([("batch", text)])
    finally:
        single.close()
