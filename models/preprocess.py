"""From a picture to a network's input, driven by the manifest.

The letterbox is that of YOLOv5 v7.0 (`letterbox` with `auto=False`, `scale_boxes`): the same pixels, the same way back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from pyasc.hal.base import TensorInfo
from pyasc.models.asc.manifest import Preprocess


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where a source picture lies in a network's input: input = source * scale + pad.

    Attributes:
        scale_x, scale_y: pixels of the input for one of the source; the same for a letterbox.
        pad_x, pad_y: border on the left and at the top in pixels of the input; halves occur, as in the reference.
        width, height: of the source picture.
    """

    scale_x: float
    scale_y: float
    pad_x: float
    pad_y: float
    width: int
    height: int

    def to_source(self, xyxy: NDArray[np.float32]) -> NDArray[np.float32]:
        """Boxes in pixels of the input as boxes in pixels of the source, clipped to the picture.

        Args:
            xyxy: (N, 4) float32.
        Returns:
            (N, 4) float32, new.
        """
        boxes = xyxy - np.array([self.pad_x, self.pad_y] * 2, np.float32)
        boxes /= np.array([self.scale_x, self.scale_y] * 2, np.float32)
        np.clip(boxes, 0, np.array([self.width, self.height] * 2, np.float32), out=boxes)
        return boxes


@dataclass(frozen=True, slots=True)
class Placement:
    """The part of a network's input that the picture takes, in whole pixels."""

    left: int
    top: int
    width: int
    height: int


def place(
    width: int, height: int, into_width: int, into_height: int, resize: Literal["letterbox", "stretch"]
) -> tuple[Placement, Geometry]:
    """Where a picture comes to lie in a network's input.

    A picture so narrow that it would vanish keeps one pixel; the reference fails there.
    """
    if resize == "stretch":
        geometry = Geometry(into_width / width, into_height / height, 0.0, 0.0, width, height)
        return Placement(0, 0, into_width, into_height), geometry
    scale = min(into_height / height, into_width / width)
    new_width, new_height = max(1, round(width * scale)), max(1, round(height * scale))
    # The reference's rounding of an odd border: the smaller half on the left and at the top.
    left, top = round((into_width - new_width) / 2 - 0.1), round((into_height - new_height) / 2 - 0.1)
    pad_x, pad_y = (into_width - width * scale) / 2, (into_height - height * scale) / 2
    return Placement(left, top, new_width, new_height), Geometry(scale, scale, pad_x, pad_y, width, height)


def letterbox(
    image: NDArray[np.uint8], width: int, height: int, pad_value: int = 114
) -> tuple[NDArray[np.uint8], Geometry]:
    """The picture in a frame of the given size, its aspect ratio kept.

    Args:
        image: (H, W, 3) uint8.
        width, height: of the frame.
        pad_value: grey level of the border.
    Returns:
        (height, width, 3) uint8, new, and the way back.
    """
    at, geometry = place(image.shape[1], image.shape[0], width, height, "letterbox")
    canvas = np.full((height, width, 3), pad_value, np.uint8)
    canvas[at.top : at.top + at.height, at.left : at.left + at.width] = _resize(image, at)
    return canvas, geometry


def value_table(spec: Preprocess, tensor: TensorInfo) -> NDArray[Any]:
    """What each grey level becomes in the network's input.

    Args:
        spec: mean and std.
        tensor: dtype, and scale and zero point where it is quantised. An integer type without them takes the pixels as they are,
            with mean and std of their own: (pixel - 255 mean) / std.
    Returns:
        (channels, 256), of the tensor's dtype.
    """
    level = np.arange(256, dtype=np.float32)
    mean, std = (np.array(values, np.float32)[:, None] for values in (spec.mean, spec.std))
    values = (level / np.float32(255) - mean) / std
    dtype: np.dtype[Any] = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        return np.asarray(values, dtype)
    limits = np.iinfo(dtype)
    if tensor.scale is None or tensor.zero_point is None:
        stored = values.astype(np.float64) * 255
    else:
        stored = values.astype(np.float64) / tensor.scale + tensor.zero_point
    return np.asarray(np.clip(np.rint(stored), limits.min, limits.max), dtype)


