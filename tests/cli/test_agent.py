"""`pyasc agent check`, `schema` and `status`; `run` is in tests/agent/test_agent.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyasc.agent.files import FolderLock
from pyasc.agent.status_file import write_status
from pyasc.cli.agent import command

GOOD = "version: 1\npipelines: {gate: {source: {url: clip.mp4}, detector: {plugin: yolov5, model: m.asc}}}\n"


def run(*words: Any) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipelines.yaml"
    path.write_text(GOOD)
    return path


def test_sound_configuration_is_ok(file: Path) -> None:
    found = run("check", file)
    assert (found.exit_code, found.stdout) == (0, "ok\n")
    assert json.loads(run("check", "--json", file).stdout) == {"ok": True, "errors": []}


def test_models_are_looked_up_where_the_folder_is_named(file: Path, tmp_path: Path) -> None:
    found = run("check", "--model-dir", tmp_path, file)
    assert found.exit_code == 1
    assert found.stdout == f"pipelines.gate.detector.model: there is no file 'm.asc' in {tmp_path}\n"
    (tmp_path / "m.asc").touch()
    assert run("check", "--model-dir", tmp_path, file).exit_code == 0


def test_every_fault_has_its_line(file: Path) -> None:
    file.write_text("version: x\npipelines: {gate: {sorce: 1}}\n")
    found = run("check", file)
    assert found.exit_code == 1
    assert found.stdout.splitlines() == [
        "pipelines.gate.detector: required",
        "pipelines.gate.sorce: unknown key (did you mean `source`?)",
        "pipelines.gate.source: required",
        "version: must be a whole number, not text",
    ]


def test_faults_of_plugins_are_named_beside_the_others(file: Path) -> None:
    file.write_text(
        "version: 1\npipelines:\n  gate:\n    colour: red\n    source: {url: 'ftp://x'}\n"
        "    detector: {plugin: yolov5, model: m.asc, confidenc: 0.3}\n    tracker: {plugin: deepsrt}\n"
        "    zones: {door: [[0, 0], [1, 1]]}\n"
    )
    found = run("check", file)
    assert found.exit_code == 1
    assert found.stdout.splitlines() == [
        "pipelines.gate.colour: unknown key",
        "pipelines.gate.detector.confidenc: unknown key (did you mean `confidence`?)",
        "pipelines.gate.source.url: scheme 'ftp' is not one of rtsp, rtsps, http, https, file",
        "pipelines.gate.tracker.plugin: no plugin named 'deepsrt' (did you mean `deepsort`?)",
        "pipelines.gate.zones.door: has 2 entries, at least 3 are needed",
    ]


def test_text_that_is_no_yaml(file: Path) -> None:
    file.write_text("a: [\n")
    found = run("check", file)
    assert found.exit_code == 1
    assert found.stdout.startswith("not YAML: line 2")


def test_the_agents_own_file_may_have_forgotten_its_broker(file: Path) -> None:
    file.write_text("box: a\nstate_dir: state\n")
    found = run("check", file)
    assert (found.exit_code, found.stdout) == (1, "broker: required\n")


def test_the_agents_own_file_has_no_pipelines(file: Path) -> None:
    file.write_text("box: a\nbroker: {url: 'mqtt://h'}\nweb: {listen: ':1'}\n")
    found = run("check", file)
    assert (found.exit_code, found.stdout) == (1, "web: not available in this version\n")
    file.write_text("box: a\nbroker: {url: 'mqtt://h'}\n")
    assert run("check", file).exit_code == 0


@pytest.mark.parametrize(
    ("words", "title"), [(("schema",), "PyASC configuration"), (("schema", "--agent"), "PyASC agent settings")]
)
def test_schema(words: tuple[str, ...], title: str) -> None:
    assert json.loads(run(*words).stdout)["title"] == title


def test_status_where_no_agent_runs(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("box: a\nbroker: {url: 'mqtt://h'}\nstate_dir: .\n")
    found = run("status", "--config", tmp_path / "agent.yaml")
    assert (found.exit_code, found.stdout) == (1, "not running\n")
    shown = json.loads(run("status", "--json", "--config", tmp_path / "agent.yaml").stdout)
    assert shown == {"running": False, "pid": None, "agent": None}


def test_status_of_an_agent_that_could_not_do_a_thing_yet(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("box: a\nbroker: {url: 'mqtt://h'}\nstate_dir: .\n")
    refused = {"version": None, "state": "rejected", "errors": [{"path": "", "message": "not YAML"}]}
    content = {
        "box": "a",
        "status": {"state": "degraded", "reason": "the engine is down: exit code 1"},
        "broker": {"url": "mqtt://h:1883", "state": "refused", "protocol": None, "reason": "Not authorized"},
        "config": refused,
        "running_version": None,
        "engine": {"pid": None, "up": False, "restarts": 3},
        "pipelines": {"gate": {"state": "starting", "device": None, "fps": None, "resolution": None}},
        "spool": {"pending": 0, "bytes": 0, "dropped": 0, "fault": None},
    }
    with FolderLock(tmp_path):
        write_status(tmp_path, content)
        found = run("status", "--config", tmp_path / "agent.yaml")
    assert found.exit_code == 0
    assert found.stdout.splitlines() == [
        f"box        a: degraded (the engine is down: exit code 1), process {os.getpid()}",
        "broker     mqtt://h:1883: refused (Not authorized)",
        "config     none; last: unreadable rejected",
        "           not YAML",
        "engine     down, restarted 3 times",
        "spool      0 events wait, 0 bytes, 0 dropped",
        "pipeline   gate: starting",
    ]


def test_bad_settings_are_one_line_and_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("broker: {url: 'mqtt://h'}\nbox: 'a b'\nwebb: 1\n")
    words = [sys.executable, "-m", "pyasc", "agent", "run", "--config", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "webb: unknown key" in done.stderr
    assert "box:" in done.stderr
