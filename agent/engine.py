"""The engine process: hosts the pipelines and the devices, configured and watched by the control process over `ipc`.

    python -m pyasc.agent.engine --fd N [--spool PATH]

The main loop only looks after things. What takes time (loading models, ending pipelines, encoding pictures, asking devices) has
threads of its own, so the heartbeat tells of a living process and not of a short configuration. When the control process is gone,
the events that it has not acknowledged go into its spool directly, and the engine ends.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import faulthandler
import logging
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import cv2

from pyasc import __version__
from pyasc.agent import allocator
from pyasc.agent.assembly import check_plugins
from pyasc.agent.clock import rfc3339
from pyasc.agent.ipc import Channel
from pyasc.agent.logs import MaskedFormatter, shorten
from pyasc.agent.masking import mask
from pyasc.agent.outbox import Outbox
from pyasc.agent.pipeline import Pipeline, prepare_all
from pyasc.agent.sources import quiet_opencv
from pyasc.agent.spool import Spool, SpoolLimits
from pyasc.errors import ConfigError, PyascError, TransportError
from pyasc.hal.base import Device
from pyasc.hal.registry import open_device

_log = logging.getLogger(__name__)

_TICK_S = 0.1
_HEARTBEAT_S = 1.0
_STATUS_S = 2.0
_TELEMETRY_S = 1.0
_STOP_S = 10.0
# The control process gives an engine that has closed its channel two seconds; all of the ending happens before.
_ORPHAN_STOP_S = 4.0
_FLUSH_S = 5.0
_MEASURE_STOP_S = 1.0
# The bounds of the spool are the control process's to keep: what is added here is bounded itself.
_NO_LIMITS = SpoolLimits(max_bytes=sys.maxsize, max_events=sys.maxsize, max_age_s=math.inf)
_PR_SET_PDEATHSIG = 1
_WEDGED_EXIT = 3


class Engine:
    """The engine behind one channel.

    Args:
        channel: to the control process.
        spool: where events go when the control process is gone; None loses them.
    """

    def __init__(self, channel: Channel, spool: Path | None = None) -> None:
        self._channel, self._spool = channel, spool
        self._outbox = Outbox(channel)
        self._inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._running: dict[str, Pipeline] = {}
        self._built: dict[str, Pipeline] | None = None
        self._sent: dict[str, tuple[dict[str, Any], float]] = {}
        self._devices: dict[str, Device] = {}
        self._unmeasured: set[str] = set()
        self._asked_to_end = False
        self._ending = threading.Event()
        self._broken: str | None = None
        self._changes: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def run(self) -> int:
        """Work until `stop`, a signal, or the end of the control process; returns the exit code."""
        forward = _Forward(self._outbox)
        logging.getLogger().addHandler(forward)
        self._start(self._receive, "receive")
        self._start(lambda: self._serve(self._changes), "changes")
        self._start(lambda: self._serve(self._commands), "commands")
        measuring = self._start(self._measure, "telemetry")
        self._outbox.send("hello", pid=os.getpid(), version=__version__)
        try:
            self._loop()
        finally:
            orphaned = self._outbox.broken.is_set()
            if self._broken is not None:
                _log.critical("the engine ends: %s", self._broken)
                self._outbox.send("ending", reason=mask(self._broken))
            logging.getLogger().removeHandler(forward)
            self._end(orphaned, measuring)
        return 0 if self._broken is None else _WEDGED_EXIT

    def end(self) -> None:
        """Ask the main loop to end. For signal handlers, which may interrupt one another: it takes no lock."""
        self._asked_to_end = True

    # --- the main loop

    def _loop(self) -> None:
        heartbeat = 0.0
        while not (self._asked_to_end or self._outbox.broken.is_set()):
            now = time.monotonic()
            if now >= heartbeat:
                self._outbox.heartbeat()
                heartbeat = now + _HEARTBEAT_S
            self._report(now)
            wedged = [pipeline.name for pipeline in self._running.values() if pipeline.wedged]
            if wedged:
                self._broken = f"pipeline {wedged[0]} is wedged, only a new process gets its device back"
            if self._broken is not None:
                return
            with contextlib.suppress(queue.Empty):
                self._take(self._inbox.get(timeout=_TICK_S))

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None:
            self._outbox.broken.set()
            return
        kind = message.get("type")
        if kind in ("configure", "commit", "abort"):
            self._changes.put(message)
        elif kind in ("check", "command"):
            self._commands.put(message)
        elif kind == "ack":
            self._outbox.acknowledge(int(message["n"]))
        elif kind == "stop":
            self._asked_to_end = True
        else:
            _log.error("a message of unknown type %r is passed over", kind)

    def _report(self, now: float) -> None:
        """Send each pipeline's status when it has changed, else every other second."""
        for name, pipeline in tuple(self._running.items()):
            status = pipeline.status()
            before, when = self._sent.get(name, ({}, 0.0))
            if now - when >= _STATUS_S or {**status, "fps": 0} != {**before, "fps": 0}:
                self._outbox.send("status", pipeline=name, **status)
                self._sent[name] = status, now

    def _receive(self) -> None:
        for message in self._channel.receive():
            self._inbox.put(message)
        self._inbox.put(None)

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
        thread.start()
        return thread

    def _guarded(self, target: Callable[[], None]) -> None:
        """Run a thread of the engine; it must not end by an exception unseen."""
        try:
            target()
        except Exception as error:  # noqa: BLE001 - ends the engine, in good order
            _log.exception("a thread of the engine failed")
            self._broken = f"{threading.current_thread().name}: {type(error).__name__}: {error}"

    # --- requests

    def _serve(self, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
        """Answer requests in their order."""
        while True:
            message = requests.get()
            try:
                result = self._answer(message)
            except ConfigError as error:
                faults = [{"path": path, "message": mask(text)} for path, text in error.faults]
                self._outbox.send("reply", id=message.get("id"), ok=False, errors=faults)
            except PyascError as error:
                self._outbox.send("reply", id=message.get("id"), ok=False, error=mask(str(error)))
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the request is answered
                _log.exception("the request %s failed", message.get("type"))
                text = mask(f"{type(error).__name__}: {error}")
                self._outbox.send("reply", id=message.get("id"), ok=False, error=text)
            else:
                self._outbox.send("reply", id=message.get("id"), ok=True, result=result)

    def _answer(self, message: dict[str, Any]) -> Any:
        if message["type"] == "configure":
            return self._configure(message["pipelines"], Path(message["model_dir"]), message["ended"])
        if message["type"] == "commit":
            return self._commit()
        if message["type"] == "abort":
            return self._abort()
        if message["type"] == "check":
            if faults := check_plugins(message["pipelines"]):
                raise ConfigError(faults)
            return {}
        pipeline = self._pipeline(message.get("args") or {})
        if message.get("command") == "snapshot":
            frame, jpeg = pipeline.snapshot()
            facts = {"width": frame.width, "height": frame.height, "time": rfc3339(frame.time)}
            return {"jpeg": base64.b64encode(jpeg).decode(), **facts}
        if message.get("command") == "restart-pipeline":
            pipeline.restart()
            return {}
        raise PyascError(f"the engine knows no command {message.get('command')!r}")

    def _pipeline(self, args: Mapping[str, Any]) -> Pipeline:
        name = args.get("pipeline")
        pipeline = self._running.get(name) if isinstance(name, str) else None
        if pipeline is None:
            raise PyascError(f"there is no pipeline {name!r} (there are: {', '.join(sorted(self._running)) or 'none'})")
        return pipeline

    def _configure(self, specs: Mapping[str, Any], model_dir: Path, ended: Sequence[str]) -> dict[str, Any]:
        """Build what is new or different beside what runs; those that have ended already wait to be restarted."""
        self._abort()
        built: dict[str, Pipeline] = {}
        for name, spec in specs.items():
            present = self._running.get(name)
            if present is not None and present.spec == spec and present.model_dir == model_dir:
                built[name] = present
            else:
                built[name] = Pipeline(name, spec, model_dir=model_dir, sink=self._outbox, ended=name in ended)
        self._built = built
        changed = sorted(name for name in built if built[name] is not self._running.get(name))
        try:
            prepare_all([built[name] for name in changed])
        except BaseException:
            self._abort()
            raise
        return {"changed": changed}

    def _commit(self) -> dict[str, Any]:
        """Switch to what was built: first what goes is ended, for it may hold a camera or a device that what comes needs."""
        if self._built is None:
            raise PyascError("nothing is built: commit without configure")
        old, self._running, self._built = self._running, self._built, None
        _stop_all([pipeline for name, pipeline in old.items() if self._running.get(name) is not pipeline], _STOP_S)
        for name in old.keys() | self._running.keys():
            if old.get(name) is not self._running.get(name):
                self._sent.pop(name, None)
        for name, pipeline in self._running.items():
            if old.get(name) is not pipeline:
                pipeline.start()
        allocator.give_back()
        for name, pipeline in old.items():
            if (pipeline.alive or pipeline.wedged) and self._running.get(name) is not pipeline:
                self._broken = f"pipeline {name} does not end"
        return {}

    def _abort(self) -> dict[str, Any]:
        built, self._built = self._built or {}, None
        for name, pipeline in built.items():
            if pipeline is not self._running.get(name):
                pipeline.stop()
        if built:
            allocator.give_back()
        return {}

    # --- telemetry

    def _measure(self) -> None:
        """Send figures every second. The devices that are opened for it are of this thread alone, which closes them too."""
        while not self._ending.wait(_TELEMETRY_S):
            running = self._running
            pipelines = {name: pipeline.statistics() for name, pipeline in running.items()}
            devices = {name for pipeline in running.values() for name in pipeline.devices}
            figures = {name: self._figures(name) for name in sorted(devices)}
            for name in self._devices.keys() - devices:  # another process may want it
                self._close_device(name)
            self._unmeasured &= devices
            self._outbox.offer("telemetry", devices=figures, pipelines=pipelines)
        for name in tuple(self._devices):
            self._close_device(name)

    def _close_device(self, name: str) -> None:
        try:
            self._devices.pop(name).close()
        except Exception:  # noqa: BLE001 - a driver may raise anything; it is not worth the pipelines either
            _log.exception("device %s cannot be closed", name)

    def _figures(self, name: str) -> dict[str, Any]:
        """What a device measures, or why it does not; it is opened once for that."""
        try:
            if name not in self._devices:
                self._devices[name] = open_device(name)
            device = self._devices[name]
            figures = {**device.telemetry(), "simulated": device.info.simulated}
        except Exception as error:  # noqa: BLE001 - a driver may raise anything; figures are not worth the pipelines
            reason = mask(str(error) if isinstance(error, PyascError) else f"{type(error).__name__}: {error}")
            if name not in self._unmeasured:
                self._unmeasured.add(name)
                _log.warning("no figures of device %s: %s", name, reason)
            return {"error": reason}
        self._unmeasured.discard(name)
        return figures

    # --- the end

    def _end(self, orphaned: bool, measuring: threading.Thread) -> None:
        """End the pipelines, hand over what is left, close the channel."""
        self._ending.set()
        if orphaned:
            _log.warning("the control process is gone")
            self._save_events()
        self._abort()
        _stop_all(list(self._running.values()), _ORPHAN_STOP_S if orphaned else _STOP_S)
        measuring.join(_MEASURE_STOP_S)  # it may be inside a driver that hangs
        if not orphaned:
            self._report(float("inf"))
            orphaned = not self._outbox.flush(_FLUSH_S)
        if orphaned:
            self._save_events()
        self._outbox.close()
        self._channel.close()

    def _save_events(self) -> None:
        batches = self._outbox.take_unacknowledged()
        if not batches:
            return
        count = sum(len(events) for _, events in batches)
        if self._spool is None:
            _log.error("%d events are lost: there is no spool", count)
            return
        try:
            spool = Spool(self._spool, _NO_LIMITS)
            with contextlib.closing(spool):
                refused = spool.append(batches)
        except Exception:  # noqa: BLE001 - whatever it is, the pipelines and devices are still to be ended
            _log.exception("%d events are lost", count)
            return
        if refused or spool.fault is not None:
            _log.error("%d events are lost: %s", refused or count, spool.fault or "refused by the spool")


class _Forward(logging.Handler):
    """Sends log records to the control process."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(logging.INFO)
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            message = shorten(mask(self.format(record)))
        except Exception:  # noqa: BLE001 - as logging's own handlers: a wrong record must not fail who logs
            self.handleError(record)
        else:
            self._outbox.offer("log", level=record.levelname, logger=record.name, message=message)


def _stop_all(pipelines: list[Pipeline], timeout_s: float) -> None:
    """End pipelines side by side."""
    deadline = time.monotonic() + timeout_s
    for pipeline in pipelines:
        pipeline.request_stop()
    for pipeline in pipelines:
        pipeline.stop(max(0.1, deadline - time.monotonic()))


def _die_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent dies, beside the end of the channel: another process may hold that open."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        _log.warning("prctl: %s", os.strerror(ctypes.get_errno()))


def main(arguments: list[str] | None = None) -> int:
    """Run the engine; returns the exit code: 0 after `stop`, 3 when only a new process can go on."""
    parser = argparse.ArgumentParser(prog="pyasc.agent.engine", description="The agent's engine process.")
    parser.add_argument("--fd", type=int, required=True, help="socket to the control process")
    parser.add_argument("--spool", type=Path, help="where events go when the control process is gone")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    handler = logging.StreamHandler()
    handler.setFormatter(MaskedFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    _die_with_parent()
    allocator.bound()
    # The stages have threads of their own, and inference takes the cores that it was given.
    cv2.setNumThreads(1)
    quiet_opencv()
    try:
        engine = Engine(Channel.from_fd(options.fd), options.spool)
    except (OSError, TransportError) as error:
        _log.critical("file descriptor %d is no channel: %s", options.fd, error)
        return 1

    def end(_number: int, _frame: FrameType | None) -> None:
        engine.end()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    try:
        return engine.run()
    except Exception:  # noqa: BLE001 - nothing ends this process without a word
        _log.critical("the engine failed", exc_info=True)
        return 1


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    # Not sys.exit: a thread that is left behind in a driver must not hold the process, nor run during the interpreter's end.
    os._exit(code)
