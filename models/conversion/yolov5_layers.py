"""The layers of YOLOv5 as ONNX operators, each after the `forward` of its class in versions 1.0 to 7.0 of the published program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import ConversionError
from pyasc.models.conversion.onnx_builder import OnnxBuilder, Value
from pyasc.models.conversion.torch_modules import Module

_MAX_DEPTH = 12
_MAX_SIDE = 1024
_MODULE_PREFIXES = ("models.", "yolov5.models.")


@dataclass(frozen=True)
class Affine:
    """y = scale * x + shift for each channel: a BatchNorm at inference."""

    scale: NDArray[np.float64]
    shift: NDArray[np.float64]

    def part(self, start: int, end: int) -> Affine:
        """The same for some of the channels."""
        return Affine(self.scale[start:end], self.shift[start:end])


Emitter = Callable[["Layers", Module, Value], Value]


class Layers:
    """Emits layers into a graph.

    Args:
        builder: of the graph.
    """

    def __init__(self, builder: OnnxBuilder) -> None:
        self.builder = builder
        self._depth = 0

    def emit(self, module: Module, x: Value) -> Value:
        """Append a module that has one input.

        Raises:
            ConversionError: it is none that is known here, or its settings are not; names the layer and its class.
        """
        emitter = _EMITTERS.get(family_name(module))
        if emitter is None:
            module.fail(f"{module.kind} is not a layer of YOLOv5 that can be converted")
        self._depth += 1
        try:
            if self._depth > _MAX_DEPTH:
                module.fail("is nested too deeply")
            return emitter(self, module, x)
        except ConversionError as error:
            if str(error).startswith("layer "):
                raise
            raise ConversionError(f"{module.where}: {error}") from error
        finally:
            self._depth -= 1

    def conv2d(self, module: Module, x: Value, after: Affine | None = None) -> Value:
        """A Conv2d, with what follows it for each channel folded in."""
        weight, bias = conv_weights(module, after)
        strides, padding, dilations = (
            module.pair("stride", 1, 64),
            module.pair("padding", 0, _MAX_SIDE),
            module.pair("dilation", 1, 64),
        )
        groups = module.integer("groups", 1, 1 << 16)
        return self.builder.conv(x, weight, bias, strides=strides, padding=padding, dilations=dilations, groups=groups)

    def activation(self, module: Module, x: Value) -> Value:
        """An activation by its class; a module without `act` has none."""
        emitter = _ACTIVATIONS.get(family_name(module))
        if emitter is None:
            module.fail(f"{module.kind} is not an activation that can be converted")
        return emitter(self, module, x)


def family_name(module: Module) -> str:
    """The class for the tables: `nn.Conv2d`, `yolov5.C3`; another family's keep their full name."""
    home = module.record.kind.module
    if home.startswith("torch.nn.modules."):
        return f"nn.{module.name}"
    for prefix in _MODULE_PREFIXES:
        if home in (f"{prefix}common", f"{prefix}yolo", f"{prefix}experimental"):
            return f"yolov5.{module.name}"
    if home.endswith("utils.activations"):
        return f"nn.{module.name}"
    return module.kind


