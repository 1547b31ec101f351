"""The engine as a process of its own, driven over a socket pair as the control process does it."""

from __future__ import annotations

import base64
import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from pyasc.agent import engine, stages
from pyasc.agent.analyzer import EdgeAnalyzer
from pyasc.agent.ipc import Channel
from pyasc.agent.spool import Spool
from pyasc.errors import TransportError
from pyasc.hal.drivers.cpu import CpuDevice


class Control:
    """The other end of an engine's channel: keeps what comes, acknowledges events unless told not to."""

    def __init__(self, until: Callable[..., Any], plugins: Path, log: Path, *arguments: str) -> None:
        self._until = until
        self.messages: list[dict[str, Any]] = []
        self.acknowledge = True
        self.log = log
        ours, theirs = socket.socketpair()
        with theirs, log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pyasc.agent.engine", "--fd", str(theirs.fileno()), *arguments],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": str(plugins)},
                stdin=subprocess.DEVNULL,
                stderr=stderr,
            )
        self.channel = Channel(ours)
        self._numbers = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for message in self.channel.receive():
            self.messages.append(message)
            if message["type"] == "events" and self.acknowledge:
                with contextlib.suppress(TransportError):  # it may have ended after its last events
                    self.channel.send("ack", n=message["n"])

    def of(self, kind: str, since: int = 0, **fields: Any) -> list[dict[str, Any]]:
        return [m for m in self.messages[since:] if m["type"] == kind and fields.items() <= m.items()]

    def wait(self, kind: str, since: int = 0, **fields: Any) -> dict[str, Any]:
        def found() -> Any:
            return (self.of(kind, since, **fields) or [None])[-1]

        what = f"{kind} {fields}; {self.messages[-3:]}; {self.log.read_text(errors='replace')[-2000:]}"
        result: dict[str, Any] = self._until(found, what)
        return result

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._numbers += 1
        self.channel.send(kind, id=self._numbers, **fields)
        return self.wait("reply", id=self._numbers)

    def configure(self, models: Path, **pipelines: Any) -> dict[str, Any]:
        return self.ask("configure", version=1, pipelines=pipelines, ended=[], model_dir=str(models))

    def apply(self, models: Path, **pipelines: Any) -> int:
        """Configure and commit; the number of messages before the commit."""
        answer = self.configure(models, **pipelines)
        assert answer["ok"], answer
        before = len(self.messages)
        assert self.ask("commit")["ok"]
        return before

    def events(self, pipeline: str) -> list[dict[str, Any]]:
        return [event for message in self.of("events", pipeline=pipeline) for event in message["events"]]

    def ended(self) -> int:
        return self.process.wait(20)


@pytest.fixture
def start(until, blobs, tmp_path) -> Iterator[Callable[..., Control]]:
    controls: list[Control] = []

    def begin(*arguments: str) -> Control:
        control = Control(until, blobs, tmp_path / f"engine{len(controls)}.log", *arguments)
        controls.append(control)
        control.wait("hello")
        return control

    yield begin
    for control in controls:
        control.process.kill()
        control.process.wait()
        control.channel.close()


@pytest.fixture
def control(start) -> Control:
    return start()


@pytest.fixture
def spec(blob_clip) -> Callable[..., dict[str, Any]]:
    def make(**changes: Any) -> dict[str, Any]:
        return {
            "source": {"url": str(blob_clip)},
            "detector": {"plugin": "blobs", "model": "blobs.asc"},
            "tracker": {"plugin": "nearest"},
            **changes,
        }

    return make


def endless(blob_clip: Path) -> dict[str, Any]:
    return {"url": str(blob_clip), "loop": True, "realtime": True}


def test_hello_and_heartbeat(control):
    hello = control.wait("hello")
    assert hello["pid"] == control.process.pid
    control.wait("heartbeat")


