"""Constant folding: what an ONNX graph computes from its weights and shapes alone, computed before it is lowered."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from pyasc.errors import ConversionError

# What exporters write for shape arithmetic and for the preparation of weights. All cost no more than their operands and results.
FOLDABLE = frozenset(
    {
        *("Constant", "ConstantOfShape", "Identity", "Cast", "Shape", "Size", "Range", "Expand", "Tile", "Where"),
        *("Gather", "Concat", "Slice", "Split", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Pad"),
        *(
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Mod",
            "Neg",
            "Abs",
            "Floor",
            "Ceil",
            "Round",
            "Sqrt",
            "Exp",
            "Log",
            "Pow",
            "Min",
            "Max",
        ),
        *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "Clip", "Relu", "Sigmoid"),
        *("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "DequantizeLinear"),
    }
)
# A graph of a few bytes must not ask for memory without bounds: folding may make this many elements, and so many more for each
# element that the file itself holds.
_FREE_ELEMENTS = 1 << 26
_GROWTH = 4

# Shape arithmetic works on a handful of integers; the values of larger constants take no part in shape inference.
_SMALL = 1024
_TYPE_NAMES = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
_INFERENCE_ERRORS = (onnx.shape_inference.InferenceError, onnx.defs.SchemaError, onnx.checker.ValidationError)


class Folder:
    """Goes through a graph's nodes in order: computes what depends on constants only, and finds the type of everything else.

    Types are inferred node by node, so that a size is checked before the next node's inference sees it: onnx's own
    inference of whole graphs ends the process on some sizes below zero.

    Attributes:
        constants: initializers and what has been folded, by name.
        types: of the values that are computed at run time, by name.
    """

    def __init__(self, model: onnx.ModelProto, opset: int, constants: dict[str, NDArray[Any]]) -> None:
        self.constants = constants
        self.types: dict[str, onnx.TypeProto] = {}
        self._opset = opset
        self._opsets = [onnx.helper.make_opsetid("", opset)]
        self._ir_version = model.ir_version
        self._budget = _FREE_ELEMENTS + _GROWTH * sum(array.size for array in constants.values())
        self._checker = onnx.checker.C.CheckerContext()
        self._checker.ir_version = self._ir_version
        self._checker.opset_imports = {"": opset}

    def fold(self, node: onnx.NodeProto) -> bool:
        """Take the next node; True when it has become constants.

        Raises:
            ConversionError: the node is not valid ONNX, does not fit its inputs, or makes constants without bounds.
        """
        self._check(node)
        if node.op_type == "Shape" and node.input[0] in self.types:
            shape = known_shape(self.types[node.input[0]]) or ()
            begin, end = _attribute(node, "start", 0), _attribute(node, "end", None)
            self.constants[node.output[0]] = np.asarray(shape[begin:end], np.int64)
            return True
        types = self._infer(node)
        if node.op_type in FOLDABLE and all(name in self.constants for name in node.input if name):
            self._evaluate(node, types)
            return True
        self.types.update(types)
        return False

    def _check(self, node: onnx.NodeProto) -> None:
        try:
            onnx.checker.check_node(node, self._checker)
        except (onnx.checker.ValidationError, ValueError) as error:
            raise ConversionError(f"{label(node)} is not valid: {first_line(error)}") from error
        for name in filter(None, node.input):
            if name not in self.constants and name not in self.types:
                raise ConversionError(f"{label(node)} reads '{name}', which nothing before it makes")
        for name in filter(None, node.output):
            if name in self.constants or name in self.types:
                raise ConversionError(f"{label(node)} makes '{name}', which exists already")

    def _infer(self, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        names = {name for name in node.input if name}
        arrays = {name: self.constants[name] for name in names if name in self.constants}
        types = {
            name: onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in arrays.items()
        }
        types.update((name, self.types[name]) for name in names - arrays.keys())
        data = {name: numpy_helper.from_array(array, name) for name, array in arrays.items() if array.size <= _SMALL}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opset, "")
            _check_types(node, schema, types)
            inferred = onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=self._opsets, ir_version=self._ir_version
            )
        except (*_INFERENCE_ERRORS, RuntimeError, ValueError) as error:
            raise ConversionError(f"{label(node)} does not fit its inputs: {first_line(error)}") from error
        return {name: type_ for name, type_ in inferred.items() if name and type_.HasField("tensor_type")}

    def _evaluate(self, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> None:
        made = [name for name in node.output if name]
        for name in made:
            shape = known_shape(types.get(name))
            if shape is None or min(shape, default=0) < 0:
                raise ConversionError(f"{label(node)}: the size of the constant '{name}' cannot be told")
            self._budget -= math.prod(shape)
            if self._budget < 0:
                raise ConversionError(f"{label(node)}: the constants of this graph grow beyond all measure")
        feeds = {name: self.constants[name] for name in node.input if name}
        graph = onnx.helper.make_graph(
            [node],
            "constant",
            [onnx.ValueInfoProto(name=name) for name in feeds],
            [onnx.ValueInfoProto(name=name) for name in made],
        )
        part = onnx.ModelProto(ir_version=self._ir_version, graph=graph)
        part.opset_import.extend(self._opsets)
        try:
            results = ReferenceEvaluator(part).run(made, feeds)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise ConversionError(f"{label(node)} cannot be computed: {first_line(error)}") from error
        self.constants.update((name, np.asarray(result)) for name, result in zip(made, results, strict=True))


def _check_types(node: onnx.NodeProto, schema: onnx.defs.OpSchema, types: dict[str, onnx.TypeProto]) -> None:
    """Inputs must have types that the operator takes, and inputs of one type variable the same type; inference lets both pass."""
    bound: dict[str, int] = {}
    for place, name in enumerate(node.input):
        formal = schema.inputs[min(place, len(schema.inputs) - 1)]
        if not name or formal.is_homogeneous is False:
            continue
        number = types[name].tensor_type.elem_type
        if (
            bound.setdefault(formal.type_str, number) != number
            or f"tensor({_TYPE_NAMES.get(number)})" not in formal.types
        ):
            raise ValueError(f"input {place} ('{name}') is {_TYPE_NAMES.get(number, number)}")


def known_shape(type_: onnx.TypeProto | None) -> tuple[int, ...] | None:
    """The shape where each size is a number; None where any is not."""
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return None
    dims = type_.tensor_type.shape.dim
    return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None


def node_name(node: onnx.NodeProto) -> str:
    """The node's name, or its first output's where it has none."""
    return str(node.name or next(iter(node.output), "?"))


def label(node: onnx.NodeProto) -> str:
    """Operator and node, for messages."""
    return f"{node.op_type} '{node_name(node)}'"


def first_line(error: Exception) -> str:
    """The error's text cut to one line, without control characters."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return "".join(char for char in line if char.isprintable())


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
