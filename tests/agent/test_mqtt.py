"""The connection to real brokers: mosquitto for MQTT 5, TLS and logins, amqtt for MQTT 3.1.1 and WebSockets."""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyasc.agent.inbox import Inbox
from pyasc.agent.mqtt import Acknowledged, Connected, Disconnected, Mqtt, Received, SubscriptionRefused
from pyasc.agent.settings import Broker

Link = tuple[Mqtt, list[Any], Callable[[Callable[[Any], Any], str], Any]]


@pytest.fixture
def link(until: Callable[..., Any]) -> Iterator[Callable[..., Link]]:
    """Open connections; each with what it posted, and a way to wait for something of it."""
    opened: list[Mqtt] = []

    def make(
        broker: Broker, topics: tuple[str, ...] = ("pyasc/t/config/set", "pyasc/t/cmd/+"), name: str = "pyasc-t"
    ) -> Link:
        inbox = Inbox()
        seen: list[Any] = []
        mqtt = Mqtt(broker, name, list(topics), lambda: ("pyasc/t/status", b'{"state":"offline"}'), inbox)
        opened.append(mqtt)
        mqtt.start()

        def wait(holds: Callable[[Any], Any], what: str) -> Any:
            def found() -> Any:
                seen.extend(inbox.take(0.0))
                return next((item for item in seen if holds(item)), None)

            return until(found, what)

        return mqtt, seen, wait

    yield make
    for mqtt in opened:
        mqtt.close()


def is_connected(item: Any) -> bool:
    return isinstance(item, Connected)


def plain(port: int, **more: Any) -> Broker:
    return Broker("mqtt", "127.0.0.1", port, **more)


def test_connects_publishes_and_receives_with_mqtt_5(broker: Any, make_operator: Any, link: Any) -> None:
    mqtt, _, wait = link(plain(broker.port))
    wait(is_connected, "connected")
    assert mqtt.link.protocol == "5"
    operator = make_operator(broker.port)
    mid = mqtt.publish("pyasc/t/events", b'{"a": 1}')
    assert wait(lambda item: isinstance(item, Acknowledged) and item.mid == mid, "acknowledged").fault is None
    assert operator.wait("pyasc/t/events") == {"a": 1}
    operator.publish("pyasc/t/cmd/ping", {"id": 1})
    received = wait(lambda item: isinstance(item, Received), "received")
    assert (received.topic, received.payload) == ("pyasc/t/cmd/ping", b'{"id": 1}')


def test_will_is_published_when_the_box_is_lost_and_not_when_it_leaves(
    broker: Any, make_operator: Any, link: Any
) -> None:
    operator = make_operator(broker.port)
    mqtt, _, wait = link(plain(broker.port))
    wait(is_connected, "connected")
    mqtt.close()
    operator.publish("pyasc/t/mark", 1)
    operator.wait("pyasc/t/mark")
    assert operator.of("pyasc/t/status") == []
    with _raw_client(broker.port):
        pass  # gone without DISCONNECT
    assert operator.wait("pyasc/raw/status") == {"state": "offline"}


def _raw_client(port: int) -> socket.socket:
    """CONNECT of MQTT 3.1.1 with a will, by hand: what the broker does with a will is checked without our code."""
    topic, payload = b"pyasc/raw/status", b'{"state":"offline"}'
    body = b"\0\4MQTT\4\x2e\0\x3c" + b"".join(len(part).to_bytes(2, "big") + part for part in (b"raw", topic, payload))
    connection = socket.create_connection(("127.0.0.1", port), 5)
    connection.sendall(b"\x10" + bytes([len(body)]) + body)
    assert connection.recv(4)[0] == 0x20
    return connection


def test_lost_broker_is_noticed_and_found_again(broker: Any, make_operator: Any, link: Any) -> None:
    mqtt, seen, wait = link(plain(broker.port))
    wait(is_connected, "connected")
    broker.stop(kill=True)
    wait(lambda item: isinstance(item, Disconnected), "disconnected")
    assert mqtt.publish("pyasc/t/events", b"{}") is None
    assert mqtt.link.state == "unreachable"
    seen.clear()
    broker.start()
    wait(is_connected, "connected again")
    operator = make_operator(broker.port)
    operator.publish("pyasc/t/config/set", "again")
    assert wait(lambda item: isinstance(item, Received), "subscribed again").payload == b"again"


def test_broker_that_is_away_at_the_start(make_broker: Any, link: Any, until: Any) -> None:
    running = make_broker("allow_anonymous true")
    running.stop()
    mqtt, _, wait = link(plain(running.port))
    until(lambda: mqtt.link.state == "unreachable", "unreachable")
    running.start()
    wait(is_connected, "connected")


