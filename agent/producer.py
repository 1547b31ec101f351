"""The decoding thread of a stream: opens, reads, reconnects, gives frames their times."""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass
from typing import Literal

from pyasc.agent.bounded_queue import BoundedQueue, Policy
from pyasc.agent.sources import Reader, Source, Transport, open_reader
from pyasc.errors import StreamError
from pyasc.types import Frame

_log = logging.getLogger(__name__)

State = Literal["connecting", "running", "reconnecting", "ended"]

# Decoded frames that wait; one of 1080 lines is 6 MB.
_CAPACITY: dict[Policy, int] = {"all": 4, "newest": 1}
# A lost camera is noticed within this time.
LOSS_S = 5.0
_RETRY_FIRST_S, _RETRY_LAST_S = 0.5, 30.0
# A connection that held this long ends the doubling of the delays.
_STEADY_S = 10.0
_DEFAULT_FPS = 25.0
# A file's clock that leaps by more than this has been set, it has not waited.
_MAX_LEAP_S = 600.0
# Beyond the limits that OpenCV was given, a call that has not returned is taken for wedged.
_GRACE_S = 2.0
_JOIN_S = 2.0
_MAX_WEDGED = 4


@dataclass(frozen=True, slots=True)
class Options:
    """How a source is read; meanings in `Stream`."""

    transport: Transport
    loop: bool
    realtime: bool
    every: int
    timeout_s: float
    policy: Policy | None
    retry: bool


class PositionClock:
    """Seconds since the first frame of a file, from time stamps that may be missing, zero, going backward or leaping ahead.

    Args:
        fps: nominal rate for frames without a usable time stamp; 0.0 where unknown.
    """

    def __init__(self, fps: float) -> None:
        self._period_s = 1 / fps if fps > 0 else 1 / _DEFAULT_FPS
        self._last_s = -self._period_s
        self._offset_s: float | None = None

    def next(self, position_s: float | None, frames: int = 1) -> float:
        """Take the time stamp of a frame that comes `frames` after the one before; the result always grows."""
        usual_s = self._last_s + frames * self._period_s
        if position_s is None:
            elapsed_s = usual_s
        else:
            if self._offset_s is None or position_s - self._offset_s > usual_s + _MAX_LEAP_S:
                self._offset_s = position_s - usual_s
            elapsed_s = position_s - self._offset_s
        self._last_s = elapsed_s if elapsed_s > self._last_s else usual_s
        return self._last_s

    def restart(self) -> None:
        """The file begins again: its time stamps do, the result goes on."""
        self._offset_s = None


