"""The operator of the demo: an MQTT client that knows nothing of the agent but its topics."""

from __future__ import annotations

import json
import queue
import urllib.parse
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from pyasc.errors import TransportError

if TYPE_CHECKING:
    from typing_extensions import Self

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the agent: the topic below `pyasc/<box>/` and the JSON in it."""

    topic: str
    payload: Any


class Operator:
    """Subscribes to a box, configures it and hands out what it says.

    Args:
        url: `mqtt://[user:password@]host[:port]`.
        box: the box's name.
    """

    def __init__(self, url: str, box: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "mqtt" or not parts.hostname:
            raise TransportError(f"--broker: {url!r} is not mqtt://host[:port]")
        self._host, self._port = parts.hostname, parts.port or 1883
        self._base = f"pyasc/{box}/"
        self._messages: queue.Queue[Message | TransportError] = queue.Queue()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
        if parts.username:
            self._client.username_pw_set(parts.username, parts.password)
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message

    def __enter__(self) -> Self:
        self._client.connect_timeout = CONNECT_TIMEOUT_S
        try:
            self._client.connect(self._host, self._port)
        except OSError as error:
            raise TransportError(f"no broker at {self._host}:{self._port}: {error}") from error
        self._client.loop_start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def configure(self, document: dict[str, Any]) -> None:
        """Publish a desired configuration, as an operator's tool would."""
        self._client.publish(f"{self._base}config/set", json.dumps(document), qos=1)

    def forget(self) -> None:
        """Remove what the box left on the broker as retained messages."""
        for topic in ("status", "config", "pipelines/gate/status"):
            self._client.publish(f"{self._base}{topic}", b"", qos=1, retain=True).wait_for_publish(CONNECT_TIMEOUT_S)

    def next(self, timeout_s: float) -> Message | None:
        """The next message, or None when none came in time."""
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(message, TransportError):
            raise message
        return message

    def _on_connect(self, client: mqtt.Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._messages.put(TransportError(f"the broker at {self._host}:{self._port} refuses: {reason}"))
            return
        client.subscribe(f"{self._base}#", qos=1)

    def _on_message(self, client: mqtt.Client, data: Any, message: mqtt.MQTTMessage) -> None:
        if message.payload and not message.topic.endswith("config/set"):
            self._messages.put(Message(message.topic.removeprefix(self._base), json.loads(message.payload)))
