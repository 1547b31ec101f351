"""`pyasc.create_buffer` and `pyasc.copy_to_device`."""

from __future__ import annotations

import array
import mmap
from typing import Any

import numpy as np
import pytest

import pyasc
from pyasc.errors import DeviceMemoryError, DeviceNotFoundError


def test_a_view_shares_memory_both_ways() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pyasc.create_buffer(data, view_only=True) as buffer:
        assert np.shares_memory(buffer.array, data)
        assert buffer.array.shape == (3, 4)
        assert buffer.array.dtype == np.float32
        assert buffer.size_bytes == 48
        assert buffer.device == "cpu"
        data[0, 0] = 7
        assert buffer.array[0, 0] == 7
        buffer.array[2, 3] = 9
        assert data[2, 3] == 9


def test_a_copy_does_not_share_memory() -> None:
    data = np.arange(12, dtype=np.uint8)
    with pyasc.create_buffer(data) as buffer:
        assert not np.shares_memory(buffer.array, data)
        data[0] = 99
        assert buffer.array[0] == 0
        buffer.array[1] = 77  # a copy can be written to, also of read-only data
    with pyasc.create_buffer(b"abc") as buffer:
        buffer.array[0] = 0
        assert buffer.array.tolist() == [0, 98, 99]


@pytest.mark.parametrize(
    "data",
    [
        bytearray(b"abcd"),
        memoryview(bytearray(b"abcd")),
        array.array("f", [1, 2]),
        np.array(5.0),
        np.zeros((2, 2), ">i4"),
        np.zeros(3, [("a", "u1"), ("b", "f8")]),
        mmap.mmap(-1, 16),
    ],
    ids=lambda data: type(data).__name__,
)
def test_every_buffer_can_be_viewed(data: Any) -> None:
    with pyasc.create_buffer(data, view_only=True) as buffer:
        assert np.shares_memory(
            buffer.array, np.asarray(memoryview(data)) if not isinstance(data, np.ndarray) else data
        )
        assert buffer.numpy().tobytes() == memoryview(data).tobytes()


def test_what_is_read_only_stays_read_only() -> None:
    frozen = np.arange(4)
    frozen.flags.writeable = False
    for data in (b"abcd", frozen):
        with pyasc.create_buffer(data, view_only=True) as buffer:
            assert not buffer.array.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                buffer.write(buffer.numpy())


@pytest.mark.parametrize("view_only", [True, False])
def test_what_has_no_memory_is_refused(view_only: bool) -> None:
    for data in ([1, 2], "text", None, np.array([None])):
        with pytest.raises(TypeError):
            pyasc.create_buffer(data, view_only=view_only)
    for data in (b"", np.zeros((0, 4))):
        with pytest.raises(ValueError, match="empty"):
            pyasc.create_buffer(data, view_only=view_only)


def test_memory_that_is_not_contiguous_is_copied_but_not_viewed() -> None:
    data = np.arange(12).reshape(3, 4)[:, ::2]
    with pytest.raises(ValueError, match="not C-contiguous"):
        pyasc.create_buffer(data, view_only=True)
    with pyasc.create_buffer(data) as buffer:
        np.testing.assert_array_equal(buffer.array, data)


def test_only_the_cpu_shares_memory() -> None:
    with pytest.raises(ValueError, match="copy_to_device"):
        pyasc.create_buffer(np.zeros(4), view_only=True, device="gpu0")


def test_write_wants_the_same_shape_and_dtype() -> None:
    with pyasc.create_buffer(np.zeros(4, np.float32)) as buffer:
        buffer.write(np.ones(4, np.float32))
        assert buffer.array.tolist() == [1] * 4
        for wrong in (np.zeros(5, np.float32), np.zeros(4), np.zeros((4, 1), np.float32)):
            with pytest.raises(ValueError, match="instead of"):
                buffer.write(wrong)


def test_a_closed_buffer_is_refused_and_closes_again() -> None:
    buffer = pyasc.create_buffer(np.zeros(4))
    buffer.close()
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        buffer.numpy()
    with pytest.raises(ValueError, match="closed"):
        _ = buffer.array


def test_a_frame_goes_to_the_cpu_and_back() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)[::-1]
    with pyasc.copy_to_device(frame, device="cpu") as there:
        assert not np.shares_memory(there.array, frame)
        np.testing.assert_array_equal(there.numpy(), frame)
        assert there.device == "cpu"


def test_a_frame_goes_to_an_opencl_device_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYASC_OPENCL_CPU", "1")
    frame = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    with pyasc.copy_to_device(frame, device="gpu0") as gpu:
        assert gpu.device == "gpu0"
        assert gpu.size_bytes == frame.nbytes
        np.testing.assert_array_equal(gpu.numpy(), frame)
        with pytest.raises(TypeError, match=r"numpy\(\)"):
            _ = gpu.array
        gpu.write(frame[::-1].copy())
        np.testing.assert_array_equal(gpu.numpy(), frame[::-1])
    with pytest.raises(ValueError, match="closed"):
        gpu.numpy()
    with pyasc.create_buffer(frame, device="gpu") as gpu:
        np.testing.assert_array_equal(gpu.numpy(), frame)


def test_a_device_that_is_not_there_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nonexistent")
    with pytest.raises(DeviceNotFoundError, match="gpu7"):
        pyasc.copy_to_device(np.zeros(4), device="gpu7")


def test_a_single_number_keeps_its_shape() -> None:
    for put in (pyasc.create_buffer, lambda data: pyasc.copy_to_device(data, "cpu")):
        with put(np.array(3.5)) as buffer:
            assert buffer.shape == ()
            assert buffer.numpy() == 3.5


def test_more_memory_than_there_is_is_a_memory_error() -> None:
    endless = np.broadcast_to(np.zeros(1, np.uint8), (1 << 46,))
    with pytest.raises(DeviceMemoryError, match=str(1 << 46)):
        pyasc.create_buffer(endless)