def test_a_pipeline_from_configuration_to_the_end_of_its_clip(control, spec, blob_models):
    control.apply(blob_models, gate=spec(publish_tracks=True))
    status = control.wait("status", pipeline="gate", state="stopped")
    assert status == {
        "type": "status",
        "pipeline": "gate",
        "state": "stopped",
        "device": "cpu",
        "fps": 0.0,
        "resolution": 100,
        "reason": "end of stream",
    }
    assert [(e["type"], e["label"]) for e in control.events("gate")] == [
        ("enter", "red"),
        ("enter", "green"),
        ("leave", "green"),
        ("leave", "red"),
    ]
    assert [m["n"] for m in control.of("events")] == list(range(1, len(control.of("events")) + 1))
    frames = [m["payload"]["frame"] for m in control.of("tracks", pipeline="gate")]
    assert frames == list(range(70))
    telemetry = control.wait("telemetry")
    assert set(telemetry) == {"type", "devices", "pipelines"}
    control.wait("log", level="INFO", logger="pyasc.agent.pipeline", message="pipeline gate: running")


def test_telemetry_of_devices_and_stages(control, spec, blob_models, blob_clip, until):
    control.apply(blob_models, gate=spec(source=endless(blob_clip)))

    def measured() -> Any:
        return [m for m in control.of("telemetry") if m["pipelines"].get("gate", {}).get("stages", {}).get("detect")]

    message = until(measured, "telemetry of a running pipeline")[0]
    gate = message["pipelines"]["gate"]
    assert set(gate["stages"]) == {"detect", "track"}
    assert gate["frames"] > 0
    assert message["devices"]["cpu"]["memory_free_bytes"] > 0
    assert message["devices"]["cpu"]["simulated"] is False


def figures_of(pipelines: dict[str, Any], models: Path) -> tuple[list[Any], list[str]]:
    """`devices` of three telemetry messages of an engine in this process, and what it logged of figures."""
    ours, theirs = socket.socketpair()
    codes: list[int] = []
    running = threading.Thread(target=lambda: codes.append(engine.Engine(Channel(theirs)).run()))
    running.start()
    channel = Channel(ours)
    channel.send("configure", id=1, version=1, ended=[], model_dir=str(models), pipelines=pipelines)
    channel.send("commit", id=2)
    told, logged = [], []
    for number, message in enumerate(channel.receive()):
        if message["type"] == "log" and "no figures" in message["message"]:
            logged.append(message["message"])
        if message["type"] == "telemetry" and message["devices"]:
            told.append(message["devices"])
        if len(told) == 3 or number == 1000:
            channel.send("stop")
            break
    list(channel.receive())  # until the engine has ended
    running.join(20)
    channel.close()
    assert codes == [0]
    return told, logged


def test_telemetry_has_the_trackers_device_too(spec, blobs, blob_models, blob_clip, monkeypatch):
    monkeypatch.setattr(engine, "_TELEMETRY_S", 0.05)
    monkeypatch.setattr(importlib.import_module("blobs").Nearest, "device", "mlu220", raising=False)
    told, _ = figures_of({"gate": spec(source=endless(blob_clip))}, blob_models)
    assert {tuple(sorted(devices)) for devices in told} == {("cpu", "mlu220")}
    assert told[-1]["cpu"]["memory_free_bytes"] > 0
    assert told[-1]["mlu220"]["error"].startswith("no device 'mlu220': no driver")


def test_figures_that_fail_are_told_and_end_nothing(spec, blobs, blob_models, blob_clip, monkeypatch):
    """In this process, where the driver can be made to raise what psutil does on some kernels."""

    def fail(_: Any) -> None:
        raise NotImplementedError("no frequency file at rtsp://u:p@h")

    monkeypatch.setattr(CpuDevice, "telemetry", fail)
    monkeypatch.setattr(engine, "_TELEMETRY_S", 0.05)
    told, logged = figures_of({"gate": spec(source=endless(blob_clip))}, blob_models)
    assert told == [{"cpu": {"error": "NotImplementedError: no frequency file at rtsp://***@h"}}] * 3
    assert logged == ["no figures of device cpu: NotImplementedError: no frequency file at rtsp://***@h"]


