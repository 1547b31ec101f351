"""Plugins as other people write them: what their configuration may be, and what happens when it is wrong."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest

from pyasc.errors import ConfigError, PluginError
from pyasc.plugins.base import Detector, parse_config


@dataclasses.dataclass(frozen=True)
class Many:
    text: str = ""
    number: float = 0.0
    whole: int | None = None
    mode: Literal["fast", "exact"] = "fast"
    names: tuple[str, ...] = ()
    size: tuple[int, int] = (1, 1)
    items: list[str] = dataclasses.field(default_factory=list)
    row: Sequence[float] = ()
    weights: dict[str, float] = dataclasses.field(default_factory=dict)
    table: Mapping[str, tuple[int, ...]] | None = None
    anything: Any = None
    old: typing.Optional[typing.List[int]] = None  # noqa: UP006, UP045 - as many still write it


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("text", "x"),
        ("number", 3),
        ("whole", 3),
        ("whole", None),
        ("mode", "exact"),
        ("names", ["a", "b"]),
        ("size", [4, 5]),
        ("items", ["a", "b"]),
        ("row", [1, 2.5]),
        ("weights", {"a": 1, "b": 0.5}),
        ("table", {"a": [1, 2]}),
        ("anything", {"x": [object]}),
        ("old", [1, 2]),
    ],
)
def test_a_value_of_the_annotated_type_is_taken(key: str, value: Any) -> None:
    taken = getattr(parse_config(Many, {key: value}), key)
    assert taken == (tuple(value) if key in ("names", "size", "row") else value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("text", 3),
        ("number", True),
        ("number", "3"),
        ("whole", 3.0),
        ("whole", True),
        ("mode", "slow"),
        ("names", "abc"),
        ("names", ["a", 1]),
        ("size", [4]),
        ("size", [4, 5, 6]),
        ("size", [4, "5"]),
        ("items", "abc"),
        ("items", [1]),
        ("row", "12"),
        ("row", 1.0),
        ("weights", {"a": "1"}),
        ("weights", [1]),
        ("table", {"a": ["x"]}),
        ("old", ["x"]),
    ],
)
def test_another_type_is_named_with_its_path(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="is not of type") as caught:
        parse_config(Many, {key: value}, "pipelines.gate.detector")
    assert [fault.path for fault in caught.value.faults] == [f"pipelines.gate.detector.{key}"]


def test_a_plugin_without_a_configuration_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"plugin bare: .*Bare has no data class Config"):

        class Bare(Detector, name="bare"):
            pass

    with pytest.raises(TypeError, match="has no data class Config"):

        class Plain(Detector, name="plain"):
            Config = dict


@dataclasses.dataclass(frozen=True)
class Strict:
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if self.alpha > 1:
            raise ValueError(f"alpha {self.alpha} is above 1")


def test_what_a_configuration_raises_is_a_fault_of_the_plugin() -> None:
    with pytest.raises(ConfigError, match="ValueError: alpha 2 is above 1") as caught:
        parse_config(Strict, {"alpha": 2}, "pipelines.gate.tracker")
    assert [fault.path for fault in caught.value.faults] == ["pipelines.gate.tracker"]


def test_annotations_that_mean_nothing_are_the_plugins_fault() -> None:
    broken = dataclasses.make_dataclass("Broken", [("alpha", "NoSuchType", 1)])
    with pytest.raises(PluginError, match="Broken: its annotations: name 'NoSuchType' is not defined"):
        parse_config(broken, {})
