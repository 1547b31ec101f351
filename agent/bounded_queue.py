"""The bounded queue between two threads of a pipeline."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, Literal, TypeVar

Policy = Literal["all", "newest"]
_T = TypeVar("_T")


class BoundedQueue(Generic[_T]):
    """A queue that waits (`all`) or drops its oldest item (`newest`) when it is full.

    Args:
        capacity: items that it holds.
        policy: what happens when there are more.

    Attributes:
        dropped: items that nobody took.
    """

    def __init__(self, capacity: int, policy: Policy = "all") -> None:
        self.dropped = 0
        self._capacity, self._policy = capacity, policy
        self._items: deque[_T] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def ended(self) -> bool:
        """True when nothing is left, nothing will come, and the error, if any, has been raised."""
        with self._changed:
            return self._ended and not self._items and self._error is None

    def configure(self, capacity: int, policy: Policy) -> None:
        """Change what it was made with; before the first item."""
        self._capacity, self._policy = capacity, policy

    def put(self, item: _T, timeout_s: float) -> bool:
        """Add an item; False when the queue stayed full for `timeout_s` (never with `newest`) or has ended."""
        with self._changed:
            if self._policy == "newest":
                while len(self._items) >= self._capacity:
                    self._items.popleft()
                    self.dropped += 1
            free = self._changed.wait_for(lambda: self._ended or len(self._items) < self._capacity, timeout=timeout_s)
            if self._ended or not free:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def get(self, timeout_s: float) -> _T | None:
        """The next item; None when none came within `timeout_s` or none will come.

        Raises:
            Exception: what `end` was given, once the items before it have been taken; only once.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or bool(self._items), timeout=timeout_s)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    def end(self, error: Exception | None = None, *, drop: bool = False) -> None:
        """No more items; what is there can still be taken unless `drop`. A second call changes nothing but `drop`."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            if drop:
                self._items.clear()
                self._error = None
            self._changed.notify_all()