def test_faults_are_named_by_path_and_what_runs_stays(control, spec, blob_models, blob_clip):
    control.apply(blob_models, gate=spec(source=endless(blob_clip)))
    control.wait("status", pipeline="gate", state="running")
    answer = control.configure(
        blob_models,
        gate=spec(detector={"plugin": "blobs", "model": "bad.asc"}),
        door=spec(tracker={"plugin": "nearest", "reach": "far"}),
    )
    assert answer["ok"] is False
    assert sorted(error["path"] for error in answer["errors"]) == [
        "pipelines.door.tracker.reach",
        "pipelines.gate.detector.model",
    ]
    assert control.ask("commit") == {
        "type": "reply",
        "id": 4,
        "ok": False,
        "error": "nothing is built: commit without configure",
    }
    control.wait("status", since=len(control.messages), pipeline="gate", state="running")


def test_an_unchanged_pipeline_goes_on_untouched(control, spec, blob_models, blob_clip):
    gate = spec(source=endless(blob_clip))
    control.apply(blob_models, gate=gate, door=gate)
    control.wait("status", pipeline="gate", state="running")
    control.wait("status", pipeline="door", state="running")
    since = control.apply(blob_models, gate=gate, door={**gate, "zones": {"all": [[0, 0], [1, 0], [1, 1]]}})
    control.wait("status", since=since, pipeline="door", state="starting")
    control.wait("status", since=since, pipeline="door", state="running")
    assert {m["state"] for m in control.of("status", since, pipeline="gate")} <= {"running"}
    assert "stopped" in {event.get("reason") for event in control.events("door")}
    assert "stopped" not in {event.get("reason") for event in control.events("gate")}


def test_a_pipeline_that_is_removed_ends_and_says_no_more(control, spec, blob_models, blob_clip):
    control.apply(blob_models, gate=spec(source=endless(blob_clip)))
    control.wait("status", pipeline="gate", state="running")
    control.apply(blob_models)
    assert control.events("gate")[-1]["type"] == "leave"
    since = len(control.messages)
    control.wait("telemetry", since, pipelines={})
    assert not control.of("status", since)


def test_abort_throws_away_what_was_built(control, spec, blob_models):
    assert control.configure(blob_models, gate=spec())["ok"]
    assert control.ask("abort")["ok"]
    assert control.ask("commit")["ok"] is False
    assert not control.of("status")


def test_commands(control, spec, blob_models):
    control.apply(blob_models, gate=spec())
    control.wait("status", pipeline="gate", state="stopped")
    answer = control.ask("command", command="snapshot", args={"pipeline": "gate"})
    image = cv2.imdecode(np.frombuffer(base64.b64decode(answer["result"]["jpeg"]), np.uint8), cv2.IMREAD_COLOR)
    assert image.shape == (100, 200, 3)
    since = len(control.messages)
    assert control.ask("command", command="restart-pipeline", args={"pipeline": "gate"})["ok"]
    control.wait("status", since, pipeline="gate", state="running")
    for command, args, error in (
        ("snapshot", {"pipeline": "none"}, "there is no pipeline 'none' (there are: gate)"),
        ("snapshot", {}, "there is no pipeline None"),
        ("dance", {"pipeline": "gate"}, "the engine knows no command 'dance'"),
    ):
        assert error in control.ask("command", command=command, args=args)["error"]


def test_a_failing_pipeline_does_not_take_the_others_along(control, spec, blob_models, blob_clip):
    bad = spec(detector={"plugin": "blobs", "model": "blobs.asc", "fail_at": 3})
    control.apply(blob_models, gate=spec(source=endless(blob_clip)), bad=bad)
    status = control.wait("status", pipeline="bad", state="failed")
    assert status["reason"] == "RuntimeError: the detector fell over"
    control.wait("status", since=len(control.messages), pipeline="gate", state="running")


