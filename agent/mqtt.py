"""The connection to the broker.

Each connection has a client object of its own: what was in flight on a broken one is not sent again by the client library, it is
the spool that knows what the broker has. MQTT 5 is tried first, then 3.1.1 when the broker refuses, drops or ignores that.
What the broker has understood is tried first from then on. Everything that happens is posted to the inbox of the main loop, in
order.
"""

from __future__ import annotations

import logging
import random
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from pyasc.agent.document import MAX_DOCUMENT_BYTES
from pyasc.agent.inbox import Inbox
from pyasc.agent.settings import Broker

_log = logging.getLogger(__name__)

KEEPALIVE_S = 20
CONNACK_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
# Some brokers of MQTT 3.1.1 never answer a CONNECT of MQTT 5.
FIRST_CONNACK_TIMEOUT_S = 3.0
BACKOFF_S = (1.0, 60.0)
# A connection that lasted this long was a good one: the next attempt comes soon.
STEADY_S = 10.0
# What a broker of MQTT 5 may send; more is not read.
MAX_INCOMING_BYTES = 1024 * 1024
MAX_WINDOW = 20
MAX_PAYLOAD_BYTES = MAX_DOCUMENT_BYTES
_SHORT_IN_A_ROW = 3
_BAD_PROTOCOL = 0x84
_TAKEN_OVER = 0x8E
_MQTT5 = MQTTProtocolVersion.MQTTv5
_MQTT311 = MQTTProtocolVersion.MQTTv311


class Connected(NamedTuple):
    """The broker has accepted the box and its subscriptions are under way.

    `window` is how many QoS 1 messages may wait for their acknowledgement, `max_bytes` the largest packet that the broker takes.
    """

    window: int
    max_bytes: int | None


class Disconnected(NamedTuple):
    """The connection is gone; what was not acknowledged must be published again."""

    reason: str


class Acknowledged(NamedTuple):
    """The broker has this message, or says why it does not take it."""

    mid: int
    fault: str | None


class Received(NamedTuple):
    """A message of a subscribed topic."""

    topic: str
    payload: bytes
    retained: bool
    response_topic: str | None
    correlation: bytes | None


class SubscriptionRefused(NamedTuple):
    """The broker lets the box not read these topics."""

    topics: list[str]


@dataclass
class LinkState:
    """What the status file says of the connection: `connecting`, `connected`, `refused`, `unreachable`, `stopped`."""

    state: str = "connecting"
    reason: str | None = None
    protocol: str | None = None
    since: float = field(default_factory=time.time)


