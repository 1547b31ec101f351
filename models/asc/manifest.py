"""The manifest of an `.asc` file as data classes. Reading and checking JSON: `manifest_json`; the format: docs/asc-format.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pyasc.hal.base import TensorInfo

FORMAT_VERSION = 1
GRAPH_PATH = "graph.onnx"
Precision = Literal["fp32", "fp16", "int8"]


@dataclass(frozen=True, slots=True)
class Preprocess:
    """How a BGR uint8 picture becomes the first input.

    Attributes:
        resize: `letterbox` keeps the aspect ratio and pads; `stretch` does not keep it.
        height, width: of the network's input.
        pad_value: grey level of the letterbox's border, 0..255.
        color: channel order that the network wants, `RGB`, `BGR` or `GRAY`.
        mean, std: for each channel, on the 0..1 scale: value = (pixel / 255 - mean) / std.
    """

    resize: Literal["letterbox", "stretch"]
    height: int
    width: int
    color: Literal["RGB", "BGR", "GRAY"] = "RGB"
    pad_value: int = 114
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Yolov5Head:
    """Post-processing of YOLOv5's detection head: the outputs are the head's convolutions, before the sigmoid.

    Output k has for each anchor a the channels a * (5 + classes) + (x, y, w, h, objectness, class 0, ...), on a grid of
    input size / strides[k]. Decoding as in YOLOv5 v5 and later: xy = (2 s - 0.5 + cell) * stride, wh = (2 s)^2 * anchor.

    Attributes:
        anchors: for each output, (width, height) of its anchors in pixels of the network's input.
        strides: for each output.
        confidence, iou: default thresholds.
        max_detections: at most this many boxes a picture.
    """

    anchors: tuple[tuple[tuple[float, float], ...], ...]
    strides: tuple[int, ...]
    confidence: float = 0.25
    iou: float = 0.45
    max_detections: int = 1000
    type: Literal["yolov5"] = "yolov5"


@dataclass(frozen=True, slots=True)
class EmbeddingHead:
    """Post-processing of an appearance model: the output is one vector a picture.

    Attributes:
        dim: length of the vector.
        normalize: `l2` divides by the Euclidean norm, `none` leaves it.
    """

    dim: int
    normalize: Literal["l2", "none"] = "l2"
    type: Literal["embedding"] = "embedding"


@dataclass(frozen=True, slots=True)
class ClassificationHead:
    """Post-processing of a classifier: the output is one logit a class.

    Attributes:
        activation: what makes scores of them.
    """

    activation: Literal["softmax", "sigmoid", "none"] = "softmax"
    type: Literal["classification"] = "classification"


Postprocess = Yolov5Head | EmbeddingHead | ClassificationHead


@dataclass(frozen=True, slots=True)
class Part:
    """A step of a variant that does not run in one piece.

    Attributes:
        on: `device` for the variant's own device, `cpu` for what that cannot do.
        format: `wk`, `cambricon`; on the CPU `tflite` or `onnx`.
        path: entry of the archive, `variants/<target>/…`; several parts may be segments of one file.
        segment: number of the part in its file, from 0.
        inputs: under the names of the variant's inputs or of outputs of parts before this one.
        outputs: under names of their own, or of the variant's outputs.
    """

    on: Literal["device", "cpu"]
    format: str
    path: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    segment: int = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """The model, compiled ahead for one device family.

    Attributes:
        target: `cpu`, `hi3559`, `mlu220` …, as `DeviceInfo.family`.
        format: `tflite`, `wk`, `cambricon`.
        path: entry of the archive, `variants/<target>/…`; with parts, that of the first one on the device.
        precision: of the weights in it.
        inputs, outputs: in the order and under the names of the manifest's, with the variant's own shape, dtype and layout.
        simulated: True when it was compiled for the simulator of the device, and runs nowhere else.
        parts: what runs one after the other, where that is more than the one file; else empty.
        selftest: entry with a picture and the CPU's answers, as `pyasc.models.selftest` says; empty without one.
    """

    target: str
    format: str
    path: str
    precision: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    simulated: bool = False
    parts: tuple[Part, ...] = ()
    selftest: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Its entries of the archive, each once."""
        return tuple(dict.fromkeys((self.path, *(part.path for part in self.parts), *filter(None, [self.selftest]))))


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an `.asc` file says of itself.

    Attributes:
        name: of the model, `yolov5n`.
        task: `detect`, `embed` or `classify`.
        template: the family whose rules made it, `yolov5`, `osnet`, `mobilenetv2`, `classifier`.
        precision: of the stored weights.
        inputs, outputs: of `graph.onnx`.
        preprocess, postprocess: as data.
        labels: class names by class id; empty where there are none.
        variants: compiled forms.
        source: where it came from: file name, SHA-256, licence where known; for people.
    """

    name: str
    task: Literal["detect", "embed", "classify"]
    template: str
    precision: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    preprocess: Preprocess
    postprocess: Postprocess
    labels: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    source: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
