"""The accepted configuration on disk, with the one before it.

Each file says whether its configuration has proven itself (its pipelines came up), so that an agent that was killed while it tried
one goes on trying, and can still go back.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyasc.agent.config import digest
from pyasc.agent.document import parse_json
from pyasc.agent.files import sync_folder, write_atomic
from pyasc.errors import ConfigError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stored:
    """A configuration that was accepted.

    Attributes:
        document: as it came.
        sha256: its `digest`.
        proven: True when its pipelines came up with it.
    """

    document: dict[str, Any]
    sha256: str
    proven: bool = False

    @property
    def version(self) -> int:
        """The document's version."""
        return int(self.document["version"])


@dataclass(frozen=True, slots=True)
class Refused:
    """A configuration that was rolled back; the same one is not tried again."""

    version: int
    sha256: str
    errors: list[dict[str, str]]


class Store:
    """`config.json`, `config.previous.json` and `config.refused.json` in the state folder."""

    def __init__(self, folder: Path) -> None:
        self._current = folder / "config.json"
        self._previous = folder / "config.previous.json"
        self._refused = folder / "config.refused.json"

    def current(self) -> Stored | None:
        """The accepted configuration; the previous one where its file is damaged; None where there is none."""
        if (stored := _read(self._current)) is not None or not self._current.exists():
            return stored
        return self.previous()

    def previous(self) -> Stored | None:
        """The configuration to go back to, or None."""
        return _read(self._previous)

    def save(self, stored: Stored, previous: Stored | None) -> None:
        """Write both files; `previous` first, so that there is a sound one at any moment.

        Raises:
            OSError: the disk takes nothing; the files are as they were.
        """
        if previous is not None:
            _write(self._previous, asdict(previous))
        _write(self._current, asdict(stored))

    def go_back(self, previous: Stored | None) -> None:
        """Make the previous configuration the current one; None when there is none, and nothing is stored then.

        Raises:
            OSError: the disk takes nothing.
        """
        if previous is not None:
            _write(self._current, asdict(previous))
            return
        self._current.unlink(missing_ok=True)
        sync_folder(self._current.parent)

    def refused(self) -> Refused | None:
        """The last configuration that was rolled back, or None."""
        try:
            return Refused(**parse_json(self._refused.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ConfigError, TypeError) as error:
            _log.warning("%s cannot be read: %s", self._refused, error)
            return None

    def refuse(self, refused: Refused) -> None:
        """Remember a configuration that was rolled back.

        Raises:
            OSError: the disk takes nothing.
        """
        _write(self._refused, asdict(refused))


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomic(path, json.dumps(content).encode())


def _read(path: Path) -> Stored | None:
    try:
        content = json.loads(path.read_bytes())
        stored = Stored(content["document"], content["sha256"], content["proven"] is True)
        sound = digest(stored.document) == stored.sha256
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _log.error("%s cannot be read: %s", path, error)
        return None
    if not sound:
        _log.error("%s is damaged: its content does not have the hash that was stored with it", path)
        return None
    return stored