class Preprocessor:
    """Makes inputs of a network from pictures; holds tables only, so threads may share it.

    Args:
        spec: of the manifest.
        tensor: the input as the device wants it: dtype, layout, batch. Its sides are those of `spec`.
    """

    def __init__(self, spec: Preprocess, tensor: TensorInfo) -> None:
        self.spec = spec
        self.tensor = tensor
        self.table = value_table(spec, tensor)
        dtype = self.table.dtype
        # OpenCV looks up elements by their size alone, and does not know all of NumPy's types.
        self.lookup_dtype = np.dtype({1: "u1", 2: "i2", 4: "f4", 8: "f8"}[dtype.itemsize])
        self.lookup = np.ascontiguousarray(self.table).view(self.lookup_dtype)
        alike = bool((self.table == self.table[0]).all())
        # For whole pixels: one table for all channels, or one for each, interleaved.
        self.pixel_lookup = self.lookup[0] if alike else np.ascontiguousarray(self.lookup.T)[:, None, :]

    @property
    def batch(self) -> int:
        """Pictures in one input."""
        return self.tensor.shape[0]

    def new_input(self) -> InputBuffer:
        """An input for this network, to be filled again and again."""
        return InputBuffer(self)


class InputBuffer:
    """A network's input and the scratch memory to fill it; for one thread at a time.

    Attributes:
        array: what the network takes, C-contiguous, of the tensor's shape and dtype. `fill` changes it in place.
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        self._of = preprocessor
        tensor = preprocessor.tensor
        self.array: NDArray[Any] = np.zeros(tensor.shape, tensor.dtype)
        self._raw = self.array.view(preprocessor.lookup_dtype)
        self._placed: list[Placement | None] = [None] * tensor.shape[0]
        self._scratch: tuple[NDArray[np.uint8], NDArray[np.uint8]] | None = None

    def fill(self, image: NDArray[np.uint8], row: int = 0) -> Geometry:
        """Put a picture into one row of the batch.

        Args:
            image: (H, W, 3) uint8 BGR, as `as_bgr` returns it.
            row: which one.
        Returns:
            the way back to the picture's pixels.
        """
        spec = self._of.spec
        at, geometry = place(image.shape[1], image.shape[0], spec.width, spec.height, spec.resize)
        if self._placed[row] != at:
            self._draw_border(row)
            self._placed[row] = at
        small, swapped = self._scratch_for(at)
        if (image.shape[1], image.shape[0]) == (at.width, at.height):
            small = image
        else:
            cv2.resize(image, (at.width, at.height), dst=small, interpolation=cv2.INTER_LINEAR)
        rows, columns = slice(at.top, at.top + at.height), slice(at.left, at.left + at.width)
        if spec.color == "GRAY":
            plane = cv2.cvtColor(small, cv2.COLOR_BGR2GRAY)
            target = self._raw[row, 0] if self._of.tensor.layout == "NCHW" else self._raw[row, :, :, 0]
            _look_up(plane, self._of.lookup[0], target[rows, columns])
        elif self._of.tensor.layout == "NCHW":
            for channel in range(3):
                plane = swapped.reshape(3, at.height, at.width)[channel]
                cv2.extractChannel(small, 2 - channel if spec.color == "RGB" else channel, dst=plane)
                _look_up(plane, self._of.lookup[channel], self._raw[row, channel, rows, columns])
        else:
            if spec.color == "RGB":
                small = cv2.cvtColor(small, cv2.COLOR_BGR2RGB, dst=swapped)
            _look_up(small, self._of.pixel_lookup, self._raw[row, rows, columns])
        return geometry

    def _draw_border(self, row: int) -> None:
        border = self._of.table[:, self._of.spec.pad_value]
        self.array[row] = border[:, None, None] if self._of.tensor.layout == "NCHW" else border

    def _scratch_for(self, at: Placement) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Memory for the small picture and for its channels in the other order, kept as long as the size stays."""
        shape = (at.height, at.width, 3)
        if self._scratch is None or self._scratch[0].shape != shape:
            self._scratch = np.empty(shape, np.uint8), np.empty(shape, np.uint8)
        return self._scratch


def _look_up(levels: NDArray[np.uint8], table: NDArray[Any], target: NDArray[Any]) -> None:
    """target[...] = table[levels], without a copy in between."""
    if target.ndim == 3 and target.shape[2] == 1:
        target = target[:, :, 0]
    cv2.LUT(levels, table, dst=target)


def _resize(image: NDArray[np.uint8], at: Placement) -> NDArray[np.uint8]:
    if (image.shape[1], image.shape[0]) == (at.width, at.height):
        return image
    return np.asarray(cv2.resize(image, (at.width, at.height), interpolation=cv2.INTER_LINEAR), np.uint8)
