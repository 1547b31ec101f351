"""Damaged and hostile `.asc` files: each is refused, by the fault that it has."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyasc.errors import ModelFormatError
from pyasc.models.asc.archive import open_archive
from pyasc.models.asc.container import read_zip

VARIANT = "variants/cpu/model.tflite"
LOCAL = ["magic", "needed", "flags", "method", "time", "date", "crc", "packed", "size", "name_length", "extra_length"]
CENTRAL = [
    *("magic", "made_by", "needed", "flags", "method", "time", "date", "crc", "packed", "size", "name_length"),
    *("extra_length", "comment_length", "disk", "internal", "external", "offset"),
]
END = ["magic", "disk", "first_disk", "here", "count", "length", "start", "comment_length"]


@dataclass
class Part:
    """An entry, and what its headers say instead of the truth."""

    name: str
    data: bytes
    stored: bytes | None = None
    raw_name: bytes | None = None
    local_name: bytes | None = None
    extra: bytes | None = None
    central_extra: bytes = b""
    before: bytes = b""
    both: dict[str, Any] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=dict)
    central: dict[str, Any] = field(default_factory=dict)


def padding_field(length: int) -> bytes:
    return struct.pack("<3H", 0xD935, length - 4, 64) + bytes(length - 6)


def build(parts: list[Part], end: dict[str, Any] | None = None, *, gap: bytes = b"", tail: bytes = b"") -> bytes:
    """An archive written by this test alone, field by field, with lies where it is told to."""
    out, directory = bytearray(), bytearray()
    for part in parts:
        out += part.before
        raw = part.raw_name if part.raw_name is not None else part.name.encode()
        local_raw = part.local_name if part.local_name is not None else raw
        extra = part.extra
        if extra is None:
            extra = padding_field(6 + -(len(out) + 30 + len(local_raw) + 6) % 64)
        stored = part.data if part.stored is None else part.stored
        truth = {
            "magic": b"PK\3\4", "made_by": 3 << 8 | 10, "needed": 10, "flags": 0, "method": 0, "time": 0, "date": 33,
            "crc": zlib.crc32(part.data), "packed": len(stored), "size": len(part.data), "comment_length": 0, "disk": 0,
            "internal": 0, "external": 0o100644 << 16, "offset": len(out), **part.both,
        }  # fmt: skip
        local = {**truth, "name_length": len(local_raw), "extra_length": len(extra), **part.local}
        central = {**truth, "magic": b"PK\1\2", "name_length": len(raw), "extra_length": len(part.central_extra)}
        central.update(part.central)
        out += struct.pack("<4s5H3I2H", *(local[key] for key in LOCAL)) + local_raw + extra + stored
        directory += struct.pack("<4s6H3I5H2I", *(central[key] for key in CENTRAL)) + raw + part.central_extra
    out += gap
    record = {
        "magic": b"PK\5\6", "disk": 0, "first_disk": 0, "here": len(parts), "count": len(parts),
        "length": len(directory), "start": len(out), "comment_length": 0, **(end or {}),
    }  # fmt: skip
    return bytes(out + directory + struct.pack("<4s4H2IH", *(record[key] for key in END)) + tail)


def parts_of(path: Path) -> list[Part]:
    with zipfile.ZipFile(path) as archive:
        return [Part(name, archive.read(name)) for name in archive.namelist()]


@pytest.fixture
def refused(small_asc: Path) -> Callable[[bytes], str]:
    """Writes the bytes over the sound file, opens it, and returns why it was refused."""

    def open_it(raw: bytes) -> str:
        small_asc.write_bytes(raw)
        with pytest.raises(ModelFormatError) as caught:
            open_archive(small_asc)
        message = str(caught.value)
        assert message.startswith(f"{small_asc}: ")
        assert "\n" not in message
        return message

    return open_it


def test_the_builder_of_these_tests_makes_sound_files(small_asc: Path) -> None:
    raw = build(parts_of(small_asc))
    assert raw == small_asc.read_bytes()


def lie(**lies: Any) -> Callable[[list[Part]], bytes]:
    """The archive with lies in its second entry."""

    def make(parts: list[Part]) -> bytes:
        for key, value in lies.items():
            setattr(parts[1], key, value)
        return build(parts)

    return make


def renamed(name: str | bytes) -> Callable[[list[Part]], bytes]:
    raw = name if isinstance(name, bytes) else name.encode()
    return lie(raw_name=raw)


def compressed(parts: list[Part]) -> bytes:
    data = bytes(1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    parts[1] = Part("graph.onnx", data, packer.compress(data) + packer.flush(), both={"method": 8, "needed": 20})
    return build(parts)


def overlapping(parts: list[Part]) -> bytes:
    """The third entry's record points at the second entry, as in a bomb of overlapping files."""
    first = 30 + len(parts[0].name)
    offset = -(-(first + 6) // 64) * 64 + len(parts[0].data)
    parts[2] = Part("graph.onnx", parts[1].data, central={"offset": offset})
    return build(parts)


def reordered(parts: list[Part]) -> bytes:
    return build([parts[1], parts[0], parts[2]])


def without(index: int) -> Callable[[list[Part]], bytes]:
    return lambda parts: build([part for number, part in enumerate(parts) if number != index])


def whole_file_as_directory(parts: list[Part]) -> bytes:
    gap = bytes(2000)
    return build(parts, {"start": 0, "length": len(build(parts, gap=gap)) - 22}, gap=gap)


def hidden_in_directory(parts: list[Part]) -> bytes:
    sound = build(parts)
    length, start = struct.unpack("<2I", sound[-10:-2])
    return sound[:-22] + b"hidden" + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 3, 3, length + 6, start, 0)


