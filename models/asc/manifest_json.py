"""The manifest as JSON: written, and read with every value checked.

A fault names its place: `manifest.json: postprocess.strides[1]: 0 is not in 1 to 4096`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pyasc.hal.base import TensorInfo
from pyasc.models.asc.container import MAX_ENTRIES, is_safe_name
from pyasc.models.asc.json_reader import Node, parse_json
from pyasc.models.asc.manifest import (
    FORMAT_VERSION,
    GRAPH_PATH,
    ClassificationHead,
    EmbeddingHead,
    Manifest,
    Part,
    Postprocess,
    Precision,
    Preprocess,
    Variant,
    Yolov5Head,
)
from pyasc.models.asc.manifest_rules import check_consistency

MANIFEST_PATH = "manifest.json"
MAX_MANIFEST_BYTES = 2 << 20
MAX_LABELS = 65_536
MAX_ELEMENTS = 1 << 28
_MAX_SIDE = 65_536
_MAX_TENSORS = 64
_MAX_PARTS = 64
_OPTIONAL = ("simulated", "parts", "segment", "selftest")

_WORD = re.compile(r"[a-z0-9][a-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TASKS: tuple[Literal["detect", "embed", "classify"], ...] = ("detect", "embed", "classify")
_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
_VARIANT_PRECISIONS = ("fp32", "fp16", "int16", "int8")
_RESIZES: tuple[Literal["letterbox", "stretch"], ...] = ("letterbox", "stretch")
_COLORS: tuple[Literal["RGB", "BGR", "GRAY"], ...] = ("RGB", "BGR", "GRAY")
_NORMS: tuple[Literal["l2", "none"], ...] = ("l2", "none")
_ACTIVATIONS: tuple[Literal["softmax", "sigmoid", "none"], ...] = ("softmax", "sigmoid", "none")
_PLACES: tuple[Literal["device", "cpu"], ...] = ("device", "cpu")
_LAYOUTS = ("NCHW", "NHWC", "")
# Range of the zero point by quantised type; None for types that hold the value itself.
_DTYPES: dict[str, tuple[int, int] | None] = {
    "float32": None,
    "float16": None,
    "int64": None,
    "int32": (-(2**31), 2**31 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int8": (-128, 127),
    "uint8": (0, 255),
}


def dump_manifest(manifest: Manifest, sha256: Mapping[str, str]) -> bytes:
    """The text of `manifest.json`; the same manifest gives the same bytes.

    Args:
        manifest: not checked here; `parse_manifest` does that.
        sha256: for each other entry of the archive, hexadecimal.
    """
    document = {**manifest_values(manifest), "sha256": dict(sorted(sha256.items()))}
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in document.items())
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("utf-8", "surrogatepass")


def manifest_values(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON values, without the hashes."""
    return {"format_version": manifest.format_version, **_plain(manifest)}


def parse_manifest(raw: bytes) -> tuple[Manifest, dict[str, str]]:
    """Read and check `manifest.json`.

    Returns:
        the manifest, and the SHA-256 in hexadecimal of each entry that it names.
    Raises:
        ModelFormatError: not a manifest that this version reads; names the place.
    """
    root = parse_json(raw, MANIFEST_PATH, MAX_MANIFEST_BYTES)
    _check_version(root)
    keys = root.members(
        (
            "format_version",
            "name",
            "task",
            "template",
            "precision",
            "inputs",
            "outputs",
            "preprocess",
            "postprocess",
            "sha256",
        ),
        ("labels", "variants", "source"),
    )
    manifest = Manifest(
        name=keys["name"].text(128),
        task=keys["task"].choice(_TASKS),
        template=keys["template"].text(64, _WORD),
        precision=keys["precision"].choice(_PRECISIONS),
        inputs=_tensors(keys["inputs"]),
        outputs=_tensors(keys["outputs"]),
        preprocess=_preprocess(keys["preprocess"]),
        postprocess=_postprocess(keys["postprocess"]),
        labels=tuple(label.text(256) for label in keys["labels"].items(0, MAX_LABELS)) if "labels" in keys else (),
        variants=_variants(keys["variants"]) if "variants" in keys else (),
        source=_source(keys["source"]) if "source" in keys else {},
        format_version=FORMAT_VERSION,
    )
    check_consistency(manifest, keys)
    return manifest, _hashes(keys["sha256"], manifest)


def _check_version(root: Node) -> None:
    # First of all: a newer format may have keys that this version would call faults.
    version = root.mapping().get("format_version")
    if version is None:
        root.fail("the key 'format_version' is missing")
    if version.integer(1, 2**31 - 1) > FORMAT_VERSION:
        version.fail(f"format {version.value} needs a newer PyASC; this one reads up to format {FORMAT_VERSION}")


def _tensors(node: Node) -> tuple[TensorInfo, ...]:
    tensors = tuple(_tensor(item) for item in node.items(1, _MAX_TENSORS))
    if len({tensor.name for tensor in tensors}) < len(tensors):
        node.fail("two have the same name")
    return tensors


def _tensor(node: Node) -> TensorInfo:
    keys = node.members(("name", "shape", "dtype", "layout"), ("scale", "zero_point"))
    shape = tuple(side.integer(1, _MAX_SIDE) for side in keys["shape"].items(1, 8))
    elements = 1
    for side in shape:
        elements *= side
    if elements > MAX_ELEMENTS:
        keys["shape"].fail(f"{elements} elements are more than {MAX_ELEMENTS}")
    dtype = keys["dtype"].choice(tuple(_DTYPES))
    layout = keys["layout"].choice(_LAYOUTS)
    if layout and len(shape) != len(layout):
        keys["layout"].fail(f"{layout} has 4 axes, the shape has {len(shape)}")
    name = keys["name"].text(256)
    if "scale" not in keys and "zero_point" not in keys:
        return TensorInfo(name, shape, dtype, layout)
    zero_points = _DTYPES[dtype]
    if zero_points is None or "scale" not in keys or "zero_point" not in keys:
        node.fail("scale and zero_point go together, and with a quantised dtype")
    scale, zero_point = keys["scale"].number(1e-30, 1e30), keys["zero_point"].integer(*zero_points)
    return TensorInfo(name, shape, dtype, layout, scale, zero_point)


