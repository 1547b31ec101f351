"""An MQTT broker inside the demo's own process, on loopback, for a machine that has none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import socket
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from pyasc.errors import TransportError

if TYPE_CHECKING:
    from typing_extensions import Self

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 3.0


class EmbeddedBroker:
    """amqtt (MQTT 3.1.1) on a free port of 127.0.0.1; it ends with the `with` block.

    Raises:
        TransportError: amqtt is not installed, or cannot listen.
    """

    def __init__(self) -> None:
        try:
            from amqtt.broker import Broker
        except ImportError as error:
            raise TransportError(
                f"the embedded broker needs amqtt: pip install 'pyasc[demo]', or name a broker with --broker ({error})"
            ) from error
        # The agent asks for MQTT 5 first, and amqtt logs each such attempt as a fault; so it does, by asyncio, with its own end.
        for name in ("amqtt", "asyncio", "transitions"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="demo-broker", daemon=True)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        settings = {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{self.port}", "max_connections": 16}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
        self._broker = Broker(settings, loop=self._loop)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(self._broker.start(), self._loop)
        try:
            started.result(START_TIMEOUT_S)
        except Exception as error:
            self._stop()
            raise TransportError(f"the embedded broker does not start: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        # amqtt's own shutdown waits five seconds for its idle broadcast task: end its tasks instead.
        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(STOP_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
