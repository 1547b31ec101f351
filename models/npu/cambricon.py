"""Model files of Cambricon for the simulated MLU220, byte by byte, and the text that the vendor's tools write beside them.

The head of a file is that of public ones; what comes after it is described in vendors/cambricon/sim/cambricon.h.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from pyasc.errors import ModelFormatError

HEAD = bytes.fromhex("7f4d4546 1414031e 01000000 0d000000") + b"forward_model"
CORE_VERSIONS = {"mlu270": 5, "mlu220": 6}
DTYPES = {"float16": 0x12, "float32": 0x13, "uint8": 0x31}
# Where the colours of a picture stand in its four channels: the first of red, green and blue, and the way to the next.
PIXELS = {"rgba": (0, 1), "argb": (1, 1), "bgra": (2, -1), "abgr": (3, -1)}

_MAGIC = b"PyASCcam"
_FORMAT = 1
_START = 32
_HEADER = struct.Struct("<8s9I20x")
_FUNCTION = struct.Struct("<2I6I5I12x")
_PORT = struct.Struct("<6I3if8x")
_MOST_BATCHES = 6
_SUM_FROM = _START + 16  # the checksum's own place and what is before it do not count


@dataclass(frozen=True)
class Port:
    """An input or output as a caller sees it, NHWC.

    Attributes:
        name: at most 63 bytes of UTF-8.
        dtype: a key of `DTYPES`; uint8 for inputs alone.
        height, width, channels: of one picture.
        first, step: the program's channel c is the caller's channel first + c * step; `PIXELS` has those of pictures.
        position, scale: how the numbers are quantised inside, for information: real = stored * 2^position / scale.
    """

    name: str
    dtype: str
    height: int
    width: int
    channels: int
    first: int = 0
    step: int = 1
    position: int = 0
    scale: float = 1.0


@dataclass(frozen=True)
class Function:
    """One function of a model; tools of the vendor call it subnet0.

    Attributes:
        program: as `write_program` makes it, for mlu220.
        inputs, outputs: in the program's order.
        batches: ascending; several make a model in cache mode.
    """

    program: bytes
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    batches: tuple[int, ...] = (1,)
    name: str = "subnet0"


def position_and_scale(step: float) -> tuple[int, float]:
    """The vendor's form of a quantisation step: step = 2^position / scale, with scale in 1..2.

    Args:
        step: what one stored unit is worth, above 0.
    """
    fraction, exponent = math.frexp(step)
    return (exponent - 1, 1.0) if fraction == 0.5 else (exponent, 1 / fraction)


class _Body:
    """What follows the header; every piece begins at a multiple of 4."""

    def __init__(self, start: int) -> None:
        self._start = start
        self.data = bytearray()

    def add(self, piece: bytes) -> int:
        self.data += bytes(-len(self.data) % 4)
        self.data += piece
        return self._start + len(self.data) - len(piece)


def write_cambricon(
    functions: Sequence[Function],
    *,
    cores: int = 1,
    core_version: str = "mlu220",
    stack_mib: int = 4,
    local_mib: int = 4,
) -> bytes:
    """A model file.

    Args:
        functions: at least one.
        cores: that one run takes at once; MLU220 has four.
        core_version: a key of `CORE_VERSIONS`.
        stack_mib, local_mib: what a run needs of the device's limits, in MiB a core.
    Raises:
        ValueError: something is not as the format wants it.
    """
    if not functions or cores < 1:
        raise ValueError("a model has at least one function and runs on at least one core")
    table = _START + _HEADER.size
    body = _Body(table + _FUNCTION.size * len(functions))
    records = b"".join(_function(function, body) for function in functions)
    size = table + len(records) + len(body.data)
    fields = (size, CORE_VERSIONS[core_version], cores, stack_mib, local_mib, len(functions), table)
    rest = _HEADER.pack(_MAGIC, _FORMAT, 0, *fields) + records + bytes(body.data)
    header = _HEADER.pack(_MAGIC, _FORMAT, zlib.crc32(rest[_SUM_FROM - _START :]), *fields)
    return HEAD.ljust(_START, b"\0") + header + rest[_HEADER.size :]


def _name(name: str) -> bytes:
    text = name.encode()
    if len(text) > 63 or b"\0" in text:
        raise ValueError(f"the name '{name[:80]}' is longer than 63 bytes, or has a zero in it")
    return text + b"\0"


def _function(function: Function, body: _Body) -> bytes:
    batches = function.batches
    if not 1 <= len(batches) <= _MOST_BATCHES or list(batches) != sorted(set(batches)) or batches[0] < 1:
        raise ValueError(f"batch sizes {batches}: one to {_MOST_BATCHES}, ascending")
    ports = b"".join(_port(port, batches[-1], body) for port in (*function.inputs, *function.outputs))
    return _FUNCTION.pack(
        body.add(_name(function.name)),
        len(batches),
        *batches,
        *[0] * (_MOST_BATCHES - len(batches)),
        len(function.inputs),
        len(function.outputs),
        body.add(ports),
        body.add(function.program),
        len(function.program),
    )


def _port(port: Port, batch: int, body: _Body) -> bytes:
    shape = (batch, port.height, port.width, port.channels)
    name = body.add(_name(port.name))
    return _PORT.pack(name, DTYPES[port.dtype], *shape, port.first, port.step, port.position, port.scale)


def read_cambricon(data: bytes) -> tuple[Function, ...]:
    """The functions of a model file for the simulator.

    Raises:
        ModelFormatError: it is no model of Cambricon, one of the vendor's tool, whose tables are not public, or damaged.
    """
    if not data.startswith(HEAD):
        raise ModelFormatError("not a model of Cambricon: it does not begin as one")
    if data[_START : _START + 8] != _MAGIC:
        raise ModelFormatError("compiled by the vendor's tool: its tables are not public, see its .cambricon_twins")
    try:
        _, version, checksum, size, _, _, _, _, count, table = _HEADER.unpack_from(data, _START)
        if version != _FORMAT or size > len(data) or zlib.crc32(data[_SUM_FROM:size]) != checksum:
            raise ModelFormatError("damaged or cut off: its checksum is wrong")
        return tuple(_read_function(data, table + index * _FUNCTION.size) for index in range(min(count, 64)))
    except (struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
        raise ModelFormatError(f"its tables are damaged: {error}") from error


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def _read_function(data: bytes, at: int) -> Function:
    name, batch_count, *rest = _FUNCTION.unpack_from(data, at)
    batches, (inputs, outputs, ports, program, size) = rest[:_MOST_BATCHES], rest[_MOST_BATCHES:]
    if not 1 <= batch_count <= _MOST_BATCHES or inputs + outputs > 128 or program + size > len(data):
        raise ModelFormatError("its tables are damaged")
    made = [_read_port(data, ports + index * _PORT.size) for index in range(inputs + outputs)]
    return Function(
        data[program : program + size],
        tuple(made[:inputs]),
        tuple(made[inputs:]),
        tuple(batches[:batch_count]),
        _text(data, name),
    )


def _read_port(data: bytes, at: int) -> Port:
    name, dtype, _, height, width, channels, first, step, position, scale = _PORT.unpack_from(data, at)
    names = {number: key for key, number in DTYPES.items()}
    return Port(_text(data, name), names[dtype], height, width, channels, first, step, position, scale)


def write_twins(file_name: str, functions: Sequence[Function], *, cores: int = 1) -> str:
    """The plain text that stands beside a model file, `.cambricon_twins`: what one wants to know without a card.

    Args:
        file_name: of the model.
        functions: as they were given to `write_cambricon`.
        cores: likewise.
    """
    lines = [f"model: {file_name}", f"function_num: {len(functions)}"]
    for function in functions:
        lines += [
            "function {",
            f"  name: {function.name}",
            "  kernel_num: 1",
            f"  cache_mode: {str(len(function.batches) > 1).lower()}",
        ]
        for kind, ports in (("input", function.inputs), ("output", function.outputs)):
            for index, port in enumerate(ports):
                lines += _twins_port(kind, index, port, function.batches[-1])
        lines += [
            "  kernel {",
            f"    name: {function.name}_kernel0",
            "    core_version: MLU220",
            f"    model_parallelism: {cores}",
            "    core_limit: 4",
            "    split: false",
            "  }",
            "}",
        ]
    return "\n".join(lines) + "\n"


def _twins_port(kind: str, index: int, port: Port, batch: int) -> list[str]:
    return [
        f"  {kind} {{",
        "    mask: 0",
        f"    shape: {batch} {port.height} {port.width} {port.channels}",
        f"    name: {port.name}",
        f"    id: {index}",
        f"    data_type: CNRT_{port.dtype.upper()}",
        "    dim_order: CNRT_NHWC",
        f"    quantize_position: {port.position}",
        f"    quantize_scale: {port.scale:.9g}",
        "  }",
    ]