class Mqtt:
    """Keeps the box connected from `start` to `close`."""

    def __init__(
        self, broker: Broker, client_id: str, topics: list[str], will: Callable[[], tuple[str, bytes]], inbox: Inbox
    ) -> None:
        """Nothing is opened yet.

        Args:
            broker: where and as whom.
            client_id: the same at each start, one a box.
            topics: to be subscribed with QoS 1 at each connect.
            will: called before each attempt: topic and payload that the broker publishes, retained, when the box is lost.
            inbox: gets the messages of this module.
        """
        self.link = LinkState()
        self._broker, self._client_id, self._topics, self._will, self._inbox = broker, client_id, topics, will, inbox
        self._stopping = threading.Event()
        self._client: _Client | None = None
        self._attempt: _Attempt | None = None
        self._short = 0
        self._protocols = [_MQTT5, _MQTT311]
        self._thread = threading.Thread(target=self._run, name="mqtt", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        correlation: bytes | None = None,
    ) -> int | None:
        """Hand a message to the connection; returns the id that `Acknowledged` will name, None when there is no connection."""
        client = self._client
        if client is None:
            return None
        properties = None
        if correlation is not None and client.attempt.protocol == _MQTT5:
            properties = _properties(PacketTypes.PUBLISH)
            properties.CorrelationData = correlation
        info = client.publish(topic, payload, qos=qos, retain=retain, properties=properties)
        return info.mid if info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS else None

    def close(self) -> None:
        """Disconnect without the will; a second call does nothing."""
        self._stopping.set()
        attempt = self._attempt
        if attempt is not None:
            attempt.answered.set()
            attempt.over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=CLOSE_TIMEOUT_S)  # it may be inside a connect that nobody answers
        self._set("stopped", None)

    # --- the thread that connects

    def _run(self) -> None:
        delay, upper = BACKOFF_S
        while not self._stopping.is_set():
            began = time.monotonic()
            self._one_session()
            if time.monotonic() - began > STEADY_S:
                delay = BACKOFF_S[0]
            # The jitter keeps a fleet from coming back in one instant after its broker was away.
            self._stopping.wait(delay * random.uniform(0.5, 1.0))  # noqa: S311 - not a secret
            delay = min(delay * 2, upper)

    def _one_session(self) -> None:
        """Connect, stay until the end; the other protocol follows where the first one is not understood."""
        for protocol in tuple(self._protocols):
            attempt = self._attempt = _Attempt(self._inbox, self._topics, protocol)
            try:
                client = self._make_client(protocol, attempt)
                self._connect(client, protocol)
            except (OSError, ValueError) as error:
                self._set("unreachable", f"{self._broker}: {error}")
                return
            try:
                other = self._stay(client, protocol, attempt)
            finally:
                self._client = None
                client.disconnect()
                client.loop_stop()
                attempt.end()
            if not other:
                return

    def _make_client(self, protocol: MQTTProtocolVersion, attempt: _Attempt) -> _Client:
        broker = self._broker
        client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_id,
            clean_session=None if protocol == _MQTT5 else True,
            protocol=protocol,
            transport="websockets" if broker.websockets else "tcp",
            reconnect_on_failure=False,
        )
        if broker.websockets:
            client.ws_set_options(path=broker.path)
        if broker.tls:
            context = ssl.create_default_context(cafile=None if broker.ca is None else str(broker.ca))
            if broker.cert is not None:
                context.load_cert_chain(broker.cert, broker.key)
            client.tls_set_context(context)
        if broker.username is not None:
            password = None if broker.password_file is None else broker.password_file.read_text().rstrip("\r\n")
            client.username_pw_set(broker.username, password)
        client.attempt = attempt
        topic, payload = self._will()
        client.will_set(topic, payload, qos=1, retain=True)
        client.max_inflight_messages_set(0)  # the window is the sender's: it knows what the broker grants
        client.connect_timeout = CONNACK_TIMEOUT_S
        client.on_connect = attempt.on_connect
        client.on_disconnect = attempt.on_disconnect
        client.on_message = attempt.on_message
        client.on_publish = attempt.on_publish
        client.on_subscribe = attempt.on_subscribe
        return client

    def _connect(self, client: Client, protocol: MQTTProtocolVersion) -> None:
        properties = None
        if protocol == _MQTT5:
            properties = _properties(PacketTypes.CONNECT)
            properties.MaximumPacketSize = MAX_INCOMING_BYTES
            properties.ReceiveMaximum = MAX_WINDOW
        client.connect(self._broker.host, self._broker.port, keepalive=KEEPALIVE_S, properties=properties)
        client.loop_start()

    def _stay(self, client: _Client, protocol: MQTTProtocolVersion, attempt: _Attempt) -> bool:
        """Wait for the end of the connection; True when the broker may understand the other protocol."""
        first = protocol == self._protocols[0]
        attempt.answered.wait(FIRST_CONNACK_TIMEOUT_S if first else CONNACK_TIMEOUT_S)
        if self._stopping.is_set():
            return False
        if not attempt.accepted:
            refusal = attempt.refusal
            other = first and (refusal is None or refusal.value == _BAD_PROTOCOL)
            if not other:
                self._set("refused", f"{self._broker}: {'no answer to CONNECT' if refusal is None else refusal}")
            return other
        self._protocols.sort(key=lambda known: known != protocol)
        self._set("connected", None, "5" if protocol == _MQTT5 else "3.1.1")
        self._client, began = client, time.monotonic()
        attempt.announce()
        attempt.over.wait()
        if self._stopping.is_set():
            return False
        self._explain(attempt, time.monotonic() - began)
        return False

    def _explain(self, attempt: _Attempt, lasted_s: float) -> None:
        """Say why a connection ended. Few brokers say that another client took the name, but each such connection is short."""
        self._short = self._short + 1 if lasted_s < STEADY_S else 0
        reason = attempt.end_reason or "connection lost"
        if attempt.taken_over or self._short >= _SHORT_IN_A_ROW:
            reason += f"; is a second agent running with the client id {self._client_id}?"
        self._set("unreachable", f"{self._broker}: {reason}")

    def _set(self, state: str, reason: str | None, protocol: str | None = None) -> None:
        """Note and log a change; the same state for the same reason is logged once."""
        if (state, reason) == (self.link.state, self.link.reason):
            return
        self.link = LinkState(state, reason, protocol)
        if state == "connected":
            _log.info("connected to %s with MQTT %s", self._broker, protocol)
        elif state != "stopped":
            _log.warning("not connected: %s", reason)


