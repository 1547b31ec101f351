"""Which pipelines have come to their end, so that a new engine does not run a file from its start again."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyasc.agent.config import digest
from pyasc.agent.document import parse_json
from pyasc.agent.files import write_atomic
from pyasc.errors import ConfigError

_log = logging.getLogger(__name__)

END_OF_STREAM = "end of stream"


class EndedPipelines:
    """`ended.json` in the state folder: name to the digest of the specification that a pipeline ended with."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ended.json"
        self._ended = self._read()

    def among(self, pipelines: Mapping[str, Any]) -> list[str]:
        """Names of those that have ended with just this specification."""
        return sorted(name for name, spec in pipelines.items() if self._ended.get(name) == digest(spec))

    def note(self, name: str, ended: bool, pipelines: Mapping[str, Any]) -> None:
        """Take the state of a pipeline; what is said of those that are gone is forgotten.

        Args:
            name: of the pipeline.
            ended: whether it has come to the end of its stream.
            pipelines: the specifications of now.
        """
        now = {key: value for key, value in self._ended.items() if key in pipelines and key != name}
        if ended and name in pipelines:
            now[name] = digest(pipelines[name])
        if now == self._ended:
            return
        self._ended = now
        try:
            write_atomic(self._path, json.dumps(now).encode())
        except OSError as error:
            _log.error("%s cannot be written: %s", self._path, error)

    def _read(self) -> dict[str, str]:
        try:
            content = parse_json(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ConfigError) as error:
            _log.error("%s cannot be read: %s", self._path, error)
            return {}
        if not isinstance(content, dict):
            _log.error("%s is damaged", self._path)
            return {}
        return {name: value for name, value in content.items() if isinstance(value, str)}
