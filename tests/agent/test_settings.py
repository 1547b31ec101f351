"""The agent's own file, its lock and its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
import yaml

from pyasc.agent import files
from pyasc.agent import settings as module
from pyasc.agent.files import FolderLock, lock_holder, write_atomic
from pyasc.agent.settings import load_settings, parse_settings, schema
from pyasc.agent.store import Refused, Store, Stored
from pyasc.errors import ConfigError, PyascError

MINIMAL: dict[str, Any] = {"box": "b", "broker": {"url": "mqtt://h"}}


def faults(document: dict[str, Any], folder: Path = Path("/nonexistent")) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_settings(document, folder)
    return dict(caught.value.faults)


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_file_with_everything(tmp_path: Path) -> None:
    for name in ("password", "ca.pem", "box.pem", "box.key"):
        (tmp_path / name).write_text("x")
    broker = {"url": "mqtts://broker.example:8884", "username": "box", "password_file": "password"}
    content = {
        "box": "gate-7",
        "broker": {**broker, "ca": "ca.pem", "cert": "box.pem", "key": str(tmp_path / "box.key")},
        "state_dir": "state",
        "model_dir": "/models",
        "simulate": [],
        "telemetry": {"interval_s": 30},
        "spool": {"max_bytes": 100_000, "max_events": 1000, "max_age_s": 3600},
        "log": {"level": "debug"},
    }
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(content))
    found = load_settings(tmp_path / "agent.yaml")
    assert (found.box, found.broker.host, found.broker.port, found.broker.tls) == (
        "gate-7",
        "broker.example",
        8884,
        True,
    )
    assert found.broker.password_file == tmp_path / "password"
    assert found.broker.key == tmp_path / "box.key"
    assert (found.state_dir, found.model_dir) == (tmp_path / "state", Path("/models"))
    assert (found.telemetry_interval_s, found.spool.max_events, found.log_level) == (30.0, 1000, "debug")


def test_defaults(tmp_path: Path) -> None:
    found = parse_settings(MINIMAL, tmp_path)
    assert (found.state_dir, found.model_dir) == (Path("/var/lib/pyasc"), Path("/var/lib/pyasc/models"))
    assert (found.telemetry_interval_s, found.log_level, str(found.broker)) == (10.0, "info", "mqtt://h:1883")


@pytest.mark.parametrize(
    ("url", "port", "path", "tls", "websockets"),
    [
        ("mqtt://h", 1883, "/mqtt", False, False),
        ("mqtts://h", 8883, "/mqtt", True, False),
        ("ws://h", 80, "/mqtt", False, True),
        ("wss://h:9001/broker", 9001, "/broker", True, True),
        ("mqtt://[::1]:1884", 1884, "/mqtt", False, False),
    ],
)
def test_addresses(url: str, port: int, path: str, tls: bool, websockets: bool) -> None:
    found = parse_settings({**MINIMAL, "broker": {"url": url}}, Path("/")).broker
    assert (found.port, found.path, found.tls, found.websockets) == (port, path, tls, websockets)


def test_box_without_a_name_takes_the_machine_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_MACHINE_ID", tmp_path / "machine-id")
    (tmp_path / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    assert parse_settings({"broker": {"url": "mqtt://h"}}, tmp_path).box == "0123456789ab"
    (tmp_path / "machine-id").write_text("uninitialized\n")
    assert "has no id" in faults({"broker": {"url": "mqtt://h"}}, tmp_path)["box"]


@pytest.mark.parametrize(
    ("change", "path", "says"),
    [
        ({"web": {"listen": "127.0.0.1:8088"}}, "web", "not available in this version"),
        ({"discovery": True}, "discovery", "not available in this version"),
        ({"simulate": ["hi3559"]}, "simulate[0]", "no simulator of 'hi3559'"),
        ({"simulate": "hi3559"}, "simulate", "must be a list"),
        ({"boxx": 1}, "boxx", "did you mean `box`?"),
        ({"box": "a/b"}, "box", "does not fit"),
        ({"telemetry": {"interval_s": 0}}, "telemetry.interval_s", "below 1"),
        ({"telemetry": {"interval": 5}}, "telemetry.interval", "did you mean `interval_s`?"),
        ({"log": {"level": "loud"}}, "log.level", "not one of debug"),
        ({"broker": {}}, "broker.url", "required"),
        ({"broker": {"url": "http://h"}}, "broker.url", "not one of mqtt, mqtts, ws, wss"),
        ({"broker": {"url": "mqtt://"}}, "broker.url", "no host"),
        ({"broker": {"url": "mqtt://h:99999"}}, "broker.url", "not an address"),
        ({"broker": {"url": "mqtt://u:p@h"}}, "broker.url", "use `username` and `password_file`"),
        ({"broker": {"url": "mqtt://h/topic"}}, "broker.url", "takes no path"),
        ({"broker": {"url": "mqtt://h", "ca": "/etc/hostname"}}, "broker.ca", "mqtts and wss only"),
        ({"broker": {"url": "mqtts://h", "cert": "/etc/hostname"}}, "broker.key", "required with `cert`"),
        (
            {"broker": {"url": "mqtt://h", "password_file": "/etc/hostname"}},
            "broker.username",
            "required with `password_file`",
        ),
        (
            {"broker": {"url": "mqtt://h", "username": "u", "password_file": "absent"}},
            "broker.password_file",
            "cannot be read",
        ),
    ],
)
def test_fault_is_named_by_path(change: dict[str, Any], path: str, says: str) -> None:
    found = faults({**MINIMAL, **change})
    assert list(found) == [path]
    assert says in found[path]


def test_all_faults_come_at_once() -> None:
    assert set(faults({"box": 3, "broker": {"url": "mqtt://h"}, "web": {}, "x": 1, "simulate": ["a", "b"]})) == {
        "box", "web", "x", "simulate[0]", "simulate[1]",
    }  # fmt: skip


def test_lock_is_of_one_process_and_ends_with_it(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from pyasc.agent.files import FolderLock; lock = FolderLock(Path(sys.argv[1]))"
    command = [sys.executable, "-c", f"{code}; print('held', flush=True); sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert lock_holder(tmp_path) == other.pid
        with pytest.raises(PyascError, match=f"another agent \\(process {other.pid}\\) uses"):
            FolderLock(tmp_path)
        other.kill()
        other.wait(10)
    with FolderLock(tmp_path):
        assert lock_holder(tmp_path) == os.getpid()
    assert lock_holder(tmp_path) is None


def test_engine_of_a_killed_agent_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ORPHAN_TIMEOUT_S", 1.0)
    code = """
