"""An engine without pictures, in a process of its own: it speaks `agent/ipc.py` and misbehaves where a pipeline tells it to.

`detector.behave` of a pipeline: `refuse` and `slow` (while it is built), `crash-build`, `crash` (after the commit), `fail`,
`fail-later`, `never` (stays in starting), `away` (reconnecting), `away-later` (after two seconds), `ended` (stopped), `quiet`
(runs, no events), `poster` (quiet, with a large picture), `wedge` (takes the engine along at a command), `hang` (no heartbeat
after the commit), `orphan` (ends and leaves a process that holds the channel), `garbage`; else it runs and sends events: a track
enters, crosses and leaves, `detector.rate` tracks a second.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
import uuid
from typing import Any

from pyasc.agent.clock import rfc3339
from pyasc.agent.ipc import Channel


class Engine:
    def __init__(self, fd: int) -> None:
        self.channel = Channel.from_fd(fd)
        self.fd = fd
        self.built: dict[str, Any] | None = None
        self.running: dict[str, Any] = {}
        self.tracks: dict[str, int] = {}
        self.batch = 0
        self.alive = True
        self.lock = threading.Lock()

    def status(self, name: str, state: str, reason: str | None = None) -> None:
        known = {"device": "cpu", "fps": 25.0, "resolution": 720}
        self.channel.send("status", pipeline=name, state=state, reason=reason, **known)

    def events(self, name: str, *kinds: str) -> None:
        self.batch += 1
        track = self.tracks[name]
        events = [
            {
                "id": str(uuid.uuid4()),
                "time": rfc3339(),
                "type": kind,
                "track": track,
                "label": "person",
                "score": 0.9,
                "box": [0, 0, 1, 1],
            }
            for kind in kinds
        ]
        self.channel.send("events", n=self.batch, pipeline=name, events=events)

    def behave(self, name: str) -> str:
        return str(self.running[name]["detector"].get("behave", ""))

    def work(self) -> None:
        beat = 0.0
        due: dict[str, float] = {}
        while self.alive:
            now = time.monotonic()
            if now > beat and "hang" not in map(self.behave, self.running):
                beat = now + 0.3
                self.channel.send("heartbeat")
                self.channel.send(
                    "telemetry", devices={"cpu": {"load": 1}}, pipelines={name: {"fps": 25.0} for name in self.running}
                )
            with self.lock:
                for name in self.running if self.alive else ():
                    self.step(name, now, due)
            time.sleep(0.01)

    def step(self, name: str, now: float, due: dict[str, float]) -> None:
        behave = self.behave(name)
        if now > due.get(f"{name} status", 0.0):
            due[f"{name} status"] = now + 0.5
            states = {"fail": "failed", "never": "starting", "away": "reconnecting", "ended": "stopped"}
            if behave == "fail-later":
                states["fail-later"] = "failed" if f"{name} seen" in due else "running"
                due[f"{name} seen"] = now
            if behave == "away-later":
                began = due.setdefault(f"{name} began", now)
                states["away-later"] = "reconnecting" if now > began + 2 else "running"
            state = states.get(behave, "running")
            self.status(name, state, {"failed": "as told", "stopped": "end of stream"}.get(state))
        if behave in ("", "busy") and now > due.get(name, 0.0):
            due[name] = now + 1 / float(self.running[name]["detector"].get("rate", 10))
            self.tracks[name] = self.tracks.get(name, 0) + 1
            self.events(name, "enter", "cross", *(() if self.tracks[name] % 2 else ("leave",)))

    def configure(self, message: dict[str, Any]) -> None:
        behaviours = {name: part["detector"].get("behave") for name, part in message["pipelines"].items()}
        if "crash-build" in behaviours.values():
            signal.raise_signal(signal.SIGSEGV)
        if "slow" in behaviours.values():
            time.sleep(1.0)
        errors = [
            {"path": f"pipelines.{name}.detector.behave", "message": "is refused"}
            for name, behave in behaviours.items()
            if behave == "refuse"
        ]
        self.built = None if errors else message["pipelines"]
        self.channel.send("reply", id=message["id"], ok=not errors, errors=errors)

    def check(self, message: dict[str, Any]) -> None:
        self.channel.send("reply", id=message["id"], ok=True, result={})

    def commit(self, message: dict[str, Any]) -> None:
        assert self.built is not None
        with self.lock:
            for name in set(self.running) - set(self.built):
                self.status(name, "stopped")
            kept = {name: part for name, part in self.running.items() if self.built.get(name) == part}
            print(f"kept {sorted(kept)}", file=sys.stderr, flush=True)
            self.running = {name: part for name, part in self.built.items() if part.get("enabled", True)}
        self.channel.send("reply", id=message["id"], ok=True, errors=[])
        behaviours = set(map(self.behave, self.running))
        if "crash" in behaviours:
            os._exit(7)
        if "orphan" in behaviours and os.fork() == 0:
            os.setsid()  # as a helper of a plugin may: it holds the channel open and does not end with the engine
            time.sleep(20)
            os._exit(0)
        if "orphan" in behaviours:
            os._exit(7)
        if "garbage" in behaviours:
            with socket.socket(fileno=os.dup(self.fd)) as raw:
                raw.sendall(
                    b'{"type": "events", "pipeline": 5, "events": [{}, 3]}\n{"type": "status"}\n{"type": "log"}\n'
                )

    def command(self, message: dict[str, Any]) -> None:
        name = message["args"].get("pipeline")
        if name not in self.running:
            error = f"there is no pipeline {name!r}"
            self.channel.send("reply", id=message["id"], ok=False, error=error)
        elif self.behave(name) == "wedge":
            self.channel.send("ending", reason=f"pipeline {name} is wedged")
            os._exit(3)
        elif message["command"] == "snapshot":
            result = {"jpeg": "AAAA" * (10 if self.behave(name) == "poster" else 1) * 256, "width": 1280, "height": 720}
            self.channel.send("reply", id=message["id"], ok=True, result=result)
        else:
            self.channel.send("reply", id=message["id"], ok=True, result={})

    def listen(self) -> None:
        for message in self.channel.receive():
            kind = message["type"]
            if kind == "stop":
                with self.lock:
                    for name, track in self.tracks.items():
                        if track % 2 and name in self.running:
                            self.events(name, "leave")
                    for name in self.running:
                        if self.behave(name) != "ended":
                            self.status(name, "stopped", "stopped")
                    self.alive = False
                break
            handler = getattr(self, kind, None)
            if handler is not None:
                handler(message)
        self.alive = False

    def ack(self, message: dict[str, Any]) -> None:
        assert message["n"] <= self.batch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int)
    parser.add_argument("--hello", default="yes")
    options, _ = parser.parse_known_args()
    engine = Engine(options.fd)
    if options.hello == "no":
        sys.exit(3)
    engine.channel.send("hello", pid=os.getpid(), version="test")
    engine.channel.send("log", level="info", logger="engine", message="opened rtsp://user:hunter2@camera/1")
    threading.Thread(target=engine.listen, daemon=True).start()
    engine.work()


main()
