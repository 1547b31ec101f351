"""The container of an `.asc` file: a strict subset of ZIP, written and read here.

Each entry is a local header and its data; entries, central directory and end record follow each other without a gap, the first
entry starts at byte 0, the end record ends the file. Entries are stored, and an extra field (id 0xD935, which Android's zipalign
uses) brings their data to a multiple of 64 bytes. Both headers of an entry agree. There is no compression, encryption, comment,
data descriptor, ZIP64 record, link or folder. Every ZIP tool opens such a file, and no file can say one thing to this reader and
another to a different tool, by duplicate, overlapping, hidden or contradicting records.

Field order and names: PKWARE APPNOTE.TXT 6.3.10, sections 4.3.7, 4.3.12 and 4.3.16.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from pyasc.errors import ModelFormatError

ALIGNMENT = 64
MAX_ENTRIES = 256
MAX_NAME_BYTES = 255
# The largest offset that ZIP holds without its 64-bit extension; the biggest detector of the families read here has 0.35 GB.
MAX_FILE_BYTES = 2**32 - 2

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_EXTRA_HEAD = struct.Struct("<2H")
_EXTRA = struct.Struct("<3H")
_LOCAL_MAGIC, _CENTRAL_MAGIC, _END_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_ALIGNMENT_ID = 0xD935
_VERSION_NEEDED, _VERSION_NEEDED_MAX = 10, 20
_UTF8_FLAG = 1 << 11
_DOS_DIRECTORY = 1 << 4
_MADE_BY_UNIX = 3 << 8 | _VERSION_NEEDED
# 1980-01-01 00:00, the first that ZIP can say: the same input gives the same bytes.
_DATE, _TIME = 1 << 5 | 1, 0
_FILE_MODE = (stat.S_IFREG | 0o644) << 16
_READ_BYTES = 1 << 20
_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAME = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the data of an entry is.

    Attributes:
        name: path in the archive, `/` between its segments.
        offset: of the data in the file, a multiple of 64.
        size: bytes of data, at least 1.
        crc: CRC-32 of the data.
    """

    name: str
    offset: int
    size: int
    crc: int


class _Record(NamedTuple):
    """An entry as the central directory has it; `common` is what the local header repeats: version, flags, method, time, date."""

    name: str
    offset: int
    size: int
    crc: int
    common: tuple[int, ...]


def is_safe_name(name: str) -> bool:
    """True for a relative path of plain ASCII segments, none of which is hidden, `.` or `..`."""
    return len(name) <= MAX_NAME_BYTES and _NAME.fullmatch(name) is not None


def write_zip(file: BinaryIO, entries: Sequence[tuple[str, memoryview]]) -> None:
    """Write an archive; the same entries give the same bytes.

    Args:
        file: empty and opened for writing.
        entries: name and data (C-contiguous bytes), in the order in which they are to stand.
    Raises:
        ModelFormatError: the archive would be over 4 GiB, has too many entries, or an entry is empty or has an unusable name.
    """
    _check_entries(entries)
    directory = bytearray()
    offset = 0
    for name, data in entries:
        crc = zlib.crc32(data)
        header = _local_header(name, offset, data.nbytes, crc)
        directory += _central_header(name, offset, data.nbytes, crc)
        file.write(header)
        file.write(data)
        offset += len(header) + data.nbytes
    end = _END.pack(_END_MAGIC, 0, 0, len(entries), len(entries), len(directory), offset, 0)
    file.write(bytes(directory) + end)


