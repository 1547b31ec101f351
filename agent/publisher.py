"""What goes to the broker, and how much of it at a time.

Three kinds: the board (retained topics, of which only the newest content counts and which is sent again after each connect),
replies to commands, and events from the spool. All are QoS 1 and share the window of messages that the broker may leave
unacknowledged; events leave the spool when they are acknowledged and not before. Besides, QoS 0 messages, which are dropped when
they pile up.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from typing import Any, NamedTuple

from pyasc.agent.mqtt import Acknowledged, Connected, Mqtt
from pyasc.agent.spool import Row, Spool

_log = logging.getLogger(__name__)

MAX_REPLIES = 64
MAX_LOOSE = 200
HOLD_S = 10.0


class _Reply(NamedTuple):
    topic: str
    payload: bytes
    correlation: bytes | None


class Publisher:
    """Used from the main loop only.

    Attributes:
        base: `pyasc/<box>/`.
        fault: why the broker takes no events now; None when it does.
    """

    def __init__(self, mqtt: Mqtt, spool: Spool, base: str) -> None:
        self.base = base
        self.fault: str | None = None
        self._mqtt, self._spool = mqtt, spool
        self._board: dict[str, bytes] = {}
        self._due: dict[str, None] = {}  # topics of the board that are to be sent, oldest first
        self._replies: deque[_Reply] = deque()
        self._rows: deque[Row] = deque()
        self._events: dict[int, int] = {}  # message id to the number of the event in the spool
        self._others: set[int] = set()  # message ids of board and replies
        self._loose: set[int] = set()
        self._done: list[int] = []
        self._window = 0
        self._max_bytes: int | None = None
        self._cursor, self._spool_generation, self._hold_until = 0, spool.damaged, 0.0

    @property
    def settled(self) -> bool:
        """Whether the broker has everything but events."""
        return self._window > 0 and not self._due and not self._replies and not self._others

    def connected(self, connection: Connected) -> None:
        """Begin anew: all of the board, then the events from the oldest on."""
        self._forget()
        self._window, self._max_bytes = connection.window, connection.max_bytes
        self._due = dict.fromkeys(self._board)

    def disconnected(self) -> None:
        """What was not acknowledged counts as not sent; replies lose their meaning."""
        self._forget()
        self._window = 0
        self._replies.clear()

    def show(self, topic: str, content: dict[str, Any] | None) -> None:
        """Put content on the board, if it differs from what stands there; None takes the topic off the broker."""
        payload = b"" if content is None else _encode(content)
        if self._board.get(topic) == payload:
            return
        self._board[topic] = payload
        self._due.pop(topic, None)
        self._due[topic] = None

    def show_again(self, topic: str) -> None:
        """Send what stands on the board for this topic once more."""
        if topic in self._board:
            self._due[topic] = None

    def reply(self, topic: str, content: dict[str, Any], correlation: bytes | None) -> None:
        """Answer a command; one that the broker would not carry is replaced by an error."""
        payload = _encode(content)
        if self._max_bytes and len(payload) > self._max_bytes - 1024:
            error = f"the answer of {len(payload)} bytes is over the broker's limit of {self._max_bytes}"
            payload = _encode({"id": content.get("id"), "ok": False, "error": error})
        if self._window and len(self._replies) < MAX_REPLIES:
            self._replies.append(_Reply(topic, payload, correlation))
        else:
            _log.warning("an answer on %s is dropped: %s", topic, "too many" if self._window else "not connected")

    def loose(self, topic: str, content: dict[str, Any]) -> None:
        """Publish with QoS 0, or drop it when the connection does not keep up."""
        if self._window and len(self._loose) < MAX_LOOSE:
            mid = self._mqtt.publish(self.base + topic, _encode(content), qos=0)
            if mid is not None:
                self._loose.add(mid)

    def acknowledged(self, ack: Acknowledged) -> None:
        """Take an acknowledgement."""
        self._loose.discard(ack.mid)
        self._others.discard(ack.mid)
        number = self._events.pop(ack.mid, None)
        if number is None:
            return
        if ack.fault is None:
            self._done.append(number)
            self.fault = None
            return
        if self.fault is None:
            _log.error("the broker does not take events: %s", ack.fault)
        self.fault = f"the broker does not take events: {ack.fault}"
        self._hold_until = time.monotonic() + HOLD_S

    def pump(self) -> None:
        """Send as much as the window allows and drop from the spool what was acknowledged."""
        if self._done:
            self._spool.remove(self._done)
            self._done.clear()
        if self._spool.damaged != self._spool_generation:
            self._spool_generation, self._cursor = self._spool.damaged, 0
            self._rows.clear()
            self._others.update(self._events)  # their numbers mean nothing any more, their places in the window do
            self._events.clear()
        while len(self._events) + len(self._others) < self._window and self._send_next():
            pass

    def _send_next(self) -> bool:
        if self._due:
            topic = next(iter(self._due))
            mid = self._mqtt.publish(self.base + topic, self._board[topic], retain=True)
            if mid is None:
                return False
            self._due.pop(topic)
            self._others.add(mid)
            if not self._board[topic]:
                del self._board[topic]
            return True
        if self._replies:
            reply = self._replies[0]
            mid = self._mqtt.publish(reply.topic, reply.payload, correlation=reply.correlation)
            if mid is None:
                return False
            self._replies.popleft()
            self._others.add(mid)
            return True
        return self._send_event()

    def _send_event(self) -> bool:
        if self.fault is not None:
            if self._events or time.monotonic() < self._hold_until:
                return False
            self._rows.clear()
            self._cursor = 0  # from the oldest on, so that the order is kept
        if not self._rows:
            self._rows.extend(self._spool.read(self._cursor, 4 * self._window))
            if not self._rows:
                return False
        row = self._rows[0]
        mid = self._mqtt.publish(f"{self.base}pipelines/{row.pipeline}/events", row.payload)
        if mid is None:
            return False
        self._rows.popleft()
        self._cursor = row.n
        self._events[mid] = row.n
        # While the broker refuses, one at a time is tried.
        return self.fault is None

    def _forget(self) -> None:
        self._events.clear()
        self._others.clear()
        self._loose.clear()
        self._rows.clear()
        self._cursor = 0


def _encode(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
