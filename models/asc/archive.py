"""The `.asc` file: written whole or not at all, opened with nothing of it trusted. The format: docs/asc-format.md."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path

from pyasc.errors import ModelFormatError
from pyasc.models.asc.container import Entry, read_exactly, read_zip, write_zip
from pyasc.models.asc.manifest import GRAPH_PATH, Manifest
from pyasc.models.asc.manifest_json import MANIFEST_PATH, MAX_MANIFEST_BYTES, dump_manifest, parse_manifest
from pyasc.types import Resource

_HASH_BYTES = 1 << 20
# What is often given for an archive, by its ending.
_CONVERTIBLE = {".pt": "a checkpoint", ".pth": "a checkpoint", ".onnx": "an ONNX file"}


class Archive(Resource):
    """An open `.asc` file. Its entries are mapped into memory and read from the disk when they are touched.

    Attributes:
        path: of the file.
        size_bytes: of the file.
        manifest: what the file says of the model.
        sha256: hexadecimal, for each entry but the manifest.
    """

    def __init__(
        self, path: Path, data: mmap.mmap, manifest: Manifest, sha256: Mapping[str, str], entries: Mapping[str, Entry]
    ) -> None:
        self.path = path
        self.size_bytes = len(data)
        self.manifest = manifest
        self.sha256 = sha256
        self._entries = entries
        self._data: mmap.mmap | None = data

    def graph(self) -> memoryview:
        """The portable graph, ONNX, as a read-only view of the mapped file, without a copy; see `entry`."""
        return self.entry(GRAPH_PATH)

    def entry(self, path: str) -> memoryview:
        """An entry as a read-only view of the mapped file, without a copy.

        The view stays valid after `close` for as long as it is held: the mapping ends with the last view.

        Raises:
            KeyError: the archive has no such entry.
            ValueError: the archive is closed.
        """
        if self._data is None:
            raise ValueError(f"{self.path} is closed")
        entry = self._entries[path]
        return memoryview(self._data)[entry.offset : entry.offset + entry.size]

    def size_of(self, path: str) -> int:
        """Bytes of an entry; KeyError when the archive has no such entry."""
        return self._entries[path].size

    def close(self) -> None:
        """Give the mapping back, at the latest when the last view of it goes; a second call does nothing."""
        data, self._data = self._data, None
        if data is not None:
            # BufferError: views are still held; they keep the map, which goes with the last of them.
            with contextlib.suppress(BufferError):
                data.close()


def open_archive(path: str | os.PathLike[str], *, verify: bool = True) -> Archive:
    """Open an `.asc` file, everything checked before it is used.

    Opening reads the file with `pread`, never through the mapping: a file that shrinks meanwhile is an error, not a SIGBUS.

    Args:
        path: of the file.
        verify: compare the SHA-256 of every entry, which reads the whole file; without it structure and manifest are checked.
    Raises:
        ModelFormatError: not an `.asc` file, damaged, or of a newer format.
        OSError: it is absent or cannot be read.
    """
    path = Path(path)
    # A FIFO would block, and a terminal become the controlling one, before either is refused as no regular file.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return _open(path, fd, verify)
    except ModelFormatError as error:
        if path.suffix.lower() in _CONVERTIBLE:
            kind = _CONVERTIBLE[path.suffix.lower()]
            raise ModelFormatError(f"{path} is {kind}: convert it first by `pyasc convert {path}`") from error
        raise ModelFormatError(f"{path}: {error}") from error
    finally:
        os.close(fd)


def write_archive(
    path: str | os.PathLike[str],
    manifest: Manifest,
    graph: bytes | memoryview,
    variants: Mapping[str, bytes | memoryview],
) -> None:
    """Write an `.asc` file; the same model gives the same bytes.

    It gets a temporary name in its folder, is synced and renamed: whoever opens `path` sees the old file or the new one, whole.

    Args:
        path: of the file, replaced if it exists.
        manifest: checked by the rules of the reader.
        graph: the portable graph, ONNX.
        variants: the data of each variant by `Variant.path`.
    Raises:
        ModelFormatError: the manifest is not sound, its variants are not those given, or the file would be too large.
        OSError: it cannot be written.
    """
    path = Path(path)
    names = [path for variant in manifest.variants for path in variant.paths]
    if set(names) != set(variants):
        raise ModelFormatError(f"{path}: not written: the manifest names the variants {names}, given are {[*variants]}")
    data = {GRAPH_PATH: _bytes_view(graph), **{name: _bytes_view(variants[name]) for name in names}}
    try:
        head = dump_manifest(manifest, {name: hashlib.sha256(view).hexdigest() for name, view in data.items()})
        parse_manifest(head)
        _write_replacing(path, [(MANIFEST_PATH, memoryview(head)), *data.items()])
    except ModelFormatError as error:
        raise ModelFormatError(f"{path}: not written: {error}") from error


def _open(path: Path, fd: int, verify: bool) -> Archive:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ModelFormatError("it is not a regular file")
    entries = {entry.name: entry for entry in read_zip(fd, status.st_size)}
    first = next(iter(entries.values()))
    if first.name != MANIFEST_PATH:
        raise ModelFormatError(f"the first entry is {first.name}, not {MANIFEST_PATH}")
    manifest, sha256 = parse_manifest(_read_manifest(fd, first))
    if sha256.keys() != entries.keys() - {MANIFEST_PATH}:
        odd = sorted(sha256.keys() ^ (entries.keys() - {MANIFEST_PATH}))
        raise ModelFormatError(f"manifest and archive do not have the same entries: {', '.join(odd)}")
    if verify:
        for name, digest in sha256.items():
            _verify(fd, entries[name], digest)
    return Archive(path, _map(fd, status.st_size), manifest, sha256, entries)


def _map(fd: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise ModelFormatError("the file shrank while it was opened") from error


def _read_manifest(fd: int, entry: Entry) -> bytes:
    if entry.size > MAX_MANIFEST_BYTES:
        raise ModelFormatError(f"{MANIFEST_PATH}: {entry.size} bytes are too many; there may be {MAX_MANIFEST_BYTES}")
    raw = read_exactly(fd, entry.offset, entry.size)
    # The manifest cannot hold its own hash; the archive's checksum finds damage to it.
    if zlib.crc32(raw) != entry.crc:
        raise ModelFormatError(f"{MANIFEST_PATH}: its checksum is wrong, the file is damaged")
    return raw


def _verify(fd: int, entry: Entry, digest: str) -> None:
    found, crc = hashlib.sha256(), 0
    end = entry.offset + entry.size
    for offset in range(entry.offset, end, _HASH_BYTES):
        part = read_exactly(fd, offset, min(_HASH_BYTES, end - offset))
        found.update(part)
        crc = zlib.crc32(part, crc)
    if found.hexdigest() != digest:
        raise ModelFormatError(
            f"{entry.name}: its SHA-256 is not that of the manifest, the file is damaged or was changed"
        )
    if crc != entry.crc:
        raise ModelFormatError(f"{entry.name}: its checksum is wrong, the file is damaged")


def _bytes_view(data: bytes | memoryview) -> memoryview:
    return memoryview(data).cast("B")


def _write_replacing(path: Path, entries: list[tuple[str, memoryview]]) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            write_zip(file, entries)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):  # of the file that was asked for, not of the temporary one
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
