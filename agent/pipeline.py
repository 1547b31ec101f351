"""One configured pipeline: stream, detector, tracker, events, in threads of its own, restarted when it fails."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import cv2

from pyasc.agent.analyzer import EdgeAnalyzer, Step
from pyasc.agent.assembly import build_analyzer, open_stream
from pyasc.agent.draw import draw
from pyasc.agent.ended import END_OF_STREAM
from pyasc.agent.events import Event, frame_message
from pyasc.agent.faults import join
from pyasc.agent.masking import mask
from pyasc.agent.stream import Stream
from pyasc.errors import ConfigError, ConfigFault, PyascError
from pyasc.types import Detections, Frame, Tracks

_log = logging.getLogger(__name__)

State = Literal["starting", "running", "reconnecting", "failed", "stopped"]

_RETRY_FIRST_S, _RETRY_LAST_S = 1.0, 60.0
# A run that held this long ends the doubling of the delays.
_STEADY_S = 60.0
_RATE_WINDOW_S = 3.0
_JPEG_QUALITY = 85


def prepare_all(pipelines: Sequence[Pipeline]) -> None:
    """Prepare each pipeline.

    Raises:
        ConfigError: with the faults of all; the others stay prepared.
    """
    if faults := [fault for pipeline in pipelines for fault in _faults_of(pipeline)]:
        raise ConfigError(faults)


def _faults_of(pipeline: Pipeline) -> tuple[ConfigFault, ...]:
    try:
        pipeline.prepare()
    except ConfigError as error:
        return error.faults
    return ()


class Sink(Protocol):
    """Where a pipeline's results go. Called from the pipeline's thread."""

    def events(self, pipeline: str, events: Sequence[Event]) -> None:
        """Events in order, at least one."""

    def tracks(self, pipeline: str, message: Mapping[str, Any]) -> None:
        """The tracks of one frame, where the pipeline has `publish_tracks`."""


Watch = Callable[[Frame, Detections, Stream], None]


class Pipeline:
    """A pipeline of a configuration document.

    Args:
        name: its name in the document.
        spec: what the document says of it.
        model_dir: the folder that models are named relative to.
        sink: where its events and tracks go.
        watch: called with each processed frame, what was found in it, and the stream, from the pipeline's thread; what it raises
            fails the pipeline.
        ended: it came to the end of its stream in an earlier process: it loads and runs nothing until it is restarted.

    Attributes:
        name, spec, model_dir: as given.
        wedged: True after a stage did not come back from a frame: its thread, model and device are lost to this process.
    """

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        *,
        model_dir: Path,
        sink: Sink,
        watch: Watch | None = None,
        ended: bool = False,
    ) -> None:
        self.name, self.spec = name, spec
        self._watch = watch
        self.wedged = False
        self.model_dir, self._sink = model_dir, sink
        self._enabled = bool(spec.get("enabled", True))
        self._waiting = ended and self._enabled
        self._state: State = "starting" if self._enabled and not ended else "stopped"
        self._reason: str | None = None if self._enabled else "disabled"
        if self._waiting:
            self._reason = END_OF_STREAM
        self._analyzer: EdgeAnalyzer | None = None
        self._stream: Stream | None = None
        self._device: str | None = None
        self._tracker_device: str | None = None
        self._resolution: int | None = None
        self._latest: tuple[Frame, Detections] | None = None
        self._done: deque[float] = deque(maxlen=1024)
        self._counts = {"frames": 0, "detections": 0, "events": 0, "restarts": 0}
        self._dropped = self._reconnects = 0
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Load plugins and models, so that `start` cannot fail by them. One that is not enabled is checked and let go.

        Raises:
            ConfigError: with the path of each fault.
        """
        if self._waiting:
            return
        analyzer = self._build()
        if self._enabled:
            self._analyzer = analyzer
            self._see_devices(analyzer)
        else:
            analyzer.close()

    def start(self) -> None:
        """Begin to work, in a thread of its own. Does nothing for one that is not enabled."""
        if self._enabled and self._thread is None:
            self._thread = threading.Thread(target=self._supervise, name=f"pipeline {self.name}", daemon=True)
            self._thread.start()

    def restart(self) -> None:
        """Begin anew, from the start of a file, with freshly loaded models.

        Raises:
            PyascError: it is not enabled, or has been stopped.
        """
        if self._thread is None or self._stopping.is_set():
            raise PyascError(f"pipeline {self.name} is {self._reason or 'not started'}: it cannot be restarted")
        self._wake.set()

    def request_stop(self) -> None:
        """Begin to end, without waiting."""
        self._stopping.set()
        self._wake.set()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """End: all tracks leave, models are released. False when its thread does not end in time and is left behind."""
        self.request_stop()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                _log.error("pipeline %s does not end, left behind", self.name)
                return False
        elif self._analyzer is not None:
            self._analyzer.close()
            self._analyzer = None
        return True

    @property
    def alive(self) -> bool:
        """Whether its thread works or waits."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def devices(self) -> frozenset[str]:
        """Names of the devices that its detector and its tracker run on, as far as they are known."""
        return frozenset(name for name in (self._device, self._tracker_device) if name is not None)

    def snapshot(self) -> tuple[Frame, bytes]:
        """The newest frame, and its picture with its tracks, zones and lines drawn in, as JPEG.

        Raises:
            PyascError: there has been no frame yet.
        """
        latest = self._latest
        if latest is None:
            raise PyascError(f"pipeline {self.name} has no picture yet ({self._reason or self._state})")
        frame, found = latest
        image = draw(frame.image.copy(), found, self.spec.get("zones"), self.spec.get("lines"))
        done, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
        if not done:
            raise PyascError(f"pipeline {self.name}: the picture cannot be encoded")
        return frame, bytes(data)

    def status(self) -> dict[str, Any]:
        """State, device, frames a second, lines of the picture, and the reason where it is not running or a device is out of use.

        `device` and `resolution` are None until they are known.
        """
        status: dict[str, Any] = {
            "state": self._state,
            "device": self._device,
            "fps": self._rate(),
            "resolution": self._resolution,
        }
        reason = self._reason or self._device_faults()
        return status if reason is None else {**status, "reason": reason}

    def _device_faults(self) -> str | None:
        """Which devices of the route are out of use, and why; None when all work."""
        analyzer = self._analyzer
        faults = {} if analyzer is None else analyzer.faults
        return "; ".join(mask(f"{device} is out of use: {reason}") for device, reason in faults.items()) or None

    def statistics(self) -> dict[str, Any]:
        """Figures for telemetry; counts are since the pipeline was made.

        `frames`, `dropped`, `detections`, `events`, `reconnects`, `restarts`; `tracks`: in the newest frame; `fps`; `stages`: the
        moving average in ms of each; `queues`: frames before each stage.
        """
        analyzer, stream, latest = self._analyzer, self._stream, self._latest
        stats = analyzer.stats() if analyzer is not None else {}
        found = latest[1] if latest is not None and self._state == "running" else None
        return {
            **self._counts,
            "dropped": self._dropped + (stream.dropped if stream is not None else 0),
            "reconnects": self._reconnects + (stream.reconnects if stream is not None else 0),
            "tracks": len(found) if isinstance(found, Tracks) else 0,
            "fps": self._rate(),
            "stages": {name: stage["ms"] for name, stage in stats.get("stages", {}).items()},
            "queues": stats.get("queues", {}),
        }

    # --- the thread

    def _build(self) -> EdgeAnalyzer:
        return build_analyzer(self.spec, path=join("pipelines", self.name), model_dir=self.model_dir)

    def _see_devices(self, analyzer: EdgeAnalyzer) -> None:
        self._device = analyzer.detector.device
        # Most trackers run on no device of their own; one with a model has `device`, None while it has no model.
        self._tracker_device = getattr(analyzer.tracker, "device", None)

    def _supervise(self) -> None:
        """Run again and again: after a failure with growing delays, after the end only when asked."""
        failures = 0
        if self._waiting:
            self._wake.wait()
        while not self._stopping.is_set():
            self._wake.clear()
            if self._stopping.is_set():
                break
            began = time.monotonic()
            failed = self._once()
            if self._stopping.is_set() or self.wedged:
                break
            failures = 1 if time.monotonic() - began > _STEADY_S else failures + 1
            delay_s = min(_RETRY_FIRST_S * 2.0 ** min(failures - 1, 16), _RETRY_LAST_S) if failed else None
            if self._wake.wait(delay_s):
                failures = 0
            self._counts["restarts"] += not self._stopping.is_set()
        if not self.wedged:
            self._set("stopped", "stopped")

    def _once(self) -> bool:
        """One run from the models' loading to the stream's end; whether it failed."""
        try:
            analyzer = self._analyzer = self._analyzer or self._build()
            self._see_devices(analyzer)
            self._set("starting")
            self._stream = open_stream(self.spec["source"])
            self._follow(analyzer, self._stream)
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises fails this pipeline and no other
            expected = isinstance(error, PyascError)
            reason = str(error) if expected else f"{type(error).__name__}: {error}"
            self._set("failed", " ".join(reason.split()))
            if not expected or isinstance(error, ConfigError):
                _log.exception("pipeline %s failed", self.name)
            return True
        finally:
            self._release()
        return False

    def _release(self) -> None:
        if self._stream is not None:
            self._dropped += self._stream.dropped
            self._reconnects += self._stream.reconnects
            self._stream.close()
            self._stream = None
        self._done.clear()
        # A wedged stage may hold the model's lock for ever.
        if self._analyzer is not None and not self.wedged:
            self._analyzer.close()
            self._analyzer = None

    def _follow(self, analyzer: EdgeAnalyzer, stream: Stream) -> None:
        try:
            with contextlib.closing(analyzer.steps(stream)) as steps:
                for step in steps:
                    self._take(step, analyzer, stream)
                    if self._wake.is_set():
                        return
        finally:
            self.wedged = analyzer.wedged
            self._emit(analyzer.events)
        self._set("stopped", END_OF_STREAM)

    def _take(self, step: Step, analyzer: EdgeAnalyzer, stream: Stream) -> None:
        if step.frame is not None and step.found is not None:
            self._latest = step.frame, step.found
            self._see_devices(analyzer)
            self._resolution = min(step.frame.width, step.frame.height)
            self._counts["frames"] += 1
            self._counts["detections"] += len(step.found)
            self._done.append(time.monotonic())
            if self.spec.get("publish_tracks") and isinstance(step.found, Tracks):
                self._sink.tracks(self.name, frame_message(step.found, step.frame))
            self._set("running")
            if self._watch is not None:
                self._watch(step.frame, step.found, stream)
        elif stream.state == "reconnecting":
            self._set("reconnecting", stream.reason)
        self._emit(step.events)

    def _emit(self, events: Sequence[Event]) -> None:
        if events:
            self._counts["events"] += len(events)
            self._sink.events(self.name, events)

    def _set(self, state: State, reason: str | None = None) -> None:
        masked = None if reason is None else mask(reason)
        if (state, masked) == (self._state, self._reason):
            return
        level = logging.WARNING if state == "failed" else logging.INFO
        if state != self._state:
            _log.log(level, "pipeline %s: %s%s", self.name, state, f": {masked}" if masked else "")
        self._state, self._reason = state, masked

    def _rate(self) -> float:
        """Frames a second over the last seconds."""
        since = time.monotonic() - _RATE_WINDOW_S
        times = [done for done in self._done.copy() if done >= since]
        return round((len(times) - 1) / (times[-1] - times[0]), 1) if len(times) > 1 and times[-1] > times[0] else 0.0
