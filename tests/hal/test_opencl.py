"""OpenCL on PoCL: events, mapping, errors with their codes. What all devices share is in test_conformance."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pyopencl as cl
import pytest

from pyasc.errors import DeviceError, DeviceTimeoutError, UnsupportedOperatorError
from pyasc.hal.base import Program
from pyasc.hal.drivers import opencl
from pyasc.hal.drivers.opencl import OpenclDevice, OpenclEvent


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenclDevice]:
    monkeypatch.setenv("PYASC_OPENCL_CPU", "1")
    with opencl.open_device("gpu0") as device:
        yield device


@pytest.fixture
def context() -> cl.Context:
    return cl.Context([cl.get_platforms()[0].get_devices()[0]])


def test_pocl_is_no_gpu_unless_it_is_allowed_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYASC_OPENCL_CPU", raising=False)
    found = opencl.discover()
    assert all("PoCL" not in info.model for info in found.devices)
    assert any("PoCL" in reason and "PYASC_OPENCL_CPU=1" in reason for reason in found.absent.values())
    monkeypatch.setenv("PYASC_OPENCL_CPU", "1")
    stand_in = opencl.discover().devices[-1]
    assert stand_in.simulated
    assert stand_in.model.startswith("PoCL ")
    assert not stand_in.executes
    assert (stand_in.family, stand_in.kind) == ("opencl", "gpu")
    assert stand_in.memory_bytes == cl.get_platforms()[-1].get_devices()[-1].global_mem_size


def test_without_a_driver_the_reason_says_what_to_install() -> None:
    code = "from pyasc.hal.drivers.opencl import discover; print(dict(discover().absent))"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={"OCL_ICD_VENDORS": "/nonexistent", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "no OpenCL driver is installed" in said
    assert "apt install pocl-opencl-icd" in said


def test_without_pyopencl_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    assert "pip install pyopencl" in opencl.discover().absent["gpu"]


def test_it_runs_no_models_and_says_so(gpu: OpenclDevice) -> None:
    with pytest.raises(UnsupportedOperatorError, match="runs no models on OpenCL"):
        gpu.load(Program("relu", "onnx", memoryview(b""), (), ()))
    assert gpu.formats() == ()


def test_transfers_of_a_queue_end_in_order(gpu: OpenclDevice) -> None:
    back = np.zeros(1 << 20, np.uint8)
    with gpu.allocate(1 << 20) as buffer, gpu.queue() as queue:
        events = [queue.write(buffer, np.full(1 << 20, number, np.uint8)) for number in range(8)]
        last = queue.read(buffer, back)
        last.wait(30)
        assert all(event.done for event in events)
        assert (back == 7).all()
        queue.finish(30)
        with pytest.raises(ValueError, match="does not fit"):
            queue.write(buffer, back, offset_bytes=1)
    with pytest.raises(ValueError, match="closed"):
        queue.write(buffer, back)


def test_an_event_times_out_and_ends_well_later(context: cl.Context) -> None:
    gate = cl.UserEvent(context)
    event = OpenclEvent("gpu0", gate)
    assert not event.done
    for timeout_s in (0, 0.01):
        with pytest.raises(DeviceTimeoutError):
            event.wait(timeout_s)
    gate.set_status(cl.command_execution_status.COMPLETE)
    event.wait(5)
    assert event.done


def test_an_event_that_failed_keeps_its_code(context: cl.Context) -> None:
    gate = cl.UserEvent(context)
    gate.set_status(-5)
    with pytest.raises(DeviceError, match="code -5") as caught:
        OpenclEvent("gpu0", gate).wait(5)
    assert caught.value.code == -5


def test_a_mapped_buffer_is_its_memory(gpu: OpenclDevice) -> None:
    with gpu.allocate(8) as buffer:
        buffer.write(bytes(range(8)))
        with buffer.map() as memory:
            assert memory.tolist() == list(range(8))
            assert not memory.flags.writeable
        with buffer.map(write=True) as memory:
            memory[2:4] = 99
        back = bytearray(8)
        buffer.read(back)
        assert back == bytes([0, 1, 99, 99, 4, 5, 6, 7])
    with pytest.raises(ValueError, match="closed"), buffer.map():
        pass


def test_a_vendor_code_is_kept(gpu: OpenclDevice) -> None:
    with gpu.allocate(8) as buffer, gpu.queue() as queue:
        foreign = cl.CommandQueue(cl.Context([cl.get_platforms()[0].get_devices()[0]]))
        with pytest.raises(DeviceError, match=r"clEnqueueWriteBuffer.*INVALID_CONTEXT") as caught:
            opencl.enqueue_write(foreign, buffer, bytes(8), 0)
        assert caught.value.code == -34  # CL_INVALID_CONTEXT
        queue.finish(5)
