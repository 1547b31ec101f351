"""Operators that move, cut, join or resample data without computing on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from pyasc.models.tflite.aliases import add_transpose
from pyasc.models.tflite.graph import Node
from pyasc.models.tflite.layout import NHWC, physical, transposed
from pyasc.models.tflite.lowering import Lowering, refuse
from pyasc.models.tflite.ops_conv import cut

# XNNPACK runs an even SPLIT into at most this many parts; SLICE has no such limit.
_SPLIT_PARTS = 4
_RULES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_ROUNDINGS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


def reshape(lowering: Lowering, node: Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout, Cast: the same data under the output's shape."""
    if node.op == "Dropout" and node.has(2) and bool(np.any(lowering.constant(node, 2))):
        raise refuse(node, "training mode is not supported")
    lowering.bind_reshaped(node, node.inputs[0])


def transpose(lowering: Lowering, node: Node) -> None:
    """Only relabels the axes; data moves when a later operator insists on an order."""
    source, output = node.inputs[0], node.outputs[0]
    order = lowering.order(source)
    perm = node.attributes.get("perm") or list(range(len(order)))[::-1]
    if sorted(perm) != list(range(len(order))):
        raise refuse(node, f"perm {perm} is no permutation of {len(order)} axes")
    lowering.bind(output, lowering.tensor(source, order), transposed(order, perm))


def concat(lowering: Lowering, node: Node) -> None:
    """CONCATENATION, in the order of the largest input that is not a constant."""
    output = node.outputs[0]
    shape = lowering.shape(output)
    axis = int(node.attributes["axis"]) % len(shape)
    computed = [name for name in node.inputs if not lowering.is_constant(name)]
    order = lowering.order(max(computed, key=lambda name: math.prod(lowering.shape(name))))
    inputs = [lowering.tensor(name, order) for name in node.inputs]
    options = schema.ConcatenationOptionsT(axis=order.index(axis))
    lowering.bind(output, lowering.add("CONCATENATION", inputs, physical(shape, order), output, options), order)


def split(lowering: Lowering, node: Node) -> None:
    """SPLIT where the parts are few and equal, else a SLICE for each."""
    source = node.inputs[0]
    shape, order = lowering.shape(source), lowering.order(source)
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    sizes = [lowering.shape(name)[axis] for name in node.outputs]
    tensor, place = lowering.tensor(source, order), order.index(axis)
    shapes = [physical(lowering.shape(name), order) for name in node.outputs]
    if len(set(sizes)) == 1 and 1 < len(sizes) <= _SPLIT_PARTS:
        results = [lowering.file.add_tensor(name, part) for name, part in zip(node.outputs, shapes, strict=True)]
        inputs = [lowering.integers_constant(place, "axis"), tensor]
        lowering.file.add_operator("SPLIT", inputs, results, schema.SplitOptionsT(numSplits=len(sizes)))
    else:
        results, begin = [], [0] * len(order)
        for name, part in zip(node.outputs, shapes, strict=True):
            results.append(cut(lowering, tensor, tuple(begin), part, name))
            begin[place] += part[place]
    for name, result in zip(node.outputs, results, strict=True):
        lowering.bind(name, result, order)


def slice_(lowering: Lowering, node: Node) -> None:
    """SLICE, or STRIDED_SLICE where a step is not 1."""
    source, output = node.inputs[0], node.outputs[0]
    shape, order = lowering.shape(source), lowering.order(source)
    starts, ends = lowering.integers(node, 1, "starts") or [], lowering.integers(node, 2, "ends") or []
    axes = lowering.integers(node, 3, "axes") or list(range(len(starts)))
    steps = lowering.integers(node, 4, "steps") or [1] * len(starts)
    ranges = {axis: range(size) for axis, size in enumerate(shape)}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # Python's own slicing has ONNX's rules for negative and overlong bounds.
        ranges[axis % len(shape)] = range(shape[axis % len(shape)])[start:end:step]
    if any(item.step < 0 for item in ranges.values()):
        raise refuse(node, "negative steps are not supported")
    begin = tuple(ranges[axis].start for axis in order)
    target = physical(lowering.shape(output), order)
    tensor = lowering.tensor(source, order)
    if all(item.step == 1 for item in ranges.values()):
        result = cut(lowering, tensor, begin, target, output)
    else:
        bounds = [begin, [ranges[axis].stop for axis in order], [ranges[axis].step for axis in order]]
        inputs = [tensor, *(lowering.integers_constant(bound, "bounds") for bound in bounds)]
        options = schema.StridedSliceOptionsT()
        result = lowering.add("STRIDED_SLICE", inputs, target, output, options, 4 if len(order) > 4 else 1)
    lowering.bind(output, result, order)


