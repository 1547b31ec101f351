"""Pictures as arrays: whatever a caller or a file has, as (H, W, 3) uint8 BGR."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from pyasc.errors import StreamError
from pyasc.models.picture_size import picture_size

# A 16K picture (15360 x 8640) is the largest that is taken: 400 MB as BGR.
MAX_PIXELS = 1 << 27
MAX_FILE_BYTES = 1 << 29

Image = NDArray[np.uint8]


def load_image(image: NDArray[Any] | str | os.PathLike[str]) -> Image:
    """A picture as (H, W, 3) uint8 BGR: a path is read, an array is taken as `as_bgr` says."""
    if isinstance(image, str | os.PathLike):
        return read_image(image)
    return as_bgr(image)


def read_image(path: str | os.PathLike[str]) -> Image:
    """Read a picture file: JPEG, PNG, BMP, TIFF, WebP or PNM; of several pictures in a file the first.

    It is turned upright as its EXIF tag says. Grey becomes BGR, alpha is dropped, 16 bit become 8.

    Returns:
        (H, W, 3) uint8, BGR, C-contiguous.
    Raises:
        OSError: the file is missing or cannot be read.
        StreamError: it is no picture, damaged, cut off, or larger than `MAX_PIXELS`; found before memory is taken for the pixels.
    """
    path = Path(path)
    data = _contents(path)
    try:
        width, height = picture_size(data)
    except StreamError as error:
        raise StreamError(f"{path}: {error}") from error
    if width * height > MAX_PIXELS:
        raise StreamError(f"{path}: {width} x {height} pixels are more than the {MAX_PIXELS} that are taken")
    try:
        # IMREAD_COLOR: upright, three channels; IMREAD_ANYDEPTH: 16 bit stay, so that they are rounded here and not cut.
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    except cv2.error as error:
        raise StreamError(f"{path}: damaged picture: {' '.join(str(error).split())}") from error
    if pixels is None or pixels.size == 0:
        raise StreamError(f"{path}: the picture is damaged or of a kind that OpenCV {cv2.__version__} cannot decode")
    if pixels.dtype not in (np.uint8, np.uint16):
        raise StreamError(f"{path}: its values are {pixels.dtype}; pictures of 8 and 16 bit are taken")
    return as_bgr(pixels)


def as_bgr(array: NDArray[Any]) -> Image:
    """An array as (H, W, 3) uint8 BGR.

    Args:
        array: (H, W), (H, W, 1) grey, (H, W, 3) BGR or (H, W, 4) BGRA, whose alpha is dropped and not composited; uint8, or
            uint16, of which 65535 becomes 255 (value / 257, rounded). May be a view with any strides.
    Returns:
        the array itself where it fits already, else a new one; each row of pixels is contiguous.
    Raises:
        TypeError: not an array.
        ValueError: another shape or dtype (floating point has no agreed range), empty, or more than `MAX_PIXELS` pixels.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"a picture is a NumPy array or a path, not {type(array).__name__}")
    shape, dtype = array.shape, array.dtype
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)):
        raise ValueError(f"a picture has the shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), not {shape}")
    if dtype.kind != "u" or dtype.itemsize > 2:
        raise ValueError(f"a picture is uint8 or uint16, not {dtype}")
    if shape[0] == 0 or shape[1] == 0:
        raise ValueError(f"the picture is empty: {shape}")
    if shape[0] * shape[1] > MAX_PIXELS:
        raise ValueError(f"{shape[1]} x {shape[0]} pixels are more than the {MAX_PIXELS} that are taken")
    pixels = _plain_rows(array)
    if dtype.itemsize == 2:
        pixels = cv2.convertScaleAbs(pixels.astype(np.uint16, copy=False), alpha=1 / 257)
    if pixels.ndim == 2 or pixels.shape[2] == 1:
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_GRAY2BGR), np.uint8)
    if pixels.shape[2] == 4:
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGRA2BGR), np.uint8)
    return np.asarray(pixels, np.uint8)


def crop(image: Image, xyxy: NDArray[np.floating[Any]]) -> Image | None:
    """The part of a picture in a box, as a view.

    Args:
        image: (H, W, 3).
        xyxy: (4,) left, top, right, bottom in pixels; the corners are cut to whole pixels and to the picture.
    Returns:
        at least one pixel; None where the box has no pixel of the picture, or a corner is not finite.
    """
    if not np.isfinite(xyxy).all():
        return None
    height, width = image.shape[:2]
    left, top, right, bottom = (int(min(max(corner, 0), 1 << 30)) for corner in xyxy.tolist())
    part = image[top : min(bottom, height), left : min(right, width)]
    return part if part.size else None


def _plain_rows(array: NDArray[Any]) -> NDArray[Any]:
    """OpenCV takes rows at any distance, but the pixels of a row, and their channels, must lie one after the other."""
    inner = 1 if array.ndim == 2 else array.shape[2]
    item = array.itemsize
    wanted = (inner * item, item)[: array.ndim - 1]
    if array.strides[1:] == wanted and array.strides[0] >= array.shape[1] * wanted[0]:
        return array
    return np.ascontiguousarray(array)


def _contents(path: Path) -> bytes:
    # O_NONBLOCK: opening a FIFO returns at once, and is then refused.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise StreamError(f"{path}: not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise StreamError(f"{path}: {status.st_size} bytes are more than the {MAX_FILE_BYTES} that are taken")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(status.st_size)  # a larger number would be allocated in full
    finally:
        os.close(fd)
