"""What every device has to do, whatever drives it. A new driver is one more `Target`; it is tested where it runs."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from pyasc.errors import (
    ConfigError,
    DeviceError,
    DeviceMemoryError,
    DeviceNotFoundError,
    DeviceTimeoutError,
    ModelFormatError,
    UnsupportedOperatorError,
)
from pyasc.hal.base import Device, Executable, Program, TensorInfo
from pyasc.hal.drivers import opencl
from pyasc.hal.drivers.cpu import engine_statuses
from pyasc.hal.registry import discover_devices, open_device

MakeProgram = Callable[[str, str], Program]


@dataclasses.dataclass(frozen=True)
class Target:
    """A device as the suite opens it.

    Attributes:
        name: of the device.
        environment: variables that are set for it.
        format: of the programs that it gets; None where it runs none.
        takes_batch: whether two rows of `mixing` and `relu` can be told apart.
    """

    name: str
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    format: str | None = None


def _targets() -> dict[str, Target]:
    targets = {
        f"cpu-{engine.name}": Target("cpu", {"PYASC_CPU_ENGINE": engine.name}, engine.formats[0])
        for engine in engine_statuses()
        if engine.version is not None
    }
    with mock.patch.dict(os.environ, {opencl.CPU_VARIABLE: "1"}):
        for info in opencl.discover().devices:
            targets[f"opencl-{info.name}"] = Target(info.name, {opencl.CPU_VARIABLE: "1"})
    return targets


_TARGETS = _targets()


@pytest.fixture(params=_TARGETS.values(), ids=_TARGETS.keys())
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    chosen: Target = request.param
    for name, value in chosen.environment.items():
        monkeypatch.setenv(name, value)
    return chosen


@pytest.fixture
def device(target: Target) -> Iterator[Device]:
    with open_device(target.name) as opened:
        yield opened


@pytest.fixture(
    params=[target for target in _TARGETS.values() if target.format],
    ids=[name for name, target in _TARGETS.items() if target.format],
)
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target that runs models."""
    chosen: Target = request.param
    for name, value in chosen.environment.items():
        monkeypatch.setenv(name, value)
    return chosen


@pytest.fixture
def load(runner: Target, program: MakeProgram) -> Iterator[Callable[..., Executable]]:
    """`load("relu", threads=1)`: a model of tests/golden on the runner, closed at the end."""
    loaded: list[Executable] = []
    assert runner.format is not None
    with open_device(runner.name) as opened:

        def load_golden(name: str, **options: Any) -> Executable:
            assert runner.format is not None
            loaded.append(opened.load(program(name, runner.format), **options))
            return loaded[-1]

        yield load_golden
        for executable in loaded:
            executable.close()


def _row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


# --- the device itself


def test_the_suite_runs_every_format() -> None:
    assert {target.format for target in _TARGETS.values()} >= {"tflite", "onnx"}


def test_it_is_discovered_and_opened_under_its_name(target: Target) -> None:
    info = discover_devices().find(target.name)
    with open_device(target.name) as device:
        assert device.info == info
        assert device.info.name == target.name
        assert device.info.executes is (target.format is not None)
        assert device.info.memory_bytes
        assert device.info.cores
        assert "fp32" in device.info.precisions
        assert device.formats() == ((target.format,) if target.format else ())


def test_closing_twice_is_fine_and_use_after_it_is_refused(target: Target, program: MakeProgram) -> None:
    device = open_device(target.name)
    device.close()
    device.close()
    for use in (
        device.formats,
        lambda: device.allocate(1),
        device.queue,
        lambda: device.load(program("relu", "tflite")),
        device.telemetry,
    ):
        with pytest.raises(ValueError, match=f"device {target.name} is closed"):
            use()


def test_telemetry_has_every_figure_or_says_that_it_is_not_known(device: Device) -> None:
    measured = device.telemetry()
    for name in ("memory_used_bytes", "memory_free_bytes", "temperature_c", "power_w", "load"):
        value = measured[name]
        assert value is None or (isinstance(value, int | float) and math.isfinite(value) and value >= 0)
    if measured["load"] is not None:
        assert 0 <= float(measured["load"]) <= 1


