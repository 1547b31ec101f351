"""Constant folding: what an ONNX graph computes from its weights and shapes alone, computed before it is lowered."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
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

Types = dict[str, onnx.TypeProto]


class Folder:
    """Folds the nodes of one model, round by round, as more shapes become known.

    Attributes:
        constants: initializers and what has been folded, by name.
    """

    def __init__(self, model: onnx.ModelProto, constants: dict[str, NDArray[Any]]) -> None:
        self.constants = constants
        self._ir_version = model.ir_version
        self._opsets = list(model.opset_import)
        stored = sum(array.size for array in constants.values())
        self._budget = _FREE_ELEMENTS + _GROWTH * stored

    def fold(self, nodes: list[onnx.NodeProto], types: Types) -> list[onnx.NodeProto]:
        """Evaluate the nodes that depend on constants only, and the shapes that are known; returns the nodes that are left.

        Raises:
            ConversionError: a constant cannot be computed, or all together would be too large.
        """
        chosen: list[onnx.NodeProto] = []
        made: set[str] = set()
        left = []
        for node in nodes:
            shape = known_shape(types.get(node.input[0])) if node.op_type == "Shape" else None
            if shape is not None:
                begin, end = _attribute(node, "start", 0), _attribute(node, "end", None)
                self.constants[node.output[0]] = np.asarray(shape[begin:end], np.int64)
            elif self._is_foldable(node, made, types):
                chosen.append(node)
                made.update(name for name in node.output if name)
            else:
                left.append(node)
        self._evaluate(chosen)
        return left

    def _is_foldable(self, node: onnx.NodeProto, made: set[str], types: Types) -> bool:
        if node.op_type not in FOLDABLE or not all(
            name in self.constants or name in made for name in node.input if name
        ):
            return False
        shapes = [known_shape(types.get(name)) for name in node.output if name]
        if any(shape is None for shape in shapes):
            return False
        self._budget -= sum(math.prod(shape) for shape in shapes if shape is not None)
        if self._budget < 0:
            raise ConversionError(
                f"{node.op_type} '{node_name(node)}': the constants of this graph grow beyond all measure"
            )
        return True

    def _evaluate(self, nodes: list[onnx.NodeProto]) -> None:
        if not nodes:
            return
        made = [name for node in nodes for name in node.output if name]
        feeds = {name: self.constants[name] for node in nodes for name in node.input if name in self.constants}
        graph = onnx.helper.make_graph(
            nodes,
            "constants",
            [onnx.ValueInfoProto(name=name) for name in feeds],
            [onnx.ValueInfoProto(name=name) for name in made],
        )
        part = onnx.ModelProto(ir_version=self._ir_version, graph=graph)
        part.opset_import.extend(self._opsets)
        try:
            # NumPy would warn of a division by zero in a constant; the value is as ONNX defines it.
            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(part).run(made, feeds)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            names = ", ".join(f"{node.op_type} '{node_name(node)}'" for node in nodes[:3])
            raise ConversionError(f"constants cannot be computed ({names} …): {first_line(error)}") from error
        self.constants.update((name, np.asarray(result)) for name, result in zip(made, results, strict=True))


def known_shape(type_: onnx.TypeProto | None) -> tuple[int, ...] | None:
    """The shape where each size is a number; None where any is not."""
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return None
    dims = type_.tensor_type.shape.dim
    return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None


def node_name(node: onnx.NodeProto) -> str:
    """The node's name, or its first output's where it has none."""
    return str(node.name or next(iter(node.output), "?"))


def first_line(error: Exception) -> str:
    """The error's text cut to one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
