"""Writes ONNX graphs of convolutional networks, with every shape known while it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import ConversionError
from pyasc.models.asc.manifest import Precision

if TYPE_CHECKING:
    import onnx

OPSET = 13
# The first IR version that may have opset 13; older engines read it too.
_IR_VERSION = 7
_MAX_NODES = 20_000
# Protocol buffers end at 2 GiB; the largest published YOLOv5 has 0.6 GB of weights.
_MAX_WEIGHT_BYTES = 1 << 30
_FLOAT16_MAX = float(np.finfo(np.float16).max)


def load_onnx() -> Any:
    """The `onnx` package; ConversionError with the remedy where it is missing."""
    try:
        import onnx
        import onnx.helper
        import onnx.numpy_helper
        import onnx.shape_inference
    except ImportError as error:
        raise ConversionError("conversion needs the package onnx: pip install 'pyasc[convert]'") from error
    return onnx


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph: its name and its shape, NCHW or (batch, features)."""

    name: str
    shape: tuple[int, ...]


class OnnxBuilder:
    """A graph in the making.

    Args:
        precision: `fp16` stores weights of two and more axes as float16 and widens them in the graph, which halves the file and
            runs on every engine; what is computed, and the few biases, stay float32.
    """

    def __init__(self, name: str, precision: Precision) -> None:
        self._onnx = load_onnx()
        self._name = name
        self._half = precision == "fp16"
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._inputs: list[Value] = []
        self._weight_bytes = 0
        self.parameters = 0

    def input(self, name: str, shape: tuple[int, ...]) -> Value:
        """A float32 input of the graph."""
        value = Value(name, shape)
        self._inputs.append(value)
        return value

    def node(self, operator: str, inputs: Sequence[Value | str], shape: tuple[int, ...], **attributes: Any) -> Value:
        """Append a node with one output of the given shape."""
        if len(self._nodes) >= _MAX_NODES:
            raise ConversionError(f"the network has more than {_MAX_NODES} operators")
        if min(shape) < 1:
            raise ConversionError(f"{operator} would have the shape {list(shape)}: the input is too small")
        output = f"{operator.lower()}_{len(self._nodes)}"
        names = [value if isinstance(value, str) else value.name for value in inputs]
        self._nodes.append(self._onnx.helper.make_node(operator, names, [output], name=output, **attributes))
        return Value(output, shape)

    def weight(self, array: NDArray[Any]) -> str:
        """Store a constant; float16 where the precision says so and its values fit."""
        self._weight_bytes += array.size * 4
        if self._weight_bytes > _MAX_WEIGHT_BYTES:
            raise ConversionError(f"the network has more than {_MAX_WEIGHT_BYTES} bytes of weights")
        self.parameters += array.size
        name = f"weight_{len(self._initializers)}"
        half = self._half and array.ndim > 1 and float(np.abs(array).max(initial=0)) <= _FLOAT16_MAX
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(array, np.float16 if half else np.float32)
        if not np.isfinite(stored).all():
            raise ConversionError("the weights are not numbers that float32 can hold")
        self._initializers.append(self._onnx.numpy_helper.from_array(stored, name))
        if not half:
            return name
        return self.node("Cast", [name], array.shape, to=self._onnx.TensorProto.FLOAT).name

    def constant(self, array: NDArray[Any]) -> str:
        """Store an operand, such as the scales of a Resize, unchanged."""
        name = f"constant_{len(self._initializers)}"
        self._initializers.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def conv(
        self,
        x: Value,
        weight: NDArray[np.float64],
        bias: NDArray[np.float64] | None,
        *,
        strides: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0),
        dilations: tuple[int, int] = (1, 1),
        groups: int = 1,
    ) -> Value:
        """A convolution; weight is (out, in / groups, height, width)."""
        out, depth, *kernel = weight.shape
        if groups < 1 or out % groups or depth * groups != x.shape[1] or (bias is not None and bias.shape != (out,)):
            raise ConversionError(
                f"a weight of shape {list(weight.shape)} in {groups} groups does not fit {x.shape[1]} channels"
            )
        sides = (
            (side + 2 * pad - step * (size - 1) - 1) // stride + 1
            for side, size, stride, pad, step in zip(x.shape[2:], kernel, strides, padding, dilations, strict=True)
        )
        operands: list[Value | str] = [x, self.weight(weight)]
        if bias is not None:
            operands.append(self.weight(bias))
        return self.node(
            "Conv",
            operands,
            (x.shape[0], out, *sides),
            kernel_shape=kernel,
            strides=strides,
            pads=(*padding, *padding),
            dilations=dilations,
            group=groups,
        )

    def concat(self, values: Sequence[Value]) -> Value:
        """Join along the channels."""
        first = values[0].shape
        if any(value.shape[:1] + value.shape[2:] != first[:1] + first[2:] for value in values):
            raise ConversionError(f"shapes {[list(value.shape) for value in values]} cannot be joined")
        shape = (first[0], sum(value.shape[1] for value in values), *first[2:])
        return self.node("Concat", values, shape, axis=1)

    def add(self, a: Value, b: Value) -> Value:
        """Sum of two tensors of one shape."""
        if a.shape != b.shape:
            raise ConversionError(f"shapes {list(a.shape)} and {list(b.shape)} cannot be added")
        return self.node("Add", [a, b], a.shape)

    def build(self, outputs: Sequence[tuple[str, Value]]) -> onnx.ModelProto:
        """The finished model, checked.

        Args:
            outputs: (name, value): under what name a value leaves the graph.
        """
        renamed = {value.name: name for name, value in outputs}
        if len(renamed) < len(outputs):
            raise ConversionError("two outputs are the same tensor")
        for node in self._nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        graph = self._onnx.helper.make_graph(
            self._nodes,
            self._name,
            [self._info(value.name, value.shape) for value in self._inputs],
            [self._info(name, value.shape) for name, value in outputs],
            self._initializers,
        )
        opset = self._onnx.helper.make_opsetid("", OPSET)
        model = self._onnx.helper.make_model(
            graph, producer_name="pyasc", opset_imports=[opset], ir_version=_IR_VERSION
        )
        try:
            self._onnx.checker.check_model(model)
            # Strict: the inferred shapes must be those that were promised here.
            checked: onnx.ModelProto = self._onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        except (self._onnx.checker.ValidationError, self._onnx.shape_inference.InferenceError) as error:
            raise ConversionError(f"the graph is not sound: {str(error).strip().splitlines()[0]}") from error
        return checked

    def _info(self, name: str, shape: tuple[int, ...]) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, self._onnx.TensorProto.FLOAT, shape)
