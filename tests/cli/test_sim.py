"""`pyasc sim path`: what a C program needs to run on the simulators."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyasc.errors import ConfigError
from pyasc.vendors import simulators

PROGRAM = r"""
#include <cnrt.h>
#include <stdio.h>
int main(void) {
    unsigned count = 0;
    if (cnrtInit(0) != CNRT_RET_SUCCESS || cnrtGetDeviceCount(&count) != CNRT_RET_SUCCESS) return 1;
    printf("%u\n", count);
    cnrtDestroy();
    return 0;
}
"""


def pyasc(*words: str) -> str:
    command = [sys.executable, "-m", "pyasc", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_a_c_program_is_built_and_runs_with_what_is_printed(tmp_path: Path) -> None:
    folder, include = pyasc("sim", "path"), pyasc("sim", "path", "--include").split()
    (tmp_path / "count.c").write_text(PROGRAM)
    compiler = shutil.which("cc")
    assert compiler, "this test needs a C compiler: apt install gcc"
    command = [compiler, *include, "count.c", "-o", "count", "-L", folder, "-lcnrt", f"-Wl,-rpath,{folder}"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    done = subprocess.run([tmp_path / "count"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "1\n"


def test_libraries_that_are_not_built_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulators, "_LIBRARIES", tmp_path)
    with pytest.raises(ConfigError, match=r"libmpi\.so is missing: install a C compiler and make"):
        simulators.library_folder()


def test_families_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(simulators.VARIABLE, raising=False)
    assert simulators.simulated_families() == frozenset()
    monkeypatch.setenv(simulators.VARIABLE, " mlu220 ,")
    assert simulators.simulated_families() == {"mlu220"}
    simulators.simulate(["hi3559"])
    assert os.environ[simulators.VARIABLE] == "hi3559,mlu220"
    with pytest.raises(ConfigError, match="no simulator of 'mlu270'"):
        simulators.simulate(["mlu270"])
    monkeypatch.setenv(simulators.VARIABLE, "hi3519")
    with pytest.raises(ConfigError, match="PYASC_SIMULATE: there is no simulator of 'hi3519'"):
        simulators.simulated_families()
