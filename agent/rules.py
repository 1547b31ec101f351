"""The conditions of a route: `resolution > 1080 and fps <= 15 or width >= 3840`.

    rule       = group { "or" group }
    group      = comparison { "and" comparison }
    comparison = name operator number
    name       = "resolution" | "width" | "height" | "fps"
    operator   = ">" | ">=" | "<" | "<=" | "==" | "!="

`and` binds tighter than `or`. Nothing is evaluated but these comparisons.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyasc.errors import ConfigError

FACTS = ("resolution", "width", "height", "fps")
MAX_RULE_CHARS = 500

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>\d+(?:\.\d+)?)|(?P<operator>[<>]=?|[=!]=))", re.ASCII)


class Comparison(NamedTuple):
    """One fact of a stream compared with a number."""

    fact: str
    operator: str
    number: float


class Rule(NamedTuple):
    """A parsed condition: it holds when all comparisons of any group hold."""

    groups: tuple[tuple[Comparison, ...], ...]

    def holds(self, facts: Mapping[str, float], slack: float = 0.0) -> bool:
        """Whether the condition holds for a stream.

        Args:
            facts: the numbers that are known, by name; `resolution` is the number of lines (the short side), `width` and `height`
                are in pixels, `fps` is the stream's nominal rate. A comparison with an unknown one does not hold.
            slack: share of its number by which each comparison of order may be missed, 0..1.
        """
        return any(all(_compare(comparison, facts, slack) for comparison in group) for group in self.groups)


def parse_rule(text: str) -> Rule:
    """Read a condition.

    Raises:
        ConfigError: one line without a path that says what was expected where.
    """
    if len(text) > MAX_RULE_CHARS:
        raise ConfigError(f"the condition has {len(text)} characters, the limit is {MAX_RULE_CHARS}")
    tokens = _tokens(text)
    groups: list[list[Comparison]] = [[]]
    index = 0
    while True:
        groups[-1].append(_comparison(text, tokens[index : index + 3]))
        index += 3
        if index == len(tokens):
            return Rule(tuple(tuple(group) for group in groups))
        kind, joint = tokens[index]
        if kind != "name" or joint not in ("and", "or"):
            raise ConfigError(f"{joint!r} in {text!r}: expected `and` or `or`")
        if joint == "or":
            groups.append([])
        index += 1


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise ConfigError(f"{text[position:].strip()[:20]!r} in {text!r}: not a name, an operator or a number")
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        position = match.end()
    return found


def _comparison(text: str, tokens: list[tuple[str, str]]) -> Comparison:
    expected = (
        ("name", f"one of {', '.join(FACTS)}"),
        ("operator", f"one of {' '.join(_OPERATORS)}"),
        ("number", "a number"),
    )
    for index, (kind, what) in enumerate(expected):
        if index >= len(tokens):
            raise ConfigError(f"{text!r} ends where {what} is expected")
        if tokens[index][0] != kind or (kind == "name" and tokens[index][1] not in FACTS):
            raise ConfigError(f"{tokens[index][1]!r} in {text!r}: expected {what}")
    (_, fact), (_, sign), (_, number) = tokens
    return Comparison(fact, sign, float(number))


def _compare(comparison: Comparison, facts: Mapping[str, float], slack: float) -> bool:
    known = facts.get(comparison.fact)
    shift = {">": -slack, "<": slack}.get(comparison.operator[0], 0.0) * comparison.number
    return known is not None and _OPERATORS[comparison.operator](known, comparison.number + shift)