import subprocess, sys
from pathlib import Path
from pyasc.agent.files import FolderLock
lock = FolderLock(Path(sys.argv[1]))
orphan = subprocess.Popen(["sleep", "300"], pass_fds=(lock.fileno(),), stdout=subprocess.DEVNULL)
print(orphan.pid, flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        orphan = psutil.Process(int(agent.stdout.readline()))
        agent.kill()
        agent.wait(10)
    with FolderLock(tmp_path):
        assert lock_holder(tmp_path) == os.getpid()
    orphan.wait(5)


def test_atomic_write_leaves_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old", mode=0o640)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"old", 0o640)
    with pytest.raises(TypeError):
        write_atomic(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def _stored(version: int, proven: bool = True) -> Stored:
    from pyasc.agent.config import digest

    document = {"version": version, "pipelines": {}}
    return Stored(document, digest(document), proven)


def test_store_gives_back_what_was_accepted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert (store.current(), store.previous(), store.refused()) == (None, None, None)
    store.save(_stored(1), None)
    store.save(_stored(2, proven=False), _stored(1))
    store.refuse(Refused(3, "abc", [{"path": "a", "message": "b"}]))
    again = Store(tmp_path)
    assert (again.current(), again.previous()) == (_stored(2, proven=False), _stored(1))
    assert again.refused() == Refused(3, "abc", [{"path": "a", "message": "b"}])
    again.go_back(_stored(1))
    assert again.current() == _stored(1)
    again.go_back(None)
    assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"document": {}, "sha256": "x", "proven": true}', b"\xff" * 100, b"[" * 9999]
)
def test_damaged_configuration_gives_the_previous_one(tmp_path: Path, damage: bytes) -> None:
    store = Store(tmp_path)
    store.save(_stored(2), _stored(1))
    (tmp_path / "config.json").write_bytes(damage)
    (tmp_path / "config.refused.json").write_bytes(damage)
    assert store.current() == _stored(1)
    assert store.refused() is None
    (tmp_path / "config.previous.json").write_bytes(damage)
    assert store.current() is None