def test_refused_login_is_not_a_connection_and_says_so_once(
    make_broker: Any, link: Any, tmp_path: Path, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    users = tmp_path / "users"
    subprocess.run(["mosquitto_passwd", "-c", "-b", users, "box", "right"], check=True)
    users.chmod(0o644)
    running = make_broker(f"allow_anonymous false\npassword_file {users}")
    secret = tmp_path / "password"
    secret.write_text("wrong\n")
    with caplog.at_level(logging.WARNING, "pyasc.agent.mqtt"):
        mqtt, seen, wait = link(plain(running.port, username="box", password_file=secret))
        until(lambda: mqtt.link.state == "refused", "refused")
        until(lambda: running.log.count("New client connected") + running.log.count("not authori") >= 2, "tried again")
    assert "ot authori" in str(mqtt.link.reason)
    assert not any(is_connected(item) for item in seen)
    assert mqtt.publish("pyasc/t/x", b"") is None
    assert len([record for record in caplog.records if "not connected" in record.message]) == 1
    assert "wrong" not in caplog.text
    secret.write_text("right\n")  # a password that was put right is read at the next attempt
    wait(is_connected, "connected with the right password")


def test_second_agent_of_one_name_is_diagnosed(
    broker: Any, link: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first, _, wait = link(plain(broker.port))
    wait(is_connected, "connected")
    second, _, wait_second = link(plain(broker.port))
    wait_second(is_connected, "the second connected")
    until(lambda: "is a second agent running" in caplog.text, "diagnosed")
    second.close()
    first.close()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A certification authority, a certificate of 127.0.0.1 and one of the box, made with openssl."""

    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True, cwd=tmp_path)

    # Python 3.13 and later demand the usage of the authority's key, and the identifier of that key.
    usage = "-addext keyUsage=critical,keyCertSign"
    openssl(f"req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=ca -days 2 {usage}")
    (tmp_path / "extensions").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for name in ("server", "box"):
        openssl(f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}")
        signed = f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
        openssl(f"{signed} -extfile extensions -out {name}.pem")
    return tmp_path


def test_tls_with_certificates_of_both_sides(make_broker: Any, link: Any, certificates: Path, until: Any) -> None:
    pem = {name: certificates / f"{name}.pem" for name in ("ca", "server", "box")}
    lines = (
        f"cafile {pem['ca']}\ncertfile {pem['server']}\nkeyfile {certificates / 'server.key'}\nrequire_certificate true"
    )
    running = make_broker(f"{lines}\nuse_identity_as_username true")
    own = {"cert": pem["box"], "key": certificates / "box.key"}
    _, _, wait = link(Broker("mqtts", "127.0.0.1", running.port, ca=pem["ca"], **own))
    wait(is_connected, "connected over TLS")
    unknown, _, _ = link(Broker("mqtts", "127.0.0.1", running.port), name="unknown")
    until(lambda: unknown.link.state == "unreachable", "a broker with an unknown certificate is not trusted")
    assert "certificate verify failed" in str(unknown.link.reason)
    assert ssl.OPENSSL_VERSION_INFO >= (1, 1, 1)


def test_window_of_the_broker_is_kept(make_broker: Any, link: Any) -> None:
    running = make_broker("allow_anonymous true\nmax_inflight_messages 3\nmax_packet_size 5000")
    _, _, wait = link(plain(running.port))
    assert wait(is_connected, "connected") == Connected(window=3, max_bytes=5000)


def test_falls_back_to_mqtt_311(amqtt_port: int, link: Any) -> None:
    mqtt, _, wait = link(plain(amqtt_port))
    wait(is_connected, "connected")
    assert mqtt.link.protocol == "3.1.1"
    mid = mqtt.publish("pyasc/t/cmd/ping", b"hello", correlation=b"left out in 3.1.1")
    wait(lambda item: isinstance(item, Acknowledged) and item.mid == mid, "acknowledged")
    assert wait(lambda item: isinstance(item, Received), "received").payload == b"hello"


@pytest.mark.parametrize("amqtt_port", ["ws"], indirect=True)
def test_websockets(amqtt_port: int, link: Any) -> None:
    mqtt, _, wait = link(Broker("ws", "127.0.0.1", amqtt_port))
    wait(is_connected, "connected over WebSockets")
    assert mqtt.publish("pyasc/t/x", b"1") is not None
    wait(lambda item: isinstance(item, Acknowledged), "acknowledged")


@pytest.mark.parametrize("answer", [b"\x20\x02\x00\x01", b"", b"\x20\x03\x00\x84\x00"])
def test_older_protocol_after_each_kind_of_refusal(answer: bytes, link: Any, until: Any) -> None:
    """A server that answers MQTT 5 as old brokers do: with the old code, by hanging up, with the new code; 3.1.1 is taken."""
    levels: list[int] = []
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            packet = connection.recv(4096)
            level = packet[packet.index(b"MQTT") + 4]
            levels.append(level)
            connection.sendall(b"\x20\x02\x00\x00" if level == 4 else answer)
            if level == 4:
                connection.recv(4096)
                connection.sendall(b"\x90\x04\x00\x01\x80\x01")
            else:
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    mqtt, _, wait = link(plain(server.getsockname()[1]))
    wait(is_connected, "connected")
    assert levels[:2] == [5, 4]
    refused = wait(lambda item: isinstance(item, SubscriptionRefused), "a topic that the broker refuses is named")
    assert refused.topics == ["pyasc/t/config/set"]
    assert mqtt.link.protocol == "3.1.1"
    mqtt.close()
    server.close()


@pytest.mark.parametrize(
    "noise", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x20\xff\xff\xff\xff\xff", b"\x00" * 64, b"\x20\x00"]
)
def test_what_is_no_broker_is_survived(noise: bytes, link: Any, until: Any) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            accepted.append(connection)
            connection.recv(4096)
            connection.sendall(noise)
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    mqtt, seen, _ = link(plain(server.getsockname()[1]))
    until(lambda: len(accepted) >= 3, "tried again")
    assert mqtt.link.state in ("refused", "unreachable", "connecting")
    assert not any(is_connected(item) for item in seen)
    mqtt.close()
    server.close()
