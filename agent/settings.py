"""The agent's own file: box, broker, folders. Structure: `settings.schema.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyasc.agent.document import parse_document
from pyasc.agent.faults import schema_faults
from pyasc.agent.spool import SpoolLimits
from pyasc.errors import ConfigError, ConfigFault

_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
# Promised for later versions: refused with that reason, never taken and ignored.
_LATER = ("web", "discovery", "update")
_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True, slots=True)
class Broker:
    """How to reach the MQTT broker. `path` is for WebSockets only."""

    scheme: str
    host: str
    port: int
    path: str = "/mqtt"
    username: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme in ("mqtts", "wss")

    @property
    def websockets(self) -> bool:
        """Whether MQTT goes through WebSockets."""
        return self.scheme in ("ws", "wss")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The agent's own settings, checked."""

    box: str
    broker: Broker
    state_dir: Path
    model_dir: Path
    telemetry_interval_s: float = 10.0
    spool: SpoolLimits = field(default_factory=SpoolLimits)
    log_level: str = "info"


def schema() -> dict[str, Any]:
    """The JSON Schema of the agent's own file (2020-12)."""
    text = resources.files("pyasc.agent").joinpath("settings.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def load_settings(path: Path) -> Settings:
    """Read the agent's file; names of files in it are relative to its folder.

    Raises:
        ConfigError: with every fault by its path.
        OSError: the file cannot be read.
    """
    return parse_settings(parse_document(path.read_bytes()), path.resolve().parent)


def parse_settings(document: dict[str, Any], folder: Path) -> Settings:
    """Check and convert the content of the agent's file.

    Args:
        document: from `parse_document`.
        folder: what relative names of files in it are relative to.

    Raises:
        ConfigError: with every fault by its path.
    """
    known = {key: value for key, value in document.items() if key not in _LATER}
    faults = [ConfigFault(key, "not available in this version") for key in _LATER if key in document]
    faults += schema_faults(known, schema())
    for index, family in enumerate(known["simulate"] if isinstance(known.get("simulate"), list) else []):
        faults.append(ConfigFault(f"simulate[{index}]", f"this version has no simulator of {family!r}"))
    if any(fault.path.startswith("broker") for fault in faults):
        raise ConfigError(faults)
    broker, broker_faults = _broker(known.get("broker", {}), folder)
    faults += broker_faults
    box = known.get("box") or _machine_name()
    if box is None:
        faults.append(ConfigFault("box", f"required: {_MACHINE_ID} has no id to take it from"))
    if faults or broker is None or box is None:
        raise ConfigError(faults)
    state_dir = folder / known.get("state_dir", "/var/lib/pyasc")
    return Settings(
        box=box,
        broker=broker,
        state_dir=state_dir,
        model_dir=folder / known["model_dir"] if "model_dir" in known else state_dir / "models",
        telemetry_interval_s=float(known.get("telemetry", {}).get("interval_s", 10.0)),
        spool=SpoolLimits(**known.get("spool", {})),
        log_level=known.get("log", {}).get("level", "info"),
    )


def _broker(part: dict[str, Any], folder: Path) -> tuple[Broker | None, list[ConfigFault]]:
    try:
        url = urlsplit(part["url"])
        port = url.port
    except ValueError as error:
        return None, [ConfigFault("broker.url", f"is not an address: {error}")]
    if url.scheme not in _PORTS:
        return None, [ConfigFault("broker.url", f"scheme {url.scheme!r} is not one of {', '.join(_PORTS)}")]
    files: dict[str, Path] = {key: folder / part[key] for key in ("password_file", "ca", "cert", "key") if key in part}
    faults = [ConfigFault(f"broker.{path}", message) for path, message in _broker_faults(part, url, files)]
    path = url.path or "/mqtt"
    if url.hostname is None or faults:
        return None, faults or [ConfigFault("broker.url", "has no host")]
    return Broker(url.scheme, url.hostname, port or _PORTS[url.scheme], path, part.get("username"), **files), faults


def _broker_faults(part: dict[str, Any], url: Any, files: dict[str, Path]) -> Iterator[tuple[str, str]]:
    if url.username is not None or url.password is not None:
        yield "url", "holds a user: use `username` and `password_file`"
    if url.query or url.fragment or (url.path not in ("", "/") and url.scheme not in ("ws", "wss")):
        yield "url", f"{url.scheme} takes no path, query or fragment"
    for key in ("ca", "cert", "key"):
        if key in part and url.scheme not in ("mqtts", "wss"):
            yield key, "is for mqtts and wss only"
    for key, other in (("cert", "key"), ("key", "cert"), ("password_file", "username")):
        if key in part and other not in part:
            yield other, f"required with `{key}`"
    for key, file in files.items():
        if not os.access(file, os.R_OK) or not file.is_file():
            yield key, f"{file} cannot be read"


def _machine_name() -> str | None:
    try:
        text = _MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text[:12] if len(text) == 32 and text.isalnum() else None
