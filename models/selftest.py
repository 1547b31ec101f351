"""Does a device compute what the CPU does? A picture with the CPU's answers, stored beside a variant, tells before it is used.

What goes wrong in practice: results in another order of axes or another scale than the program believes, a network of constants
because its weights or its input did not arrive, results at the end of their range, a class that is lost to quantisation.

An entry of the archive holds, little-endian:

    char   magic[8]      "PyASCtst"
    u32    version       1
    u32    picture       bytes of a JPEG picture of the network's size
    u32    outputs       how many of the following; those of the manifest, in its order
      u32  count         float32 numbers: the output at these evenly spread places, in the order of graph.onnx's axes
      f32  numbers[count]
    u32    boxes         detections: class and score, best first; none but for detectors
      u32  class
      f32  score
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from pyasc.errors import ModelFormatError, StreamError
from pyasc.hal.base import TensorInfo
from pyasc.models.asc.manifest import Manifest, Preprocess
from pyasc.models.picture_size import picture_size
from pyasc.runtime.values import convert, real

MAGIC, VERSION = b"PyASCtst", 1
SAMPLES = 4096
MAX_BOXES = 1000
_JPEG_QUALITY = 92
# Correlation below which an answer is another one: 8-bit forms of the networks in the tests stay above 0.97.
_ALIKE = 0.9
# Of least squares against the CPU's answer: quantisation changes it by some percent, a wrong scale by a power of two.
_SCALES = (0.7, 1.4)
_SATURATED_SHARE = 0.05
# A detection that the CPU is sure of must be there at least so far.
_SURE, _SEEN = 0.5, 0.1
# What a device's detections are made with for the comparison.
LOW_SCORE = 0.05

Array = NDArray[np.float32]


@dataclass(frozen=True)
class SelfTest:
    """A picture and the CPU's answers.

    Attributes:
        picture: (height, width, 3) uint8 BGR, of the network's size.
        samples: of each output, at the places that `sample_places` gives.
        boxes: (class, score) of the detections, best first.
    """

    picture: NDArray[np.uint8]
    samples: tuple[Array, ...]
    boxes: tuple[tuple[int, float], ...] = ()


def sample_places(size: int) -> NDArray[np.int64]:
    """Evenly spread indices of an array of so many numbers, at most `SAMPLES`, the first included."""
    count = min(size, SAMPLES)
    return np.arange(count, dtype=np.int64) * size // count


def encode_picture(picture: NDArray[np.uint8]) -> bytes:
    """As JPEG; a test is made of what `decode_picture` gives back, so that nothing depends on the coding's loss."""
    done, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    if not done:
        raise ValueError("the picture cannot be encoded")
    return bytes(data)


def decode_picture(data: bytes, spec: Preprocess) -> NDArray[np.uint8]:
    """The picture of a test.

    Raises:
        ModelFormatError: it is none, or of another size than the network's.
    """
    try:
        size = picture_size(data)
    except StreamError as error:
        raise ModelFormatError(f"self-test: {error}") from error
    if size != (spec.width, spec.height):
        raise ModelFormatError(f"self-test: a picture of {size[0]} x {size[1]} pixels is not of the network's size")
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if picture is None:
        raise ModelFormatError("self-test: its picture is damaged")
    return np.asarray(picture, np.uint8)


def write_selftest(picture: bytes, outputs: Sequence[Array], boxes: Sequence[tuple[int, float]] = ()) -> bytes:
    """The entry.

    Args:
        picture: JPEG.
        outputs: the CPU's, in the order of graph.onnx's axes, for that picture alone.
        boxes: (class, score) of the CPU's detections, best first.
    """
    parts = [MAGIC, struct.pack("<2I", VERSION, len(picture)), picture, struct.pack("<I", len(outputs))]
    for output in outputs:
        numbers = output.reshape(-1)[sample_places(output.size)].astype("<f4")
        parts += [struct.pack("<I", len(numbers)), numbers.tobytes()]
    kept = boxes[:MAX_BOXES]
    parts += [struct.pack("<I", len(kept)), *(struct.pack("<If", number, score) for number, score in kept)]
    return b"".join(parts)


def read_selftest(data: memoryview, manifest: Manifest) -> SelfTest:
    """Read an entry.

    Raises:
        ModelFormatError: damaged, or of another model.
    """
    try:
        return _read(_Reader(data), manifest)
    except struct.error as error:
        raise ModelFormatError("self-test: cut off") from error


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.at:
            raise ModelFormatError("self-test: cut off")
        self.at += size
        return self.data[self.at - size : self.at]

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])


def _read(reader: _Reader, manifest: Manifest) -> SelfTest:
    if bytes(reader.take(8)) != MAGIC:
        raise ModelFormatError("self-test: not one")
    if (version := reader.u32()) != VERSION:
        raise ModelFormatError(f"self-test: version {version} needs a newer PyASC")
    picture = decode_picture(bytes(reader.take(reader.u32())), manifest.preprocess)
    if (count := reader.u32()) != len(manifest.outputs):
        raise ModelFormatError(f"self-test: {count} outputs for the {len(manifest.outputs)} of the model")
    samples = []
    for tensor in manifest.outputs:
        places = sample_places(_one(tensor))
        if reader.u32() != len(places):
            raise ModelFormatError(f"self-test: the numbers of {tensor.name} are not as many as they should be")
        samples.append(np.frombuffer(reader.take(4 * len(places)), "<f4").astype(np.float32))
    boxes = []
    for _ in range(min(reader.u32(), MAX_BOXES)):
        number, score = struct.unpack("<If", reader.take(8))
        if manifest.labels and number >= len(manifest.labels):
            raise ModelFormatError(f"self-test: the model has no class {number}")
        boxes.append((number, float(score)))
    if reader.at != len(reader.data) or not all(np.isfinite(numbers).all() for numbers in samples):
        raise ModelFormatError("self-test: damaged")
    return SelfTest(picture, tuple(samples), tuple(boxes))


