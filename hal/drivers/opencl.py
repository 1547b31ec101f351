"""OpenCL devices: memory, transfers and events. Running models on them is not in this version, and `DeviceInfo.executes` says so.

Devices of the type GPU are `gpu0`, `gpu1` … in the order of the platforms. An OpenCL that computes on the CPU, such as PoCL, is
no GPU and is left out, unless PYASC_OPENCL_CPU=1 lets it stand in for one (for tests); it is then called simulated.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyasc.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceNotFoundError,
    DeviceTimeoutError,
    UnsupportedOperatorError,
)
from pyasc.hal.base import Buffer, Device, DeviceInfo, Discovery, Event, Executable, Program, Queue, RunEvent
from pyasc.hal.host import as_bytes, check_range

if TYPE_CHECKING:
    from numpy.typing import NDArray

CPU_VARIABLE = "PYASC_OPENCL_CPU"
TRANSFER_TIMEOUT_S = 30.0
_REMEDY = "install the vendor's OpenCL driver, or `apt install pocl-opencl-icd` to try OpenCL on the CPU"

# CL/cl.h and cl_ext.h
_PLATFORM_NOT_FOUND_KHR = -1001
_DEVICE_NOT_AVAILABLE = -2
_MEMORY_CODES = (-4, -5, -6, -61)  # allocation failure, out of resources, out of host memory, invalid buffer size
_MAP_FAILURE = -12
_COMPLETE = 0


def discover() -> Discovery:
    """The OpenCL devices that are GPUs, or why there are none."""
    try:
        import pyopencl as cl
    except ImportError as error:
        return Discovery(absent={"gpu": f"pyopencl cannot be imported: {error}; pip install pyopencl, and {_REMEDY}"})
    try:
        found = _opencl_devices(cl)
    except cl.Error as error:
        if error.code == _PLATFORM_NOT_FOUND_KHR:
            return Discovery(absent={"gpu": f"no OpenCL driver is installed: {_REMEDY}"})
        return Discovery(absent={"gpu": f"OpenCL failed: {error}"})
    devices = tuple(_info(cl, f"gpu{number}", device) for number, device in enumerate(_taking_part(cl, found)))
    stand_ins = [device for device in found if not device.type & cl.device_type.GPU and not _stand_in(cl, device)]
    if not stand_ins:
        return Discovery(devices, {} if devices else {"gpu": f"OpenCL has no device: {_REMEDY}"})
    names = ", ".join(_model(device) for device in stand_ins)
    reason = f"OpenCL has {names}, which is no GPU; {CPU_VARIABLE}=1 lets OpenCL on the CPU stand in for one"
    return Discovery(devices, {"opencl-cpu" if devices else "gpu": reason})


def open_device(name: str) -> OpenclDevice:
    """Open one of the devices that `discover` names."""
    import pyopencl as cl

    with _errors("looking for devices"):
        devices = _taking_part(cl, _opencl_devices(cl))
    for number, device in enumerate(devices):
        if name == f"gpu{number}":
            return OpenclDevice(_info(cl, name, device), device)
    raise DeviceNotFoundError(f"OpenCL has no device {name!r}")


class OpenclDevice(Device):
    """A device with a context and a command queue of its own."""

    def __init__(self, info: DeviceInfo, device: Any) -> None:
        import pyopencl as cl

        self.info = info
        with _errors(f"{info.name}: clCreateContext"):
            self._context: Any = cl.Context([device])
        self._max_allocation = int(device.max_mem_alloc_size)

    def formats(self, **options: Any) -> tuple[str, ...]:
        """None: models do not run on OpenCL in this version."""
        self._open_context()
        return ()

    def allocate(self, size_bytes: int) -> OpenclBuffer:
        """Device memory, not initialised; ValueError for a size below 1, DeviceMemoryError when there is not enough."""
        context = self._open_context()
        if size_bytes < 1:
            raise ValueError(f"a buffer of {size_bytes} bytes: the size has to be at least 1")
        if size_bytes > self._max_allocation:
            limit = f"the device's limit of {self._max_allocation} for one allocation"
            raise DeviceMemoryError(f"{self.info.name}: {size_bytes} bytes are over {limit}")
        return OpenclBuffer(self.info.name, context, size_bytes)

    def queue(self) -> OpenclQueue:
        """A new command queue."""
        return OpenclQueue(self.info.name, self._open_context())

    def load(self, program: Program, **options: Any) -> Executable:
        """Refused with UnsupportedOperatorError: this version runs no models on OpenCL."""
        self._open_context()
        raise UnsupportedOperatorError(_no_models(self.info.name, program.name))

    def telemetry(self) -> dict[str, float | int | str | None]:
        """OpenCL tells nothing of what a device does now: all values are None."""
        self._open_context()
        return dict.fromkeys(("memory_used_bytes", "memory_free_bytes", "temperature_c", "power_w", "load"))

    def close(self) -> None:
        """Let go of the context; it ends with the last buffer and queue made in it."""
        self._context = None

    def _open_context(self) -> Any:
        if self._context is None:
            raise ValueError(f"the device {self.info.name} is closed")
        return self._context


class OpenclBuffer(Buffer):
    """A buffer object with a queue for its own transfers. Not for use by several threads at once."""

    def __init__(self, device: str, context: Any, size_bytes: int) -> None:
        import pyopencl as cl

        self.device = device
        self.size_bytes = size_bytes
        with _errors(f"{device}: clCreateBuffer of {size_bytes} bytes"):
            self._memory: Any = cl.Buffer(context, cl.mem_flags.READ_WRITE, size_bytes)
            self._queue = cl.CommandQueue(context)

    def memory(self) -> Any:
        """The `pyopencl.Buffer`; ValueError when this buffer is closed."""
        if self._memory is None:
            raise ValueError(f"the buffer of {self.device} is closed")
        return self._memory

    def write(self, data: Any, offset_bytes: int = 0) -> None:
        """Copy from any C-contiguous buffer; ValueError when it does not fit."""
        enqueue_write(self._queue, self, data, offset_bytes).wait(TRANSFER_TIMEOUT_S)

    def read(self, into: Any, offset_bytes: int = 0) -> None:
        """Copy to a writable C-contiguous buffer; ValueError when it asks for more than there is."""
        enqueue_read(self._queue, self, into, offset_bytes).wait(TRANSFER_TIMEOUT_S)

    def view(self) -> None:
        """None: the host reaches the memory only while it is mapped, see `map`."""
        self.memory()

    @contextlib.contextmanager
    def map(self, *, write: bool = False) -> Iterator[NDArray[Any]]:
        """The memory in the host's address space, (size_bytes,) uint8, for as long as the `with` block lasts."""
        import numpy as np
        import pyopencl as cl

        flags = cl.map_flags.READ | (cl.map_flags.WRITE if write else 0)
        with _errors(f"{self.device}: clEnqueueMapBuffer"):
            array, event = cl.enqueue_map_buffer(
                self._queue, self.memory(), flags, 0, self.size_bytes, np.uint8, is_blocking=False
            )
        OpenclEvent(self.device, event).wait(TRANSFER_TIMEOUT_S)
        if not write:
            array.flags.writeable = False
        try:
            yield array
        finally:
            with _errors(f"{self.device}: clEnqueueUnmapMemObject"):
                OpenclEvent(self.device, array.base.release(self._queue)).wait(TRANSFER_TIMEOUT_S)

    def close(self) -> None:
        """Release the memory object."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.release()


class OpenclQueue(Queue):
    """An in-order command queue for transfers that the caller does not wait for."""

    def __init__(self, device: str, context: Any) -> None:
        import pyopencl as cl

        self.device = device
        with _errors(f"{device}: clCreateCommandQueue"):
            self._queue: Any = cl.CommandQueue(context)

    def run(self, executable: Executable, inputs: Sequence[NDArray[Any]]) -> RunEvent:
        """Refused with UnsupportedOperatorError: this version runs no models on OpenCL."""
        self._open_queue()
        raise UnsupportedOperatorError(_no_models(self.device, "the executable"))

    def write(self, buffer: OpenclBuffer, data: Any, offset_bytes: int = 0) -> OpenclEvent:
        """Copy from any C-contiguous buffer, which must stay unchanged until the event is done."""
        return enqueue_write(self._open_queue(), buffer, data, offset_bytes)

    def read(self, buffer: OpenclBuffer, into: Any, offset_bytes: int = 0) -> OpenclEvent:
        """Copy to a writable C-contiguous buffer, complete when the event is done."""
        return enqueue_read(self._open_queue(), buffer, into, offset_bytes)

    def finish(self, timeout_s: float) -> None:
        """Wait for all that was submitted; DeviceTimeoutError when that takes longer."""
        import pyopencl as cl

        with _errors(f"{self.device}: clEnqueueMarker"):
            marker = cl.enqueue_marker(self._open_queue())
            self._queue.flush()
        OpenclEvent(self.device, marker).wait(timeout_s)

    def close(self) -> None:
        """Let go of the queue; what was submitted goes on to its end."""
        self._queue = None

    def _open_queue(self) -> Any:
        if self._queue is None:
            raise ValueError(f"the queue of {self.device} is closed")
        return self._queue


class OpenclEvent(Event):
    """The end of a command."""

    def __init__(self, device: str, event: Any) -> None:
        self._device = device
        self._event = event

    @property
    def done(self) -> bool:
        """True when the command has ended, well or not."""
        return bool(self._event.command_execution_status <= _COMPLETE)

    def wait(self, timeout_s: float) -> None:
        """Return when it has ended well; DeviceTimeoutError after `timeout_s`, else the error that it ended with.

        OpenCL waits without a limit of time, so the status is asked for, ever more seldom, up to each millisecond.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = 20e-6
        while (status := self._event.command_execution_status) > _COMPLETE:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise DeviceTimeoutError(f"{self._device}: the command has not ended after {timeout_s:g} s")
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, 1e-3)
        if status < _COMPLETE:
            raise DeviceError(f"{self._device}: the command failed (code {status})", status)


