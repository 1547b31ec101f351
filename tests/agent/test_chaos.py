"""Processes are killed at random moments while events come; `make test-chaos`.

`PYASC_CHAOS=seed,kills` chooses another course.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

BASE = "pyasc/gate-7/"
SEED, KILLS = (int(number) for number in os.environ.get("PYASC_CHAOS", "1,25").split(","))
Events = list[dict[str, Any]]


class Service:
    """`pyasc agent run`, started again whenever it ends, as systemd does."""

    def __init__(self, folder: Path, url: str, models: Path, plugins: Path) -> None:
        self._folder = folder
        self._settings = folder / "agent.yaml"
        content = {"box": "gate-7", "broker": {"url": url}, "state_dir": "state", "model_dir": str(models)}
        self._settings.write_text(yaml.safe_dump(content))
        self._environment = {**os.environ, "PYTHONPATH": str(plugins)}
        self._wanted = True
        self.starts = 0
        self._start()
        self._thread = threading.Thread(target=self._look_after, daemon=True)
        self._thread.start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "pyasc", "agent", "run", "--config", str(self._settings)]
        with (self._folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=self._environment)
        self.starts += 1

    def _look_after(self) -> None:
        while True:
            self.process.wait()
            if not self._wanted:
                return
            self._start()

    @property
    def status(self) -> Any:
        """What the running control process says of itself; empty while there is none."""
        path = self._folder / "state" / "agent.status.json"
        content = json.loads(path.read_bytes()) if path.exists() else {}
        return content if content.get("engine", {}).get("up") else {}

    @property
    def engine(self) -> psutil.Process | None:
        """The engine of the running control process."""
        try:
            children = psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return None
        return next((child for child in children if child.status() != psutil.STATUS_ZOMBIE), None)

    @property
    def log(self) -> str:
        return (self._folder / "agent.log").read_text(errors="replace")

    def end(self) -> int:
        self._wanted = False
        self.process.terminate()
        return self.process.wait(15)


@pytest.fixture
def service(broker: Any, blob_models: Path, blobs: Path, tmp_path: Path) -> Iterator[Service]:
    folder = tmp_path / "agent"
    folder.mkdir()
    running = Service(folder, broker.url, blob_models, blobs)
    yield running
    if running.process.poll() is None:
        running.end()


def document(clip: Path) -> dict[str, Any]:
    parts = {
        "detector": {"plugin": "blobs", "model": "blobs.asc"},
        "tracker": {"plugin": "nearest"},
        "lines": {"middle": [[0.5, 0.0], [0.5, 1.0]]},
        "zones": {"left": [[0.0, 0.0], [0.4, 0.0], [0.4, 1.0], [0.0, 1.0]]},
    }
    steady = {"url": str(clip), "loop": True, "realtime": True}
    return {
        "version": 1,
        "pipelines": {
            "fast": {"source": {"url": str(clip), "loop": True}, **parts},
            "gate": {"source": steady, **parts},
        },
    }


def check(events: Events) -> Counter[str]:
    """Nothing lost, nothing told under two numbers, everything in order, every stay closed; figures of what was seen."""
    by_seq: dict[int, dict[str, Any]] = {}
    firsts: list[dict[str, Any]] = []
    for event in events:
        if event["seq"] not in by_seq:
            firsts.append(event)
        assert by_seq.setdefault(event["seq"], event) == event, "a repetition is the same event"
    assert [event["seq"] for event in firsts] == list(range(1, len(firsts) + 1)), "in order, without a gap"
    assert len({event["id"] for event in firsts}) == len(firsts), "an event has one number"
    open_stays: set[tuple[int, str]] = set()
    for event in firsts:
        stay = (event["track"], event.get("zone", ""))
        if event["type"] == "enter":
            assert stay not in open_stays, event
            open_stays.add(stay)
        elif event["type"] == "leave":
            assert stay in open_stays, event
            open_stays.remove(stay)
    assert not open_stays, "each enter has its leave"
    figures = Counter(str(event.get("reason")) for event in firsts if event["type"] == "leave")
    return figures + Counter(events=len(firsts), repetitions=len(events) - len(firsts))


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_kills_at_random_moments_lose_no_event(
    service: Service, broker: Any, make_operator: Callable[..., Any], blob_clip: Path, until: Callable[..., Any]
) -> None:
    """The broker is ended in good order, for what it holds in memory is not the box's to keep."""
    operator = make_operator(broker.port, session="operator")
    operator.publish(f"{BASE}config/set", document(blob_clip), retain=True)
    operator.wait(f"{BASE}config", lambda report: report["state"] == "applied")
    chance, pause, kills = random.Random(SEED), threading.Event(), Counter[str]()
    for _ in range(KILLS):
        pause.wait(chance.uniform(0.1, 4.0))
        target = chance.choice(("engine", "control", "both", "broker"))
        kills[target] += 1
        if target == "broker":
            operator.ready.clear()
            broker.stop()
            pause.wait(chance.uniform(0.0, 2.0))
            broker.start()
            assert operator.ready.wait(30), "the operator is back"
            continue
        engine = until(lambda: service.engine, "an engine", 90)
        control = service.process
        if target != "control":
            engine.send_signal(signal.SIGKILL)
        if target != "engine":
            control.send_signal(signal.SIGKILL)
            until(lambda control=control: service.process is not control, "started again")
    counts = {name: len(operator.of(f"{BASE}pipelines/{name}/events")) for name in ("fast", "gate")}
    for name, count in counts.items():
        until(
            lambda name=name, count=count: len(operator.of(f"{BASE}pipelines/{name}/events")) > count + 10,
            f"events of {name} after the last kill; {service.log[-2000:]}",
            120,
        )
    until(lambda: service.status.get("spool", {}).get("pending", 99) < 20, "the backlog is sent", 120)
    since = len(operator.messages)
    assert service.end() == 0
    operator.wait(f"{BASE}status", lambda status: status.get("reason") == "stopped", since)
    pause.wait(0.5)  # whatever would come late, and must not
    began = time.monotonic()
    for name in counts:
        print(name, dict(check(operator.of(f"{BASE}pipelines/{name}/events"))))
    print(f"kills: {dict(kills)}, starts of the agent: {service.starts}, checked in {time.monotonic() - began:.1f} s")
