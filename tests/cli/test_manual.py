"""What the manual says of names and numbers, against the program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyasc.agent.config import schema
from pyasc.agent.events import LEAVE_AFTER_S
from pyasc.agent.pipeline import Pipeline
from pyasc.agent.telemetry import BoxFigures
from pyasc.agent.zones import LINE_MARGIN, ZONE_FRAMES
from pyasc.hal.registry import open_device

DOCS = Path(__file__).resolve().parents[2] / "docs"


def section(page: str, title: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"^(#+) {re.escape(title)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[2]


def keys(text: str) -> set[str]:
    """The names in the first column of all tables."""
    return {key for row in re.findall(r"^\|([^|]+)\|", text, re.MULTILINE) for key in re.findall(r"`([^`]+)`", row)}


def test_every_key_of_a_pipeline_is_explained() -> None:
    pipeline: dict[str, Any] = schema()["$defs"]["pipeline"]
    assert keys(section("configuration.md", "A pipeline")) == pipeline["properties"].keys()
    row = re.search(r"^\| `leave_after_s` .*\| (\S+) \|$", section("configuration.md", "A pipeline"), re.MULTILINE)
    assert row
    assert float(row[1]) == LEAVE_AFTER_S == pipeline["properties"]["leave_after_s"]["default"]


def test_the_numbers_of_zones_and_lines() -> None:
    text = section("configuration.md", "Zones and lines")
    assert re.findall(r"in (\d+) processed frames in a row|in (\d+) in a row", text) == [
        (str(ZONE_FRAMES), ""),
        ("", str(ZONE_FRAMES)),
    ]
    assert f"more than {LINE_MARGIN} picture heights" in " ".join(text.split())


def test_every_figure_of_telemetry_is_explained(tmp_path: Path) -> None:
    explained = keys(section("mqtt.md", "telemetry"))
    box = BoxFigures(tmp_path).read()
    pipeline = Pipeline("p", {"enabled": False}, model_dir=tmp_path, sink=_Nobody())
    with open_device("cpu") as device:
        figures = {key for key in device.telemetry() if key != "frequency_hz" and not key.startswith("engine_")}
    for names in (box, box["agent"], pipeline.statistics(), figures):
        assert set(names) <= explained


class _Nobody:
    def events(self, pipeline: str, events: Any) -> None: ...

    def tracks(self, pipeline: str, message: Any) -> None: ...
