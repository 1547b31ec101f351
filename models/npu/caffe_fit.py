"""Layers such as Caffe has them: its own rules for sizes must give just the graph's sizes, and the same numbers.

Caffe has one border for both ends of an axis, rounds the size of a convolution down and that of a pool up.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import UnsupportedOperatorError
from pyasc.models.npu.layers import Activation, Layer

Shape = tuple[int, ...]

# The mapper's own limits, as its users report them.
_MOST_GROUPS, _LARGEST_WINDOW = 2048, 255


def fit(layers: Sequence[Layer], shapes: MutableMapping[str, Shape]) -> list[Layer]:
    """Layers that compute the same.

    Args:
        layers: in order.
        shapes: of their values, (1, C, H, W) or (1, C); those of new values are added.
    Raises:
        UnsupportedOperatorError: one has no such form; names it.
    """
    fitted = [step for layer in layers for step in _fit(layer, shapes)]
    for layer in fitted:
        _check_limits(layer, shapes)
    return fitted


def is_global(layer: Layer, shapes: Mapping[str, Shape]) -> bool:
    """A pool whose only window is the whole picture."""
    return layer.kernel == shapes[layer.inputs[0]][2:] and shapes[layer.output][2:] == (1, 1) and not any(layer.pads)


def take_pixels(
    layers: Sequence[Layer], shapes: MutableMapping[str, Shape], value: str, factors: NDArray[np.float32], turned: bool
) -> list[Layer]:
    """Layers that read the picture `value` as it comes: each channel still to be multiplied, and perhaps in the reverse order.

    Args:
        layers: in order.
        shapes: of their values; that of a new one is added.
        value: an input of the graph.
        factors: (C,), in the order of channels that the layers want.
        turned: the picture has its channels in the reverse order.
    """
    if (factors == 1).all() and not turned:
        return list(layers)
    order = slice(None, None, -1) if turned else slice(None)
    readers = [layer for layer in layers if value in layer.inputs]
    if all(layer.kind == "conv" and layer.groups == 1 for layer in readers):
        return [
            replace(layer, weights=(layer.weights * factors)[..., order])
            if value in layer.inputs and layer.weights is not None
            else layer
            for layer in layers
        ]
    made = f"{value}/channels"
    shapes[made] = shapes[value]
    weights = np.diag(factors)[:, None, None, order]
    first = Layer("conv", made, (value,), made, (), weights=weights, bias=np.zeros(len(factors), np.float32))
    renamed = (
        replace(layer, inputs=tuple(made if name == value else name for name in layer.inputs)) for layer in layers
    )
    return [first, *renamed]


def _fit(layer: Layer, shapes: MutableMapping[str, Shape]) -> list[Layer]:
    if layer.kind == "conv" and len(shapes[layer.output]) == 4:
        return [_fit_convolution(layer, shapes)]
    if layer.kind == "space_to_depth":
        return [_as_convolution(layer, shapes)]
    if layer.kind not in ("max_pool", "avg_pool"):
        return [layer]
    if len(shapes[layer.output]) == 4:
        return _fit_pool(layer, shapes)
    # A mean over the whole picture that leaves its axes out.
    picture = f"{layer.output}/picture"
    shapes[picture] = (*shapes[layer.output], 1, 1)
    vector = Layer("act", layer.name, (picture,), layer.output, layer.nodes, activation=layer.activation)
    return [*_fit_pool(replace(layer, output=picture, before="", activation=Activation()), shapes), vector]


def _check_limits(layer: Layer, shapes: Mapping[str, Shape]) -> None:
    groups = shapes[layer.output][1] if layer.kind == "upsample" else layer.groups
    window = (1, 1) if layer.kind.endswith("pool") and is_global(layer, shapes) else layer.kernel
    if groups > _MOST_GROUPS and (layer.kind == "upsample" or not is_scale(layer)):
        raise UnsupportedOperatorError(f"{layer.name}: {groups} groups; the mapper takes {_MOST_GROUPS}")
    if max(*window, *layer.stride, *layer.pads) > _LARGEST_WINDOW:
        raise UnsupportedOperatorError(
            f"{layer.name}: a window of {window[0]} x {window[1]} with a stride of {max(layer.stride)} and a border of "
            f"{max(layer.pads)}; the mapper takes {_LARGEST_WINDOW}"
        )


def is_scale(layer: Layer) -> bool:
    """A convolution that multiplies each channel with a number, and adds one."""
    plain = (layer.kernel, layer.stride, layer.pads) == ((1, 1), (1, 1), (0, 0, 0, 0))
    return plain and layer.weights is not None and layer.groups == len(layer.weights) > 1


def _fit_convolution(layer: Layer, shapes: Mapping[str, Shape]) -> Layer:
    """Its window grows by zeros where its borders are not the same on both sides."""
    source, target = shapes[layer.inputs[0]][2:], shapes[layer.output][2:]
    front, back = zip(*(_growth(layer, axis, source[axis], target[axis]) for axis in (0, 1)), strict=True)
    if not any((*front, *back)):
        return layer
    assert layer.weights is not None
    weights = np.pad(layer.weights, ((0, 0), (front[0], back[0]), (front[1], back[1]), (0, 0)))
    top, left = (layer.pads[axis] + front[axis] * layer.dilation[axis] for axis in (0, 1))
    return replace(layer, weights=weights, kernel=weights.shape[1:3], pads=(top, left, top, left))


def _growth(layer: Layer, axis: int, source: int, target: int) -> tuple[int, int]:
    """The least numbers of zeros before and after the window with which Caffe's rule gives the size."""
    step = layer.dilation[axis]
    most = max(layer.pads[axis], layer.pads[axis + 2]) // step + 1
    pairs = [(front, back) for front in range(most + 1) for back in range(most + 1)]
    for front, back in sorted(pairs, key=sum):
        width = (layer.kernel[axis] + front + back - 1) * step + 1
        border = layer.pads[axis] + front * step
        if (source + 2 * border - width) // layer.stride[axis] + 1 == target:
            return front, back
    raise UnsupportedOperatorError(
        f"{layer.name}: Caffe has no border that gives {target} of {source} lines or columns"
    )


