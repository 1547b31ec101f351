"""How `pyasc run` ends on a signal."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Stop:
    """Whether a signal has asked for the end, and the exit code that tells of it."""

    def __init__(self) -> None:
        self.wanted = False
        self.exit_code = 0

    def take(self, number: int, _frame: FrameType | None) -> None:
        """The first signal ends in good order, a second one at once."""
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted, self.exit_code = True, 128 + number


@contextlib.contextmanager
def signals() -> Iterator[Stop]:
    """Take SIGINT and SIGTERM into a `Stop` as long as the `with` lasts."""
    stop = Stop()
    before = {number: signal.signal(number, stop.take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
