"""Buffers in host memory, and a queue for devices whose `Executable.run` is a plain call."""

from __future__ import annotations

import atexit
import collections
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyasc.errors import DeviceBusyError, DeviceError, DeviceMemoryError, DeviceTimeoutError
from pyasc.hal.base import Buffer, Executable, Queue, RunEvent, check_arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

QUEUE_DEPTH = 64  # inferences that may wait in one queue
SUBMIT_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 30.0


def check_range(length: int, offset_bytes: int, size_bytes: int, what: str) -> None:
    """Raise ValueError unless `length` bytes at `offset_bytes` lie within a buffer of `size_bytes`."""
    if offset_bytes < 0 or length > size_bytes - offset_bytes:
        raise ValueError(
            f"{what} of {length} bytes at offset {offset_bytes} does not fit in a buffer of {size_bytes} bytes"
        )


def as_bytes(data: Any, writable: bool = False) -> memoryview:
    """The bytes of a C-contiguous buffer, without a copy; ValueError when it is not contiguous or, if asked for, read-only."""
    import numpy as np

    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError("the array is not C-contiguous: copy it with numpy.ascontiguousarray first")
        data = data.reshape(-1).view(np.uint8)  # memoryview alone cannot look at every dtype
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("the buffer is not C-contiguous")
    if writable and view.readonly:
        raise ValueError("the array to read into is read-only")
    return view.cast("B") if view.nbytes else memoryview(bytearray())


class HostBuffer(Buffer):
    """Memory of the host.

    Args:
        memory: any C-contiguous buffer; it is shared, not copied, and read-only when it is read-only.
        device: the name that it goes by.
    """

    def __init__(self, memory: Any, device: str = "cpu") -> None:
        self._memory: memoryview | None = as_bytes(memory)
        self.size_bytes = self._memory.nbytes
        self.device = device

    @classmethod
    def allocate(cls, size_bytes: int, device: str = "cpu") -> HostBuffer:
        """New memory, filled with zeros; ValueError for a size below 1, DeviceMemoryError when there is not enough."""
        import numpy as np

        if size_bytes < 1:
            raise ValueError(f"a buffer of {size_bytes} bytes: the size has to be at least 1")
        try:
            return cls(np.zeros(size_bytes, np.uint8), device)
        except (MemoryError, ValueError, OverflowError) as error:  # NumPy's ValueError: over the address space
            raise DeviceMemoryError(f"{device}: no memory for a buffer of {size_bytes} bytes") from error

    def _open_memory(self) -> memoryview:
        if self._memory is None:
            raise ValueError(f"the buffer of {self.device} is closed")
        return self._memory

    def write(self, data: Any, offset_bytes: int = 0) -> None:
        """Copy from any C-contiguous buffer; ValueError when it does not fit or this memory is read-only."""
        memory, source = self._open_memory(), as_bytes(data)
        if memory.readonly:
            raise ValueError("the buffer shares read-only memory and cannot be written")
        check_range(source.nbytes, offset_bytes, self.size_bytes, "a write")
        memory[offset_bytes : offset_bytes + source.nbytes] = source

    def read(self, into: Any, offset_bytes: int = 0) -> None:
        """Copy to a writable C-contiguous buffer, as many bytes as it has; ValueError when it asks for more than there is."""
        memory, target = self._open_memory(), as_bytes(into, writable=True)
        check_range(target.nbytes, offset_bytes, self.size_bytes, "a read")
        target[:] = memory[offset_bytes : offset_bytes + target.nbytes]

    def view(self) -> memoryview:
        """The memory itself."""
        return self._open_memory()

    def close(self) -> None:
        """Let go of the memory; views that were handed out keep it alive for as long as they live."""
        self._memory = None


class HostRunEvent(RunEvent):
    """The end of an inference of a `HostQueue`."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._outputs: list[NDArray[Any]] = []
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True when the inference has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> None:
        """Return when it has ended well; DeviceTimeoutError after `timeout_s`, else the error that it ended with."""
        if not self._ended.wait(timeout_s):
            raise DeviceTimeoutError(f"the inference has not ended after {timeout_s:g} s")
        if self._error is not None:
            raise self._error

    def outputs(self, timeout_s: float) -> list[NDArray[Any]]:
        """Wait and return the outputs, in the order of `Executable.outputs`; the caller owns them."""
        self.wait(timeout_s)
        return self._outputs

    def ended(self, timeout_s: float) -> bool:
        """Wait until it has ended, well or not, at most `timeout_s`; False when it has not."""
        return self._ended.wait(timeout_s)

    def end(self, outputs: Sequence[NDArray[Any]] = (), error: BaseException | None = None) -> None:
        """Called once by the queue."""
        self._outputs, self._error = list(outputs), error
        self._ended.set()


@dataclass(frozen=True, slots=True)
class _Job:
    executable: Executable
    inputs: list[NDArray[Any]]
    event: HostRunEvent


class HostQueue(Queue):
    """A thread that runs what is submitted, in order. At most `depth` inferences wait."""

    def __init__(self, device: str, depth: int = QUEUE_DEPTH) -> None:
        self.device = device
        self._depth = depth
        self._jobs: collections.deque[_Job] = collections.deque()
        self._last: HostRunEvent | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def run(self, executable: Executable, inputs: Sequence[NDArray[Any]]) -> HostRunEvent:
        """Submit one inference; when the queue is full, wait for a place.

        Raises:
            ValueError: wrong arrays, an executable of another device, or the queue is closed.
            DeviceBusyError: the queue stayed full for 30 s.
        """
        if executable.device != self.device:
            raise ValueError(f"an executable of {executable.device} on a queue of {self.device}")
        check_arrays(executable.inputs, inputs)
        job = _Job(executable, list(inputs), HostRunEvent())
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or len(self._jobs) < self._depth, SUBMIT_TIMEOUT_S):
                raise DeviceBusyError(f"{self.device}: {self._depth} inferences wait already")
            if self._closed:
                raise ValueError(f"the queue of {self.device} is closed")
            self._jobs.append(job)
            self._last = job.event
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"pyasc-queue-{self.device}", daemon=True)
                self._thread.start()
                # A thread that is inside of an engine when the interpreter goes would take the process down with it.
                atexit.register(self.close)
        return job.event

    def finish(self, timeout_s: float) -> None:
        """Wait for all that was submitted; DeviceTimeoutError when that takes longer. Errors stay with their events."""
        last = self._last
        if last is not None and not last.ended(timeout_s):
            raise DeviceTimeoutError(f"{self.device}: the queue has not finished after {timeout_s:g} s")

    def close(self) -> None:
        """End the thread after the inference that runs now; those that wait end with a DeviceError."""
        with self._changed:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in waiting:
            job.event.end(error=DeviceError(f"{self.device}: the queue was closed before this inference ran"))
        if self._thread is not None:
            atexit.unregister(self.close)
            self._thread.join(CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                _log.warning(
                    "%s: an inference still runs %g s after its queue was closed", self.device, CLOSE_TIMEOUT_S
                )

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                outputs = job.executable.run(job.inputs)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the event
                job.event.end(error=error)
            else:
                job.event.end(outputs)
                del outputs
            del job  # arrays and executable must not stay alive until the next inference

    def _next(self) -> _Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._jobs)
            if self._closed:
                return None
            job = self._jobs.popleft()
            self._changed.notify_all()
            return job
