"""A look at a TFLite file before an engine gets it: the engines trust what they read, and older ones crash on a damaged file.

Checked are the flatbuffer's structure (every offset, vector and string within the file) and what the interpreter takes for granted:
indices within their tables, constants as large as their shapes, operators in an order in which each input is there. Field numbers
are those of TensorFlow Lite's schema.fbs, version 3 (v3a to v3e).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from pyasc.errors import ModelFormatError, UnsupportedOperatorError
from pyasc.hal import tflite_schema as schema

MAX_TENSOR_BYTES = 1 << 30
# What a look at them takes is a few seconds; the largest networks have some ten thousand operators of some ten parts, and some
# megabytes of shapes and scales. Weights are not read.
MAX_PARTS = 1_000_000
MAX_READ_BYTES = 64 << 20
_MAX_VTABLE_BYTES = 256  # the widest table of the schema has 13 fields of 2 bytes
_SCALARS = {1: struct.Struct("<b"), 2: struct.Struct("<h"), 4: struct.Struct("<i"), 8: struct.Struct("<q")}
_U32 = struct.Struct("<I")
_U16 = struct.Struct("<H")


def check_tflite(data: bytes, name: str) -> None:
    """Check a TFLite file.

    Raises:
        ModelFormatError: it is damaged, or has a construct that cannot be checked: data outside of the flatbuffer, sparse tensors,
            StableHLO options.
        UnsupportedOperatorError: an operator with a state of its own, such as a loop, a recurrent cell or a hash table.
    """
    try:
        _Model(_Flatbuffer(data)).check()
    except _DamagedError as error:
        raise ModelFormatError(f"{name}: not a sound TFLite file: {error}") from error
    except UnsupportedOperatorError as error:
        raise UnsupportedOperatorError(f"{name}: {error}") from error


class _DamagedError(Exception):
    pass


class _Flatbuffer:
    """Bounds-checked access; each table and vector that is looked at counts, and each byte that is read from a vector, so that
    shared ones cannot multiply without end.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) < 16 or data[4:8] != b"TFL3":
            raise _DamagedError("it does not begin as one")
        if len(data) >= 1 << 31:
            raise _DamagedError("it is larger than 2 GiB")
        self.data = data
        self._visits_left = min(len(data) // 4 + 16, MAX_PARTS)
        self._bytes_left = min(2 * len(data), MAX_READ_BYTES)

    def visit(self) -> None:
        self._visits_left -= 1
        if self._visits_left < 0:
            raise _DamagedError("it has too many parts, or refers to the same ones again and again")

    def root(self) -> _Table:
        return _Table(self, self.follow(0))

    def follow(self, at: int) -> int:
        """The place that the offset at `at` means."""
        self.within(at, 4)
        target = at + int(_U32.unpack_from(self.data, at)[0])
        if target == at:
            raise _DamagedError(f"an offset of zero at byte {at}")
        self.within(target, 4)
        if target % 4:
            raise _DamagedError(f"an offset at byte {at} to an odd place")
        return target

    def within(self, at: int, size: int) -> None:
        if at < 0 or size > len(self.data) - at:
            raise _DamagedError(f"{size} bytes at byte {at} are outside of the file")

    def vector(self, at: int, item_bytes: int) -> tuple[int, int]:
        """First byte and length of the vector at `at`."""
        self.visit()
        count = int(_U32.unpack_from(self.data, at)[0])
        self.within(at + 4, count * item_bytes)
        return at + 4, count

    def items(self, at: int, item_bytes: int) -> tuple[int, int]:
        """As `vector`, of one whose items are about to be read."""
        start, count = self.vector(at, item_bytes)
        self._bytes_left -= count * item_bytes
        if self._bytes_left < 0:
            raise _DamagedError("its shapes, scales and names are too long, or the same ones are used again and again")
        return start, count


class _Table:
    """A table: numbers and offsets, found through its vtable."""

    def __init__(self, buffer: _Flatbuffer, at: int) -> None:
        buffer.visit()
        self._buffer, self._at = buffer, at
        vtable = at - int(_SCALARS[4].unpack_from(buffer.data, at)[0])
        buffer.within(vtable, 4)
        vtable_bytes = int(_U16.unpack_from(buffer.data, vtable)[0])
        table_bytes = int(_U16.unpack_from(buffer.data, vtable + 2)[0])
        if not 4 <= vtable_bytes <= _MAX_VTABLE_BYTES or vtable_bytes % 2 or vtable % 2 or table_bytes < 4:
            raise _DamagedError(f"a table with a broken header at byte {at}")
        buffer.within(vtable, vtable_bytes)
        buffer.within(at, table_bytes)
        self.fields: tuple[int, ...] = struct.unpack_from(f"<{vtable_bytes // 2 - 2}H", buffer.data, vtable + 4)
        self._bytes = table_bytes
        if any(place and not 4 <= place < table_bytes for place in self.fields):
            raise _DamagedError(f"a field outside of its table at byte {at}")

    def has(self, field: int) -> bool:
        return field < len(self.fields) and self.fields[field] != 0

    def number(self, field: int, size: int, default: int = 0, *, signed: bool = True) -> int:
        if not self.has(field):
            return default
        if self.fields[field] + size > self._bytes:
            raise _DamagedError(f"a number outside of its table at byte {self._at}")
        value = int(_SCALARS[size].unpack_from(self._buffer.data, self._at + self.fields[field])[0])
        return value if signed else value % (1 << 8 * size)

    def _target(self, field: int) -> int:
        if self.fields[field] + 4 > self._bytes:
            raise _DamagedError(f"an offset outside of its table at byte {self._at}")
        return self._buffer.follow(self._at + self.fields[field])

    def table(self, field: int) -> _Table | None:
        return _Table(self._buffer, self._target(field)) if self.has(field) else None

    def tables(self, field: int) -> list[_Table]:
        if not self.has(field):
            return []
        start, count = self._buffer.vector(self._target(field), 4)
        return [_Table(self._buffer, self._buffer.follow(start + 4 * index)) for index in range(count)]

    def vector_length(self, field: int, item_bytes: int) -> int:
        return self._buffer.vector(self._target(field), item_bytes)[1] if self.has(field) else 0

    def integers(self, field: int) -> tuple[int, ...]:
        if not self.has(field):
            return ()
        start, count = self._buffer.items(self._target(field), 4)
        return struct.unpack_from(f"<{count}i", self._buffer.data, start)

    def long_integers(self, field: int) -> tuple[int, ...]:
        if not self.has(field):
            return ()
        start, count = self._buffer.items(self._target(field), 8)
        return struct.unpack_from(f"<{count}q", self._buffer.data, start)

    def floats(self, field: int) -> tuple[float, ...]:
        if not self.has(field):
            return ()
        start, count = self._buffer.items(self._target(field), 4)
        return struct.unpack_from(f"<{count}f", self._buffer.data, start)

    def text(self, field: int) -> str:
        """A string; the zero behind it is there, as engines read it as a C string."""
        if not self.has(field):
            return ""
        start, count = self._buffer.items(self._target(field), 1)
        self._buffer.within(start + count, 1)
        if self._buffer.data[start + count]:
            raise _DamagedError(f"a string without an end at byte {start}")
        try:
            return self._buffer.data[start : start + count].decode("utf-8")
        except UnicodeDecodeError:
            raise _DamagedError(f"a string that is not UTF-8 at byte {start}") from None


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    type: int
    constant: bool
    variable: bool
    scales: tuple[float, ...]


class _Model:
    def __init__(self, buffer: _Flatbuffer) -> None:
        self._root = buffer.root()

    def check(self) -> None:
        root = self._root
        if root.number(0, 4) != 3:
            raise _DamagedError(f"its schema version is {root.number(0, 4)}, not 3")
        if root.vector_length(8, 4) or root.vector_length(9, 4):
            raise _DamagedError("it keeps data in other files")
        root.text(3)
        operator_codes = [_operator_code(code) for code in root.tables(1)]
        buffers = self._buffer_sizes()
        subgraphs = root.tables(2)
        if not subgraphs:
            raise _DamagedError("it holds no graph")
        counts = [self._subgraph(subgraph, operator_codes, buffers) for subgraph in subgraphs]
        self._extras(len(buffers), counts)

    def _buffer_sizes(self) -> list[int]:
        sizes = []
        for table in self._root.tables(4):
            if table.number(1, 8) > 1 or table.number(2, 8) > 1:
                raise _DamagedError("it keeps weights behind the flatbuffer")
            sizes.append(table.vector_length(0, 1))
        return sizes

    def _subgraph(self, subgraph: _Table, operator_codes: list[int], buffers: list[int]) -> int:
        subgraph.text(4)
        tensors = [_tensor(table, buffers) for table in subgraph.tables(0)]
        inputs, outputs = subgraph.integers(1), subgraph.integers(2)
        _check_indices("an input of the graph", inputs, len(tensors))
        _check_indices("an output of the graph", outputs, len(tensors))
        there = {index for index, tensor in enumerate(tensors) if tensor.constant or tensor.variable}
        if there.intersection(inputs):
            raise _DamagedError("an input of the graph is a constant")
        there.update(inputs)
        for number, operator in enumerate(subgraph.tables(3)):
            _operator(operator, number, operator_codes, tensors, there)
        missing = [tensors[index].name for index in outputs if index not in there]
        if missing:
            raise _DamagedError(f"nothing computes the output {missing[0]!r}")
        return len(tensors)

    def _extras(self, buffers: int, tensor_counts: list[int]) -> None:
        for metadata in self._root.tables(6):
            metadata.text(0)
            if metadata.number(1, 4, signed=False) >= buffers:
                raise _DamagedError("metadata without its buffer")
        self._root.integers(5)
        for signature in self._root.tables(7):
            signature.text(2), signature.text(3)
            graph = signature.number(4, 4, signed=False)
            if graph >= len(tensor_counts):
                raise _DamagedError("a signature of a graph that is not there")
            for entry in signature.tables(0) + signature.tables(1):
                entry.text(0)
                _check_indices("a tensor of a signature", (entry.number(1, 4, signed=False),), tensor_counts[graph])


def _operator_code(table: _Table) -> int:
    """The builtin operator: codes over 127 are in the newer field (schema.fbs, OperatorCode)."""
    table.text(1)
    table.number(2, 4)
    return max(table.number(0, 1), table.number(3, 4))


def _tensor(table: _Table, buffers: list[int]) -> _Tensor:
    name, shape = table.text(3), table.integers(0)
    kind, buffer = table.number(1, 1), table.number(2, 4, signed=False)
    table.integers(7)
    if table.has(6) or table.has(9) or table.number(10, 4):
        raise _DamagedError(f"tensor {name!r} is sparse, a variant or in another file, which PyASC does not take")
    if any(size < 1 for size in shape):
        raise _DamagedError(f"tensor {name!r} has the shape {shape}")
    if buffer >= len(buffers):
        raise _DamagedError(f"tensor {name!r} has no buffer {buffer}")
    elements = math.prod(shape)
    size = (
        -(-elements * schema.PACKED_BITS[kind] // 8)
        if kind in schema.PACKED_BITS
        else elements * schema.TYPE_BYTES.get(kind, 0)
    )
    if kind not in schema.TYPE_BYTES and kind not in schema.PACKED_BITS and kind != schema.STRING:
        raise _DamagedError(f"tensor {name!r} is of the unknown type {kind}")
    if size > MAX_TENSOR_BYTES:
        raise _DamagedError(f"tensor {name!r} of shape {shape} is larger than {MAX_TENSOR_BYTES >> 20} MiB")
    constant = buffers[buffer] > 0
    if constant and kind != schema.STRING and buffers[buffer] != size:
        raise _DamagedError(f"tensor {name!r} of shape {shape} has {buffers[buffer]} bytes instead of {size}")
    scales = _quantization(table.table(4), name, shape, kind)
    return _Tensor(name, shape, kind, constant, bool(table.number(5, 1)), scales)


def _quantization(table: _Table | None, name: str, shape: tuple[int, ...], kind: int) -> tuple[float, ...]:
    if table is None:
        return ()
    table.floats(0), table.floats(1)
    scales, zero_points = table.floats(2), table.long_integers(3)
    if table.number(4, 1) or table.has(5):
        raise _DamagedError(f"tensor {name!r} has a quantisation of its own kind")
    axis = table.number(6, 4)
    if scales and not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise _DamagedError(f"tensor {name!r} has a scale that is not positive")
    if len(zero_points) not in (0, 1, len(scales)):
        raise _DamagedError(f"tensor {name!r} has {len(scales)} scales and {len(zero_points)} zero points")
    lowest, highest = schema.ZERO_POINTS.get(kind, (0, 0))
    if scales and not all(lowest <= zero_point <= highest for zero_point in zero_points):
        raise _DamagedError(f"tensor {name!r} has a zero point outside of {lowest} to {highest}")
    if len(scales) > 1 and not (0 <= axis < len(shape) and shape[axis] == len(scales)):
        raise _DamagedError(f"tensor {name!r} of shape {shape} has {len(scales)} scales on axis {axis}")
    return scales


def _operator(operator: _Table, number: int, codes: list[int], tensors: list[_Tensor], there: set[int]) -> None:
    """Check one operator, and note in `there` what it computes."""
    code = operator.number(0, 4, signed=False)
    if code >= len(codes):
        raise _DamagedError(f"operator {number} is of no kind")
    inputs, outputs = operator.integers(1), operator.integers(2)
    _check_indices(f"an input of operator {number}", (index for index in inputs if index != -1), len(tensors))
    _check_indices(f"an output of operator {number}", outputs, len(tensors))
    _check_indices(f"a part of operator {number}", (i for i in operator.integers(8) if i != -1), len(tensors))
    early = [index for index in inputs if index != -1 and index not in there]
    if early:
        raise _DamagedError(f"operator {number} needs {tensors[early[0]].name!r} before it is computed")
    twice = [index for index in outputs if index in there]
    if twice or len(set(outputs)) != len(outputs):
        raise _DamagedError(f"operator {number} writes a tensor that has a value already")
    there.update(outputs)
    operator.vector_length(5, 1)
    operator.vector_length(7, 1)
    if operator.number(9, 8) or operator.number(10, 8):
        raise _DamagedError(f"operator {number} keeps its options behind the flatbuffer")
    if operator.number(11, 1) or operator.has(12):
        raise _DamagedError(f"operator {number} has StableHLO options, which PyASC does not take")
    _options(operator, number, codes[code])
    if codes[code] in schema.RESCALING:
        _rescaling(number, inputs, outputs, tensors)


def _rescaling(number: int, inputs: tuple[int, ...], outputs: tuple[int, ...], tensors: list[_Tensor]) -> None:
    if len(inputs) < 2 or len(outputs) != 1 or -1 in inputs[:2]:
        raise _DamagedError(f"operator {number} has {len(inputs)} inputs and {len(outputs)} outputs")
    source, weights, target = (tensors[index].scales for index in (*inputs[:2], outputs[0]))
    if len(source) == len(target) == 1:
        lowest, highest = schema.RESCALE_RANGE
        if not all(lowest <= source[0] * scale / target[0] < highest for scale in weights):
            raise _DamagedError(f"operator {number} has scales that no engine can compute with")


def _options(operator: _Table, number: int, code: int) -> None:
    kind = operator.number(3, 1, signed=False)
    options = operator.table(4)
    if code not in schema.OPERATOR_OPTIONS:
        raise UnsupportedOperatorError(f"operator {number} is TFLite's builtin {code}, which PyASC does not take")
    allowed = {schema.OPERATOR_OPTIONS[code]} | ({0} if code not in schema.NEEDS_OPTIONS else set())
    if (options is None) != (kind == 0) or kind not in allowed:
        raise _DamagedError(f"operator {number} (TFLite's builtin {code}) has options of the kind {kind}")
    if options is None:
        return
    for field, item_bytes in schema.OPTION_VECTORS.get(kind, {}).items():
        options.vector_length(field, item_bytes)
    for field, (size, default, lowest, highest) in schema.OPTION_NUMBERS.get(kind, {}).items():
        value = options.number(field, size, default)
        if not lowest <= value <= highest:
            raise _DamagedError(f"operator {number} has the option {field} = {value}, outside of {lowest} to {highest}")


def _check_indices(what: str, indices: Iterable[int], count: int) -> None:
    for index in indices:
        if not 0 <= index < count:
            raise _DamagedError(f"{what} is tensor {index} of {count}")