class _Client(Client):
    """A client whose end is always noticed: also a fault in the library, or in a packet, ends the attempt and not the agent."""

    attempt: _Attempt

    def loop_forever(self, timeout: float = 1.0, retry_first_connection: bool = False) -> MQTTErrorCode:
        try:
            return super().loop_forever(timeout, retry_first_connection)
        except Exception:  # noqa: BLE001 - logged; whatever it is, the agent connects again
            _log.exception("the connection ended by a fault in it")
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        finally:
            self.attempt.answered.set()
            self.attempt.over.set()


def _properties(kind: int) -> Any:
    make: Any = Properties  # the library does not type its constructor, and sets attributes by name
    return make(kind)


class _Attempt:
    """One connection and what the client library says of it, on the library's thread."""

    def __init__(self, inbox: Inbox, topics: list[str], protocol: MQTTProtocolVersion) -> None:
        self.answered = threading.Event()
        self.over = threading.Event()
        self.accepted = False
        self.refusal: ReasonCode | None = None
        self.end_reason: str | None = None
        self.taken_over = False
        self._inbox, self._topics = inbox, topics
        self.protocol = protocol
        self._connected = Connected(MAX_WINDOW, None)
        self._announced = False
        self._flooded = False

    def announce(self) -> None:
        """Tell the main loop, after `publish` works."""
        self._announced = True
        self._inbox.post(self._connected)

    def end(self) -> None:
        """Tell the main loop that the connection is gone, if it knew of it."""
        if self._announced:
            self._inbox.post(Disconnected(self.end_reason or "connection lost"))

    def on_connect(self, client: Client, _data: Any, _flags: Any, reason: ReasonCode, properties: Any) -> None:
        if reason.is_failure:
            self.refusal = reason
        else:
            window = min(MAX_WINDOW, getattr(properties, "ReceiveMaximum", MAX_WINDOW))
            self._connected = Connected(window, getattr(properties, "MaximumPacketSize", None))
            self.accepted = True
            if self.protocol == _MQTT5:
                client.subscribe([(topic, SubscribeOptions(qos=1)) for topic in self._topics])
            else:
                client.subscribe([(topic, 1) for topic in self._topics])
        self.answered.set()

    def on_disconnect(self, _client: Client, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        self.end_reason = str(reason)
        self.taken_over = reason.value == _TAKEN_OVER and reason.packetType == PacketTypes.DISCONNECT
        self.answered.set()
        self.over.set()

    def on_publish(self, _client: Client, _data: Any, mid: int, reason: ReasonCode, _properties: Any) -> None:
        # The library holds a lock here that `publish` needs: no waiting in this call.
        self._inbox.post(Acknowledged(mid, str(reason) if reason.is_failure else None))

    def on_subscribe(self, _client: Client, _data: Any, _mid: int, reasons: list[ReasonCode], _properties: Any) -> None:
        refused = [topic for topic, reason in zip(self._topics, reasons, strict=False) if reason.is_failure]
        if refused:
            self._inbox.post(SubscriptionRefused(refused))

    def on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        properties = message.properties
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return  # no topic of ours
        received = Received(
            topic,
            bytes(message.payload[: MAX_PAYLOAD_BYTES + 1]),  # enough to say that it is too long
            message.retain,
            getattr(properties, "ResponseTopic", None),
            getattr(properties, "CorrelationData", None),
        )
        if self._inbox.offer(received):
            self._flooded = False
        elif not self._flooded:
            self._flooded = True
            _log.warning("messages come faster than they can be handled; some are dropped, the first on %s", topic)
