"""Damaged and hostile TFLite files: one error, quickly, and no engine gets to see what would crash it."""

from __future__ import annotations

import contextlib
import random
import struct
import subprocess
import sys
import textwrap
import time
import tracemalloc
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyasc.errors import ModelFormatError, UnsupportedOperatorError
from pyasc.hal.drivers.cpu import engine_statuses
from pyasc.hal.tflite_check import check_tflite

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
_RELU = (GOLDEN / "relu.tflite").read_bytes()
_TWO_HEADS = (GOLDEN / "two_heads.tflite").read_bytes()


@pytest.mark.parametrize("name", ["relu", "two_heads", "convs", "custom"])
def test_a_sound_file_passes(name: str) -> None:
    check_tflite((GOLDEN / f"{name}.tflite").read_bytes(), name)


def test_a_real_quantised_detector_passes_in_no_time(shared: Path) -> None:
    data = (shared / "weights/yolov5n_640_int8.tflite").read_bytes()
    check_tflite(data, "yolov5n")


def test_every_truncation_is_refused() -> None:
    # The last byte of the file is the operator code's version or its neighbour: nothing of it can be missing.
    for length in range(len(_TWO_HEADS)):
        with pytest.raises(ModelFormatError, match="cut"):
            check_tflite(_TWO_HEADS[:length], "cut")


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_whatever_is_in_the_file_there_is_no_other_error(data: st.DataObject) -> None:
    changed = bytearray(_TWO_HEADS)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ModelFormatError, UnsupportedOperatorError):
        check_tflite(bytes(changed), "changed")


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ModelFormatError):
        check_tflite(data[:4] + b"TFL3" + data[8:], "random")


def test_parts_that_are_shared_without_end_are_refused_in_bounded_time() -> None:
    """All n subgraphs are the same one, and its n tensors are the same one: n² to look at in a file of 8 n bytes."""
    count = 100_000
    subgraphs_at = 40
    subgraph_at = subgraphs_at + 4 + 4 * count + 8
    tensors_at = subgraph_at + 8
    tensor_at = tensors_at + 4 + 4 * count + 4
    buffers_at = tensor_at + 4
    buffer_at = buffers_at + 8 + 4
    empty = struct.pack("<HHi", 4, 4, 4)  # a vtable without fields, and its table

    data = struct.pack("<I4s", 24, b"TFL3")
    # Model: version (field 0), subgraphs (2), buffers (4)
    data += struct.pack("<HH5H2x", 14, 16, 4, 0, 8, 0, 12)
    data += struct.pack("<iiII", 16, 3, subgraphs_at - 32, buffers_at - 36)
    data += struct.pack("<I", count) + b"".join(
        struct.pack("<I", subgraph_at - at) for at in range(subgraphs_at + 4, subgraphs_at + 4 + 4 * count, 4)
    )
    # SubGraph: tensors (field 0)
    data += struct.pack("<HHH2x", 6, 8, 4) + struct.pack("<iI", 8, tensors_at - subgraph_at - 4)
    data += struct.pack("<I", count) + b"".join(
        struct.pack("<I", tensor_at - at) for at in range(tensors_at + 4, tensors_at + 4 + 4 * count, 4)
    )
    data += empty + struct.pack("<II", 1, buffer_at - buffers_at - 4) + empty
    started = time.process_time()
    with pytest.raises(ModelFormatError, match="the same ones again and again"):
        check_tflite(data, "shared")
    assert time.process_time() - started < 20  # all n² would take hours


def _with_one_shape(dims: int, tensors: int) -> bytes:
    """A model of so many tensors that share one shape of so many ones; field numbers of schema.fbs."""
    builder = flatbuffers.Builder(1 << 20)

    def table(fields: int, offsets: dict[int, int], version: int = 0) -> int:
        builder.StartObject(fields)
        if version:
            builder.PrependUint32Slot(0, version, 0)
        for field, offset in offsets.items():
            builder.PrependUOffsetTRelativeSlot(field, offset, 0)
        return int(builder.EndObject())

    def vector(offsets: list[int]) -> int:
        builder.StartVector(4, len(offsets), 4)
        for offset in offsets:
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())

    shape = builder.CreateNumpyVector(np.ones(dims, np.int32))
    subgraph = table(5, {0: vector([table(11, {0: shape}) for _ in range(tensors)])})
    builder.Finish(table(10, {2: vector([subgraph]), 4: vector([table(3, {})])}, version=3), b"TFL3")
    return bytes(builder.Output())


