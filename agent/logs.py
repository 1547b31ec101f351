"""The agent's log: to stderr for journald, and the last lines in memory for the `logs` command. Secrets are masked in both."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from pyasc.agent.clock import rfc3339
from pyasc.agent.masking import mask

KEPT_RECORDS = 1000
MAX_MESSAGE_CHARS = 2000


class MaskedFormatter(logging.Formatter):
    """Formats a record, traceback included, without its secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """The text of a record."""
        return mask(super().format(record))


class RecentLog(logging.Handler):
    """Keeps the last records, of this process and of the engine."""

    def __init__(self) -> None:
        super().__init__()
        self._records: deque[dict[str, Any]] = deque(maxlen=KEPT_RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        try:
            self.keep(record.levelname, record.name, self.format(record), record.created)
        except Exception:  # noqa: BLE001 - as logging's own handlers: a wrong record must not fail who logs
            self.handleError(record)

    def keep(self, level: str, logger: str, message: str, time_s: float | None = None) -> None:
        """Keep a record, of another process too; the middle of a long message is left out."""
        text = shorten(mask(message))
        self._records.append({"time": rfc3339(time_s), "level": level.lower(), "logger": logger[:200], "message": text})

    def last(self, count: int, level: str = "debug") -> list[dict[str, Any]]:
        """The last records of at least this severity, oldest first."""
        names = ("debug", "info", "warning", "error", "critical")
        wanted = names[names.index(level) :]
        found = [record for record in list(self._records) if record["level"] in wanted]
        return found[-count:] if count > 0 else []


def shorten(message: str) -> str:
    """The message in at most `MAX_MESSAGE_CHARS`: a traceback tells where at its begin and why at its end."""
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    half = MAX_MESSAGE_CHARS // 2 - 2
    return f"{message[:half]}\n…\n{message[-half:]}"


def set_up_logging(level: str) -> RecentLog:
    """Send the log of this process to stderr and into the returned memory."""
    recent = RecentLog()
    recent.setFormatter(logging.Formatter("%(message)s"))
    stream = logging.StreamHandler()
    stream.setFormatter(MaskedFormatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [stream, recent]
    root.setLevel(level.upper())
    return recent
