"""From the module tree of a YOLOv5 checkpoint to an ONNX graph: routing between the layers, and the detection head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyasc.errors import ConversionError
from pyasc.models.asc.manifest import Precision, Yolov5Head
from pyasc.models.conversion.onnx_builder import OnnxBuilder, Value
from pyasc.models.conversion.pickle_values import Record
from pyasc.models.conversion.torch_modules import Module, text_of
from pyasc.models.conversion.yolov5_layers import Layers, family_name

if TYPE_CHECKING:
    import onnx

_MAX_LAYERS = 1000
_MAX_CLASSES = 10_000
_MAX_LABEL = 256


@dataclass(frozen=True)
class Yolov5:
    """A converted network.

    Attributes:
        model: input `images`, float32 NCHW, RGB, 0..1; outputs `p3`, `p4`, ... by stride: the head's convolutions, before the
            sigmoid.
        outputs: name and NCHW shape of each output.
        head: how to decode them.
        labels: class names.
        parameters, layers: for people.
    """

    model: onnx.ModelProto
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    head: Yolov5Head
    labels: tuple[str, ...]
    parameters: int
    layers: int


def find_network(tree: Any) -> Record:
    """The pickled network of a training checkpoint; the averaged one (`ema`) where there is one, as the reference does.

    Raises:
        ConversionError: there is none, or it is not a detector of YOLOv5.
    """
    network = tree
    if isinstance(tree, dict):
        network = tree.get("ema") or tree.get("model")
        if isinstance(network, tuple | list) and network:  # v4.0 stored the average together with its count.
            network = network[0]
    if not isinstance(network, Record):
        raise ConversionError(
            "is a checkpoint without a network: it has weights or other values, and not what to do with them"
        )
    home, name = network.kind.module, network.kind.name
    if home.startswith("ultralytics"):
        raise ConversionError(f"is a {network.kind} of ultralytics 8 or later, not a YOLOv5 network")
    if home.removeprefix("yolov5.") != "models.yolo" or name not in ("Model", "DetectionModel"):
        raise ConversionError(f"is a {network.kind}; of YOLOv5 only detectors can be converted")
    return network


def build_yolov5(network: Record, image_size: tuple[int, int], batch: int, precision: Precision, name: str) -> Yolov5:
    """Build the graph of a network.

    Args:
        network: from `find_network`.
        image_size: height and width of the input in pixels; multiples of the largest stride.
        batch: pictures at a time.
        precision: of the stored weights.
        name: of the graph.
    Raises:
        ConversionError: a layer or setting that cannot be converted; names the layer's index and class.
    """
    root = Module(network, "the network")
    builder = OnnxBuilder(name, precision)
    layers = [Module(m.record, f"layer {i} ({m.kind})") for i, m in enumerate(root.child("model").children())]
    if not 1 < len(layers) <= _MAX_LAYERS:
        raise ConversionError(f"the network has {len(layers)} layers")
    *body, detect = layers
    if family_name(detect) != "yolov5.Detect":
        detect.fail(f"{detect.kind} is not the detection head of YOLOv5")
    _check_image_size(detect, image_size)
    made: list[Value] = []
    image = builder.input("images", (batch, 3, *image_size))
    emitter = Layers(builder)
    for layer in body:
        made.append(_emit(emitter, layer, _sources(layer, made, image)))
    levels = _detect(emitter, detect, _sources(detect, made, image))
    return _finish(builder, root, detect, levels, len(layers), image_size)


def _sources(layer: Module, made: Sequence[Value], image: Value) -> list[Value]:
    """Where a layer reads from: -1 is the layer before, other numbers are positions among the layers so far."""
    numbers = layer.setting("f")
    sources = []
    for number in numbers if isinstance(numbers, list | tuple) else [numbers]:
        if number == -1:
            sources.append(made[-1] if made else image)
        elif type(number) is int and -len(made) <= number < len(made):
            sources.append(made[number])
        else:
            layer.fail(f"reads from layer {text_of(number)}, which is not before it")
    return sources


def _emit(emitter: Layers, layer: Module, sources: list[Value]) -> Value:
    if family_name(layer) == "yolov5.Concat":
        if layer.setting("d") != 1 or not sources:
            layer.fail("does not join along the channels")
        try:
            return emitter.builder.concat(sources)
        except ConversionError as error:
            layer.fail(str(error))
    if len(sources) != 1:
        layer.fail(f"{layer.kind} reads from {len(sources)} layers")
    return emitter.emit(layer, sources[0])


def _strides(detect: Module) -> list[int]:
    values = detect.array("stride", 1)
    if not all(1 <= v <= 256 and v == int(v) and int(v).bit_count() == 1 for v in values.tolist()):
        detect.fail("has strides that are not powers of two")
    return [int(v) for v in values]


def _check_image_size(detect: Module, image_size: tuple[int, int]) -> None:
    largest = max(_strides(detect), default=1)
    if any(side % largest for side in image_size):
        raise ConversionError(
            f"an image size of {image_size[0]} x {image_size[1]} is not a multiple of the stride {largest}"
        )


def _detect(emitter: Layers, detect: Module, sources: list[Value]) -> list[Value]:
    """The head's convolutions; up to v1.0 they are layers of their own, and the head reads from them."""
    if not detect.has("m"):
        return sources
    convs = list(detect.child("m").children())
    if len(convs) != len(sources):
        detect.fail(f"has {len(convs)} convolutions for {len(sources)} layers")
    return [emitter.emit(conv, source) for conv, source in zip(convs, sources, strict=True)]