def conv_weights(module: Module, after: Affine | None = None) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Weight and bias of a Conv2d, with what follows it folded in, in float64."""
    if family_name(module) != "nn.Conv2d":
        module.fail(f"{module.kind} where a Conv2d is expected")
    if module.record.state.get("padding_mode", "zeros") != "zeros":
        module.fail("pads with other values than zeros")
    weight, bias = module.array("weight", 4), module.optional_array("bias", 1)
    if after is None:
        return weight, bias
    if after.scale.shape != weight.shape[:1]:
        module.fail(f"{weight.shape[0]} channels are followed by a BatchNorm of {after.scale.size}")
    shift = after.shift if bias is None else after.shift + bias * after.scale
    return weight * after.scale[:, None, None, None], shift


def batch_norm(module: Module) -> Affine:
    """A BatchNorm2d at inference; Ioffe and Szegedy 2015, algorithm 2."""
    if family_name(module) != "nn.BatchNorm2d":
        module.fail(f"{module.kind} where a BatchNorm2d is expected")
    mean, variance = module.array("running_mean", 1), module.array("running_var", 1)
    gamma, beta = module.optional_array("weight", 1), module.optional_array("bias", 1)
    eps = module.number("eps")
    if (
        not mean.shape
        == variance.shape
        == (mean if gamma is None else gamma).shape
        == (mean if beta is None else beta).shape
    ):
        module.fail("its tensors differ in length")
    if eps <= 0 or (variance < 0).any():
        module.fail("has a negative variance")
    scale = (1.0 if gamma is None else gamma) / np.sqrt(variance + eps)
    return Affine(scale, (0.0 if beta is None else beta) - mean * scale)


def _conv(layers: Layers, module: Module, x: Value) -> Value:
    after = batch_norm(module.child("bn")) if module.has("bn") else None
    return _act(layers, module, layers.conv2d(module.child("conv"), x, after))


def _act(layers: Layers, module: Module, x: Value) -> Value:
    return layers.activation(module.child("act"), x) if module.has("act") else x


def _sequential(layers: Layers, module: Module, x: Value) -> Value:
    for child in module.children():
        x = layers.emit(child, x)
    return x


def _bottleneck(layers: Layers, module: Module, x: Value) -> Value:
    inner = layers.emit(module.child("cv2"), layers.emit(module.child("cv1"), x))
    return layers.builder.add(x, inner) if module.flag("add") else inner


def _c3(layers: Layers, module: Module, x: Value) -> Value:
    deep = layers.emit(module.child("m"), layers.emit(module.child("cv1"), x))
    joined = layers.builder.concat([deep, layers.emit(module.child("cv2"), x)])
    return layers.emit(module.child("cv3"), joined)


def _ghost_conv(layers: Layers, module: Module, x: Value) -> Value:
    half = layers.emit(module.child("cv1"), x)
    return layers.builder.concat([half, layers.emit(module.child("cv2"), half)])


def _ghost_bottleneck(layers: Layers, module: Module, x: Value) -> Value:
    return layers.builder.add(layers.emit(module.child("conv"), x), layers.emit(module.child("shortcut"), x))


def _bottleneck_csp(layers: Layers, module: Module, x: Value) -> Value:
    # The BatchNorm behind the joint works channel by channel, so each half goes into the convolution before it.
    norm = batch_norm(module.child("bn"))
    deep, flat = module.child("cv3"), module.child("cv2")
    split = deep.array("weight", 4).shape[0]
    inner = layers.emit(module.child("m"), layers.emit(module.child("cv1"), x))
    joined = layers.builder.concat(
        [
            layers.conv2d(deep, inner, norm.part(0, split)),
            layers.conv2d(flat, x, norm.part(split, norm.scale.size)),
        ]
    )
    return layers.emit(module.child("cv4"), _act(layers, module, joined))


def _spp(layers: Layers, module: Module, x: Value) -> Value:
    x = layers.emit(module.child("cv1"), x)
    pooled = [layers.emit(pool, x) for pool in module.child("m").children()]
    return layers.emit(module.child("cv2"), layers.builder.concat([x, *pooled]))


def _sppf(layers: Layers, module: Module, x: Value) -> Value:
    levels = [layers.emit(module.child("cv1"), x)]
    for _ in range(3):
        levels.append(layers.emit(module.child("m"), levels[-1]))
    return layers.emit(module.child("cv2"), layers.builder.concat(levels))


def _focus(layers: Layers, module: Module, x: Value) -> Value:
    """Every second pixel in four groups of channels, then a convolution: the same as one of twice its size and stride."""
    conv = module.child("conv")
    inner = conv.child("conv")
    after = batch_norm(conv.child("bn")) if conv.has("bn") else None
    weight, bias = conv_weights(inner, after)
    out, depth, high, wide = weight.shape
    if depth != 4 * x.shape[1] or inner.setting("groups") != 1 or inner.pair("dilation", 1, 64) != (1, 1):
        module.fail("is of a form that cannot be converted")
    whole = np.zeros((out, depth // 4, 2 * high, 2 * wide))
    for group, part in enumerate(np.split(weight, 4, axis=1)):
        # The order of torch.cat in Focus.forward: rows 0, 1, 0, 1 with columns 0, 0, 1, 1.
        whole[:, :, group % 2 :: 2, group // 2 :: 2] = part
    (down, right), (top, left) = inner.pair("stride", 1, 64), inner.pair("padding", 0, _MAX_SIDE)
    y = layers.builder.conv(x, whole, bias, strides=(2 * down, 2 * right), padding=(2 * top, 2 * left))
    return _act(layers, conv, y)


def _max_pool(layers: Layers, module: Module, x: Value) -> Value:
    if module.record.state.get("ceil_mode", False) is not False or module.pair("dilation", 1, 1) != (1, 1):
        module.fail("has settings that cannot be converted")
    kernel, padding = module.pair("kernel_size", 1, _MAX_SIDE), module.pair("padding", 0, _MAX_SIDE)
    strides = module.pair("stride", 1, 64)
    if any(2 * pad > size for pad, size in zip(padding, kernel, strict=True)):
        module.fail("pads by more than half of its window")
    sides = (
        (side + 2 * pad - size) // step + 1
        for side, size, step, pad in zip(x.shape[2:], kernel, strides, padding, strict=True)
    )
    shape = (*x.shape[:2], *sides)
    pads = (*padding, *padding)
    return layers.builder.node("MaxPool", [x], shape, kernel_shape=kernel, strides=strides, pads=pads)


def _upsample(layers: Layers, module: Module, x: Value) -> Value:
    factor = module.setting("scale_factor")
    factors = tuple(factor) if isinstance(factor, tuple | list) else (factor, factor)
    whole = len(factors) == 2 and all(isinstance(f, int | float) and f in range(1, 17) for f in factors)
    if module.setting("mode") != "nearest" or module.setting("size") is not None or not whole:
        module.fail("is not an enlargement to the nearest pixel by a whole factor")
    high, wide = (int(f) for f in factors)
    builder = layers.builder
    return builder.node(
        "Resize",
        [x, "", builder.constant(np.array([1, 1, high, wide], np.float32))],
        (*x.shape[:2], x.shape[2] * high, x.shape[3] * wide),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _identity(layers: Layers, module: Module, x: Value) -> Value:
    return x


def _silu(layers: Layers, module: Module, x: Value) -> Value:
    return layers.builder.node("Mul", [x, layers.builder.node("Sigmoid", [x], x.shape)], x.shape)


def _hardswish(layers: Layers, module: Module, x: Value) -> Value:
    gate = layers.builder.node("HardSigmoid", [x], x.shape, alpha=1 / 6, beta=0.5)
    return layers.builder.node("Mul", [x, gate], x.shape)


def _leaky_relu(layers: Layers, module: Module, x: Value) -> Value:
    return layers.builder.node("LeakyRelu", [x], x.shape, alpha=module.number("negative_slope"))


def _relu(layers: Layers, module: Module, x: Value) -> Value:
    return layers.builder.node("Relu", [x], x.shape)


_ACTIVATIONS: dict[str, Emitter] = {
    "nn.SiLU": _silu,
    "nn.Hardswish": _hardswish,
    "nn.LeakyReLU": _leaky_relu,
    "nn.ReLU": _relu,
    "nn.Identity": _identity,
}

_EMITTERS: dict[str, Emitter] = {
    **_ACTIVATIONS,
    "yolov5.Conv": _conv,
    "yolov5.DWConv": _conv,
    "yolov5.Bottleneck": _bottleneck,
    "yolov5.C3": _c3,
    "yolov5.CrossConv": _bottleneck,
    "yolov5.C3x": _c3,
    "yolov5.C3SPP": _c3,
    "yolov5.C3Ghost": _c3,
    "yolov5.GhostConv": _ghost_conv,
    "yolov5.GhostBottleneck": _ghost_bottleneck,
    "yolov5.BottleneckCSP": _bottleneck_csp,
    "yolov5.SPP": _spp,
    "yolov5.SPPF": _sppf,
    "yolov5.Focus": _focus,
    "nn.Conv2d": Layers.conv2d,
    "nn.MaxPool2d": _max_pool,
    "nn.Upsample": _upsample,
    "nn.Sequential": _sequential,
}
