"""The agent's control process: one loop that joins broker, engine, spool and configuration.

It imports neither NumPy nor OpenCV, so that it stays small and that no fault of a driver or decoder can take it along.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import signal
import time
import uuid
from collections.abc import Callable
from typing import Any

from pyasc import __version__
from pyasc.agent.apply import Applier
from pyasc.agent.clock import rfc3339
from pyasc.agent.commands import Commands, Engine
from pyasc.agent.document import parse_json
from pyasc.agent.ended import END_OF_STREAM, EndedPipelines
from pyasc.agent.files import FolderLock
from pyasc.agent.inbox import Inbox
from pyasc.agent.logs import RecentLog, set_up_logging
from pyasc.agent.masking import mask
from pyasc.agent.mqtt import Acknowledged, Connected, Disconnected, Mqtt, Received, SubscriptionRefused
from pyasc.agent.publisher import Publisher
from pyasc.agent.sdnotify import Watchdog, notify
from pyasc.agent.settings import Settings
from pyasc.agent.spool import Spool
from pyasc.agent.status_file import write_status
from pyasc.agent.store import Store
from pyasc.agent.supervisor import ENGINE_COMMAND, EngineGone, EngineUp, FromEngine, Supervisor
from pyasc.agent.telemetry import BoxFigures, rss_of
from pyasc.errors import ConfigError

_log = logging.getLogger(__name__)

TICK_S = 0.5
ENGINE_STOP_TIMEOUT_S = 5.0
FAREWELL_TIMEOUT_S = 2.0
STATUS_FILE_INTERVAL_S = 1.0
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
# A pipeline's frame rate alone is news this often at most; its state is at once.
FPS_INTERVAL_S = 10.0


def run(settings: Settings, engine_command: tuple[str, ...] = ENGINE_COMMAND) -> None:
    """Be the agent until SIGTERM, SIGINT or SIGHUP.

    Args:
        settings: from the agent's own file.
        engine_command: starts the engine; `--fd N` and `--spool PATH` are added.

    Raises:
        PyascError: another agent uses the state folder.
        OSError: the state folder cannot be written.
    """
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    log = set_up_logging(settings.log_level)
    with FolderLock(settings.state_dir) as lock:
        Control(settings, log, engine_command, lock).run()


class Control:
    """The main loop and what it knows."""

    def __init__(self, settings: Settings, log: RecentLog, engine_command: tuple[str, ...], lock: FolderLock) -> None:
        self._settings, self._recent = settings, log
        self._base = f"pyasc/{settings.box}/"
        self._boot, self._began = uuid.uuid4().hex[:12], time.time()
        self._inbox = Inbox()
        self._stopping = False
        spool = settings.state_dir / "spool.db"
        self._spool = Spool(spool, settings.spool)
        topics = [f"{self._base}{topic}" for topic in ("config/set", "cmd/+", "status", "pipelines/+/status")]
        self._mqtt = Mqtt(settings.broker, f"pyasc-{settings.box}", topics, self._will, self._inbox)
        self._publisher = Publisher(self._mqtt, self._spool, self._base)
        # Should this process die, the engine writes what it has left into the spool; it holds the lock until it has.
        command = (*engine_command, "--spool", str(spool))
        self._supervisor = Supervisor(self._inbox, command, (lock.fileno(),))
        self._ended = EndedPipelines(settings.state_dir)
        self._applier = Applier(
            Store(settings.state_dir),
            settings.model_dir,
            self._supervisor.send,
            self._supervisor.kill,
            self._report_config,
            self._ended,
        )
        engine = Engine(self._supervisor.send, self._supervisor.restart, lambda: self._supervisor.pid)
        self._commands = Commands(self._base, engine, log, self._publisher.reply)
        self._figures = BoxFigures(settings.state_dir)
        self._config_report: dict[str, Any] | None = None
        self._pipelines: dict[str, dict[str, Any]] = {}
        self._fps_due: dict[str, float] = {}
        self._engine_figures: dict[str, Any] = {"devices": {}, "pipelines": {}}
        self._next_telemetry = self._next_status_file = 0.0
        self._status: dict[str, Any] = {"state": "online", "reason": None, "since": time.time()}
        self._written_status: dict[str, Any] | None = None
        self._ready = False
        self._malformed = 0
        self._refused_topics: list[str] = []
        self._rival: Any = None  # the boot of another agent that publishes as this box

    # --- the loop

    def run(self) -> None:
        """Go round until a signal ends it; the state is told to the broker and the engine is ended."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # it is under nohup
                signal.signal(number, lambda *_: self._stop())
        _log.info("agent %s of box %s, state in %s", __version__, self._settings.box, self._settings.state_dir)
        watchdog = Watchdog()
        try:
            # What an agent that was killed had left open.
            self._close_tracks("agent-restarted")
            self._supervisor.start()
            self._mqtt.start()
            while not self._stopping:
                self._round(TICK_S)
                watchdog.tick()
        finally:
            self._end()

    def _stop(self) -> None:
        """Called by a signal, maybe amid anything: it takes no lock, and the loop sees the mark at its next turn."""
        self._stopping = True

    def _round(self, timeout_s: float) -> None:
        batches: list[tuple[str, list[dict[str, Any]]]] = []
        last_ack = 0
        for item in self._inbox.take(timeout_s):
            message = self._supervisor.take(item)
            if isinstance(message, FromEngine) and message.message["type"] == "events":
                batches.append(self._batch(message.message))
                number = message.message.get("n")
                last_ack = number if type(number) is int else last_ack
                continue
            if isinstance(message, EngineGone) and batches:  # they come before what is said of its end
                self._store_events(batches, last_ack)
                batches, last_ack = [], 0
            self._survive(functools.partial(self._handle, item, message))
        self._store_events(batches, last_ack)
        self._tick()

    def _handle(self, item: object, message: FromEngine | EngineUp | EngineGone | None) -> None:
        if message is None:
            self._from_broker(item)
        elif isinstance(message, FromEngine):
            self._from_engine(message.message)
        elif isinstance(message, EngineUp):
            self._commands.engine_up()
            self._applier.engine_up()
        else:
            self._engine_gone(message.how)

    def _survive(self, action: Callable[[], None]) -> None:
        """Whatever outsiders or the engine sent, the loop goes on: a message of no sense is logged and counted."""
        try:
            action()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._malformed += 1
            _log.exception("a message could not be handled")

    def _tick(self) -> None:
        self._supervisor.tick()
        self._applier.tick()
        self._commands.tick()
        self._spool.retry()
        if time.monotonic() >= self._next_telemetry:
            self._next_telemetry = time.monotonic() + self._settings.telemetry_interval_s
            self._survive(lambda: self._publisher.loose("telemetry", self._telemetry()))
        self._show_status()
        self._publisher.pump()
        if time.monotonic() >= self._next_status_file:
            self._next_status_file = time.monotonic() + STATUS_FILE_INTERVAL_S
            self._write_status()
        if not self._ready and self._supervisor.up and self._applier.settled:
            self._ready = True
            notify("READY=1", f"STATUS=box {self._settings.box}, configuration {self._running_version()}")

    def _end(self) -> None:
        """Tell all sides: each step has its deadline, together below ten seconds."""
        notify("STOPPING=1")
        batches = []
        for item in self._supervisor.stop(ENGINE_STOP_TIMEOUT_S, self._take_acknowledgement):
            if item.message["type"] == "events":
                batches.append(self._batch(item.message))
            elif item.message["type"] == "status":
                self._pipeline_status(item.message)
        self._store_events(batches, 0)
        self._close_tracks("agent-stopped")
        self._status = {"state": "offline", "reason": "stopped", "since": time.time()}
        self._publisher.show("status", self._status_content(self._status))
        deadline = time.monotonic() + FAREWELL_TIMEOUT_S
        while time.monotonic() < deadline and self._mqtt.link.state == "connected":
            self._publisher.pump()
            if self._publisher.settled and not self._spool.read(0, 1):
                break
            for item in self._inbox.take(0.05):
                self._take_acknowledgement(item)
        self._publisher.pump()
        self._inbox.close()
        self._mqtt.close()
        self._write_status()
        self._spool.close()
        _log.info("ended")

    def _take_acknowledgement(self, item: object) -> None:
        """At the end nothing else of the broker counts."""
        if isinstance(item, Acknowledged):
            self._publisher.acknowledged(item)
        elif isinstance(item, Disconnected):
            self._publisher.disconnected()

    # --- from the broker

    def _from_broker(self, item: object) -> None:
        if isinstance(item, Acknowledged):
            self._publisher.acknowledged(item)
        elif isinstance(item, Connected):
            self._refused_topics = []
            self._publisher.connected(item)
        elif isinstance(item, Disconnected):
            self._publisher.disconnected()
        elif isinstance(item, SubscriptionRefused):
            self._refused_topics = item.topics
            _log.error("the broker does not let the box read %s", ", ".join(item.topics))
        elif isinstance(item, Received):
            self._received(item)

    def _received(self, item: Received) -> None:
        topic = item.topic.removeprefix(self._base)
        if topic == "config/set":
            self._applier.offer(item.payload, item.retained)
        elif topic.startswith("cmd/"):
            self._commands.handle(item)
        elif topic == "status":
            self._own_status_seen(item.payload, item.retained)
        elif topic.startswith("pipelines/") and item.retained and item.payload:
            name = topic.split("/")[1]
            if name not in self._applier.pipelines:
                self._publisher.show(topic, None)  # of a pipeline that was taken out while the box was away

    def _own_status_seen(self, payload: bytes, retained: bool) -> None:
        """The will of an earlier connection of this box may come after its new birth message: say again how it is."""
        try:
            seen = parse_json(payload)
        except ConfigError:
            return
        boot = seen.get("boot") if isinstance(seen, dict) else None
        if isinstance(seen, dict) and seen.get("state") == "offline":
            self._publisher.show_again("status")
        elif boot != self._boot and not retained and boot != self._rival:
            self._rival = boot
            _log.error("another agent publishes as box %s: %s", self._settings.box, mask(str(seen))[:200])

    # --- from the engine

    def _from_engine(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "reply":
            if not self._applier.replied(message):
                self._commands.replied(message)
        elif kind == "status":
            self._pipeline_status(message)
            self._applier.pipeline_state(str(message["pipeline"]), str(message["state"]), message.get("reason"))
        elif kind == "tracks":
            self._publisher.loose(f"pipelines/{message['pipeline']}/tracks", message["payload"])
        elif kind == "telemetry":
            self._engine_figures = {key: message.get(key) or {} for key in ("devices", "pipelines")}
        elif kind == "log":
            self._recent.keep(str(message["level"]), str(message["logger"]), str(message["message"]))

    def _batch(self, message: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        """The pipeline and the events of a message; no events where it makes no sense."""
        name, events = message.get("pipeline"), message.get("events")
        if isinstance(events, list) and isinstance(name, str) and _NAME.fullmatch(name):
            return name, events
        self._complain(1)
        return str(name), []

    def _store_events(self, batches: list[tuple[str, list[dict[str, Any]]]], last_ack: int) -> None:
        if batches:
            self._complain(self._spool.append(batches))
        if last_ack:
            self._supervisor.send("ack", n=last_ack)

    def _complain(self, malformed: int) -> None:
        if malformed:
            self._malformed += malformed
            _log.error("%d events or messages of the engine are malformed", malformed)

    def _pipeline_status(self, message: dict[str, Any]) -> None:
        name = str(message["pipeline"])
        if name not in self._applier.pipelines:
            return  # the last word of one that was taken out
        stopped = message.get("state") == "stopped"
        # `stopped` for another reason, such as the engine's own end, says nothing of the stream.
        if not stopped or message.get("reason") == END_OF_STREAM:
            self._ended.note(name, stopped, self._applier.pipelines)
        keys = ("state", "device", "fps", "resolution")
        content = {key: message.get(key) for key in keys}
        if message.get("reason") is not None:
            content["reason"] = mask(str(message["reason"]))
        before = self._pipelines.get(name, {})
        news = any(before.get(key) != content.get(key) for key in ("state", "device", "resolution", "reason"))
        news = news or not before.get("fps")  # the first rate that is known is news too
        now = time.monotonic()
        if news or now >= self._fps_due.get(name, 0.0):
            self._pipelines[name] = content
            self._fps_due[name] = now + FPS_INTERVAL_S
            self._publisher.show(f"pipelines/{name}/status", content)

    def _engine_gone(self, how: str) -> None:
        _log.error("the engine has ended: %s", how)
        self._commands.engine_gone()
        self._close_tracks("engine-restarted")
        self._engine_figures = {"devices": {}, "pipelines": {}}
        for name, content in self._pipelines.items():
            gone = {**content, "state": "starting", "fps": 0.0, "reason": f"the engine ended: {how}"}
            # `stopped: stopped` is one that the engine took along when it ended in good order; others have stopped for good.
            if content.get("state") != "stopped" or content.get("reason") == "stopped":
                self._pipelines[name] = gone
                self._publisher.show(f"pipelines/{name}/status", gone)
        self._applier.engine_gone(how)

    def _close_tracks(self, reason: str) -> None:
        if closed := self._spool.close_open_tracks(reason, time.time()):
            _log.info("%d open tracks are closed: %s", closed, reason)

    # --- what is told

    def _report_config(self, report: dict[str, Any]) -> None:
        self._config_report = report
        self._publisher.show("config", report)
        wanted = self._applier.pipelines
        for name in [name for name in self._pipelines if name not in wanted]:
            del self._pipelines[name]
            self._fps_due.pop(name, None)
            self._publisher.show(f"pipelines/{name}/status", None)

    def _show_status(self) -> None:
        reason = self._trouble()
        state = "online" if reason is None else "degraded"
        if (state, reason) != (self._status["state"], self._status["reason"]):
            _log.info("the box is %s%s", state, f": {reason}" if reason else "")
            self._status = {"state": state, "reason": reason, "since": time.time()}
        self._publisher.show("status", self._status_content(self._status))

    def _trouble(self) -> str | None:
        """Why the box is not well, or None. While the engine starts for the first time nothing is wrong yet."""
        failed = sorted(name for name, content in self._pipelines.items() if content.get("state") == "failed")
        if not self._supervisor.up and self._supervisor.last_end is not None:
            return f"the engine is down: {self._supervisor.last_end}"
        if self._applier.fault is not None:
            return mask(self._applier.fault)
        if failed:
            reasons = (f"{name}: {self._pipelines[name].get('reason') or 'failed'}" for name in failed)
            return f"failed pipelines: {'; '.join(reasons)}"
        if self._spool.fault is not None:
            return f"events cannot be stored: {self._spool.fault}"
        if self._refused_topics:
            return f"the broker does not let the box read {', '.join(self._refused_topics)}"
        return self._publisher.fault

    def _status_content(self, status: dict[str, Any]) -> dict[str, Any]:
        content = {
            "state": status["state"],
            "version": __version__,
            "boot": self._boot,
            "since": rfc3339(status["since"]),
        }
        return content if status["reason"] is None else {**content, "reason": status["reason"]}

    def _will(self) -> tuple[str, bytes]:
        """What the broker says when the box is lost; `since` is when this connection began, the loss is later."""
        status = {"state": "offline", "reason": "connection lost", "since": time.time()}
        return f"{self._base}status", json.dumps(self._status_content(status)).encode()

    def _telemetry(self) -> dict[str, Any]:
        figures = self._figures.read()
        figures["agent"] |= {
            "uptime": round(time.time() - self._began, 1),
            "engine_pid": self._supervisor.pid,
            "engine_rss": rss_of(self._supervisor.pid),
            "engine_restarts": self._supervisor.restarts,
            "malformed": self._malformed,
        }
        return {**figures, **self._engine_figures, "spool": self._spool.summary()}

    def _running_version(self) -> int | None:
        return None if self._applier.current is None else self._applier.current.version

    def _write_status(self) -> None:
        """The file that `pyasc agent status` reads."""
        link = self._mqtt.link
        content = {
            "box": self._settings.box,
            "version": __version__,
            "boot": self._boot,
            "status": self._status_content(self._status),
            "broker": {
                "url": str(self._settings.broker),
                "state": link.state,
                "protocol": link.protocol,
                "reason": link.reason,
                "since": rfc3339(link.since),
            },
            "config": self._config_report,
            "running_version": self._running_version(),
            "engine": {"pid": self._supervisor.pid, "up": self._supervisor.up, "restarts": self._supervisor.restarts},
            "pipelines": dict(self._pipelines),  # a copy: it is compared with what was written last
            "spool": self._spool.summary(),
        }
        if content != self._written_status:
            self._written_status = content
            write_status(self._settings.state_dir, content)
