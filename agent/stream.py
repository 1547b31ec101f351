"""`Stream`: a video source as an iterator of frames."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator

from pyasc.agent.bounded_queue import Policy
from pyasc.agent.producer import Options, Producer, State
from pyasc.agent.sources import Transport, parse_source
from pyasc.errors import StreamError
from pyasc.types import Frame, Resource

_POLL_S = 0.5


class Stream(Resource):
    """Frames of a video source, decoded in a thread of their own.

    Args:
        source: a video file, a picture, a folder of pictures (in natural order, played at 25 frames a second), a camera as number
            or `/dev/videoN`, or an rtsp, rtsps, http, https or file address.
        transport: how RTSP carries the stream, `tcp` or `udp`.
        loop: begin a file or folder again at its end, for ever; times and indices go on.
        realtime: read a file no faster than it was recorded, else as fast as it is taken. A live source has its own pace.
        every: hand out each n-th frame only.
        timeout_s: how long opening may take. A live source that sends nothing for this time, at most 5 s, is taken for lost; a
            file of which nothing can be read for this time ends with an error.
        policy: what happens to frames that are not taken in time: `all` waits (the way of files), `newest` drops the older ones and
            counts them (the way of live sources and of `realtime`).
        retry: go on trying when a live source cannot be opened at first; without it that raises. A source that was open once is
            always opened again.

    Iteration ends with the file; that of a live source never does. A stream is also ended by `close`, by `with`, and when it is no
    longer referred to.

    Raises:
        StreamError: the source cannot be opened; one line with the cause and without the password.
        ValueError: an option that this source has no use for.
    """

    def __init__(
        self,
        source: str | int | os.PathLike[str],
        *,
        transport: Transport = "tcp",
        loop: bool = False,
        realtime: bool = False,
        every: int = 1,
        timeout_s: float = 10.0,
        policy: Policy | None = None,
        retry: bool = False,
    ) -> None:
        parsed = parse_source(source)
        if transport not in ("tcp", "udp") or policy not in (None, "all", "newest"):
            raise ValueError(f"transport {transport!r} is tcp or udp; policy {policy!r} is all or newest")
        if transport != "tcp" and not parsed.rtsp:
            raise ValueError(f"transport is for rtsp addresses only, not for {parsed.title}")
        if (parsed.kind == "camera" or parsed.rtsp) and (loop or realtime):
            raise ValueError(f"loop and realtime are for files and folders, {parsed.title} is live")
        if every < 1 or not 0 < timeout_s < math.inf:
            raise ValueError(f"every {every} must be at least 1, timeout_s {timeout_s} above 0 and finite")
        self.source = parsed.title
        self._size = (0, 0)
        self._timeout_s = timeout_s
        self._producer = Producer(parsed, Options(transport, loop, realtime, every, timeout_s, policy, retry))
        self._finalizer = weakref.finalize(self, self._producer.close)
        if not retry or parsed.kind in ("file", "folder"):
            self._wait_until_open()

    def __repr__(self) -> str:
        return f"Stream({self.source!r}, {self.width}x{self.height}, {self.fps:g} fps, {self.state})"

    @property
    def width(self) -> int:
        """Columns of the frame that was handed out last; before the first one as announced, 0 until the source is open."""
        return self._size[0] or self._producer.width

    @property
    def height(self) -> int:
        """Lines of the frame that was handed out last; before the first one as announced, 0 until the source is open."""
        return self._size[1] or self._producer.height

    @property
    def resolution(self) -> int:
        """Number of lines of the picture: its short side."""
        return min(self.width, self.height)

    @property
    def fps(self) -> float:
        """Nominal frames a second; 0.0 where unknown."""
        return self._producer.fps

    @property
    def live(self) -> bool:
        """Whether the source sends at its own pace. False for files."""
        return bool(self._producer.live)

    @property
    def drops(self) -> bool:
        """Whether frames that are not taken in time are dropped. A network source that is not open yet is taken for a camera."""
        return self._producer.policy == "newest"

    @property
    def state(self) -> State:
        """`connecting`, `running`, `reconnecting` or `ended`."""
        return self._producer.state

    @property
    def reason(self) -> str | None:
        """Why it is reconnecting or has failed."""
        return self._producer.reason

    @property
    def dropped(self) -> int:
        """Frames that were decoded and never taken."""
        return self._producer.frames.dropped

    @property
    def reconnects(self) -> int:
        """How often a connection was lost."""
        return self._producer.reconnects

    @property
    def queued(self) -> int:
        """Frames that are decoded and wait to be taken."""
        return len(self._producer.frames)

    @property
    def ended(self) -> bool:
        """True when no more frames will come."""
        return self._producer.frames.ended

    def read(self, timeout_s: float) -> Frame | None:
        """The next frame; None when none came in time or, with `ended`, none will come.

        Raises:
            StreamError: the source broke.
        """
        frame = self._producer.get(timeout_s)
        if frame is not None:
            self._size = frame.width, frame.height
        return frame

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        while not self.ended:
            frame = self.read(_POLL_S)
            if frame is not None:
                return frame
        raise StopIteration

    def close(self) -> None:
        """End the stream and release the source; a second call does nothing."""
        self._finalizer()

    def _wait_until_open(self) -> None:
        producer = self._producer
        if not producer.opened.wait(self._timeout_s + 1.0):
            producer.fail(StreamError(f"{self.source}: not open after {self._timeout_s:g} s"))
        if producer.state == "ended" and producer.reason is not None:
            self.close()
            raise StreamError(producer.reason)