def _as_convolution(layer: Layer, shapes: Mapping[str, Shape]) -> Layer:
    """Space to depth: each output channel is one pixel of a block."""
    block, channels = layer.stride[0], shapes[layer.inputs[0]][1]
    weights = np.eye(block * block * channels, dtype=np.float32).reshape(-1, block, block, channels)
    bias = np.zeros(len(weights), np.float32)
    return replace(layer, kind="conv", weights=weights, bias=bias, kernel=layer.stride)


def _fit_pool(layer: Layer, shapes: MutableMapping[str, Shape]) -> list[Layer]:
    source, target = shapes[layer.inputs[0]][2:], shapes[layer.output][2:]
    before, after = layer.pads[:2], layer.pads[2:]
    fits = _pooled(layer, source) == target
    if layer.kind == "max_pool":
        return [layer] if fits else _pool_and_pick(layer, shapes)
    # Caffe's mean counts the border that it knows of, and not what a window has beyond that.
    counted = layer.count_pads and all(one >= other for one, other in zip(before, after, strict=True))
    if fits and (counted or not (any(before) or layer.count_pads)):
        return [layer]
    if not layer.count_pads and any(layer.pads):
        raise UnsupportedOperatorError(f"{layer.name}: Caffe has no mean that leaves out the border")
    channels, size = shapes[layer.output][1], layer.kernel[0] * layer.kernel[1]
    weights = np.full((channels, *layer.kernel, 1), 1 / size, np.float32)
    bias = np.zeros(channels, np.float32)
    mean = replace(layer, kind="conv", weights=weights, bias=bias, groups=channels, count_pads=False)
    return [_fit_convolution(mean, shapes)]


def _pooled(layer: Layer, source: Shape) -> Shape:
    """The size that Caffe gives a pool with its border above and on the left on all sides."""
    sizes = []
    for axis in (0, 1):
        border, stride = layer.pads[axis], layer.stride[axis]
        size = -(-(source[axis] + 2 * border - layer.kernel[axis]) // stride) + 1
        # The last window must begin within the picture or the border before it.
        if any(layer.pads[:2]) and (size - 1) * stride >= source[axis] + border:
            size -= 1
        sizes.append(size)
    return tuple(sizes)


def _pool_and_pick(layer: Layer, shapes: MutableMapping[str, Shape]) -> list[Layer]:
    """A pool at every pixel, where nothing is rounded, and a convolution that picks those that are wanted."""
    _, channels, *source = shapes[layer.inputs[0]]
    target = shapes[layer.output][2:]
    sizes = [source[axis] + 2 * layer.pads[axis] - layer.kernel[axis] + 1 for axis in (0, 1)]
    if tuple((size - 1) // stride + 1 for size, stride in zip(sizes, layer.stride, strict=True)) != target:
        raise UnsupportedOperatorError(
            f"{layer.name}: Caffe has no pool with a border of {list(layer.pads)} that gives {list(target)} of {source}"
        )
    every = f"{layer.output}/every"
    shapes[every] = (1, channels, *sizes)
    pads = (*layer.pads[:2], *layer.pads[:2])
    pool = replace(layer, output=every, stride=(1, 1), pads=pads, before="", activation=Activation())
    pick = Layer(
        "conv",
        layer.name,
        (every,),
        layer.output,
        layer.nodes,
        activation=layer.activation,
        weights=np.ones((channels, 1, 1, 1), np.float32),
        bias=np.zeros(channels, np.float32),
        stride=layer.stride,
        groups=channels,
    )
    return [pool, pick]
