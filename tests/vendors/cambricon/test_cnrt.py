"""How CNRT behaves where programs go wrong: start-up, threads, memory, ownership, order of calls, versions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyasc.models.npu.cambricon import PIXELS, write_cambricon

MIB = 1 << 20
HOST2DEV, DEV2DEV, DEV2HOST, HOST2HOST, PEER2PEER = range(5)


def in_thread(work: Callable[[], Any]) -> Any:
    """What a function gives in a thread of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(30)
    return found[0]


# Start, devices, threads


def test_nothing_works_before_the_start(library: Any, control: Any) -> None:
    count = library.ffi.new("unsigned int *")
    assert library.name(library.cnrt.cnrtGetDeviceCount(count)) == "CNRT_RET_ERR_INIT"
    assert library.name(library.cnrt.cnrtMalloc(library.ffi.new("void **"), 16)) == "CNRT_RET_ERR_INIT"


def test_starts_nest_and_do_not_mix(cnrt: Any) -> None:
    cnrt.ok(cnrt.cnrt.cnrtInit(0))
    assert cnrt.name(cnrt.cnrt.cnrtInit(1)) == "CNRT_RET_ERR_INVALID_TYPE"
    cnrt.cnrt.cnrtDestroy()
    cnrt.ok(cnrt.cnrt.cnrtGetDeviceCount(cnrt.ffi.new("unsigned int *")))


