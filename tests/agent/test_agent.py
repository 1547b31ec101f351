"""The whole agent, `pyasc agent run` with its real engine, as an operator with a plain MQTT client sees it."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

BASE = "pyasc/gate-7/"
# The times of a file's frames are those of its clock, which the decoder is ahead of by a few frames.
LEAD = timedelta(seconds=1)
Events = list[dict[str, Any]]


class Agent:
    """`pyasc agent run` in a folder."""

    def __init__(self, folder: Path, url: str, models: Path, plugins: Path) -> None:
        self.folder = folder
        self.settings = folder / "agent.yaml"
        content = {"box": "gate-7", "broker": {"url": url}, "state_dir": "state", "model_dir": str(models)}
        self.settings.write_text(yaml.safe_dump({**content, "telemetry": {"interval_s": 1}}))
        self._environment = {**os.environ, "PYTHONPATH": str(plugins)}
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pyasc", "agent", "run", "--config", str(self.settings)]
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=self._environment)
        return self.process

    @property
    def status(self) -> Any:
        return json.loads((self.folder / "state" / "agent.status.json").read_bytes())

    def pyasc(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pyasc", "agent", *words, "--config", str(self.settings)]
        return subprocess.run(command, capture_output=True, text=True, timeout=30)

    def stop(self, number: int = signal.SIGTERM) -> int:
        children = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        self.process.send_signal(number)
        code = self.process.wait(12)
        assert not psutil.wait_procs(children, timeout=5)[1], "processes are left"
        return code


@pytest.fixture
def operator(broker: Any, make_operator: Callable[..., Any]) -> Any:
    return make_operator(broker.port)


@pytest.fixture
def agent(broker: Any, operator: Any, blob_models: Path, blobs: Path, tmp_path: Path) -> Iterator[Agent]:
    folder = tmp_path / "agent"
    folder.mkdir()
    running = Agent(folder, broker.url, blob_models, blobs)
    operator.wait(f"{BASE}status", lambda status: status["state"] == "online")
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture
def document(blob_clip: Path) -> Callable[..., dict[str, Any]]:
    def make(version: int, **changes: Any) -> dict[str, Any]:
        gate = {
            "source": {"url": str(blob_clip), "loop": True},
            "detector": {"plugin": "blobs", "model": "blobs.asc"},
            "tracker": {"plugin": "nearest"},
            "lines": {"middle": [[0.5, 0.0], [0.5, 1.0]]},
        }
        return {"version": version, "pipelines": {"gate": {**gate, **changes}}}

    return make


def events_of(operator: Any, pipeline: str = "gate") -> Events:
    return list(operator.of(f"{BASE}pipelines/{pipeline}/events"))


def assert_nothing_lost(events: Events) -> None:
    by_seq: dict[int, Any] = {}
    for event in events:
        assert by_seq.setdefault(event["seq"], event) == event, "a repetition has the same id and content"
    assert sorted(by_seq) == list(range(1, len(by_seq) + 1)), "the sequence has no gap"
    assert len({event["id"] for event in by_seq.values()}) == len(by_seq)


def stays(events: Events, kind: str) -> list[tuple[int, str]]:
    return sorted({(event["track"], event.get("zone", "")) for event in events if event["type"] == kind})


def test_one_clip_gives_the_known_events_and_the_agent_ends_cleanly(
    agent: Agent, operator: Any, document: Any, blob_clip: Path, until: Any
) -> None:
    """The red square walks over the middle line from left to right; the green one stands in frames 10 to 24."""
    operator.publish(f"{BASE}config/set", document(1, source={"url": str(blob_clip)}))
    assert operator.wait(f"{BASE}config")["state"] == "applied"
    operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "stopped")
    until(lambda: agent.status["pipelines"].get("gate", {}).get("state") == "stopped", "the status file says so too")
    status = agent.pyasc("status", "--json")
    assert status.returncode == 0
    assert json.loads(status.stdout)["agent"]["pipelines"]["gate"]["state"] == "stopped"
    assert "gate: stopped" in agent.pyasc("status").stdout
    assert agent.stop() == 0
    assert operator.wait(f"{BASE}status", lambda status: status["state"] == "offline")["reason"] == "stopped"
    events = events_of(operator)
    assert_nothing_lost(events)
    assert {(e["type"], e["label"]) for e in events} == {
        ("enter", "red"), ("leave", "red"), ("cross", "red"), ("enter", "green"), ("leave", "green"),
    }  # fmt: skip
    crossings = [event for event in events if event["type"] == "cross"]
    assert [event["line"] for event in crossings] == ["middle"]
    again = agent.pyasc("status")
    assert (again.returncode, again.stdout) == (1, "not running\n")


def test_a_file_that_has_ended_is_not_run_again_unless_it_is_asked_for(
    agent: Agent, operator: Any, document: Any, blob_clip: Path
) -> None:
    """Neither by another engine nor by another agent; by the command, and by another specification."""

    def ended(since: int) -> Any:
        return operator.wait(f"{BASE}pipelines/gate/status", lambda s: s.get("reason") == "end of stream", since)

    def entered() -> int:
        return sum(event["type"] == "enter" for event in events_of(operator))

    wanted = document(1, source={"url": str(blob_clip)})
    operator.publish(f"{BASE}config/set", wanted)
    ended(0)
    assert entered() == 2
    for way in ("killed engine", "killed agent", "ended agent"):
        since = len(operator.messages)
        if way == "killed engine":
            os.kill(agent.status["engine"]["pid"], signal.SIGKILL)
        else:
            agent.stop(signal.SIGKILL) if way == "killed agent" else agent.stop()
            agent.start()
        operator.wait(f"{BASE}status", lambda status: status["state"] != "online", since)
        operator.wait(f"{BASE}status", lambda status: status["state"] == "online", since)
        assert ended(since)["state"] == "stopped"
        operator.publish(f"{BASE}cmd/ping", {"id": way})
        operator.wait(f"{BASE}cmd/ping/reply", lambda reply, way=way: reply["id"] == way)
        assert entered() == 2, way
    since = len(operator.messages)
    operator.publish(f"{BASE}cmd/restart-pipeline", {"id": 1, "pipeline": "gate"})
    operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "running", since)
    ended(since)
    assert entered() == 4
    since = len(operator.messages)
    operator.publish(f"{BASE}config/set", document(2, source={"url": str(blob_clip), "every": 2}))
    operator.wait(f"{BASE}config", lambda report: report["version"] == 2, since)
    ended(since)
    assert entered() == 6
    assert_nothing_lost(events_of(operator))


def test_reconfigured_while_running_only_what_differs_changes(
    agent: Agent, operator: Any, document: Any, until: Any
) -> None:
    wanted = document(1)
    operator.publish(f"{BASE}config/set", wanted)
    operator.wait(f"{BASE}config", lambda report: report["state"] == "applied")
    until(lambda: len(events_of(operator)) > 6, "events come")
    more = json.loads(json.dumps(wanted))
    more["version"], more["pipelines"]["yard"] = 2, wanted["pipelines"]["gate"]
    tracks = {event["track"] for event in events_of(operator)}
    operator.publish(f"{BASE}config/set", more)
    operator.wait(f"{BASE}config", lambda report: (report["version"], report["state"]) == (2, "applied"))
    until(lambda: events_of(operator, "yard"), "the new pipeline has events")
    until(
        lambda: max(event["track"] for event in events_of(operator)) > max(tracks) + 2, "the old one goes on counting"
    )
    agent.stop()
    for pipeline in ("gate", "yard"):
        events = events_of(operator, pipeline)
        assert_nothing_lost(events)
        assert stays(events, "enter") == stays(events, "leave")
        assert not {"stopped"} & {event.get("reason") for event in events[:-6]}, (
            "the old one was not stopped in between"
        )


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"detector": {"plugin": "blobs", "model": "bad.asc"}}, "pipelines.gate.detector.model"),
        ({"detector": {"plugin": "blobs", "model": "blobs.asc", "treshold": 3}}, "pipelines.gate.detector.treshold"),
        (
            {"detector": {"plugin": "blobs", "model": "blobs.asc", "threshold": 300}},
            "pipelines.gate.detector.threshold",
        ),
        ({"detector": {"plugin": "absent", "model": "blobs.asc"}}, "pipelines.gate.detector.plugin"),
        ({"detector": {"plugin": "blobs", "model": "blobs.asc", "device": "mlu999"}}, "pipelines.gate.detector.device"),
        ({"zones": {"door": [[0, 0], [1, 1]]}}, "pipelines.gate.zones.door"),
    ],
)
def test_bad_configuration_is_named_by_path_and_the_running_one_stays(
    agent: Agent, operator: Any, document: Any, until: Any, change: dict[str, Any], path: str
) -> None:
    operator.publish(f"{BASE}config/set", document(1))
    operator.wait(f"{BASE}config", lambda report: report["state"] == "applied")
    operator.publish(f"{BASE}config/set", document(2, **change))
    report = operator.wait(f"{BASE}config", lambda report: report["state"] == "rejected")
    assert [error["path"] for error in report["errors"]] == [path]
    count = len(events_of(operator))
    until(lambda: len(events_of(operator)) > count, "the running configuration goes on")
    assert_nothing_lost(events_of(operator))


def test_killed_broker_engine_and_agent_lose_no_event(
    agent: Agent, operator: Any, document: Any, until: Any, broker: Any, make_operator: Any
) -> None:
    operator.close()
    operator = make_operator(broker.port, session="operator")
    operator.publish(f"{BASE}config/set", document(1), retain=True)
    operator.wait(f"{BASE}config", lambda report: report["state"] == "applied")
    until(lambda: len(events_of(operator)) > 6, "events come")

    since = len(operator.messages)
    os.kill(agent.status["engine"]["pid"], signal.SIGKILL)
    operator.wait(f"{BASE}status", lambda status: "SIGKILL" in status.get("reason", ""), since)
    operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "running", since)

    operator.ready.clear()
    broker.stop()
    until(lambda: agent.status["spool"]["pending"] > 10, "events are kept while the broker is away")
    broker.start()
    assert operator.ready.wait(20)
    until(lambda: agent.status["spool"]["pending"] < 5, "the backlog is sent")

    since = len(operator.messages)
    agent.process.kill()
    agent.process.wait(10)
    operator.wait(f"{BASE}status", lambda status: status.get("reason") == "connection lost", since)
    agent.start()
    operator.wait(f"{BASE}status", lambda status: status["state"] == "online", since)
    operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "running", since)
    count = len(events_of(operator))
    until(lambda: len(events_of(operator)) > count + 6, "events come again")
    assert agent.stop(signal.SIGINT) == 0
    operator.wait(f"{BASE}status", lambda status: status.get("reason") == "stopped", since)
    events = events_of(operator)
    assert_nothing_lost(events)
    assert stays(events, "enter") == stays(events, "leave")


def test_every_fault_is_named_in_one_report(agent: Agent, operator: Any, document: Any) -> None:
    detector = {"plugin": "yolov5", "model": "blobs.asc", "confidenc": 0.3}
    shapes = {"zones": {"door": [[0, 0], [1, 1]]}, "colour": "red"}
    operator.publish(
        f"{BASE}config/set",
        document(1, source={"url": "ftp://x"}, detector=detector, tracker={"plugin": "deepsrt"}, **shapes),
    )
    report = operator.wait(f"{BASE}config")
    assert report["state"] == "rejected"
    assert {error["path"].removeprefix("pipelines.gate."): error["message"] for error in report["errors"]} == {
        "colour": "unknown key",
        "detector.confidenc": "unknown key (did you mean `confidence`?)",
        "source.url": "scheme 'ftp' is not one of rtsp, rtsps, http, https, file",
        "tracker.plugin": "no plugin named 'deepsrt' (did you mean `deepsort`?)",
        "zones.door": "has 2 entries, at least 3 are needed",
    }
    assert operator.of(f"{BASE}config") == [report]


def test_snapshot_is_a_picture_of_the_pipeline(agent: Agent, operator: Any, document: Any, blob_clip: Path) -> None:
    import cv2
    import numpy as np

    began = datetime.now(timezone.utc)
    operator.publish(f"{BASE}config/set", document(1, source={"url": str(blob_clip), "loop": True, "realtime": True}))
    operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "running")
    operator.publish(f"{BASE}cmd/snapshot", {"id": 1, "pipeline": "gate"})
    reply = operator.wait(f"{BASE}cmd/snapshot/reply")
    assert reply["ok"] is True
    picture = cv2.imdecode(np.frombuffer(base64.b64decode(reply["result"]["jpeg"]), np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    assert picture.shape == (100, 200, 3)
    assert (reply["result"]["width"], reply["result"]["height"]) == (200, 100)
    taken = datetime.fromisoformat(reply["result"]["time"].replace("Z", "+00:00"))
    assert began - LEAD <= taken <= datetime.now(timezone.utc) + LEAD


def test_control_process_stays_small_and_loads_no_array_library(agent: Agent, operator: Any, document: Any) -> None:
    operator.publish(f"{BASE}config/set", document(1))
    operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "running")
    telemetry = operator.wait(f"{BASE}telemetry", lambda content: content["pipelines"])
    assert telemetry["agent"]["rss"] < 64 * 1024 * 1024
    mapped = {Path(part.path).name for part in psutil.Process(agent.process.pid).memory_maps()}
    assert mapped
    assert not [name for name in mapped if "cv2" in name or "_multiarray" in name or "openblas" in name.lower()]
