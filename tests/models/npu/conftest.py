"""Readers of Caffe networks that share nothing with the writer: one in NumPy by Caffe's own rules, and OpenCV where it has one.

The first reads both files with Google's protobuf by the numbers of Caffe 1.0's caffe.proto, and refuses what is not in there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import cv2
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

# Field: number and type; a star for repeated, p for packed.
WINDOW = "kernel_h 11 I, kernel_w 12 I, stride_h 13 I, stride_w 14 I"
SCHEMA = {
    "BlobShape": "dim 1 p",
    "BlobProto": "data 5 f*, shape 7 BlobShape",
    "ConcatParameter": "axis 2 i",
    "ConvolutionParameter": "num_output 1 I, bias_term 2 b, pad 3 I*, kernel_size 4 I*, group 5 I, stride 6 I*, pad_h 9 I, "
    f"pad_w 10 I, {WINDOW}, dilation 18 I*",
    "EltwiseParameter": "operation 1 PROD/SUM/MAX",
    "FlattenParameter": "axis 1 i",
    "InnerProductParameter": "num_output 1 I, bias_term 2 b",
    "InputParameter": "shape 1 BlobShape*",
    "PoolingParameter": "pool 1 MAX/AVE, kernel_size 2 I, stride 3 I, pad 4 I, kernel_h 5 I, kernel_w 6 I, stride_h 7 I, "
    "stride_w 8 I, pad_h 9 I, pad_w 10 I, global_pooling 12 b",
    "ReLUParameter": "negative_slope 1 F",
    "ReshapeParameter": "shape 1 BlobShape",
    "ScaleParameter": "axis 1 i, num_axes 2 i, bias_term 4 b",
    "LayerParameter": "name 1 s, type 2 s, bottom 3 s*, top 4 s*, blobs 7 BlobProto*, concat_param 104 ConcatParameter, "
    "convolution_param 106 ConvolutionParameter, eltwise_param 110 EltwiseParameter, inner_product_param 117 "
    "InnerProductParameter, pooling_param 121 PoolingParameter, relu_param 123 ReLUParameter, reshape_param 133 "
    "ReshapeParameter, flatten_param 135 FlattenParameter, scale_param 142 ScaleParameter, input_param 143 InputParameter",
    "NetParameter": "name 1 s, layer 100 LayerParameter*",
}
TYPES = {"i": 5, "I": 13, "b": 8, "s": 9, "F": 2, "f": 2, "p": 3}


def net_parameter() -> Any:
    """The message class of a network."""
    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
    for message, fields in SCHEMA.items():
        made = file.message_type.add(name=message)
        for text in fields.split(", "):
            name, number, kind = text.split()
            field = made.field.add(name=name, number=int(number), label=1)
            if kind.endswith("*") or kind == "p":
                field.label = 3
            kind = kind.rstrip("*")
            field.options.packed = kind in "fp"
            if "/" in kind:
                field.type, field.type_name = 14, f".caffe.{message}.{name.title()}"
                values = made.enum_type.add(name=name.title())
                for place, value in enumerate(kind.split("/")):
                    values.value.add(name=value, number=place)
            elif kind in TYPES:
                field.type = TYPES[kind]
            else:
                field.type, field.type_name = 11, f".caffe.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.NetParameter"))


def read(prototxt: str, caffemodel: bytes) -> Any:
    """Both files as one network; they must say the same."""
    kind = net_parameter()
    whole = kind.FromString(caffemodel)
    whole.DiscardUnknownFields()
    assert whole.ByteSize() == len(caffemodel), "fields that Caffe does not have, or numbers that are not packed"
    bare = kind()
    bare.CopyFrom(whole)
    for layer in bare.layer:
        del layer.blobs[:]
    assert text_format.Parse(prototxt, kind()) == bare
    return whole


def window(settings: Any, name: str, short: str, default: int) -> tuple[int, int]:
    """A setting of two axes, in any of Caffe's forms."""
    if settings.HasField(f"{short}_h"):
        return getattr(settings, f"{short}_h"), getattr(settings, f"{short}_w")
    both = getattr(settings, name)
    if isinstance(both, int):
        return (both, both) if settings.HasField(name) else (default, default)
    return (both[0], both[-1]) if both else (default, default)