def resize(lowering: Lowering, node: Node) -> None:
    """RESIZE_NEAREST_NEIGHBOR or RESIZE_BILINEAR of the two spatial axes."""
    source, output = node.inputs[0], node.outputs[0]
    shape, target = lowering.shape(source), lowering.shape(output)
    if len(shape) != 4 or shape[:2] != target[:2]:
        raise refuse(node, "only the last two of four axes can be resized")
    mode = node.attributes.get("mode", "nearest")
    scales = _scales(lowering, node)
    rule = _coordinate_rule(lowering, node)
    if mode == "nearest":
        op, options = "RESIZE_NEAREST_NEIGHBOR", _nearest(lowering, node, scales, rule)
        wide = options.alignCorners or options.halfPixelCenters
    elif mode == "linear":
        op, options = "RESIZE_BILINEAR", _bilinear(node, shape[2:], target[2:], scales, rule)
        wide = options.halfPixelCenters
    else:
        raise refuse(node, f"mode {mode!r} is not supported")
    inputs = [lowering.tensor(source, NHWC), lowering.integers_constant(target[2:], "size")]
    result = lowering.add(op, inputs, physical(target, NHWC), output, options, 3 if wide else 1)
    lowering.bind(output, result, NHWC)


def _coordinate_rule(lowering: Lowering, node: Node) -> str:
    modern = node.op == "Resize" and lowering.graph.opset >= 11
    rule = str(node.attributes.get("coordinate_transformation_mode", "half_pixel" if modern else "asymmetric"))
    if node.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise refuse(node, "keep_aspect_ratio_policy is not supported")
    if rule not in _RULES or node.attributes.get("antialias", 0):
        raise refuse(node, f"{rule!r} with antialias {node.attributes.get('antialias', 0)} is not supported")
    return rule


def _scales(lowering: Lowering, node: Node) -> list[float]:
    """Output over input size of the two spatial axes: as given, because ONNX computes coordinates with it."""
    shape, target = lowering.shape(node.inputs[0]), lowering.shape(node.outputs[0])
    exact = [new / old for old, new in zip(shape[2:], target[2:], strict=True)]
    index = 1 if node.op == "Upsample" or lowering.graph.opset < 11 else 2
    given = np.asarray(node.attributes.get("scales", []), np.float32)
    if node.has(index):
        given = lowering.floats(node, index)
    if given.size == len(node.attributes.get("axes", [])) == 2:
        return [float(scale) for scale in given]
    return [float(scale) for scale in given[2:]] if given.size == 4 else exact


def _nearest(lowering: Lowering, node: Node, scales: list[float], rule: str) -> Any:
    """The options under which TFLite picks the same source elements as ONNX."""
    shape, target = lowering.shape(node.inputs[0])[2:], lowering.shape(node.outputs[0])[2:]
    rounding = node.attributes.get("nearest_mode", "round_prefer_floor")
    if node.op == "Upsample" or lowering.graph.opset < 11:
        rounding = "floor"
    if rounding not in _ROUNDINGS:
        raise refuse(node, f"nearest_mode {rounding!r} is not known")
    wanted = [_onnx_indices(*axis, rule, rounding) for axis in zip(shape, target, scales, strict=True)]
    for corners, centers in ((False, False), (False, True), (True, False)):
        picked = [_tflite_indices(old, new, corners, centers) for old, new in zip(shape, target, strict=True)]
        if all(np.array_equal(a, b) for a, b in zip(wanted, picked, strict=True)):
            return schema.ResizeNearestNeighborOptionsT(alignCorners=corners, halfPixelCenters=centers)
    raise refuse(node, f"nearest with {rule} and {rounding} from {list(shape)} to {list(target)} has no TFLite form")