def test_stop_ends_all_and_sends_what_is_left(control, spec, blob_models, blob_clip):
    control.apply(blob_models, gate=spec(source=endless(blob_clip)))
    control.wait("events", pipeline="gate")
    control.channel.send("stop")
    assert control.ended() == 0
    control.wait("status", pipeline="gate", state="stopped")
    assert control.events("gate")[-1]["type"] == "leave"


def test_a_signal_ends_it_in_good_order(control, spec, blob_models, blob_clip):
    control.apply(blob_models, gate=spec(source=endless(blob_clip)))
    control.wait("events", pipeline="gate")
    control.process.send_signal(signal.SIGTERM)
    assert control.ended() == 0
    assert control.events("gate")[-1]["type"] == "leave"


def test_signals_in_a_burst_end_it_too(control, spec, blob_models, blob_clip):
    """A signal that interrupts the handler of another one: each parent's thread that ends sends one."""
    control.apply(blob_models, gate=spec(source=endless(blob_clip)))
    control.wait("events", pipeline="gate")
    for _ in range(2000):
        os.kill(control.process.pid, signal.SIGTERM)
    assert control.ended() == 0


def test_events_that_nobody_acknowledged_reach_the_spool_when_the_control_process_is_gone(
    start, spec, blob_models, blob_clip, tmp_path
):
    path = tmp_path / "spool.db"
    control = start("--spool", str(path))
    control.acknowledge = False
    control.apply(blob_models, gate=spec(source=endless(blob_clip)))
    control.wait("events", pipeline="gate")
    control.channel.close()
    assert control.ended() == 0
    spool = Spool(path)
    try:
        rows = [row.payload for row in spool.read(0, 1000)]
    finally:
        spool.close()
    for event in control.events("gate"):
        assert sum(event["id"].encode() in payload for payload in rows) == 1
    assert b'"leave"' in rows[-1]


def test_it_ends_without_a_spool_too(control, spec, blob_models, blob_clip):
    control.apply(blob_models, gate=spec(source=endless(blob_clip)))
    control.wait("status", pipeline="gate", state="running")
    control.channel.close()
    assert control.ended() == 0


def test_a_wedged_pipeline_ends_the_engine_so_that_a_new_one_gets_the_device(
    spec, blobs, blob_models, monkeypatch, until
):
    """In this process, where the limit can be short: the driver that hangs is a thread that waits."""
    monkeypatch.setattr(EdgeAnalyzer, "stall_s", 0.3)
    monkeypatch.setattr(stages, "_JOIN_S", 0.1)
    monkeypatch.setattr(engine, "_STOP_S", 1.0)
    hang = importlib.import_module("blobs").released
    hang.clear()
    ours, theirs = socket.socketpair()
    codes: list[int] = []
    running = threading.Thread(target=lambda: codes.append(engine.Engine(Channel(theirs)).run()))
    running.start()
    channel = Channel(ours)
    channel.send(
        "configure",
        id=1,
        version=1,
        ended=[],
        model_dir=str(blob_models),
        pipelines={"gate": spec(detector={"plugin": "blobs", "model": "blobs.asc", "hang_at": 3})},
    )
    channel.send("commit", id=2)
    messages = list(channel.receive())
    running.join(20)
    channel.close()
    hang.set()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "detect"], "the thread is free")
    assert codes == [3]
    reason = "pipeline gate is wedged, only a new process gets its device back"
    assert [m["reason"] for m in messages if m["type"] == "ending"] == [reason]
    logged = [m["message"] for m in messages if m["type"] == "log" and m["level"] == "CRITICAL"]
    assert logged == [f"the engine ends: {reason}"]
    failed = [m for m in messages if m["type"] == "status" and m["state"] == "failed"]
    assert failed[-1]["reason"] == "the detect stage has not come back from a frame for 0.3 s"
    assert [event["type"] for m in messages if m["type"] == "events" for event in m["events"]] == ["enter", "leave"]


def test_a_wrong_descriptor_is_an_error(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pyasc.agent.engine", "--fd", "77"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "77 is no channel" in done.stderr
