"""A look at an ONNX file before an engine gets it: OpenCV crashes on some damaged ones, and engines read what other files hold.

Checked are the protobuf, names in UTF-8, nodes in an order in which all that they use is there, constants as large as their shapes,
and that no weights are outside of the file; found are the tables of what goes in and out.

Field numbers are those of onnx.proto (ONNX 1.17). Weights are stepped over, not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass

from pyasc.errors import ModelFormatError
from pyasc.hal.model_tables import Found

MAX_DEPTH = 16  # graphs within If and Loop; deeper is nothing that people make
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# TensorProto.DataType to NumPy's name and bytes an element.
_TYPES = {
    1: ("float32", 4),
    2: ("uint8", 1),
    3: ("int8", 1),
    4: ("uint16", 2),
    5: ("int16", 2),
    6: ("int32", 4),
    7: ("int64", 8),
    9: ("bool", 1),
    10: ("float16", 2),
    11: ("float64", 8),
    12: ("uint32", 4),
    13: ("uint64", 8),
}


@dataclass(frozen=True, slots=True)
class OnnxTables:
    """What an ONNX file says of itself.

    Attributes:
        inputs, outputs: of the main graph; initialisers that are listed as inputs too are left out.
        operators: the kinds of operators in it, functions and graphs within attributes included.
    """

    inputs: tuple[Found, ...]
    outputs: tuple[Found, ...]
    operators: frozenset[str]


def check_onnx(data: bytes, name: str) -> OnnxTables:
    """Read the structure of an ONNX file.

    Raises:
        ModelFormatError: it is damaged, holds no graph, or wants to read weights from other files.
    """
    try:
        return _Reader(data).model()
    except _DamagedError as error:
        raise ModelFormatError(f"{name}: not a sound ONNX file: {error}") from error


class _DamagedError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    value: int  # of a varint
    start: int  # of bytes
    end: int
    is_bytes: bool


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._operators: set[str] = set()

    def model(self) -> OnnxTables:
        graphs = []
        for field in self._fields(0, len(self._data)):
            if field.number == 7:
                graphs.append(self._span(field))
            elif field.number in (2, 3, 4):  # producer and domain
                self._text(field)
            elif field.number == 25:  # functions
                self._function(*self._span(field))
        if len(graphs) != 1:
            raise _DamagedError("it holds no graph" if not graphs else "it holds several graphs")
        inputs, outputs = self._graph(*graphs[0], frozenset(), depth=0)
        return OnnxTables(inputs, outputs, frozenset(self._operators))

    def _function(self, start: int, end: int) -> None:
        known: set[str] = set()
        nodes = []
        for field in self._fields(start, end):
            if field.number == 4:
                known.add(self._text(field))
            elif field.number == 7:
                nodes.append(self._span(field))
        for node in nodes:
            self._node(*node, known, depth=1)

    def _graph(self, start: int, end: int, outer: Set[str], depth: int) -> tuple[tuple[Found, ...], tuple[Found, ...]]:
        """Check a graph whose nodes may use what `outer` names too; returns its inputs and outputs."""
        if depth > MAX_DEPTH:
            raise _DamagedError(f"graphs within graphs, more than {MAX_DEPTH} deep")
        nodes, inputs, outputs, initializers = [], [], [], set()
        for field in self._fields(start, end):
            if field.number == 1:
                nodes.append(self._span(field))
            elif field.number == 2:
                self._text(field)
            elif field.number == 5:
                initializers.add(self._tensor(*self._span(field)))
            elif field.number == 11:
                inputs.append(self._value(*self._span(field)))
            elif field.number == 12:
                outputs.append(self._value(*self._span(field)))
            elif field.number == 13:
                self._value(*self._span(field))
            elif field.number == 15:
                initializers.add(self._sparse(*self._span(field)))
        known = {*outer, *initializers, *(found.name for found in inputs)}
        for node in nodes:
            self._node(*node, known, depth)
        missing = [found.name for found in outputs if found.name not in known]
        if missing:
            raise _DamagedError(f"nothing computes the output {missing[0]!r}")
        return tuple(found for found in inputs if found.name not in initializers), tuple(outputs)

    def _node(self, start: int, end: int, known: set[str], depth: int) -> None:
        """Check a node, and note in `known` what it computes; nodes come in an order in which all that they use is there."""
        uses, computes, attributes, kind = [], [], [], ""
        for field in self._fields(start, end):
            if field.number == 1:
                uses.append(self._text(field))
            elif field.number == 2:
                computes.append(self._text(field))
            elif field.number in (3, 7):
                self._text(field)
            elif field.number == 4:
                kind = self._text(field)
            elif field.number == 5:
                attributes.append(self._span(field))
        early = [name for name in uses if name and name not in known]
        if early:
            raise _DamagedError(f"a node {kind} uses {early[0]!r}, which nothing before it computes")
        for attribute in attributes:
            self._attribute(*attribute, known, depth)
        self._operators.add(kind)
        known.update(computes)

    def _attribute(self, start: int, end: int, known: set[str], depth: int) -> None:
        for field in self._fields(start, end):
            if field.number in (1, 4, 9):
                self._text(field)
            elif field.number in (5, 10):
                self._tensor(*self._span(field))
            elif field.number in (6, 11):
                self._graph(*self._span(field), known, depth + 1)
            elif field.number in (22, 23):
                self._sparse(*self._span(field))

    def _sparse(self, start: int, end: int) -> str:
        """Name of the values, which is that of the tensor."""
        name = ""
        for field in self._fields(start, end):
            if field.number == 1:
                name = self._tensor(*self._span(field))
            elif field.number == 2:
                self._tensor(*self._span(field))
        return name

    def _tensor(self, start: int, end: int) -> str:
        name, dims, kind, raw = "", [], 0, None
        for field in self._fields(start, end):
            if field.number == 1:
                dims += self._integers(field)
            elif field.number == 2:
                kind = field.value
            elif field.number == 8:
                name = self._text(field)
            elif field.number == 9:
                span = self._span(field)
                raw = span[1] - span[0]
            elif field.number == 13 or (field.number == 14 and field.value):
                raise _DamagedError("it keeps weights in other files, which PyASC does not open")
        if any(size < 0 for size in dims):
            raise _DamagedError(f"tensor {name!r} has a negative size")
        if raw is not None and kind in _TYPES and raw != math.prod(dims) * _TYPES[kind][1]:
            raise _DamagedError(f"tensor {name!r} of shape {tuple(dims)} has {raw} bytes")
        return name

    def _value(self, start: int, end: int) -> Found:
        name, dtype = "", ""
        shape: list[int | None] = []
        for field in self._fields(start, end):
            if field.number == 1:
                name = self._text(field)
            elif field.number == 2:
                shape, dtype = self._type(*self._span(field))
        return Found(name, tuple(shape), dtype)

    def _type(self, start: int, end: int) -> tuple[list[int | None], str]:
        shape: list[int | None] = []
        dtype = "no tensor"
        for tensor in self._fields(start, end):
            if tensor.number != 1:
                continue
            for field in self._fields(*self._span(tensor)):
                if field.number == 1:
                    dtype = _TYPES.get(field.value, (f"type {field.value}", 0))[0]
                elif field.number == 2:
                    shape = [self._dim(*self._span(dim)) for dim in self._fields(*self._span(field)) if dim.number == 1]
        return shape, dtype

    def _dim(self, start: int, end: int) -> int | None:
        sizes = [field.value for field in self._fields(start, end) if field.number == 1]
        return sizes[-1] if sizes and sizes[-1] > 0 else None

    def _span(self, field: _Field) -> tuple[int, int]:
        if not field.is_bytes:
            raise _DamagedError(f"field {field.number} is a number instead of bytes")
        return field.start, field.end

    def _text(self, field: _Field) -> str:
        start, end = self._span(field)
        try:
            return self._data[start:end].decode("utf-8")
        except UnicodeDecodeError:  # OpenCV's binding crashes on an error message with such a name in it
            raise _DamagedError(f"a name at byte {start} is not UTF-8") from None

    def _integers(self, field: _Field) -> list[int]:
        if not field.is_bytes:
            return [_signed(field.value)]
        values, at = [], field.start
        while at < field.end:
            value, at = self._varint(at, field.end)
            values.append(_signed(value))
        return values

    def _fields(self, start: int, end: int) -> Iterator[_Field]:
        at = start
        while at < end:
            key, at = self._varint(at, end)
            number, wire = key >> 3, key & 7
            if wire == _VARINT:
                value, at = self._varint(at, end)
                yield _Field(number, value, 0, 0, is_bytes=False)
                continue
            if wire == _BYTES:
                size, at = self._varint(at, end)
            elif wire in (_FIXED32, _FIXED64):
                size = 4 if wire == _FIXED32 else 8
            else:
                raise _DamagedError(f"wire type {wire} at byte {at}")
            if number == 0 or size > end - at:
                raise _DamagedError(f"a field at byte {at} reaches over the end of its message")
            yield _Field(number, 0, at, at + size, is_bytes=wire == _BYTES)
            at += size

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise _DamagedError("it ends within a number")
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at
        raise _DamagedError(f"a number of more than ten bytes before byte {at}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
