"""Reading checkpoints: the formats of torch.save, what else a file may be, and tensors that stay within their storage."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyasc.errors import ConversionError, ModelFormatError
from pyasc.models.conversion.checkpoint import load_checkpoint
from pyasc.models.conversion.pickle_values import Record
from pyasc.models.conversion.torch_values import Array, Tensor

VALUES = np.arange(12, dtype="<f4") / 4


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def integer(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def group(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def call(function: bytes, *args: bytes) -> bytes:
    return function + group(*args) + b"R"


def storage(kind: str, key: str, count: int) -> bytes:
    return group(text("storage"), name("torch", kind), text(key), text("cpu"), integer(count)) + b"Q"


def tensor(where: bytes, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    hooks = call(name("collections", "OrderedDict"))
    sides = group(*map(integer, shape)), group(*map(integer, strides))
    return call(name("torch._utils", "_rebuild_tensor_v2"), where, integer(offset), *sides, b"\x89", hooks)


def write_zip(path: Path, body: bytes, storages: dict[str, bytes], packing: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + body + b".")
        for key, raw in storages.items():
            archive.writestr(f"archive/data/{key}", raw)
        archive.writestr("archive/version", "3\n")
    return path


def write_legacy(path: Path, body: bytes, storages: dict[str, tuple[int, bytes]]) -> Path:
    with open(path, "wb") as file:
        for value in (
            0x1950A86A20F9469CFC6C,
            1001,
            {"protocol_version": 1001, "little_endian": True, "type_sizes": {}},
        ):
            pickle.dump(value, file, 2)
        file.write(b"\x80\x02" + body + b".")
        pickle.dump(list(storages), file, 2)
        file.writelines(struct.pack("<q", count) + raw for count, raw in storages.values())
    return path


@pytest.fixture(params=["stored", "deflated", "legacy"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], Path]:
    """Writes a pickle with one storage "0" of 12 floats, in each format."""

    def write(body: bytes) -> Path:
        path = tmp_path / "model.pt"
        if request.param == "legacy":
            return write_legacy(path, body, {"0": (12, VALUES.tobytes())})
        packing = zipfile.ZIP_DEFLATED if request.param == "deflated" else zipfile.ZIP_STORED
        return write_zip(path, body, {"0": VALUES.tobytes()}, packing)

    return write


def test_a_tensor_is_read_with_its_strides(written: Callable[[bytes], Path]) -> None:
    found = load_checkpoint(written(tensor(storage("FloatStorage", "0", 12), 1, (3, 2), (1, 4))))
    assert isinstance(found, Tensor)
    np.testing.assert_array_equal(found.array(), [[0.25, 1.25], [0.5, 1.5], [0.75, 1.75]])


def test_tensors_of_no_axes_and_of_no_elements(written: Callable[[bytes], Path]) -> None:
    where = storage("FloatStorage", "0", 12)
    scalar, empty = load_checkpoint(written(group(tensor(where, 5, (), ()), tensor(where, 12, (0, 3), (3, 1)))))
    assert scalar.array().shape == ()
    assert scalar.array() == 1.25
    assert empty.array().shape == (0, 3)


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (0, (13,), (1,)),
        (1, (12,), (1,)),
        (0, (3, 5), (4, 1)),
        (0, (2, 2), (11, 1)),
        (12, (1,), (1,)),
        (0, (13,), (0,)),
        (0, (2**30, 2**30), (0, 0)),
        (0, (2,), (2**31 - 1,)),
        (13, (0,), (1,)),
        (-1, (2,), (1,)),
        (4, (2,), (-1,)),
        (0, (-2, -2), (1, 1)),
        (0, (2,), (1, 1)),
    ],
)
def test_a_tensor_outside_of_its_storage_is_refused(
    tmp_path: Path, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    body = tensor(storage("FloatStorage", "0", 12), offset, shape, strides)
    with pytest.raises(ModelFormatError, match="tensor"):
        load_checkpoint(write_zip(tmp_path / "a.pt", body, {"0": VALUES.tobytes()}))


def test_bfloat16_is_widened(tmp_path: Path) -> None:
    raw = struct.pack("<3H", 0x3F80, 0xC040, 0x7F7F)  # 1, -3 and the largest, as in the format's definition.
    path = write_zip(tmp_path / "a.pt", tensor(storage("BFloat16Storage", "0", 3), 0, (3,), (1,)), {"0": raw})
    np.testing.assert_array_equal(load_checkpoint(path).array(), np.float32([1, -3, (2 - 2**-7) * 2.0**127]))


def test_big_endian_archives_are_read(tmp_path: Path) -> None:
    path = write_zip(
        tmp_path / "a.pt",
        tensor(storage("FloatStorage", "0", 12), 0, (12,), (1,)),
        {"0": VALUES.astype(">f4").tobytes()},
    )
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/byteorder", "big")
    np.testing.assert_array_equal(load_checkpoint(path).array(), VALUES)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_values_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    tree: dict[str, Any] = {"a": [1, -2, 1 << 60, 2.5, None, True, False], "b": ("x", {"c": {}})}
    if protocol >= 1:
        tree["text"] = "ünï"  # Protocol 0 would escape it.
    if protocol >= 2:
        tree["set"] = {1, 2}  # Before, sets were made by functions of copyreg, which torch.save never wrote.
    if protocol >= 3:
        tree["bytes"] = b"raw"
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(tree, protocol))
    assert load_checkpoint(path) == tree


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_numpy_values(tmp_path: Path, protocol: int) -> None:
    numbers = np.arange(6, dtype=">i2").reshape(2, 3)
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps([np.float64(0.75), np.int64(-3), numbers.T], protocol))
    fitness, count, array = load_checkpoint(path)
    assert (fitness, count) == (0.75, -3)
    assert isinstance(array, Array)
    np.testing.assert_array_equal(array.value, numbers.T)


def test_objects_are_inert_records(demo_dir: Path) -> None:
    network = load_checkpoint(demo_dir / "yolov5n.pt")["model"]
    assert isinstance(network, Record)
    assert str(network.kind) == "models.yolo.Model"
    first = network.state["_modules"]["model"].state["_modules"]["0"]
    weight = first.state["_modules"]["conv"].state["_parameters"]["weight"]
    assert weight.array().shape == (16, 3, 6, 6)
    assert weight.array().dtype == np.float16


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n", "Git LFS pointer.*git lfs pull"),
        (b"\n<!DOCTYPE html><html><body>404</body></html>", "HTML page"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\x1c\x00\x00\x00TFL3", "TFLite"),
        (b"\x40\x00\x00\x00\x00\x00\x00\x00" + b'{"weight":{}}', "safetensors"),
        (b"hello", "no PyTorch checkpoint"),
        (pickle.dumps({"a": 1}, 2), "not one that torch.save wrote"),
        (pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(7, 2), "unknown protocol, 7"),
    ],
)
def test_other_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "best.pt"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=f"best.pt: .*{message}"):
        load_checkpoint(path)


def test_folders_pipes_and_absent_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="is a directory"):
        load_checkpoint(tmp_path)
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(ModelFormatError, match="not a regular file"):
        load_checkpoint(tmp_path / "pipe.pt")
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.pt")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"m/data.pkl": b"N.", "m/constants.pkl": b"N.", "m/code/__torch__.py": b""}, "TorchScript"),
        ({"manifest.json": b"{}", "graph.onnx": b""}, "asc file already"),
        ({"weights.npy": b""}, "ZIP archive without data.pkl"),
        ({"a/data.pkl": b"N.", "b/data.pkl": b"N."}, "ZIP archive without data.pkl"),
    ],
)
def test_other_archives_are_named(tmp_path: Path, entries: dict[str, bytes], message: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for entry, raw in entries.items():
            archive.writestr(entry, raw)
    with pytest.raises(ModelFormatError, match=message):
        load_checkpoint(tmp_path / "a.pt")


@pytest.mark.parametrize("written", ["stored", "legacy"], indirect=True)
def test_a_file_cut_off_anywhere_is_refused(written: Callable[[bytes], Path]) -> None:
    path = written(tensor(storage("FloatStorage", "0", 12), 0, (12,), (1,)))
    whole = path.read_bytes()
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFormatError):
            load_checkpoint(path)


def test_a_damaged_storage_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = write_zip(
        tmp_path / "a.pt", tensor(storage("FloatStorage", "0", 12), 0, (12,), (1,)), {"0": VALUES.tobytes()}
    )
    raw = path.read_bytes()
    at = raw.index(VALUES.tobytes())
    path.write_bytes(raw[:at] + b"\x01" + raw[at + 1 :])
    found = load_checkpoint(path)
    with pytest.raises(ModelFormatError, match="checksum"):
        found.array()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (storage("FloatStorage", "1", 12), "storage '1' is missing"),
        (storage("FloatStorage", "0", 11), "48 bytes for 11 numbers"),
        (storage("QuantumStorage", "0", 12), "QuantumStorage"),
        (group(storage("FloatStorage", "0", 12), storage("IntStorage", "0", 12)), "two ways"),
        (group(text("storage"), text("FloatStorage"), text("0"), text("cpu"), integer(12)) + b"Q", "unknown type"),
        (text("0") + b"Q", "persistent id"),
        (storage("FloatStorage", "../version", 12), "missing"),
    ],
)
def test_storages_are_checked(tmp_path: Path, body: bytes, message: str) -> None:
    path = write_zip(tmp_path / "a.pt", body, {"0": VALUES.tobytes()})
    with pytest.raises((ModelFormatError, ConversionError), match=message):
        load_checkpoint(path)


@pytest.mark.parametrize("written", ["stored", "deflated"], indirect=True)
def test_a_shared_storage_is_unpacked_once(written: Callable[[bytes], Path]) -> None:
    where = storage("FloatStorage", "0", 12)
    first, second = load_checkpoint(written(group(tensor(where, 0, (4,), (1,)), tensor(where, 2, (4,), (1,)))))
    assert np.shares_memory(first.array(), second.array())


def test_zip_bombs_are_refused_unopened(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.pt", b"N", {"0": bytes(200 << 20)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ModelFormatError, match="bomb"):
        load_checkpoint(path)


def test_an_entry_that_unpacks_to_more_than_it_says_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.pt", b"N", {"0": b""}, zipfile.ZIP_DEFLATED)
    raw = bytearray(path.read_bytes())
    directory = raw.index(b"PK\x01\x02")
    assert struct.unpack_from("<I", raw, directory + 24) == (4,)
    struct.pack_into("<I", raw, directory + 24, 3)
    path.write_bytes(raw)
    with pytest.raises(ModelFormatError, match="damaged"):
        load_checkpoint(path)


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.pt", b"N", {})
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02K\x01.")
    with pytest.raises(ModelFormatError, match="two of one name"):
        load_checkpoint(path)


def test_a_directory_of_a_million_entries_is_refused_unread(tmp_path: Path) -> None:
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
    directory = entry * 1_000_000
    end = b"PK\x05\x06" + struct.pack("<4H2LH", 0, 0, 0xFFFF, 0xFFFF, len(directory), 4, 0)
    path = tmp_path / "a.pt"
    path.write_bytes(b"PK\x03\x04" + directory + end)
    with pytest.raises(ModelFormatError, match="directory is too large"):
        load_checkpoint(path)


def test_reading_takes_no_copy_of_stored_weights(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.pt", storage("FloatStorage", "0", 12), {"0": VALUES.tobytes()})
    numbers = load_checkpoint(path).array()
    base = numbers
    while isinstance(base, np.ndarray):
        base = base.base
    assert "mmap" in type(base.obj if isinstance(base, memoryview) else base).__name__
    with pytest.raises(ValueError, match="read-only"):
        numbers[0] = 1


def test_every_reference_checkpoint_is_read(shared: Path) -> None:
    for path in sorted((shared / "weights").glob("*.[pt][th]*")):
        if path.suffix in (".pt", ".pth", ".th"):
            assert isinstance(load_checkpoint(path), dict), path
