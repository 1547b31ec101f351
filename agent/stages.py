"""The threads and queues behind `EdgeAnalyzer`: detection and tracking side by side, the order of the frames kept."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from pyasc.agent.bounded_queue import BoundedQueue
from pyasc.agent.routing import Mover
from pyasc.agent.stream import Stream
from pyasc.errors import PluginError, PyascError
from pyasc.types import Detections, Frame, Tracks

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_D = TypeVar("_D", bound=Detections)

Result = tuple[Frame, Detections]
_Outcome = tuple["Frame | None", "Detections | None", "Exception | None"]

# Frames between two stages: enough that one does not wait for the other's usual unevenness.
_QUEUE_FRAMES = 2
# Frames that may be detected before an earlier one that is late.
_AHEAD_FRAMES = 2
_POLL_S = 0.2
_JOIN_S = 8.0
# Share of the past in the average time of a stage.
_MEMORY = 0.9


class Stages:
    """Runs a stream through a detector and a tracker until its end or `stop`.

    Args:
        stream: where frames come from; not closed.
        process: called with the stream before the first frame and before the first one of another size, when no frame is in work.
        detect: a picture's detections.
        concurrency: calls of `detect` that may run at the same time.
        tracker: None for plain detections.
        beside: calls of `process` but the first run beside the frames, for a detector that may be moved while it is called.
    """

    def __init__(
        self,
        stream: Stream,
        process: Callable[[Stream], None],
        detect: Callable[[Any], Detections],
        concurrency: int,
        tracker: Any,
        *,
        beside: bool = False,
    ) -> None:
        self._stream, self._process, self._detect, self._tracker = stream, process, detect, tracker
        self._stop = threading.Event()
        self._detected: BoundedQueue[Result] = BoundedQueue(_QUEUE_FRAMES)
        self._tracked: BoundedQueue[Result] = BoundedQueue(_QUEUE_FRAMES)
        self._output = self._detected if tracker is None else self._tracked
        self._intake = threading.Lock()
        self._size: tuple[int, int] | None = None
        self._again = threading.Event()
        self._mover = Mover(lambda: process(stream)) if beside else None
        self._taken = 0
        self._order: _Order[_Outcome] = _Order(self._stop, concurrency + _AHEAD_FRAMES, self._deliver)
        self._clocks = {"detect": [_StageClock() for _ in range(concurrency)]}
        self._threads = [
            threading.Thread(target=self._detect_all, args=(clock,), name="detect", daemon=True)
            for clock in self._clocks["detect"]
        ]
        if tracker is not None:
            tracker.reset()
            self._clocks["track"] = [_StageClock()]
            self._threads.append(
                threading.Thread(target=self._track_all, args=self._clocks["track"], name="track", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    @property
    def ended(self) -> bool:
        """Whether all results have been taken and none will come."""
        return self._output.ended

    def choose(self) -> None:
        """Let `process` choose again, before the next frame or beside it."""
        if self._mover is not None:
            self._mover.request()
        else:
            self._again.set()

    @property
    def idle(self) -> bool:
        """Whether no frame is on its way."""
        waiting = self._stream.queued or len(self._detected) or len(self._tracked)
        return not waiting and not any(clock.busy_s() for clocks in self._clocks.values() for clock in clocks)

    def get(self, timeout_s: float) -> Result | None:
        """The next frame and what was found; None when there is none in time or none will come.

        Raises:
            Exception: what a stage or the stream raised, after the frames before it.
        """
        return self._output.get(timeout_s)

    def check(self, stall_s: float) -> None:
        """Raise PyascError when a stage has been busy with one frame for longer than this."""
        for name, clocks in self._clocks.items():
            if any(clock.busy_s() > stall_s for clock in clocks):
                raise PyascError(f"the {name} stage has not come back from a frame for {stall_s:g} s")
        if self._mover is not None and self._mover.busy_s() > stall_s:
            raise PyascError(f"choosing a device has not come back for {stall_s:g} s")

    def stop(self) -> bool:
        """End the threads; False when one does not end and is left behind."""
        self._stop.set()
        for queue in (self._detected, self._tracked):
            queue.end(drop=True)
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _log.error("%s: the %s stage does not end, left behind", self._stream.source, thread.name)
        chosen = self._mover is None or self._mover.join(max(0.0, deadline - time.monotonic()))
        return chosen and not any(thread.is_alive() for thread in self._threads)

    def stats(self) -> dict[str, Any]:
        """As `EdgeAnalyzer.stats`."""
        queues = {"detect": self._stream.queued, "track": len(self._detected), "output": len(self._tracked)}
        if self._tracker is None:
            queues = {"detect": self._stream.queued, "output": len(self._detected)}
        stages = {}
        for name, clocks in self._clocks.items():
            used = [clock for clock in clocks if clock.frames]
            ms = sum(clock.average_s for clock in used) * 1000 / len(used) if used else 0.0
            stages[name] = {"frames": sum(clock.frames for clock in used), "ms": round(ms, 2)}
        return {"stages": stages, "queues": queues, "dropped": self._stream.dropped}

    # --- the threads

    def _detect_all(self, clock: _StageClock) -> None:
        """Detect in frame after frame, side by side with the other threads of this method."""
        more = True
        while more and not self._stop.is_set():
            number, frame, error = self._take(clock)
            found = None
            if frame is not None and error is None:
                try:
                    with clock:
                        found = _checked("detector", self._detect(frame.image), Detections)
                except BaseException as failure:  # noqa: BLE001 - handed to whoever takes the results
                    error = _as_error(failure)
            more = frame is not None and found is not None
            self._order.put(number, (frame, found, error))

    def _deliver(self, outcome: _Outcome) -> bool:
        """Hand on what became of a frame, the frames before it have been; False when it is the last."""
        frame, found, error = outcome
        if frame is None or found is None:
            self._detected.end(error)
            return False
        self._hand_on(self._detected, (frame, found))
        return True

    def _take(self, clock: _StageClock) -> tuple[int, Frame | None, Exception | None]:
        """The next frame with its place in the order; no frame at the stream's end, an error where there is one."""
        with self._intake:
            number, frame = self._taken, None
            self._taken += 1
            if not self._order.wait_for_room(number):
                return number, None, None
            try:
                frame = self._next_frame()
                if self._mover is not None:
                    self._mover.check()
                if frame is not None and ((frame.width, frame.height) != self._size or self._again.is_set()):
                    self._place(number, clock, first=self._size is None)
                    self._size = frame.width, frame.height
            except BaseException as error:  # noqa: BLE001 - handed to whoever takes the results
                return number, frame, _as_error(error)
            return number, frame, None

    def _place(self, number: int, clock: _StageClock, first: bool) -> None:
        """Choose the device for frame `number` and those after it."""
        if self._mover is not None and not first:
            self._mover.request()
            return
        self._order.wait_for_turn(number)  # the frames before it are done: nothing runs on the device of now
        self._again.clear()
        with clock.busy():
            self._process(self._stream)

    def _next_frame(self) -> Frame | None:
        while not (self._stop.is_set() or self._stream.ended):
            frame = self._stream.read(_POLL_S)
            if frame is not None:
                return frame
        return None

    def _track_all(self, clock: _StageClock) -> None:
        try:
            while not self._detected.ended:
                item = self._detected.get(_POLL_S)
                if item is None:
                    continue
                frame, found = item
                with clock:
                    tracks = _checked("tracker", self._tracker.update(found, frame.image, frame.clock), Tracks)
                self._hand_on(self._tracked, (frame, tracks))
            self._tracked.end()
        except BaseException as error:  # noqa: BLE001 - handed to whoever takes the results
            self._tracked.end(_as_error(error))

    def _hand_on(self, queue: BoundedQueue[_T], item: _T) -> None:
        while not self._stop.is_set():
            if queue.put(item, _POLL_S):
                return


