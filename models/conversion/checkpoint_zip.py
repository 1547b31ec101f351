"""The ZIP archive of `torch.save`, every size and place in it checked before it is used."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import Any

import numpy as np

from pyasc.errors import ModelFormatError
from pyasc.models.conversion.pickle_reader import MAX_PICKLE_BYTES
from pyasc.models.conversion.torch_values import STORAGE_DTYPES, Storage

_MAX_ENTRIES = 100_000
# `zipfile` reads the directory at once and makes an object of each entry, ten times its size.
_MAX_READ_BYTES = 8 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
# torch.save stores; people who pack again deflate. Weights hardly shrink, so a file that grows much more is a bomb.
_MAX_GROWTH = 20
_ALWAYS_ALLOWED_BYTES = 64 << 20


class TorchZip:
    """The archive in memory or mapped.

    Raises:
        ModelFormatError: on construction: it is cut off, damaged, a bomb, or another kind of archive.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        # Many tensors may share a storage: it is unpacked and checked once. The claimed sizes bound what this holds.
        self._ready: dict[str, memoryview] = {}
        self._entries = _directory(data)
        self._root = self._find_root()
        order = self._optional("byteorder") or b"little"
        if order not in (b"little", b"big"):
            raise ModelFormatError("its byte order is unknown")
        self._order = "<" if order == b"little" else ">"

    def pickle(self) -> memoryview:
        """The bytes of `data.pkl`."""
        entry = self._entries[f"{self._root}data.pkl"]
        if entry.file_size > MAX_PICKLE_BYTES:
            raise ModelFormatError(f"data.pkl of {entry.file_size} bytes is too large")
        return self._read(entry)

    def storage(self, kind: str, key: str, count: int) -> Storage:
        """A storage; its size is checked now, its bytes are read when they are asked for."""
        entry = self._entries.get(f"{self._root}data/{key}")
        if entry is None:
            raise ModelFormatError(f"storage {key!r:.40} is missing")
        dtype: np.dtype[Any] = np.dtype(self._order + STORAGE_DTYPES[kind])
        if entry.file_size != count * dtype.itemsize:
            raise ModelFormatError(f"storage {key} has {entry.file_size} bytes for {count} numbers of {kind}")
        return Storage(kind, count, dtype, lambda: self._read(entry))

    def _find_root(self) -> str:
        names = self._entries.keys()
        roots = [name.removesuffix("data.pkl") for name in names if name.endswith("data.pkl") and name.count("/") < 2]
        if len(roots) != 1:
            if {"manifest.json", "graph.onnx"} <= names:
                raise ModelFormatError("is an .asc file already")
            raise ModelFormatError("is a ZIP archive without data.pkl, not a PyTorch checkpoint")
        if f"{roots[0]}constants.pkl" in names or any(name.startswith(f"{roots[0]}code/") for name in names):
            raise ModelFormatError(
                "is a TorchScript archive, which holds compiled code and not the checkpoint; convert what torch.save wrote"
            )
        return roots[0]

    def _optional(self, name: str) -> bytes | None:
        entry = self._entries.get(self._root + name)
        return bytes(self._read(entry)) if entry is not None and entry.file_size < 16 else None

    def _read(self, entry: zipfile.ZipInfo) -> memoryview:
        if entry.filename not in self._ready:
            self._ready[entry.filename] = self._unpack(entry)
        return self._ready[entry.filename]

    def _unpack(self, entry: zipfile.ZipInfo) -> memoryview:
        start = _start(self._data, entry)
        raw = self._data[start : start + entry.compress_size]
        if len(raw) != entry.compress_size:
            raise ModelFormatError(f"{entry.filename!r:.60} reaches behind the end of the file")
        if entry.compress_type == zipfile.ZIP_DEFLATED:
            raw = memoryview(_inflate(raw, entry))
        if len(raw) != entry.file_size or zlib.crc32(raw) != entry.CRC:
            raise ModelFormatError(f"{entry.filename!r:.60} is damaged, its checksum is wrong")
        return raw


def _directory(data: memoryview) -> dict[str, zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(_View(data)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, EOFError, OverflowError) as error:
        raise ModelFormatError(f"is a ZIP archive that is cut off or damaged ({error}); download it again") from error
    by_name = {entry.filename: entry for entry in entries}
    if len(by_name) < len(entries) or len(entries) > _MAX_ENTRIES:
        raise ModelFormatError("is a ZIP archive with too many entries, or with two of one name")
    for entry in entries:
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ModelFormatError(f"{entry.filename!r:.60} is packed in a way that no checkpoint is")
    claimed = sum(entry.file_size for entry in entries)
    if claimed > max(_ALWAYS_ALLOWED_BYTES, _MAX_GROWTH * len(data)):
        raise ModelFormatError(f"claims to hold {claimed} bytes in {len(data)}: a bomb, not a checkpoint")
    return by_name


def _start(data: memoryview, entry: zipfile.ZipInfo) -> int:
    head = data[entry.header_offset : entry.header_offset + 30] if entry.header_offset >= 0 else b""
    if len(head) < 30:
        raise ModelFormatError(f"{entry.filename!r:.60} lies outside of the file")
    magic, name, extra = _LOCAL_HEADER.unpack(head)
    if magic != b"PK\x03\x04":
        raise ModelFormatError(f"{entry.filename!r:.60} is not where the archive says")
    return int(entry.header_offset) + 30 + int(name) + int(extra)


def _inflate(raw: memoryview, entry: zipfile.ZipInfo) -> bytes:
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        # One more byte than announced tells a longer stream from one that ends there.
        return engine.decompress(raw, entry.file_size + 1)
    except zlib.error as error:
        raise ModelFormatError(f"{entry.filename!r:.60} cannot be unpacked: {error}") from error


class _View(io.RawIOBase):
    """The mapped file as `zipfile` wants it, without a copy."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if base + offset < 0:
            raise ValueError("a negative position")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else min(self._at + size, len(self._data))
        if end - self._at > _MAX_READ_BYTES:
            raise ValueError("its directory is too large")
        part = bytes(self._data[self._at : end])
        self._at += len(part)
        return part
