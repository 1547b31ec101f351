"""What an ONNX file consists of, without the `onnx` package: operators, weights, operator sets.

Walks the protobuf wire format (https://protobuf.dev/programming-guides/encoding/) and looks only at what is counted here; weights
are skipped, not read. Field numbers: onnx/onnx.proto of ONNX 1.15 and later. The file is hostile until read: no step leaves the
data, and the number of steps, the nesting and the texts are bounded.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pyasc.errors import ModelFormatError

MAX_FIELDS = 500_000
MAX_DEPTH = 8
_MAX_DIMS = 64
_MAX_KINDS = 1_000
_MAX_VARINT_BYTES = 10
_MAX_PRODUCER_BYTES = 200
_WORD = re.compile(r"[A-Za-z0-9_.:/+-]{1,200}")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL_IR_VERSION, _MODEL_PRODUCER, _MODEL_GRAPH, _MODEL_OPSET = 1, 2, 7, 8
_OPSET_DOMAIN, _OPSET_VERSION = 1, 2
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_OP_TYPE, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 6, 11
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 1, 2, 13, 14
# float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data
_TENSOR_DATA = frozenset((4, 5, 6, 7, 9, 10, 11))
_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OnnxSummary:
    """What a graph consists of.

    Attributes:
        ir_version: of the file format.
        producer: program that wrote it, empty where it does not say; of unprintable characters only that there were some.
        opsets: version of each operator set by its domain; `ai.onnx` is the standard one.
        operators: number of nodes by operator, most frequent first, those of nested graphs included; an operator outside the
            standard set has its domain before it: `com.microsoft::Gelu`.
        weights: number of initializers.
        parameters: number of values in them.
        weight_bytes: their size by data type, as stored.
    """

    ir_version: int
    producer: str
    opsets: dict[str, int]
    operators: dict[str, int]
    weights: int
    parameters: int
    weight_bytes: dict[str, int]


def summarize_onnx(data: bytes | memoryview, name: str = "graph.onnx") -> OnnxSummary:
    """Summarise an ONNX model.

    Args:
        data: the file's bytes; only read, not copied.
        name: for messages.
    Raises:
        ModelFormatError: not an ONNX model, damaged, or beyond the bounds of this module.
    """
    try:
        return _Walker().model(memoryview(data).cast("B"))
    except ModelFormatError as error:
        raise ModelFormatError(f"{name}: {error}") from error


class _Walker:
    def __init__(self) -> None:
        self._fields_left = MAX_FIELDS
        self._operators: Counter[str] = Counter()
        self._weight_bytes: Counter[str] = Counter()
        self._weights = self._parameters = 0

    def model(self, data: memoryview) -> OnnxSummary:
        ir_version, producer, graphs = 0, "", 0
        opsets: dict[str, int] = {}
        for number, value in self._fields(data):
            if number == _MODEL_GRAPH:
                graphs += 1
                self._graph(_message(value), 1)
            elif number == _MODEL_OPSET:
                domain, version = self._opset(_message(value))
                opsets[domain] = version
            elif number == _MODEL_IR_VERSION:
                ir_version = _integer(value)
            elif number == _MODEL_PRODUCER:
                producer = _free_text(_message(value))
        if graphs != 1 or not opsets:
            raise ModelFormatError(f"is not an ONNX model: {graphs} graphs, {len(opsets)} operator sets")
        return OnnxSummary(
            ir_version,
            producer,
            opsets,
            dict(sorted(self._operators.items(), key=lambda item: (-item[1], item[0]))),
            self._weights,
            self._parameters,
            dict(sorted(self._weight_bytes.items())),
        )

    def _opset(self, data: memoryview) -> tuple[str, int]:
        domain, version = "", 0
        for number, value in self._fields(data):
            if number == _OPSET_DOMAIN and len(_message(value)):
                domain = _text(value, "the domain of an operator set")
            elif number == _OPSET_VERSION:
                version = _integer(value)
        return domain or "ai.onnx", version

    def _graph(self, data: memoryview, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ModelFormatError(f"graphs are nested more than {MAX_DEPTH} deep")
        for number, value in self._fields(data):
            if number == _GRAPH_NODE:
                self._node(_message(value), depth)
            elif number == _GRAPH_INITIALIZER:
                self._initializer(_message(value))

    def _node(self, data: memoryview, depth: int) -> None:
        operator = domain = ""
        for number, value in self._fields(data):
            if number == _NODE_OP_TYPE:
                operator = _text(value, "an operator")
            elif number == _NODE_DOMAIN and len(_message(value)):
                domain = _text(value, "the domain of an operator")
            elif number == _NODE_ATTRIBUTE:
                for inner, graph in self._fields(_message(value)):
                    if inner in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
                        self._graph(_message(graph), depth + 1)
        if not operator:
            raise ModelFormatError("a node has no operator")
        self._operators[operator if domain in ("", "ai.onnx") else f"{domain}::{operator}"] += 1
        if len(self._operators) > _MAX_KINDS:
            raise ModelFormatError(f"has more than {_MAX_KINDS} kinds of operators")

    def _initializer(self, data: memoryview) -> None:
        dims: list[int] = []
        kind = stored = 0
        for number, value in self._fields(data):
            if number == _TENSOR_DIMS:
                dims += [value] if isinstance(value, int) else _packed(value)
                if len(dims) > _MAX_DIMS:
                    raise ModelFormatError(f"a weight has more than {_MAX_DIMS} dimensions")
            elif number == _TENSOR_TYPE:
                kind = _integer(value)
            elif number in _TENSOR_DATA:
                stored += len(value) if isinstance(value, memoryview) else 1
            elif number == _TENSOR_EXTERNAL or (number == _TENSOR_LOCATION and value != 0):
                raise ModelFormatError("a weight lies in another file; a model is one file")
        values = math.prod(dims)
        # The densest types have two values in a byte. A negative dimension is a huge one here.
        if values > 2 * stored:
            raise ModelFormatError(f"a weight has {stored} bytes for {values} values")
        self._weights += 1
        self._parameters += values
        self._weight_bytes[_TYPES.get(kind, f"type {kind}")] += stored

    def _fields(self, data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
        """Number and value of each field of a message: an int, or the bytes of what has a length."""
        position, end = 0, len(data)
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise ModelFormatError(f"has more than {MAX_FIELDS} fields outside its weights")
            tag, position = _varint(data, position)
            number, wire = tag >> 3, tag & 7
            if not 1 <= number < 1 << 29:
                raise ModelFormatError(f"is not an ONNX model: field number {number}")
            if wire == _VARINT:
                value, position = _varint(data, position)
                yield number, value
                continue
            if wire == _BYTES:
                length, position = _varint(data, position)
            elif wire in (_FIXED32, _FIXED64):
                length = 4 if wire == _FIXED32 else 8
            else:
                raise ModelFormatError(f"is not an ONNX model: wire type {wire}")
            if length > end - position:
                raise ModelFormatError(f"is cut off: a field of {length} bytes where {end - position} are left")
            yield number, data[position : position + length]
            position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[position : position + _MAX_VARINT_BYTES]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
    raise ModelFormatError("is cut off, or is not an ONNX model: a number does not end")


def _packed(data: memoryview) -> list[int]:
    values: list[int] = []
    position = 0
    while position < len(data) and len(values) <= _MAX_DIMS:
        value, position = _varint(data, position)
        values.append(value)
    return values


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ModelFormatError("is not an ONNX model: a number where a message should be")
    return value


def _integer(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ModelFormatError("is not an ONNX model: a message where a number should be")
    return value


def _free_text(value: memoryview) -> str:
    text = bytes(value[:_MAX_PRODUCER_BYTES]).decode("utf-8", "replace")
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _text(value: int | memoryview, what: str) -> str:
    raw = bytes(_message(value)[:201])
    text = raw.decode("ascii", "replace")
    if not _WORD.fullmatch(text):
        raise ModelFormatError(f"{what} is named {text[:60]!r}")
    return text
