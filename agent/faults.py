"""Faults of structure: what a JSON Schema says against a document, as paths and readable lines."""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema

from pyasc.agent.document import kind_of
from pyasc.errors import ConfigFault

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
}
_SHOWN_CHARS = 60
MAX_ERRORS = 200


def join(path: str, *keys: str | int) -> str:
    """The path of a part: `pipelines.gate.zones.door[2]`. A key that is no plain word is quoted: `pipelines["a/b"]`."""
    for key in keys:
        if isinstance(key, int):
            path += f"[{key}]"
        elif _PLAIN_KEY.fullmatch(key):
            path += f".{key}" if path else key
        else:
            path += f"[{json.dumps(key[:_SHOWN_CHARS])}]"
    return path


def schema_faults(document: Any, schema: Mapping[str, Any]) -> list[ConfigFault]:
    """The places where the document breaks the schema, each named once, ordered by path; up to `MAX_ERRORS` errors."""
    validator = jsonschema.Draft202012Validator(schema)
    found: dict[str, ConfigFault] = {}
    # A hostile document may have more faults than anyone reads, and each costs time.
    for error in itertools.islice(validator.iter_errors(document), MAX_ERRORS):
        for fault in _faults(error):
            found.setdefault(fault.path, fault)
    return sorted(found.values())


# The library types schemas as any JSON; ours are mappings, hence Any.
def _faults(error: Any) -> Iterator[ConfigFault]:
    path = join("", *error.absolute_path)
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        for key in error.instance:
            if key not in known:
                yield ConfigFault(join(path, key), f"unknown key{_hint(key, known)}")
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                yield ConfigFault(join(path, key), "required")
    elif "propertyNames" in error.absolute_schema_path:
        yield ConfigFault(join(path, str(error.instance)), f"the name must be {error.schema['description']}")
    else:
        yield ConfigFault(path, _message(error))


def _hint(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key[:64], list(known), n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""


def _message(error: Any) -> str:
    value, limit = error.instance, error.validator_value
    shown = json.dumps(value, ensure_ascii=False)
    shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[: _SHOWN_CHARS - 1]}…"
    texts = {
        "type": f"must be {_TYPES.get(str(limit), limit)}, not {kind_of(value)}",
        "minimum": f"{shown} is below {limit}",
        "maximum": f"{shown} is above {limit}",
        "exclusiveMinimum": f"{shown} is not above {limit}",
        "enum": f"{shown} is not one of {', '.join(map(str, limit)) if isinstance(limit, list) else limit}",
        "minItems": f"has {_size(value)} entries, at least {limit} are needed",
        "maxItems": f"has {_size(value)} entries, at most {limit} are taken",
        "minLength": "must not be empty",
        "maxLength": f"has {_size(value)} characters, at most {limit} are taken",
        "maxProperties": f"has {_size(value)} entries, at most {limit} are taken",
        "pattern": f"{shown} does not fit: {error.schema.get('description', limit)}",
    }
    return texts.get(str(error.validator)) or str(error.message)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | dict) else 0
