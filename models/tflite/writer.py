"""From ONNX to `.tflite`, without TensorFlow.

A graph is read and simplified (`graph`, `fuse`), lowered operator by operator (`lowering`, `ops_*`)
with the axis order of every value tracked (`layout`), kept from overwriting itself (`aliases`), and written (`file`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from pyasc.hal.base import TensorInfo
from pyasc.models.tflite import ops_conv, ops_math, ops_shape
from pyasc.models.tflite.aliases import separate
from pyasc.models.tflite.fuse import fuse
from pyasc.models.tflite.graph import Node, read_graph
from pyasc.models.tflite.lowering import Lowering, Precision

_OPERATORS: dict[str, Callable[[Lowering, Node], None]] = {
    **ops_conv.OPERATORS,
    **ops_math.OPERATORS,
    **ops_shape.OPERATORS,
}


@dataclass(frozen=True)
class TfliteModel:
    """A written model.

    Attributes:
        data: the file, identifier `TFL3`.
        inputs, outputs: under ONNX's names and in its order; shapes as they lie in memory: four axes as NHWC, any other number as
            in ONNX with an empty layout. All are float32.
    """

    data: bytes
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


def to_tflite(model: onnx.ModelProto, precision: Precision = "fp32") -> TfliteModel:
    """Convert an ONNX model with fixed shapes.

    Args:
        model: opset 7 or later, float32 at run time; float16 initializers that a Cast widens are read as weights.
        precision: `fp16` stores filters and matrices as float16, which halves the file. Inputs, outputs and what is computed stay
            float32; so do biases, which are small and whose rounding would cost as much accuracy as the filters', and weights
            beyond float16's range.
    Raises:
        UnsupportedOperatorError: an operator, or a form of it, that cannot be written; names operator and node.
        ConversionError: the graph is inconsistent or has sizes that are not fixed.
    """
    if precision not in ("fp32", "fp16"):
        raise ValueError(f"precision: {precision!r} is neither 'fp32' nor 'fp16'")
    # NumPy would warn of a division by zero or a NaN among the constants; they go into the file as ONNX defines them.
    with np.errstate(all="ignore"):
        graph = read_graph(model, _OPERATORS.keys())
        fuse(graph)
        lowering = Lowering(graph, precision)
        inputs = lowering.bind_inputs()
        for node in graph.nodes:
            lowering.lower(node, _OPERATORS[node.op])
    outputs = lowering.outputs()
    separate(lowering.file, {number for _, number in inputs}, {number for _, number in outputs})
    data = lowering.file.to_bytes(inputs, outputs)
    return TfliteModel(data, _infos(lowering, inputs), _infos(lowering, outputs))


def _infos(lowering: Lowering, named: list[tuple[str, int]]) -> tuple[TensorInfo, ...]:
    shapes = [(name, lowering.file.tensors[number].shape) for name, number in named]
    return tuple(TensorInfo(name, shape, "float32", "NHWC" if len(shape) == 4 else "") for name, shape in shapes)
