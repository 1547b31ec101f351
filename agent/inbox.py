"""What the threads of the control process hand to its main loop."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any


class Inbox:
    """Messages in order, read by one thread.

    Three ways in: `post` always takes (for what is bounded elsewhere), `offer` refuses when much was offered already (for what
    outsiders send), `put` waits for room (for what must not be lost and can be held back).
    """

    def __init__(self, limit: int = 2000, offers: int = 100) -> None:
        self._limit, self._max_offers = limit, offers
        self._offers = 0
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def post(self, item: Any) -> None:
        """Add without a bound."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def offer(self, item: Any) -> bool:
        """Add unless too many offers wait; False when it was refused."""
        with self._changed:
            if self._offers >= self._max_offers:
                return False
            self._offers += 1
            self._items.append(item)
            self._changed.notify_all()
            return True

    def put(self, item: Any) -> None:
        """Wait for room and add; after `close` it is thrown away."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._limit)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()

    def take(self, timeout_s: float) -> list[Any]:
        """All items that are there, after waiting up to `timeout_s` for the first."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._items), timeout_s)
            items = list(self._items)
            self._items.clear()
            self._offers = 0
            self._changed.notify_all()
        return items

    def close(self) -> None:
        """Let go of writers that wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
