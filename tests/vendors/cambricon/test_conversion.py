"""CNRT's conversions on the host against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

TYPES = {"float32": 0x13, "float16": 0x12, "int32": 0x23, "int16": 0x22, "int8": 0x21, "uint8": 0x31, "int64": 0x24}


def buffer(library: Any, array: NDArray[Any]) -> Any:
    return library.ffi.from_buffer(array, require_writable=False)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 1, 0, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_orders_are_transpositions(library: Any, order: tuple[int, ...], dtype: str) -> None:
    source = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).astype(dtype)
    made = np.empty([source.shape[axis] for axis in order], dtype)
    shape, axes = library.ffi.new("int[4]", source.shape), library.ffi.new("int[4]", order)
    call = library.cnrt.cnrtTransDataOrder
    library.ok(call(buffer(library, source), TYPES[dtype], library.ffi.from_buffer(made), 4, shape, axes))
    assert (made == source.transpose(order)).all()


def test_reshapes_and_a_cast_on_the_way(library: Any) -> None:
    source = np.random.default_rng(1).normal(0, 3, (2, 3, 4, 5)).astype(np.float32)  # NCHW
    made = np.empty((2, 4, 5, 3), np.float32)
    library.ok(
        library.cnrt.cnrtReshapeNCHWToNHWC(library.ffi.from_buffer(made), buffer(library, source), 2, 4, 5, 3, 0x13)
    )
    assert (made == source.transpose(0, 2, 3, 1)).all()
    back = np.empty_like(source)
    library.ok(
        library.cnrt.cnrtReshapeNHWCToNCHW(library.ffi.from_buffer(back), buffer(library, made), 2, 4, 5, 3, 0x13)
    )
    assert (back == source).all()
    halves = np.empty((2, 4, 5, 3), np.float16)
    shape, axes = library.ffi.new("int[4]", source.shape), library.ffi.new("int[4]", (0, 2, 3, 1))
    call, null = library.cnrt.cnrtTransOrderAndCast, library.ffi.NULL
    library.ok(call(buffer(library, source), 0x13, library.ffi.from_buffer(halves), 0x12, null, 4, shape, axes))
    assert (halves == source.transpose(0, 2, 3, 1).astype(np.float16)).all()


def cast(library: Any, source: NDArray[Any], to: str, param: Any = None) -> tuple[int, NDArray[Any]]:
    made = np.zeros(source.shape, to)
    status = library.cnrt.cnrtCastDataType(
        buffer(library, source),
        TYPES[source.dtype.name],
        library.ffi.from_buffer(made),
        TYPES[to],
        source.size,
        param or library.ffi.NULL,
    )
    return status, made


def test_half_precision_rounds_as_numpy_does(library: Any) -> None:
    rng = np.random.default_rng(2)
    source = np.concatenate(
        [rng.normal(0, 10.0**power, 500) for power in range(-9, 6)]
        + [[0.0, -0.0, np.inf, -np.inf, 65504, 65519.9, 65520]]
    ).astype(np.float32)
    status, made = cast(library, source, "float16")
    library.ok(status)
    with np.errstate(over="ignore"):
        assert (made.view(np.uint16) == source.astype(np.float16).view(np.uint16)).all()
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    status, wide = cast(library, every, "float32")
    library.ok(status)
    assert np.array_equal(wide, every.astype(np.float32), equal_nan=True)


def test_casts_that_are_there_and_that_are_not(library: Any) -> None:
    status, made = cast(library, np.array([-3, 0.4, 1.6, 254.5, 999], np.float32), "uint8")
    library.ok(status)
    assert made.tolist() == [0, 0, 2, 254, 255]
    status, made = cast(library, np.array([5, -7], np.int64), "float16")
    library.ok(status)
    assert made.tolist() == [5, -7]
    for source, to in (("float32", "int8"), ("uint8", "int16"), ("int64", "float32")):
        status, _ = cast(library, np.ones(3, source), to)
        assert library.name(status) == "CNRT_RET_ERR_UNSUPPORTED"


def test_quantised_casts_go_by_position_scale_and_offset(library: Any) -> None:
    param = library.ffi.new("cnrtQuantizedParam_t *")
    library.ok(library.cnrt.cnrtCreateQuantizedParam(param, -5, 1.25, 0))
    source = np.linspace(-4, 4, 33, dtype=np.float32)
    status, stored = cast(library, source, "int8", param[0])
    library.ok(status)
    assert (stored == np.clip(np.rint(source * 1.25 * 32), -128, 127)).all()
    status, back = cast(library, stored, "float32", param[0])
    library.ok(status)
    assert np.allclose(back, stored / (1.25 * 32))
    status, _ = cast(library, np.ones(3, np.uint8), "float32", param[0])
    assert library.name(status) == "CNRT_RET_ERR_UNSUPPORTED"
    library.ok(library.cnrt.cnrtDestroyQuantizedParam(param[0]))
    status, _ = cast(library, source, "int8", param[0])
    assert library.name(status) == "CNRT_RET_ERR_INVALID"


def test_quantised_by_channel(library: Any) -> None:
    new = library.ffi.new
    param = new("cnrtQuantizedParam_t *")
    create = library.cnrt.cnrtCreateQuantizedParamByChannel
    shape = new("int[2]", [2, 3])
    library.ok(create(param, new("int[2]", [-2, 0]), new("float[2]", [1, 2]), new("float[2]", [0, 1]), 2, shape, 0))
    status, stored = cast(library, np.array([[1, 2, 3], [1, 2, 3]], np.float32), "int16", param[0])
    library.ok(status)
    assert stored.tolist() == [[4, 8, 12], [3, 5, 7]]
    library.ok(library.cnrt.cnrtDestroyQuantizedParam(param[0]))


def test_colours_and_strides(library: Any) -> None:
    new = library.ffi.new
    source = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(1, 2, 2, 3)
    made = np.zeros_like(source)
    call = library.cnrt.cnrtTransDataColorOrder
    shape = new("int[4]", source.shape)
    library.ok(
        call(buffer(library, source), library.ffi.from_buffer(made), 0x31, 0x231, shape, new("int[3]", [2, 1, 0]))
    )
    assert (made == source[..., ::-1]).all()
    wide = np.full((1, 2, 4, 4), 9, np.uint8)
    call = library.cnrt.cnrtAddDataStride
    library.ok(call(buffer(library, source), 0x31, library.ffi.from_buffer(wide), 4, shape, new("int[4]", wide.shape)))
    assert (wide[:, :, :2, :3] == source).all()
    assert (wide[:, :, 2:] == 9).all()


def test_sizes_of_types(library: Any) -> None:
    sizes = {name: library.cnrt.cnrtDataTypeSize(number) for name, number in TYPES.items()}
    assert sizes == {name: np.dtype(name).itemsize for name in TYPES}
    assert library.cnrt.cnrtDataTypeSize(0) == 4  # of what it does not know


def test_tagged_parameters(library: Any) -> None:
    new = library.ffi.new
    handle, name, value, found = new("void **"), new("char[]", b"batch"), new("int *", 8), new("int *")
    library.ok(library.cnrt.cnrtAllocParam(handle))
    library.ok(library.cnrt.cnrtAddParam(handle[0], name, 5, value))
    library.ok(library.cnrt.cnrtGetParam(handle[0], name, found, 4))
    assert found[0] == 8
    assert library.name(library.cnrt.cnrtGetParam(handle[0], new("char[]", b"x"), found, 4)) == "CNRT_RET_ERR_NO_EXIST"
    library.ok(library.cnrt.cnrtDestoryParam(handle[0]))
