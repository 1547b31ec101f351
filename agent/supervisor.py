"""The engine process: started, watched, restarted, ended.

It gets one end of a socket pair and exits by itself when the other end is gone. It runs in a process group of its own, so that an
interrupt from the terminal reaches the agent alone, and nothing of the group outlives it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pyasc.agent.inbox import Inbox
from pyasc.agent.ipc import Channel
from pyasc.errors import TransportError

_log = logging.getLogger(__name__)

ENGINE_COMMAND = (sys.executable, "-m", "pyasc.agent.engine")
HELLO_TIMEOUT_S = 60.0
HANG_TIMEOUT_S = 10.0
EXIT_TIMEOUT_S = 2.0
LET_GO_S = 1.0
SEND_TIMEOUT_S = 5
BACKOFF_S = (1.0, 30.0)
WELL_S = 60.0
MAX_REASON_CHARS = 500
ON_REQUEST = "restarted on request"


class FromEngine(NamedTuple):
    """A message of the engine that runs now."""

    message: dict[str, Any]


class EngineUp(NamedTuple):
    """The engine takes messages."""


class EngineGone(NamedTuple):
    """The engine has ended, and all that it had sent came before this. `how` is such as `killed by SIGSEGV`."""

    how: str


class _Raw(NamedTuple):
    """What the reading thread posts; `message` is None at the end."""

    engine: _Engine
    message: dict[str, Any] | None


class _Engine:
    """One run of the engine process and the thread that reads from it."""

    def __init__(self, command: tuple[str, ...], inbox: Inbox, kept_fds: tuple[int, ...]) -> None:
        ours, theirs = socket.socketpair()
        # A message that an engine in trouble does not take must not hold the main loop.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        with theirs:
            try:
                self.process = subprocess.Popen(
                    [*command, "--fd", str(theirs.fileno())],
                    pass_fds=(theirs.fileno(), *kept_fds),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        self.channel = Channel(ours)
        self.began = self.heard = time.monotonic()
        self.up = False
        self.why: str | None = None
        self.says: str | None = None  # the reason of its own that it gave before it ended
        self.asked = False  # to end, in good order
        self._killed_at: float | None = None
        self._inbox = inbox
        self._thread = threading.Thread(target=self._read, name="engine", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self.channel.receive():
                if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                    raise ValueError("a message without a type")
                if message["type"] == "heartbeat":
                    self.heard = time.monotonic()
                else:
                    self._inbox.put(_Raw(self, message))
        except (ValueError, RecursionError) as error:
            self.why = f"sent what is no message: {error}"
        self._reap()
        self._inbox.post(_Raw(self, None))

    def _reap(self) -> None:
        """The channel is at its end, so the process must follow."""
        try:
            self.process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill("closed its channel and did not exit")
            with contextlib.suppress(subprocess.TimeoutExpired):  # inside a driver even SIGKILL may have to wait
                self.process.wait(EXIT_TIMEOUT_S)
        self.kill()
        self.channel.close()

    def kill(self, why: str | None = None) -> None:
        """End it and what it started, at once."""
        self.why = self.why or why
        self._killed_at = self._killed_at or time.monotonic()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Close the channel of an engine that was ended a while ago: something that it left behind holds the other end open."""
        if self._killed_at is not None and time.monotonic() - self._killed_at > LET_GO_S:
            self.channel.close()

    @property
    def how(self) -> str:
        code = self.process.returncode
        reason = self.says or self.why
        if reason is not None:
            return reason
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return ON_REQUEST if self.asked and code == 0 else f"exit code {code}"


