"""Convolution, pooling, resizing and padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from pyasc.models.tflite.graph import Node
from pyasc.models.tflite.layout import NHWC, physical
from pyasc.models.tflite.lowering import Lowering, activation_code, refuse

_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Window:
    """Geometry of a sliding window on one spatial axis.

    Attributes:
        size, output: of the input and output along the axis.
        kernel: extent, dilation counted in.
        stride: step.
        before, after: padding that the windows really touch; less than what the model says where a stride leaves some of it over.
    """

    size: int
    output: int
    kernel: int
    stride: int
    before: int
    after: int

    @property
    def is_same(self) -> bool:
        """True when TFLite's SAME padding is this padding: output = ceil(size / stride), the odd element after."""
        total = max((self.output - 1) * self.stride + self.kernel - self.size, 0)
        return (
            self.output == -(-self.size // self.stride)
            and self.before == total // 2
            and self.after == total - total // 2
        )


def conv(lowering: Lowering, node: Node) -> None:
    """CONV_2D, with the weights of one group where there are several, or DEPTHWISE_CONV_2D."""
    source, output = node.inputs[0], node.outputs[0]
    weight = lowering.floats(node, 1)
    if weight.ndim != 4:
        raise refuse(node, f"only two spatial axes are supported, not {weight.ndim - 2}")
    group = int(node.attributes.get("group", 1))
    channels = lowering.shape(source)[1]
    if weight.shape[1] * group != channels or weight.shape[0] % group:
        raise refuse(node, f"weights {list(weight.shape)} in {group} groups do not fit {channels} channels")
    dilations = _pair(node, "dilations")
    windows = _windows(lowering, node, weight.shape[2:], dilations)
    tensor, padding = _padded(lowering, source, windows, 0.0)
    bias = _bias(lowering, node, weight.shape[0])
    common: dict[str, Any] = {
        "padding": padding,
        "strideH": windows[0].stride,
        "strideW": windows[1].stride,
        "dilationHFactor": dilations[0],
        "dilationWFactor": dilations[1],
        "fusedActivationFunction": activation_code(node),
    }
    if group == channels and group > 1:
        op, version = "DEPTHWISE_CONV_2D", 2 if max(dilations) > 1 else 1
        options = schema.DepthwiseConv2DOptionsT(depthMultiplier=weight.shape[0] // group, **common)
        filters = weight.transpose(1, 2, 3, 0)
    else:
        op, version = "CONV_2D", 6 if group > 1 else 1
        options = schema.Conv2DOptionsT(**common)
        filters = weight.transpose(0, 2, 3, 1)
    inputs = [tensor, lowering.weight(filters, node.inputs[1]), lowering.file.add_constant(f"{output};bias", bias)]
    result = lowering.add(op, inputs, physical(lowering.shape(output), NHWC), output, options, version)
    lowering.bind(output, result, NHWC)


def conv_transpose(lowering: Lowering, node: Node) -> None:
    """TRANSPOSE_CONV: SAME where that is the padding, else VALID and the padding cut off."""
    source, output = node.inputs[0], node.outputs[0]
    weight = lowering.floats(node, 1)
    if weight.ndim != 4 or node.attributes.get("group", 1) != 1 or max(_pair(node, "dilations")) > 1:
        raise refuse(node, "only two spatial axes, one group and no dilation are supported")
    if weight.shape[0] != lowering.shape(source)[1]:
        raise refuse(node, f"weights {list(weight.shape)} do not fit {lowering.shape(source)[1]} channels")
    if node.attributes.get("auto_pad", "NOTSET") != "NOTSET" or node.attributes.get("output_shape"):
        raise refuse(node, "auto_pad and output_shape are not supported; give the padding as pads")
    strides = _pair(node, "strides")
    size, target = lowering.shape(source)[2:], lowering.shape(output)
    pads = node.attributes.get("pads") or [0, 0, 0, 0]
    if min(pads) < 0 or list(node.attributes.get("kernel_shape") or weight.shape[2:]) != list(weight.shape[2:]):
        raise refuse(
            node, f"pads {pads} or kernel_shape {node.attributes.get('kernel_shape')} does not fit the weights"
        )
    same = all(_same_transposed(size[i], target[2 + i], weight.shape[2 + i], strides[i], pads[i]) for i in (0, 1))
    full = [(size[i] - 1) * strides[i] + weight.shape[2 + i] for i in (0, 1)]
    made = list(target[2:]) if same else [max(full[i], pads[i] + target[2 + i]) for i in (0, 1)]
    options = schema.TransposeConvOptionsT(
        padding=schema.Padding.SAME if same else schema.Padding.VALID, strideH=strides[0], strideW=strides[1]
    )
    if not same and made != full:
        raise refuse(node, "output_padding reaches beyond the windows")
    shape = (target[0], *made, target[1])
    bias = _bias(lowering, node, weight.shape[1])
    inputs = [
        lowering.integers_constant(shape, "shape"),
        lowering.weight(weight.transpose(1, 2, 3, 0), node.inputs[1]),
        lowering.tensor(source, NHWC),
        lowering.file.add_constant(f"{output};bias", bias),
    ]
    result = lowering.add("TRANSPOSE_CONV", inputs, shape, output, options, 3)
    if shape != physical(target, NHWC):
        result = cut(lowering, result, (0, pads[0], pads[1], 0), physical(target, NHWC), output)
    lowering.bind(output, result, NHWC)


def _bias(lowering: Lowering, node: Node, channels: int) -> NDArray[Any]:
    if not node.has(2):
        return np.zeros(channels, np.float32)
    bias = lowering.floats(node, 2)
    if bias.shape != (channels,):
        raise refuse(node, f"a bias of shape {list(bias.shape)} does not fit {channels} channels")
    return bias


def _same_transposed(size: int, target: int, kernel: int, stride: int, before: int) -> bool:
    """True when TRANSPOSE_CONV's SAME places the windows as ONNX does: it pads as the convolution from target to size would."""
    return target == size * stride and before == max((size - 1) * stride + kernel - target, 0) // 2


def cut(lowering: Lowering, tensor: int, begin: tuple[int, ...], shape: tuple[int, ...], name: str) -> int:
    """SLICE; begin and shape as the axes lie in memory."""
    inputs = [tensor, lowering.integers_constant(begin, "begin"), lowering.integers_constant(shape, "size")]
    return lowering.add("SLICE", inputs, shape, name, schema.SliceOptionsT(), 5 if len(shape) > 4 else 1)


def max_pool(lowering: Lowering, node: Node) -> None:
    """MAX_POOL_2D; padding counts as minus infinity."""
    windows = _pool_windows(lowering, node)
    tensor, padding = _padded(lowering, node.inputs[0], windows, _LOWEST)
    _pool(lowering, node, "MAX_POOL_2D", tensor, padding, windows)


def average_pool(lowering: Lowering, node: Node) -> None:
    """AVERAGE_POOL_2D; where the padding's weight differs from TFLite's, the mean is corrected by a constant map."""
    output = node.outputs[0]
    windows = _pool_windows(lowering, node)
    counted = bool(node.attributes.get("count_include_pad", 0))
    pads = _explicit_pads(lowering, node, windows) if counted else [0, 0, 0, 0]
    padded = any(window.before or window.after for window in windows)
    if padded and not counted and all(window.is_same for window in windows):
        # SAME leaves the padding out of the mean.
        _pool(lowering, node, "AVERAGE_POOL_2D", lowering.tensor(node.inputs[0], NHWC), schema.Padding.SAME, windows)
        return
    tensor, padding = _padded(lowering, node.inputs[0], windows, 0.0, same=False)
    _pool(lowering, node, "AVERAGE_POOL_2D", tensor, padding, windows)
    rows = _counts(windows[0], pads[0], pads[2])
    columns = _counts(windows[1], pads[1], pads[3])
    counts = np.outer(rows, columns)
    area = windows[0].kernel * windows[1].kernel
    if (counts != area).any():
        factors = lowering.file.add_constant("pool;factors", (area / counts).astype(np.float32)[None, :, :, None])
        shape = physical(lowering.shape(output), NHWC)
        result = lowering.add("MUL", [lowering.tensor(output, NHWC), factors], shape, output, schema.MulOptionsT())
        lowering.bind(output, result, NHWC)


def _counts(window: Window, before: int, after: int) -> NDArray[np.int64]:
    """How many elements the mean of each window is over: those of the input and of the padding that counts."""
    starts = np.arange(window.output) * window.stride - window.before
    return np.asarray(np.minimum(starts + window.kernel, window.size + after) - np.maximum(starts, -before), np.int64)


def _explicit_pads(lowering: Lowering, node: Node, windows: list[Window]) -> list[int]:
    if node.attributes.get("auto_pad", "NOTSET") == "NOTSET":
        return [int(pad) for pad in node.attributes.get("pads") or [0, 0, 0, 0]]
    return [windows[0].before, windows[1].before, windows[0].after, windows[1].after]


def _pool(lowering: Lowering, node: Node, op: str, tensor: int, padding: int, windows: list[Window]) -> None:
    output = node.outputs[0]
    options = schema.Pool2DOptionsT(
        padding=padding,
        strideH=windows[0].stride,
        strideW=windows[1].stride,
        filterHeight=windows[0].kernel,
        filterWidth=windows[1].kernel,
    )
    result = lowering.add(op, [tensor], physical(lowering.shape(output), NHWC), output, options)
    lowering.bind(output, result, NHWC)


def _pool_windows(lowering: Lowering, node: Node) -> list[Window]:
    kernel = node.attributes.get("kernel_shape", [])
    if len(kernel) != 2:
        raise refuse(node, f"only two spatial axes are supported, not {len(kernel)}")
    dilations = _pair(node, "dilations")
    if any(d > 1 and k > 1 for d, k in zip(dilations, kernel, strict=True)):
        raise refuse(node, "dilated pooling is not supported")
    windows = _windows(lowering, node, kernel, [1, 1])
    for window in windows:
        if window.before >= window.kernel or (window.output - 1) * window.stride - window.before >= window.size:
            raise refuse(node, "a window that lies in the padding alone has no value")
    return windows


def _pair(node: Node, name: str) -> list[int]:
    return [int(value) for value in node.attributes.get(name) or [1, 1]]


def _windows(lowering: Lowering, node: Node, kernel: Any, dilations: list[int]) -> list[Window]:
    """The geometry of both axes, whether padding is given by numbers or by rule."""
    size, output = lowering.shape(node.inputs[0])[2:], lowering.shape(node.outputs[0])[2:]
    strides = _pair(node, "strides")
    if list(node.attributes.get("kernel_shape") or kernel) != list(kernel):
        raise refuse(node, f"kernel_shape {node.attributes['kernel_shape']} is not that of the weights")
    rule = node.attributes.get("auto_pad", "NOTSET")
    if rule not in ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"):
        raise refuse(node, f"auto_pad {rule!r} is not known")
    pads = [int(pad) for pad in node.attributes.get("pads") or [0, 0, 0, 0]]
    if min(pads) < 0:
        raise refuse(node, f"negative padding {pads}")
    windows = []
    for axis in (0, 1):
        extent = (int(kernel[axis]) - 1) * dilations[axis] + 1
        # What the last window reaches beyond the input, the padding before it counted in.
        total = (output[axis] - 1) * strides[axis] + extent - size[axis]
        before = pads[axis]
        if rule in ("SAME_UPPER", "SAME_LOWER"):
            before = (max(total, 0) + (rule == "SAME_LOWER")) // 2
        elif rule == "VALID":
            before = 0
        windows.append(Window(size[axis], output[axis], extent, strides[axis], before, max(total - before, 0)))
    return windows


def _padded(lowering: Lowering, name: str, windows: list[Window], fill: float, same: bool = True) -> tuple[int, int]:
    """The input as NHWC and TFLite's padding rule; padding that no rule gives is written as an operator of its own.

    XNNPACK takes a PAD of zeros into the convolution that follows.
    """
    tensor = lowering.tensor(name, NHWC)
    if not any(window.before or window.after for window in windows):
        return tensor, schema.Padding.VALID
    if same and all(window.is_same for window in windows):
        return tensor, schema.Padding.SAME
    pads = [(0, 0), *((window.before, window.after) for window in windows), (0, 0)]
    return write_pad(lowering, tensor, pads, fill, name), schema.Padding.VALID


def write_pad(lowering: Lowering, tensor: int, pads: list[tuple[int, int]], fill: float, name: str) -> int:
    """PAD (zeros) or PADV2; (before, after) for each axis as it lies in memory."""
    shape = [size + sum(pad) for size, pad in zip(lowering.file.tensors[tensor].shape, pads, strict=True)]
    amounts = lowering.integers_constant(pads, "paddings")
    version = 4 if len(pads) > 4 else 1
    if fill == 0:
        return lowering.add("PAD", [tensor, amounts], shape, f"{name};pad", schema.PadOptionsT(), version)
    inputs = [tensor, amounts, lowering.file.add_constant("fill", np.asarray([fill], np.float32))]
    return lowering.add("PADV2", inputs, shape, f"{name};pad", schema.PadV2OptionsT(), version)


def pad(lowering: Lowering, node: Node) -> None:
    """PAD, PADV2 or MIRROR_PAD."""
    source, output = node.inputs[0], node.outputs[0]
    mode = node.attributes.get("mode", "constant")
    amounts = lowering.integers(node, 1, "pads") or []
    rank = len(lowering.shape(source))
    axes = [axis % rank for axis in (lowering.integers(node, 3, "axes") or range(rank))]
    pads = [(0, 0)] * rank
    for place, axis in enumerate(axes):
        pads[axis] = (amounts[place], amounts[place + len(axes)])
    if min(min(amount) for amount in pads) < 0:
        raise refuse(node, f"negative padding {amounts}")
    order = lowering.order(source)
    tensor, ordered = lowering.tensor(source, order), [pads[axis] for axis in order]
    if mode == "constant":
        fill = lowering.number(node, 2) if node.has(2) else float(node.attributes.get("value", 0.0))
        result = write_pad(lowering, tensor, ordered, fill, output)
    elif mode == "reflect":
        options = schema.MirrorPadOptionsT(mode=schema.MirrorPadMode.REFLECT)
        inputs = [tensor, lowering.integers_constant(ordered, "paddings")]
        result = lowering.add("MIRROR_PAD", inputs, physical(lowering.shape(output), order), output, options)
    else:
        raise refuse(node, f"mode {mode!r} is not supported")
    lowering.bind(output, result, order)


def global_pool(lowering: Lowering, node: Node) -> None:
    """MEAN or REDUCE_MAX over the two spatial axes."""
    source, output = node.inputs[0], node.outputs[0]
    if len(lowering.shape(source)) != 4:
        raise refuse(node, "only two spatial axes are supported")
    op = "MEAN" if node.op == "GlobalAveragePool" else "REDUCE_MAX"
    inputs = [lowering.tensor(source, NHWC), lowering.integers_constant([1, 2], "axes")]
    options = schema.ReducerOptionsT(keepDims=True)
    result = lowering.add(op, inputs, physical(lowering.shape(output), NHWC), output, options)
    lowering.bind(output, result, NHWC)


OPERATORS = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "Pad": pad,
}
