"""Commands: any request gets one answer or none, and the bounds hold. The whole way is in test_control.py."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyasc.agent import commands as module
from pyasc.agent.commands import MAX_WAITING, Commands, Engine
from pyasc.agent.logs import KEPT_RECORDS, RecentLog, set_up_logging
from pyasc.agent.mqtt import Received

BASE = "pyasc/b/"
NAMES = ["ping", "logs", "snapshot", "restart-pipeline", "reboot-engine", "profile", "update", "x"]
GATE = b'{"pipeline": "gate"}'


class Bench:
    def __init__(self, engine_takes: bool = True) -> None:
        self.replies: list[tuple[str, dict[str, Any], bytes | None]] = []
        self.sent: list[dict[str, Any]] = []
        self.restarts = 0
        self._takes = engine_takes
        engine = Engine(self._send, self._restart, lambda: 77)
        self.commands = Commands(BASE, engine, RecentLog(), lambda *reply: self.replies.append(reply))

    def _send(self, kind: str, **fields: Any) -> bool:
        self.sent.append({"kind": kind, **fields})
        return self._takes

    def _restart(self) -> None:
        self.restarts += 1

    def ask(
        self, command: str, payload: bytes = b"", topic: str | None = None, correlation: bytes | None = None
    ) -> None:
        self.commands.handle(Received(f"{BASE}cmd/{command}", payload, False, topic, correlation))

    @property
    def errors(self) -> list[str]:
        return [reply["error"] for _, reply, _ in self.replies]


@given(
    st.sampled_from(NAMES),
    st.binary(max_size=300),
    st.none() | st.text(max_size=50),
    st.none() | st.binary(max_size=2000),
)
def test_any_request_gets_one_answer_or_none(
    command: str, payload: bytes, topic: str | None, correlation: bytes | None
) -> None:
    bench = Bench()
    bench.ask(command, payload, topic, correlation)
    assert len(bench.replies) + len(bench.sent) + bench.restarts <= 1
    for where, _, back in bench.replies:
        assert where == (topic or f"{BASE}cmd/{command}/reply")
        assert not set(where) & set("+#\0")
        assert back in (correlation, None)


@pytest.mark.parametrize(
    "topic", [f"{BASE}config/set", f"{BASE}status", f"{BASE}cmd/ping", "a/+/b", "a/#", "$SYS/x", "x" * 2000, "a\0"]
)
def test_answers_go_nowhere_else(topic: str) -> None:
    bench = Bench()
    bench.ask("ping", b"", topic)
    assert bench.replies == []


def test_engine_that_is_down_or_dies_or_is_silent_gives_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    down = Bench(engine_takes=False)
    down.ask("snapshot", GATE)
    assert down.errors == ["the engine is down"]
    bench = Bench()
    bench.ask("snapshot", GATE)
    bench.commands.engine_gone()
    assert bench.errors == ["the engine ended before it answered"]
    bench.ask("snapshot", GATE)
    bench.ask("reboot-engine")
    later = time.monotonic() + module.ENGINE_TIMEOUT_S + 1
    monkeypatch.setattr(module.time, "monotonic", lambda: later)
    bench.commands.tick()
    assert bench.errors[1:] == ["no answer within 30 s", "the engine is not up after 30 s"]
    bench.commands.replied({"id": bench.sent[-1]["id"], "ok": True})
    assert len(bench.replies) == 3, "a late answer is not passed on"


def test_number_of_waiting_commands_is_bounded() -> None:
    bench = Bench()
    for _ in range(MAX_WAITING + 3):
        bench.ask("snapshot", GATE)
        bench.ask("reboot-engine")
    assert len(bench.sent) == MAX_WAITING
    assert bench.restarts == 1
    assert len(bench.replies) == 6
    bench.commands.engine_up()
    assert [reply["result"] for _, reply, _ in bench.replies[6:]] == [{"pid": 77}] * MAX_WAITING


@pytest.mark.parametrize("command", ["snapshot", "restart-pipeline"])
@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b'{"pipeline": "gate", "width": 640}', "width: unknown key"),
        (b'{"pipline": "gate"}', "pipline: unknown key"),
        (b"{}", "pipeline: required"),
        (b"", "pipeline: required"),
        (b'{"pipeline": 5}', "pipeline: must be text"),
        (b'{"pipeline": null}', "pipeline: must be text"),
    ],
)
def test_request_that_is_wrong_does_not_reach_the_engine(command: str, payload: bytes, error: str) -> None:
    bench = Bench()
    bench.ask(command, payload)
    assert (bench.errors, bench.sent) == ([error], [])
    bench.ask(command, b'{"id": 1, "pipeline": "gate"}')
    assert [sent["args"] for sent in bench.sent] == [{"pipeline": "gate"}]


def test_faults_of_the_engine_are_joined_and_masked() -> None:
    bench = Bench()
    bench.ask("restart-pipeline", b'{"id": "k", "pipeline": "gate"}')
    errors = [{"path": "a", "message": "rtsp://u:p@h is away"}, {"path": "b", "message": "c"}]
    bench.commands.replied({"id": bench.sent[0]["id"], "ok": False, "errors": errors})
    assert bench.replies == [
        (f"{BASE}cmd/restart-pipeline/reply", {"id": "k", "ok": False, "error": "a: rtsp://***@h is away; b: c"}, None)
    ]


@pytest.fixture
def recent() -> Any:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield set_up_logging("debug")
    root.handlers[:], root.level = handlers, level


def test_last_lines_of_the_log_without_secrets(recent: RecentLog, capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("pyasc.test")
    log.debug("fine detail")
    log.warning("cannot open %s", "rtsp://user:hunter2@camera/1?token=abc")
    recent.keep("ERROR", "engine", "password=hunter2 " + "x" * 9000)
    found = recent.last(10, "warning")
    assert [(record["level"], record["logger"]) for record in found] == [("warning", "pyasc.test"), ("error", "engine")]
    assert found[0]["message"] == "cannot open rtsp://***@camera/1?token=***"
    assert len(found[1]["message"]) <= 2000
    assert "hunter2" not in str(recent.last(KEPT_RECORDS)) + capsys.readouterr().err
    for number in range(KEPT_RECORDS + 5):
        recent.keep("info", "x", str(number))
    assert [record["message"] for record in recent.last(2)] == [str(KEPT_RECORDS + 3), str(KEPT_RECORDS + 4)]
    assert len(recent.last(10 * KEPT_RECORDS)) == KEPT_RECORDS
