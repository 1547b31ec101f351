"""What the running agent does, in a file of its state folder: `pyasc agent status` reads it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from pyasc.agent.files import lock_holder, write_atomic
from pyasc.errors import PyascError

_log = logging.getLogger(__name__)

STATUS_FILE = "agent.status.json"


def write_status(state_dir: Path, content: dict[str, Any]) -> None:
    """Replace the file; readers see the old or the new content."""
    try:
        write_atomic(state_dir / STATUS_FILE, json.dumps(content, indent=1).encode(), mode=0o644, durable=False)
    except OSError as error:
        _log.debug("the status file cannot be written: %s", error)


def read_status(state_dir: Path) -> dict[str, Any]:
    """`running`, `pid`, and in `agent` what the agent wrote last (None when it never did).

    Raises:
        PyascError: the file is damaged.
        OSError: it cannot be read.
    """
    path = state_dir / STATUS_FILE
    holder = lock_holder(state_dir)
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        content = None
    except ValueError as error:
        raise PyascError(f"{path} is damaged: {error}") from error
    return {"running": holder is not None and content is not None, "pid": holder, "agent": content}
