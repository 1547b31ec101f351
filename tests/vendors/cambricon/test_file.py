"""The writer and reader of model files, and the text beside them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pytest

from pyasc.errors import ModelFormatError
from pyasc.models.npu.cambricon import (
    HEAD,
    Function,
    Port,
    position_and_scale,
    read_cambricon,
    write_cambricon,
    write_twins,
)

INPUT = Port("images", "uint8", 4, 6, 4, 2, -1, position=-7, scale=1.5)
OUTPUT = Port("out", "float16", 1, 1, 9)


def test_what_is_written_is_read_again(small: Any) -> None:
    functions = (small.build("int8").function, Function(b"program!", (INPUT,), (OUTPUT, OUTPUT), (1, 2, 4), "subnet1"))
    data = write_cambricon(functions, cores=4)
    assert data.startswith(HEAD)
    assert read_cambricon(data) == functions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"junk" + data[4:], "not a model of Cambricon"),
        (lambda data: data[:32] + bytes(64) + data[96:], "compiled by the vendor's tool"),
        (lambda data: data[:-1], "damaged"),
        (lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:], "damaged"),
        (lambda data: data[:40], "damaged"),
    ],
)
def test_files_that_are_wrong(change: Any, message: str) -> None:
    data = write_cambricon([Function(b"program!" * 9, (INPUT,), (OUTPUT,))])
    with pytest.raises(ModelFormatError, match=message):
        read_cambricon(change(data))


@pytest.mark.parametrize(
    "function",
    [
        Function(b"p", (INPUT,), (OUTPUT,), ()),
        Function(b"p", (INPUT,), (OUTPUT,), (2, 1)),
        Function(b"p", (INPUT,), (OUTPUT,), (0, 1)),
        Function(b"p", (INPUT,), (Port("x" * 64, "float32", 1, 1, 1),)),
    ],
)
def test_what_the_format_cannot_hold_is_refused(function: Function) -> None:
    with pytest.raises(ValueError, match=r"batch sizes|longer than 63 bytes"):
        write_cambricon([function])


def test_the_text_beside_a_file_has_what_the_file_has() -> None:
    text = write_twins("gate.cambricon", [Function(b"p", (INPUT,), (OUTPUT,), (1, 4))], cores=4)
    lines = [line.strip() for line in text.splitlines()]
    for line in (
        "model: gate.cambricon",
        "function_num: 1",
        "name: subnet0",
        "cache_mode: true",
        "shape: 4 4 6 4",
        "data_type: CNRT_UINT8",
        "dim_order: CNRT_NHWC",
        "quantize_position: -7",
        "quantize_scale: 1.5",
        "shape: 4 1 1 9",
        "data_type: CNRT_FLOAT16",
        "model_parallelism: 4",
        "core_limit: 4",
    ):
        assert line in lines


@pytest.mark.parametrize("step", [1.0, 0.25, 1 / 127, 0.0137, 3.7, 1e-6])
def test_steps_in_the_vendors_form(step: float) -> None:
    position, scale = position_and_scale(step)
    assert 2.0**position / scale == pytest.approx(step, rel=1e-12)
    assert 1 <= scale < 2


def test_spoilt_tables_are_told(small: Any) -> None:
    rng = np.random.default_rng(5)
    good = write_cambricon([small.build("int8", batches=(1, 2)).function])
    refused = 0
    for _ in range(500):
        data = bytearray(good)
        struct.pack_into("<I", data, int(rng.integers(12, 90)) * 4, int(rng.choice([0, 1, 200, 2**31, 2**32 - 1])))
        struct.pack_into("<I", data, 44, zlib.crc32(data[48:]))
        try:
            read_cambricon(bytes(data))
        except ModelFormatError:
            refused += 1
    assert refused > 50