def with_zip64(parts: list[Part]) -> bytes:
    extra = struct.pack("<2HQQ", 1, 16, len(parts[1].data), len(parts[1].data))
    parts[1].central_extra = extra
    parts[1].both = {"size": 0xFFFFFFFF, "packed": 0xFFFFFFFF, "needed": 45}
    return build(parts)


def with_zip64_end(parts: list[Part]) -> bytes:
    """A 64-bit end record between directory and end record, which a tool that knows it would believe."""
    sound = build(parts)
    start = int.from_bytes(sound[-6:-2], "little")
    record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 3, 3, 1, start)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, len(sound) - 22, 1)
    return sound[:-22] + record + locator + sound[-22:]


ATTACKS: dict[str, tuple[Callable[[list[Part]], bytes], str]] = {
    "empty file": (lambda parts: b"", "0 bytes are too few"),
    "text": (lambda parts: b"not a model " * 50, "not a ZIP archive"),
    "an ONNX file": (lambda parts: b"\x08\x08\x12\x07pytorch" + bytes(500), "not a ZIP archive"),
    "something before": (lambda parts: b"#!/bin/sh\n" + build(parts), "not a ZIP archive"),
    "self-extracting": (lambda parts: b"PK\3\4" + bytes(60) + build(parts), "does not end at the end record"),
    "something after": (lambda parts: build(parts, tail=b"\0"), "the end record is missing"),
    "archive comment": (
        lambda parts: build(parts, {"comment_length": 5}, tail=b"hello"),
        "the end record is missing",
    ),
    "archive comment cut off": (lambda parts: build(parts, {"comment_length": 5}), "the end record is missing"),
    "two archives": (lambda parts: build(parts) * 2, "does not end at the end record"),
    "gap before the directory": (lambda parts: build(parts, gap=b"hidden"), "belong to no entry"),
    "gap between entries": (lie(before=b"hidden"), r"graph\.onnx: starts at byte"),
    "several disks": (lambda parts: build(parts, {"disk": 1}), "split over several files"),
    "disk counts differ": (lambda parts: build(parts, {"here": 2}), "split over several files"),
    "no entries": (lambda parts: build([]), "too few"),
    "65535 entries": (lambda parts: build(parts, {"here": 65535, "count": 65535}), "65535 entries"),
    "one entry more than there are": (lambda parts: build(parts, {"here": 4, "count": 4}), "cut off"),
    "one entry fewer than there are": (lambda parts: build(parts, {"here": 2, "count": 2}), "belong to no entry"),
    "directory beyond the file": (lambda parts: build(parts, {"start": 2**32 - 2}), "does not end at the end record"),
    "directory of absurd length": (whole_file_as_directory, "too long for 3 entries"),
    "record of no entry in the directory": (hidden_in_directory, "central directory belong to no entry"),
    "ZIP64 sizes": (with_zip64, "not padding"),
    "ZIP64 end record": (with_zip64_end, "does not end at the end record"),
    "ZIP64 in the local header": (lie(extra=struct.pack("<2HQQ", 1, 16, 5, 5) + bytes(2)), "not padding"),
    "name in an extra field": (lie(central_extra=b"\x75\x70\x06\x00\x01aaaax"), "not padding"),
    "record in the padding": (lie(central_extra=padding_field(26)[:6] + b"PK\6\7" + bytes(16)), "not padding"),
    "extra field cut off": (lie(extra=b"\x35\xd9\xff\x00\x40\x00"), "not padding"),
    "extra field of one byte": (lie(extra=b"\0"), "not padding"),
    "misaligned data": (lie(extra=padding_field(7)), "not a multiple of 64"),
    "no padding": (lie(extra=b""), "not a multiple of 64"),
    "compressed": (compressed, "compressed"),
    "stored sizes differ": (lie(both={"size": 5}), "compressed"),
    "encrypted": (lie(both={"flags": 1}), "encrypted"),
    "strongly encrypted": (lie(both={"flags": 0x41}), "encrypted"),
    "data descriptor": (lie(both={"flags": 8}), "streamed"),
    "size beyond the file": (lie(both={"size": 2**32 - 2, "packed": 2**32 - 2}), "reach beyond"),
    "size over the next entry": (lie(both={"size": 600, "packed": 600}), r"tflite: starts at byte|reach beyond"),
    "size too small": (lie(both={"size": 500, "packed": 500}), "starts at byte"),
    "offset beyond the file": (lie(central={"offset": 2**32 - 2}), "starts at byte"),
    "offset of another entry": (lie(central={"offset": 0}), "starts at byte 0"),
    "overlapping entries": (overlapping, "starts at byte"),
    "local size differs": (lie(local={"size": 5, "packed": 5}), "contradicts"),
    "local checksum differs": (lie(local={"crc": 1}), "contradicts"),
    "local method differs": (lie(local={"method": 8}), "contradicts"),
    "local flags differ": (lie(local={"flags": 1}), "contradicts"),
    "local name differs": (lie(local_name=b"graph.onny"), "another name"),
    "local name is longer": (lie(local_name=b"graph.onnx2"), "contradicts"),
    "no local header": (lie(local={"magic": b"PK\0\0"}), "contradicts"),
    "no central record": (lie(central={"magic": b"PK\0\0"}), "no record here"),
    "name beyond the directory": (lie(central={"name_length": 65535}), "cannot be the name"),
    "extra beyond the directory": (lie(central={"extra_length": 65535}), "not padding"),
    "local extra beyond the file": (lie(local={"extra_length": 65535}), "the file ends|not padding"),
    "entry comment": (lie(central={"comment_length": 3}), "comment"),
    "wrong checksum in both": (lie(both={"crc": 1}), r"graph\.onnx: its checksum is wrong"),
    "symbolic link": (lie(both={"external": 0o120777 << 16}), "link"),
    "folder by mode": (lie(both={"external": 0o040755 << 16}), "folder"),
    "folder by DOS attribute": (lie(both={"external": 0x10}), "folder"),
    "device": (lie(both={"external": 0o020644 << 16}), "device"),
    "empty entry": (lambda parts: build([parts[0], Part("graph.onnx", b""), parts[2]]), "is empty"),
    "parent folder": (renamed("../graph.onnx"), "cannot be the name"),
    "parent folder inside": (renamed("variants/../../x"), "cannot be the name"),
    "absolute": (renamed("/etc/passwd"), "cannot be the name"),
    "backslash": (renamed("..\\graph.onnx"), "cannot be the name"),
    "drive letter": (renamed("C:graph.onnx"), "cannot be the name"),
    "NUL": (renamed("graph.onnx\0.txt"), "cannot be the name"),
    "newline": (renamed("graph.onnx\n"), "cannot be the name"),
    "terminal escape": (renamed("\x1b[2Jgraph"), "cannot be the name"),
    "not UTF-8": (renamed(b"graph\xff.onnx"), "cannot be the name"),
    "look-alike": (renamed("gr\u0430ph.onnx"), "cannot be the name"),
    "no name": (renamed(""), "cannot be the name"),
    "folder name": (renamed("graph.onnx/"), "cannot be the name"),
    "two slashes": (renamed("variants//x"), "cannot be the name"),
    "here": (renamed("./graph.onnx"), "cannot be the name"),
    "hidden": (renamed(".bashrc"), "cannot be the name"),
    "long": (renamed("a" * 256), "cannot be the name"),
    "unknown entry": (lambda parts: build([*parts, Part("extra.bin", b"x")]), "do not have the same entries: extra.bin"),
    "other name": (renamed("graph2.onnx"), r"do not have the same entries: graph\.onnx, graph2\.onnx"),
    "graph missing": (without(1), r"do not have the same entries: graph\.onnx"),
    "variant missing": (without(2), "do not have the same entries: variants/cpu"),
    "manifest missing": (without(0), r"the first entry is graph\.onnx"),
    "manifest not first": (reordered, r"the first entry is graph\.onnx"),
    "graph twice": (lambda parts: build([*parts, parts[1]]), "two entries have the same name"),
    "manifest twice": (lambda parts: build([parts[0], parts[0], *parts[1:]]), "two entries have the same name"),
    "twice in another case": (
        lambda parts: build([*parts, Part("GRAPH.onnx", b"x")]),
        "two entries have the same name",
    ),
    "changed graph": (
        lambda parts: build([parts[0], Part("graph.onnx", parts[1].data[:-1] + b"D"), parts[2]]),
        r"graph\.onnx: its SHA-256 is not",
    ),
    "graph and variant exchanged": (
        lambda parts: build([parts[0], Part("graph.onnx", parts[2].data), Part(VARIANT, parts[1].data)]),
        r"graph\.onnx: its SHA-256 is not",
    ),
    "huge manifest": (
        lambda parts: build([Part("manifest.json", b" " * (3 << 20)), *parts[1:]]),
        r"manifest\.json: 3145728 bytes are too many",
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_for_what_it_is(attack: str, small_asc: Path, refused: Callable[[bytes], str]) -> None:
    make, message = ATTACKS[attack]
    raw = make(parts_of(small_asc))
    assert re.search(message, refused(raw))


def test_nothing_is_written_and_little_memory_used(small_asc: Path, refused: Callable[[bytes], str]) -> None:
    attacks = [make(parts_of(small_asc)) for make, _ in ATTACKS.values()]
    tracemalloc.start()
    try:
        for raw in attacks:
            refused(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    assert [path.name for path in small_asc.parent.iterdir()] == ["small.asc"]


def test_a_sparse_file_of_16_gib(small_asc: Path) -> None:
    with small_asc.open("r+b") as file:
        file.truncate(1 << 34)
    with pytest.raises(ModelFormatError, match="are more than an"):
        open_archive(small_asc)


def test_a_folder_a_fifo_and_a_device(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.asc"
    os.mkfifo(fifo)
    for path in (tmp_path, fifo, Path("/dev/zero")):
        with pytest.raises(ModelFormatError, match=f"^{path}: it is not a regular file"):
            open_archive(path)


def test_every_truncation_is_refused(small_asc: Path, refused: Callable[[bytes], str]) -> None:
    raw = small_asc.read_bytes()
    for length in range(len(raw)):
        refused(raw[:length])


def content(path: Path) -> tuple[Any, ...]:
    with open_archive(path) as archive:
        return archive.manifest, dict(archive.sha256), bytes(archive.graph()), bytes(archive.entry(VARIANT))


def opens_as_before(path: Path, before: tuple[Any, ...]) -> bool:
    """False when the file is refused; it must not open with other content, to us or to another reader of ZIP."""
    try:
        after = content(path)
    except ModelFormatError:
        return False
    assert after == before
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["manifest.json", "graph.onnx", VARIANT]
        assert (archive.read("graph.onnx"), archive.read(VARIANT)) == before[2:]
    return True


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_flipped_byte_is_refused_or_changes_nothing(small_asc: Path, mask: int) -> None:
    raw = small_asc.read_bytes()
    before = content(small_asc)
    opened = 0
    with small_asc.open("r+b", buffering=0) as file:
        for offset, byte in enumerate(raw):
            os.pwrite(file.fileno(), bytes([byte ^ mask]), offset)
            opened += opens_as_before(small_asc, before)
            os.pwrite(file.fileno(), bytes([byte]), offset)
    # What may change: tool, attributes and the two bytes of the padding that name the alignment. The rest is 98 % of the file.
    assert 0 < opened < len(raw) / 50


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_insertions_deletions_and_copies(small_asc: Path, data: st.DataObject) -> None:
    path = small_asc.with_name("mutant.asc")
    raw = small_asc.read_bytes()
    before = content(small_asc)
    start = data.draw(st.integers(0, len(raw)))
    stop = data.draw(st.integers(start, min(len(raw), start + data.draw(st.sampled_from([0, 4, 64, len(raw)])))))
    piece = data.draw(st.one_of(st.binary(max_size=40), st.just(raw[start:stop]), st.just(raw)))
    position = data.draw(st.integers(0, len(raw)))
    erased = data.draw(st.sampled_from([0, len(piece), stop - start]))
    path.write_bytes(raw[:position] + piece + raw[position + erased :])
    opens_as_before(path, before)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_header_fields_at_random(small_asc: Path, data: st.DataObject) -> None:
    """Each field of each record set to values that break readers; what opens must be the same to every reader."""
    path = small_asc.with_name("mutant.asc")
    before = content(small_asc)
    parts = parts_of(small_asc)
    part = data.draw(st.sampled_from(parts))
    record = data.draw(st.sampled_from(["both", "local", "central", "end"]))
    key = data.draw(st.sampled_from({"local": LOCAL, "central": CENTRAL, "both": LOCAL[1:9], "end": END}[record]))
    wide = key in ("crc", "packed", "size", "external", "offset", "length", "start")
    limit = 2**32 if wide else 2**16
    numbers = st.one_of(st.sampled_from([0, 1, 0xFFFF, limit - 1, limit // 2]), st.integers(0, limit - 1))
    value = data.draw(st.binary(min_size=4, max_size=4) if key == "magic" else numbers)
    if record == "end":
        path.write_bytes(build(parts, {key: value}))
    else:
        getattr(part, record)[key] = value
        path.write_bytes(build(parts))
    opens_as_before(path, before)


@settings(max_examples=60, deadline=None)
@given(raw=st.binary(max_size=400))
def test_any_bytes(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.asc"
    for content_of_file in (raw, b"PK\3\4" + raw, b"PK\3\4" + raw + b"PK\5\6" + raw[:18]):
        path.write_bytes(content_of_file)
        with pytest.raises(ModelFormatError):
            open_archive(path)


def with_manifest(parts: list[Part], change: Callable[[dict[str, Any]], None]) -> bytes:
    document = json.loads(parts[0].data)
    change(document)
    return build([Part("manifest.json", json.dumps(document).encode()), *parts[1:]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["sha256"].pop("graph.onnx"), r"manifest\.json: sha256: the key 'graph\.onnx' is missing"),
        (lambda d: d["sha256"].update(more="0" * 64), r"manifest\.json: sha256: the key \"more\" is unknown"),
        (lambda d: d["sha256"].update({VARIANT: "0" * 64}), r"model\.tflite: its SHA-256 is not that of the manifest"),
        (lambda d: d["sha256"].update({VARIANT: "0" * 63}), r"has 63 characters|does not match"),
        (lambda d: d["sha256"].update({VARIANT: "G" * 64}), r"does not match"),
        (lambda d: d["sha256"].update({VARIANT: None}), r"null is not a string"),
        (lambda d: d["variants"][0].update(path="graph.onnx"), r"variants\[0\]\.path: .* below variants/cpu/"),
        (
            lambda d: d["variants"][0].update(path="variants/cpu/../../x"),
            r"variants\[0\]\.path: .* below variants/cpu/",
        ),
    ],
)
def test_hashes_and_paths_of_the_manifest(
    small_asc: Path, refused: Callable[[bytes], str], change: Callable[[dict[str, Any]], None], message: str
) -> None:
    assert re.search(message, refused(with_manifest(parts_of(small_asc), change)))


def test_without_verification_only_the_data_is_trusted(small_asc: Path) -> None:
    parts = parts_of(small_asc)
    parts[1] = Part("graph.onnx", b"other")
    small_asc.write_bytes(build(parts))
    with open_archive(small_asc, verify=False) as archive:
        assert bytes(archive.graph()) == b"other"
        assert archive.sha256["graph.onnx"] != hashlib.sha256(b"other").hexdigest()
    small_asc.write_bytes(with_manifest(parts_of(small_asc), lambda d: d.update(task="cook")))
    with pytest.raises(ModelFormatError, match="task"):
        open_archive(small_asc, verify=False)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.99])
def test_a_file_that_shrinks_while_it_is_opened(small_asc: Path, share: float) -> None:
    """Its size is asked once; what follows reads it with bounds, so that a shorter file is an error and not a signal."""
    size = small_asc.stat().st_size
    with small_asc.open("r+b") as file:
        file.truncate(int(size * share))
        with pytest.raises(ModelFormatError, match="the file ends at byte"):
            read_zip(file.fileno(), size)
