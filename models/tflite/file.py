"""The `.tflite` file: a FlatBuffer of schema version 3, written with the schema module that ai-edge-litert ships.

Format: tensorflow/lite/schema/schema.fbs. The file holds one subgraph and one signature, `serving_default`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from pyasc.errors import ConversionError

IDENTIFIER = b"TFL3"
SIGNATURE = "serving_default"
# The schema asks for 16; a cache line keeps vector loads of mapped weights from crossing one more than they must.
ALIGNMENT = 64
# FlatBuffers addresses with signed 32-bit offsets.
_MAX_BYTES = (1 << 31) - (1 << 20)

_TYPES = {"float32": schema.TensorType.FLOAT32, "float16": schema.TensorType.FLOAT16, "int32": schema.TensorType.INT32}


@dataclass
class Tensor:
    """Attributes: its name, shape in memory, NumPy dtype name, and for a constant its data."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: NDArray[Any] | None = None


@dataclass(frozen=True)
class Operator:
    """One operator: its name in BuiltinOperator, the version, tensor numbers (-1: optional input left out), and options or None."""

    op: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any


class TfliteFile:
    """Collects tensors and operators, in execution order, and writes the file."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def add_tensor(self, name: str, shape: Sequence[int], dtype: str = "float32") -> int:
        """A value computed at run time; returns its number. OverflowError for a size that does not fit into the file's 32 bits."""
        _check_integers(shape)
        self.tensors.append(Tensor(name, tuple(int(size) for size in shape), dtype))
        return len(self.tensors) - 1

    def add_integers(self, name: str, values: Any) -> int:
        """An int32 constant; returns its number. OverflowError for a number that does not fit into the file's 32 bits."""
        array = np.asarray(values, np.int64)
        _check_integers(array.reshape(-1).tolist())
        return self.add_constant(name, array.astype(np.int32))

    def add_constant(self, name: str, data: NDArray[Any]) -> int:
        """A constant; returns its number. Equal constants are stored once."""
        data = np.ascontiguousarray(data).reshape(data.shape)
        key = (data.dtype.name, data.shape, hashlib.blake2b(data.tobytes()).digest())
        if key not in self._constants:
            self.tensors.append(Tensor(name, data.shape, data.dtype.name, data))
            self._constants[key] = len(self.tensors) - 1
        return self._constants[key]

    def add_operator(
        self, op: str, inputs: Sequence[int], outputs: Sequence[int], options: Any = None, version: int = 1
    ) -> None:
        """An operator; `options` is an object of the schema such as `Conv2DOptionsT`.

        Raises:
            OverflowError: a number among the options does not fit into the file's 32 bits.
        """
        if options is not None:
            _check_integers(value for value in vars(options).values() if isinstance(value, int))
        self.operators.append(Operator(op, version, tuple(inputs), tuple(outputs), options))

    def to_bytes(self, inputs: Sequence[tuple[str, int]], outputs: Sequence[tuple[str, int]]) -> bytes:
        """The file, the same bytes for the same content.

        Args:
            inputs, outputs: (name, tensor number), in the model's order.
        Raises:
            ConversionError: the file would be larger than the format allows.
        """
        self._make_names_unique([*inputs, *outputs])
        buffers = [_Buffer()]
        tensors = [self._tensor(tensor, buffers) for tensor in self.tensors]
        size = sum(len(buffer.data) + ALIGNMENT for buffer in buffers if buffer.data is not None)
        if size > _MAX_BYTES:
            raise ConversionError(f"{size / 1e9:.1f} GB of weights: a .tflite file holds at most 2 GB")
        codes = sorted({(operator.op, operator.version) for operator in self.operators})
        subgraph = schema.SubGraphT(
            tensors=tensors,
            inputs=[number for _, number in inputs],
            outputs=[number for _, number in outputs],
            operators=[_operator(operator, codes) for operator in self.operators],
            name="main",
        )
        model = schema.ModelT(
            version=3,
            operatorCodes=[_operator_code(op, version) for op, version in codes],
            subgraphs=[subgraph],
            description="PyASC",
            buffers=buffers,
            signatureDefs=[_signature(inputs, outputs)],
        )
        builder = flatbuffers.Builder(size + 256 * (len(tensors) + len(self.operators)) + 4096)
        builder.Finish(model.Pack(builder), IDENTIFIER)
        return bytes(builder.Output())

    def _make_names_unique(self, named: Sequence[tuple[str, int]]) -> None:
        """Inputs and outputs get their names; whoever else has one of them, or a name twice, gets a number after it."""
        fixed = {number: name for name, number in named}
        taken = set(fixed.values())
        counts: dict[str, int] = {}
        for number, tensor in enumerate(self.tensors):
            base = tensor.name = fixed.get(number, tensor.name)
            while number not in fixed and tensor.name in taken:
                counts[base] = counts.get(base, 0) + 1
                tensor.name = f"{base};{counts[base]}"
            taken.add(tensor.name)

    def _tensor(self, tensor: Tensor, buffers: list[_Buffer]) -> Any:
        number = 0
        if tensor.data is not None:
            number = len(buffers)
            buffers.append(_Buffer(tensor.data.reshape(-1).view(np.uint8)))
        return schema.TensorT(
            name=tensor.name, shape=list(tensor.shape), type=_TYPES[tensor.dtype], buffer=number, hasRank=True
        )


def _check_integers(values: Iterable[int]) -> None:
    for value in values:
        if not -(1 << 31) <= value < 1 << 31:
            raise OverflowError(f"{value} does not fit into the 32 bits that a .tflite file has for it")


class _Buffer:
    """What the model's Pack calls for each buffer; writes the data aligned, which the generated BufferT does not."""

    def __init__(self, data: NDArray[np.uint8] | None = None) -> None:
        self.data = data

    def Pack(self, builder: Any) -> Any:  # noqa: N802  # the generated code calls it by this name
        vector = None
        if self.data is not None and len(self.data):
            builder.StartVector(1, len(self.data), ALIGNMENT)
            builder.head -= len(self.data)
            builder.Bytes[builder.head : builder.head + len(self.data)] = self.data.tobytes()
            vector = builder.EndVector()
        schema.BufferStart(builder)
        if vector is not None:
            schema.BufferAddData(builder, vector)
        return schema.BufferEnd(builder)


def _operator_code(op: str, version: int) -> Any:
    code = getattr(schema.BuiltinOperator, op)
    # Readers before schema 3a look at the one-byte field; 127 tells them to look at the wide one.
    return schema.OperatorCodeT(deprecatedBuiltinCode=min(code, 127), builtinCode=code, version=version)


def _operator(operator: Operator, codes: list[tuple[str, int]]) -> Any:
    kind = schema.BuiltinOptions.NONE
    if operator.options is not None:
        kind = getattr(schema.BuiltinOptions, type(operator.options).__name__.removesuffix("T"))
    return schema.OperatorT(
        opcodeIndex=codes.index((operator.op, operator.version)),
        inputs=list(operator.inputs),
        outputs=list(operator.outputs),
        builtinOptionsType=kind,
        builtinOptions=operator.options,
    )


def _signature(inputs: Sequence[tuple[str, int]], outputs: Sequence[tuple[str, int]]) -> Any:
    return schema.SignatureDefT(
        inputs=[schema.TensorMapT(name=name, tensorIndex=number) for name, number in inputs],
        outputs=[schema.TensorMapT(name=name, tensorIndex=number) for name, number in outputs],
        signatureKey=SIGNATURE,
        subgraphIndex=0,
    )
