"""A look at an ONNX file before an engine gets it: OpenCV crashes on some damaged ones, and engines read what other files hold.

Checked are the protobuf, names in UTF-8, nodes in an order in which all that they use is there, constants as large as their shapes,
and that no weights are outside of the file; found are the tables of what goes in and out.

Field numbers are those of onnx.proto (ONNX 1.17). Weights are stepped over, not read.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

from pyasc.errors import ModelFormatError
from pyasc.hal.model_tables import Found
from pyasc.hal.protobuf import Value, Wire, WireError, integer, integers, message, signed

MAX_DEPTH = 16  # graphs within If and Loop; deeper is nothing that people make
# What a walk over them takes is a few seconds; the largest networks have some ten thousand nodes of some ten fields.
MAX_FIELDS = 5_000_000
_MAX_DIMS = 64

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


def check_onnx(data: bytes | memoryview, name: str) -> OnnxTables:
    """Read the structure of an ONNX file.

    Raises:
        ModelFormatError: it is damaged, holds no graph, or wants to read weights from other files.
    """
    try:
        return _Reader().model(memoryview(data).cast("B"))
    except (WireError, _DamagedError) as error:
        raise ModelFormatError(f"{name}: not a sound ONNX file: {error}") from error


class _DamagedError(Exception):
    pass


class _Reader:
    def __init__(self) -> None:
        self._fields = Wire(MAX_FIELDS).fields
        self._operators: set[str] = set()

    def model(self, data: memoryview) -> OnnxTables:
        graphs = []
        for number, value in self._fields(data):
            if number == 7:
                graphs.append(message(value))
            elif number in (2, 3, 4):  # producer and domain
                _text(value)
            elif number == 25:  # functions
                self._function(message(value))
        if len(graphs) != 1:
            raise _DamagedError("it holds no graph" if not graphs else "it holds several graphs")
        inputs, outputs = self._graph(graphs[0], frozenset(), depth=0)
        return OnnxTables(inputs, outputs, frozenset(self._operators))

    def _function(self, data: memoryview) -> None:
        known: set[str] = set()
        nodes = []
        for number, value in self._fields(data):
            if number == 4:
                known.add(_text(value))
            elif number == 7:
                nodes.append(message(value))
        for node in nodes:
            self._node(node, known, depth=1)

    def _graph(self, data: memoryview, outer: Set[str], depth: int) -> tuple[tuple[Found, ...], tuple[Found, ...]]:
        """Check a graph whose nodes may use what `outer` names too; returns its inputs and outputs."""
        if depth > MAX_DEPTH:
            raise _DamagedError(f"graphs within graphs, more than {MAX_DEPTH} deep")
        nodes, inputs, outputs, initializers = [], [], [], set()
        for number, value in self._fields(data):
            if number == 1:
                nodes.append(message(value))
            elif number == 2:
                _text(value)
            elif number == 5:
                initializers.add(self._tensor(message(value)))
            elif number == 11:
                inputs.append(self._value(message(value)))
            elif number == 12:
                outputs.append(self._value(message(value)))
            elif number == 13:
                self._value(message(value))
            elif number == 15:
                initializers.add(self._sparse(message(value)))
        known = {*outer, *initializers, *(found.name for found in inputs)}
        for node in nodes:
            self._node(node, known, depth)
        missing = [found.name for found in outputs if found.name not in known]
        if missing:
            raise _DamagedError(f"nothing computes the output {missing[0]!r}")
        return tuple(found for found in inputs if found.name not in initializers), tuple(outputs)

    def _node(self, data: memoryview, known: set[str], depth: int) -> None:
        """Check a node, and note in `known` what it computes; nodes come in an order in which all that they use is there."""
        uses, computes, attributes, kind = [], [], [], ""
        for number, value in self._fields(data):
            if number == 1:
                uses.append(_text(value))
            elif number == 2:
                computes.append(_text(value))
            elif number in (3, 7):
                _text(value)
            elif number == 4:
                kind = _text(value)
                if not kind.isprintable():  # engines put it into their messages
                    raise _DamagedError(f"an operator is called {kind[:60]!a}")
            elif number == 5:
                attributes.append(message(value))
        early = [name for name in uses if name and name not in known]
        if early:
            raise _DamagedError(f"a node {kind} uses {early[0]!r}, which nothing before it computes")
        for attribute in attributes:
            self._attribute(attribute, known, depth)
        self._operators.add(kind)
        known.update(computes)

    def _attribute(self, data: memoryview, known: set[str], depth: int) -> None:
        for number, value in self._fields(data):
            if number in (1, 4, 9):
                _text(value)
            elif number in (5, 10):
                self._tensor(message(value))
            elif number in (6, 11):
                self._graph(message(value), known, depth + 1)
            elif number in (22, 23):
                self._sparse(message(value))

    def _sparse(self, data: memoryview) -> str:
        """Name of the values, which is that of the tensor."""
        name = ""
        for number, value in self._fields(data):
            if number == 1:
                name = self._tensor(message(value))
            elif number == 2:
                self._tensor(message(value))
        return name

    def _tensor(self, data: memoryview) -> str:
        name, kind, raw = "", 0, None
        dims: list[int] = []
        for number, value in self._fields(data):
            if number == 1:
                dims += map(signed, integers(value, _MAX_DIMS))
                if len(dims) > _MAX_DIMS:
                    raise _DamagedError(f"a tensor has more than {_MAX_DIMS} dimensions")
            elif number == 2:
                kind = integer(value)
            elif number == 8:
                name = _text(value)
            elif number == 9:
                raw = len(message(value))
            elif number == 13 or (number == 14 and value != 0):
                raise _DamagedError("it keeps weights in other files, which PyASC does not open")
        if any(size < 0 for size in dims):
            raise _DamagedError(f"tensor {name!r} has a negative size")
        if raw is not None and kind in _TYPES and raw != math.prod(dims) * _TYPES[kind][1]:
            raise _DamagedError(f"tensor {name!r} of shape {tuple(dims)} has {raw} bytes")
        return name

    def _value(self, data: memoryview) -> Found:
        name, dtype = "", ""
        shape: list[int | None] = []
        for number, value in self._fields(data):
            if number == 1:
                name = _text(value)
            elif number == 2:
                shape, dtype = self._type(message(value))
        return Found(name, tuple(shape), dtype)

    def _type(self, data: memoryview) -> tuple[list[int | None], str]:
        shape: list[int | None] = []
        dtype = "no tensor"
        for number, tensor in self._fields(data):
            if number != 1:
                continue
            for field, value in self._fields(message(tensor)):
                if field == 1:
                    kind = integer(value)
                    dtype = _TYPES.get(kind, (f"type {kind}", 0))[0]
                elif field == 2:
                    shape = [self._dim(message(dim)) for part, dim in self._fields(message(value)) if part == 1]
        return shape, dtype

    def _dim(self, data: memoryview) -> int | None:
        sizes = [integer(value) for number, value in self._fields(data) if number == 1]
        return sizes[-1] if sizes and sizes[-1] > 0 else None


def _text(value: Value) -> str:
    raw = bytes(message(value))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:  # OpenCV's binding crashes on an error message with such a name in it
        raise _DamagedError(f"the name {ascii(raw[:60])[1:]} is not UTF-8") from None
