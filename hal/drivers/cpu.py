"""The host's processor as a device. What computes is an engine: LiteRT for TFLite files, ONNX Runtime or OpenCV for ONNX.

Options of `load`:

| option | value | meaning |
|---|---|---|
| `threads` | 1 to 256 | threads of the engine; without it one for each usable core, with tflite-runtime for every other one |
| `batch` | 1 to 1024 | size of the first axis of all inputs and outputs, where the graph allows it |
| `engine` | a name below | this engine and no other |
| `precision` | `fp32`, `fp16`, `int8` | has to be that of the model's weights; of `fp16` ones too the arithmetic is fp32 |
| `use_avx2` | True | an assertion: refused on a processor without AVX2; False is refused, as no engine can switch it off |

The environment variable `PYASC_CPU_ENGINE` forces an engine for the whole process; a forced engine that cannot be used is an error.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psutil

from pyasc.errors import ConfigError, DeviceError, DeviceNotFoundError, DeviceTimeoutError, UnsupportedOperatorError
from pyasc.hal.base import Device, DeviceInfo, Discovery, Executable, Program, T, check_arrays
from pyasc.hal.drivers import cpu_litert, cpu_onnxruntime, cpu_opencv
from pyasc.hal.drivers.cpu_batch import check_batch
from pyasc.hal.drivers.cpu_options import CpuOptions, engine_fault
from pyasc.hal.drivers.cpu_session import Engine, EngineFailedError, EngineUnusableError, Session
from pyasc.hal.host import HostBuffer, HostQueue
from pyasc.hal.peak import peak_ops
from pyasc.hal.processor import frequency_hz, processor, temperature_c, usable_cores

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME = "cpu"
ENGINE_VARIABLE = "PYASC_CPU_ENGINE"
# Best first within each format: LiteRT runs YOLOv5n in half of tflite-runtime's time, and ONNX Runtime in less than OpenCV's
# (benchmarks/inference_overhead.py --engines).
_ENGINES: tuple[Engine, ...] = (*cpu_litert.ENGINES, cpu_onnxruntime.ENGINE, cpu_opencv.ENGINE)
_NAMES = tuple(engine.name for engine in _ENGINES)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """An engine of the CPU driver on this box.

    Attributes:
        name: as in the option `engine`.
        formats: of the programs that it runs.
        version: None where it cannot be used.
        reason: why it cannot be used, with the remedy; empty where it can.
        used_for: the formats for which it is the one that runs when none is asked for.
    """

    name: str
    formats: tuple[str, ...]
    version: str | None
    reason: str
    used_for: tuple[str, ...]


def engine_statuses() -> tuple[EngineStatus, ...]:
    """All engines, best first within each format."""
    statuses: list[EngineStatus] = []
    taken: set[str] = set()
    forced = os.environ.get(ENGINE_VARIABLE)
    for engine in _ENGINES:
        version, reason = _probe(engine.name)
        free = tuple(format for format in engine.formats if format not in taken)
        used_for = free if version is not None and forced in (None, "", engine.name) else ()
        taken.update(used_for)
        statuses.append(EngineStatus(engine.name, engine.formats, version, reason, used_for))
    return tuple(statuses)


def discover() -> Discovery:
    """The processor; absent when no engine works, or when the forced one does not."""
    try:
        engines = [f"{engine.name} {_probe(engine.name)[0]}" for engine in _best_by_format().values()]
    except ConfigError as error:
        return Discovery(absent={NAME: str(error)})
    if not engines:
        reasons = "; ".join(f"{engine.name}: {_probe(engine.name)[1]}" for engine in _ENGINES)
        return Discovery(absent={NAME: f"no inference engine works: {reasons}"})
    host = processor()
    info = DeviceInfo(
        name=NAME,
        family="cpu",
        kind="cpu",
        vendor=host.vendor,
        model=host.model,
        driver=", ".join(engines),
        precisions=("fp32", "int8"),
        memory_bytes=psutil.virtual_memory().total,
        cores=usable_cores(),
        peak_ops=peak_ops(),
    )
    return Discovery((info,))


def open_device(name: str) -> CpuDevice:
    """Open the processor; may be open any number of times."""
    found = discover()
    if name != NAME or not found.devices:
        raise DeviceNotFoundError(found.absent.get(name, f"the CPU driver has no device {name!r}"))
    return CpuDevice(found.devices[0])


class CpuDevice(Device):
    """The processor."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self._closed = False

    def formats(self, **options: Any) -> tuple[str, ...]:
        """Formats that an engine of this box runs, best first; with the option `engine`, those that this engine runs.

        Raises:
            ConfigError: no such engine, or one that cannot be used.
        """
        self._check_open()
        asked = options.get("engine")
        if asked is not None and (fault := engine_fault(asked, _NAMES)):
            raise ConfigError([("engine", fault)])
        return tuple(_best_by_format(asked))

    def allocate(self, size_bytes: int) -> HostBuffer:
        """Host memory, filled with zeros; ValueError for a size below 1, DeviceMemoryError when there is not enough."""
        self._check_open()
        return HostBuffer.allocate(size_bytes, NAME)

    def queue(self) -> HostQueue:
        """A new queue: a thread that starts with the first inference."""
        self._check_open()
        return HostQueue(NAME)

    def load(self, program: Program, **options: Any) -> CpuExecutable:
        """Make a program ready, and run it once to see that it does; the options are those at the head of this module.

        Raises:
            ConfigError: an option that is unknown, wrong, or that this processor or graph cannot honour.
            ModelFormatError: damaged, or not what its tables promise.
            UnsupportedOperatorError: the engine does not know an operator.
        """
        self._check_open()
        chosen = CpuOptions.parse(options, program, processor(), _NAMES)
        engine = _engine_for(program.format, chosen.engine)
        if options.get("threads") is None:
            chosen = replace(chosen, threads=engine.default_threads())
        session = engine.open(program, chosen.threads, chosen.batch)
        try:
            check_batch(engine, session, program, chosen)
        except BaseException:
            session.close()
            raise
        return CpuExecutable(program, session, f"{engine.name} {_probe(engine.name)[0]}", chosen)

    def telemetry(self) -> dict[str, float | int | str | None]:
        """Memory, load since the last call of the process, temperature, clock, and the engines by format."""
        self._check_open()
        memory = psutil.virtual_memory()
        values: dict[str, float | int | str | None] = {
            "memory_used_bytes": memory.total - memory.available,
            "memory_free_bytes": memory.available,
            "temperature_c": temperature_c(),
            "power_w": None,
            "load": round(psutil.cpu_percent(interval=None) / 100, 3),
            "frequency_hz": frequency_hz(),
        }
        for format_, engine in _best_by_format().items():
            values[f"engine_{format_}"] = f"{engine.name} {_probe(engine.name)[0]}"
        return values

    def close(self) -> None:
        """Close this handle; buffers, queues and executables that it made have their own `close`."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the device cpu is closed")


class CpuExecutable(Executable):
    """A model in an engine of the processor.

    Attributes:
        engine: name and version of what computes.
        threads: that it computes with.
    """

    device = NAME

    def __init__(self, program: Program, session: Session, engine: str, options: CpuOptions) -> None:
        self.precision = program.precision
        self.inputs, self.outputs = session.inputs, session.outputs
        self.engine = engine
        self.threads = options.threads
        self._name = program.name
        self._session: Session | None = session
        self._turn = threading.Lock()

    def run(self, inputs: Sequence[NDArray[Any]], timeout_s: float = 30.0) -> list[NDArray[Any]]:
        """Run once; see `Executable.run`.

        `timeout_s` bounds the wait for the caller's turn, when other threads run the same executable. The engine's own call cannot
        be interrupted from within the process: once it has begun, its result is returned even when it comes later than that. Who
        needs to go on at the deadline submits to a `Queue` and waits for the event.
        """
        check_arrays(self.inputs, inputs)
        return self._in_turn(timeout_s, lambda session: session.run(inputs))

    def run_in_place(
        self,
        write: Callable[[list[NDArray[Any]]], None],
        read: Callable[[list[NDArray[Any]]], T],
        timeout_s: float = 30.0,
    ) -> T:
        """As `Executable.run_in_place`, in the engine's memory where it lets us; `timeout_s` as for `run`."""
        return self._in_turn(timeout_s, lambda session: session.run_in_place(write, read))

    def _in_turn(self, timeout_s: float, work: Callable[[Session], T]) -> T:
        if not self._turn.acquire(timeout=max(0.0, timeout_s)):
            raise DeviceTimeoutError(f"cpu: {self._name} is still busy with other threads' calls after {timeout_s:g} s")
        try:
            if self._session is None:
                raise ValueError(f"the executable of {self._name} on cpu is closed")
            return work(self._session)
        except EngineFailedError as error:
            raise DeviceError(f"cpu: {self.engine} failed on {self._name}: {error}") from error
        finally:
            self._turn.release()

    def close(self) -> None:
        """Wait for a run that has begun, and free the engine's memory and threads."""
        with self._turn:
            session, self._session = self._session, None
        if session is not None:
            session.close()


