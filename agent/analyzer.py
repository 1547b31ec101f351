"""`EdgeAnalyzer`: a stream through a detector and a tracker, the stages side by side."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyasc.agent.events import LEAVE_AFTER_S, Event, EventMaker
from pyasc.agent.routing import Router, device_load, parse_route
from pyasc.agent.stages import Stages
from pyasc.agent.stream import Stream
from pyasc.agent.zones import Line, Shapes, Zone, make_lines, make_zones
from pyasc.errors import ConfigError, PluginError, PyascError
from pyasc.types import Detections, Frame, Resource, Tracks

_log = logging.getLogger(__name__)

_POLL_S = 0.2
# Pictures in detection at the same time, where the detector is made for so many.
_MAX_CALLERS = 8


class Step(NamedTuple):
    """What one step of an analysis gave.

    Attributes:
        frame: the frame that is done; None when none was for a moment, and in the last step.
        found: its tracks, or detections without a tracker.
        events: what happened, in order.
    """

    frame: Frame | None
    found: Detections | None
    events: Sequence[Event]


class EdgeAnalyzer(Resource):
    """Finds and follows objects in a stream; where the detector runs may depend on the stream.

    Args:
        detector: a detector plugin, a detection model, or the path of one; callable with a picture or with `detect`.
        tracker: a tracker plugin, its name, or None to get plain detections.
        route: where the detector runs: entries `{"when": "resolution > 1080", "device": "mlu220"}`, the first whose condition
            holds; without `when` it always does. Where none holds the device stays. A device that fails is left for the next one of
            the route until it works again. `hysteresis` and `max_load` of an entry: see `pyasc.agent.routing.Entry`.
        zones: name to the corners, in 0..1 of the picture; needs a tracker, as lines and events do.
        lines: name to the two ends.
        leave_after_s: how long a track may be unseen before it has left.

    A subclass may override `process` to choose the device, and may set `detector` and `tracker` itself in its own `__init__`.

    Attributes:
        detector, tracker: as given, loaded where a path or a name was given. `close` closes both.
        events: those that came with the frame that `run` yielded last; after its end, whatever ended it, those of the ending.
            Empty without a tracker.
        stall_s: a stage that is busy with one frame for longer than this ends the run with an error.
        wedged: True after a run whose stages did not end: a call into a device did not come back.

    Raises:
        ConfigError: a route that is not one, or for a detector that cannot be moved; zones or lines that are none, or without a
            tracker.
        PluginError, DeviceError, ModelFormatError: from loading.
    """

    detector: Any = None
    tracker: Any = None
    events: Sequence[Event] = ()
    wedged: bool = False
    stall_s: float = 60.0
    # Here and not in __init__ alone, for subclasses whose own does not call it.
    _router: Router | None = None
    _zones: Sequence[Zone] = ()
    _lines: Sequence[Line] = ()
    _leave_after_s = LEAVE_AFTER_S
    _active: Stages | None = None

    def __init__(
        self,
        detector: Any = None,
        tracker: Any = None,
        *,
        route: Sequence[Mapping[str, Any]] | None = None,
        zones: Shapes | None = None,
        lines: Shapes | None = None,
        leave_after_s: float = LEAVE_AFTER_S,
    ) -> None:
        entries = parse_route(route or ())
        self._zones, self._lines = make_zones(zones), make_lines(lines)
        self._leave_after_s = leave_after_s
        if tracker is None and (zones or lines):
            raise ConfigError("zones and lines need a tracker")
        self.detector = _load_detector(detector)
        try:
            if entries:
                if not hasattr(self.detector, "config_device"):
                    raise ConfigError([("route", "the detector has no config_device: it stays where it is")])
                self._router = Router(self.detector, entries, _detect_of(self.detector), device_load)
                self._router.prepare()
            self.tracker = _load_tracker(tracker)
        except BaseException:
            if self.detector is not detector:
                self.detector.close()
            raise

    def process(self, stream: Stream) -> None:
        """Choose where the detector runs; called before the first frame and whenever the stream's resolution changes.

        This one follows the route. The tracker and its identities are not touched.
        """
        if self._router is None:
            return
        facts: dict[str, float] = {"resolution": stream.resolution, "width": stream.width, "height": stream.height}
        if stream.fps:
            facts["fps"] = stream.fps
        self._router.follow(facts)

    def run(self, stream: Stream) -> Iterator[tuple[Frame, Any]]:
        """Analyse a stream to its end.

        Detector and tracker run in threads of their own, so while frame k is detected, k - 1 is tracked and k + 1 decoded; a
        detector that can be shared (`Detector.share`) works on k + 1 as well, where the stream waits for it. The order is kept. The
        tracker begins anew. The stream stays the caller's to close; ending the iteration ends the threads.

        Yields:
            each frame with its `Tracks`, or `Detections` without a tracker.
        Raises:
            StreamError: the source broke.
            PyascError: a stage has not come back from a frame for `stall_s`.
            Anything else that detector or tracker raised.
        """
        before: list[Event] = []
        try:
            with contextlib.closing(self.steps(stream)) as steps:
                for step in steps:
                    before += step.events
                    if step.frame is not None:
                        self.events, before = before, []
                        yield step.frame, step.found
        finally:
            self.events = [*before, *self.events]

    def steps(self, stream: Stream) -> Generator[Step, None, None]:
        """Like `run`, with the events beside the frames, and a step without a frame whenever none is done for a moment.

        A live stream that is interrupted goes on giving steps, so that the tracks of before the interruption leave in time.
        """
        if self.detector is None:
            raise ConfigError("the analyzer has no detector")
        if self._active is not None:
            raise PyascError("the analyzer is running already: it works on one stream at a time")
        maker = EventMaker(self._zones, self._lines, self._leave_after_s)
        self.events = ()
        detector, router = self.detector, self._router
        detect = _detect_of(detector) if router is None else router.detect
        share = getattr(detector, "share", _for_one_thread)
        callers = _callers(share, stream)
        # The devices of a route are ready; another `process` may have to wait for one, and the frames do not wait with it.
        beside = router is None and hasattr(detector, "prepare_device")
        try:
            stages = self._active = Stages(stream, self.process, detect, callers, self.tracker, beside=beside)
            if router is not None:
                router.on_change = stages.choose
        except BaseException:
            _give_back(share)
            raise
        reason = "stopped"
        # A thread that is inside of an engine when the interpreter goes would take the process down with it.
        atexit.register(self._end_run)
        try:
            while not stages.ended:
                item = stages.get(_POLL_S)
                if item is not None:
                    frame, found = item
                    yield Step(frame, found, maker.update(found, frame) if isinstance(found, Tracks) else ())
                elif stream.state == "reconnecting" and stages.idle:
                    yield Step(None, None, maker.expire(time.monotonic(), time.time()))
                else:
                    stages.check(self.stall_s)
                    yield Step(None, None, ())
                if router is not None:
                    router.watch()
            reason = "end-of-stream"
        except Exception:
            reason = "failed"
            raise
        finally:
            atexit.unregister(self._end_run)
            closed = self._active is not stages  # `close` came first, the detector is gone; or the program ends
            self._active = None
            if router is not None:
                router.on_change = None
            self.wedged = not stages.stop()
            if not (self.wedged or closed):
                _give_back(share)
            self.events = maker.close("stopped" if closed else reason)

    def stats(self) -> dict[str, Any]:
        """What the running stages do; empty when nothing runs.

        `stages`: for `detect` and `track` the frames done and `ms`, the moving average time of one; `queues`: frames that wait
        before each stage; `dropped`: frames of the stream that nobody took.
        """
        stages = self._active
        return {} if stages is None else stages.stats()

    @property
    def faults(self) -> Mapping[str, str]:
        """The devices of the route that are out of use now, with the reason."""
        return {} if self._router is None else dict(self._router.faults)

    def close(self) -> None:
        """End a run that is under way, and release detector and tracker; a second call does nothing."""
        if self._router is not None:
            self._router.close()
        self._end_run()
        for part in (self.detector, self.tracker):
            close = getattr(part, "close", None)
            if close is not None:
                close()

    def _end_run(self) -> None:
        stages, self._active = self._active, None
        if stages is not None:
            self.wedged = not stages.stop()


def _load_detector(detector: Any) -> Any:
    if isinstance(detector, str | os.PathLike):
        from pyasc.models.model import load_model

        return load_model(detector)
    return detector


def _load_tracker(tracker: Any) -> Any:
    if isinstance(tracker, str):
        from pyasc.plugins.base import load_plugin

        return load_plugin(tracker)
    return tracker


def _detect_of(detector: Any) -> Callable[[Any], Detections]:
    detect = getattr(detector, "detect", detector)
    if not callable(detect):
        raise PluginError(f"{type(detector).__name__} is no detector: it has no detect and cannot be called")
    return detect  # type: ignore[no-any-return] # a model or plugin of any kind: what it gives is checked by use


def _for_one_thread(callers: int, live: bool = False) -> int:
    return 1


def _callers(share: Callable[..., int], stream: Stream) -> int:
    callers = share(_MAX_CALLERS, live=stream.drops)
    if not isinstance(callers, int) or not 1 <= callers <= _MAX_CALLERS:
        raise PluginError(f"the detector's share({_MAX_CALLERS}) gave {callers!r} instead of 1 to {_MAX_CALLERS}")
    return callers


def _give_back(share: Callable[..., int]) -> None:
    """Let a detector know that one thread calls from now on; the end of a run does not fail by it."""
    try:
        share(1)
    except Exception as error:  # noqa: BLE001 - the detector may have been closed, or be other people's
        _log.warning("the detector cannot be given back to one thread: %s", error)
