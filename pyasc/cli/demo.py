"""`pyasc demo`: the main job end to end on the shipped clip: convert, detect, track, report over MQTT."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table

from pyasc import __version__
from pyasc.cli.demo_broker import EmbeddedBroker
from pyasc.cli.demo_operator import Message, Operator
from pyasc.cli.demo_report import write_annotated
from pyasc.cli.demo_view import DemoView
from pyasc.cli.run_signals import unwinding
from pyasc.errors import PyascError, TransportError

BOX = "demo"
PIPELINE = "gate"
CLIP = "one-by-one-person.mp4"
DETECTOR, EMBEDDER = "yolov5n.pt", "osnet_x0_25.onnx"
ZONES = {"door": [[0.30, 0.05], [0.70, 0.05], [0.70, 0.95], [0.30, 0.95]]}
LINES = {"gateway": [[0.5, 0.0], [0.5, 1.0]]}
SHORT_FRAMES = 120
SILENCE_S = 60.0
DRAIN_S = 0.5
STOP_TIMEOUT_S = 15.0


@click.command("demo")
@click.option("--data", type=click.Path(path_type=Path), help="Folder with the clip and the models (default: demo/).")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("demo-output"),
    show_default=True,
    help="Folder for the models, the event log, the video and the picture.",
)
@click.option("--broker", metavar="URL", help="Use this broker, mqtt://host:port, instead of an embedded one.")
@click.option("--device", default="auto", show_default=True, help="Device of the pipeline.")
@click.option(
    "--precision",
    type=click.Choice(["fp32", "fp16"]),
    default="fp16",
    show_default=True,
    help="Of the converted models' weights.",
)
@click.option("--short", is_flag=True, help=f"Only the first {SHORT_FRAMES} frames.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    data: Path | None, output: Path, broker: str | None, device: str, precision: str, short: bool, as_json: bool
) -> None:
    """Run the agent on the shipped clip and watch it over MQTT."""
    console = Console(stderr=as_json)
    source = _find_data(data)
    output.mkdir(parents=True, exist_ok=True)
    frames = _count_frames(source / CLIP)
    limit = min(SHORT_FRAMES, frames) if short else frames
    with unwinding(), contextlib.ExitStack() as stack:
        url = broker or stack.enter_context(EmbeddedBroker()).url
        operator = stack.enter_context(Operator(url, BOX))
        models = _convert_models(source, output / "models", precision, console)
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyasc-demo-")))
        agent = stack.enter_context(_agent(state, url, models, output / "agent.log"))
        record = _Record(output / "events.jsonl")
        stack.callback(record.close)
        with DemoView(console, PIPELINE, limit) as view:
            _watch(operator, view, record, agent, _document(source / CLIP, device), limit)
            _stop(agent)
            # What the agent sent while it stopped: the tracks that are still there leave.
            while message := operator.next(DRAIN_S):
                view.take(message)
                record.take(message.topic, message.payload)
        operator.forget()
    console.print("drawing the annotated video", highlight=False)
    video, sheet = output / "annotated.mp4", output / "contact-sheet.jpg"
    write_annotated(source / CLIP, record.tracks, record.moments, ZONES, LINES, video, sheet)
    summary = record.summary(view, frames)
    if as_json:
        print(json.dumps(summary))
    else:
        _print_summary(console, summary, output)
    if record.missing:
        raise PyascError(f"{record.missing} events are missing from the sequence: see {output / 'events.jsonl'}")


class _Record:
    """Everything of the pipeline that arrived, for the files and the summary."""

    def __init__(self, events: Path) -> None:
        self._log = events.open("w", encoding="utf-8")
        self.tracks: dict[int, list[dict[str, Any]]] = {}
        self.kinds: dict[str, int] = {}
        self.seqs: set[int] = set()
        self.first_frame = self.last_frame = 0.0
        self._frame_at: dict[str, int] = {}
        self._event_times: list[str] = []

    def take(self, topic: str, payload: Any) -> None:
        if topic == f"pipelines/{PIPELINE}/events":
            self._log.write(json.dumps(payload) + "\n")
            if payload["seq"] not in self.seqs:
                self.kinds[payload["type"]] = self.kinds.get(payload["type"], 0) + 1
                self.seqs.add(payload["seq"])
                self._event_times.append(payload["time"])
        elif topic == f"pipelines/{PIPELINE}/tracks":
            now = time.monotonic()
            self.first_frame = self.first_frame or now
            self.last_frame = now
            self.tracks[payload["frame"]] = payload["tracks"]
            self._frame_at[payload["time"]] = payload["frame"]

    @property
    def moments(self) -> list[int]:
        """Frame numbers of the events."""
        return [self._frame_at[time] for time in self._event_times if time in self._frame_at]

    @property
    def missing(self) -> int:
        return max(self.seqs, default=0) - len(self.seqs)

    def summary(self, view: DemoView, frames: int) -> dict[str, Any]:
        seconds = self.last_frame - self.first_frame
        return {
            "frames": len(self.tracks),
            "of": frames,
            "device": view.status.get("device"),
            "fps": round((len(self.tracks) - 1) / seconds, 1) if seconds > 0 else None,
            "tracks": len({row["track"] for rows in self.tracks.values() for row in rows}),
            "events": len(self.seqs),
            "events_by_type": self.kinds,
            "events_missing": self.missing,
        }

    def close(self) -> None:
        self._log.close()


def _find_data(data: Path | None) -> Path:
    tried = [data] if data else [Path("demo"), Path(__file__).resolve().parents[2] / "demo"]
    for folder in tried:
        if all((folder / name).is_file() for name in (CLIP, DETECTOR, EMBEDDER)):
            return folder.resolve()
    raise PyascError(f"no demo data in {', '.join(map(str, tried))}: name the folder with {CLIP} by --data")


def _convert_models(source: Path, models: Path, precision: str, console: Console) -> Path:
    """Convert what has not been converted by this version from these bytes; returns the folder."""
    from pyasc.models.convert import convert

    models.mkdir(parents=True, exist_ok=True)
    for name in (DETECTOR, EMBEDDER):
        target = models / f"{Path(name).stem}.asc"
        digest = hashlib.sha256((source / name).read_bytes()).hexdigest()
        stamp, key = target.with_suffix(".made"), f"{__version__} {precision} {digest}"
        if target.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == key:
            continue
        started = time.monotonic()
        convert(source / name, target, precision=precision)
        stamp.write_text(key, encoding="utf-8")
        took = time.monotonic() - started
        console.print(f"converted {name} to {target.name} in {took:.1f} s", highlight=False)
    return models


def _count_frames(clip: Path) -> int:
    import cv2

    capture = cv2.VideoCapture(str(clip))
    try:
        return int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    finally:
        capture.release()


def _document(clip: Path, device: str) -> dict[str, Any]:
    return {
        "version": 1,
        "pipelines": {
            PIPELINE: {
                "source": {"url": clip.as_uri()},
                "detector": {"plugin": "yolov5", "model": "yolov5n.asc", "device": device, "classes": ["person"]},
                "tracker": {"plugin": "deepsort", "model": "osnet_x0_25.asc", "device": device},
                "zones": ZONES,
                "lines": LINES,
                "publish_tracks": True,
            }
        },
    }


@contextlib.contextmanager
def _agent(state: Path, broker: str, models: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    settings = {
        "box": BOX,
        "broker": {"url": broker},
        "state_dir": str(state),
        "model_dir": str(models.resolve()),
        "telemetry": {"interval_s": 1},
    }
    config = state / "agent.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    with log.open("wb") as stream:
        # A group of its own: Ctrl-C reaches the demo, which then ends the agent in good order.
        process = subprocess.Popen(
            [sys.executable, "-m", "pyasc", "agent", "run", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _stop(process)


def _stop(agent: subprocess.Popen[bytes]) -> None:
    if agent.poll() is None:
        agent.terminate()
        try:
            agent.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait(STOP_TIMEOUT_S)


def _watch(
    operator: Operator,
    view: DemoView,
    record: _Record,
    agent: subprocess.Popen[bytes],
    document: dict[str, Any],
    limit: int,
) -> None:
    """Configure the box when it is online, then follow it until the clip, or its first `limit` frames, are done."""
    configured = False
    heard = time.monotonic()
    while True:
        message = operator.next(0.5)
        if agent.poll() is not None:
            raise PyascError(f"the agent ended with exit code {agent.returncode}: see agent.log in the output folder")
        if message is None:
            if time.monotonic() - heard > SILENCE_S:
                raise TransportError(
                    f"nothing from the agent for {SILENCE_S:.0f} s: see agent.log in the output folder"
                )
            continue
        heard = time.monotonic()
        view.take(message)
        record.take(message.topic, message.payload)
        if message.topic == "status" and message.payload["state"] == "online" and not configured:
            operator.configure(document)
            configured = True
        elif message.topic == "config" and configured and message.payload["state"] != "applied":
            faults = "; ".join(f"{fault['path']}: {fault['message']}" for fault in message.payload["errors"])
            raise PyascError(f"the agent does not take the configuration: {faults}")
        elif message.topic == f"pipelines/{PIPELINE}/status" and message.payload["state"] == "failed":
            raise PyascError(f"the pipeline failed: {message.payload.get('reason')}")
        elif configured and (len(record.tracks) >= limit or _has_stopped(message)):
            return


def _has_stopped(message: Message) -> bool:
    return message.topic == f"pipelines/{PIPELINE}/status" and message.payload["state"] == "stopped"


def _print_summary(console: Console, summary: dict[str, Any], output: Path) -> None:
    table = Table(title="PyASC demo", title_justify="left", show_header=False)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(summary["events_by_type"].items()))
    table.add_row("frames", f"{summary['frames']} of {summary['of']}")
    table.add_row("device", str(summary["device"]))
    table.add_row("frame rate", f"{summary['fps']} frames/s")
    table.add_row("tracks", str(summary["tracks"]))
    table.add_row("events over MQTT", f"{summary['events']} ({kinds}), {summary['events_missing']} missing")
    for name, what in (
        ("annotated.mp4", "video"),
        ("contact-sheet.jpg", "picture"),
        ("events.jsonl", "event log"),
        ("agent.log", "agent's log"),
    ):
        table.add_row(what, str(output / name))
    console.print(table)
