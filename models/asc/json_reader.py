"""JSON from outside, read strictly: what a document may hold is said where it is read, and every fault names its path."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from pyasc.errors import ModelFormatError

T = TypeVar("T", bound=str)

# Each bracket of the text becomes an object of over 50 bytes, and nesting costs stack.
_MAX_BRACKETS = 10_000
_MAX_DIGITS = 20
# Control characters, lone surrogates, line separators, and the marks that turn the direction of writing and so disguise a name.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a document and where it stands."""

    value: Any
    path: str
    document: str

    def fail(self, message: str) -> NoReturn:
        """Refuse the document because of this value."""
        raise ModelFormatError(
            f"{self.document}: {self.path}: {message}" if self.path else f"{self.document}: {message}"
        )

    def members(self, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Node]:
        """The values of an object that has all of the required keys, perhaps the optional ones, and no others."""
        nodes = self.mapping()
        for key in required:
            if key not in nodes:
                self.fail(f"the key {key!r} is missing")
        for key in nodes:
            if key not in required and key not in optional:
                self.fail(f"the key {_shorten(key)} is unknown")
        return nodes

    def mapping(self, most: int | None = None) -> dict[str, Node]:
        """The values of an object of at most `most` keys, whatever they are."""
        if not isinstance(self.value, dict):
            self.fail(f"{_shorten(self.value)} is not an object")
        if most is not None and len(self.value) > most:
            self.fail(f"has {len(self.value)} keys; there may be at most {most}")
        prefix = f"{self.path}." if self.path else ""
        return {key: Node(value, f"{prefix}{_plain(key)}", self.document) for key, value in self.value.items()}

    def items(self, least: int, most: int) -> list[Node]:
        """The values of an array whose length is in the range."""
        if not isinstance(self.value, list):
            self.fail(f"{_shorten(self.value)} is not an array")
        if not least <= len(self.value) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            self.fail(f"has {len(self.value)} values; there must be {wanted}")
        return [Node(value, f"{self.path}[{index}]", self.document) for index, value in enumerate(self.value)]

    def integer(self, least: int, most: int) -> int:
        """An integer in the range."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self.fail(f"{_shorten(self.value)} is not an integer")
        if not least <= self.value <= most:
            self.fail(f"{self.value} is not in {least} to {most}")
        return self.value

    def number(self, least: float, most: float) -> float:
        """A number in the range, which has no infinity in it."""
        if not isinstance(self.value, int | float) or isinstance(self.value, bool):
            self.fail(f"{_shorten(self.value)} is not a number")
        if not least <= self.value <= most:
            self.fail(f"{self.value} is not in {least} to {most}")
        return float(self.value)

    def boolean(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            self.fail(f"{_shorten(self.value)} is neither true nor false")
        return self.value

    def text(self, most: int, pattern: re.Pattern[str] | None = None, least: int = 1) -> str:
        """A string of printable characters whose number is in the range, and that matches the pattern as a whole."""
        if not isinstance(self.value, str):
            self.fail(f"{_shorten(self.value)} is not a string")
        if not least <= len(self.value) <= most:
            self.fail(f"has {len(self.value)} characters; there must be {least} to {most}")
        if _UNPRINTABLE.search(self.value):
            self.fail(f"{_shorten(self.value)} has a character that cannot be printed")
        if pattern is not None and not pattern.fullmatch(self.value):
            self.fail(f"{_shorten(self.value)} does not match {pattern.pattern}")
        return self.value

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""
        for option in options:
            if self.value == option:
                return option
        return self.fail(f"{_shorten(self.value)} is none of {', '.join(str(option) for option in options)}")


def parse_json(raw: bytes, document: str, max_bytes: int) -> Node:
    """Parse a UTF-8 document; duplicate keys, NaN, Infinity and numbers of absurd length are refused.

    Args:
        raw: the text.
        document: its name, for messages.
        max_bytes: how long it may be.
    Raises:
        ModelFormatError: it is not such a document.
    """
    root = Node(None, "", document)
    if len(raw) > max_bytes:
        root.fail(f"{len(raw)} bytes are too many; there may be {max_bytes}")
    if raw.count(b"[") + raw.count(b"{") > _MAX_BRACKETS:
        root.fail(f"has more than {_MAX_BRACKETS} brackets")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            root.fail(f"the key {_shorten(twice)} stands twice in one object")
        return found

    def refuse(word: str) -> NoReturn:
        root.fail(f"{word} is not a JSON number")

    def integer(digits: str) -> int:
        if len(digits) > _MAX_DIGITS:
            root.fail(f"a number has {len(digits)} digits")
        return int(digits)

    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse, parse_int=integer
        )  # fmt: skip
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{document}: is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise ModelFormatError(
            f"{document}: is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from error
    except RecursionError as error:
        raise ModelFormatError(f"{document}: is nested too deeply") from error
    return Node(value, "", document)


def _shorten(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _plain(key: str) -> str:
    return key if key.isascii() and key.isprintable() and len(key) <= 60 else _shorten(key)