def test_a_long_shape_that_many_tensors_share_is_not_read_for_each() -> None:
    check_tflite(_with_one_shape(4, 500), "short")
    data = _with_one_shape(100_000, 10_000)
    assert len(data) < 1_000_000
    tracemalloc.start()
    with pytest.raises(ModelFormatError, match="too long, or the same ones are used again and again"):
        check_tflite(data, "shared")  # it would be a thousand million numbers
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * len(data)


def _replace(old: bytes, new: bytes, data: bytes = _TWO_HEADS) -> bytes:
    assert len(old) == len(new)
    assert old in data
    return data.replace(old, new)


def test_a_constant_that_is_smaller_than_its_shape_is_refused() -> None:
    # The constant "shape" is a vector of 8 bytes: 1 and 192.
    grown = _replace(struct.pack("<Iii", 8, 1, 192), struct.pack("<Iii", 4, 1, 192))
    with pytest.raises(ModelFormatError, match=r"'shape' of shape \(2,\) has 4 bytes instead of 8"):
        check_tflite(grown, "m")


def test_a_tensor_beyond_all_memory_is_refused() -> None:
    # The shape (1, 8, 8, 3) is a vector of four numbers.
    huge = _replace(struct.pack("<5i", 4, 1, 8, 8, 3), struct.pack("<5i", 4, 1 << 30, 1 << 30, 8, 3))
    with pytest.raises(ModelFormatError, match="larger than 1024 MiB"):
        check_tflite(huge, "m")
    negative = _replace(struct.pack("<5i", 4, 1, 8, 8, 3), struct.pack("<5i", 4, 1, -8, 8, 3))
    with pytest.raises(ModelFormatError, match="has the shape"):
        check_tflite(negative, "m")


@pytest.mark.parametrize("name", ["relu", "two_heads", "convs"])
@pytest.mark.parametrize("engine", [e.name for e in engine_statuses() if e.version and "tflite" in e.formats])
def test_no_damaged_file_crashes_the_process(engine: str, name: str, tmp_path: Path) -> None:
    """200 damaged files through the driver in a process of its own, whose end tells whether an engine crashed."""
    random_ = random.Random(f"{engine} {name}")
    whole = (GOLDEN / f"{name}.tflite").read_bytes()
    for number in range(200):
        changed = bytearray(whole)
        for _ in range(random_.choice((1, 1, 2, 4))):
            # Half of the changes at the ends, where a file with weights has its structure.
            span = len(changed) if random_.random() < 0.5 else min(400, len(changed))
            at = random_.randrange(span) if random_.random() < 0.5 else len(changed) - 1 - random_.randrange(span)
            changed[at] = random_.choice((random_.randrange(256), 0, 1, 0x7F, 0x80, 0xFF, changed[at] ^ 1 << at % 8))
        (tmp_path / f"{number:03}.tflite").write_bytes(changed)
    code = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        import numpy as np
        from pyasc.errors import PyascError
        from pyasc.hal.base import Program, TensorInfo
        from pyasc.hal.drivers.cpu import open_device
        from pyasc.hal.drivers.cpu_litert import TfliteSession
        shapes = {{"relu": (("x", (1, 4)),), "two_heads": (("picture", (1, 8, 8, 3)), ("bias", (1, 8, 8, 3))),
                  "convs": (("x", (1, 256, 256, 16)),)}}[{name!r}]
        results = {{"relu": (("y", (1, 4)),), "two_heads": (("sum", (1, 8, 8, 3)), ("flat", (1, 192))),
                   "convs": (("y", (1, 256, 256, 16)),)}}[{name!r}]
        tables = [tuple(TensorInfo(n, s, "float32") for n, s in side) for side in (shapes, results)]
        ran = refused = 0
        device = open_device("cpu")
        for path in sorted(Path(sys.argv[1]).iterdir()):
            print(path.name, file=sys.stderr, flush=True)
            try:
                with device.load(Program("m", "tflite", memoryview(path.read_bytes()), *tables), engine={engine!r}) as e:
                    e.run([np.zeros(t.shape, t.dtype) for t in e.inputs])
                ran += 1
            except PyascError:
                refused += 1
        print(ran, refused)
    """)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ran, refused = (int(word) for word in done.stdout.split())
    assert ran + refused == 200
    assert refused > 20
