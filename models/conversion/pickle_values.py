"""What a pickle that is not run is made of: names, inert records, and the rules of what it may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyasc.errors import ModelFormatError

_MAX_INTEGER_KEY = 1 << 60
_MAX_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Name:
    """A class or function that a pickle names; it is never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return shown(f"{self.module}.{self.name}")


@dataclass(eq=False, slots=True)
class Record:
    """An object of a class that is not imported.

    Attributes:
        kind: its class.
        args: what its constructor was to be called with.
        state: its attributes.
        items, entries: what was appended to it, as to a list or a dict.
    """

    kind: Name
    args: tuple[Any, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)
    entries: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Record of {self.kind}>"

    def set_state(self, state: Any) -> None:
        """Take the attributes of the opcode BUILD: a dict, or a pair of dicts where the class has slots."""
        parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
        for part in parts:
            if isinstance(part, dict) and all(isinstance(key, str) for key in part):
                self.state.update(part)
            elif part is not None:
                raise ModelFormatError(f"{self.kind} has a state that is not a dict of attributes")


Call: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Rules:
    """What a pickle may name.

    Attributes:
        calls: `module.name` to what stands for it; it gets the pickle's arguments and must check them.
        is_inert: whether (module, name) may become a Record.
        values: `module.name` that may be used as a value and never be called.
        persistent: turns a persistent id into a value.
    """

    calls: Mapping[str, Call]
    is_inert: Callable[[str, str], bool]
    values: frozenset[str] = frozenset()
    persistent: Callable[[Any], Any] | None = None


def checked_key(key: Any) -> Any:
    """The key, if a dict or a set may have it; else ModelFormatError."""
    # Only what hashes in constant time and without collisions at will: nested tuples overflow C's stack, large integers collide.
    if isinstance(key, int) and not -_MAX_INTEGER_KEY < key < _MAX_INTEGER_KEY:
        raise ModelFormatError("an integer that large is used as a key")
    if key is None or isinstance(key, str | int | float | bytes | Name | Record):
        return key
    raise ModelFormatError(f"a {type(key).__name__} is used as a key")


def shown(text: str) -> str:
    """Text of a file, fit for a message: short and printable."""
    text = text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
