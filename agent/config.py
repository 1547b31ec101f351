"""The configuration document: what is checked of it before the engine sees it.

Structure comes from `config.schema.json`, meaning from here. What only the engine can know (options of plugins, devices of the box,
models that do not load) comes back from it with paths of the same form: `pipelines.gate.zones.door[2]`.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from pyasc.agent.document import parse_document
from pyasc.agent.faults import join, schema_faults
from pyasc.agent.masking import mask
from pyasc.agent.rules import parse_rule
from pyasc.agent.shapes import line_fault, polygon_fault
from pyasc.errors import ConfigError, ConfigFault

__all__ = ["MAX_FAULTS", "check_version", "digest", "merge_faults", "parse_document", "schema", "validate"]

MAX_FAULTS = 100
NETWORK_SCHEMES = ("rtsp", "rtsps", "http", "https")


@functools.cache
def schema() -> dict[str, Any]:
    """The JSON Schema of the configuration document (2020-12)."""
    text = resources.files("pyasc.agent").joinpath("config.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def validate(document: Mapping[str, Any], *, model_dir: Path | None) -> list[ConfigFault]:
    """Every fault of a document, up to `MAX_FAULTS`; an empty list means that the engine may see it.

    Args:
        document: from `parse_document`.
        model_dir: the folder that model names are relative to; None leaves out whether the files exist.
    """
    faults = schema_faults(document, schema())
    broken = {fault.path for fault in faults}
    pipelines = document.get("pipelines")
    for name, pipeline in pipelines.items() if isinstance(pipelines, dict) else ():
        if isinstance(pipeline, dict):
            path = join("pipelines", name)
            faults += [fault for fault in _pipeline_faults(path, pipeline, model_dir) if not _covered(fault, broken)]
    return [ConfigFault(path, mask(message)) for path, message in sorted(faults)[:MAX_FAULTS]]


def merge_faults(own: list[ConfigFault], more: Iterable[ConfigFault]) -> list[ConfigFault]:
    """The faults of `validate` and more, up to `MAX_FAULTS`; each place, or a part of it, is named by one of the two only."""
    broken = {fault.path for fault in own}
    added = {fault for fault in more if not _covered(fault, broken)}
    return sorted((*own, *added))[:MAX_FAULTS]


def check_version(version: int, sha256: str, applied: tuple[int, str] | None) -> ConfigFault | None:
    """Whether a document may follow the applied one, of which version and digest are given.

    An older version is stale: two operators cannot undo one another's work unseen. The same version with the same content is
    taken (and changes nothing), with other content it is a mistake.
    """
    if applied is None or version > applied[0]:
        return None
    if version < applied[0]:
        return ConfigFault("version", f"{version} is stale: version {applied[0]} is applied")
    if sha256 != applied[1]:
        return ConfigFault("version", f"{version} is applied with other content; count the version up")
    return None


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of the content: of its JSON with sorted keys, no spaces, UTF-8. YAML and JSON of the same content have the same."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _covered(fault: ConfigFault, broken: set[str]) -> bool:
    """Whether the schema has said something about this place already, or about a part of it."""
    return any(path == fault.path or path.startswith((f"{fault.path}.", f"{fault.path}[")) for path in broken)


def _pipeline_faults(path: str, pipeline: dict[str, Any], model_dir: Path | None) -> Iterator[ConfigFault]:
    """Faults of meaning. Parts of the wrong type are passed over: the schema has named them."""
    source = pipeline.get("source")
    if isinstance(source, dict) and isinstance(source.get("url"), str):
        yield from _source_faults(f"{path}.source", source)
    for stage in ("detector", "tracker"):
        part = pipeline.get(stage)
        if isinstance(part, dict) and isinstance(part.get("model"), str):
            message = _model_fault(part["model"], model_dir)
            if message is not None:
                yield ConfigFault(f"{path}.{stage}.model", message)
    if "tracker" not in pipeline:
        for key in ("zones", "lines", "publish_tracks"):
            if pipeline.get(key):
                yield ConfigFault(f"{path}.{key}", "needs a tracker")
    yield from _route_faults(path, pipeline)
    for key, check in (("zones", polygon_fault), ("lines", line_fault)):
        shapes = pipeline.get(key)
        for name, points in shapes.items() if isinstance(shapes, dict) else ():
            if _are_points(points, 3 if key == "zones" else 2) and (message := check(points)) is not None:
                yield ConfigFault(join(f"{path}.{key}", name), message)


def _source_faults(path: str, source: dict[str, Any]) -> Iterator[ConfigFault]:
    url = source["url"]
    if "\0" in url or url != url.strip():
        yield ConfigFault(f"{path}.url", "has spaces around it or a NUL character")
        return
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        yield ConfigFault(f"{path}.url", f"{url!r} is not an address: {error}")
        return
    scheme = parts.scheme if "://" in url else "file"
    if scheme not in (*NETWORK_SCHEMES, "file"):
        yield ConfigFault(f"{path}.url", f"scheme {scheme!r} is not one of {', '.join((*NETWORK_SCHEMES, 'file'))}")
    elif scheme != "file" and not parts.hostname:
        yield ConfigFault(f"{path}.url", f"{url!r} has no host")
    if "transport" in source and scheme not in ("rtsp", "rtsps"):
        yield ConfigFault(f"{path}.transport", "is for rtsp addresses only")
    for key in ("loop", "realtime"):
        if source.get(key) is True and scheme in NETWORK_SCHEMES:
            yield ConfigFault(f"{path}.{key}", "is for files and folders only")


def _model_fault(name: str, model_dir: Path | None) -> str | None:
    pure = PurePosixPath(name)
    if "\0" in name or "\\" in name or pure.is_absolute() or ".." in pure.parts:
        return f"{name!r} is not a name below the model folder"
    if model_dir is None:
        return None
    try:
        file = (model_dir / pure).resolve()
        inside, present = file.is_relative_to(model_dir.resolve()), file.is_file()
    except (OSError, RuntimeError) as error:
        return f"{name!r} cannot be looked up in {model_dir}: {error}"
    if not inside:
        return f"{name!r} is not a name below the model folder: it is a link to {file}"
    return None if present else f"there is no file {name!r} in {model_dir}"


def _route_faults(path: str, pipeline: dict[str, Any]) -> Iterator[ConfigFault]:
    route = pipeline.get("route")
    if not isinstance(route, list):
        return
    for index, entry in enumerate(route):
        if not isinstance(entry, dict):
            continue
        if isinstance(when := entry.get("when"), str) and when:
            try:
                parse_rule(when)
            except ConfigError as error:
                yield ConfigFault(f"{path}.route[{index}].when", str(error))
    detector = pipeline.get("detector")
    if (
        isinstance(detector, dict)
        and "device" in detector
        and any("when" not in e for e in route if isinstance(e, dict))
    ):
        message = "is never used: the route ends with an entry without a condition"
        yield ConfigFault(f"{path}.detector.device", message)


def _are_points(points: Any, at_least: int) -> bool:
    return (
        isinstance(points, list)
        and len(points) >= at_least
        and all(
            isinstance(point, list) and len(point) == 2 and all(type(value) in (int, float) for value in point)
            for point in points
        )
    )
