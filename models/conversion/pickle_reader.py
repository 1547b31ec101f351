"""Reads pickles without running anything that they name.

A pickle is a program for a small stack machine. This one has the machine's data part alone: no module is imported, no attribute
looked up and no function called but those of a table that the caller gives. Names that the caller declares harmless become inert
`Record`s. Whatever else a pickle names raises `UnsafeCheckpointError` before the next opcode is read.

The opcodes are those of protocols 0 to 5 as documented in CPython's `pickletools`, without out-of-band buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sized
from typing import Any

from pyasc.errors import ModelFormatError, UnsafeCheckpointError
from pyasc.models.conversion.pickle_values import Name, Record, Rules, checked_key, shown

MAX_PICKLE_BYTES = 64 << 20
MAX_OPCODES = 8_000_000
_MAX_INTEGER_BYTES = 255
_MAX_LINE_BYTES = 4096
# Bytes that calls and states may copy, an element of a container for 64 of them: without it a few bytes that repeat a copy could
# fill the memory.
_MAX_COPIED = 4 * MAX_PICKLE_BYTES
_ELEMENT_COST = 64


def read_pickle(data: memoryview, rules: Rules, start: int = 0) -> tuple[Any, int]:
    """Read one pickle.

    Args:
        data: holds the pickle; what follows it is not looked at.
        rules: what it may name.
        start: where it begins.
    Returns:
        the value, and the position behind the pickle.
    Raises:
        UnsafeCheckpointError: it names something that `rules` do not list.
        ModelFormatError: it is damaged or too large.
    """
    reader = _Reader(data, rules, start)
    try:
        return reader.run(), reader.at
    except UnsafeCheckpointError:
        raise
    except (ModelFormatError, IndexError, KeyError, TypeError, ValueError, struct.error, OverflowError) as error:
        reason = str(error) if isinstance(error, ModelFormatError) else f"{type(error).__name__}: {shown(str(error))}"
        raise ModelFormatError(f"the pickle is damaged at byte {reader.opcode_at}: {reason}") from error


class _Mark:
    """The object on the stack that opens a group."""


_MARK = _Mark()


class _Reader:
    def __init__(self, data: memoryview, rules: Rules, start: int) -> None:
        self.data, self.rules = data, rules
        self.at = self.opcode_at = start
        self.end = min(len(data), start + MAX_PICKLE_BYTES)
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0

    def run(self) -> Any:
        data, handlers, stack = self.data, _OPCODES, self.stack
        for _ in range(MAX_OPCODES):
            self.opcode_at = self.at
            if self.at >= self.end:
                raise ModelFormatError("it ends in the middle" if self.end == len(data) else "it is too large")
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                if len(stack) != 1 or stack[0] is _MARK:
                    raise ModelFormatError(f"it leaves {len(stack)} values instead of one")
                return stack[0]
            handler = handlers[code]
            if handler is None:
                raise ModelFormatError(f"0x{code:02x} is no opcode that a checkpoint may have")
            handler(self)
        raise ModelFormatError(f"it has more than {MAX_OPCODES} opcodes")

    # Reading

    def take(self, size: int) -> memoryview:
        if size < 0 or size > self.end - self.at:
            raise ModelFormatError(f"{size} bytes are announced, {self.end - self.at} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> str:
        window = bytes(self.data[self.at : min(self.end, self.at + _MAX_LINE_BYTES)])
        length = window.find(b"\n")
        if length < 0:
            raise ModelFormatError("a line does not end")
        self.at += length + 1
        return window[:length].decode("utf-8")

    # The stack

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ModelFormatError("a value is missing")
        return value

    def pop_group(self) -> list[Any]:
        stack = self.stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                group = stack[at + 1 :]
                del stack[at:]
                return group
        raise ModelFormatError("a mark is missing")

    def top(self) -> Any:
        if self.stack[-1] is _MARK:
            raise ModelFormatError("a value is missing")
        return self.stack[-1]

    # Names and calls

    def name(self, module: Any, name: Any) -> Name:
        if not isinstance(module, str) or not isinstance(name, str):
            raise UnsafeCheckpointError("asks for a name that is not text; nothing of it has run")
        full, rules = f"{module}.{name}", self.rules
        if full in rules.calls or full in rules.values or rules.is_inert(module, name):
            return Name(module, name)
        raise UnsafeCheckpointError(f"asks for {shown(full)}, which no conversion needs; nothing of it has run")

    def call(self, function: Any, args: Any, keywords: Any = None) -> Any:
        if not isinstance(function, Name):
            raise UnsafeCheckpointError(f"calls a {type(function).__name__}; nothing of it has run")
        if not isinstance(args, tuple) or keywords:
            raise ModelFormatError(f"{function} is called with arguments of a form that no checkpoint has")
        call = self.rules.calls.get(f"{function.module}.{function.name}")
        if call is not None:
            self.charge(args)
            return call(*args)
        if self.rules.is_inert(function.module, function.name):
            return Record(function, args)
        raise UnsafeCheckpointError(f"calls {function}, which no conversion needs; nothing of it has run")

    def persistent(self, key: Any) -> Any:
        if self.rules.persistent is None:
            raise ModelFormatError("it refers to a persistent object where there is none")
        return self.rules.persistent(key)

    def build(self) -> None:
        state = self.pop()
        target = self.top()
        if isinstance(target, dict):
            return  # Attributes of an OrderedDict, such as the versions in a state_dict's `_metadata`.
        if not hasattr(type(target), "set_state"):
            raise ModelFormatError(f"a state is set on a {type(target).__name__}")
        self.charge(state if isinstance(state, tuple) else (state,))
        target.set_state(state)

    def charge(self, values: tuple[Any, ...]) -> None:
        for value in values:
            if isinstance(value, Sized):
                self.copied += len(value) * (1 if isinstance(value, str | bytes | bytearray) else _ELEMENT_COST)
        if self.copied > _MAX_COPIED:
            raise ModelFormatError("it copies more than a checkpoint does")

    # Containers

    def set_items(self, pairs: list[Any]) -> None:
        target = self.top()
        entries = target.entries if isinstance(target, Record) else target
        if not isinstance(entries, dict) or len(pairs) % 2:
            raise ModelFormatError("entries are set on what is no dict")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            entries[checked_key(key)] = value

    def append(self, values: list[Any]) -> None:
        target = self.top()
        items = target.items if isinstance(target, Record) else target
        if not isinstance(items, list):
            raise ModelFormatError("values are appended to what is no list")
        items.extend(values)

    def add(self, values: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, set):
            raise ModelFormatError("values are added to what is no set")
        target.update(map(checked_key, values))


_STOP = ord(".")
_OPCODES: list[Callable[[_Reader], None] | None] = [None] * 256


def _opcode(code: bytes) -> Callable[[Callable[[_Reader], None]], Callable[[_Reader], None]]:
    def register(handler: Callable[[_Reader], None]) -> Callable[[_Reader], None]:
        _OPCODES[code[0]] = handler
        return handler

    return register


def _pushes(code: bytes, value: Callable[[_Reader], Any]) -> None:
    """An opcode that puts one value onto the stack."""

    def handler(reader: _Reader) -> None:
        reader.stack.append(value(reader))

    _OPCODES[code[0]] = handler


def _constant_pushes(code: bytes, value: Any) -> None:
    _pushes(code, lambda _: value)


def _signed(reader: _Reader, size: int) -> int:
    if size > _MAX_INTEGER_BYTES:
        raise ModelFormatError(f"an integer of {size} bytes")
    return int.from_bytes(reader.take(size), "little", signed=True)


def _text(reader: _Reader, size: int) -> str:
    return str(reader.take(size), "utf-8", "surrogatepass")


def _decimal(reader: _Reader) -> Any:
    text = reader.line()
    if text in ("00", "01"):  # Booleans of protocol 1.
        return text == "01"
    if len(text) > _MAX_INTEGER_BYTES:
        raise ModelFormatError(f"an integer of {len(text)} digits")
    return int(text.removesuffix("L"))


def _quoted(reader: _Reader) -> str:
    text = reader.line()
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0] or "\\" in text:
        raise ModelFormatError("a quoted text of a form that no checkpoint has")
    return text[1:-1]


for _code, _value in ((b"N", None), (b"\x88", True), (b"\x89", False), (b")", ()), (b"(", _MARK)):
    _constant_pushes(_code, _value)
_pushes(b"]", lambda r: [])
_pushes(b"}", lambda r: {})
_pushes(b"\x8f", lambda r: set())
_pushes(b"J", lambda r: _signed(r, 4))
_pushes(b"K", lambda r: r.number(1))
_pushes(b"M", lambda r: r.number(2))
_pushes(b"\x8a", lambda r: _signed(r, r.number(1)))
_pushes(b"\x8b", lambda r: _signed(r, r.number(4)))
_pushes(b"G", lambda r: struct.unpack(">d", r.take(8))[0])
_pushes(b"I", _decimal)
_pushes(b"L", _decimal)
_pushes(b"F", lambda r: float(r.line()))
_pushes(b"S", _quoted)
_pushes(b"V", lambda r: r.line())
_pushes(b"X", lambda r: _text(r, r.number(4)))
_pushes(b"\x8c", lambda r: _text(r, r.number(1)))
_pushes(b"\x8d", lambda r: _text(r, r.number(8)))
# Python 2's str: text in every checkpoint that is around.
_pushes(b"T", lambda r: _text(r, r.number(4)))
_pushes(b"U", lambda r: _text(r, r.number(1)))
_pushes(b"B", lambda r: bytes(r.take(r.number(4))))
_pushes(b"C", lambda r: bytes(r.take(r.number(1))))
_pushes(b"\x8e", lambda r: bytes(r.take(r.number(8))))
_pushes(b"\x96", lambda r: bytearray(r.take(r.number(8))))
_pushes(b"2", lambda r: r.top())
_pushes(b"t", lambda r: tuple(r.pop_group()))
_pushes(b"\x85", lambda r: (r.pop(),))
_pushes(b"\x86", lambda r: (r.pop(), r.pop())[::-1])
_pushes(b"\x87", lambda r: (r.pop(), r.pop(), r.pop())[::-1])
_pushes(b"l", lambda r: r.pop_group())
_pushes(b"\x91", lambda r: frozenset(map(checked_key, r.pop_group())))
_pushes(b"h", lambda r: r.memo[r.number(1)])
_pushes(b"j", lambda r: r.memo[r.number(4)])
_pushes(b"g", lambda r: r.memo[int(r.line())])
_pushes(b"c", lambda r: r.name(r.line(), r.line()))
_pushes(b"\x93", lambda r: r.name(*(r.pop(), r.pop())[::-1]))
_pushes(b"Q", lambda r: r.persistent(r.pop()))
_pushes(b"P", lambda r: r.persistent(r.line()))


@_opcode(b"\x80")
def _proto(reader: _Reader) -> None:
    protocol = reader.number(1)
    if protocol > 5:
        raise ModelFormatError(f"pickle protocol {protocol} is not known")


@_opcode(b"\x95")
def _frame(reader: _Reader) -> None:
    size = reader.number(8)
    if size > reader.end - reader.at:
        raise ModelFormatError(f"a frame of {size} bytes, {reader.end - reader.at} are left")


@_opcode(b"0")
def _pop(reader: _Reader) -> None:
    reader.stack.pop()


@_opcode(b"1")
def _pop_mark(reader: _Reader) -> None:
    reader.pop_group()


@_opcode(b"d")
def _dict(reader: _Reader) -> None:
    pairs = reader.pop_group()
    reader.stack.append({})
    reader.set_items(pairs)


@_opcode(b"a")
def _append(reader: _Reader) -> None:
    value = reader.pop()
    reader.append([value])


@_opcode(b"e")
def _appends(reader: _Reader) -> None:
    values = reader.pop_group()
    reader.append(values)


@_opcode(b"s")
def _set_item(reader: _Reader) -> None:
    value, key = reader.pop(), reader.pop()
    reader.set_items([key, value])


@_opcode(b"u")
def _set_items(reader: _Reader) -> None:
    pairs = reader.pop_group()
    reader.set_items(pairs)


@_opcode(b"\x90")
def _add_items(reader: _Reader) -> None:
    values = reader.pop_group()
    reader.add(values)


@_opcode(b"q")
def _bin_put(reader: _Reader) -> None:
    reader.memo[reader.number(1)] = reader.top()


@_opcode(b"r")
def _long_bin_put(reader: _Reader) -> None:
    reader.memo[reader.number(4)] = reader.top()


@_opcode(b"p")
def _put(reader: _Reader) -> None:
    reader.memo[int(reader.line())] = reader.top()


@_opcode(b"\x94")
def _memoize(reader: _Reader) -> None:
    reader.memo[len(reader.memo)] = reader.top()


@_opcode(b"R")
@_opcode(b"\x81")
def _reduce(reader: _Reader) -> None:
    args, function = reader.pop(), reader.pop()
    reader.stack.append(reader.call(function, args))


@_opcode(b"\x92")
def _new_object_ex(reader: _Reader) -> None:
    keywords, args, function = reader.pop(), reader.pop(), reader.pop()
    reader.stack.append(reader.call(function, args, keywords))


@_opcode(b"i")
def _inst(reader: _Reader) -> None:
    function = reader.name(reader.line(), reader.line())
    reader.stack.append(reader.call(function, tuple(reader.pop_group())))


@_opcode(b"o")
def _obj(reader: _Reader) -> None:
    function, *args = reader.pop_group()
    reader.stack.append(reader.call(function, tuple(args)))


@_opcode(b"b")
def _build(reader: _Reader) -> None:
    reader.build()


def _extension(size: int) -> Callable[[_Reader], None]:
    def handler(reader: _Reader) -> None:
        raise UnsafeCheckpointError(f"asks for extension {reader.number(size)} of copyreg; nothing of it has run")

    return handler


for _code, _size in ((b"\x82", 1), (b"\x83", 2), (b"\x84", 4)):
    _OPCODES[_code[0]] = _extension(_size)
