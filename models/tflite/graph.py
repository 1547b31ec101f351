"""An ONNX graph made ready to be lowered: constants folded, every shape known, only float32 left at run time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from pyasc.errors import ConversionError, UnsupportedOperatorError
from pyasc.models.tflite.fold import Folder, first_line, known_shape, label, node_name

Shape = tuple[int, ...]

# No activation of a network is larger; a gigabyte.
MAX_ELEMENTS = 1 << 28
# Before opset 7 the arithmetic operators broadcast by other rules.
_FIRST_OPSET = 7


@dataclass
class Node:
    """One operator.

    Attributes:
        op: ONNX operator type.
        name: the node's name, or that of its first output where it has none; for messages.
        inputs: value names; an omitted optional input is an empty string.
        outputs: value names.
        attributes: by name, as Python values; strings are decoded.
        activation: fused activation, `RELU`, `RELU6`, `RELU_N1_TO_1`, or `NONE`.
    """

    op: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    activation: str = "NONE"

    def __str__(self) -> str:
        return f"{self.op} '{self.name}'"

    def has(self, index: int) -> bool:
        """True when the optional input `index` is given."""
        return index < len(self.inputs) and bool(self.inputs[index])


@dataclass
class Graph:
    """A graph whose nodes are in topological order.

    Attributes:
        inputs, outputs: value names, in the model's order.
        nodes: what is computed at run time.
        constants: values known at conversion, by name.
        shapes: of every input and every value that a node makes, in ONNX's axis order; all sizes positive.
        opset: version of the default operator set.
    """

    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]
    constants: dict[str, NDArray[Any]]
    shapes: dict[str, Shape]
    opset: int

    def shape(self, name: str) -> Shape:
        """The shape of any value, constants too."""
        if name in self.constants:
            return tuple(self.constants[name].shape)
        return self.shapes[name]

    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each value."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                readers.setdefault(name, []).append(node)
        return readers


def read_graph(model: onnx.ModelProto, supported: Collection[str]) -> Graph:
    """Fold what does not depend on the inputs, drop what no output needs, and find every shape.

    Args:
        model: the whole model, weights included.
        supported: operators that may depend on the inputs.
    Raises:
        ConversionError: the graph is inconsistent, has a size that is not fixed, or keeps weights in other files.
        UnsupportedOperatorError: an operator that is not in `supported`, or one that computes other than float32 at run time.
    """
    _check_names(model)
    opset = _default_opset(model)
    constants = _initializers(model)
    inputs = [value for value in model.graph.input if value.name not in constants]
    outputs = [value.name for value in model.graph.output]
    if not inputs or not outputs:
        raise ConversionError("the graph has no input or no output")
    nodes = _needed(model.graph.node, outputs)
    _check_operators(nodes, {value.name for value in inputs}, supported)
    folder = Folder(model, opset, constants)
    shapes = {}
    for value in inputs:
        shapes[value.name] = _static_shape(value.name, value.type, "input")
        folder.types[value.name] = value.type
    kept = []
    read = {*outputs, *(name for node in nodes for name in node.input)}
    for node in nodes:
        if folder.fold(node):
            continue
        kept.append(node)
        for name in filter(None, node.output):
            type_ = folder.types.get(name)
            # Masks and indices that nothing reads, as beside the result of Dropout and MaxPool, need not be computed.
            if name in read or (type_ and type_.tensor_type.elem_type == onnx.TensorProto.FLOAT):
                shapes[name] = _static_shape(name, type_, label(node))
    missing = [name for name in outputs if name not in shapes and name not in constants]
    if missing:
        raise ConversionError(f"nothing makes the output '{missing[0]}'")
    plain = [_plain(node) for node in _needed(kept, outputs)]
    return Graph([value.name for value in inputs], outputs, plain, constants, shapes, opset)


def _check_names(model: onnx.ModelProto) -> None:
    """Names go into messages, and so to terminals and logs: none may hold control characters."""
    graph = model.graph
    names = [entry.name for part in (graph.input, graph.output, graph.initializer) for entry in part]
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
    for name in names:
        # Protobuf hands out bytes where a string is not UTF-8.
        if not isinstance(name, str) or not name.isprintable():
            raise ConversionError(f"{name!r} is no name of a node or value")


def _default_opset(model: onnx.ModelProto) -> int:
    version = next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if version < _FIRST_OPSET:
        raise ConversionError(f"opset {version} is not supported; {_FIRST_OPSET} is the first that is")
    return version


def _initializers(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    if model.graph.sparse_initializer:
        raise ConversionError("sparse initializers are not supported")
    constants = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ConversionError(f"initializer '{tensor.name}' is stored in another file; save the model as one file")
        if tensor.data_type == onnx.TensorProto.STRING:
            raise ConversionError(f"initializer '{tensor.name}' holds text")
        try:
            constants[tensor.name] = np.asarray(numpy_helper.to_array(tensor))
        except (ValueError, TypeError, LookupError) as error:
            raise ConversionError(f"initializer '{tensor.name}' is damaged: {first_line(error)}") from error
    return constants


def _check_operators(nodes: list[onnx.NodeProto], inputs: set[str], supported: Collection[str]) -> None:
    """Refuse what cannot be run, by name, before any other fault of the graph is looked at."""
    computed = set(inputs)
    for node in nodes:
        if node.domain not in ("", "ai.onnx"):
            raise UnsupportedOperatorError(f"{node.domain}.{node.op_type} '{node_name(node)}': not a standard operator")
        if not computed.intersection(node.input) or node.op_type in ("Shape", "Size"):
            continue
        if node.op_type not in supported:
            raise UnsupportedOperatorError(f"{label(node)}: this operator has no TFLite form here")
        computed.update(node.output)


def _needed(nodes: Iterable[onnx.NodeProto], outputs: list[str]) -> list[onnx.NodeProto]:
    """The nodes that some output depends on, in their order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(list(nodes)):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]


def _static_shape(name: str, type_: onnx.TypeProto | None, maker: str) -> Shape:
    if type_ is None:
        raise UnsupportedOperatorError(f"{maker}: nothing is known of its output '{name}'")
    tensor = type_.tensor_type
    if tensor.elem_type != onnx.TensorProto.FLOAT:
        names = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
        dtype = names.get(tensor.elem_type, f"of type {tensor.elem_type}")
        raise UnsupportedOperatorError(f"{maker}: '{name}' is {dtype}; only float32 is computed at run time")
    shape = known_shape(type_)
    if shape is None or min(shape, default=1) < 1:
        dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
        raise ConversionError(f"{maker}: '{name}' has the shape {dims}; every size must be fixed and positive")
    if math.prod(shape) > MAX_ELEMENTS:
        raise ConversionError(f"{maker}: '{name}' has the shape {list(shape)}, which is too large")
    return shape


def _plain(node: onnx.NodeProto) -> Node:
    attributes = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        attributes[attribute.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return Node(node.op_type, node_name(node), list(node.input), list(node.output), attributes)
