"""The bounded queue between the thread that decodes and the one that takes frames."""

from __future__ import annotations

import threading
from collections import deque
from typing import Literal

from pyasc.types import Frame

Policy = Literal["all", "newest"]
# A frame of 1080 lines is 6 MB.
_CAPACITY: dict[Policy, int] = {"all": 4, "newest": 1}


class FrameQueue:
    """A queue that waits (`all`) or drops its oldest frame (`newest`) when it is full.

    Attributes:
        dropped: frames that nobody took.
    """

    def __init__(self, policy: Policy) -> None:
        self.dropped = 0
        self._policy = policy
        self._frames: deque[Frame] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def ended(self) -> bool:
        """True when no frame is left and none will come."""
        with self._changed:
            return self._ended and not self._frames and self._error is None

    def set_policy(self, policy: Policy) -> None:
        """Change the policy; before the first frame."""
        self._policy = policy

    def put(self, frame: Frame, timeout_s: float) -> bool:
        """Add a frame; False when the queue stayed full for `timeout_s` (never with `newest`) or has ended."""
        with self._changed:
            if self._policy == "newest":
                while len(self._frames) >= _CAPACITY["newest"]:
                    self._frames.popleft()
                    self.dropped += 1
            free = self._changed.wait_for(
                lambda: self._ended or len(self._frames) < _CAPACITY[self._policy], timeout=timeout_s
            )
            if self._ended or not free:
                return False
            self._frames.append(frame)
            self._changed.notify_all()
            return True

    def get(self, timeout_s: float) -> Frame | None:
        """The next frame; None when none came within `timeout_s` or none will come.

        Raises:
            Exception: what `end` was given, once the frames before it have been taken; only once.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or bool(self._frames), timeout=timeout_s)
            if self._frames:
                frame = self._frames.popleft()
                self._changed.notify_all()
                return frame
            error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    def end(self, error: Exception | None = None, *, drop: bool = False) -> None:
        """No more frames; what is there can still be taken unless `drop`. A second call changes nothing but `drop`."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            if drop:
                self._frames.clear()
                self._error = None
            self._changed.notify_all()