class Producer:
    """Reads one source in a daemon thread until its end or `close`.

    A call into OpenCV that outlives its limits cannot be ended from outside: its thread is left to itself, which releases the
    capture when the call returns, and a new one takes over.

    Attributes:
        state, reason: what the source does now, and why it is not running.
        width, height, fps: as announced by the source; 0 until it is open.
        live: whether the source is a camera; None until it is open.
        reconnects: connections that were lost.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self.state: State = "connecting"
        self.reason: str | None = None
        self.width = self.height = 0
        self.fps = 0.0
        self.live: bool | None = True if source.kind == "camera" or source.rtsp else None
        self.reconnects = 0
        self.frames: BoundedQueue[Frame] = BoundedQueue(_CAPACITY["all"])
        self.opened = threading.Event()
        self._source, self._options = source, options
        self._stall_s = min(options.timeout_s, LOSS_S) if source.kind in ("camera", "network") else options.timeout_s
        self._closed = threading.Event()
        self._index = 0
        self._attempt = 0
        self._told_short = False
        self._clock: PositionClock | None = None
        self._start = (0.0, 0.0)
        self._deadline = float("inf")
        self._wedged: list[threading.Thread] = []
        self._thread = threading.Thread()
        self._launch()

    @property
    def thread(self) -> threading.Thread:
        """The thread that reads now."""
        return self._thread

    @property
    def policy(self) -> Policy:
        """What happens to frames that are not taken in time; a source that is not known yet is taken for a live one."""
        own: Policy = "all" if self.live is False and not self._options.realtime else "newest"
        return self._options.policy or own

    def close(self) -> None:
        """End the thread and release the source; a second call does nothing."""
        self._closed.set()
        self.opened.set()
        self.frames.end(drop=True)
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        self.state = "ended"

    def get(self, timeout_s: float) -> Frame | None:
        """The next frame, None when none came in time or at the end; takes over from a thread that hangs."""
        frame = self.frames.get(timeout_s)
        if frame is None and time.monotonic() > self._deadline and not self._closed.is_set():
            self._take_over()
        return frame

    def fail(self, error: StreamError) -> None:
        """End with an error."""
        self.state, self.reason = "ended", str(error)
        self.frames.end(error)
        self._closed.set()
        self.opened.set()

    # --- the thread

    def _launch(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"stream {self._source.title}"[:60], daemon=True)
        self._thread.start()

    def _mine(self) -> bool:
        return self._thread is threading.current_thread() and not self._closed.is_set()

    def _watch(self, limit_s: float | None) -> None:
        """How long the call that follows may take, None after it; one that comes back late has no say any more."""
        if self._mine():
            self._deadline = float("inf") if limit_s is None else time.monotonic() + limit_s + _GRACE_S

    def _take_over(self) -> None:
        error = StreamError(f"{self._source.title}: no frame for {self._stall_s:g} s, the call does not return")
        self._deadline = float("inf")
        if self.live is False or self._source.kind in ("file", "folder"):
            self.fail(error)
            return
        self._wedged = [thread for thread in (*self._wedged, self._thread) if thread.is_alive()]
        if len(self._wedged) >= _MAX_WEDGED:
            self.fail(StreamError(f"{self._source.title}: {len(self._wedged)} calls do not return, given up"))
            return
        self.reconnects += 1
        self._lost(str(error))
        self._launch()

    def _run(self) -> None:
        try:
            while self._mine():
                if not self._session():
                    break
        except Exception as error:  # noqa: BLE001 - whatever ends the thread is handed to whoever takes the frames
            if self._mine():
                _log.debug("%s: the reader ended", self._source.title, exc_info=True)
                self.fail(error if isinstance(error, StreamError) else StreamError(f"{self._source.title}: {error!r}"))

    def _session(self) -> bool:
        """Open and read until the end or a loss; True when there is to be another session."""
        reader = self._open()
        if reader is None:
            return self._mine()
        started = time.monotonic()
        reason = f"{self._source.title}: the connection was lost"
        count = 0
        try:
            count = self._pump(reader)
        except StreamError as error:
            if not reader.live:
                raise
            reason = str(error)
        finally:
            self._watch(None)
            reader.close()
        if not self._mine():
            return False
        if not reader.live:
            return self._next_round(reader, count)
        if time.monotonic() - started >= _STEADY_S:
            self._attempt = 0
        self.reconnects += 1
        self._lost(reason)
        self._pause()
        return True

    def _open(self) -> Reader | None:
        """The opened reader; None after a failure, when it is worth another try and the pause is over."""
        options = self._options
        self._watch(options.timeout_s)
        try:
            reader = open_reader(
                self._source, transport=options.transport, timeout_s=options.timeout_s, stall_s=self._stall_s
            )
        except StreamError as error:
            self._watch(None)
            if not self._mine():
                return None
            if not ((options.retry or self.opened.is_set()) and self._source.kind in ("camera", "network")):
                raise
            self._lost(str(error))
            self._pause()
            return None
        self._watch(None)
        if not self._mine():
            reader.close()
            return None
        self._admit(reader)
        return reader

    def _admit(self, reader: Reader) -> None:
        options = self._options
        if reader.live and (options.loop or options.realtime):
            reader.close()
            raise StreamError(f"{self._source.title}: loop and realtime are for files and folders, this source is live")
        if self.live is None or not self.opened.is_set():
            self.live = reader.live
            self.frames.configure(_CAPACITY[self.policy], self.policy)
        self.width, self.height, self.fps = reader.width, reader.height, reader.fps
        self.opened.set()

    def _next_round(self, reader: Reader, count: int) -> bool:
        if count == 0:
            raise StreamError(f"{self._source.title}: no frame can be decoded")
        if reader.frames is not None and count < 0.9 * reader.frames and not self._told_short:
            self._told_short = True
            _log.warning(
                "%s: ended after %d of %d frames: damaged or cut off", self._source.title, count, reader.frames
            )
        if self._options.loop:
            if self._clock is not None:
                self._clock.restart()
            return True
        self.state = "ended"
        self.frames.end()
        return False

    def _pump(self, reader: Reader) -> int:
        """Hand on frames until the end, a loss or `close`; returns how many pictures were read or passed over."""
        count, passed = 0, 1
        while self._mine():
            self._watch(self._stall_s)
            wanted = self._index % self._options.every == 0
            picture = reader.read() if wanted else None
            if picture is None and (wanted or not reader.skip()):
                break
            self._watch(None)
            if not self._mine():
                break
            if picture is not None:
                self.state, self.reason = "running", None
                stamp, clock = self._times(reader, picture.position_s, passed)
                if not self._hand_on(Frame(picture.image, self._index, stamp, clock), clock):
                    break
                passed = 0
            self._index, count, passed = self._index + 1, count + 1, passed + 1
        return count

    def _times(self, reader: Reader, position_s: float | None, passed: int) -> tuple[float, float]:
        """Capture time in UTC and on the monotonic clock: of arrival where live, else the start plus the position."""
        if reader.live:
            return time.time(), time.monotonic()
        if self._clock is None:
            self._clock = PositionClock(reader.fps)
            self._start = time.time(), time.monotonic()
        elapsed_s = self._clock.next(position_s, passed)
        return self._start[0] + elapsed_s, self._start[1] + elapsed_s

    def _hand_on(self, frame: Frame, due: float) -> bool:
        if self._options.realtime:
            self._closed.wait(max(0.0, due - time.monotonic()))
        while self._mine():
            if self.frames.put(frame, timeout_s=0.5):
                return True
        return False

    # --- losses

    def _lost(self, reason: str) -> None:
        if self.state != "reconnecting":
            _log.warning("%s", reason)
        self.state, self.reason = "reconnecting", reason

    def _pause(self) -> None:
        """Wait before the next try: the delays double up to a limit, and are jittered so that many boxes do not come at once."""
        delay_s = min(_RETRY_FIRST_S * 2.0**self._attempt, _RETRY_LAST_S)
        self._attempt = min(self._attempt + 1, 16)
        self._closed.wait(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret depends on it