def enqueue_write(queue: Any, buffer: OpenclBuffer, data: Any, offset_bytes: int) -> OpenclEvent:
    """Start a copy to the device."""
    import pyopencl as cl

    memory, source = buffer.memory(), as_bytes(data)
    check_range(source.nbytes, offset_bytes, buffer.size_bytes, "a write")
    with _errors(f"{buffer.device}: clEnqueueWriteBuffer"):
        event = cl.enqueue_copy(queue, memory, source, dst_offset=offset_bytes, is_blocking=False)
        queue.flush()
    return OpenclEvent(buffer.device, event)


def enqueue_read(queue: Any, buffer: OpenclBuffer, into: Any, offset_bytes: int) -> OpenclEvent:
    """Start a copy from the device."""
    import pyopencl as cl

    memory, target = buffer.memory(), as_bytes(into, writable=True)
    check_range(target.nbytes, offset_bytes, buffer.size_bytes, "a read")
    with _errors(f"{buffer.device}: clEnqueueReadBuffer"):
        event = cl.enqueue_copy(queue, target, memory, src_offset=offset_bytes, is_blocking=False)
        queue.flush()
    return OpenclEvent(buffer.device, event)


def _opencl_devices(cl: Any) -> list[Any]:
    return [device for platform in cl.get_platforms() for device in platform.get_devices()]


