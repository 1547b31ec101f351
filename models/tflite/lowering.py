"""What the lowering of each operator works with: values and their axis orders, constants, and the file being made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from pyasc.errors import ConversionError, UnsupportedOperatorError
from pyasc.models.tflite.aliases import add_transpose
from pyasc.models.tflite.file import TfliteFile
from pyasc.models.tflite.graph import MAX_ELEMENTS, Graph, Node, Shape
from pyasc.models.tflite.layout import (
    Order,
    default_order,
    identity,
    permutation,
    physical,
    reshaped,
    same_memory,
)

Precision = Literal["fp32", "fp16"]


# How many axes the kernels of both engines take; for broadcasts see `broadcast`.
_MAX_RANK = 6
_MAX_RANKS = dict.fromkeys(("SLICE", "STRIDED_SLICE", "PAD", "PADV2", "BATCH_MATMUL"), 5)


def refuse(node: Node, why: str) -> UnsupportedOperatorError:
    """The error for a form of an operator that cannot be written."""
    return UnsupportedOperatorError(f"{node}: {why}")


class Lowering:
    """One conversion.

    `file` collects the operators. Each ONNX value is bound to a tensor and the order in which its axes lie there; `tensor` hands it
    out in any order, and writes the transposition that this needs at most once.
    """

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self.graph = graph
        self.precision = precision
        self.file = TfliteFile()
        self._orders: dict[str, Order] = {}
        self._tensors: dict[tuple[str, Order], int] = {}
        # The source of each RESHAPE's result.
        self._reshaped: dict[int, int] = {}
        # The float32 tensor of each float16 constant.
        self._widened: dict[int, int] = {}

    def lower(self, node: Node, write: Callable[[Lowering, Node], None]) -> None:
        """Let `write` write the node's operators.

        Raises:
            UnsupportedOperatorError: the node, or more axes than the engines take, cannot be written.
            ConversionError: a number of the node is beyond what the file holds, or needs more memory than any network.
        """
        first = len(self.file.operators)
        try:
            write(self, node)
        except OverflowError as error:
            raise ConversionError(f"{node}: {error}") from error
        for operator in self.file.operators[first:]:
            limit = _MAX_RANKS.get(operator.op, _MAX_RANK)
            tensors = [self.file.tensors[number] for number in (*operator.inputs, *operator.outputs)]
            rank = max(len(tensor.shape) for tensor in tensors)
            if rank > limit:
                raise refuse(node, f"{rank} axes; {operator.op} takes {limit} at most")
            large = [tensor.shape for tensor in tensors if math.prod(tensor.shape) > MAX_ELEMENTS]
            if large:
                raise ConversionError(f"{node}: {operator.op} would make {list(large[0])}, which is too large")

    # Values

    def shape(self, name: str) -> Shape:
        """The shape in ONNX's axis order."""
        return self.graph.shape(name)

    def is_constant(self, name: str) -> bool:
        """True for a value known at conversion."""
        return name in self.graph.constants

    def constant(self, node: Node, index: int) -> NDArray[Any]:
        """Input `index` as an array; UnsupportedOperatorError when it is computed at run time."""
        name = node.inputs[index]
        if name not in self.graph.constants:
            raise refuse(node, f"input {index} ('{name}') must be a constant")
        return self.graph.constants[name]

    def floats(self, node: Node, index: int) -> NDArray[np.float32]:
        """Input `index` as a float32 array; UnsupportedOperatorError when it is computed at run time."""
        return np.asarray(self.constant(node, index), np.float32)

    def number(self, node: Node, index: int) -> float:
        """Input `index` as one number; UnsupportedOperatorError when it is computed at run time or not one number."""
        array = self.constant(node, index)
        if array.size != 1:
            raise refuse(node, f"input {index} ('{node.inputs[index]}') of shape {list(array.shape)} is not one number")
        return float(array.reshape(-1)[0])

    def integers(self, node: Node, index: int, attribute: str) -> list[int] | None:
        """A list that older operator sets keep in an attribute and newer ones in input `index`; None when not given."""
        if node.has(index):
            return [int(value) for value in self.constant(node, index).reshape(-1)]
        value = node.attributes.get(attribute)
        return None if value is None else [int(item) for item in np.atleast_1d(value)]

    def bind(self, name: str, tensor: int, order: Order) -> None:
        """Say which tensor holds a value, and how its axes lie."""
        self._orders[name] = order
        self._tensors[name, order] = tensor

    def order(self, name: str) -> Order:
        """How the axes of a value lie; ONNX's order for a constant, which can be had in any."""
        return self._orders.get(name, identity(len(self.shape(name))))

    def tensor(self, name: str, order: Order) -> int:
        """The tensor that holds a value with its axes in `order`."""
        key = (name, order)
        if key not in self._tensors:
            if self.is_constant(name):
                array = np.asarray(self.graph.constants[name], np.float32)
                self._tensors[key] = self.file.add_constant(name, array.transpose(order))
            else:
                self._tensors[key] = self._reordered(name, order)
        return self._tensors[key]

    def _reordered(self, name: str, order: Order) -> int:
        source = self._orders[name]
        tensor = self._tensors[name, source]
        shape = self.shape(name)
        if same_memory(shape, source, order):
            return self.reshape(tensor, physical(shape, order), name)
        result = self.file.add_tensor(name, physical(shape, order))
        add_transpose(self.file, tensor, permutation(source, order), result)
        return result

    def reshape(self, tensor: int, shape: Sequence[int], name: str) -> int:
        """A tensor with the same memory and another shape; the tensor itself where the shape is the same."""
        source = self.file.tensors[tensor]
        if source.shape == tuple(shape):
            return tensor
        if source.data is not None:
            return self.file.add_constant(source.name, source.data.reshape(shape))
        # Not a RESHAPE of a RESHAPE: the first may turn out to be read by nothing else.
        tensor = self._reshaped.get(tensor, tensor)
        self._reshaped[result := self._write_reshape(tensor, shape, name)] = tensor
        return result

    # Constants

    def weight(self, array: NDArray[Any], name: str) -> int:
        """A filter or matrix, stored in the model's precision.

        float16 is stored as such and widened by DEQUANTIZE, which the engines do once, when they load. What float16 cannot hold
        stays float32.
        """
        array = np.asarray(array, np.float32)
        if self.precision == "fp32" or np.abs(array).max(initial=0.0) > np.finfo(np.float16).max:
            return self.file.add_constant(name, array)
        narrow = self.file.add_constant(name, array.astype(np.float16))
        if narrow not in self._widened:
            self._widened[narrow] = self.file.add_tensor(f"{name};float32", array.shape)
            self.file.add_operator("DEQUANTIZE", [narrow], [self._widened[narrow]], schema.DequantizeOptionsT(), 3)
        return self._widened[narrow]

    def integers_constant(self, values: Any, name: str) -> int:
        """An int32 constant such as axes or paddings."""
        return self.file.add_integers(name, values)

    def scalar(self, value: float) -> int:
        """A float32 constant without axes."""
        return self.file.add_constant("scalar", np.asarray(value, np.float32))

    # Operators

    def add(
        self, op: str, inputs: Sequence[int], shape: Sequence[int], name: str, options: Any = None, version: int = 1
    ) -> int:
        """Write an operator with one output of `shape` (in memory); returns the output's tensor."""
        result = self.file.add_tensor(name, shape)
        self.file.add_operator(op, inputs, [result], options, version)
        return result

    def bind_reshaped(self, node: Node, source: str) -> None:
        """Bind the node's output to the data of `source` under the output's shape, moving it only where it must."""
        output = node.outputs[0]
        shape, new_shape = self.shape(source), self.shape(output)
        if math.prod(shape) != math.prod(new_shape):
            raise refuse(node, f"{list(shape)} does not have the elements of {list(new_shape)}")
        order = self.order(source)
        new_order = reshaped(shape, order, new_shape)
        if new_order is None:
            order = identity(len(shape))
            new_order = reshaped(shape, order, new_shape)
        assert new_order is not None, "ONNX's own order passes every Reshape"
        tensor = self.reshape(self.tensor(source, order), physical(new_shape, new_order), output)
        self.bind(output, tensor, new_order)

    # The model's own inputs and outputs

    def bind_inputs(self) -> list[tuple[str, int]]:
        """Make the model's inputs, four axes as NHWC; returns (name, tensor)."""
        named = []
        for name in self.graph.inputs:
            order = default_order(len(self.shape(name)))
            tensor = self.file.add_tensor(name, physical(self.shape(name), order))
            self.bind(name, tensor, order)
            named.append((name, tensor))
        return named

    def outputs(self) -> list[tuple[str, int]]:
        """The model's outputs, four axes as NHWC, each a tensor of its own; returns (name, tensor)."""
        used = {self._tensors[name, self._orders[name]] for name in self.graph.inputs}
        named = []
        for name in self.graph.outputs:
            tensor = self.tensor(name, default_order(len(self.shape(name))))
            if tensor in used or self.file.tensors[tensor].data is not None:
                tensor = self._copy(tensor, name)
            used.add(tensor)
            named.append((name, tensor))
        return named

    def _copy(self, tensor: int, name: str) -> int:
        return self._write_reshape(tensor, self.file.tensors[tensor].shape, name)

    def _write_reshape(self, tensor: int, shape: Sequence[int], name: str) -> int:
        sizes = [int(size) for size in shape]
        if sizes and sizes[0] == next(iter(self.file.tensors[tensor].shape), None):
            # Row i of the source is row i of the result, however many there are: an engine may enlarge the batch.
            sizes[0] = -1
        inputs = [tensor, self.file.add_integers("shape", sizes)]
        return self.add("RESHAPE", inputs, shape, name, schema.ReshapeOptionsT(newShape=sizes))


def activation_code(node: Node) -> int:
    """The node's fused activation as the schema numbers it."""
    return int(getattr(schema.ActivationFunctionType, node.activation))