@functools.cache
def _probe(name: str) -> tuple[str | None, str]:
    """Version of an engine, or None and why it cannot be used. Installing an engine shows in the next process."""
    engine = next(engine for engine in _ENGINES if engine.name == name)
    try:
        return engine.probe(), ""
    except EngineUnusableError as error:
        return None, str(error)


def _candidates(asked: str | None) -> Iterator[Engine]:
    """The engines that may be used, best first; lazily, so that a worse one is not loaded in vain."""
    forced = os.environ.get(ENGINE_VARIABLE) or None
    if forced is not None and forced not in _NAMES:
        raise ConfigError([(ENGINE_VARIABLE, f"{forced!r} is none of {', '.join(_NAMES)}")])
    if forced is not None and asked not in (None, forced):
        raise ConfigError([("engine", f"{asked} is asked for and {ENGINE_VARIABLE} forces {forced}")])
    wanted = asked or forced
    for engine in _ENGINES:
        if wanted is None:
            if _probe(engine.name)[0] is not None:
                yield engine
        elif engine.name == wanted:
            version, reason = _probe(wanted)
            if version is None:
                raise ConfigError([(ENGINE_VARIABLE if forced else "engine", f"{wanted} cannot be used: {reason}")])
            yield engine


def _best_by_format(asked: str | None = None) -> dict[str, Engine]:
    best: dict[str, Engine] = {}
    for format_ in ("tflite", "onnx"):
        engine = next((engine for engine in _candidates(asked) if format_ in engine.formats), None)
        if engine is not None:
            best[format_] = engine
    return best


def _engine_for(format_: str, asked: str | None) -> Engine:
    candidates = list(_candidates(asked)) if asked else None
    for engine in candidates if candidates is not None else _candidates(None):
        if format_ in engine.formats:
            return engine
    forced = asked or os.environ.get(ENGINE_VARIABLE)
    if forced:
        raise ConfigError([("engine", f"{forced} does not run {format_}")])
    reasons = [f"{engine.name}: {_probe(engine.name)[1]}" for engine in _ENGINES if format_ in engine.formats]
    raise UnsupportedOperatorError(
        f"the CPU cannot run a program in the format {format_}" + (f": {'; '.join(reasons)}" if reasons else "")
    )
