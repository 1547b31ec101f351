"""What the parts of a manifest must say of each other, so that pre- and post-processing can rely on it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pyasc.hal.base import TensorInfo
from pyasc.models.asc.json_reader import Node
from pyasc.models.asc.manifest import ClassificationHead, EmbeddingHead, Manifest, Preprocess, Variant, Yolov5Head

_TASK_OF_HEAD = {"yolov5": "detect", "embedding": "embed", "classification": "classify"}


def check_consistency(manifest: Manifest, keys: Mapping[str, Node]) -> None:
    """Compare the parts of a manifest with each other.

    Args:
        manifest: of sound parts.
        keys: the members of the document that it was read from, for messages.
    Raises:
        ModelFormatError: two parts contradict each other.
    """
    if manifest.task != _TASK_OF_HEAD[manifest.postprocess.type]:
        keys["task"].fail(f"{manifest.task} does not go with the post-processing {manifest.postprocess.type}")
    _check_picture(manifest.inputs[0], manifest.preprocess, keys["inputs"].items(1, len(manifest.inputs))[0])
    _check_head(manifest, keys["postprocess"].mapping(), keys["outputs"])
    if manifest.variants:
        for variant, node in zip(manifest.variants, keys["variants"].items(0, len(manifest.variants)), strict=True):
            _check_variant(manifest, variant, node.mapping())


def nchw(tensor: TensorInfo) -> tuple[int, int, int, int] | None:
    """Batch, channels, height and width of a tensor with a layout; None for one without."""
    if not tensor.layout:
        return None
    batch, channels, height, width = (tensor.shape[tensor.layout.index(axis)] for axis in "NCHW")
    return batch, channels, height, width


def _check_picture(tensor: TensorInfo, preprocess: Preprocess, node: Node) -> None:
    wanted = (len(preprocess.mean), preprocess.height, preprocess.width)
    sides = nchw(tensor)
    if sides is None or sides[1:] != wanted:
        node.fail(
            f"shape {list(tensor.shape)}, layout {tensor.layout or 'none'} does not hold the {wanted[0]} channels, "
            f"{wanted[1]} rows and {wanted[2]} columns of preprocess"
        )


def _check_head(manifest: Manifest, keys: Mapping[str, Node], outputs: Node) -> None:
    head = manifest.postprocess
    if isinstance(head, Yolov5Head):
        _check_yolov5(manifest, head, keys, outputs)
        return
    if len(manifest.outputs) != 1:
        outputs.fail(f"{head.type} reads 1 output, there are {len(manifest.outputs)}")
    values = math.prod(manifest.outputs[0].shape[1:])
    if isinstance(head, EmbeddingHead) and head.dim != values:
        keys["dim"].fail(f"{head.dim} is not the {values} values of the output")
    if isinstance(head, ClassificationHead) and manifest.labels and len(manifest.labels) != values:
        outputs.fail(f"{values} values for {len(manifest.labels)} labels")


def _check_yolov5(manifest: Manifest, head: Yolov5Head, keys: Mapping[str, Node], outputs: Node) -> None:
    count = len(manifest.outputs)
    for key, levels in (("anchors", len(head.anchors)), ("strides", len(head.strides))):
        if levels != count:
            keys[key].fail(f"has {levels} values for {count} outputs")
    nodes = outputs.items(count, count)
    for tensor, node, anchors, stride in zip(manifest.outputs, nodes, head.anchors, head.strides, strict=True):
        # The reference pads to a multiple of the largest stride, so that every grid divides the picture evenly.
        wanted = (
            len(anchors) * (5 + len(manifest.labels)),
            manifest.preprocess.height / stride,
            manifest.preprocess.width / stride,
        )
        sides = nchw(tensor)
        if sides is None or sides[1:] != wanted:
            node.fail(
                f"shape {list(tensor.shape)}, layout {tensor.layout or 'none'} is not the grid of stride {stride} with "
                f"{len(anchors)} anchors of 5 + {len(manifest.labels)} channels: {wanted[0]} x {wanted[1]:g} x {wanted[2]:g}"
            )


def _check_variant(manifest: Manifest, variant: Variant, keys: Mapping[str, Node]) -> None:
    for key, wanted, found in (
        ("inputs", manifest.inputs, variant.inputs),
        ("outputs", manifest.outputs, variant.outputs),
    ):
        if [tensor.name for tensor in found] != [tensor.name for tensor in wanted]:
            keys[key].fail("does not have the names of the graph's, in their order")
        for tensor, other, node in zip(found, wanted, keys[key].items(1, len(found)), strict=True):
            if _item(tensor) != _item(other):
                node.fail(f"shape {list(tensor.shape)} holds something else than the graph's {list(other.shape)}")
    if variant.parts:
        _check_parts(variant, keys)


def _check_parts(variant: Variant, keys: Mapping[str, Node]) -> None:
    """Each part reads only what is there when it runs, in the shape in which it was made, and all outputs are made."""
    known = {tensor.name: tensor for tensor in variant.inputs}
    for part, node in zip(variant.parts, keys["parts"].items(2, len(variant.parts)), strict=True):
        for tensor in part.inputs:
            if tensor.name not in known:
                node.fail(f"nothing before it makes its input {tensor.name}")
            if _item(tensor) != _item(known[tensor.name]):
                node.fail(f"its input {tensor.name} is {list(tensor.shape)}, made as {list(known[tensor.name].shape)}")
        for tensor in part.outputs:
            if tensor.name in known:
                node.fail(f"its output {tensor.name} is there already")
            known[tensor.name] = tensor
    for tensor in variant.outputs:
        if known.get(tensor.name) != tensor:
            keys["parts"].fail(f"none makes the output {tensor.name} as the variant has it")
    first = [part.path for part in variant.parts if part.on == "device"][:1]
    if first != [variant.path]:
        keys["path"].fail("is not that of the first part on the device")


def _item(tensor: TensorInfo) -> tuple[int, ...]:
    """Shape of what one picture of the batch takes, whatever the layout."""
    return (nchw(tensor) or tensor.shape)[1:]
