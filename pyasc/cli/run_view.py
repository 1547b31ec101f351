"""What `pyasc run` prints: events and a status line for people, or JSON lines for machines, and the summary."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from typing_extensions import Self


class RunView:
    """Prints what a run gives; pipelines call it from their threads.

    Args:
        as_json: one JSON object a line on stdout, everything else on stderr.
        name_pipelines: whether events tell which pipeline they are of.

    Attributes:
        broken: whether the reader of stdout is gone.
    """

    def __init__(self, as_json: bool, name_pipelines: bool) -> None:
        self._as_json, self._name_pipelines = as_json, name_pipelines
        self._console = Console(stderr=as_json, highlight=False)
        self._status: dict[str, Mapping[str, Any]] = {}
        self._began = self._seconds = 0.0
        self._kinds: Counter[str] = Counter()
        self._tracks: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self.broken = False
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds = time.monotonic() - self._began
        if self._console.is_terminal:
            self._live.stop()

    # --- the sink of pipelines

    def events(self, pipeline: str, events: Sequence[Mapping[str, Any]]) -> None:
        """Print events."""
        with self._lock:
            self._kinds.update(event["type"] for event in events)
            self._tracks.update((pipeline, event["track"]) for event in events)
        for event in events:
            named = {"pipeline": pipeline, **event} if self._name_pipelines else event
            if self._as_json:
                self._line(named)
            else:
                self.note(describe_event(named))

    def tracks(self, pipeline: str, message: Mapping[str, Any]) -> None:
        """Print the result of one frame, as JSON only."""
        if self._as_json:
            named = {"pipeline": pipeline} if self._name_pipelines else {}
            self._line({"type": "frame", **named, **message})

    # --- status and summary

    def status(self, pipeline: str, status: Mapping[str, Any]) -> None:
        """Take a pipeline's status into the live line; tell of failures and interruptions at once."""
        before = self._status.get(pipeline, {})
        self._status[pipeline] = status
        changed = (status["state"], status.get("reason")) != (before.get("state"), before.get("reason"))
        if changed and status["state"] in ("failed", "reconnecting"):
            self.note(f"{pipeline}: {status['state']}: {status.get('reason')}")

    def summary(self, frames: int, dropped: int) -> None:
        """Print the last lines, after the `with`: frames, rate, events, tracks."""
        rate = frames / self._seconds if self._seconds > 0 else 0.0
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._kinds.items())) or "none"
        lost = f", {dropped} dropped" if dropped else ""
        devices = sorted({str(status["device"]) for status in self._status.values() if status.get("device")})
        where = f" on {', '.join(devices)}" if devices else ""
        self.note(f"{frames} frames in {self._seconds:.1f} s, {rate:.1f} frames/s{where}{lost}")
        self.note(f"events: {kinds}; tracks: {len(self._tracks)}")

    def raise_broken(self) -> None:
        """Raise BrokenPipeError where the reader of stdout was gone."""
        if self.broken:
            raise BrokenPipeError

    def note(self, line: str) -> None:
        """Print a line for people."""
        try:
            self._console.print(Text(line))
        except (BrokenPipeError, SystemExit):  # rich makes the second of the first; neither is a fault of the caller
            self.broken = True

    def _line(self, message: Mapping[str, Any]) -> None:
        try:
            sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:  # no fault of the pipeline, in whose thread this is
            self.broken = True

    def _render(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, status in tuple(self._status.items()):
            row = [status["state"], f"{status.get('fps') or 0:.1f} frames/s", str(status.get("device") or "-")]
            lines = status.get("resolution")
            table.add_row(name, *row, f"{lines} lines" if lines else "-", f"{status.get('tracks', 0)} tracks")
        return table


def describe_event(event: Mapping[str, Any]) -> str:
    """One event as a line for people."""
    where = "".join(f" {key} {event[key]}" for key in ("zone", "line", "direction", "reason") if event.get(key))
    pipeline = f"{event['pipeline']}  " if "pipeline" in event else ""
    return f"{event['time'][11:-1]}  {pipeline}{event['type']:<5} {event['label']} {event['track']}{where}"