def read_zip(fd: int, size: int) -> list[Entry]:
    """The entries of an archive, in the order in which they stand, all of it checked but for the data itself.

    Args:
        fd: of the file, opened for reading.
        size: of the file in bytes.
    Raises:
        ModelFormatError: the file is not of the form that this module's docstring describes.
    """
    count, start, length = _read_end(fd, size)
    directory = memoryview(read_exactly(fd, start, length))
    entries: list[Entry] = []
    position = expected_offset = 0
    for number in range(count):
        record, position = _parse_central(directory, position, number)
        if record.offset != expected_offset:
            raise ModelFormatError(f"{record.name}: starts at byte {record.offset}, not at {expected_offset}")
        entries.append(_parse_local(fd, record, start))
        expected_offset = entries[-1].offset + record.size
    if position != length:
        raise ModelFormatError(f"{length - position} bytes of the central directory belong to no entry")
    if expected_offset != start:
        raise ModelFormatError(f"{start - expected_offset} bytes before the central directory belong to no entry")
    if len({entry.name.lower() for entry in entries}) < count:
        raise ModelFormatError("two entries have the same name")
    return entries


def read_exactly(fd: int, offset: int, size: int) -> bytes:
    """Read a part of a file, without the file position; the caller bounds `size`.

    Raises:
        ModelFormatError: the file ends before that.
    """
    parts = []
    while size > 0:
        part = os.pread(fd, min(size, _READ_BYTES), offset)
        if not part:
            raise ModelFormatError(f"the file ends at byte {offset}, {size} bytes early")
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)


def _check_entries(entries: Sequence[tuple[str, memoryview]]) -> None:
    if not 1 <= len(entries) <= MAX_ENTRIES:
        raise ModelFormatError(f"{len(entries)} entries; an archive has 1 to {MAX_ENTRIES}")
    total = _END.size
    for name, data in entries:
        if not is_safe_name(name):
            raise ModelFormatError(f"{name!r} cannot be the name of an entry")
        if data.nbytes == 0:
            raise ModelFormatError(f"{name} is empty")
        total += _LOCAL.size + _CENTRAL.size + 2 * len(name) + 2 * ALIGNMENT + data.nbytes
    if total > MAX_FILE_BYTES:
        raise ModelFormatError(f"{total} bytes do not fit an .asc file, which holds at most {MAX_FILE_BYTES}")


def _local_header(name: str, offset: int, size: int, crc: int) -> bytes:
    raw = name.encode("ascii")
    before_padding = offset + _LOCAL.size + len(raw) + _EXTRA.size
    padding = -before_padding % ALIGNMENT
    extra = _EXTRA.pack(_ALIGNMENT_ID, 2 + padding, ALIGNMENT) + bytes(padding)
    fixed = _LOCAL.pack(
        _LOCAL_MAGIC, _VERSION_NEEDED, 0, 0, _TIME, _DATE, crc, size, size, len(raw), len(extra)
    )  # fmt: skip
    return fixed + raw + extra


def _central_header(name: str, offset: int, size: int, crc: int) -> bytes:
    raw = name.encode("ascii")
    fixed = _CENTRAL.pack(
        _CENTRAL_MAGIC, _MADE_BY_UNIX, _VERSION_NEEDED, 0, 0, _TIME, _DATE, crc, size, size,
        len(raw), 0, 0, 0, 0, _FILE_MODE, offset,
    )  # fmt: skip
    return fixed + raw


def _read_end(fd: int, size: int) -> tuple[int, int, int]:
    """Number of entries, start and length of the central directory."""
    if size > MAX_FILE_BYTES:
        raise ModelFormatError(f"{size} bytes are more than an .asc file can have ({MAX_FILE_BYTES})")
    if size < _LOCAL.size + _CENTRAL.size + _END.size:
        raise ModelFormatError(f"{size} bytes are too few for an .asc file")
    if read_exactly(fd, 0, 4) != _LOCAL_MAGIC:
        raise ModelFormatError("it is not a ZIP archive")
    magic, disk, first_disk, here, count, length, start, comment = _END.unpack(
        read_exactly(fd, size - _END.size, _END.size)
    )
    if magic != _END_MAGIC or comment:
        raise ModelFormatError(
            "the end record is missing or does not end the file: truncated, or something was appended"
        )
    if disk or first_disk or here != count:
        raise ModelFormatError("the archive is split over several files")
    if not 1 <= count <= MAX_ENTRIES:
        raise ModelFormatError(f"{count} entries; an archive has 1 to {MAX_ENTRIES}")
    if start + length != size - _END.size:
        raise ModelFormatError(f"the central directory (byte {start}, {length} bytes) does not end at the end record")
    if length > count * (_CENTRAL.size + MAX_NAME_BYTES):
        raise ModelFormatError(f"a central directory of {length} bytes is too long for {count} entries")
    return count, start, length