def _checked(who: str, result: Any, kind: type[_D]) -> _D:
    """What a plugin gave for a frame; PluginError when it is something else, which would end the run without a word."""
    if not isinstance(result, kind):
        raise PluginError(f"the {who} gave {type(result).__name__} instead of {kind.__name__}")
    return result


def _as_error(failure: BaseException) -> Exception:
    """What a thread hands on: a SystemExit, say, of a plugin would end the thread alone, and nobody would know."""
    return failure if isinstance(failure, Exception) else PluginError(f"a plugin raised {failure!r}")


class _Order(Generic[_T]):
    """Takes what threads have made in any order, and delivers it by its number.

    A thread whose number's turn has not come does not wait for it: when a tracker takes a core for a moment, the frame on that
    core is late, and the other threads go on with later ones.

    Args:
        stop: ends all waiting.
        ahead: how far a number may be before the one whose turn it is.
        deliver: gets one after the other; False from it means that it was the last.
    """

    def __init__(self, stop: threading.Event, ahead: int, deliver: Callable[[_T], bool]) -> None:
        self._stop, self._ahead, self._deliver = stop, ahead, deliver
        self._changed = threading.Condition()
        self._made: dict[int, _T] = {}
        self._next = 0
        self._ended = False

    def wait_for_room(self, number: int) -> bool:
        """Wait until a number may be worked on; False when that will not be."""
        return self._wait(lambda: number < self._next + self._ahead)

    def wait_for_turn(self, number: int) -> bool:
        """Wait until all numbers before this one have been delivered; False when that will not be."""
        return self._wait(lambda: number == self._next)

    def put(self, number: int, item: _T) -> None:
        """Deliver the item, now or when its turn comes."""
        with self._changed:
            self._made[number] = item
            while self._next in self._made and not self._ended:
                self._ended = not self._deliver(self._made.pop(self._next))
                self._next += 1
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        with self._changed:
            while not (condition() or self._ended or self._stop.is_set()):
                self._changed.wait(_POLL_S)
            return not (self._ended or self._stop.is_set())


class _StageClock:
    """Times the frames of one thread: `with` it for each."""

    def __init__(self) -> None:
        self.frames = 0
        self.average_s = 0.0
        self._began: float | None = None

    def busy_s(self) -> float:
        """Seconds that the frame in work has taken so far; 0.0 when idle."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Work that is no frame: it may hang as well, and is not counted."""
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._began = None

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took_s, self._began = self.busy_s(), None
        self.average_s = took_s if self.frames == 0 else _MEMORY * self.average_s + (1 - _MEMORY) * took_s
        self.frames += 1
