"""Times as they are published."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def rfc3339(seconds: float | None = None) -> str:
    """An instant (seconds since 1970, now by default) as RFC 3339 in UTC with milliseconds: `2024-05-01T12:00:00.123Z`."""
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
