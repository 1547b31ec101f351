"""Width and height from the header of a picture file, before a decoder allocates anything for it.

Sources: PNG (ISO/IEC 15948), JPEG (ITU-T T.81 annex B), BMP (Microsoft, BITMAPINFOHEADER), WebP (RFC 9649), TIFF 6.0 and BigTIFF,
PNM (netpbm). Other formats that OpenCV could decode are not taken: few people need them, and each is one more parser to trust.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from pyasc.errors import StreamError

FORMATS = "JPEG, PNG, BMP, TIFF, WebP or PNM"

# Start-of-frame markers: all of 0xC0..0xCF but DHT (C4), JPG (C8) and DAC (CC).
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_SEGMENTS = 10_000  # before the frame; a long colour profile or preview takes some hundred
_JPEG_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_PNG_END = b"IEND\xaeB`\x82"  # with the checksum of an empty chunk of this name
_PNM_HEADER = re.compile(rb"P[1-6](?:\s|#[^\n]*\n)+(\d{1,9})(?:\s|#[^\n]*\n)+(\d{1,9})\s")
_PNM_HEADER_BYTES = 1 << 16  # comments included
_TIFF_TYPES = {3: "H", 4: "I", 16: "Q"}


def picture_size(data: bytes) -> tuple[int, int]:
    """Width and height of an encoded picture, before any rotation that its EXIF tag asks for.

    Raises:
        StreamError: no picture of a known format, cut off, or without a size.
    """
    for magic, parse in _PARSERS:
        if re.match(magic, data, re.DOTALL):
            try:
                width, height = parse(data)
            except (struct.error, IndexError, ValueError) as error:
                raise StreamError("the picture's header is damaged or cut off") from error
            if width < 1 or height < 1:
                raise StreamError(f"the picture is {width} x {height} pixels")
            return width, height
    raise StreamError(f"not a picture in the format {FORMATS}")


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(_JPEG_SEGMENTS):
        if data[at] != 0xFF:
            raise ValueError("no marker")
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _JPEG_ALONE:
            at += 2
        elif marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            # OpenCV fills what is missing of a cut-off file with grey and calls it a picture.
            if data.find(b"\xff\xd9", at) < 0:
                raise ValueError("no end of image")
            return width, height
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    raise ValueError("no frame")


def _png(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", data, 16)
    if data[12:16] != b"IHDR" or _PNG_END not in data:
        raise ValueError("no first or no last chunk")
    return width, height


def _bmp(data: bytes) -> tuple[int, int]:
    if struct.unpack_from("<I", data, 14)[0] == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return width, abs(height)  # negative: the rows go from top to bottom


def _webp(data: bytes) -> tuple[int, int]:
    if len(data) < 8 + struct.unpack_from("<I", data, 4)[0]:
        raise ValueError("cut off")
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError("no picture chunk")


def _tiff(data: bytes) -> tuple[int, int]:
    order = "<" if data[:2] == b"II" else ">"
    big = struct.unpack_from(order + "H", data, 2)[0] == 43
    at = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)[0]
    count = struct.unpack_from(order + ("Q" if big else "H"), data, at)[0]
    first, step = (at + 8, 20) if big else (at + 2, 12)
    if count > 4096:
        raise ValueError("too many tags")
    sides: dict[int, int] = {}
    for entry in range(first, first + count * step, step):
        tag, kind = struct.unpack_from(order + "HH", data, entry)
        if tag in (256, 257):
            value = struct.unpack_from(order + _TIFF_TYPES.get(kind, "I"), data, entry + (12 if big else 8))[0]
            # A tag that is there twice is a trick: whichever the decoder takes, it is not larger than this.
            sides[tag] = max(value, sides.get(tag, 0))
    return sides.get(256, 0), sides.get(257, 0)


def _pnm(data: bytes) -> tuple[int, int]:
    # The matcher keeps notes of every blank and comment, some hundred bytes of each.
    header = _PNM_HEADER.match(data, 0, _PNM_HEADER_BYTES)
    if header is None:
        raise ValueError("no size")
    return int(header[1]), int(header[2])


_PARSERS: tuple[tuple[bytes, Callable[[bytes], tuple[int, int]]], ...] = (
    (rb"\xff\xd8\xff", _jpeg),
    (rb"\x89PNG\r\n\x1a\n", _png),
    (rb"BM", _bmp),
    (rb"RIFF....WEBP", _webp),
    (rb"II[*+]\x00|MM\x00[*+]", _tiff),
    (rb"P[1-6]\s", _pnm),
)
