"""An ONNX graph made ready to be lowered: constants folded, every shape known, only float32 left at run time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from pyasc.errors import ConversionError, UnsupportedOperatorError

Shape = tuple[int, ...]

# Shape arithmetic works on a handful of integers; larger constants take no part in shape inference.
_SMALL = 1024
# A constant that folding may make: a graph of a few bytes must not ask for memory without bounds.
_FOLD_LIMIT = 1 << 26
# Each round resolves what the round before made known; real exports need two or three.
_MAX_ROUNDS = 64
_STOCHASTIC = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}


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


def read_graph(model: onnx.ModelProto) -> Graph:
    """Fold what does not depend on the inputs, drop what no output needs, and find every shape.

    Raises:
        ConversionError: the graph is inconsistent, has a size that is not fixed, or keeps weights in other files.
        UnsupportedOperatorError: an operator of another domain, or one that computes other than float32 at run time.
    """
    opset = _default_opset(model)
    constants = {tensor.name: _to_array(tensor) for tensor in model.graph.initializer}
    if model.graph.sparse_initializer:
        raise ConversionError("sparse initializers are not supported")
    inputs = [value for value in model.graph.input if value.name not in constants]
    outputs = [value.name for value in model.graph.output]
    nodes = _needed(model.graph.node, outputs)
    for _ in range(_MAX_ROUNDS):
        types = _infer(model, nodes, inputs, outputs, constants)
        remaining = _fold(nodes, constants, types, model)
        if len(remaining) == len(nodes):
            break
        nodes = _needed(remaining, outputs)
    else:
        raise ConversionError(f"shape arithmetic is not resolved after {_MAX_ROUNDS} rounds")
    shapes = {value.name: _static_shape(value.name, value.type, "input") for value in inputs}
    for node in nodes:
        for name in filter(None, node.output):
            if name in types:
                shapes[name] = _static_shape(name, types[name], f"{node.op_type} '{_name(node)}'")
    _check_inputs(nodes, constants, shapes)
    return Graph([value.name for value in inputs], outputs, [_plain(node) for node in nodes], constants, shapes, opset)


def _default_opset(model: onnx.ModelProto) -> int:
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return int(entry.version)
    raise ConversionError("the model names no version of the default operator set")


def _to_array(tensor: onnx.TensorProto) -> NDArray[Any]:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ConversionError(f"initializer '{tensor.name}' is stored in another file; save the model as one file")
    return np.asarray(numpy_helper.to_array(tensor))


def _name(node: onnx.NodeProto) -> str:
    return str(node.name or next(iter(node.output), "?"))


def _needed(nodes: Iterable[onnx.NodeProto], outputs: list[str]) -> list[onnx.NodeProto]:
    """The nodes that some output depends on, in their order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(list(nodes)):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]


