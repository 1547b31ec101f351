"""What the demo shows while it runs: everything in it came over MQTT."""

from __future__ import annotations

import collections
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from typing_extensions import Self

    from pyasc.cli.demo_operator import Message

EVENTS_SHOWN = 8
_MEBIBYTE = 1024 * 1024


class DemoView:
    """The state that the agent reported last, as a live terminal picture, or as lines where there is no terminal.

    Args:
        console: where to write.
        pipeline: the one that is shown.
        frames: length of the clip.
    """

    def __init__(self, console: Console, pipeline: str, frames: int) -> None:
        self._console = console
        self._pipeline = pipeline
        self._frames = frames
        self._started = time.monotonic()
        self.agent: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self.telemetry: dict[str, Any] = {}
        self.tracks: dict[str, Any] = {}
        self.event_count = 0
        self._recent: collections.deque[dict[str, Any]] = collections.deque(maxlen=EVENTS_SHOWN)
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def take(self, message: Message) -> None:
        """Take one message of the agent into the picture."""
        if message.topic == f"pipelines/{self._pipeline}/events":
            self.event_count += 1
            self._recent.append(message.payload)
            self._say(f"event {describe_event(message.payload)}")
        elif message.topic == f"pipelines/{self._pipeline}/tracks":
            self.tracks = message.payload
        elif message.topic == f"pipelines/{self._pipeline}/status":
            if message.payload.get("state") != self.status.get("state"):
                self._say(f"pipeline {self._pipeline}: {message.payload['state']} on {message.payload.get('device')}")
            self.status = message.payload
        elif message.topic in ("status", "config", "telemetry"):
            setattr(self, "agent" if message.topic == "status" else message.topic, message.payload)
            if message.topic != "telemetry":
                self._say(f"{message.topic}: {message.payload.get('state')}")

    def _say(self, line: str) -> None:
        if not self._console.is_terminal:
            self._console.print(line, highlight=False)

    def _render(self) -> RenderableType:
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="bold")
        facts.add_column()
        frame = self.tracks.get("frame", -1) + 1
        facts.add_row("agent", f"{self.agent.get('state', 'starting')}, configuration {self.config.get('state', '-')}")
        facts.add_row("pipeline", str(self.status.get("state", "-")))
        facts.add_row("device", str(self.status.get("device", "-")))
        facts.add_row("frame rate", f"{self.status.get('fps') or 0:.1f} frames/s")
        facts.add_row("frame", f"{frame} of {self._frames}")
        facts.add_row("tracks", _describe_tracks(self.tracks))
        facts.add_row("telemetry", _describe_telemetry(self.telemetry))
        events = Text("\n").join(Text(describe_event(event)) for event in self._recent)
        return Group(
            Panel(facts, title=f"PyASC demo, {time.monotonic() - self._started:.0f} s", title_align="left"),
            Panel(events, title=f"{self.event_count} events over MQTT", title_align="left", height=EVENTS_SHOWN + 2),
        )


def describe_event(event: dict[str, Any]) -> str:
    """One event as a line for people."""
    where = "".join(f" {key} {event[key]}" for key in ("zone", "line", "direction", "reason") if event.get(key))
    clock = str(event["time"])[11:-1]
    return f"{clock}  #{event['seq']:<4} {event['type']:<6} {event['label']} {event['track']}{where}"


def _describe_tracks(tracks: dict[str, Any]) -> str:
    rows = tracks.get("tracks", [])
    return ", ".join(f"{row['label']} {row['track']} ({row['score']:.2f})" for row in rows) or "none in the picture"


def _describe_telemetry(telemetry: dict[str, Any]) -> str:
    if not telemetry:
        return "-"
    agent = telemetry["agent"]
    processes = {"agent": agent["rss"], "engine": agent["engine_rss"]}
    parts = [
        f"CPU {telemetry['cpu']:.0f} %",
        f"memory {telemetry['memory']['percent']:.0f} %",
        *(f"{name} {rss / _MEBIBYTE:.0f} MiB" for name, rss in processes.items() if rss),
        f"spool {telemetry['spool']['pending']} pending",
    ]
    return ", ".join(parts)