def _finish(
    builder: OnnxBuilder, root: Module, detect: Module, levels: list[Value], layers: int, image_size: tuple[int, int]
) -> Yolov5:
    classes = detect.integer("nc", 1, _MAX_CLASSES)
    strides, anchors = _strides(detect), detect.array("anchors", 3)
    each = detect.integer("no", 1, 1 << 20)
    if each != classes + 5:
        detect.fail(
            f"has {each} values for each anchor and {classes} classes: landmarks, masks or angles, not a plain detector"
        )
    if anchors.shape[0] != len(levels) or len(strides) != len(levels) or anchors.shape[2] != 2:
        detect.fail("has anchors, strides and outputs of different number")
    for level, stride in zip(levels, strides, strict=True):
        wanted = (level.shape[0], anchors.shape[1] * each, image_size[0] // stride, image_size[1] // stride)
        if level.shape != wanted:
            detect.fail(f"has an output of shape {list(level.shape)} instead of {list(wanted)}")
    order = sorted(range(len(levels)), key=lambda k: strides[k])
    named = [(f"p{strides[k].bit_length() - 1}", levels[k]) for k in order]
    if len({name for name, _ in named}) < len(named):
        detect.fail("has two outputs of one stride")
    # The checkpoint's anchors are in cells of the grid.
    pixels = [[(float(w) * strides[k], float(h) * strides[k]) for w, h in anchors[k]] for k in order]
    head = Yolov5Head(
        anchors=tuple(tuple(level) for level in pixels),
        strides=tuple(strides[k] for k in order),
    )
    return Yolov5(
        model=builder.build(named),
        outputs=tuple((name, value.shape) for name, value in named),
        head=head,
        labels=_labels(root, classes),
        parameters=builder.parameters,
        layers=layers,
    )


def _labels(root: Module, classes: int) -> tuple[str, ...]:
    names = root.record.state.get("names")
    if isinstance(names, dict):
        names = [names.get(k) for k in range(len(names))]
    if names is None:
        names = [str(k) for k in range(classes)]
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and 0 < len(n) <= _MAX_LABEL for n in names):
        root.fail("has class names that are no text")
    if len(names) != classes:
        root.fail(f"has {len(names)} class names for {classes} classes")
    return tuple(names)