def _infer(
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    constants: dict[str, NDArray[Any]],
) -> dict[str, onnx.TypeProto]:
    """The type of every value.

    Works on a skeleton: no stored shapes, which may be stale, and of the constants only those that can be part of shape arithmetic,
    because inference copies what it is given.
    """
    used = {name for node in nodes for name in node.input}
    graph = onnx.GraphProto(name="skeleton")
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    for name in sorted(used.intersection(constants)):
        array = constants[name]
        if array.size <= _SMALL:
            graph.initializer.append(numpy_helper.from_array(array, name))
        else:
            dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, array.shape))
    skeleton = onnx.ModelProto(ir_version=model.ir_version, graph=graph)
    skeleton.opset_import.extend(model.opset_import)
    try:
        inferred = onnx.shape_inference.infer_shapes(skeleton, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise ConversionError(f"shapes cannot be inferred: {_first_line(error)}") from error
    known = [*inferred.graph.value_info, *inferred.graph.output]
    return {value.name: value.type for value in known if value.type.HasField("tensor_type")}


def _fold(
    nodes: list[onnx.NodeProto],
    constants: dict[str, NDArray[Any]],
    types: dict[str, onnx.TypeProto],
    model: onnx.ModelProto,
) -> list[onnx.NodeProto]:
    """Evaluate the nodes whose inputs are constants; adds to `constants` and returns the nodes that are left."""
    folded: dict[str, onnx.NodeProto] = {}
    remaining, chosen = [], []
    for node in nodes:
        shape = _known_shape(types.get(node.input[0])) if node.op_type == "Shape" else None
        if shape is not None:
            begin, end = (_attribute(node, "start", 0), _attribute(node, "end", None))
            constants[node.output[0]] = np.asarray(shape[begin:end], np.int64)
        elif _is_foldable(node, constants, folded, types):
            chosen.append(node)
            folded.update(dict.fromkeys(node.output, node))
        else:
            remaining.append(node)
    _evaluate(chosen, constants, model)
    return remaining


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def _known_shape(type_: onnx.TypeProto | None) -> Shape | None:
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return None
    dims = type_.tensor_type.shape.dim
    return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None


def _is_foldable(
    node: onnx.NodeProto,
    constants: dict[str, NDArray[Any]],
    folded: dict[str, onnx.NodeProto],
    types: dict[str, onnx.TypeProto],
) -> bool:
    if node.op_type in _STOCHASTIC or node.domain not in ("", "ai.onnx"):
        return False
    if any(attribute.type in (attribute.GRAPH, attribute.GRAPHS) for attribute in node.attribute):
        return False
    if not all(name in constants or name in folded for name in node.input if name):
        return False
    shapes = [_known_shape(types.get(name)) for name in node.output if name]
    return all(shape is not None and np.prod(shape, dtype=float) <= _FOLD_LIMIT for shape in shapes)


def _evaluate(nodes: list[onnx.NodeProto], constants: dict[str, NDArray[Any]], model: onnx.ModelProto) -> None:
    if not nodes:
        return
    made = [name for node in nodes for name in node.output if name]
    feeds = {name: constants[name] for node in nodes for name in node.input if name in constants}
    graph = onnx.helper.make_graph(
        nodes,
        "constants",
        [onnx.ValueInfoProto(name=name) for name in feeds],
        [onnx.ValueInfoProto(name=name) for name in made],
    )
    part = onnx.ModelProto(ir_version=model.ir_version, graph=graph)
    part.opset_import.extend(model.opset_import)
    try:
        results = ReferenceEvaluator(part).run(made, feeds)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, ArithmeticError) as error:
        names = ", ".join(f"{node.op_type} '{_name(node)}'" for node in nodes[:3])
        raise ConversionError(f"constants cannot be computed ({names}): {_first_line(error)}") from error
    constants.update((name, np.asarray(result)) for name, result in zip(made, results, strict=True))


def _static_shape(name: str, type_: onnx.TypeProto, maker: str) -> Shape:
    tensor = type_.tensor_type
    if tensor.elem_type != onnx.TensorProto.FLOAT:
        dtype = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        raise UnsupportedOperatorError(f"{maker}: '{name}' is {dtype}; only float32 is computed at run time")
    shape = _known_shape(type_)
    if shape is None or min(shape, default=1) < 1:
        dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
        raise ConversionError(f"{maker}: '{name}' has the shape {dims}; every size must be fixed and positive")
    return shape


def _check_inputs(nodes: list[onnx.NodeProto], constants: dict[str, NDArray[Any]], shapes: dict[str, Shape]) -> None:
    """Every value that is read must exist: inference leaves out what it knows nothing of."""
    for node in nodes:
        if node.domain not in ("", "ai.onnx"):
            raise UnsupportedOperatorError(f"{node.domain}.{node.op_type} '{_name(node)}': not a standard operator")
        missing = [
            name for name in [*node.input, node.output[0]] if name and name not in constants and name not in shapes
        ]
        if missing:
            raise UnsupportedOperatorError(f"{node.op_type} '{_name(node)}': nothing is known of '{missing[0]}'")


def _plain(node: onnx.NodeProto) -> Node:
    attributes = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        attributes[attribute.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return Node(node.op_type, _name(node), list(node.input), list(node.output), attributes)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
