"""An engine that is configured again and again keeps neither memory, nor threads, nor open files."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyasc.agent.ipc import Channel
from pyasc.errors import TransportError

MIB = 1024 * 1024


class Engine:
    """An engine process, and its state as the control process would know it."""

    def __init__(self, until: Callable[..., Any], models: Path) -> None:
        self._until, self._models = until, models
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "pyasc.agent.engine", "--fd", str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        self._channel = Channel(ours)
        self._replies: dict[int, dict[str, Any]] = {}
        self._states: dict[str, str] = {}
        self._number = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(TransportError):  # it may have ended after its last events
            for message in self._channel.receive():
                if message["type"] == "events":
                    self._channel.send("ack", n=message["n"])
                elif message["type"] == "reply":
                    self._replies[message["id"]] = message
                elif message["type"] == "status":
                    self._states[message["pipeline"]] = message["state"]

    def _ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        self._channel.send(kind, id=self._number, **fields)
        reply = self._until(lambda: self._replies.pop(self._number, None), f"an answer to {kind}", 60)
        assert reply["ok"], reply
        result: dict[str, Any] = reply["result"]
        return result

    def apply(self, pipelines: dict[str, Any]) -> None:
        """Configure, switch, and wait until what is new runs."""
        version, folder = self._number, str(self._models)
        changed = self._ask("configure", version=version, pipelines=pipelines, ended=[], model_dir=folder)["changed"]
        self._ask("commit")
        for name in changed:  # what was said until now may be of the one that was replaced
            self._states.pop(name, None)
        self._until(lambda: all(self._states.get(name) == "running" for name in changed), "it runs", 60)

    def figures(self) -> tuple[int, int, int]:
        """Bytes of memory, threads, open files."""
        process = psutil.Process(self.process.pid)
        return process.memory_info().rss, process.num_threads(), process.num_fds()

    def end(self) -> None:
        with contextlib.suppress(TransportError):
            self._channel.send("stop")
        try:
            self.process.wait(15)
        finally:
            self.process.kill()
            self.process.wait()
            self._channel.close()


@pytest.fixture
def start(until: Callable[..., Any]) -> Iterator[Callable[[Path], Engine]]:
    """Start engines with a folder of models."""
    started: list[Engine] = []

    def begin(models: Path) -> Engine:
        started.append(Engine(until, models))
        return started[-1]

    yield begin
    for engine in started:
        engine.end()


def configuration(round_: int, clip: Path, model: str) -> dict[str, Any]:
    """Another one each time: threshold, threads, zones, and a pipeline more in every other round."""
    x = 0.3 + 0.02 * (round_ % 10)
    gate = {
        "source": {"url": str(clip), "loop": True, "realtime": round_ % 3 != 0},
        "detector": {
            "plugin": "yolov5",
            "model": model,
            "device": "cpu",
            "confidence": round(x, 2),
            "threads": 1 + round_ % 2,
        },
        "tracker": {"plugin": "deepsort"},
        "zones": {f"zone{round_ % 4}": [[0, 0], [x, 0], [x, 1]]},
    }
    steady = {
        "source": {"url": str(clip), "loop": True, "realtime": True},
        "detector": {"plugin": "yolov5", "model": model},
    }
    return {"gate": gate, "steady": steady, **({"yard": {**gate, "publish_tracks": True}} if round_ % 2 else {})}


def test_an_engine_that_is_configured_again_and_again_does_not_grow(
    start: Callable[[Path], Engine], spots_asc: Path, blob_clip: Path
) -> None:
    engine = start(spots_asc.parent)
    figures = []
    for round_ in range(20):
        engine.apply(configuration(round_, blob_clip, spots_asc.name))
        if round_ % 2 == 0:
            figures.append(engine.figures())
    memory, threads, files = zip(*figures, strict=True)
    assert min(memory[-3:]) - min(memory[3:6]) < 8 * MIB, memory
    assert min(threads[-3:]) <= max(threads[3:6]), threads
    assert min(files[-3:]) <= max(files[3:6]), files


def test_memory_of_models_that_are_given_up_goes_back_to_the_system(
    start: Callable[[Path], Engine], yolov5n_asc: Path, demo_dir: Path
) -> None:
    """With the allocator's defaults it doubles within the first four."""
    engine = start(yolov5n_asc.parent)
    memory = []
    for round_ in range(7):
        engine.apply(configuration(round_, demo_dir / "one-by-one-person.mp4", yolov5n_asc.name))
        if round_ % 2 == 0:
            memory.append(engine.figures()[0])
    assert max(memory) < 1.4 * memory[0], [size // MIB for size in memory]