# --- memory


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "float32", ">i4", "complex64", "datetime64[s]"])
def test_a_buffer_gives_back_what_was_written(device: Device, dtype: str) -> None:
    data = np.arange(60).astype("i8").astype(dtype).reshape(3, 4, 5)
    back = np.zeros_like(data)
    with device.allocate(data.nbytes) as buffer:
        assert buffer.size_bytes == data.nbytes
        assert buffer.device == device.info.name
        buffer.write(data)
        buffer.read(back)
    assert back.tobytes() == data.tobytes()


def test_a_part_of_a_buffer_is_written_and_read_at_its_offset(device: Device) -> None:
    with device.allocate(10) as buffer:
        buffer.write(bytes(range(10)))
        buffer.write(b"\xff\xfe", offset_bytes=3)
        back = bytearray(4)
        buffer.read(back, offset_bytes=2)
        assert back == bytes([2, 0xFF, 0xFE, 5])
        buffer.write(b"\x09", offset_bytes=9)
        buffer.write(b"", offset_bytes=10)
        last = bytearray(1)
        buffer.read(last, offset_bytes=9)
        assert last == b"\x09"


@pytest.mark.parametrize(("size", "offset"), [(11, 0), (1, 10), (2, 9), (1, -1), (10, 1), (1, 1 << 70)])
def test_nothing_is_written_or_read_outside_of_a_buffer(device: Device, size: int, offset: int) -> None:
    with device.allocate(10) as buffer:
        buffer.write(bytes(10))
        with pytest.raises(ValueError, match="does not fit in a buffer of 10 bytes"):
            buffer.write(b"\x01" * size, offset_bytes=offset)
        with pytest.raises(ValueError, match="does not fit in a buffer of 10 bytes"):
            buffer.read(bytearray(size), offset_bytes=offset)
        back = bytearray(10)
        buffer.read(back)
        assert back == bytes(10)


def test_a_buffer_refuses_what_is_no_plain_memory(device: Device) -> None:
    with device.allocate(100) as buffer:
        with pytest.raises(ValueError, match="not C-contiguous"):
            buffer.write(np.zeros((4, 4), np.uint8)[:, ::2])
        with pytest.raises(ValueError, match="not C-contiguous"):
            buffer.read(np.zeros((4, 4), np.uint8).T[1:])
        with pytest.raises(ValueError, match="read-only"):
            buffer.read(bytes(4))
        with pytest.raises(TypeError):
            buffer.write("text")