def test_a_wrong_default_device_is_told_at_the_start(
    library: Any, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CNRT_DEFAULT_DEVICE", "3")
    assert library.name(library.cnrt.cnrtInit(0)) == "CNRT_RET_ERR_INIT"


def test_default_device_overrides_the_ordinal(cnrt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = cnrt.ffi.new("cnrtDev_t *")
    assert cnrt.name(cnrt.cnrt.cnrtGetDeviceHandle(device, 1)) == "CNRT_RET_ERR_INVALID"
    monkeypatch.setenv("CNRT_DEFAULT_DEVICE", "0")
    cnrt.ok(cnrt.cnrt.cnrtGetDeviceHandle(device, 1))


def test_the_device_says_what_it_is(cnrt: Any) -> None:
    info = cnrt.ffi.new("cnrtDeviceInfo_t *")
    cnrt.ok(cnrt.cnrt.cnrtGetDeviceInfo(info, 0))
    assert cnrt.ffi.string(info.device_name) == b"MLU220-M2 (simulated)"
    assert (info.core_version, info.core_num) == (6, 4)


def test_a_handle_is_no_ordinal(cnrt: Any, small: Any, open_model: Any) -> None:
    device = cnrt.ffi.new("cnrtDev_t *")
    cnrt.ok(cnrt.cnrt.cnrtGetDeviceHandle(device, 0))
    assert cnrt.name(cnrt.cnrt.cnrtSetCurrentDevice(0)) == "CNRT_RET_ERR_INVALID"
    context = open_model(small.build(), initialise=False).context[0]
    as_ordinal = int(cnrt.ffi.cast("int", device[0]))
    assert cnrt.name(cnrt.cnrt.cnrtSetRuntimeContextDeviceId(context, as_ordinal)) == "CNRT_RET_ERR_INVALID"
    cnrt.ok(cnrt.cnrt.cnrtSetRuntimeContextDeviceId(context, 0))


def test_each_thread_has_a_current_device_of_its_own(cnrt: Any) -> None:
    pointer = cnrt.ffi.new("void **")
    status = in_thread(lambda: cnrt.cnrt.cnrtMalloc(pointer, 16))
    assert cnrt.name(status) == "CNRT_RET_ERR_NODEV"


def test_the_last_failure_is_kept_for_each_thread(cnrt: Any) -> None:
    cnrt.cnrt.cnrtGetLastErr()
    cnrt.cnrt.cnrtMemcpy(cnrt.ffi.NULL, cnrt.ffi.NULL, 1, HOST2HOST)
    assert in_thread(cnrt.cnrt.cnrtGetLastErr) == 0
    assert cnrt.name(cnrt.cnrt.cnrtPeekLastErr()) == "CNRT_RET_ERR_INVALID"
    assert cnrt.name(cnrt.cnrt.cnrtGetLastErr()) == "CNRT_RET_ERR_INVALID"
    assert cnrt.cnrt.cnrtGetLastErr() == 0


def test_a_fake_device_is_told(cnrt: Any) -> None:
    device, queue = cnrt.ffi.new("cnrtDev_t *"), cnrt.ffi.new("cnrtQueue_t *")
    cnrt.ok(cnrt.cnrt.cnrtGetDeviceHandle(device, -1))
    cnrt.ok(cnrt.cnrt.cnrtSetCurrentDevice(device[0]))
    assert cnrt.name(cnrt.cnrt.cnrtCreateQueue(queue)) == "CNRT_RET_WARNING_FAKE_DEVICE"
    cnrt.ok(cnrt.cnrt.cnrtDestroyQueue(queue[0]))


def test_stack_limits_are_megabytes(cnrt: Any) -> None:
    size = cnrt.ffi.new("unsigned int *")
    for wrong in (3, 512):
        assert cnrt.name(cnrt.cnrt.cnrtSetStackMem(wrong)) == "CNRT_RET_ERR_INVALID"
    cnrt.ok(cnrt.cnrt.cnrtGetStackMem(size))
    before = size[0]
    cnrt.ok(cnrt.cnrt.cnrtSetStackMem(100))
    cnrt.ok(cnrt.cnrt.cnrtGetStackMem(size))
    assert size[0] == 100
    cnrt.ok(cnrt.cnrt.cnrtSetStackMem(before))


def test_mlu220_has_one_channel(cnrt: Any) -> None:
    for channel in (-2, -1, 0):
        cnrt.ok(cnrt.cnrt.cnrtSetCurrentChannel(channel))
    assert cnrt.name(cnrt.cnrt.cnrtSetCurrentChannel(1)) == "CNRT_RET_ERR_INVALID"


# Memory


def test_device_memory_runs_out_and_comes_back(cnrt: Any) -> None:
    free, total = cnrt.ffi.new("size_t *"), cnrt.ffi.new("size_t *")
    cnrt.ok(cnrt.cnrt.cnrtGetMemInfo(free, total, -1))
    assert (free[0], total[0]) == (4096, 4096)  # MB
    most = cnrt.allocate(3000 * MIB)
    pointer = cnrt.ffi.new("void **")
    assert cnrt.name(cnrt.cnrt.cnrtMalloc(pointer, 1200 * MIB)) == "CNRT_RET_ERR_NOMEM"
    cnrt.ok(cnrt.cnrt.cnrtGetMemInfo(free, total, -1))
    assert free[0] == 1096
    cnrt.ok(cnrt.cnrt.cnrtFree(most))
    cnrt.ok(cnrt.cnrt.cnrtFree(cnrt.allocate(4000 * MIB)))


def test_no_bytes_are_a_null_pointer(cnrt: Any) -> None:
    pointer = cnrt.ffi.new("void **", cnrt.ffi.cast("void *", 5))
    cnrt.ok(cnrt.cnrt.cnrtMalloc(pointer, 0))
    assert pointer[0] == cnrt.ffi.NULL
    cnrt.ok(cnrt.cnrt.cnrtMallocHost(pointer, 0, 0))
    assert pointer[0] == cnrt.ffi.NULL


def test_freeing_twice_is_an_error(cnrt: Any) -> None:
    pointer = cnrt.allocate(100)
    cnrt.ok(cnrt.cnrt.cnrtFree(pointer))
    assert cnrt.name(cnrt.cnrt.cnrtFree(pointer)) == "CNRT_RET_ERR_FIND_DEV_ADDR"
    host = cnrt.ffi.new("void **")
    cnrt.ok(cnrt.cnrt.cnrtMallocHost(host, 100, 1))
    assert cnrt.outstanding()[5] == 1
    cnrt.ok(cnrt.cnrt.cnrtFreeHost(host[0]))
    assert cnrt.name(cnrt.cnrt.cnrtFreeHost(host[0])) == "CNRT_RET_ERR_INVALID_POINTER"


def test_copies_are_checked(cnrt: Any) -> None:
    data = np.arange(8000, dtype=np.uint8)
    host = cnrt.ffi.from_buffer(data)
    device = cnrt.allocate(data.nbytes)
    copy = cnrt.cnrt.cnrtMemcpy
    cnrt.ok(copy(device, host, data.nbytes, HOST2DEV))
    other = cnrt.allocate(data.nbytes)
    cnrt.ok(copy(other, device, data.nbytes, DEV2DEV))
    assert (cnrt.download(other, data.shape, "uint8") == data).all()
    assert (cnrt.download(other + 100, (10,), "uint8") == data[100:110]).all()
    for status, name in (
        (copy(device, cnrt.ffi.NULL, 8, HOST2DEV), "CNRT_RET_ERR_INVALID"),
        (copy(device, host, 8, 5), "CNRT_RET_ERR_INVALID"),
        (copy(device, host, 1 << 20, HOST2DEV), "CNRT_RET_ERR_MEMCPY"),
        (copy(host, host, 8, HOST2DEV), "CNRT_RET_ERR_MEMCPY"),
    ):
        assert cnrt.name(status) == name
    for pointer in (device, other):
        cnrt.ok(cnrt.cnrt.cnrtFree(pointer))


def test_fresh_memory_is_not_zeroed_and_can_be_set(cnrt: Any) -> None:
    pointer = cnrt.allocate(64)
    assert cnrt.download(pointer, (64,), "uint8").any()
    cnrt.ok(cnrt.cnrt.cnrtMemset(pointer, 7, 64))
    assert (cnrt.download(pointer, (64,), "uint8") == 7).all()
    cnrt.ok(cnrt.cnrt.cnrtMemsetD32(pointer, 0x01020304, 16))
    assert (cnrt.download(pointer, (16,), "uint32") == 0x01020304).all()
    cnrt.ok(cnrt.cnrt.cnrtFree(pointer))


def test_shared_memory_is_for_the_edge_platform(cnrt: Any) -> None:
    pointer = cnrt.allocate(64)
    host = cnrt.ffi.new("void **")
    assert cnrt.name(cnrt.cnrt.cnrtMap(host, pointer)) == "CNRT_RET_ERR_UNSUPPORTED"
    assert cnrt.name(cnrt.cnrt.cnrtCacheOperation(pointer, 1)) == "CNRT_RET_ERR_UNSUPPORTED"
    cnrt.ok(cnrt.cnrt.cnrtFree(pointer))


# Models and functions


def test_model_files_that_are_none(cnrt: Any, tmp_path: Path, small: Any) -> None:
    model, size = cnrt.ffi.new("cnrtModel_t *"), cnrt.ffi.new("int *")
    good = write_cambricon([small.build().function])
    assert good[:29] == bytes.fromhex("7F4D45461414031E010000000D000000") + b"forward_model"
    spoilt = bytearray(good)
    spoilt[len(good) // 2] ^= 1
    files = {
        "junk": b"junk" * 50,
        "empty": b"",
        "vendor": good[:29] + bytes(400),
        "short": good[:-9],
        "spoilt": bytes(spoilt),
    }
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert cnrt.name(cnrt.cnrt.cnrtLoadModel(model, str(path).encode())) == "CNRT_RET_ERR_INVALID", name
    assert cnrt.name(cnrt.cnrt.cnrtLoadModel(model, str(tmp_path / "none").encode())) == "CNRT_RET_ERR_SYS"
    assert cnrt.name(cnrt.cnrt.cnrtGetModelSize(str(tmp_path / "none").encode(), size)) == "CNRT_RET_ERR_SYS"
    assert cnrt.name(cnrt.cnrt.cnrtGetModelSize(str(tmp_path / "junk").encode(), size)) == "CNRT_RET_ERR_INVALID"
    cnrt.ok(cnrt.cnrt.cnrtGetModelSize(str(tmp_path / "vendor").encode(), size))  # its head is all that counts here
    assert size[0] == len(files["vendor"])


def test_a_model_can_come_from_memory(cnrt: Any, small: Any) -> None:
    data = write_cambricon([small.build().function], cores=2)
    model, cores = cnrt.ffi.new("cnrtModel_t *"), cnrt.ffi.new("int *")
    cnrt.ok(cnrt.cnrt.cnrtLoadModelFromMem(model, cnrt.ffi.from_buffer("char[]", data)))
    cnrt.ok(cnrt.cnrt.cnrtQueryModelParallelism(model[0], cores))
    assert cores[0] == 2
    cnrt.ok(cnrt.cnrt.cnrtUnloadModel(model[0]))
    assert cnrt.name(cnrt.cnrt.cnrtUnloadModel(model[0])) == "CNRT_RET_ERR_INVALID"


def test_shapes_are_nhwc_and_the_callers_sizes_the_functions(cnrt: Any, small: Any, open_model: Any) -> None:
    function = open_model(small.build("int8", batches=(3,))).function[0]
    dims, count = cnrt.ffi.new("int **"), cnrt.ffi.new("int *")
    cnrt.ok(cnrt.cnrt.cnrtGetInputDataShape(dims, count, 0, function))
    assert list(dims[0][0 : count[0]]) == [3, small.SIZE, small.SIZE, 3]
    first = dims[0]
    cnrt.ok(cnrt.cnrt.cnrtGetInputDataShape(dims, count, 0, function))
    assert dims[0] != first
    cnrt.free(first)
    cnrt.free(dims[0])
    sizes, types = cnrt.ffi.new("int64_t **"), cnrt.ffi.new("cnrtDataType_t **")
    cnrt.ok(cnrt.cnrt.cnrtGetOutputDataSize(sizes, count, function))
    assert list(sizes[0][0 : count[0]]) == [3 * 6 * 6 * 6 * 4, 3 * 5 * 4]
    same = cnrt.ffi.new("int64_t **")
    cnrt.ok(cnrt.cnrt.cnrtGetOutputDataSize(same, count, function))
    assert same[0] == sizes[0]
    cnrt.ok(cnrt.cnrt.cnrtGetInputDataType(types, count, function))
    assert types[0][0] == cnrt.cnrt.CNRT_UINT8
    assert cnrt.name(cnrt.cnrt.cnrtGetOutputDataShape(dims, count, 2, function)) == "CNRT_RET_ERR_INVALID"


def test_names_and_symbols(cnrt: Any, small: Any, open_model: Any) -> None:
    opened = open_model(small.build())
    new = cnrt.ffi.new
    symbol, size = new("char **"), new("int *")
    cnrt.ok(cnrt.cnrt.cnrtGetFunctionSymbol(opened.model[0], 0, symbol, size))
    assert cnrt.ffi.string(symbol[0]) == b"subnet0"
    cnrt.free(symbol[0])
    inputs, outputs, counts = new("char ***"), new("char ***"), [new("int *"), new("int *")]
    function = opened.function[0]
    cnrt.ok(cnrt.cnrt.cnrtGetInputAndOutputNamesFromFunction(function, inputs, outputs, *counts))
    assert [cnrt.ffi.string(outputs[0][i]) for i in range(counts[1][0])] == [b"map", b"score"]
    cnrt.ok(cnrt.cnrt.cnrtDestroyInputAndOutputNames(inputs[0], outputs[0], counts[0][0], counts[1][0]))
    index, order = new("int *"), new("cnrtDimOrder_t *")
    cnrt.ok(cnrt.cnrt.cnrtGetParamIndexByName(function, b"score", index))
    cnrt.ok(cnrt.cnrt.cnrtGetSupportedParamLayoutByName(function, b"score", order))
    assert (index[0], order[0]) == (1, cnrt.cnrt.CNRT_NHWC)
    assert cnrt.name(cnrt.cnrt.cnrtGetParamIndexByName(function, b"none", index)) == "CNRT_RET_ERR_NO_EXIST"


def test_an_unknown_symbol_and_a_function_that_was_not_created(cnrt: Any, small: Any, open_model: Any) -> None:
    model = open_model(small.build()).model[0]
    function = cnrt.ffi.new("cnrtFunction_t *")
    assert cnrt.name(cnrt.cnrt.cnrtExtractFunction(function, model, b"subnet0")) == "CNRT_RET_ERR_INVALID"
    cnrt.ok(cnrt.cnrt.cnrtCreateFunction(function))
    assert cnrt.name(cnrt.cnrt.cnrtExtractFunction(function, model, b"subnet1")) == "CNRT_RET_ERR_NO_EXIST"
    cnrt.ok(cnrt.cnrt.cnrtDestroyFunction(function[0]))


@pytest.mark.parametrize("created", [True, False])
def test_functions_are_copied_into_created_ones_and_bare_pointers(
    cnrt: Any, small: Any, open_model: Any, created: bool
) -> None:
    source = open_model(small.build()).function[0]
    copy, count = cnrt.ffi.new("cnrtFunction_t *"), cnrt.ffi.new("int *")
    if created:
        cnrt.ok(cnrt.cnrt.cnrtCreateFunction(copy))
    cnrt.ok(cnrt.cnrt.cnrtCopyFunction(copy, source))
    cnrt.ok(cnrt.cnrt.cnrtGetInputDataSize(cnrt.ffi.new("int64_t **"), count, copy[0]))
    assert count[0] == 1
    assert cnrt.outstanding()[1] == 2
    cnrt.ok(cnrt.cnrt.cnrtDestroyFunction(copy[0]))


# Contexts


def test_order_of_calls_on_a_context(cnrt: Any, small: Any, open_model: Any) -> None:
    context = open_model(small.build(), initialise=False).context[0]
    lib, null = cnrt.cnrt, cnrt.ffi.NULL
    ordinal = cnrt.ffi.new("int *")
    params = cnrt.ffi.new("void *[3]")
    too_early = [
        lib.cnrtRuntimeContextCreateQueue(context, cnrt.ffi.new("cnrtQueue_t *")),
        lib.cnrtInvokeRuntimeContext(context, params, null, null),
        lib.cnrtForkRuntimeContext(cnrt.ffi.new("cnrtRuntimeContext_t *"), context, null),
    ]
    cnrt.ok(lib.cnrtGetRuntimeContextInfo(context, 2, cnrt.ffi.cast("void **", ordinal)))
    assert ordinal[0] == -2
    cnrt.ok(lib.cnrtInitRuntimeContext(context, null))
    too_late = [
        lib.cnrtInitRuntimeContext(context, null),
        lib.cnrtSetRuntimeContextDeviceId(context, 0),
        lib.cnrtSetRuntimeContextChannel(context, -1),
    ]
    assert {cnrt.name(status) for status in too_early + too_late} == {"CNRT_RET_ERR_INIT"}
    assert cnrt.name(lib.cnrtInvokeRuntimeContext(context, params, null, null)) == "CNRT_RET_ERR_INVALID"
    assert cnrt.name(lib.cnrtSetRuntimeContextChannel(context, 2)) == "CNRT_RET_ERR_INVALID"


def test_numbers_of_a_context_are_ints(cnrt: Any, small: Any, open_model: Any) -> None:
    context = open_model(small.build(), cores=2).context[0]
    cores = cnrt.ffi.new("int[2]", [0, 77])
    cnrt.ok(cnrt.cnrt.cnrtGetRuntimeContextInfo(context, 4, cnrt.ffi.cast("void **", cores)))
    assert list(cores) == [2, 77]  # the next int is not touched
    assert (
        cnrt.name(cnrt.cnrt.cnrtGetRuntimeContextInfo(context, 6, cnrt.ffi.new("void **")))
        == "CNRT_RET_ERR_UNSUPPORTED"
    )


def test_a_context_outlives_its_function_and_model(cnrt: Any, small: Any, tmp_path: Path) -> None:
    built = small.build()
    opened = cnrt.open(tmp_path / "model", write_cambricon([built.function]))
    cnrt.ok(cnrt.cnrt.cnrtDestroyFunction(opened.function[0]))
    cnrt.ok(cnrt.cnrt.cnrtUnloadModel(opened.model[0]))
    found, _ = opened.run(small.pictures[0].transpose(1, 2, 0), [(6, 6, 6), (5,)])
    assert np.allclose(found.transpose(2, 0, 1), small.expected[0][0][0], atol=3e-3)
    function, count = cnrt.ffi.new("cnrtFunction_t *"), cnrt.ffi.new("int *")
    cnrt.ok(cnrt.cnrt.cnrtGetRuntimeContextInfo(opened.context[0], 1, cnrt.ffi.cast("void **", function)))
    cnrt.ok(cnrt.cnrt.cnrtGetInputDataSize(cnrt.ffi.new("int64_t **"), count, function[0]))
    cnrt.ok(cnrt.cnrt.cnrtDestroyQueue(opened.queue[0]))
    cnrt.ok(cnrt.cnrt.cnrtDestroyRuntimeContext(opened.context[0]))
    for pointer in opened.memory:
        cnrt.ok(cnrt.cnrt.cnrtFree(pointer))


def test_a_model_for_another_core_is_refused_when_the_context_starts(
    cnrt: Any, small: Any, open_model: Any, control: Any
) -> None:
    lib, null = cnrt.cnrt, cnrt.ffi.NULL
    opened = open_model(small.build(), initialise=False, core_version="mlu270")
    version = cnrt.ffi.new("cnrtCoreVersion_t *")
    cnrt.ok(lib.cnrtQueryCoreVersion(opened.model[0], version))
    assert version[0] == lib.CNRT_MLU270
    assert cnrt.name(lib.cnrtInitRuntimeContext(opened.context[0], null)) == "CNRT_RET_ERR_UNSUPPORTED"
    control(version=lib.CNRT_MLU270)  # as if the card were another one
    cnrt.ok(lib.cnrtInitRuntimeContext(opened.context[0], null))


@pytest.mark.parametrize(("api", "name"), [(41001, "CNRT_RET_ERR_CNDRV_FUNC_CALL"), (40400, "CNRT_RET_ERR_FUNC_CALL")])
def test_a_model_for_more_cores_fails_at_its_launch_alone(
    cnrt: Any, small: Any, open_model: Any, control: Any, capfd: Any, api: int, name: str
) -> None:
    control(api=api)
    opened = open_model(small.build(), cores=16)
    status, _ = opened.invoke(small.pictures[0].transpose(1, 2, 0), [864, 20])
    assert cnrt.name(status) == name
    assert "16 cores at once, the device has 4" in capfd.readouterr().err


def test_a_model_that_needs_more_stack_fails_until_it_is_raised(cnrt: Any, small: Any, open_model: Any) -> None:
    opened = open_model(small.build(), stack_mib=40)
    need = cnrt.ffi.new("uint64_t *")
    cnrt.ok(cnrt.cnrt.cnrtQueryModelStackSize(opened.model[0], need))
    assert need[0] == 40
    picture = small.pictures[0].transpose(1, 2, 0)
    assert cnrt.name(opened.invoke(picture, [864, 20])[0]) == "CNRT_RET_ERR_CNDRV_FUNC_CALL"
    cnrt.ok(cnrt.cnrt.cnrtSetStackMem(90))
    cnrt.ok(opened.invoke(picture, [864, 20])[0])
    cnrt.ok(cnrt.cnrt.cnrtSyncQueue(opened.queue[0]))
    cnrt.ok(cnrt.cnrt.cnrtSetStackMem(16))


def test_a_context_is_for_one_queue_at_a_time_and_a_fork_for_another(
    cnrt: Any, small: Any, open_model: Any, control: Any
) -> None:
    lib, null = cnrt.cnrt, cnrt.ffi.NULL
    opened = open_model(small.build())
    fork, other = cnrt.ffi.new("cnrtRuntimeContext_t *"), cnrt.ffi.new("cnrtQueue_t *")
    before = cnrt.outstanding()[7]
    cnrt.ok(lib.cnrtForkRuntimeContext(fork, opened.context[0], null))
    assert cnrt.outstanding()[7] == before + 1  # memory for its values; the weights are shared
    cnrt.ok(lib.cnrtRuntimeContextCreateQueue(fork[0], other))
    control(hang=1)
    picture = small.pictures[0].transpose(1, 2, 0)
    cnrt.ok(opened.invoke(picture, [864, 20])[0])
    params = cnrt.ffi.new("void *[]", opened.memory)
    assert (
        cnrt.name(lib.cnrtInvokeRuntimeContext(opened.context[0], params, other[0], null)) == "CNRT_RET_ERR_INVALID_OP"
    )
    cnrt.ok(lib.cnrtInvokeRuntimeContext(fork[0], params, other[0], null))
    control()
    cnrt.ok(lib.cnrtSyncQueue(other[0]))
    cnrt.ok(lib.cnrtSyncQueue(opened.queue[0]))
    cnrt.ok(lib.cnrtDestroyQueue(other[0]))
    cnrt.ok(lib.cnrtDestroyRuntimeContext(fork[0]))


def test_opened_and_closed_a_thousand_times_nothing_is_left(cnrt: Any, small: Any, tmp_path: Path) -> None:
    data = write_cambricon([small.build().function])
    picture = small.pictures[0].transpose(1, 2, 0)
    for _ in range(1000):
        opened = cnrt.open(tmp_path / "model", data)
        opened.run(picture, [(6, 6, 6), (5,)])
        opened.close()
    assert cnrt.outstanding() == [0] * 8


# Inputs and outputs


def test_batches_are_in_the_file(cnrt: Any, small: Any, open_model: Any) -> None:
    opened = open_model(small.build(batches=(4,)))
    found = opened.run(small.pictures.transpose(0, 2, 3, 1), [(4, 6, 6, 6), (4, 5)])
    for index, (one, score) in enumerate(small.expected):
        assert np.allclose(found[0][index].transpose(2, 0, 1), one[0], atol=3e-3)
        assert np.allclose(found[1][index], score[0], atol=3e-3)


def test_a_model_in_cache_mode_takes_several_batch_sizes(cnrt: Any, small: Any, open_model: Any) -> None:
    opened = open_model(small.build(batches=(1, 2, 4)))
    lib = cnrt.cnrt
    mode, count, batches = cnrt.ffi.new("bool *"), cnrt.ffi.new("int *"), cnrt.ffi.new("int[3]")
    cnrt.ok(lib.cnrtQueryCacheMode(opened.function[0], mode, count))
    cnrt.ok(lib.cnrtQueryBatches(opened.function[0], batches))
    assert (mode[0], count[0], list(batches)) == (True, 3, [1, 2, 4])
    opened.memory = [cnrt.upload(small.pictures.transpose(0, 2, 3, 1)), cnrt.allocate(4 * 864), cnrt.allocate(4 * 20)]
    cnrt.ok(lib.cnrtMemset(opened.memory[2], 0, 80))
    params = cnrt.ffi.new("void *[]", opened.memory)
    null = cnrt.ffi.NULL

    def invoke(batch: int) -> int:
        status: int = lib.cnrtInvokeRuntimeContext_V3(
            opened.context[0], cnrt.ffi.new("int[1]", [batch]), params, opened.queue[0], null
        )
        return status

    assert cnrt.name(invoke(3)) == "CNRT_RET_ERR_INVALID"
    cnrt.ok(invoke(2))
    cnrt.ok(lib.cnrtSyncQueue(opened.queue[0]))
    scores = cnrt.download(opened.memory[2], (4, 5), "float32")
    assert np.allclose(scores[:2], [score[0] for _, score in small.expected[:2]], atol=3e-3)
    assert not scores[2:].any()


@pytest.mark.parametrize("order", PIXELS)
def test_a_first_convolution_takes_pictures_of_four_channels(
    cnrt: Any, small: Any, open_model: Any, order: str
) -> None:
    rgb = small.pictures[0].transpose(1, 2, 0)
    four = np.full((small.SIZE, small.SIZE, 4), 99, np.uint8)
    for channel, letter in enumerate("rgb"):
        four[:, :, order.index(letter)] = rgb[:, :, channel]
    found, _ = open_model(small.build(pixel=(4, *PIXELS[order]))).run(four, [(6, 6, 6), (5,)])
    assert np.allclose(found.transpose(2, 0, 1), small.expected[0][0][0], atol=3e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("number", ["int8", "float16"])
def test_inputs_of_real_numbers(cnrt: Any, small: Any, open_model: Any, dtype: str, number: str) -> None:
    picture = (small.pictures[0].transpose(1, 2, 0) / 255).astype(dtype)
    found, _ = open_model(small.build(number, dtype=dtype)).run(picture, [(6, 6, 6), (5,)])
    error = np.abs(found.transpose(2, 0, 1) - small.expected[0][0][0]).max()
    assert error < (5e-3 if number == "float16" else 0.06)  # of values up to 2


def test_memory_that_is_too_short_is_an_error_of_the_queue(cnrt: Any, small: Any, open_model: Any) -> None:
    opened = open_model(small.build(batches=(40,)))
    status, _ = opened.invoke(small.pictures[0], [864, 20])
    cnrt.ok(status)  # the device finds it
    assert cnrt.name(cnrt.cnrt.cnrtSyncQueue(opened.queue[0])) == "CNRT_RET_ERR_MLU"
    cnrt.ok(cnrt.cnrt.cnrtSyncQueue(opened.queue[0]))  # told once


def test_descriptors_have_defaults_and_give_copies(cnrt: Any, small: Any, open_model: Any) -> None:
    opened = open_model(small.build())
    lib, new, null = cnrt.cnrt, cnrt.ffi.new, cnrt.ffi.NULL
    array, dtype, order = new("cnrtParamDescArray_t *"), new("cnrtDataType_t *"), new("cnrtDimOrder_t *")
    dims, count = new("int **"), new("int *")
    cnrt.ok(lib.cnrtCreateParamDescArray(array, 3))
    assert cnrt.outstanding()[6] == 3
    cnrt.ok(lib.cnrtGetDataTypeFromParamDesc(array[0][0], dtype))
    cnrt.ok(lib.cnrtGetDimOrderFromParamDesc(array[0][0], order))
    assert (dtype[0], order[0]) == (lib.CNRT_FLOAT16, lib.CNRT_NHWC)
    infer = lib.cnrtInferFunctionOutputShape
    wrong, right = new("int[4]", [1, 8, 8, 3]), new("int[4]", [1, small.SIZE, small.SIZE, 3])
    cnrt.ok(lib.cnrtSetShapeToParamDesc(array[0][0], wrong, 4))
    assert cnrt.name(infer(opened.function[0], 1, array[0], 2, array[0] + 1)) == "CNRT_RET_ERR_RESHAPE"
    cnrt.ok(lib.cnrtSetShapeToParamDesc(array[0][0], right, 4))
    cnrt.ok(infer(opened.function[0], 1, array[0], 2, array[0] + 1))
    cnrt.ok(lib.cnrtGetShapeFromParamDesc(array[0][1], dims, count))
    assert list(dims[0][0 : count[0]]) == [1, 6, 6, 6]
    cnrt.free(dims[0])
    opened.run(small.pictures[0].transpose(1, 2, 0), [(6, 6, 6), (5,)])
    params = new("void *[]", opened.memory)
    cnrt.ok(lib.cnrtInvokeRuntimeContext_V2(opened.context[0], array[0], params, opened.queue[0], null))
    cnrt.ok(lib.cnrtSetShapeToParamDesc(array[0][0], wrong, 4))
    status = lib.cnrtInvokeRuntimeContext_V2(opened.context[0], array[0], params, opened.queue[0], null)
    assert cnrt.name(status) == "CNRT_RET_ERR_INVALID_DATADESC"
    cnrt.ok(lib.cnrtSyncQueue(opened.queue[0]))
    cnrt.ok(lib.cnrtDestroyParamDescArray(array[0], 3))
