"""The engine's outbox over a real socket pair, whose other end reads when the test lets it."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyasc.agent import ipc, outbox
from pyasc.agent.ipc import Channel
from pyasc.agent.outbox import Outbox


class Line:
    """An outbox whose sending thread is held by a message that is larger than the socket takes."""

    def __init__(self) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.settimeout(10)
        self.channel = Channel(ours)
        self.outbox = Outbox(self.channel)
        self.outbox.send("log", message="x" * 4_000_000)
        self._theirs.recv(1, socket.MSG_PEEK)  # it is being sent
        self._lines = self._theirs.makefile("rb")

    def read(self) -> list[dict[str, Any]]:
        """What is sent up to a message of type `end`, which is put behind what waits, without the large one."""
        self.outbox.send("end")
        messages = list(iter(lambda: json.loads(self._lines.readline()), {"type": "end"}))
        return [message for message in messages if message["type"] != "log"]

    def close(self) -> None:
        self.outbox.close()
        self._lines.close()
        self.channel.close()
        self._theirs.close()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def kinds(messages: list[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in messages]


def test_a_sign_of_life_goes_ahead_of_what_waits_and_once(line):
    for number in range(3):
        line.outbox.send("status", fps=number)
    line.outbox.heartbeat()
    line.outbox.heartbeat()
    assert kinds(line.read()) == ["heartbeat", "status", "status", "status"]


def test_what_may_be_left_out_is_when_much_waits(line, monkeypatch):
    monkeypatch.setattr(outbox, "_MAX_WAITING", 3)
    for number in range(9):
        line.outbox.tracks("gate", {"frame": number})
    line.outbox.send("reply", id=1)
    messages = line.read()
    assert [message["payload"]["frame"] for message in messages[:-1]] == [0, 1, 2]
    assert kinds(messages[3:]) == ["reply"]


def test_events_that_nobody_acknowledges_are_bounded_whatever_waits_before_them(line, monkeypatch):
    monkeypatch.setattr(outbox, "MAX_UNACKNOWLEDGED", 3)
    line.outbox.send("status", fps=1)
    for number in range(8):
        line.outbox.events("gate", [{"id": f"{number}a"}, {"id": f"{number}b"}])
    assert line.outbox.lost_events == 10
    messages = line.read()
    assert kinds(messages) == ["status", "events", "events", "events"]
    assert [message["n"] for message in messages[1:]] == [6, 7, 8]
    line.outbox.acknowledge(7)
    assert line.outbox.take_unacknowledged() == [("gate", [{"id": "7a"}, {"id": "7b"}])]
    assert line.outbox.take_unacknowledged() == []


def test_events_that_were_sent_and_not_acknowledged_are_given_up_without_touching_those_that_wait(line, monkeypatch):
    line.outbox.events("gate", [{"id": "sent"}])
    assert kinds(line.read()) == ["events"]
    monkeypatch.setattr(outbox, "MAX_UNACKNOWLEDGED", 1)
    line.outbox.events("gate", [{"id": "next"}])
    assert line.outbox.lost_events == 1
    assert line.outbox.take_unacknowledged() == [("gate", [{"id": "next"}])]


def test_the_log_of_a_loss_may_come_back_as_a_message_from_another_thread(line, monkeypatch):
    """A handler whose lock another thread holds while it offers a record: the loss must not be logged under the outbox's lock."""
    monkeypatch.setattr(outbox, "MAX_UNACKNOWLEDGED", 1)
    free: list[bool] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            other = threading.Thread(target=lambda: line.outbox.offer("log", message="of another thread"))
            other.start()
            other.join(5)
            free.append(not other.is_alive())

    handler = Handler(logging.ERROR)
    logging.getLogger("pyasc.agent.outbox").addHandler(handler)
    try:
        for number in range(4):
            line.outbox.events("gate", [{"id": str(number)}])
    finally:
        logging.getLogger("pyasc.agent.outbox").removeHandler(handler)
    assert free == [True]  # the first loss alone is logged


def test_what_json_cannot_say_is_left_out_and_a_request_is_answered_all_the_same(line, monkeypatch):
    monkeypatch.setattr(ipc, "MAX_LINE_BYTES", 5_000_000)
    line.outbox.send("status", fps=float("nan"))
    line.outbox.send("reply", id=4, ok=True, result={"what": object()})
    line.outbox.send("reply", id=5, ok=True, result="x" * 5_000_000)
    line.outbox.send("status", fps=1)
    assert kinds(line.read()) == ["status"]
    answers = line.read()
    assert [(answer["id"], answer["ok"]) for answer in answers] == [(4, False), (5, False)]
    assert answers[0]["error"] == "the answer cannot be sent: Object of type object is not JSON serializable"
    assert "over the limit of 5000000" in answers[1]["error"]
    assert line.outbox.flush(10)


def test_the_other_end_is_gone(line, until: Callable[..., Any]):
    line.close()
    line.outbox.send("status")
    until(line.outbox.broken.is_set, "it is noticed")
    assert line.outbox.flush(10) is False
