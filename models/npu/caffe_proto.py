"""Caffe's two files: the network as text (prototxt) and with its weights in protobuf's wire format (caffemodel).

Only the messages that our networks need; numbers and names as in Caffe 1.0's caffe.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pyasc.hal import protobuf

# A text stands for a value of an enumeration; several numbers for a repeated field, or for the sizes in `shape`.
Setting = bool | int | float | str | tuple[int, ...]

_NET_NAME, _NET_LAYER = 1, 100
_NAME, _TYPE, _BOTTOM, _TOP, _BLOBS = 1, 2, 3, 4, 7
_BLOB_DATA, _BLOB_SHAPE, _SHAPE_DIM = 5, 7, 1
_ENUMS = {"PROD": 0, "SUM": 1, "MAX": 0, "AVE": 1}
_CONVOLUTION = {
    "num_output": 1,
    "bias_term": 2,
    "pad": 3,
    "kernel_size": 4,
    "group": 5,
    "stride": 6,
    "pad_h": 9,
    "pad_w": 10,
    "kernel_h": 11,
    "kernel_w": 12,
    "stride_h": 13,
    "stride_w": 14,
    "dilation": 18,
}
_POOLING = {
    "pool": 1,
    "kernel_size": 2,
    "stride": 3,
    "pad": 4,
    "kernel_h": 5,
    "kernel_w": 6,
    "stride_h": 7,
    "stride_w": 8,
    "pad_h": 9,
    "pad_w": 10,
    "global_pooling": 12,
}
# By the layer's type: the message with its settings, that message's number in a layer, and the numbers in it.
_MESSAGES: Mapping[str, tuple[str, int, Mapping[str, int]]] = {
    "Concat": ("concat_param", 104, {"axis": 2}),
    "Convolution": ("convolution_param", 106, _CONVOLUTION),
    "Deconvolution": ("convolution_param", 106, _CONVOLUTION),
    "Eltwise": ("eltwise_param", 110, {"operation": 1}),
    "InnerProduct": ("inner_product_param", 117, {"num_output": 1, "bias_term": 2}),
    "Input": ("input_param", 143, {"shape": 1}),
    "Pooling": ("pooling_param", 121, _POOLING),
    "ReLU": ("relu_param", 123, {"negative_slope": 1}),
    "Reshape": ("reshape_param", 133, {"shape": 1}),
    "Scale": ("scale_param", 142, {"axis": 1, "bias_term": 4}),
}


@dataclass(frozen=True)
class CaffeLayer:
    """A layer with one result, which has the layer's name.

    Attributes:
        type: as Caffe calls it.
        name: of letters, digits and underscores.
        bottoms: names of the layers that it reads.
        settings: of the type's own message.
        blobs: its numbers.
    """

    type: str
    name: str
    bottoms: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    blobs: tuple[NDArray[np.float32], ...] = ()


def prototxt(name: str, layers: Sequence[CaffeLayer]) -> str:
    """The network without its numbers."""
    lines = [f'name: "{name}"']
    for layer in layers:
        lines += ["layer {", f'  name: "{layer.name}"', f'  type: "{layer.type}"']
        lines += [f'  bottom: "{bottom}"' for bottom in layer.bottoms]
        lines.append(f'  top: "{layer.name}"')
        if layer.settings:
            settings = (f"    {line}" for key, value in layer.settings.items() for line in _text(key, value))
            lines += [f"  {_MESSAGES[layer.type][0]} {{", *settings, "  }"]
        lines.append("}")
    return "\n".join(lines) + "\n"


def caffemodel(name: str, layers: Sequence[CaffeLayer]) -> bytes:
    """The network with its numbers, float32."""
    parts = [_string(_NET_NAME, name)]
    parts += [protobuf.field(_NET_LAYER, memoryview(b"".join(_layer(layer)))) for layer in layers]
    return b"".join(parts)


def shortest(number: float) -> str:
    """The shortest text that is this number in float32."""
    return str(np.float32(number))


def _text(key: str, value: Setting) -> Iterator[str]:
    if key == "shape":
        assert isinstance(value, tuple)
        yield f"shape {{ {' '.join(f'dim: {size}' for size in value)} }}"
    elif isinstance(value, tuple):
        yield from (f"{key}: {number}" for number in value)
    elif isinstance(value, bool):
        yield f"{key}: {str(value).lower()}"
    else:
        yield f"{key}: {shortest(value) if isinstance(value, float) else value}"


def _layer(layer: CaffeLayer) -> Iterator[bytes]:
    yield _string(_NAME, layer.name)
    yield _string(_TYPE, layer.type)
    yield from (_string(_BOTTOM, bottom) for bottom in layer.bottoms)
    yield _string(_TOP, layer.name)
    yield from (protobuf.field(_BLOBS, memoryview(_blob(blob))) for blob in layer.blobs)
    if layer.settings:
        _, number, fields = _MESSAGES[layer.type]
        settings = b"".join(part for key, value in layer.settings.items() for part in _wire(fields[key], key, value))
        yield protobuf.field(number, memoryview(settings))


def _wire(number: int, key: str, value: Setting) -> Iterator[bytes]:
    if key == "shape":
        assert isinstance(value, tuple)
        yield protobuf.field(number, memoryview(_sizes(value)))
    elif isinstance(value, tuple):
        yield from (protobuf.field(number, size) for size in value)
    elif isinstance(value, str):
        yield protobuf.field(number, _ENUMS[value])
    elif isinstance(value, float):
        yield protobuf.field(number, struct.pack("<f", value))
    else:
        yield protobuf.field(number, int(value))


def _blob(array: NDArray[np.float32]) -> bytes:
    data = np.ascontiguousarray(array, "<f4").tobytes()
    shape = protobuf.field(_BLOB_SHAPE, memoryview(_sizes(array.shape)))
    return protobuf.field(_BLOB_DATA, memoryview(data)) + shape


def _sizes(shape: Sequence[int]) -> bytes:
    """A BlobShape: its numbers are packed, without a tag of their own, which is one byte here."""
    return protobuf.field(_SHAPE_DIM, memoryview(b"".join(protobuf.field(1, size)[1:] for size in shape)))


def _string(number: int, text: str) -> bytes:
    return protobuf.field(number, memoryview(text.encode()))
