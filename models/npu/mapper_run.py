"""A run of HiSilicon's own compiler, the NNIE mapper, where the box has it.

The real one has never been run here, as nobody may pass it on: what is known of its manners is that it takes the name of a
configuration, works in the current folder, and writes the file that `instruction_name` tells, with the ending `.wk`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from pyasc.errors import ConversionError
from pyasc.models.npu.mapper import Job

MAPPER_VARIABLE = "PYASC_NNIE_MAPPER"
# Compilation of a large network has taken users two hours.
TIMEOUT_S = 4 * 3600.0

_HEADER_LENGTH, _LENGTH_AT = 0xC0, 8


def mapper_program() -> str | None:
    """The mapper that `PYASC_NNIE_MAPPER` names; None where it names none.

    Raises:
        ConversionError: it names something that cannot be run.
    """
    named = os.environ.get(MAPPER_VARIABLE)
    if not named:
        return None
    if (found := shutil.which(named)) is None:
        raise ConversionError(f"{MAPPER_VARIABLE}: {named} is no program that can be run")
    return str(Path(found).absolute())


def run_mapper(program: str, job: Job, timeout_s: float = TIMEOUT_S) -> Path:
    """Compile a network; what the mapper says is kept beside its files, in a `.log`.

    Args:
        program: as `mapper_program` returns it.
        job: of `emit_mapper`.
        timeout_s: for the whole run, which takes minutes to hours.
    Returns:
        the compiled network.
    Raises:
        ConversionError: the mapper cannot be started, fails, does not end in time, or has written no compiled network.
    """
    log = job.config.with_suffix(".log")
    before = _written(job.wk)
    with log.open("wb") as output:
        status = _run([program, job.config.name], job.config.parent, output, timeout_s)
    if status:
        raise ConversionError(f"{program}: {status}{_last_words(log)}")
    if _written(job.wk) in (None, before):
        raise ConversionError(f"{program}: it has not written {job.wk.name}{_last_words(log)}")
    head = _head(job.wk)
    if len(head) < _HEADER_LENGTH or int.from_bytes(head[_LENGTH_AT:][:4], "little") != _HEADER_LENGTH:
        raise ConversionError(f"{program}: {job.wk.name} is no compiled network{_last_words(log)}")
    return job.wk


def _run(command: Sequence[str], folder: Path, output: IO[bytes], timeout_s: float) -> str:
    """Run a program with all that it starts; what went wrong, or nothing."""
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"it cannot be started ({error.strerror or error})"
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return f"stopped, as it had not ended after {timeout_s:g} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code < 0:
        return f"it was ended by the signal {-code}"
    return f"it failed with the exit code {code}" if code else ""


def _written(path: Path) -> tuple[int, int] | None:
    """When a file was written, and its size."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEADER_LENGTH)


def _last_words(log: Path) -> str:
    """The last line of a log that says something, for a message; where the rest is."""
    lines = log.read_text("utf-8", "replace").split("\n")
    words = ["".join(filter(str.isprintable, line)).strip() for line in lines]
    said = next((line for line in reversed(words) if re.search(r"\w", line)), "")
    return f": {said[:200]} (more in {log})" if said else ""
