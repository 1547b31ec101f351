"""What the engine has to say to the control process: sent by one thread, in order, so that no pipeline waits for the socket."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from pyasc.agent.events import Event
from pyasc.agent.ipc import Channel
from pyasc.errors import TransportError

_log = logging.getLogger(__name__)

# Messages that may be left out are, while this many wait.
_MAX_WAITING = 200
# Messages of events that are neither acknowledged nor written elsewhere; beyond it the oldest are dropped and counted.
MAX_UNACKNOWLEDGED = 50_000


class Outbox:
    """A queue and the thread that empties it into the channel.

    Attributes:
        broken: set when the other process is gone.
        lost_events: events that were dropped because nobody acknowledged for too long.
    """

    def __init__(self, channel: Channel) -> None:
        self.broken = threading.Event()
        self.lost_events = 0
        self._channel = channel
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._unacknowledged: OrderedDict[int, tuple[str, Sequence[Event]]] = OrderedDict()
        self._number = 0
        self._sending = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    # --- what pipelines give: the sink

    def events(self, pipeline: str, events: Sequence[Event]) -> None:
        """Number events, keep them until they are acknowledged, and send them."""
        with self._changed:
            self._number += 1
            self._unacknowledged[self._number] = (pipeline, events)
            self._waiting.append(("events", {"n": self._number, "pipeline": pipeline, "events": events}))
            first_loss = len(self._unacknowledged) > MAX_UNACKNOWLEDGED and self._drop_oldest()
            self._changed.notify_all()
        if first_loss:  # outside the lock: the log comes back here as a message
            _log.error("events are lost, the control process has acknowledged none of the last %d", MAX_UNACKNOWLEDGED)

    def tracks(self, pipeline: str, message: Mapping[str, Any]) -> None:
        """Send the tracks of one frame unless too much waits."""
        self.offer("tracks", pipeline=pipeline, payload=message)

    # --- everything else

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message."""
        with self._changed:
            self._waiting.append((kind, fields))
            self._changed.notify_all()

    def offer(self, kind: str, **fields: Any) -> None:
        """Send a message unless too much waits."""
        with self._changed:
            if len(self._waiting) < _MAX_WAITING:
                self._waiting.append((kind, fields))
                self._changed.notify_all()

    def heartbeat(self) -> None:
        """Send a sign of life ahead of what waits: that much waits is no reason to take this process for dead."""
        with self._changed:
            if not self._waiting or self._waiting[0][0] != "heartbeat":
                self._waiting.appendleft(("heartbeat", {}))
                self._changed.notify_all()

    def acknowledge(self, number: int) -> None:
        """All events up to this number are safe."""
        with self._changed:
            while self._unacknowledged and next(iter(self._unacknowledged)) <= number:
                self._unacknowledged.popitem(last=False)

    def take_unacknowledged(self) -> list[tuple[str, Sequence[Event]]]:
        """The events that nobody has acknowledged, in order; they are forgotten here."""
        with self._changed:
            batches = list(self._unacknowledged.values())
            self._unacknowledged.clear()
            return batches

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is sent; False when that takes longer or the other process is gone."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self.broken.is_set() or not (self._waiting or self._sending), timeout_s
            )
        return done and not self.broken.is_set()

    def close(self) -> None:
        """End the thread; what waits is not sent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._sending = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or bool(self._waiting))
                if self._closed:
                    return
                kind, fields = self._waiting.popleft()
                self._sending = True
            try:
                self._channel.send(kind, **fields)
            except TransportError as error:
                _log.warning("%s", error)
                self.broken.set()
                self.close()
            except (TypeError, ValueError) as error:  # a plugin gave what JSON cannot say, or too much
                _log.exception("a message of type %s cannot be sent, left out", kind)
                if kind == "reply":
                    self.send("reply", id=fields["id"], ok=False, error=f"the answer cannot be sent: {error}")

    def _drop_oldest(self) -> bool:
        """Give up the events that have waited longest, sent or not; whether they are the first that are lost."""
        number, (_, events) = self._unacknowledged.popitem(last=False)
        first = not self.lost_events
        self.lost_events += len(events)
        for index, (kind, fields) in enumerate(self._waiting):
            if kind == "events":  # the first one that was not sent yet
                if fields["n"] == number:
                    del self._waiting[index]
                break
        return first