class Supervisor:
    """Keeps one engine running. All methods are for the main loop; `take` turns what came from the inbox into its messages.

    Attributes:
        restarts: how often the engine was started again.
        last_end: how it ended the last time, or None.
    """

    def __init__(self, inbox: Inbox, command: tuple[str, ...] = ENGINE_COMMAND, kept_fds: tuple[int, ...] = ()) -> None:
        """Nothing is started yet.

        Args:
            inbox: of the main loop.
            command: starts the engine; `--fd N` is added.
            kept_fds: descriptors that the engine shall hold open too, such as a lock that outlives this process.
        """
        self.restarts = 0
        self.last_end: str | None = None
        self._inbox, self._command, self._kept_fds = inbox, command, kept_fds
        self._engine: _Engine | None = None
        self._start_at: float | None = None
        self._delay = BACKOFF_S[0]
        self._ticked = time.monotonic()

    @property
    def up(self) -> bool:
        """Whether the engine takes messages."""
        return self._engine is not None and self._engine.up

    @property
    def pid(self) -> int | None:
        """Process id of the engine, or None."""
        return None if self._engine is None else self._engine.process.pid

    def start(self) -> None:
        """Start the engine."""
        self._start_at = None
        try:
            self._engine = _Engine(self._command, self._inbox, self._kept_fds)
        except OSError as error:
            _log.error("the engine cannot be started: %s", error)
            self.last_end = f"cannot be started: {error}"
            self._plan_start()

    def send(self, kind: str, **fields: Any) -> bool:
        """Send a message; False when there is no engine that takes it."""
        if self._engine is None or not self._engine.up:
            return False
        try:
            self._engine.channel.send(kind, **fields)
        except TransportError as error:
            if isinstance(
                error.__cause__, BlockingIOError
            ):  # the timeout; an engine that is gone is noticed by its reader
                self._engine.kill(f"takes no messages for {SEND_TIMEOUT_S} s")
            return False
        return True

    def kill(self, why: str) -> None:
        """End the engine at once; it is started again."""
        if self._engine is not None:
            _log.error("the engine is ended: %s", why)
            self._engine.kill(why)

    def restart(self) -> None:
        """End the engine in good order, and start it again without a delay."""
        self._delay = 0.0
        if self._engine is not None:
            self._engine.asked = True
        if not self.send("stop"):
            self.kill(ON_REQUEST)

    def tick(self) -> None:
        """Look after the engine; to be called every second or more often."""
        now = time.monotonic()
        late, self._ticked = now - self._ticked > HANG_TIMEOUT_S / 2, now
        engine = self._engine
        if engine is None:
            if self._start_at is not None and now >= self._start_at:
                self.restarts += 1
                self.start()
            return
        if late:
            engine.heard = now  # it was this process that stood still
        limit = HANG_TIMEOUT_S if engine.up else HELLO_TIMEOUT_S
        if now - engine.heard > limit and engine.why is None:
            self.kill(f"no sign of life for {limit:.0f} s")
        engine.let_go()
        if engine.up and now - engine.began > WELL_S:
            self._delay = BACKOFF_S[0]

    def take(self, item: object) -> FromEngine | EngineUp | EngineGone | None:
        """The message in an item of the inbox; None for what is of no interest any more, or not of an engine."""
        if not isinstance(item, _Raw) or item.engine is not self._engine:
            return None
        if item.message is not None:
            if item.message["type"] == "ending":
                item.engine.says = str(item.message.get("reason"))[:MAX_REASON_CHARS]
                return None
            if item.message["type"] != "hello":
                return FromEngine(item.message)
            item.engine.up, item.engine.heard = True, time.monotonic()
            _log.info("the engine is up, process %d", item.engine.process.pid)
            return EngineUp()
        self.last_end = item.engine.how
        self._engine = None
        self._plan_start()
        return EngineGone(self.last_end)

    def _plan_start(self) -> None:
        self._start_at = time.monotonic() + self._delay
        self._delay = min(max(self._delay * 2, BACKOFF_S[0]), BACKOFF_S[1])

    def stop(self, timeout_s: float, others: Callable[[object], None]) -> list[FromEngine]:
        """End the engine in good order, at the deadline by force; returns what it sent until its end.

        What comes into the inbox meanwhile and is not of the engine goes to `others`.
        """
        engine, messages = self._engine, list[FromEngine]()
        self._start_at = None
        if engine is None:
            return messages
        deadline = time.monotonic() + timeout_s
        if not self.send("stop"):
            engine.kill()
        while self._engine is not None:
            if time.monotonic() > deadline:
                engine.kill("did not end in time")
                deadline += EXIT_TIMEOUT_S + 1.0
            engine.let_go()
            for item in self._inbox.take(0.2):
                taken = self.take(item)
                if isinstance(taken, FromEngine):
                    messages.append(taken)
                elif taken is None:
                    others(item)
        self._start_at = None
        return messages
