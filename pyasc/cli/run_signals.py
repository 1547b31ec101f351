"""How `pyasc run` and `pyasc demo` end on a signal."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType


class Stop:
    """Whether a signal has asked for the end, and the exit code that tells of it."""

    def __init__(self) -> None:
        self.wanted = False
        self.exit_code = 0

    def take(self, number: int, _frame: FrameType | None) -> None:
        """The first signal ends in good order, a second one at once, unless it is the other SIGHUP of a closed terminal."""
        if self.wanted:
            if number == signal.SIGHUP:
                return
            raise KeyboardInterrupt
        self.wanted, self.exit_code = True, 128 + number


@contextlib.contextmanager
def signals() -> Iterator[Stop]:
    """Take SIGINT, SIGTERM and SIGHUP into a `Stop` as long as the `with` lasts."""
    stop = Stop()
    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), stop.take):
        yield stop


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Make SIGTERM and SIGHUP leave all `with` blocks, as Ctrl-C does, and then exit with 128 + number.

    Once: on the way out further ones are passed over, so that what was started is ended.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)

    def leave(number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    with _handled(numbers, leave):
        yield


@contextlib.contextmanager
def _handled(numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    # Under nohup SIGHUP is ignored, and stays so.
    taken = [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
