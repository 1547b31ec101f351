"""Messages between the agent's control process and its engine process: one JSON object a line over a Unix socket pair.

Control to engine:

| type | fields | meaning |
|---|---|---|
| `configure` | `id`, `version`, `pipelines`, `model_dir` | build it beside what runs, switch nothing; answered by `reply` |
| `commit` | `id` | switch to what the last `configure` built; unchanged pipelines go on untouched; answered by `reply` |
| `abort` | `id` | throw away what the last `configure` built; answered by `reply` |
| `check` | `id`, `pipelines` | say what is wrong with plugins and their options, load nothing; answered by `reply` |
| `command` | `id`, `command`, `args` | `snapshot`, `restart-pipeline`; answered by `reply` |
| `ack` | `n` | the spool holds all `events` messages up to number n |
| `stop` | | end all pipelines, send what is left, exit |

Engine to control:

| type | fields | meaning |
|---|---|---|
| `hello` | `pid`, `version` | ready for messages |
| `reply` | `id`, `ok`, `errors` ([{path, message}]) or `error`, `result` | the answer to `id` |
| `heartbeat` | | the main loop lives; once a second |
| `status` | `pipeline`, `state`, `device`, `fps`, `resolution`, `reason` | on each change and every few seconds |
| `events` | `n`, `pipeline`, `events` | to be spooled; the engine keeps them until `ack` n |
| `tracks` | `pipeline`, `payload` | where the pipeline has `publish_tracks` |
| `telemetry` | `devices`, `pipelines` | every second |
| `ending` | `reason` | the engine ends by itself, for only a new process can go on |
| `log` | `level`, `logger`, `message` | for the `logs` command |

Pictures travel as base64 in `result`. A line is at most `MAX_LINE_BYTES`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

from pyasc.errors import TransportError

MAX_LINE_BYTES = 64 * 1024 * 1024


class Channel:
    """One end of the socket pair. `send` may be called from any thread, `receive` from one."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """The end that was inherited as this file descriptor."""
        return cls(socket.socket(fileno=fd))

    def send(self, kind: str, **fields: Any) -> None:
        """Send one message.

        Raises:
            TransportError: the other end is gone, or takes nothing within the socket's send timeout, where it has one.
            TypeError, ValueError: the message is not JSON, or longer than `MAX_LINE_BYTES`; nothing has been sent.
        """
        line = json.dumps({"type": kind, **fields}, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"a message of {len(line)} bytes is over the limit of {MAX_LINE_BYTES}")
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError as error:
            raise TransportError(f"the other process is gone: {error}") from error

    def receive(self) -> Iterator[dict[str, Any]]:
        """Messages until the other end closes, also by being killed: what it had sent before is still delivered.

        Raises:
            ValueError, RecursionError: what came is not JSON.
        """
        with self._socket.makefile("rb", buffering=256 * 1024) as lines:
            while True:
                try:
                    line = lines.readline(MAX_LINE_BYTES + 1)
                except OSError:
                    return
                if not line.endswith(b"\n"):
                    return
                yield json.loads(line)

    def close(self) -> None:
        """Close this end; a reader blocked in `receive` ends."""
        with contextlib.suppress(OSError):  # the other end may have closed first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