def _parse_central(directory: memoryview, position: int, number: int) -> tuple[_Record, int]:
    """The record at `position` and the position after it."""
    where = f"central directory, entry {number}"
    if len(directory) - position < _CENTRAL.size:
        raise ModelFormatError(f"{where}: cut off")
    (
        magic, _made_by, needed, flags, method, time, date, crc, packed, size,
        name_length, extra_length, comment_length, disk, _internal, external, offset,
    ) = _CENTRAL.unpack_from(directory, position)  # fmt: skip
    position += _CENTRAL.size
    if magic != _CENTRAL_MAGIC:
        raise ModelFormatError(f"{where}: no record here")
    raw = bytes(directory[position : position + name_length])
    name = raw.decode("ascii", "replace")
    if len(raw) != name_length or not is_safe_name(name):
        raise ModelFormatError(f"{where}: {name[:MAX_NAME_BYTES]!r} cannot be the name of an entry")
    position += name_length
    _check_extra(name, bytes(directory[position : position + extra_length]), extra_length)
    if comment_length or disk:
        raise ModelFormatError(f"{name}: has a comment or lies on another disk")
    if flags & ~_UTF8_FLAG or method or packed != size or needed > _VERSION_NEEDED_MAX:
        raise ModelFormatError(f"{name}: is encrypted, compressed or streamed; entries are stored as they are")
    if stat.S_IFMT(external >> 16) not in (0, stat.S_IFREG) or external & _DOS_DIRECTORY:
        raise ModelFormatError(f"{name}: is a link, a folder or a device")
    if size == 0:
        raise ModelFormatError(f"{name}: is empty")
    return _Record(name, offset, size, crc, (needed, flags, method, time, date)), position + extra_length


def _parse_local(fd: int, record: _Record, limit: int) -> Entry:
    """Where the data of an entry is; its local header must say the same as its record in the central directory."""
    name = record.name
    magic, *common, crc, packed, size, name_length, extra_length = _LOCAL.unpack(
        read_exactly(fd, record.offset, _LOCAL.size)
    )
    if (magic, tuple(common), crc, packed, size, name_length) != (
        _LOCAL_MAGIC, record.common, record.crc, record.size, record.size, len(name),
    ):  # fmt: skip
        raise ModelFormatError(f"{name}: its local header contradicts the central directory")
    rest = read_exactly(fd, record.offset + _LOCAL.size, name_length + extra_length)
    if rest[:name_length] != name.encode("ascii"):
        raise ModelFormatError(f"{name}: has another name in its local header")
    _check_extra(name, rest[name_length:], extra_length)
    start = record.offset + _LOCAL.size + len(rest)
    if start % ALIGNMENT:
        raise ModelFormatError(f"{name}: its data starts at byte {start}, which is not a multiple of {ALIGNMENT}")
    if start + size > limit:
        raise ModelFormatError(f"{name}: {size} bytes at {start} reach beyond the data, which ends at {limit}")
    return Entry(name, start, size, crc)


def _check_extra(name: str, extra: bytes, length: int) -> None:
    # Another field may change name, size or place of the data for a tool that knows it, and padding may hide a record.
    position = 0
    while position < length:
        head = extra[position : position + _EXTRA_HEAD.size]
        kind, size = _EXTRA_HEAD.unpack(head) if len(head) == _EXTRA_HEAD.size else (0, 0)
        body = extra[position + _EXTRA_HEAD.size : position + _EXTRA_HEAD.size + size]
        if kind != _ALIGNMENT_ID or len(body) != size or any(body[2:]):
            raise ModelFormatError(f"{name}: has an extra field that is not padding")
        position += _EXTRA_HEAD.size + size
