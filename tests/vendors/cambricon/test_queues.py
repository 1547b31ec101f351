"""Queues, notifiers and the faults that the simulated card is told to have."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

SIZES = [864, 20]


@pytest.fixture
def picture(small: Any) -> Any:
    return small.pictures[0].transpose(1, 2, 0)


@pytest.fixture
def notifiers(cnrt: Any) -> Iterator[Any]:
    """Two of them."""
    made = cnrt.ffi.new("cnrtNotifier_t[2]")
    for index in range(2):
        cnrt.ok(cnrt.cnrt.cnrtCreateNotifier(made + index))
    yield made
    for index in range(2):
        cnrt.ok(cnrt.cnrt.cnrtDestroyNotifier(made + index))  # the address of the handle


def duration(cnrt: Any, notifiers: Any) -> tuple[int, float]:
    found = cnrt.ffi.new("float *")
    return cnrt.cnrt.cnrtNotifierDuration(notifiers[0], notifiers[1], found), found[0]


def test_a_queue_is_not_ready_and_a_notifier_busy(
    cnrt: Any, small: Any, open_model: Any, control: Any, notifiers: Any, picture: Any
) -> None:
    opened, lib = open_model(small.build()), cnrt.cnrt
    cnrt.ok(lib.cnrtQueryNotifier(notifiers[1]))
    cnrt.ok(lib.cnrtWaitNotifier(notifiers[1]))  # never placed: nothing to wait for
    assert cnrt.name(duration(cnrt, notifiers)[0]) == "CNRT_RET_ERR_CNDRV_FUNC_CALL"
    control(hang=1)
    cnrt.ok(lib.cnrtPlaceNotifier(notifiers[0], opened.queue[0]))
    cnrt.ok(opened.invoke(picture, SIZES)[0])
    cnrt.ok(lib.cnrtPlaceNotifier(notifiers[1], opened.queue[0]))
    assert cnrt.name(lib.cnrtQueryQueue(opened.queue[0])) == "CNRT_RET_ERR_NOT_READY"
    assert cnrt.name(lib.cnrtQueryNotifier(notifiers[1])) == "CNRT_RET_ERR_BUSY"
    control()
    cnrt.ok(lib.cnrtWaitNotifier(notifiers[1]))
    cnrt.ok(lib.cnrtSyncQueue(opened.queue[0]))
    cnrt.ok(lib.cnrtQueryQueue(opened.queue[0]))
    cnrt.ok(lib.cnrtQueryNotifier(notifiers[1]))


def timed_run(cnrt: Any, opened: Any, notifiers: Any, picture: Any, sizes: list[int] = SIZES) -> float:
    cnrt.ok(cnrt.cnrt.cnrtPlaceNotifier(notifiers[0], opened.queue[0]))
    cnrt.ok(opened.invoke(picture, sizes)[0])
    cnrt.ok(cnrt.cnrt.cnrtPlaceNotifier(notifiers[1], opened.queue[0]))
    cnrt.ok(cnrt.cnrt.cnrtSyncQueue(opened.queue[0]))
    status, found = duration(cnrt, notifiers)
    cnrt.ok(status)
    return found


def test_durations_are_microseconds_of_the_device(
    cnrt: Any, small: Any, open_model: Any, control: Any, notifiers: Any, picture: Any
) -> None:
    opened = open_model(small.build("int8"))
    usual = timed_run(cnrt, opened, notifiers, picture)
    assert 60 < usual < 100  # 60 us to start a task, and little work
    assert timed_run(cnrt, opened, notifiers, picture) == pytest.approx(usual)  # modelled, not measured
    control(throttle=10)
    assert timed_run(cnrt, opened, notifiers, picture) - 60 == pytest.approx(10 * (usual - 60), rel=0.01)


def test_work_grows_with_the_batch_and_falls_with_the_cores(
    cnrt: Any, small: Any, open_model: Any, notifiers: Any
) -> None:
    pictures = small.pictures.transpose(0, 2, 3, 1)
    sizes = [4 * size for size in SIZES]
    one = timed_run(cnrt, open_model(small.build(batches=(1,))), notifiers, pictures[0])
    four = timed_run(cnrt, open_model(small.build(batches=(4,))), notifiers, pictures, sizes)
    shared = timed_run(cnrt, open_model(small.build(batches=(4,)), cores=4), notifiers, pictures, sizes)
    assert four - 60 == pytest.approx(4 * (one - 60), rel=0.01)
    assert shared < four


def test_a_queue_waits_for_a_notifier_of_another(
    cnrt: Any, small: Any, open_model: Any, control: Any, notifiers: Any, picture: Any
) -> None:
    opened, lib = open_model(small.build()), cnrt.cnrt
    other = cnrt.ffi.new("cnrtQueue_t *")
    cnrt.ok(lib.cnrtCreateQueue(other))
    result = np.zeros(5, np.float32)
    control(hang=1)
    status, outputs = opened.invoke(picture, SIZES)
    cnrt.ok(status)
    cnrt.ok(lib.cnrtMemsetD8Async(outputs[1], 0, 20, other[0]))  # before the run
    cnrt.ok(lib.cnrtSyncQueue(other[0]))
    cnrt.ok(lib.cnrtPlaceNotifier(notifiers[0], opened.queue[0]))
    cnrt.ok(lib.cnrtQueueWaitNotifier(notifiers[0], other[0], 0))
    cnrt.ok(lib.cnrtMemcpyAsync(cnrt.ffi.from_buffer(result), outputs[1], 20, other[0], 2))
    assert cnrt.name(lib.cnrtQueryQueue(other[0])) == "CNRT_RET_ERR_NOT_READY"
    control()
    cnrt.ok(lib.cnrtSyncQueue(other[0]))
    assert np.allclose(result, small.expected[0][1][0], atol=3e-3)
    cnrt.ok(lib.cnrtSyncQueue(opened.queue[0]))
    cnrt.ok(lib.cnrtDestroyQueue(other[0]))


def test_the_default_queue(cnrt: Any, small: Any, open_model: Any, picture: Any) -> None:
    opened = open_model(small.build())
    assert opened.run(picture, [(6, 6, 6), (5,)])
    params = cnrt.ffi.new("void *[]", opened.memory)
    null = cnrt.ffi.NULL
    cnrt.ok(cnrt.cnrt.cnrtInvokeRuntimeContext(opened.context[0], params, null, null))
    cnrt.ok(cnrt.cnrt.cnrtSyncQueue(null))
    cnrt.ok(cnrt.cnrt.cnrtSyncDevice())


def test_destroyed_handles_are_found_out(cnrt: Any, notifiers: Any) -> None:
    queue = cnrt.ffi.new("cnrtQueue_t *")
    cnrt.ok(cnrt.cnrt.cnrtCreateQueue(queue))
    cnrt.ok(cnrt.cnrt.cnrtDestroyQueue(queue[0]))
    for status in (
        cnrt.cnrt.cnrtDestroyQueue(queue[0]),
        cnrt.cnrt.cnrtSyncQueue(queue[0]),
        cnrt.cnrt.cnrtPlaceNotifier(notifiers[0], queue[0]),
        cnrt.cnrt.cnrtSyncQueue(cnrt.ffi.cast("cnrtQueue_t", notifiers[0])),
    ):
        assert cnrt.name(status) == "CNRT_RET_ERR_QUEUE"


def test_a_hung_queue_can_be_destroyed(cnrt: Any, small: Any, open_model: Any, control: Any, picture: Any) -> None:
    opened = open_model(small.build())
    control(hang=1)
    cnrt.ok(opened.invoke(picture, SIZES)[0])
    cnrt.ok(opened.invoke(picture, SIZES)[0])
    cnrt.ok(cnrt.cnrt.cnrtDestroyQueue(opened.queue[0]))
    control()
    cnrt.ok(cnrt.cnrt.cnrtRuntimeContextCreateQueue(opened.context[0], opened.queue))
    assert np.allclose(opened.run(picture, [(6, 6, 6), (5,)])[1], small.expected[0][1][0], atol=3e-3)


def test_a_thread_that_waits_for_a_hung_queue_is_freed_by_its_end(
    cnrt: Any, small: Any, open_model: Any, control: Any, picture: Any
) -> None:
    opened = open_model(small.build())
    control(hang=1)
    cnrt.ok(opened.invoke(picture, SIZES)[0])
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(cnrt.cnrt.cnrtSyncQueue(opened.queue[0])))
    waiting.start()
    cnrt.ok(cnrt.cnrt.cnrtDestroyQueue(opened.queue[0]))
    waiting.join(30)
    assert cnrt.name(found[0]) in ("CNRT_RET_ERR_NODEV", "CNRT_RET_ERR_QUEUE")  # as it came before or after the end
    opened.queue[0] = cnrt.ffi.NULL


@pytest.mark.parametrize(("api", "number"), [(41001, 632049), (40705, 632015)])
def test_a_timeout_has_the_number_of_the_version(
    cnrt: Any, small: Any, open_model: Any, control: Any, picture: Any, api: int, number: int
) -> None:
    opened = open_model(small.build())
    control(query_timeout=2, api=api)
    cnrt.ok(opened.invoke(picture, SIZES)[0])
    codes = [cnrt.cnrt.cnrtSyncQueue(opened.queue[0]) for _ in range(3)]
    assert codes == [number, number, 0]


def test_a_lost_device_fails_what_waits_and_comes_back(
    cnrt: Any, small: Any, open_model: Any, control: Any, picture: Any
) -> None:
    opened, lib = open_model(small.build()), cnrt.cnrt
    count = cnrt.ffi.new("unsigned int *")
    control(hang=1)
    cnrt.ok(opened.invoke(picture, SIZES)[0])
    control(lost=1, hang=1)
    assert cnrt.name(lib.cnrtSyncQueue(opened.queue[0])) == "CNRT_RET_ERR_NODEV"
    cnrt.ok(lib.cnrtGetDeviceCount(count))
    assert count[0] == 0
    assert cnrt.name(lib.cnrtMalloc(cnrt.ffi.new("void **"), 8)) == "CNRT_RET_ERR_NODEV"
    params = cnrt.ffi.new("void *[]", opened.memory)
    status = lib.cnrtInvokeRuntimeContext(opened.context[0], params, opened.queue[0], cnrt.ffi.NULL)
    assert cnrt.name(status) == "CNRT_RET_ERR_NODEV"
    control()
    cnrt.ok(lib.cnrtSyncQueue(opened.queue[0]))
    assert np.allclose(opened.run(picture, [(6, 6, 6), (5,)])[1], small.expected[0][1][0], atol=3e-3)


def test_a_device_that_is_busy_or_has_no_memory(cnrt: Any, small: Any, open_model: Any, control: Any) -> None:
    context = open_model(small.build(), initialise=False).context[0]
    control(busy=1)
    assert cnrt.name(cnrt.cnrt.cnrtInitRuntimeContext(context, cnrt.ffi.NULL)) == "CNRT_RET_ERR_BUSY"
    for failing in (1, 2):  # of weights, and of values after them
        control(no_memory=failing)
        if failing == 2:
            assert cnrt.name(cnrt.cnrt.cnrtMalloc(cnrt.ffi.new("void **"), 8)) == "CNRT_RET_ERR_NOMEM"
        assert cnrt.name(cnrt.cnrt.cnrtInitRuntimeContext(context, cnrt.ffi.NULL)) == "CNRT_RET_ERR_NOMEM"
        assert cnrt.outstanding()[7] == 0
    cnrt.ok(cnrt.cnrt.cnrtInitRuntimeContext(context, cnrt.ffi.NULL))


def test_a_corrupted_result_is_wrong_once(cnrt: Any, small: Any, open_model: Any, control: Any, picture: Any) -> None:
    opened = open_model(small.build())
    shapes = [(6, 6, 6), (5,)]
    right = opened.run(picture, shapes)[0]
    control(corrupt=1)
    assert (opened.run(picture, shapes)[0] != right).any()
    assert (opened.run(picture, shapes)[0] == right).all()


def test_eight_threads_with_forks_share_four_cores(cnrt: Any, small: Any, open_model: Any, picture: Any) -> None:
    opened, lib, null = open_model(small.build("int8")), cnrt.cnrt, cnrt.ffi.NULL
    right = opened.run(picture, [(6, 6, 6), (5,)])
    wrong: list[str] = []

    def work() -> None:
        cnrt.use_device()
        fork, queue = cnrt.ffi.new("cnrtRuntimeContext_t *"), cnrt.ffi.new("cnrtQueue_t *")
        cnrt.ok(lib.cnrtForkRuntimeContext(fork, opened.context[0], null))
        cnrt.ok(lib.cnrtRuntimeContextCreateQueue(fork[0], queue))
        memory = [cnrt.upload(picture), *(cnrt.allocate(size) for size in SIZES)]
        params = cnrt.ffi.new("void *[]", memory)
        for _ in range(50):
            cnrt.ok(lib.cnrtMemset(memory[1], 0, SIZES[0]))
            cnrt.ok(lib.cnrtInvokeRuntimeContext(fork[0], params, queue[0], null))
            cnrt.ok(lib.cnrtSyncQueue(queue[0]))
            if (cnrt.download(memory[1], (6, 6, 6), "float32") != right[0]).any():
                wrong.append("a result differs")
        for pointer in memory:
            cnrt.ok(lib.cnrtFree(pointer))
        cnrt.ok(lib.cnrtDestroyQueue(queue[0]))
        cnrt.ok(lib.cnrtDestroyRuntimeContext(fork[0]))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert cnrt.outstanding()[2] == 1
