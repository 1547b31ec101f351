"""Reads ONNX files of others: sizes fixed, what computes them folded away, weights stored as asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import ConversionError, ModelFormatError
from pyasc.hal.base import TensorInfo
from pyasc.models.conversion.file_kind import describe
from pyasc.models.conversion.onnx_builder import load_onnx
from pyasc.models.conversion.pickle_values import shown

if TYPE_CHECKING:
    import onnx

# Protocol buffers end at 2 GiB.
_MAX_BYTES = (2 << 30) - 1
# What exporters make of `x.view(x.size(0), -1)` and the like.
_SHAPE_OPERATORS = frozenset(["Gather", "Unsqueeze", "Squeeze", "Concat", "Slice", "Cast", "Add", "Sub", "Mul", "Div"])
_MAX_ROUNDS = 8
_MAX_SHAPE_ELEMENTS = 64
_FLOAT16_MAX = float(np.finfo(np.float16).max)


def read_onnx(path: Path, batch: int) -> onnx.ModelProto:
    """Read and check an ONNX file, and fix the batch size where the file leaves it open.

    Nothing but the file itself is read: weights in other files are refused.

    Raises:
        ModelFormatError: it is not a sound ONNX file.
        ConversionError: a size that is not the batch is open, or the file has another batch size.
    """
    package = load_onnx()
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise ModelFormatError(f"{size} bytes are more than an ONNX file can have")
    data = path.read_bytes()
    if other := describe(memoryview(data)):
        raise ModelFormatError(other)
    model: onnx.ModelProto = package.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError, whose home differs between its versions.
        raise ModelFormatError("is not an ONNX file, or is damaged") from error
    if not model.graph.node:
        raise ModelFormatError("is not an ONNX file, or has an empty graph")
    if any(tensor.data_location == package.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise ConversionError("keeps its weights in other files; save it as one file")
    _fix_batch(model, batch)
    try:
        package.checker.check_model(model)
        return _fold_shapes(model)
    except (package.checker.ValidationError, package.shape_inference.InferenceError, ValueError) as error:
        # ValueError: names that are not UTF-8, tensors of unknown type.
        raise ModelFormatError(f"is not a sound ONNX graph: {shown(str(error).strip().splitlines()[0])}") from error


def tensor_infos(model: onnx.ModelProto) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Inputs and outputs; four axes are taken as NCHW.

    Raises:
        ConversionError: one has open sizes or is not float32.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    return tuple(map(_info, inputs)), tuple(map(_info, model.graph.output))


def store_half(model: onnx.ModelProto) -> None:
    """Store float32 weights of two and more axes as float16 and widen them in the graph, which halves the file."""
    onnx = load_onnx()
    casts = []
    inputs = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) < 2 or tensor.name in inputs:
            continue
        values = onnx.numpy_helper.to_array(tensor)
        if np.abs(values).max(initial=0) > _FLOAT16_MAX:
            continue
        wide, narrow = tensor.name, f"{tensor.name}_fp16"
        tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float16), narrow))
        casts.append(onnx.helper.make_node("Cast", [narrow], [wide], name=f"{wide}_cast", to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def parameter_count(model: onnx.ModelProto) -> int:
    """Numbers in the float weights."""
    onnx = load_onnx()
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    return sum(int(np.prod(t.dims, dtype=np.int64)) for t in model.graph.initializer if t.data_type in floats)


def _fix_batch(model: onnx.ModelProto, batch: int) -> None:
    stored = {tensor.name for tensor in model.graph.initializer}
    opened = set()
    for value in model.graph.input:
        sides = value.type.tensor_type.shape.dim
        if value.name in stored or not sides:
            continue
        if not sides[0].HasField("dim_value"):
            opened.add(sides[0].dim_param)
            sides[0].dim_value = batch
        elif sides[0].dim_value != batch:
            raise ConversionError(f"is made for {sides[0].dim_value} pictures at a time, not {batch}")
    for value in model.graph.output:
        sides = value.type.tensor_type.shape.dim
        if sides and not sides[0].HasField("dim_value") and sides[0].dim_param in opened:
            sides[0].dim_value = batch
    # What the file says of the tensors in between speaks of the open size.
    del model.graph.value_info[:]


def _fold_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Compute what depends on sizes alone, now that they are known, and leave it as constants; with the shapes inferred."""
    package = load_onnx()
    for _ in range(_MAX_ROUNDS):
        model = package.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        if not _fold_round(model):
            break
        del model.graph.value_info[:]
    _drop_unused(model)
    return model


def _fold_round(model: onnx.ModelProto) -> bool:
    package = load_onnx()
    shapes = {value.name: _shape(value) for value in (*model.graph.input, *model.graph.value_info)}
    values: dict[str, NDArray[Any]] = {
        tensor.name: package.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type in (package.TensorProto.INT64, package.TensorProto.INT32)
        and np.prod(tensor.dims, dtype=np.float64) <= _MAX_SHAPE_ELEMENTS
    }
    kept, folded = [], False
    for node in model.graph.node:
        shape = shapes.get(node.input[0]) if node.op_type == "Shape" and not node.attribute else None
        if shape:
            value = np.array(shape, np.int64)
        elif node.op_type in _SHAPE_OPERATORS and all(name in values for name in node.input):
            value = _evaluate(model, node, {name: values[name] for name in node.input})
        else:
            kept.append(node)
            continue
        values[node.output[0]] = value
        model.graph.initializer.append(package.numpy_helper.from_array(value, node.output[0]))
        folded = True
    _replace(model.graph.node, kept)
    return folded


def _evaluate(model: onnx.ModelProto, node: Any, inputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    package = load_onnx()
    from onnx.reference import ReferenceEvaluator

    info, kinds = package.helper.make_tensor_value_info, package.helper.np_dtype_to_tensor_dtype
    graph = package.helper.make_graph(
        [node],
        "shape",
        [info(name, kinds(value.dtype), value.shape) for name, value in inputs.items()],
        [info(node.output[0], package.TensorProto.INT64, None)],
    )
    alone = package.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        results: Any = ReferenceEvaluator(alone).run(None, inputs)
        value = np.asarray(results[0])
    except Exception as error:  # The evaluator's operators raise what NumPy raises.
        raise ConversionError(f"{node.op_type} {shown(node.name)} cannot be computed from the sizes") from error
    if value.size > _MAX_SHAPE_ELEMENTS:
        raise ConversionError(
            f"{node.op_type} {shown(node.name)} makes more than {_MAX_SHAPE_ELEMENTS} numbers of the sizes"
        )
    return value


def _drop_unused(model: onnx.ModelProto) -> None:
    needed = {value.name for value in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    for table, keep in (
        (model.graph.node, kept[::-1]),
        (model.graph.initializer, [tensor for tensor in model.graph.initializer if tensor.name in needed]),
        (model.graph.value_info, [value for value in model.graph.value_info if value.name in needed]),
    ):
        _replace(table, list(keep))


def _replace(table: Any, items: list[Any]) -> None:
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del table[:]
    table.extend(copies)


def _shape(value: Any) -> tuple[int, ...] | None:
    sides = [side.dim_value if side.HasField("dim_value") else 0 for side in value.type.tensor_type.shape.dim]
    return tuple(sides) if all(side > 0 for side in sides) else None


def _info(value: Any) -> TensorInfo:
    onnx = load_onnx()
    shape = _shape(value)
    if not shape or value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
        raise ConversionError(f"{shown(value.name)} is not a float32 tensor of fixed size")
    return TensorInfo(value.name, shape, "float32", "NCHW" if len(shape) == 4 else "")
