"""Commands of the operator: requests on `cmd/<command>`, answered on the response topic or on `cmd/<command>/reply`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyasc import __version__
from pyasc.agent.clock import rfc3339
from pyasc.agent.document import parse_json
from pyasc.agent.logs import KEPT_RECORDS, RecentLog
from pyasc.agent.masking import mask
from pyasc.agent.mqtt import Received
from pyasc.errors import ConfigError

_log = logging.getLogger(__name__)

ENGINE_TIMEOUT_S = 30.0
MAX_WAITING = 32
MAX_REQUEST_BYTES = 64 * 1024
MAX_CORRELATION_BYTES = 1024
MAX_ID_CHARS = 256
# Request ids of the applier are small numbers; these are text.
_PREFIX = "cmd-"


@dataclass(frozen=True, slots=True)
class _Request:
    """Who asked what, and where the answer goes."""

    command: str
    id: Any
    topic: str
    correlation: bytes | None
    deadline: float


@dataclass(frozen=True, slots=True)
class Engine:
    """What commands need of the engine process."""

    send: Callable[..., bool]
    restart: Callable[[], None]
    pid: Callable[[], int | None]


class Commands:
    """Used from the main loop only."""

    def __init__(
        self, base: str, engine: Engine, log: RecentLog, reply: Callable[[str, dict[str, Any], bytes | None], None]
    ) -> None:
        """Take the ways to the engine and back to the operator.

        Args:
            base: `pyasc/<box>/`.
            engine: the engine process.
            log: for the `logs` command.
            reply: as `Publisher.reply`.
        """
        self._base, self._engine, self._log, self._reply = base, engine, log, reply
        self._began = time.monotonic()
        self._waiting: dict[str, _Request] = {}
        self._rebooting: list[_Request] = []
        self._count = 0

    def handle(self, received: Received) -> None:
        """Take a message of a topic `cmd/<command>`. A retained one is old and is not carried out."""
        command = received.topic.removeprefix(f"{self._base}cmd/")
        if received.retained:
            _log.warning("a retained command %s is not carried out: it was sent before the box came", command[:64])
            return
        topic = received.response_topic or f"{self._base}cmd/{command}/reply"
        if not self._may_answer_on(topic):
            _log.warning("command %s asks for the answer on a topic that is no place for it", command[:64])
            return
        correlation = received.correlation
        if correlation is not None and len(correlation) > MAX_CORRELATION_BYTES:
            correlation = None
        request = _Request(command, None, topic, correlation, time.monotonic() + ENGINE_TIMEOUT_S)
        try:
            args = _arguments(received.payload)
        except ConfigError as error:
            self._fail(request, str(error))
            return
        request = _Request(command, args.pop("id", None), topic, correlation, request.deadline)
        self._dispatch(request, args)

    def replied(self, message: dict[str, Any]) -> None:
        """Take a `reply` of the engine."""
        request = self._waiting.pop(str(message.get("id")), None)
        if request is None:
            return
        if message.get("ok") is True:
            self._answer(request, message.get("result"))
            return
        errors = message.get("errors") or []
        text = "; ".join(f"{error.get('path')}: {error.get('message')}" for error in errors)
        self._fail(request, str(message.get("error") or text or "the engine refuses it without a reason"))

    def engine_up(self) -> None:
        """The engine takes messages (again)."""
        for request in self._rebooting:
            self._answer(request, {"pid": self._engine.pid()})
        self._rebooting.clear()

    def engine_gone(self) -> None:
        """The engine has ended: what it was asked is not answered any more."""
        for request in self._waiting.values():
            self._fail(request, "the engine ended before it answered")
        self._waiting.clear()

    def tick(self) -> None:
        """Look at the deadlines."""
        now = time.monotonic()
        for key in [key for key, request in self._waiting.items() if now > request.deadline]:
            self._fail(self._waiting.pop(key), f"no answer within {ENGINE_TIMEOUT_S:.0f} s")
        for request in [request for request in self._rebooting if now > request.deadline]:
            self._rebooting.remove(request)
            self._fail(request, f"the engine is not up after {ENGINE_TIMEOUT_S:.0f} s")

    def _dispatch(self, request: _Request, args: dict[str, Any]) -> None:
        handlers: dict[str, Callable[[_Request, dict[str, Any]], None]] = {
            "ping": self._ping,
            "logs": self._logs,
            "snapshot": self._to_engine,
            "restart-pipeline": self._to_engine,
            "reboot-engine": self._reboot_engine,
            "profile": self._later,
            "update": self._later,
        }
        handler = handlers.get(request.command)
        if handler is None:
            self._fail(request, f"no such command; there are: {', '.join(sorted(handlers))}")
            return
        handler(request, args)

    def _ping(self, request: _Request, args: dict[str, Any]) -> None:
        if self._takes(request, args):
            uptime = round(time.monotonic() - self._began, 1)
            self._answer(request, {"time": rfc3339(), "version": __version__, "uptime": uptime})

    def _logs(self, request: _Request, args: dict[str, Any]) -> None:
        if not self._takes(request, args, "count", "level"):
            return
        count, level = args.get("count", 100), args.get("level", "info")
        if type(count) is not int or not 1 <= count <= KEPT_RECORDS:
            self._fail(request, f"count: must be a whole number from 1 to {KEPT_RECORDS}")
        elif level not in ("debug", "info", "warning", "error", "critical"):
            self._fail(request, "level: must be one of debug, info, warning, error, critical")
        else:
            self._answer(request, {"records": self._log.last(count, level)})

    def _to_engine(self, request: _Request, args: dict[str, Any]) -> None:
        if not self._takes(request, args, "pipeline"):
            return
        if not isinstance(args.get("pipeline"), str):
            self._fail(request, "pipeline: must be text" if "pipeline" in args else "pipeline: required")
            return
        if len(self._waiting) >= MAX_WAITING:
            self._fail(request, f"{MAX_WAITING} commands wait for the engine already")
            return
        self._count += 1
        key = f"{_PREFIX}{self._count}"
        if self._engine.send("command", id=key, command=request.command, args=args):
            self._waiting[key] = request
        else:
            self._fail(request, "the engine is down")

    def _reboot_engine(self, request: _Request, args: dict[str, Any]) -> None:
        if not self._takes(request, args):
            return
        if len(self._rebooting) >= MAX_WAITING:
            self._fail(request, "the engine is restarting already")
            return
        first = not self._rebooting
        self._rebooting.append(request)
        if first:
            self._engine.restart()

    def _later(self, request: _Request, args: dict[str, Any]) -> None:
        self._fail(request, "not available in this version")

    def _takes(self, request: _Request, args: dict[str, Any], *known: str) -> bool:
        unknown = sorted(set(args) - set(known))
        if unknown:
            self._fail(request, f"{unknown[0][:64]}: unknown key")
        return not unknown

    def _may_answer_on(self, topic: str) -> bool:
        """Not on a topic of the box's own, where an answer would be taken for something else, and not with wildcards."""
        if not topic or len(topic) > 1024 or any(sign in topic for sign in "+#\0") or topic.startswith("$"):
            return False
        return not topic.startswith(self._base) or (topic.startswith(f"{self._base}cmd/") and topic.endswith("/reply"))

    def _answer(self, request: _Request, result: Any) -> None:
        self._reply(request.topic, {"id": request.id, "ok": True, "result": result}, request.correlation)

    def _fail(self, request: _Request, error: str) -> None:
        self._reply(request.topic, {"id": request.id, "ok": False, "error": mask(error)}, request.correlation)


def _arguments(payload: bytes) -> dict[str, Any]:
    if len(payload) > MAX_REQUEST_BYTES:
        raise ConfigError(f"the request is over the limit of {MAX_REQUEST_BYTES} bytes")
    args = parse_json(payload) if payload.strip() else {}
    if not isinstance(args, dict):
        raise ConfigError("the request is not a JSON object")
    key = args.get("id")
    if not (key is None or type(key) is int or (isinstance(key, str) and len(key) <= MAX_ID_CHARS)):
        raise ConfigError(f"id: must be text of up to {MAX_ID_CHARS} characters or a whole number")
    return args