def _taking_part(cl: Any, devices: Sequence[Any]) -> list[Any]:
    gpus = [device for device in devices if device.type & cl.device_type.GPU]
    return gpus + [device for device in devices if _stand_in(cl, device)]


def _stand_in(cl: Any, device: Any) -> bool:
    """A device of the type CPU that the environment allows to play a GPU."""
    is_cpu = device.type & cl.device_type.CPU and not device.type & cl.device_type.GPU
    return bool(is_cpu and os.environ.get(CPU_VARIABLE) == "1")


def _info(cl: Any, name: str, device: Any) -> DeviceInfo:
    precisions = ("fp32", "fp16", "int8") if "cl_khr_fp16" in device.extensions.split() else ("fp32", "int8")
    return DeviceInfo(
        name=name,
        family="opencl",
        kind="gpu",
        vendor=device.vendor.strip(),
        model=_model(device),
        driver=f"{device.platform.name.strip()}, {device.version.strip()}, driver {device.driver_version.strip()}",
        precisions=precisions,
        memory_bytes=int(device.global_mem_size),
        cores=int(device.max_compute_units),
        link="host" if device.host_unified_memory else "pcie",
        simulated=_stand_in(cl, device),
        executes=False,
    )


def _model(device: Any) -> str:
    platform = "PoCL " if device.platform.name.startswith("Portable Computing Language") else ""
    return f"{platform}{device.name.strip()}"


def _no_models(device: str, name: str) -> str:
    return f"{device} cannot run {name}: this version runs no models on OpenCL, use the device cpu"


@contextlib.contextmanager
def _errors(call: str) -> Iterator[None]:
    """The one place where OpenCL's codes become exceptions."""
    import pyopencl as cl

    try:
        yield
    except cl.Error as error:
        _raise(call, error)


def _raise(call: str, error: Any) -> NoReturn:
    code = int(error.code)
    text = f"{call}: {error} (code {code})"
    if code in (*_MEMORY_CODES, _MAP_FAILURE):
        raise DeviceMemoryError(text, code) from error
    if code == _DEVICE_NOT_AVAILABLE:
        raise DeviceLostError(text, code) from error
    raise DeviceError(text, code) from error