@pytest.mark.parametrize("size", [0, -1])
def test_a_buffer_has_at_least_one_byte(device: Device, size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        device.allocate(size)


@pytest.mark.parametrize("size", [1 << 50, 1 << 62, 1 << 80])
def test_more_memory_than_there_is_is_a_memory_error(device: Device, size: int) -> None:
    with pytest.raises(DeviceMemoryError, match=str(size)):
        device.allocate(size)


def test_a_closed_buffer_is_refused(device: Device) -> None:
    buffer = device.allocate(4)
    buffer.close()
    buffer.close()
    for use in (lambda: buffer.write(b"1"), lambda: buffer.read(bytearray(1)), buffer.view):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_view_is_the_memory_itself_or_none(device: Device) -> None:
    with device.allocate(4) as buffer:
        buffer.write(b"abcd")
        view = buffer.view()
        if view is not None:
            view[1] = ord("X")
            back = bytearray(4)
            buffer.read(back)
            assert back == b"aXcd"


# --- loading


def test_an_unknown_option_is_named_with_the_known_ones(runner: Target, load: Callable[..., Executable]) -> None:
    with pytest.raises(ConfigError, match=r"cores: unknown option .* threads") as caught:
        load("relu", cores=2)
    assert [fault.path for fault in caught.value.faults] == ["cores"]


def test_a_format_that_it_does_not_take_is_refused(device: Device, program: MakeProgram) -> None:
    foreign = dataclasses.replace(program("relu", "tflite"), format="wk")
    with pytest.raises((UnsupportedOperatorError, ConfigError), match=r"wk|runs no models"):
        device.load(foreign)


def test_an_operator_that_it_does_not_know_is_named(load: Callable[..., Executable]) -> None:
    with pytest.raises(UnsupportedOperatorError, match="PyascNoSuchOperator"):
        load("custom")


@pytest.mark.parametrize("keep", [0, 7, 50, 100])
def test_a_truncated_model_is_refused(runner: Target, program: MakeProgram, keep: int) -> None:
    assert runner.format is not None
    whole = program("relu", runner.format)
    with open_device(runner.name) as device, pytest.raises(ModelFormatError, match="relu"):
        device.load(dataclasses.replace(whole, data=whole.data[:keep]))


@pytest.mark.parametrize(
    "wrong",
    [
        TensorInfo("other", (1, 4), "float32"),
        TensorInfo("x", (1, 5), "float32"),
        TensorInfo("x", (4,), "float32"),
        TensorInfo("x", (1, 4), "uint8"),
    ],
)
def test_a_model_that_is_not_what_its_tables_promise_is_refused(
    runner: Target, program: MakeProgram, wrong: TensorInfo
) -> None:
    assert runner.format is not None
    whole = program("relu", runner.format)
    lies = (
        dataclasses.replace(whole, inputs=(wrong,)),
        dataclasses.replace(whole, outputs=(dataclasses.replace(wrong, name="y" if wrong.name == "x" else "other"),)),
        dataclasses.replace(whole, inputs=(*whole.inputs, wrong)),
        dataclasses.replace(whole, outputs=()),
    )
    with open_device(runner.name) as device:
        for lie in lies:
            with pytest.raises(ModelFormatError, match="the manifest promises"):
                device.load(lie)


# --- running


def test_it_computes(load: Callable[..., Executable]) -> None:
    executable = load("two_heads")
    random = np.random.default_rng(1)
    picture, bias = (random.random((1, 8, 8, 3), np.float32) for _ in range(2))
    total, flat = executable.run([picture, bias])
    np.testing.assert_array_equal(total, picture + bias)
    np.testing.assert_array_equal(flat, (picture + bias).reshape(1, 192))
    assert [tensor.name for tensor in executable.inputs] == ["picture", "bias"]
    assert [tensor.name for tensor in executable.outputs] == ["sum", "flat"]


def test_inputs_and_outputs_come_in_the_order_of_the_program(runner: Target, program: MakeProgram) -> None:
    assert runner.format is not None
    whole = program("two_heads", runner.format)
    turned = dataclasses.replace(whole, outputs=whole.outputs[::-1], inputs=whole.inputs[::-1])
    with open_device(runner.name) as device, device.load(turned) as executable:
        flat, total = executable.run([np.ones((1, 8, 8, 3), np.float32), np.zeros((1, 8, 8, 3), np.float32)])
    assert flat.shape == (1, 192)
    assert total.shape == (1, 8, 8, 3)


def test_outputs_belong_to_the_caller(load: Callable[..., Executable]) -> None:
    executable = load("relu")
    first = executable.run([_row(1, 2, 3, 4)])[0]
    second = executable.run([_row(5, 6, 7, 8)])[0]
    assert first.tolist() == [[1, 2, 3, 4]]
    first[:] = 0
    assert second.tolist() == [[5, 6, 7, 8]]
    executable.close()
    assert second.tolist() == [[5, 6, 7, 8]]


def test_inputs_and_outputs_in_place(load: Callable[..., Executable]) -> None:
    executable = load("two_heads")

    def write(inputs: list[Any], *values: float) -> None:
        assert [array.shape for array in inputs] == [(1, 8, 8, 3)] * 2
        assert [array.dtype for array in inputs] == [np.float32] * 2
        for array, value in zip(inputs, values, strict=True):
            assert array.flags.c_contiguous
            array[...] = value

    def read(outputs: list[Any]) -> tuple[tuple[int, ...], float, float]:
        total, flat = outputs
        return flat.shape, float(total.sum()), float(flat[0, 5])

    for _ in range(3):
        assert executable.run_in_place(lambda inputs: write(inputs, 1, 2), read) == ((1, 192), 3.0 * 192, 3.0)


@pytest.mark.parametrize("mistake", [RuntimeError, KeyboardInterrupt])
def test_what_the_caller_raises_in_place_reaches_it_and_may_be_kept(
    load: Callable[..., Executable], mistake: type[BaseException]
) -> None:
    executable = load("relu")

    def fail(arrays: list[Any]) -> None:
        first = arrays[0]
        try:
            first.reshape(7)
        except ValueError as error:
            raise mistake("mine") from error

    kept = []
    for write, read in ((fail, len), (lambda inputs: None, fail)):
        with pytest.raises(mistake, match="mine") as caught:
            executable.run_in_place(write, read)
        kept.append(caught.value)
        assert executable.run([_row(-1, 2, 3, 4)])[0].tolist() == [[0, 2, 3, 4]]
        assert executable.run_in_place(lambda inputs: None, lambda outputs: outputs[0].shape) == (1, 4)
    assert all(error.__traceback__ for error in kept)


def test_nan_and_infinity_pass_through(load: Callable[..., Executable]) -> None:
    picture = np.full((1, 8, 8, 3), np.nan, np.float32)
    picture[0, 0, 0] = (np.inf, -np.inf, 1)
    total = load("two_heads").run([picture, np.ones_like(picture)])[0]
    np.testing.assert_array_equal(total, picture + 1)


def test_wrong_arrays_are_refused(load: Callable[..., Executable]) -> None:
    executable = load("relu")
    good = _row(1, 2, 3, 4)
    for arrays in (
        [],
        [good, good],
        [good[0]],
        [good.astype(np.float64)],
        [good.astype(">f4")],
        [np.zeros((1, 8), np.float32)[:, ::2]],
    ):
        with pytest.raises(ValueError, match=r"input x|arrays for 1 inputs"):
            executable.run(arrays)
    assert executable.run([good])[0].tolist() == good.tolist()


def test_a_closed_executable_is_refused(load: Callable[..., Executable]) -> None:
    executable = load("relu")
    executable.close()
    executable.close()
    with pytest.raises(ValueError, match="closed"):
        executable.run([_row(1, 2, 3, 4)])
    with pytest.raises(ValueError, match="closed"):
        executable.run_in_place(lambda inputs: None, len)


def test_an_executable_outlives_its_device(runner: Target, program: MakeProgram) -> None:
    assert runner.format is not None
    with open_device(runner.name) as device:
        executable = device.load(program("relu", runner.format))
    with executable:
        assert executable.run([_row(-1, 2, -3, 4)])[0].tolist() == [[0, 2, 0, 4]]


def test_two_threads_get_their_own_results(load: Callable[..., Executable]) -> None:
    executable = load("relu")
    wrong: list[object] = []

    def work(number: int) -> None:
        expected = np.full((1, 4), number, np.float32)
        for _ in range(100):
            result = executable.run([expected])[0]
            if not (result == expected).all():
                wrong.append((number, result))

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


def test_who_waits_for_another_threads_run_times_out(
    load: Callable[..., Executable], wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    executable = load("convs", threads=1)
    array = np.zeros(executable.inputs[0].shape, np.float32)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            executable.run([array])

    def times_out() -> bool:
        try:
            executable.run([array], timeout_s=0)
        except DeviceTimeoutError:
            return True
        return False

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(times_out)
    finally:
        stop.set()
        thread.join(60)


# --- queues


def test_a_queue_runs_in_order(load: Callable[..., Executable], runner: Target) -> None:
    executable = load("relu")
    with open_device(runner.name) as device, device.queue() as queue:
        events = [queue.run(executable, [np.full((1, 4), number, np.float32)]) for number in range(50)]
        events[-1].wait(30)
        assert all(event.done for event in events)
        queue.finish(30)
        for number, event in enumerate(events):
            assert event.outputs(0)[0].tolist() == [[number] * 4]


def test_waiting_for_an_event_times_out_and_can_be_repeated(load: Callable[..., Executable], runner: Target) -> None:
    executable = load("convs", threads=1)
    array = np.ones(executable.inputs[0].shape, np.float32)
    with open_device(runner.name) as device, device.queue() as queue:
        events = [queue.run(executable, [array]) for _ in range(4)]
        with pytest.raises(DeviceTimeoutError):
            events[-1].wait(0)
        with pytest.raises(DeviceTimeoutError):
            queue.finish(0)
        assert not events[-1].done
        events[-1].wait(60)
        assert events[-1].done
        # In the middle of the picture each convolution of ones with a kernel that sums to one gives ones.
        np.testing.assert_allclose(
            events[-1].outputs(0)[0][0, 12:-12, 128, :] if runner.format == "tflite" else 1, 1, rtol=1e-5
        )


def test_an_error_stays_with_its_event(load: Callable[..., Executable], runner: Target) -> None:
    broken, good = load("relu"), load("relu")
    broken.close()
    with open_device(runner.name) as device, device.queue() as queue:
        bad = queue.run(broken, [_row(1, 2, 3, 4)])
        fine = queue.run(good, [_row(1, 2, 3, 4)])
        queue.finish(30)
        assert bad.done
        with pytest.raises(ValueError, match="closed"):
            bad.wait(0)
        with pytest.raises(ValueError, match="closed"):
            bad.outputs(0)
        assert fine.outputs(0)[0].tolist() == [[1, 2, 3, 4]]


def test_wrong_arrays_are_refused_when_they_are_submitted(load: Callable[..., Executable], runner: Target) -> None:
    executable = load("relu")
    with open_device(runner.name) as device, device.queue() as queue, pytest.raises(ValueError, match="arrays for"):
        queue.run(executable, [])


def test_closing_a_queue_ends_what_waits(load: Callable[..., Executable], runner: Target) -> None:
    executable = load("convs", threads=1)
    array = np.zeros(executable.inputs[0].shape, np.float32)
    with open_device(runner.name) as device:
        queue = device.queue()
        events = [queue.run(executable, [array]) for _ in range(8)]
        queue.close()
        queue.close()
        assert all(event.done for event in events)
        with pytest.raises(DeviceError, match="closed before"):
            events[-1].wait(0)
        with pytest.raises(ValueError, match="closed"):
            queue.run(executable, [array])


def test_an_idle_queue_finishes_and_closes_at_once(device: Device) -> None:
    with device.queue() as queue:
        queue.finish(5)


# --- resources


def _open_files_and_threads() -> tuple[int, int]:
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


def test_200_rounds_leave_no_file_and_no_thread(
    target: Target, program: MakeProgram, wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    def once() -> None:
        with open_device(target.name) as device, device.allocate(64) as buffer, device.queue() as queue:
            buffer.write(bytes(64))
            if target.format is not None:
                with device.load(program("relu", target.format)) as executable:
                    queue.run(executable, [_row(1, 2, 3, 4)]).wait(30)
            queue.finish(30)

    for _ in range(3):  # pools that a library keeps for the process are there then
        once()
    files, threads = _open_files_and_threads()
    for _ in range(200):
        once()

    def none_left() -> bool:
        now = _open_files_and_threads()
        return now[0] <= files and now[1] <= threads

    wait_until(none_left)


def test_a_device_that_is_not_there_is_not_opened(target: Target) -> None:
    with pytest.raises(DeviceNotFoundError, match=target.name):
        open_device("no-such-device")
