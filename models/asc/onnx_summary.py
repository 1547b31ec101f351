"""What an ONNX file consists of, without the `onnx` package: operators, weights, operator sets.

Looks only at what is counted here; weights are skipped, not read. Field numbers: onnx/onnx.proto of ONNX 1.15 and later. The file
is hostile until read: the number of fields, the nesting and the texts are bounded.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

from pyasc.errors import ModelFormatError
from pyasc.hal.protobuf import Value, Wire, WireError, integer, integers, message

MAX_FIELDS = 500_000
MAX_DEPTH = 8
_MAX_DIMS = 64
_MAX_KINDS = 1_000
_MAX_PRODUCER_BYTES = 200
_WORD = re.compile(r"[A-Za-z0-9_.:/+-]{1,200}")

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
    except WireError as error:
        raise ModelFormatError(f"{name}: is not an ONNX model: {error}") from error
    except ModelFormatError as error:
        raise ModelFormatError(f"{name}: {error}") from error


class _Walker:
    def __init__(self) -> None:
        self._fields = Wire(MAX_FIELDS).fields
        self._operators: Counter[str] = Counter()
        self._weight_bytes: Counter[str] = Counter()
        self._weights = self._parameters = 0

    def model(self, data: memoryview) -> OnnxSummary:
        ir_version, producer, graphs = 0, "", 0
        opsets: dict[str, int] = {}
        for number, value in self._fields(data):
            if number == _MODEL_GRAPH:
                graphs += 1
                self._graph(message(value), 1)
            elif number == _MODEL_OPSET:
                domain, version = self._opset(message(value))
                opsets[domain] = version
            elif number == _MODEL_IR_VERSION:
                ir_version = integer(value)
            elif number == _MODEL_PRODUCER:
                producer = _free_text(message(value))
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
            if number == _OPSET_DOMAIN and len(message(value)):
                domain = _text(value, "the domain of an operator set")
            elif number == _OPSET_VERSION:
                version = integer(value)
        return domain or "ai.onnx", version

    def _graph(self, data: memoryview, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ModelFormatError(f"graphs are nested more than {MAX_DEPTH} deep")
        for number, value in self._fields(data):
            if number == _GRAPH_NODE:
                self._node(message(value), depth)
            elif number == _GRAPH_INITIALIZER:
                self._initializer(message(value))

    def _node(self, data: memoryview, depth: int) -> None:
        operator = domain = ""
        for number, value in self._fields(data):
            if number == _NODE_OP_TYPE:
                operator = _text(value, "an operator")
            elif number == _NODE_DOMAIN and len(message(value)):
                domain = _text(value, "the domain of an operator")
            elif number == _NODE_ATTRIBUTE:
                for inner, graph in self._fields(message(value)):
                    if inner in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
                        self._graph(message(graph), depth + 1)
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
                dims += integers(value, _MAX_DIMS)
                if len(dims) > _MAX_DIMS:
                    raise ModelFormatError(f"a weight has more than {_MAX_DIMS} dimensions")
            elif number == _TENSOR_TYPE:
                kind = integer(value)
            elif number in _TENSOR_DATA:
                stored += 1 if isinstance(value, int) else len(value)
            elif number == _TENSOR_EXTERNAL or (number == _TENSOR_LOCATION and value != 0):
                raise ModelFormatError("a weight lies in another file; a model is one file")
        values = math.prod(dims)
        # The densest types have two values in a byte. A negative dimension is a huge one here.
        if values > 2 * stored:
            raise ModelFormatError(f"a weight has {stored} bytes for {values} values")
        self._weights += 1
        self._parameters += values
        self._weight_bytes[_TYPES.get(kind, f"type {kind}")] += stored


def _free_text(value: memoryview) -> str:
    text = bytes(value[:_MAX_PRODUCER_BYTES]).decode("utf-8", "replace")
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _text(value: Value, what: str) -> str:
    raw = bytes(message(value)[:201])
    text = raw.decode("ascii", "replace")
    if not _WORD.fullmatch(text):
        raise ModelFormatError(f"{what} is named {text[:60]!r}")
    return text
