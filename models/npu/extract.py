"""A part of an ONNX graph as a model of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx


def extract(
    model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str], shapes: Mapping[str, Sequence[int]]
) -> onnx.ModelProto:
    """The nodes between values, with the initializers that they read.

    Args:
        model: the whole.
        inputs, outputs: names of float32 values.
        shapes: of these.
    """
    wanted, known, nodes = set(outputs), set(inputs), []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output) - known:
            nodes.append(node)
            wanted.update(name for name in node.input if name not in known)
    part = onnx.ModelProto()
    part.ir_version = model.ir_version
    part.opset_import.extend(model.opset_import)
    part.graph.name = "part"
    part.graph.node.extend(reversed(nodes))
    part.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in wanted - known)
    for values, place in ((inputs, part.graph.input), (outputs, part.graph.output)):
        place.extend(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(shapes[name])) for name in values
        )
    return part
