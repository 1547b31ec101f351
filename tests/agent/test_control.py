"""The agent as an operator sees it: a real control process, a real broker, an engine process that does what it is told."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

HERE = Path(__file__).parent
BASE = "pyasc/gate-7/"
SET = f"{BASE}config/set"
ENGINE = (sys.executable, str(HERE / "engine_program.py"))


def document(version: int, **behave: str) -> dict[str, Any]:
    """A configuration with a pipeline for each keyword, which behaves so."""
    detector = {"plugin": "yolov5", "model": "m.asc"}
    pipelines = {
        name: {"source": {"url": "x.mp4"}, "detector": {**detector, "behave": how}} for name, how in behave.items()
    }
    return {"version": version, "pipelines": pipelines}


class Agent:
    """A control process in a folder."""

    def __init__(self, folder: Path, url: str, engine: tuple[str, ...] = ENGINE, **settings: Any) -> None:
        self.folder = folder
        (folder / "models").mkdir(exist_ok=True)
        (folder / "models" / "m.asc").touch()
        content = {
            "box": "gate-7",
            "broker": {"url": url},
            "state_dir": ".",
            "telemetry": {"interval_s": 1},
            **settings,
        }
        (folder / "agent.yaml").write_text(yaml.safe_dump(content))
        self._command = [sys.executable, str(HERE / "run_control.py"), str(folder / "agent.yaml"), *engine]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(self._command, stderr=log, env={**os.environ, **environment})

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text(errors="replace")

    @property
    def status(self) -> Any:
        try:
            return json.loads((self.folder / "agent.status.json").read_bytes())
        except FileNotFoundError:
            return {}

    @property
    def engine_pid(self) -> int:
        return int(self.status["engine"]["pid"])

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """End it as systemd does; nothing of it is left."""
        if self.process is None:
            return 0
        children = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        self.process.terminate()
        code = self.process.wait(10)
        self.process = None
        _, left = psutil.wait_procs(children, timeout=5)
        assert not left, "processes are left"
        return code


@pytest.fixture
def make_agent(tmp_path: Path, broker: Any) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(url: str, engine: tuple[str, ...] = ENGINE, **settings: Any) -> Agent:
        folder = tmp_path / f"agent{len(made)}"
        folder.mkdir()
        made.append(Agent(folder, url, engine, **settings))
        made[-1].start()
        return made[-1]

    yield make
    for agent in made:
        agent.stop()


@pytest.fixture
def agent(make_agent: Any, broker: Any, operator: Any) -> Agent:
    started: Agent = make_agent(broker.url)
    operator.wait(f"{BASE}status", lambda status: status["state"] == "online")
    return started


@pytest.fixture
def operator(broker: Any, make_operator: Any) -> Any:
    return make_operator(broker.port)


def applied(version: int) -> Callable[[Any], bool]:
    return lambda report: report["state"] == "applied" and report["version"] == version


def refused(version: int | None, state: str = "rejected") -> Callable[[Any], bool]:
    return lambda report: report["state"] == state and report["version"] == version


def events_of(operator: Any, pipeline: str = "gate") -> list[Any]:
    return operator.of(f"{BASE}pipelines/{pipeline}/events")


def assert_nothing_lost(events: list[Any]) -> None:
    """The sequence counts up without a gap; repetitions have the same id and content."""
    by_seq: dict[int, Any] = {}
    for event in events:
        assert by_seq.setdefault(event["seq"], event) == event
    assert sorted(by_seq) == list(range(1, len(by_seq) + 1))
    assert len({event["id"] for event in by_seq.values()}) == len(by_seq)
    firsts = list(dict.fromkeys(event["seq"] for event in events))
    assert firsts == sorted(firsts), "events come in order"


def test_configure_see_events_reconfigure_and_stop(
    agent: Agent, operator: Any, broker: Any, until: Any, make_operator: Any
) -> None:
    operator.publish(SET, document(1, gate="", yard="quiet"))
    report = operator.wait(f"{BASE}config", applied(1))
    assert report["errors"] == []
    assert re.fullmatch("[0-9a-f]{64}", report["sha256"])
    status = operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "running")
    assert (status["device"], status["fps"], status["resolution"]) == ("cpu", 25.0, 720)
    until(lambda: len(events_of(operator)) > 10, "events come")
    assert {event["type"] for event in events_of(operator)} == {"enter", "cross", "leave"}
    telemetry = operator.wait(f"{BASE}telemetry", lambda content: "gate" in content["pipelines"])
    assert {"time", "cpu", "memory", "disk", "temperature", "uptime", "devices", "pipelines", "spool"} <= set(telemetry)
    assert telemetry["spool"]["dropped"] == 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", telemetry["time"])

    operator.publish(SET, document(2, gate="", door=""))
    operator.wait(f"{BASE}config", applied(2))
    until(lambda: events_of(operator, "door"), "the new pipeline runs")
    until(lambda: "kept ['gate']" in agent.log, "the unchanged one goes on")
    late = make_operator(broker.port)
    late.wait(f"{BASE}pipelines/gate/status")
    assert {topic for topic, _, retained, _ in late.messages if retained} == {
        f"{BASE}{topic}" for topic in ("status", "config", "pipelines/gate/status", "pipelines/door/status")
    }, "the state of the pipeline that was taken out is gone"

    assert agent.stop() == 0
    offline = operator.wait(f"{BASE}status", lambda status: status["state"] == "offline")
    assert offline["reason"] == "stopped"
    assert_nothing_lost(events_of(operator))
    assert "heavy modules: []" in agent.log
    entered = [event["track"] for event in events_of(operator) if event["type"] == "enter"]
    left = [event["track"] for event in events_of(operator) if event["type"] == "leave"]
    assert sorted(entered) == sorted(left), "each track that entered has left"


BAD = [
    (
        "version: 2\npipelines: {gate: {source: {url: x}, detektor: {}}}",
        "pipelines.gate.detektor",
        "did you mean `detector`",
    ),
    (json.dumps(document(2, gate="")).replace("m.asc", "absent.asc"), "pipelines.gate.detector.model", "no file"),
    (json.dumps(document(0, gate="")), "version", "stale"),
    (json.dumps(document(1, gate="quiet")), "version", "other content"),
    (json.dumps(document(2, gate="refuse")), "pipelines.gate.detector.behave", "is refused"),
    ("a: &x [1]", "", "anchors"),
    (b"\xff\xfe\x00", "", "UTF-8"),
    ("[" * 5000, "", "nest"),
    ("x" * 300_000, "", "limit"),
    (json.dumps(document(2, gate="crash-build")), "", "killed by SIGSEGV"),
]


def test_bad_configuration_is_refused_by_path_and_the_running_one_stays(
    agent: Agent, operator: Any, until: Any
) -> None:
    operator.publish(SET, document(1, gate=""))
    operator.wait(f"{BASE}config", applied(1))
    for bad, path, says in BAD:
        since = len(operator.messages)
        operator.publish(SET, bad)
        report = operator.wait(f"{BASE}config", lambda report: report["state"] == "rejected", since)
        assert path in [error["path"] for error in report["errors"]], bad
        assert any(says in error["message"] for error in report["errors"]), bad
        assert report["running"]["version"] == 1
    count = len(events_of(operator))
    until(lambda: len(events_of(operator)) > count, "the running configuration goes on")
    assert "kept ['gate']" not in agent.log, "the engine was told to switch to none of them"
    agent.stop()
    assert_nothing_lost(events_of(operator))


@pytest.mark.parametrize(
    ("behave", "path", "says"),
    [
        ("fail", "pipelines.gate", "as told"),
        ("never", "pipelines.gate", "did not come up"),
        ("crash", "", "ended 2 times in a row"),
    ],
)
def test_configuration_that_does_not_come_up_is_rolled_back_and_not_tried_again(
    agent: Agent, operator: Any, until: Any, behave: str, path: str, says: str
) -> None:
    operator.publish(SET, document(1, gate="", yard="quiet"))
    operator.wait(f"{BASE}config", applied(1))
    operator.publish(SET, document(2, gate=behave, yard="quiet"), retain=True)
    report = operator.wait(f"{BASE}config", refused(2, "rolled-back"))
    assert [error["path"] for error in report["errors"]] == [path]
    assert says in report["errors"][0]["message"]
    assert report["running"]["version"] == 1
    count = len(events_of(operator))
    until(lambda: len(events_of(operator)) > count, "the one before runs again")
    agent.kill()
    since = len(operator.messages)
    agent.start()
    operator.wait(f"{BASE}config", refused(2, "rolled-back"), since)
    assert operator.last(f"{BASE}config")["running"]["version"] == 1
    operator.publish(SET, document(3, gate=""))
    operator.wait(f"{BASE}config", applied(3))


def test_first_configuration_that_fails_leaves_nothing_running(agent: Agent, operator: Any) -> None:
    operator.publish(SET, document(1, gate="fail"))
    assert operator.wait(f"{BASE}config", refused(1, "rolled-back"))["running"] is None
    operator.publish(SET, document(1, gate="quiet"))
    operator.wait(f"{BASE}config", applied(1))


def test_source_that_is_away_is_no_fault_of_the_configuration(agent: Agent, operator: Any) -> None:
    operator.publish(SET, document(1, gate="away"))
    operator.wait(f"{BASE}config", applied(1))
    assert operator.wait(f"{BASE}pipelines/gate/status")["state"] == "reconnecting"


def test_status_file_follows_a_pipeline_where_nothing_else_changes(agent: Agent, operator: Any, until: Any) -> None:
    operator.publish(SET, document(1, gate="away-later"))
    until(lambda: agent.status["pipelines"].get("gate", {}).get("state") == "running", "it runs")
    until(lambda: agent.status["pipelines"]["gate"]["state"] == "reconnecting", "its source is away")


def test_pipeline_that_fails_later_degrades_the_box(agent: Agent, operator: Any) -> None:
    operator.publish(SET, document(1, gate="fail-later", yard=""))
    operator.wait(f"{BASE}config", applied(1))
    degraded = operator.wait(f"{BASE}status", lambda status: status["state"] == "degraded")
    assert degraded["reason"] == "failed pipelines: gate: as told"
    assert (
        operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "failed")["reason"] == "as told"
    )
    assert operator.last(f"{BASE}config")["state"] == "applied"
    since = len(operator.messages)
    operator.publish(SET, document(2, gate="quiet", yard=""))
    operator.wait(f"{BASE}status", lambda status: status["state"] == "online", since)


def test_newest_document_wins(agent: Agent, operator: Any) -> None:
    for version in (1, 2, 3, 4):
        operator.publish(SET, document(version, gate="slow"))
    operator.wait(f"{BASE}config", applied(4))
    reports = [(report["version"], report["state"]) for report in operator.of(f"{BASE}config")]
    assert reports[-1] == (4, "applied")
    assert set(reports[:-1]) <= {(1, "applied"), (1, "rejected"), (2, "rejected"), (3, "rejected")}


def test_same_document_again_is_acknowledged_again_and_changes_nothing(agent: Agent, operator: Any, until: Any) -> None:
    wanted = document(1, gate="quiet")
    operator.publish(SET, wanted)
    operator.wait(f"{BASE}config", applied(1))
    operator.publish(SET, json.dumps(wanted, indent=4), retain=True)
    until(lambda: agent.log.count("configuration 1 is applied") == 2, "acknowledged again")
    assert agent.log.count("kept [") == 1, "the engine was asked once"


@pytest.mark.parametrize("kill", [False, True])
def test_broker_that_goes_and_comes_back_loses_no_event(
    make_agent: Any, make_operator: Any, broker: Any, until: Any, kill: bool
) -> None:
    operator = make_operator(broker.port, session="operator")
    agent = make_agent(broker.url)
    operator.wait(f"{BASE}status", lambda status: status["state"] == "online")
    operator.publish(SET, document(1, gate=""))
    operator.wait(f"{BASE}config", applied(1))
    until(lambda: len(events_of(operator)) > 5, "events come")
    operator.ready.clear()
    broker.stop(kill=kill)
    until(lambda: agent.status["broker"]["state"] == "unreachable", "the loss is noticed")
    until(lambda: agent.status["spool"]["pending"] > 20, "events are kept")
    since = len(operator.messages)
    broker.start()
    assert operator.ready.wait(20)
    operator.wait(f"{BASE}status", lambda status: status["state"] == "online", since)
    operator.wait(f"{BASE}config", applied(1), since)
    operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "running", since)
    until(lambda: agent.status["spool"]["pending"] < 5, "the backlog is sent")
    agent.stop()
    operator.wait(f"{BASE}status", lambda status: status["state"] == "offline", since)
    if not kill:
        assert_nothing_lost(events_of(operator))
        return
    # The killed broker has forgotten the operator's session, so its own log says what it was sent.
    sequence = [event["seq"] for event in events_of(operator)]
    assert broker.log.count(f"'{BASE}pipelines/gate/events', ... (") >= 2 * len(set(sequence))
    assert len(re.findall(rf"Received PUBLISH from pyasc-gate-7 .*'{BASE}pipelines/gate/events'", broker.log)) >= max(
        sequence
    )


def test_killed_engine_loses_no_event_and_closes_its_tracks(agent: Agent, operator: Any, until: Any) -> None:
    operator.publish(SET, document(1, gate=""))
    operator.wait(f"{BASE}config", applied(1))
    until(lambda: len(events_of(operator)) > 10, "events come")
    since = len(operator.messages)
    os.kill(agent.engine_pid, signal.SIGKILL)
    operator.wait(
        f"{BASE}status", lambda status: status["state"] == "degraded" and "SIGKILL" in status["reason"], since
    )
    operator.wait(f"{BASE}status", lambda status: status["state"] == "online", since)
    operator.wait(f"{BASE}pipelines/gate/events", lambda event: event.get("reason") == "engine-restarted", since)
    operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "running", since)
    count = len(events_of(operator))
    until(lambda: len(events_of(operator)) > count + 5, "events come again")
    agent.stop()
    assert_nothing_lost(events_of(operator))
    assert operator.last(f"{BASE}config")["state"] == "applied"


def test_engine_that_ends_by_itself_says_why(agent: Agent, operator: Any) -> None:
    operator.publish(SET, document(1, gate="wedge"))
    operator.wait(f"{BASE}config", applied(1))
    since = len(operator.messages)
    operator.publish(f"{BASE}cmd/restart-pipeline", {"id": 1, "pipeline": "gate"})
    reason = "the engine is down: pipeline gate is wedged"
    operator.wait(f"{BASE}status", lambda status: status.get("reason") == reason, since)
    gone = operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "starting", since)
    assert gone["reason"] == "the engine ended: pipeline gate is wedged"
    operator.publish(f"{BASE}cmd/logs", {"id": 2})
    records = operator.wait(f"{BASE}cmd/logs/reply")["result"]["records"]
    assert "the engine has ended: pipeline gate is wedged" in [record["message"] for record in records]


def test_pipelines_start_while_the_engine_is_started_again(agent: Agent, operator: Any) -> None:
    """An engine that ends in good order says `stopped` of its pipelines; those that had come to their end stay so."""
    operator.publish(SET, document(1, gate="quiet", clip="ended"))
    operator.wait(f"{BASE}config", applied(1))
    since = len(operator.messages)
    operator.publish(f"{BASE}cmd/reboot-engine", {"id": 1})
    operator.wait(f"{BASE}cmd/reboot-engine/reply")
    operator.wait(f"{BASE}pipelines/gate/status", lambda status: status["state"] == "running", since)
    told = [content for name, content, _, _ in operator.messages[since:] if name == f"{BASE}pipelines/gate/status"]
    states = [(status["state"], status.get("reason")) for status in told]
    assert states[-2:] == [("starting", "the engine ended: restarted on request"), ("running", None)]
    assert {status["reason"] for status in operator.of(f"{BASE}pipelines/clip/status")} == {"end of stream"}


def test_what_an_engine_leaves_behind_does_not_keep_the_next_one_away(agent: Agent, operator: Any, until: Any) -> None:
    operator.publish(SET, document(1, gate="orphan"))
    until(lambda: agent.status["engine"]["restarts"] > 0 and agent.status["engine"]["up"], "another engine")


def test_hung_engine_is_ended(agent: Agent, operator: Any) -> None:
    operator.publish(SET, document(1, gate="quiet"))
    operator.wait(f"{BASE}config", applied(1))
    os.kill(agent.engine_pid, signal.SIGSTOP)
    operator.wait(f"{BASE}status", lambda status: "no sign of life" in status.get("reason", ""))
    operator.wait(f"{BASE}status", lambda status: status["state"] == "online", len(operator.messages) - 1)


def test_killed_agent_goes_on_where_it_was(agent: Agent, operator: Any, until: Any) -> None:
    operator.publish(SET, document(1, gate=""))
    operator.wait(f"{BASE}config", applied(1))
    until(lambda: len(events_of(operator)) > 10, "events come")
    engine = psutil.Process(agent.engine_pid)
    since = len(operator.messages)
    agent.kill()
    engine.wait(10)
    will = operator.wait(f"{BASE}status", lambda status: status["state"] == "offline", since)
    assert will["reason"] == "connection lost"
    agent.start()
    operator.wait(f"{BASE}config", applied(1), since)
    operator.wait(f"{BASE}pipelines/gate/events", lambda event: event.get("reason") == "agent-restarted", since)
    count = len(events_of(operator))
    until(lambda: len(events_of(operator)) > count + 5, "events come again")
    agent.stop()
    assert_nothing_lost(events_of(operator))
    boots = [status["boot"] for status in operator.of(f"{BASE}status")]
    assert len(set(boots)) == 2


def test_commands(agent: Agent, operator: Any) -> None:
    operator.publish(SET, document(1, gate="quiet"))
    operator.wait(f"{BASE}config", applied(1))

    def ask(command: str, request: Any, key: Any = None) -> Any:
        since = len(operator.messages)
        operator.publish(f"{BASE}cmd/{command}", request)
        return operator.wait(f"{BASE}cmd/{command}/reply", lambda reply: reply["id"] == key, since)

    assert ask("ping", {"id": "a"}, "a")["result"]["version"]
    assert ask("ping", "")["ok"] is True
    snapshot = ask("snapshot", {"id": 5, "pipeline": "gate"}, 5)
    assert snapshot["result"]["width"] == 1280
    assert "no pipeline 'x'" in ask("snapshot", {"id": 6, "pipeline": "x"}, 6)["error"]
    assert ask("restart-pipeline", {"id": 7, "pipeline": "gate"}, 7)["ok"] is True
    for later in ("profile", "update"):
        assert ask(later, {"id": 8}, 8) == {"id": 8, "ok": False, "error": "not available in this version"}
    assert "no such command; there are: logs, ping" in ask("format-disk", {"id": 9}, 9)["error"]
    records = ask("logs", {"id": 10, "count": 50}, 10)["result"]["records"]
    assert any("rtsp://***@camera/1" in record["message"] for record in records)
    assert "hunter2" not in json.dumps(records)
    assert ask("logs", {"id": 11, "count": "all"}, 11)["ok"] is False
    assert "unknown key" in ask("ping", {"id": 12, "x": 1}, 12)["error"]
    before = agent.engine_pid
    assert ask("reboot-engine", {"id": 13}, 13)["result"]["pid"] != before
    for hostile in (b"\xff", "[1]", "{", "[" * 9000, '{"id": {}}', '{"id": 1e999}', "x" * 70_000):
        assert ask("ping", hostile)["ok"] is False


def test_reply_goes_to_the_response_topic_with_its_correlation_data(agent: Agent, operator: Any, until: Any) -> None:
    properties = Properties(PacketTypes.PUBLISH)
    properties.ResponseTopic = "pyasc/operator/answers"
    properties.CorrelationData = b"\x00\x01"
    operator.publish(f"{BASE}cmd/ping", {"id": 1}, properties=properties)
    operator.wait("pyasc/operator/answers")
    (found,) = [message for message in operator.messages if message[0] == "pyasc/operator/answers"]
    assert found[3].CorrelationData == b"\x00\x01"
    for own in ("config/set", "status", "cmd/ping"):
        properties.ResponseTopic = f"{BASE}{own}"
        operator.publish(f"{BASE}cmd/ping", {"id": 2}, properties=properties)
    until(lambda: agent.log.count("no place for it") == 3, "answers on the box's own topics are refused")


def test_messages_of_no_sense_from_the_engine_are_survived(agent: Agent, operator: Any) -> None:
    operator.publish(SET, document(1, gate="garbage"))
    operator.wait(f"{BASE}telemetry", lambda content: content["agent"]["malformed"] > 0)
    assert operator.wait(f"{BASE}config", lambda report: report["version"] == 1)["state"] == "applied"


def test_engine_that_cannot_start_leaves_the_box_reachable(make_agent: Any, broker: Any, operator: Any) -> None:
    make_agent(broker.url, engine=(*ENGINE, "--hello", "no"))
    operator.wait(f"{BASE}status", lambda status: status["state"] == "degraded" and "exit code 3" in status["reason"])
    operator.publish(f"{BASE}cmd/ping", {"id": 1})
    assert operator.wait(f"{BASE}cmd/ping/reply")["ok"] is True
    operator.publish(f"{BASE}cmd/snapshot", {"id": 2, "pipeline": "gate"})
    assert operator.wait(f"{BASE}cmd/snapshot/reply")["error"] == "the engine is down"


def test_one_agent_a_state_folder(agent: Agent) -> None:
    second = Agent(agent.folder, "mqtt://127.0.0.1:1")
    command = [sys.executable, str(HERE / "run_control.py"), str(second.folder / "agent.yaml"), *ENGINE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        == f"another agent (process {agent.process.pid if agent.process else 0}) uses {agent.folder}"
    )


def test_systemd_hears_when_it_works_and_that_the_loop_goes_round(make_agent: Any, broker: Any, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(15)
        agent = make_agent(broker.url)
        agent.stop()
        agent.start(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="1000000")
        heard = ""
        while "READY=1" not in heard or heard.count("WATCHDOG=1") < 3:
            heard += systemd.recv(4096).decode() + "\n"
        agent.stop()
        while "STOPPING=1" not in heard:
            heard += systemd.recv(4096).decode() + "\n"


def test_ready_does_not_wait_for_the_broker(make_agent: Any, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(15)
        agent = make_agent("mqtt://127.0.0.1:1")
        agent.stop()
        agent.start(NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert systemd.recv(4096).startswith(b"READY=1")


def test_small_window_of_the_broker_and_a_picture_that_is_too_large(
    make_broker: Any, make_operator: Any, make_agent: Any, until: Any
) -> None:
    running = make_broker("allow_anonymous true\nmax_inflight_messages 2\nmax_packet_size 6000")
    operator = make_operator(running.port)
    agent = make_agent(running.url)
    operator.wait(f"{BASE}status")
    operator.publish(SET, document(1, gate="busy", wall="poster"))
    operator.wait(f"{BASE}config", applied(1))
    operator.publish(f"{BASE}cmd/snapshot", {"id": 1, "pipeline": "gate"})
    assert operator.wait(f"{BASE}cmd/snapshot/reply", lambda reply: reply["id"] == 1)["ok"] is True
    operator.publish(f"{BASE}cmd/snapshot", {"id": 2, "pipeline": "wall"})
    refusal = operator.wait(f"{BASE}cmd/snapshot/reply", lambda reply: reply["id"] == 2)
    assert "over the broker's limit of 6000" in refusal["error"]
    until(lambda: len(events_of(operator)) > 40, "events come through the small window")
    agent.stop()
    assert_nothing_lost(events_of(operator))


def test_whole_way_with_mqtt_311(amqtt_port: int, make_operator: Any, make_agent: Any, until: Any) -> None:
    operator = make_operator(amqtt_port, protocol=MQTTProtocolVersion.MQTTv311)
    agent = make_agent(f"mqtt://127.0.0.1:{amqtt_port}")
    operator.wait(f"{BASE}status", lambda status: status["state"] == "online")
    operator.publish(SET, document(1, gate=""))
    operator.wait(f"{BASE}config", applied(1))
    operator.publish(f"{BASE}cmd/ping", {"id": "x"})
    assert operator.wait(f"{BASE}cmd/ping/reply")["id"] == "x"
    until(lambda: len(events_of(operator)) > 10, "events come")
    until(lambda: agent.status["broker"]["protocol"] == "3.1.1", "the status file says so")
    assert agent.stop() == 0
    assert operator.wait(f"{BASE}status", lambda status: status["state"] == "offline")["reason"] == "stopped"
    assert_nothing_lost(events_of(operator))


def test_broker_that_refuses_events_gets_them_when_it_takes_them(
    make_broker: Any, make_operator: Any, make_agent: Any, until: Any, tmp_path: Path
) -> None:
    rights = tmp_path / "rights"
    rights.write_text(f"topic readwrite #\ntopic deny {BASE}pipelines/gate/events\n")
    rights.chmod(0o644)
    running = make_broker(f"allow_anonymous true\nacl_file {rights}")
    operator = make_operator(running.port)
    agent = make_agent(running.url)
    operator.wait(f"{BASE}status")
    operator.publish(SET, document(1, gate=""))
    refusal = operator.wait(f"{BASE}status", lambda status: status["state"] == "degraded")
    assert "the broker does not take events: Not authorized" in refusal["reason"]
    until(lambda: agent.status["spool"]["pending"] > 30, "events are kept")
    assert events_of(operator) == []
    rights.write_text("topic readwrite #\n")
    running.reload()
    operator.wait(f"{BASE}status", lambda status: status["state"] == "online", len(operator.messages))
    until(lambda: agent.status["spool"]["pending"] < 5, "all are sent")
    agent.stop()
    assert_nothing_lost(events_of(operator))


def test_what_stands_retained_at_the_broker_from_before(
    make_agent: Any, broker: Any, operator: Any, make_operator: Any, until: Any
) -> None:
    operator.publish(f"{BASE}pipelines/old/status", {"state": "running"}, retain=True)
    operator.publish(f"{BASE}cmd/reboot-engine", {"id": 1}, retain=True)
    operator.publish(SET, document(1, gate="quiet"), retain=True)
    agent = make_agent(broker.url)
    operator.wait(f"{BASE}config", applied(1))
    until(lambda: "retained command reboot-engine is not carried out" in agent.log, "the old command is left alone")
    assert agent.status["engine"]["restarts"] == 0
    until(lambda: operator.last(f"{BASE}pipelines/old/status") is None, "the state of a pipeline of before is cleared")
    late = make_operator(broker.port)
    late.wait(f"{BASE}pipelines/gate/status")
    assert late.of(f"{BASE}pipelines/old/status") == []


def test_late_will_of_an_earlier_connection_is_corrected(
    agent: Agent, operator: Any, make_operator: Any, broker: Any
) -> None:
    since = len(operator.messages)
    operator.publish(f"{BASE}status", {"state": "offline", "reason": "connection lost"}, retain=True)
    operator.wait(f"{BASE}status", lambda status: status["state"] == "online", since)
    assert make_operator(broker.port).wait(f"{BASE}status")["state"] == "online"


def test_memory_of_the_control_process(agent: Agent, operator: Any) -> None:
    operator.publish(SET, document(1, gate=""))
    operator.wait(f"{BASE}config", applied(1))
    telemetry = operator.wait(f"{BASE}telemetry", lambda content: content["pipelines"])
    assert telemetry["agent"]["rss"] < 64 * 1024 * 1024