def _one(tensor: TensorInfo) -> int:
    """Numbers of a tensor for one picture."""
    return int(np.prod(tensor.shape[1:], dtype=np.int64))


def faults(
    test: SelfTest,
    manifest: Manifest,
    tensors: Sequence[TensorInfo],
    outputs: Sequence[NDArray[Any]],
    boxes: Sequence[tuple[int, float]] = (),
) -> list[str]:
    """What is wrong with a device's answers, each in a few words; empty when they are the CPU's.

    Args:
        test: of the model.
        manifest: of the model.
        tensors: of the outputs, as the device says.
        outputs: for the test's picture, in their first row.
        boxes: (class, score) of the detections that were made of them, at a low threshold.
    """
    found = []
    for graph, tensor, output, wanted in zip(manifest.outputs, tensors, outputs, test.samples, strict=True):
        fault = _fault_of(graph, tensor, output[:1], wanted)
        if fault is not None:
            found.append(f"output {graph.name} {fault}")
    return found or _faults_of_boxes(test, manifest, boxes)


def _fault_of(graph: TensorInfo, tensor: TensorInfo, output: NDArray[Any], wanted: Array) -> str | None:
    tensor = dataclasses.replace(tensor, shape=(1, *tensor.shape[1:]))
    target = dataclasses.replace(graph, shape=(1, *graph.shape[1:]), dtype="float32", scale=None, zero_point=None)
    values = real(output, tensor)
    if not np.isfinite(values).all():
        return "has values that are not finite"
    got = _sampled(values, tensor, target)
    if got.max() == got.min() and wanted.max() > wanted.min():
        return f"is the constant {got[0]:g}"
    for end, normal in ((got.max(), wanted.max()), (got.min(), wanted.min())):
        share = float((got == end).mean())
        if share > _SATURATED_SHARE + float((wanted == normal).mean()):
            return f"is saturated: {share:.0%} of it is {end:g}"
    if _correlation(got, wanted) < _ALIKE:
        return _order_of(values, tensor, target, wanted) or (
            f"is not the CPU's: correlation {_correlation(got, wanted):.2f}"
        )
    slope = float(
        np.dot(got - got.mean(), wanted - wanted.mean()) / max(np.square(wanted - wanted.mean()).sum(), 1e-30)
    )
    if not _SCALES[0] < slope < _SCALES[1]:
        return f"has another scale: {slope:.3g} times the CPU's"
    return None


def _sampled(values: Array, tensor: TensorInfo, target: TensorInfo) -> Array:
    plain = dataclasses.replace(tensor, dtype="float32", scale=None, zero_point=None)
    flat: Array = convert(values, plain, target).reshape(-1)
    return flat[sample_places(flat.size)]


def _order_of(values: Array, tensor: TensorInfo, target: TensorInfo, wanted: Array) -> str | None:
    """Whether the same memory in another order of axes would be the CPU's answer."""
    if not tensor.layout:
        return None
    sizes = dict(zip(tensor.layout, tensor.shape, strict=True))
    for axes in permutations("CHW"):
        layout = "N" + "".join(axes)
        shape = tuple(sizes[axis] for axis in layout)
        other = dataclasses.replace(tensor, shape=shape, layout=layout)
        if layout != tensor.layout and _correlation(_sampled(values.reshape(shape), other, target), wanted) > _ALIKE:
            return f"has another layout: {layout}, not {tensor.layout}"
    return None


def _correlation(first: Array, second: Array) -> float:
    a, b = (values.astype(np.float64) - values.mean(dtype=np.float64) for values in (first, second))
    size = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    if not size:
        return 1.0 if np.allclose(first, second, rtol=1e-2, atol=1e-3) else 0.0
    return float((a * b).sum()) / size


def _faults_of_boxes(test: SelfTest, manifest: Manifest, boxes: Sequence[tuple[int, float]]) -> list[str]:
    if not test.boxes:
        return []
    seen: dict[int, float] = {}
    for number, score in boxes:
        seen[number] = max(score, seen.get(number, 0.0))
    sure = {number: score for number, score in reversed(test.boxes) if score >= _SURE}
    found = [f"class {_label(manifest, number)} is missing" for number in sure if seen.get(number, 0.0) < _SEEN]
    highest, most = max(seen.values(), default=0.0), test.boxes[0][1]
    if highest > 0.999 and most < 0.97:
        found.append(f"a score is saturated: {highest:.3f}, the CPU's best is {most:.3f}")
    return found


def _label(manifest: Manifest, number: int) -> str:
    return repr(manifest.labels[number]) if number < len(manifest.labels) else str(number)
