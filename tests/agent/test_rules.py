"""The conditions of a route."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyasc.agent.rules import FACTS, MAX_RULE_CHARS, parse_rule
from pyasc.errors import ConfigError

UHD = {"resolution": 2160, "width": 3840, "height": 2160, "fps": 25.0}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("resolution > 1080", True),
        ("resolution>2160", False),
        ("resolution >= 2160", True),
        ("fps < 25", False),
        ("fps <= 25.0", True),
        ("width == 3840", True),
        ("height != 2160", False),
        ("resolution > 4000 or fps == 25", True),
        ("resolution > 1080 and fps > 30", False),
        # `and` binds tighter than `or`, on either side of it
        ("fps == 25 or fps > 30 and width > 9999", True),
        ("fps > 30 and width > 9999 or fps == 25", True),
        ("  resolution\t>\n1080  ", True),
    ],
)
def test_condition(text: str, holds: bool) -> None:
    assert parse_rule(text).holds(UHD) is holds


def test_unknown_fact_of_the_stream_does_not_hold() -> None:
    assert not parse_rule("fps != 25").holds({"resolution": 1080})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "ends where one of resolution"),
        ("resolution", "ends where one of >"),
        ("resolution >", "ends where a number"),
        ("resolution > 1080 and", "ends where one of resolution"),
        ("resolution > 1080 fps > 3", "expected `and` or `or`"),
        ("resolution > 1080 > 3", "expected `and` or `or`"),
        ("lines > 1080", "'lines' in 'lines > 1080': expected one of resolution, width, height, fps"),
        ("1080 < resolution", "'1080'"),
        ("resolution = 1080", "'= 1080'"),
        ("resolution > -1", "'-1'"),
        ("resolution > 1e9", "'e9'"),
        ("__import__('os').system('true')", "not a name, an operator or a number"),
        ("resolution > 1 and " * 40 + "fps > 1", f"limit is {MAX_RULE_CHARS}"),
    ],
)
def test_bad_condition_says_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rule(text)
    assert says in str(caught.value)


@given(st.text(max_size=80))
def test_any_text_gives_a_rule_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_rule(text).holds(dict.fromkeys(FACTS, 1.0))


@given(
    st.lists(
        st.tuples(st.sampled_from(FACTS), st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), st.integers(0, 9999)),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.sampled_from(["and", "or"]), min_size=5, max_size=5),
    st.fixed_dictionaries({fact: st.integers(0, 9999) for fact in FACTS}),
)
def test_agrees_with_python(parts: list[tuple[str, str, int]], joints: list[str], facts: dict[str, int]) -> None:
    """Python's own grammar gives the same names, operators and precedence."""
    text = " ".join(f"{joint} {a} {op} {n}" for joint, (a, op, n) in zip(["", *joints], parts, strict=False)).strip()
    assert parse_rule(text).holds(facts) is eval(text, {}, facts)