def convolution(layer: Any, blobs: list[Any], x: Any) -> Any:
    settings, weights = layer.convolution_param, blobs[0]
    pad, stride = window(settings, "pad", "pad", 0), window(settings, "stride", "stride", 1)
    dilation = (settings.dilation[0], settings.dilation[-1]) if settings.dilation else (1, 1)
    groups = settings.group or 1
    out, _, *kernel = weights.shape
    assert (out, tuple(kernel)) == (settings.num_output, window(settings, "kernel_size", "kernel", 0))
    size = [(x.shape[2 + k] + 2 * pad[k] - (dilation[k] * (kernel[k] - 1) + 1)) // stride[k] + 1 for k in (0, 1)]
    x = np.pad(x, ((0, 0), (0, 0), (pad[0],) * 2, (pad[1],) * 2)).astype(np.float64)
    y = np.zeros((groups, out // groups, size[0] * size[1]))
    for i, j in itertools.product(range(kernel[0]), range(kernel[1])):
        top, left = i * dilation[0], j * dilation[1]
        part = x[0, :, top : top + (size[0] - 1) * stride[0] + 1 : stride[0]]
        part = part[:, :, left : left + (size[1] - 1) * stride[1] + 1 : stride[1]]
        y += weights[:, :, i, j].reshape(groups, out // groups, -1) @ part.reshape(groups, -1, size[0] * size[1])
    y = y.reshape(1, out, *size)
    return y + blobs[1].reshape(1, -1, 1, 1) if settings.bias_term else y


def deconvolution(layer: Any, blobs: list[Any], x: Any) -> Any:
    settings, [weights] = layer.convolution_param, blobs
    assert settings.group == settings.num_output == x.shape[1]
    assert not settings.bias_term
    stride = window(settings, "stride", "stride", 1)
    high, wide = ((x.shape[2 + k] - 1) * stride[k] + weights.shape[2 + k] for k in (0, 1))
    y = np.zeros((1, x.shape[1], high, wide))
    for i, j in itertools.product(range(weights.shape[2]), range(weights.shape[3])):
        y[:, :, i : i + high - weights.shape[2] + 1 : stride[0], j : j + wide - weights.shape[3] + 1 : stride[1]] += (
            x * weights[:, 0, i, j].reshape(1, -1, 1, 1)
        )
    return y


def pooling(layer: Any, _: list[Any], x: Any) -> Any:
    settings, size = layer.pooling_param, x.shape[2:]
    if settings.global_pooling:
        return x.max((2, 3), keepdims=True) if settings.pool == 0 else x.mean((2, 3), keepdims=True)
    kernel = window(settings, "kernel_size", "kernel", 0)
    stride, pad = window(settings, "stride", "stride", 1), window(settings, "pad", "pad", 0)
    out = [-(-(size[k] + 2 * pad[k] - kernel[k]) // stride[k]) + 1 for k in (0, 1)]
    if any(pad):
        out = [out[k] - ((out[k] - 1) * stride[k] >= size[k] + pad[k]) for k in (0, 1)]
    y = np.zeros((1, x.shape[1], *out))
    for place in itertools.product(range(out[0]), range(out[1])):
        start = [place[k] * stride[k] - pad[k] for k in (0, 1)]
        end = [min(start[k] + kernel[k], size[k] + pad[k]) for k in (0, 1)]
        counted = (end[0] - start[0]) * (end[1] - start[1])
        part = x[0, :, max(start[0], 0) : min(end[0], size[0]), max(start[1], 0) : min(end[1], size[1])]
        y[0, :, place[0], place[1]] = part.max((1, 2)) if settings.pool == 0 else part.sum((1, 2)) / counted
    return y


def scale(layer: Any, blobs: list[Any], x: Any, *factors: Any) -> Any:
    settings = layer.scale_param
    axis = settings.axis if settings.HasField("axis") else 1
    [factor] = factors or blobs[:1]
    assert factor.shape == x.shape[axis : axis + factor.ndim]
    shape = (1,) * axis + factor.shape + (1,) * (x.ndim - axis - factor.ndim)
    y = x * factor.reshape(shape)
    return y + blobs[1].reshape(shape) if settings.bias_term else y


def product(layer: Any, blobs: list[Any], x: Any) -> Any:
    y = x.reshape(1, -1) @ blobs[0].T.astype(np.float64)
    return y + blobs[1] if layer.inner_product_param.bias_term else y


def eltwise(layer: Any, _: list[Any], *inputs: Any) -> Any:
    assert len({x.shape for x in inputs}) == 1
    return np.prod(inputs, 0) if layer.eltwise_param.operation == 0 else np.sum(inputs, 0)


def reshape(layer: Any, _: list[Any], x: Any) -> Any:
    return x.reshape([size or x.shape[k] for k, size in enumerate(layer.reshape_param.shape.dim)])


LAYERS: dict[str, Callable[..., Any]] = {
    "Concat": lambda layer, _, *inputs: np.concatenate(inputs, layer.concat_param.axis),
    "Convolution": convolution,
    "Deconvolution": deconvolution,
    "Eltwise": eltwise,
    "Flatten": lambda _, __, x: x.reshape(len(x), -1),
    "InnerProduct": product,
    "Pooling": pooling,
    "ReLU": lambda layer, _, x: np.where(x > 0, x, x * layer.relu_param.negative_slope),
    "Reshape": reshape,
    "Scale": scale,
    "Sigmoid": lambda _, __, x: 1 / (1 + np.exp(-x.astype(np.float64))),
    "TanH": lambda _, __, x: np.tanh(x),
}


def run_numpy(prototxt: str, caffemodel: bytes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What each top becomes."""
    tops: dict[str, Any] = {}
    for layer in read(prototxt, caffemodel).layer:
        [top] = layer.top
        assert top not in tops
        if layer.type == "Input":
            assert inputs[top].shape == tuple(layer.input_param.shape[0].dim)
            tops[top] = inputs[top]
            continue
        blobs = [np.array(blob.data, np.float32).reshape(blob.shape.dim) for blob in layer.blobs]
        made = LAYERS[layer.type](layer, blobs, *(tops[name] for name in layer.bottom))
        tops[top] = made.astype(np.float32)
    return tops


def run_opencv(prototxt: str, caffemodel: bytes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What each layer becomes."""
    net = cv2.dnn.readNetFromCaffe(  # type: ignore[attr-defined]  # OpenCV 5 has none
        np.frombuffer(prototxt.encode(), np.uint8), np.frombuffer(caffemodel, np.uint8)
    )
    for name, array in inputs.items():
        net.setInput(array, name)
    names = [name for name in net.getLayerNames() if name not in inputs]
    return dict(zip(names, net.forward(names), strict=True))


READERS = [run_numpy, *([run_opencv] if hasattr(cv2.dnn, "readNetFromCaffe") else [])]


@pytest.fixture(params=READERS)
def run_caffe(request: pytest.FixtureRequest) -> Callable[[str, bytes, Mapping[str, Any]], dict[str, Any]]:
    """A reader: the two files and the inputs by name, to the results of all layers by name."""
    reader: Callable[[str, bytes, Mapping[str, Any]], dict[str, Any]] = request.param
    return reader


@pytest.fixture(scope="session")
def read_caffe() -> Callable[[str, bytes], Any]:
    """The files as a message `NetParameter`."""
    return read