def _preprocess(node: Node) -> Preprocess:
    keys = node.members(("resize", "height", "width", "color", "pad_value", "mean", "std"))
    color = keys["color"].choice(_COLORS)
    channels = 1 if color == "GRAY" else 3
    return Preprocess(
        resize=keys["resize"].choice(_RESIZES),
        height=keys["height"].integer(1, _MAX_SIDE),
        width=keys["width"].integer(1, _MAX_SIDE),
        color=color,
        pad_value=keys["pad_value"].integer(0, 255),
        mean=tuple(value.number(-1e6, 1e6) for value in keys["mean"].items(channels, channels)),
        std=tuple(value.number(1e-6, 1e6) for value in keys["std"].items(channels, channels)),
    )


def _postprocess(node: Node) -> Postprocess:
    kind = node.mapping().get("type")
    if kind is None:
        node.fail("the key 'type' is missing")
    return _HEADS[kind.choice(tuple(_HEADS))](node)


def _yolov5_head(node: Node) -> Yolov5Head:
    keys = node.members(("type", "anchors", "strides", "confidence", "iou", "max_detections"))
    return Yolov5Head(
        anchors=tuple(
            tuple(_anchor(anchor) for anchor in level.items(1, 64)) for level in keys["anchors"].items(1, _MAX_TENSORS)
        ),
        strides=tuple(stride.integer(1, 4096) for stride in keys["strides"].items(1, _MAX_TENSORS)),
        confidence=keys["confidence"].number(0, 1),
        iou=keys["iou"].number(0, 1),
        max_detections=keys["max_detections"].integer(1, 100_000),
    )


def _anchor(node: Node) -> tuple[float, float]:
    width, height = (side.number(1e-3, 1e6) for side in node.items(2, 2))
    return width, height


def _embedding_head(node: Node) -> EmbeddingHead:
    keys = node.members(("type", "dim", "normalize"))
    return EmbeddingHead(dim=keys["dim"].integer(1, 1 << 20), normalize=keys["normalize"].choice(_NORMS))


def _classification_head(node: Node) -> ClassificationHead:
    keys = node.members(("type", "activation"))
    return ClassificationHead(activation=keys["activation"].choice(_ACTIVATIONS))


_HEADS: dict[str, Callable[[Node], Postprocess]] = {
    "yolov5": _yolov5_head,
    "embedding": _embedding_head,
    "classification": _classification_head,
}


def _variants(node: Node) -> tuple[Variant, ...]:
    variants = tuple(_variant(item) for item in node.items(0, MAX_ENTRIES - 2))
    paths = [path.lower() for variant in variants for path in variant.paths]
    if len(set(paths)) < len(paths):
        node.fail("two have the same path")
    return variants


def _variant(node: Node) -> Variant:
    keys = node.members(
        ("target", "format", "path", "precision", "inputs", "outputs"), ("simulated", "parts", "selftest")
    )
    target = keys["target"].text(64, _WORD)
    return Variant(
        target=target,
        format=keys["format"].text(64, _WORD),
        path=_variant_path(keys["path"], target),
        precision=keys["precision"].choice(_VARIANT_PRECISIONS),
        inputs=_tensors(keys["inputs"]),
        outputs=_tensors(keys["outputs"]),
        simulated="simulated" in keys and keys["simulated"].boolean(),
        parts=tuple(_part(item, target) for item in keys["parts"].items(2, _MAX_PARTS)) if "parts" in keys else (),
        selftest=_variant_path(keys["selftest"], target) if "selftest" in keys else "",
    )


def _part(node: Node, target: str) -> Part:
    keys = node.members(("on", "format", "path", "inputs", "outputs"), ("segment",))
    return Part(
        on=keys["on"].choice(_PLACES),
        format=keys["format"].text(64, _WORD),
        path=_variant_path(keys["path"], target),
        inputs=_tensors(keys["inputs"]),
        outputs=_tensors(keys["outputs"]),
        segment=keys["segment"].integer(0, _MAX_PARTS) if "segment" in keys else 0,
    )


def _variant_path(node: Node, target: str) -> str:
    path = node.text(255)
    if not is_safe_name(path) or not path.startswith(f"variants/{target}/"):
        node.fail(f"{json.dumps(path)} is not a plain path below variants/{target}/")
    return path


def _source(node: Node) -> dict[str, str]:
    return {
        Node(key, part.path, part.document).text(64): part.text(4096, least=0) for key, part in node.mapping(64).items()
    }


def _hashes(node: Node, manifest: Manifest) -> dict[str, str]:
    paths = (GRAPH_PATH, *(path for variant in manifest.variants for path in variant.paths))
    return {path: value.text(64, _SHA256) for path, value in node.members(paths).items()}


def _plain(value: Any) -> Any:
    """A data class as JSON values; what is None, and what is optional and empty, is left out."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        optional = _OPTIONAL if isinstance(value, Variant | Part) else ()
        return {key: _plain(part) for key, part in fields.items() if part is not None and (part or key not in optional)}
    if isinstance(value, dict):
        return dict(sorted(value.items()))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
