"""A real broker, an operator's client, and waiting with a deadline."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

DEADLINE_S = 15.0


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """What the condition gives as soon as it is true; fails the test with `what` at the deadline."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not (value := condition()):
        if time.monotonic() > end:
            pytest.fail(f"after {deadline_s} s still not: {what}")
        pause.wait(0.02)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Mosquitto:
    """A mosquitto on a free port of the loopback, with extra lines of configuration."""

    def __init__(self, folder: Path, lines: str = "allow_anonymous true") -> None:
        self.port = free_port()
        self.folder = folder
        self._config = folder / "mosquitto.conf"
        self._config.write_text(
            f"per_listener_settings false\nlistener {self.port} 127.0.0.1\n{lines}\n"
            f"persistence true\npersistence_location {folder}/\nautosave_interval 1\n"
            f"log_dest file {folder}/broker.log\nlog_type all\n"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
        # as root it would drop to a user that cannot write the folder
        user = ["-c", str(self._config)]
        if os.geteuid() == 0 and "user root" not in self._config.read_text():
            self._config.write_text(self._config.read_text() + "user root\n")
        self._process = subprocess.Popen([program, *user], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._listens, "mosquitto listens", 10)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"mosquitto ended, see {self.folder}/broker.log"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, kill: bool = False) -> None:
        if self._process is not None:
            self._process.kill() if kill else self._process.terminate()
            self._process.wait(10)
            self._process = None

    def reload(self) -> None:
        """Read the files of rights and passwords again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    @property
    def log(self) -> str:
        return (self.folder / "broker.log").read_text(errors="replace")

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"


class Operator:
    """A plain client that sees everything below `pyasc/` and remembers it."""

    def __init__(
        self, port: int, *, session: str = "", protocol: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv5, **login: str
    ) -> None:
        """Connect; under a `session` name the broker keeps what comes while the operator is away."""
        self.messages: list[tuple[str, Any, bool, Any]] = []
        self.ready = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, session, protocol=protocol)
        if login:
            self._client.username_pw_set(**login)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = lambda client, *_: client.subscribe("pyasc/#", 1)
        self._client.on_subscribe = lambda *_: self.ready.set()
        self._client.on_message = self._take
        if protocol == MQTTProtocolVersion.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 600 if session else 0
            self._client.connect("127.0.0.1", port, clean_start=not session, properties=properties)
        else:
            self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self.ready.wait(10)

    def _take(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        try:
            content = json.loads(message.payload) if message.payload else None
        except (ValueError, RecursionError):
            content = message.payload
        self.messages.append((message.topic, content, message.retain, message.properties))

    def publish(self, topic: str, content: Any, retain: bool = False, properties: Any = None) -> None:
        payload = content if isinstance(content, str | bytes) else json.dumps(content)
        self._client.publish(topic, payload, 1, retain, properties).wait_for_publish(10)

    def of(self, topic: str) -> list[Any]:
        """Contents of one topic, in order."""
        return [content for name, content, _, _ in list(self.messages) if name == topic]

    def last(self, topic: str) -> Any:
        found = self.of(topic)
        return found[-1] if found else None

    def wait(self, topic: str, holds: Callable[[Any], Any] = lambda _: True, since: int = 0) -> Any:
        """The first content of a topic, from the message with number `since` on, for which `holds` is true."""

        def found() -> Any:
            for name, content, _, _ in self.messages[since:]:
                if name == topic and content is not None and holds(content):
                    return content
            return None

        return wait_until(found, f"{topic} as expected; last: {self.last(topic)}")

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    folder = tmp_path / "broker"
    folder.mkdir()
    running = Mosquitto(folder)
    yield running
    running.stop()


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[[str], Mosquitto]]:
    """Start brokers with configurations of their own."""
    started: list[Mosquitto] = []

    def make(lines: str) -> Mosquitto:
        folder = tmp_path / f"broker{len(started)}"
        folder.mkdir()
        started.append(Mosquitto(folder, lines))
        return started[-1]

    yield make
    for running in started:
        running.stop()


@pytest.fixture
def make_operator() -> Iterator[Callable[..., Operator]]:
    """Connect operators."""
    connected: list[Operator] = []

    def make(port: int, **options: Any) -> Operator:
        connected.append(Operator(port, **options))
        return connected[-1]

    yield make
    for operator in connected:
        operator.close()


@pytest.fixture
def until() -> Callable[..., Any]:
    """`wait_until`, for test modules, which cannot import this file."""
    return wait_until


@pytest.fixture
def amqtt_port(request: pytest.FixtureRequest) -> Iterator[int]:
    """The embedded broker of the demo, which speaks MQTT 3.1.1 only."""
    from amqtt.broker import Broker as Amqtt

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    config = {
        "listeners": {"default": {"type": getattr(request, "param", "tcp"), "bind": f"127.0.0.1:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }

    async def make() -> Amqtt:
        running = Amqtt(config)
        await running.start()
        return running

    running = asyncio.run_coroutine_threadsafe(make(), loop).result(20)
    yield port
    asyncio.run_coroutine_threadsafe(running.shutdown(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()
