"""The agent's log: to stderr for journald, and the last lines in memory for the `logs` command. Secrets are masked in both."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from pyasc.agent.clock import rfc3339
from pyasc.agent.masking import mask

KEPT_RECORDS = 1000
MAX_MESSAGE_CHARS = 2000


class _Masked(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return mask(super().format(record))


class RecentLog(logging.Handler):
    """Keeps the last records, of this process and of the engine."""

    def __init__(self) -> None:
        super().__init__()
        self._records: deque[dict[str, Any]] = deque(maxlen=KEPT_RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        message = self.format(record)
        self.keep(record.levelname, record.name, message, record.created)

    def keep(self, level: str, logger: str, message: str, time_s: float | None = None) -> None:
        """Keep a record of another process."""
        text = mask(message[:MAX_MESSAGE_CHARS])
        self._records.append({"time": rfc3339(time_s), "level": level.lower(), "logger": logger[:200], "message": text})

    def last(self, count: int, level: str = "debug") -> list[dict[str, Any]]:
        """The last records of at least this severity, oldest first."""
        names = ("debug", "info", "warning", "error", "critical")
        wanted = names[names.index(level) :]
        found = [record for record in list(self._records) if record["level"] in wanted]
        return found[-count:] if count > 0 else []


def set_up_logging(level: str) -> RecentLog:
    """Send the log of this process to stderr and into the returned memory."""
    recent = RecentLog()
    recent.setFormatter(logging.Formatter("%(message)s"))
    stream = logging.StreamHandler()
    stream.setFormatter(_Masked("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [stream, recent]
    root.setLevel(level.upper())
    return recent
