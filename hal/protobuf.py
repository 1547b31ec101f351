"""A walk over the wire format of protobuf (https://protobuf.dev/programming-guides/encoding/), without a schema and within bounds.

The data is hostile until read: no step leaves it, only numbers are copied, and the fields that are looked at are counted.
"""

from __future__ import annotations

from collections.abc import Iterator

# A varint, the bytes of a number of fixed width, or what has a length: a message, a text, packed numbers.
Value = int | bytes | memoryview

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_NUMBER = (1 << 29) - 1


class WireError(Exception):
    """The data is not protobuf, is cut off, or is more than the walk's bound."""


class Wire:
    """One walk.

    Args:
        max_fields: fields of all messages together.
    """

    def __init__(self, max_fields: int) -> None:
        self._max_fields = self._left = max_fields

    def fields(self, data: memoryview) -> Iterator[tuple[int, Value]]:
        """Number and value of each field of a message.

        Args:
            data: the message, of bytes.
        Raises:
            WireError: while iterating.
        """
        position, end = 0, len(data)
        while position < end:
            self._left -= 1
            if self._left < 0:
                raise WireError(f"it has more than {self._max_fields} fields")
            tag, position = _varint(data, position)
            number, wire = tag >> 3, tag & 7
            if not 1 <= number <= _MAX_NUMBER:
                raise WireError(f"field number {number}")
            if wire == _VARINT:
                value, position = _varint(data, position)
                yield number, value
                continue
            if wire == _BYTES:
                length, position = _varint(data, position)
            elif wire in (_FIXED32, _FIXED64):
                length = 4 if wire == _FIXED32 else 8
            else:
                raise WireError(f"wire type {wire}")
            if length > end - position:
                raise WireError(f"it is cut off: a field of {length} bytes where {end - position} are left")
            part = data[position : position + length]
            yield number, part if wire == _BYTES else bytes(part)
            position += length


def field(number: int, value: Value) -> bytes:
    """A field as it stands in a message: what `Wire.fields` has read, written again."""
    if isinstance(value, int):
        return _varint_bytes(number << 3 | _VARINT) + _varint_bytes(value)
    if isinstance(value, bytes):
        return _varint_bytes(number << 3 | (_FIXED32 if len(value) == 4 else _FIXED64)) + value
    return b"".join((_varint_bytes(number << 3 | _BYTES), _varint_bytes(len(value)), value))


def message(value: Value) -> memoryview:
    """The bytes of a field that has a length; WireError for a number."""
    if not isinstance(value, memoryview):
        raise WireError("a number where a message should be")
    return value


def integer(value: Value) -> int:
    """A varint as an unsigned 64-bit number; WireError for anything else."""
    if not isinstance(value, int):
        raise WireError("a message where a number should be")
    return value


def integers(value: Value, most: int) -> list[int]:
    """One field of repeated varints; of packed ones `most` + 1 at the most, which shows the caller that there are too many."""
    if isinstance(value, int):
        return [value]
    data = message(value)
    values: list[int] = []
    position = 0
    while position < len(data) and len(values) <= most:
        number, position = _varint(data, position)
        values.append(number)
    return values


def signed(value: int) -> int:
    """A varint of the type int64."""
    return value - (1 << 64) if value >> 63 else value


def _varint_bytes(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[position : position + _MAX_VARINT_BYTES]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
    raise WireError("it is cut off, or a number does not end")
