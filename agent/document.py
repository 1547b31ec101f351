"""Reading YAML and JSON that may be hostile: bounded, nothing expanded, nothing guessed.

Plain scalars mean what YAML 1.2's core schema says, so `no` and `on` are text, `12:30` is text, and a date is text. Anchors,
aliases, tags and merge keys are refused, which also rules out documents that expand to gigabytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

from pyasc.errors import ConfigError

MAX_DOCUMENT_BYTES = 256 * 1024
MAX_DEPTH = 24
MAX_NUMBER_CHARS = 24

# YAML 1.2.2, section 10.3.2; octal and hexadecimal forms are left out: JSON has none.
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# libyaml where PyYAML was built with it: many times faster, same events.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_document(text: str | bytes) -> dict[str, Any]:
    """Read a document whose top is a mapping, YAML or JSON.

    Raises:
        ConfigError: too large, not UTF-8, malformed, nested too deep, with an anchor, alias, tag, duplicate key or a number that is
            not finite; says the line where there is one.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise ConfigError(f"the document is over the limit of {MAX_DOCUMENT_BYTES} bytes")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"the document is not UTF-8: {error}") from error
    document = parse_json(text) if _is_json(text) else _parse_yaml(text)
    if not isinstance(document, dict):
        raise ConfigError(f"the document is {kind_of(document)}, not a mapping")
    return document


def parse_json(text: str | bytes) -> Any:
    """Read JSON with the same bounds: depth, duplicate keys, finite numbers.

    Raises:
        ConfigError: not JSON, or out of bounds.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise ConfigError(f"the message is over the limit of {MAX_DOCUMENT_BYTES} bytes")
    try:
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_refuse_constant)
    except RecursionError:
        raise ConfigError(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"not JSON: {error}") from error
    _check_values(value, 1)
    return value


def kind_of(value: Any) -> str:
    """What a value is in the words of the document: `a mapping`, `a list`, `text`, `a number` …"""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true or false"
    names = {dict: "a mapping", list: "a list", str: "text", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def _is_json(text: str) -> bool:
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return False
    try:
        json.loads(text)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ConfigError(f"duplicate key {next(key for key in keys if keys.count(key) > 1)!r}")
    return mapping


def _refuse_constant(name: str) -> Any:
    raise ConfigError(f"{name} is not a finite number")


def _check_values(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError("a number is out of range")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**MAX_NUMBER_CHARS:
        raise ConfigError("a number is out of range")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_values(item, depth + 1)


def _parse_yaml(text: str) -> Any:
    try:
        events = iter(yaml.parse(text, Loader=_LOADER))
        next(events)
        if isinstance(next(events), yaml.StreamEndEvent):
            raise ConfigError("the document is empty")
        value = _build(next(events), events, 1)
        next(events)
        extra = next(events)
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"not YAML: {_one_line(error)}") from error
    if not isinstance(extra, yaml.StreamEndEvent):
        raise _at(extra, "a second document in one text")
    return value


def _build(event: Any, events: Iterator[Any], depth: int) -> Any:
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise _at(event, "anchors and aliases are not taken")
    if event.tag is not None and event.tag != "!":
        raise _at(event, f"the tag {event.tag} is not taken")
    if depth > MAX_DEPTH:
        raise _at(event, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_build(event, events, depth + 1))
        return items
    mapping: dict[str, Any] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _build(event, events, depth + 1)
        if not isinstance(key, str) or (key == "<<" and event.implicit[0]):
            raise _at(event, f"the key {key!r} is not text; put it in quotes")
        if key in mapping:
            raise _at(event, f"duplicate key {key!r}")
        mapping[key] = _build(next(events), events, depth + 1)
    return mapping


def _scalar(event: Any) -> Any:
    text: str = event.value
    if not event.implicit[0]:  # quoted, or a block of text
        return text
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _NOT_FINITE.fullmatch(text):
        raise _at(event, f"{text} is not a finite number")
    if not _FLOAT.fullmatch(text):
        return text
    if len(text) > MAX_NUMBER_CHARS or not math.isfinite(float(text)):
        raise _at(event, f"the number {text[:MAX_NUMBER_CHARS]} is out of range")
    return int(text) if _INT.fullmatch(text) else float(text)


def _at(event: Any, message: str) -> ConfigError:
    return ConfigError(f"line {event.start_mark.line + 1}, column {event.start_mark.column + 1}: {message}")


def _one_line(error: Exception) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
