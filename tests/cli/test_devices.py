"""`pyasc devices`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import psutil
import pytest

from pyasc.hal.drivers.cpu import engine_statuses


def _run(*arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyasc", "devices", *arguments],
        env={**os.environ, "COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=check,
    )


def _document(**environment: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_run("--json", **environment).stdout)
    return document


def test_json_says_what_the_box_has() -> None:
    document = _document(PYASC_OPENCL_CPU="0")
    cpu = next(device for device in document["devices"] if device["name"] == "cpu")
    assert cpu["kind"] == "cpu"
    assert cpu["memory_bytes"] == psutil.virtual_memory().total
    assert cpu["simulated"] is False
    assert cpu["executes"] is True
    telemetry = cpu["telemetry"]
    assert telemetry["memory_used_bytes"] + telemetry["memory_free_bytes"] == cpu["memory_bytes"]
    assert 0 <= telemetry["load"] <= 1
    assert {"hi3559", "mlu220"} <= document["absent"].keys()


def test_json_names_the_engines_and_which_would_run() -> None:
    found = {engine["name"]: engine for engine in _document()["cpu_engines"]}
    for engine in engine_statuses():
        assert found[engine.name]["version"] == engine.version
        assert found[engine.name]["reason"] == engine.reason
        assert found[engine.name]["used_for"] == list(engine.used_for)
    used = [format_ for engine in found.values() for format_ in engine["used_for"]]
    assert sorted(used) == ["onnx", "tflite"]


def test_a_stand_in_for_a_gpu_is_called_simulated() -> None:
    gpu = next(device for device in _document(PYASC_OPENCL_CPU="1")["devices"] if device["name"] == "gpu0")
    assert gpu["simulated"] is True
    assert gpu["executes"] is False
    said = _run(PYASC_OPENCL_CPU="1").stdout
    assert "gpu0  gpu, simulated" in said
    assert "no, memory and transfers only" in said


def test_tables_say_what_there_is_and_why_the_rest_is_absent() -> None:
    said = _run().stdout
    assert "cpu  cpu, real" in said
    for word in ("precisions", "fp32", "MiB", "cores", "temperature", "CPU engine", "opencv"):
        assert word in said
    assert "no driver in this version" in " ".join(said.split())
    for name in ("hi3559", "mlu220"):
        assert name in said


@pytest.mark.parametrize("engine", [e.name for e in engine_statuses() if e.version is None] + ["abacus"])
def test_a_forced_engine_that_does_not_work_leaves_no_cpu(engine: str) -> None:
    document = _document(PYASC_CPU_ENGINE=engine)
    assert "cpu" not in [device["name"] for device in document["devices"]]
    assert engine in document["absent"]["cpu"]
    assert all(not status["used_for"] for status in document["cpu_engines"])


def test_a_wrong_option_is_a_usage_error() -> None:
    result = _run("--jsno", check=False)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