def _onnx_indices(size: int, target: int, scale: float, rule: str, rounding: str) -> NDArray[np.int64]:
    """Source: ONNX Resize, coordinate_transformation_mode and nearest_mode."""
    x = np.arange(target, dtype=np.float64)
    if rule == "asymmetric":
        x = x / scale
    elif rule == "align_corners":
        x = x * (size - 1) / max(target - 1, 1)
    elif rule == "pytorch_half_pixel" and target == 1:
        x = np.zeros(1)
    else:
        x = (x + 0.5) / scale - 0.5
    return np.asarray(_ROUNDINGS[rounding](x).clip(0, size - 1), np.int64)


def _tflite_indices(size: int, target: int, corners: bool, centers: bool) -> NDArray[np.int64]:
    """Source: GetNearestNeighbor in tensorflow/lite/kernels/internal/reference/resize_nearest_neighbor.h, float32 throughout."""
    scale = (
        np.float32(size - 1) / np.float32(target - 1)
        if corners and target > 1
        else np.float32(size) / np.float32(target)
    )
    x = (np.arange(target, dtype=np.float32) + np.float32(0.5 if centers else 0)) * scale
    # Rounds half away from zero.
    rounded = np.floor(x + np.float32(0.5)) if corners else np.floor(x)
    return np.asarray(rounded.clip(0, size - 1), np.int64)


def _bilinear(node: Node, size: tuple[int, ...], target: tuple[int, ...], scales: list[float], rule: str) -> Any:
    if any(
        not math.isclose(old * scale, new, rel_tol=1e-6) for old, new, scale in zip(size, target, scales, strict=True)
    ):
        raise refuse(node, f"linear with the scales {scales}, which do not give whole sizes, is not supported")
    if rule == "pytorch_half_pixel" and 1 in target:
        raise refuse(node, "pytorch_half_pixel with an output of one line is not supported")
    flags = {
        "half_pixel": {"halfPixelCenters": True},
        "pytorch_half_pixel": {"halfPixelCenters": True},
        "align_corners": {"alignCorners": True},
        "asymmetric": {},
    }
    return schema.ResizeBilinearOptionsT(**flags[rule])


def depth_to_space(lowering: Lowering, node: Node) -> None:
    """DEPTH_TO_SPACE, which groups channels as ONNX's DCR does; for CRD the channels are put into that order before."""
    source, output = node.inputs[0], node.outputs[0]
    batch, channels, height, width = lowering.shape(source)
    block = int(node.attributes["blocksize"])
    tensor = lowering.tensor(source, NHWC)
    if node.attributes.get("mode", "DCR") == "CRD":
        grouped = (batch * height * width, channels // block**2, block**2)
        tensor = lowering.reshape(tensor, grouped, output)
        turned = lowering.file.add_tensor(output, physical(grouped, (0, 2, 1)))
        add_transpose(lowering.file, tensor, (0, 2, 1), turned)
        tensor = lowering.reshape(turned, (batch, height, width, channels), output)
    options = schema.DepthToSpaceOptionsT(blockSize=block)
    result = lowering.add("DEPTH_TO_SPACE", [tensor], physical(lowering.shape(output), NHWC), output, options)
    lowering.bind(output, result, NHWC)


def space_to_depth(lowering: Lowering, node: Node) -> None:
    """SPACE_TO_DEPTH."""
    source, output = node.inputs[0], node.outputs[0]
    options = schema.SpaceToDepthOptionsT(blockSize=int(node.attributes["blocksize"]))
    shape = physical(lowering.shape(output), NHWC)
    result = lowering.add("SPACE_TO_DEPTH", [lowering.tensor(source, NHWC)], shape, output, options)
    lowering.bind(output, result, NHWC)


OPERATORS = {
    **dict.fromkeys(["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Cast"], reshape),
    "Transpose": transpose,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Resize": resize,
    "Upsample": resize,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
}
