"""Messages to systemd (sd_notify(3)); nothing happens where the process is not started by it."""

from __future__ import annotations

import os
import socket
import time


def notify(*assignments: str) -> bool:
    """Send assignments such as `READY=1`; True when they were sent."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
        try:
            connection.sendto("\n".join(assignments).encode(), address)
        except OSError:
            return False
    return True


def watchdog_interval_s() -> float | None:
    """How often systemd wants a sign of life from this process; None when it wants none."""
    try:
        micros = int(os.environ["WATCHDOG_USEC"])
        process = int(os.environ.get("WATCHDOG_PID", os.getpid()))
    except (KeyError, ValueError):
        return None
    return micros / 1e6 if micros > 0 and process == os.getpid() else None


class Watchdog:
    """Tells systemd that the loop which calls `tick` goes round, twice as often as it wants to hear."""

    def __init__(self) -> None:
        self._interval_s = watchdog_interval_s()
        self._next = 0.0

    def tick(self) -> None:
        """To be called from the loop that matters."""
        now = time.monotonic()
        if self._interval_s is not None and now >= self._next:
            self._next = now + self._interval_s / 2
            notify("WATCHDOG=1")
