"""The options of the CPU driver's `load`, checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pyasc.errors import ConfigError, ConfigFault
from pyasc.hal.base import Program
from pyasc.hal.processor import Processor, usable_cores

_log = logging.getLogger(__name__)

MAX_THREADS = 256
MAX_BATCH = 1024
_PRECISIONS = ("fp32", "fp16", "int8")


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """The options with their defaults; what each means is said in `pyasc.hal.drivers.cpu`."""

    threads: int
    batch: int | None = None
    engine: str | None = None
    precision: str | None = None
    use_avx2: bool | None = None

    @classmethod
    def parse(
        cls, options: Mapping[str, Any], program: Program, processor: Processor, engines: tuple[str, ...]
    ) -> CpuOptions:
        """Check the options of one `load`; ConfigError names every wrong one."""
        known = [field.name for field in fields(cls)]
        faults = [
            ConfigFault(name, f"unknown option of the device cpu; known are {', '.join(sorted(known))}")
            for name in options
            if name not in known
        ]
        given = {name: value for name, value in options.items() if name in known and value is not None}
        for name, value in given.items():
            fault = _fault(name, value, program, processor, engines)
            if fault:
                faults.append(ConfigFault(name, fault))
        if faults:
            raise ConfigError(faults)
        cores = usable_cores()
        threads = given.setdefault("threads", cores)
        if threads > cores:
            _log.info("%s: %d threads on %d cores", program.name, threads, cores)
        return cls(**given)


def _fault(name: str, value: Any, program: Program, processor: Processor, engines: tuple[str, ...]) -> str | None:
    """What is wrong with one option, or None."""
    if name in ("threads", "batch"):
        limit = MAX_THREADS if name == "threads" else MAX_BATCH
        whole = isinstance(value, int) and not isinstance(value, bool)
        return None if whole and 1 <= value <= limit else f"{value!r} is not a whole number from 1 to {limit}"
    if name == "engine":
        return engine_fault(value, engines)
    if name == "precision":
        return _precision_fault(value, program)
    return _avx2_fault(value, processor)


def engine_fault(value: Any, engines: tuple[str, ...]) -> str | None:
    """What is wrong with the option `engine`, or None."""
    return None if value in engines else f"{value!r} is none of {', '.join(engines)}"


def _precision_fault(value: Any, program: Program) -> str | None:
    if value not in _PRECISIONS:
        return f"{value!r} is none of {', '.join(_PRECISIONS)}"
    if value != program.precision:
        weights = f"the weights of {program.name} are {program.precision}"
        return f"{value} is asked for and {weights}: convert the model with --precision {value}"
    return None


def _avx2_fault(value: Any, processor: Processor) -> str | None:
    if not isinstance(value, bool):
        return f"{value!r} is neither True nor False"
    if not value:
        return "AVX2 cannot be switched off: the engines take the best instructions that the processor has"
    if "avx2" not in processor.features:
        return f"this processor ({processor.model}, {processor.architecture}) has no AVX2"
    return None
