"""From a picture to a network's input, driven by the manifest.

The letterbox is that of YOLOv5 v7.0 (`letterbox` with `auto=False`, `scale_boxes`): the same pixels, the same way back.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        border = self.table[:, spec.pad_value]
        # One line of the input, to be repeated.
        if tensor.layout == "NCHW":
            self.border = np.repeat(border[:, None, None], spec.width, axis=2)
        else:
            self.border = np.repeat(border[None, None, :], spec.width, axis=1)

    @property
    def batch(self) -> int:
        """Pictures in one input."""
        return self.tensor.shape[0]

    def part(self, row: NDArray[Any], lines: slice, columns: slice) -> NDArray[Any]:
        """A view of a part of one row of an input, (H, W, C) or (C, H, W)."""
        return row[:, lines, columns] if self.tensor.layout == "NCHW" else row[lines, columns]

    def new_input(self) -> InputBuffer:
        """Scratch memory to make inputs for this network, to be used again and again."""
        return InputBuffer(self)


class InputBuffer:
    """Pictures on their way into a network's input: `prepare`, then `write`; for one thread at a time.

    Between the two they are small, with their channels in the network's order, and still bytes: what is left to do fits into the
    moment in which a device's memory is ours.
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        self._of = preprocessor
        batch = preprocessor.batch
        self._resized: list[NDArray[Any] | None] = [None] * batch
        self._arranged: list[NDArray[Any] | None] = [None] * batch
        self._ready: list[tuple[Placement, NDArray[Any]]] = []

    def prepare(self, images: Sequence[NDArray[np.uint8]]) -> list[Geometry]:
        """Resize pictures and put their channels in order; they replace those of the call before.

        Args:
            images: (H, W, 3) uint8 BGR each, as `as_bgr` returns them; at most `Preprocessor.batch`.
        Returns:
            the way back to each picture's pixels.
        """
        spec = self._of.spec
        self._ready.clear()
        geometries = []
        for row, image in enumerate(images):
            at, geometry = place(image.shape[1], image.shape[0], spec.width, spec.height, spec.resize)
            self._ready.append((at, self._arrange(row, self._resize(row, image, at))))
            geometries.append(geometry)
        return geometries

    def write(self, target: NDArray[Any]) -> None:
        """Write the prepared pictures into the first rows of an input, each with its border.

        Args:
            target: C-contiguous, of the tensor's shape and dtype; rows without a picture are left as they are.
        """
        raw = target.view(self._of.lookup_dtype)
        for row, (at, pixels) in enumerate(self._ready):
            self._draw_border(target[row], at)
            lines, columns = slice(at.top, at.top + at.height), slice(at.left, at.left + at.width)
            inside = self._of.part(raw[row], lines, columns)
            if self._of.tensor.layout == "NCHW":
                for channel, plane in enumerate(pixels):
                    cv2.LUT(plane, self._of.lookup[channel], dst=inside[channel])
            else:
                cv2.LUT(pixels, self._of.pixel_lookup, dst=inside[:, :, 0] if pixels.ndim == 2 else inside)

    def _resize(self, row: int, image: NDArray[np.uint8], at: Placement) -> NDArray[Any]:
        if (image.shape[1], image.shape[0]) == (at.width, at.height):
            return image
        # OpenCV takes other memory when the last picture's does not fit.
        size, kept = (at.width, at.height), self._resized[row]
        small: NDArray[Any] = cv2.resize(image, size, dst=kept, interpolation=cv2.INTER_LINEAR)
        self._resized[row] = small
        return small

    def _arrange(self, row: int, image: NDArray[Any]) -> NDArray[Any]:
        """(H, W, C), (C, H, W), or (H, W) of a grey picture in NHWC, in memory that is kept."""
        color, kept = self._of.spec.color, self._arranged[row]
        nchw = self._of.tensor.layout == "NCHW"
        arranged: NDArray[Any] = image
        if color == "GRAY":
            arranged = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY, dst=kept)
        elif nchw:
            shape = (3, *image.shape[:2])
            arranged = kept if kept is not None and kept.shape == shape else np.empty(shape, np.uint8)
            for channel, plane in enumerate(arranged):
                cv2.extractChannel(image, 2 - channel if color == "RGB" else channel, dst=plane)
        elif color == "RGB":
            arranged = cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=kept)
        else:
            return image  # not kept: it may be the caller's own
        self._arranged[row] = arranged
        return arranged[None] if nchw and color == "GRAY" else arranged

    def _draw_border(self, row: NDArray[Any], at: Placement) -> None:
        part, border, everything = self._of.part, self._of.border, slice(None)
        lines, left, right = slice(at.top, at.top + at.height), slice(at.left), slice(at.left + at.width, None)
        for above_or_below in (slice(at.top), slice(lines.stop, None)):
            part(row, above_or_below, everything)[...] = border
        for beside in (left, right):
            part(row, lines, beside)[...] = part(border, everything, beside)


def _resize(image: NDArray[np.uint8], at: Placement) -> NDArray[np.uint8]:
    if (image.shape[1], image.shape[0]) == (at.width, at.height):
        return image
    return np.asarray(cv2.resize(image, (at.width, at.height), interpolation=cv2.INTER_LINEAR), np.uint8)
