"""Write the small TFLite models of the device tests: `python tests/golden/make_tflite.py`, with ai-edge-litert and flatbuffers installed.

| file | graph |
|---|---|
| `relu.tflite` | `x` (1, 4) -> RELU -> `y`; also the driver's probe model |
| `two_heads.tflite` | `picture` (1, 8, 8, 3), `bias` (1, 8, 8, 3): `sum` = their sum, `flat` = the sum as (1, 192) |
| `convs.tflite` | `x` (1, 256, 256, 16) -> eight 3x3 convolutions that share one kernel of 1/144 -> `y`; tens of milliseconds of work |
| `custom.tflite` | `x` (1, 4) -> an operator that no engine knows -> `y` |
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

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
        tensor.type = schema.TensorType.INT32 if data is not None and data.dtype == np.int32 else schema.TensorType.FLOAT32
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


if __name__ == "__main__":
    relu()
    two_heads()
    convs()
    custom()
