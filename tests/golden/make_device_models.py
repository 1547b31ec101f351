"""Write the small models of the device tests: `python tests/golden/make_device_models.py`, with pyasc[convert] installed.

| file | graph |
|---|---|
| `relu.tflite`, `.onnx` | `x` (1, 4) -> Relu -> `y`; the TFLite one is also the CPU driver's probe |
| `two_heads.tflite`, `.onnx` | `picture` (1, 8, 8, 3), `bias` (1, 8, 8, 3): `sum` = their sum, `flat` = the sum as (1, 192) |
| `convs.tflite`, `.onnx` | `x` (1, 256, 256, 16), ONNX (1, 16, 256, 256) -> eight 3x3 convolutions, kernel 1/144 -> `y` |
| `mixing.onnx` | `x` (n, 4) -> Softmax along n -> `y`: what a row gives depends on the other rows |
| `custom.tflite`, `.onnx` | `x` (1, 4) -> an operator that no engine knows -> `y` |
| `external.onnx` | `x` (1, 4) + a constant whose values are in another file -> `y` |
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import flatbuffers
import numpy as np
import onnx
from ai_edge_litert import schema_py_generated as schema
from onnx import TensorProto, helper

HERE = Path(__file__).resolve().parent


class Graph:
    """Tensors and operators of one subgraph."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.description = "PyASC device test"
        self.model.buffers = [schema.BufferT()]
        self.model.operatorCodes = []
        self.sub = schema.SubGraphT()
        self.sub.name = "main"
        self.sub.tensors, self.sub.operators = [], []
        self.model.subgraphs = [self.sub]

    def tensor(self, name: str, shape: Sequence[int], data: np.ndarray | None = None) -> int:
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.buffer = name, list(shape), 0
        tensor.type = (
            schema.TensorType.INT32 if data is not None and data.dtype == np.int32 else schema.TensorType.FLOAT32
        )
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(data.tobytes(), np.uint8)
            self.model.buffers.append(buffer)
            tensor.buffer = len(self.model.buffers) - 1
        self.sub.tensors.append(tensor)
        return len(self.sub.tensors) - 1

    def operator(self, code: int, inputs: Sequence[int], outputs: Sequence[int], options: object = None) -> None:
        opcode = schema.OperatorCodeT()
        opcode.builtinCode, opcode.deprecatedBuiltinCode, opcode.version = code, min(code, 127), 1
        if code == schema.BuiltinOperator.CUSTOM:
            opcode.customCode = "PyascNoSuchOperator"
        self.model.operatorCodes.append(opcode)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes) - 1
        operator.inputs, operator.outputs = list(inputs), list(outputs)
        if options is not None:
            operator.builtinOptions = options
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__[:-1])
        self.sub.operators.append(operator)

    def save(self, name: str, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.sub.inputs, self.sub.outputs = list(inputs), list(outputs)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        (HERE / name).write_bytes(bytes(builder.Output()))


def relu() -> None:
    graph = Graph()
    x, y = graph.tensor("x", (1, 4)), graph.tensor("y", (1, 4))
    graph.operator(schema.BuiltinOperator.RELU, [x], [y])
    graph.save("relu.tflite", [x], [y])


def two_heads() -> None:
    graph = Graph()
    picture, bias = graph.tensor("picture", (1, 8, 8, 3)), graph.tensor("bias", (1, 8, 8, 3))
    total, flat = graph.tensor("sum", (1, 8, 8, 3)), graph.tensor("flat", (1, 192))
    shape = graph.tensor("shape", (2,), np.array([1, 192], np.int32))
    graph.operator(schema.BuiltinOperator.ADD, [picture, bias], [total], schema.AddOptionsT())
    reshape = schema.ReshapeOptionsT()
    reshape.newShape = [1, 192]
    graph.operator(schema.BuiltinOperator.RESHAPE, [total, shape], [flat], reshape)
    graph.save("two_heads.tflite", [picture, bias], [total, flat])


def convs() -> None:
    graph = Graph()
    weights = graph.tensor("weights", (16, 3, 3, 16), np.full((16, 3, 3, 16), 1 / 144, np.float32))
    bias = graph.tensor("bias", (16,), np.zeros(16, np.float32))
    first = last = graph.tensor("x", (1, 256, 256, 16))
    for number in range(8):
        options = schema.Conv2DOptionsT()
        options.padding, options.strideH, options.strideW = schema.Padding.SAME, 1, 1
        options.dilationHFactor = options.dilationWFactor = 1
        result = graph.tensor("y" if number == 7 else f"layer{number}", (1, 256, 256, 16))
        graph.operator(schema.BuiltinOperator.CONV_2D, [last, weights, bias], [result], options)
        last = result
    graph.save("convs.tflite", [first], [last])


def custom() -> None:
    graph = Graph()
    x, y = graph.tensor("x", (1, 4)), graph.tensor("y", (1, 4))
    graph.operator(schema.BuiltinOperator.CUSTOM, [x], [y])
    graph.save("custom.tflite", [x], [y])


def save_onnx(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    shapes: dict[str, Sequence[int | str]],
    weights: Sequence[onnx.TensorProto] = (),
) -> None:
    """`shapes`: the inputs are those that no node computes."""
    values = {key: helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in shapes.items()}
    computed = {output for node in nodes for output in node.output}
    inputs = [value for key, value in values.items() if key not in computed]
    outputs = [value for key, value in values.items() if key in computed]
    graph = helper.make_graph(list(nodes), "main", inputs, outputs, list(weights))
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("pyasc.test", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="PyASC device test")
    (HERE / name).write_bytes(model.SerializeToString(deterministic=True))


def onnx_models() -> None:
    row = {"x": (1, 4), "y": (1, 4)}
    save_onnx("relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], row)
    save_onnx("custom.onnx", [helper.make_node("PyascNoSuchOperator", ["x"], ["y"], domain="pyasc.test")], row)
    save_onnx("mixing.onnx", [helper.make_node("Softmax", ["x"], ["y"], axis=0)], {"x": ("n", 4), "y": ("n", 4)})
    shape = helper.make_tensor("shape", TensorProto.INT64, (2,), [1, 192])
    save_onnx(
        "two_heads.onnx",
        [
            helper.make_node("Add", ["picture", "bias"], ["sum"]),
            helper.make_node("Reshape", ["sum", "shape"], ["flat"]),
        ],
        {"picture": (1, 8, 8, 3), "bias": (1, 8, 8, 3), "sum": (1, 8, 8, 3), "flat": (1, 192)},
        [shape],
    )
    kernel = np.full((16, 16, 3, 3), 1 / 144, np.float32)
    weights = helper.make_tensor("w", TensorProto.FLOAT, kernel.shape, kernel.tobytes(), raw=True)
    names = ["x", *(f"layer{number}" for number in range(7)), "y"]
    nodes = [
        helper.make_node("Conv", [a, "w"], [b], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        for a, b in itertools.pairwise(names)
    ]
    save_onnx("convs.onnx", nodes, {"x": (1, 16, 256, 256), "y": (1, 16, 256, 256)}, [weights])
    outside = helper.make_tensor("c", TensorProto.FLOAT, (1, 4), np.zeros(4, np.float32).tobytes(), raw=True)
    outside.ClearField("raw_data")
    outside.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "../../../etc/passwd", "offset": "0", "length": "16"}.items():
        outside.external_data.add(key=key, value=value)
    save_onnx("external.onnx", [helper.make_node("Add", ["x", "c"], ["y"])], row, [outside])


if __name__ == "__main__":
    relu()
    two_heads()
    convs()
    custom()
    onnx_models()
