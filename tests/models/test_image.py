"""Pictures: every kind of array and file comes out as BGR, or is refused with one clear error."""

from __future__ import annotations

import contextlib
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyasc.errors import StreamError
from pyasc.models.image import MAX_PIXELS, as_bgr, crop, load_image, read_image


def picture(height: int = 37, width: int = 53, channels: int = 3, dtype: type = np.uint8) -> NDArray[Any]:
    """Smooth, so that JPEG keeps it nearly, and without any symmetry."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    planes = [y * 0.9, x * 0.8, (x + y) / 2, 1 - x][:channels]
    return (np.dstack(planes) * np.iinfo(dtype).max).astype(dtype)


def test_bgr_is_taken_as_it_is_without_a_copy() -> None:
    image = picture()
    assert as_bgr(image) is image
    assert np.shares_memory(as_bgr(image[3:, 5:20]), image)


@pytest.mark.parametrize("shape", [(37, 53), (37, 53, 1)])
def test_grey_becomes_three_equal_channels(shape: tuple[int, ...]) -> None:
    grey = picture(channels=1).reshape(shape)
    assert np.array_equal(as_bgr(grey), np.repeat(grey.reshape(37, 53, 1), 3, axis=2))


def test_alpha_is_dropped_and_not_composited() -> None:
    bgra = picture(channels=4)
    assert np.array_equal(as_bgr(bgra), bgra[:, :, :3])


@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_16_bit_is_scaled_by_257_and_rounded(order: str) -> None:
    every = np.arange(65536).astype(order).reshape(256, 256)
    expected = np.array([round(v / 257) for v in range(65536)], np.uint8).reshape(256, 256)
    assert np.array_equal(as_bgr(every)[:, :, 1], expected)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[:, :, ::-1],
        lambda a: a[::-1],
        lambda a: a[:, ::-1],
        lambda a: a[::2, ::3],
        lambda a: a.transpose(1, 0, 2),
        lambda a: np.asfortranarray(a),
        lambda a: np.broadcast_to(a[:1], a.shape),
        lambda a: a[5:6, 7:8],
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_views_with_any_strides(view: Callable[[Any], Any], dtype: type) -> None:
    image = picture(dtype=dtype)
    assert np.array_equal(as_bgr(view(image)), as_bgr(view(image).copy()))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 5, 3), np.float32), "float32"),
        (np.zeros((4, 5, 3), np.float64), "float64"),
        (np.zeros((4, 5, 3), np.int16), "int16"),
        (np.zeros((4, 5, 3), bool), "bool"),
        (np.zeros((4, 5, 3), np.uint32), "uint32"),
        (np.zeros((4, 5, 2), np.uint8), "shape"),
        (np.zeros((4, 5, 5), np.uint8), "shape"),
        (np.zeros((1, 4, 5, 3), np.uint8), "shape"),
        (np.zeros(5, np.uint8), "shape"),
        (np.zeros((0, 5, 3), np.uint8), "empty"),
        (np.zeros((5, 0, 3), np.uint8), "empty"),
        # No memory behind it: it has to be refused before it is copied.
        (np.broadcast_to(np.zeros((1, 1, 3), np.uint8), (1 << 14, (1 << 13) + 1, 3)), "pixels"),
    ],
)
def test_what_is_no_picture_is_refused(array: NDArray[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_bgr(array)


def test_what_is_no_array_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="list"):
        load_image([[1, 2], [3, 4]])  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tiff", ".ppm", ".webp", ".jpg"])
def test_files_are_read_with_their_colours(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"bild ü{suffix}"
    image = picture()
    path.write_bytes(cv2.imencode(suffix, image)[1].tobytes())
    found = read_image(path)
    assert found.shape == image.shape
    assert found.dtype == np.uint8
    tolerance = 12 if suffix in (".jpg", ".webp") else 0
    assert np.abs(found.astype(int) - image).max() <= tolerance
    assert np.array_equal(load_image(str(path)), found)


@pytest.mark.parametrize(("channels", "dtype"), [(1, np.uint8), (4, np.uint8), (1, np.uint16), (3, np.uint16)])
@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_files_of_other_kinds_read_like_such_arrays(tmp_path: Path, suffix: str, channels: int, dtype: type) -> None:
    path = tmp_path / f"x{suffix}"
    image = picture(channels=channels, dtype=dtype)
    path.write_bytes(cv2.imencode(suffix, image)[1].tobytes())
    assert np.array_equal(read_image(path), as_bgr(image))


def exif_jpeg(image: NDArray[Any], orientation: int) -> bytes:
    """A JPEG file with an orientation tag; the APP1 segment as in Exif 2.3."""
    jpeg: bytes = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
    tiff = b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    segment = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + jpeg[2:]


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, lambda a: a),
        (2, lambda a: a[:, ::-1]),
        (3, lambda a: a[::-1, ::-1]),
        (4, lambda a: a[::-1]),
        (5, lambda a: a.transpose(1, 0, 2)),
        (6, lambda a: np.rot90(a, -1)),
        (7, lambda a: np.rot90(a, 2).transpose(1, 0, 2)),
        (8, lambda a: np.rot90(a)),
    ],
)
def test_jpeg_is_turned_upright(tmp_path: Path, orientation: int, upright: Callable[[Any], Any]) -> None:
    plain, turned = tmp_path / "plain.jpg", tmp_path / "turned.jpg"
    plain.write_bytes(exif_jpeg(picture(), 1))
    turned.write_bytes(exif_jpeg(picture(), orientation))
    assert np.array_equal(read_image(turned), upright(read_image(plain)))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 4000), (4320, 7680)])
def test_smallest_and_largest(tmp_path: Path, height: int, width: int) -> None:
    path = tmp_path / "x.png"
    image = np.full((height, width, 3), (10, 20, 30), np.uint8)
    path.write_bytes(cv2.imencode(".png", image)[1].tobytes())
    assert np.array_equal(read_image(path), image)


def test_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.jpg"):
        read_image(tmp_path / "none.jpg")


def test_folder_and_fifo_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.jpg")
    for path in (tmp_path, tmp_path / "fifo.jpg"):
        with pytest.raises(StreamError, match="not a regular file"):
            read_image(path)


def test_headers_are_read_in_bounded_time(tmp_path: Path) -> None:
    """A pattern that backtracks would not come back from these."""
    path = tmp_path / "x.ppm"
    for filling in (b" " * 100_000, b"#\n" * 50_000, b"# " * 50_000):
        path.write_bytes(b"P6" + filling + b"x")
        with pytest.raises(StreamError):
            read_image(path)
    path.with_suffix(".jpg").write_bytes(b"\xff\xd8" + b"\xff" * 1_000_000)
    with pytest.raises(StreamError):
        read_image(path.with_suffix(".jpg"))


def test_a_header_that_never_ends_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.ppm"
    path.write_bytes(b"P6" + b"\n" * (4 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(StreamError, match="header"):
            read_image(path)
        # The file itself, and little else.
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("content", [b"", b"\xff", b"hello", b"GIF89a" + bytes(50), b"%PDF-1.4", b"BM", bytes(1000)])
def test_what_is_no_picture_file_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(content)
    with pytest.raises(StreamError, match=r"x\.jpg: "):
        read_image(path)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tiff", ".ppm", ".webp", ".jpg"])
def test_cut_off_files_are_refused(tmp_path: Path, suffix: str) -> None:
    whole = cv2.imencode(suffix, picture())[1].tobytes()
    path = tmp_path / f"x{suffix}"
    for part in range(20):
        path.write_bytes(whole[: len(whole) * part // 20])
        with pytest.raises(StreamError):
            read_image(path)


def png_of(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def bombs() -> dict[str, bytes]:
    """Small files whose headers promise a thousand million pixels or more."""
    side = 60000
    jpeg = cv2.imencode(".jpg", picture())[1].tobytes()
    at = jpeg.index(b"\xff\xc0")
    tiff_entries = [(256, 4, side), (257, 4, side), (256, 4, 8), (257, 4, 8)]
    tiff = b"MM\0*" + struct.pack(">IH", 8, 4) + b"".join(struct.pack(">HHII", t, k, 1, v) for t, k, v in tiff_entries)
    vp8x = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (16383).to_bytes(3, "little") * 2
    return {
        "png": png_of(side, side),
        "jpg": jpeg[: at + 5] + struct.pack(">HH", side, side) + jpeg[at + 9 :],
        "bmp": b"BM" + bytes(12) + struct.pack("<IiiHHI", 40, side, -side, 1, 24, 0) + bytes(24),
        "tiff": tiff + bytes(4),
        "ppm": b"P6\n# comment\n60000 60000\n255\n" + bytes(100),
        "webp": b"RIFF" + struct.pack("<I", 4 + len(vp8x)) + b"WEBP" + vp8x,
    }


@pytest.mark.parametrize("kind", ["png", "jpg", "bmp", "tiff", "ppm", "webp"])
def test_bombs_are_refused_by_their_header(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"bomb.{kind}"
    path.write_bytes(bombs()[kind])
    with pytest.raises(StreamError, match=f"pixels are more than the {MAX_PIXELS}"):
        read_image(path)


def test_floating_point_pictures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tiff"
    path.write_bytes(cv2.imencode(".tiff", np.ones((4, 5, 3), np.float32))[1].tobytes())
    with pytest.raises(StreamError, match="8 and 16 bit"):
        read_image(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), suffix=st.sampled_from([".png", ".bmp", ".tiff", ".ppm", ".webp", ".jpg"]))
def test_damaged_files_give_a_picture_or_one_error(tmp_path: Path, data: st.DataObject, suffix: str) -> None:
    content = bytearray(cv2.imencode(suffix, picture(9, 14))[1].tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / f"x{suffix}"
    path.write_bytes(bytes(content))
    with contextlib.suppress(StreamError):
        image = read_image(path)
        assert image.ndim == 3
        assert image.dtype == np.uint8


def test_crop_is_a_view_of_whole_pixels() -> None:
    image = picture()
    part = crop(image, np.array([2.9, 3.9, 10.9, 8.0]))
    assert part is not None
    assert np.shares_memory(part, image)
    assert np.array_equal(part, image[3:8, 2:10])


@pytest.mark.parametrize(
    "box",
    [
        [-9, -9, -1, -1],
        [60, 1, 70, 9],
        [5, 5, 5, 9],
        [9, 9, 5, 5],
        [3.1, 3.1, 3.9, 9],
        [np.nan, 0, 9, 9],
        [0, 0, np.inf, 9],
        [1e30, 1e30, 1e31, 1e31],
    ],
)
def test_crop_of_nothing_is_none(box: list[float]) -> None:
    assert crop(picture(), np.array(box)) is None


def test_crop_is_cut_to_the_picture() -> None:
    image = picture()
    whole = crop(image, np.array([-1e30, -5, 1e30, 99], np.float32))
    assert whole is not None
    assert whole.shape == image.shape
