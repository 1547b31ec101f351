"""The manifest as JSON: what comes back, and what is refused where."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyasc.errors import ModelFormatError
from pyasc.hal.base import TensorInfo
from pyasc.models.asc.manifest import (
    ClassificationHead,
    EmbeddingHead,
    Manifest,
    Preprocess,
    Variant,
    Yolov5Head,
)
from pyasc.models.asc.manifest_json import MAX_MANIFEST_BYTES, dump_manifest, parse_manifest

Change = Callable[[dict[str, Any]], Any]


def hashes(manifest: Manifest) -> dict[str, str]:
    return dict.fromkeys(("graph.onnx", *(variant.path for variant in manifest.variants)), "ab" * 32)


def changed(manifest: Manifest, change: Change) -> bytes:
    document = json.loads(dump_manifest(manifest, hashes(manifest)))
    change(document)
    return json.dumps(document).encode()


def refusal(raw: bytes) -> str:
    with pytest.raises(ModelFormatError) as caught:
        parse_manifest(raw)
    return str(caught.value)


def test_the_document_is_what_the_format_page_shows(detector: Manifest) -> None:
    document = json.loads(dump_manifest(detector, hashes(detector)))
    assert document["format_version"] == 1
    assert document["inputs"] == [{"name": "images", "shape": [1, 3, 64, 96], "dtype": "float32", "layout": "NCHW"}]
    assert document["preprocess"] == {
        "resize": "letterbox", "height": 64, "width": 96, "color": "RGB", "pad_value": 114,
        "mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0],
    }  # fmt: skip
    assert document["postprocess"] == {
        "type": "yolov5", "anchors": [[[10.0, 13.0], [16.0, 30.5]]] * 3, "strides": [8, 16, 32],
        "confidence": 0.25, "iou": 0.45, "max_detections": 1000,
    }  # fmt: skip
    assert document["variants"][0]["path"] == "variants/cpu/model.tflite"
    assert document["variants"][0]["inputs"][0]["shape"] == [1, 64, 96, 3]


def test_what_may_be_left_out(detector: Manifest) -> None:
    embedder = embedding_manifest(dim=512)

    def minimal(document: dict[str, Any]) -> None:
        for key in ("labels", "variants", "source"):
            del document[key]

    assert parse_manifest(changed(embedder, minimal))[0] == embedder


def embedding_manifest(dim: int) -> Manifest:
    return Manifest(
        "osnet", "embed", "osnet", "fp32",
        (TensorInfo("images", (1, 3, 256, 128), "float32", "NCHW"),), (TensorInfo("features", (1, dim), "float32"),),
        Preprocess("stretch", 256, 128, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)), EmbeddingHead(dim),
    )  # fmt: skip


FAULTS: list[tuple[Change, str]] = [
    (lambda d: d.pop("inputs"), "manifest.json: the key 'inputs' is missing"),
    (lambda d: d.update(extra=1), 'manifest.json: the key "extra" is unknown'),
    (lambda d: d.update({"\x1b[2J": 1}), 'manifest.json: the key "\\u001b[2J" is unknown'),
    (lambda d: d.pop("format_version"), "manifest.json: the key 'format_version' is missing"),
    (lambda d: d.update(format_version=2), "manifest.json: format_version: format 2 needs a newer PyASC"),
    (lambda d: d.update(format_version=9, future=[]), "manifest.json: format_version: format 9 needs a newer PyASC"),
    (lambda d: d.update(format_version=0), "manifest.json: format_version: 0 is not in"),
    (lambda d: d.update(format_version="1"), 'manifest.json: format_version: "1" is not an integer'),
    (lambda d: d.update(format_version=True), "manifest.json: format_version: true is not an integer"),
    (lambda d: d.update(format_version=1.0), "manifest.json: format_version: 1.0 is not an integer"),
    (lambda d: d.update(name=None), "manifest.json: name: null is not a string"),
    (lambda d: d.update(name=""), "manifest.json: name: has 0 characters"),
    (lambda d: d.update(name="x" * 129), "manifest.json: name: has 129 characters"),
    (
        lambda d: d.update(name="a\x1b[31m"),
        'manifest.json: name: "a\\u001b[31m" has a character that cannot be printed',
    ),
    (lambda d: d.update(name="a\ud800"), 'manifest.json: name: "a\\ud800" has a character that cannot be printed'),
    (
        lambda d: d.update(name="a\u202egnp"),
        'manifest.json: name: "a\\u202egnp" has a character that cannot be printed',
    ),
    (lambda d: d.update(task="cook"), 'manifest.json: task: "cook" is none of detect, embed, classify'),
    (lambda d: d.update(task=["detect"]), "manifest.json: task: an array is none of"),
    (lambda d: d.update(task="embed"), "manifest.json: task: embed does not go with the post-processing yolov5"),
    (lambda d: d.update(template="../x"), 'manifest.json: template: "../x" does not match'),
    (lambda d: d.update(precision="fp64"), 'manifest.json: precision: "fp64" is none of'),
    (lambda d: d.update(inputs={}), "manifest.json: inputs: an object is not an array"),
    (lambda d: d.update(inputs=[]), "manifest.json: inputs: has 0 values"),
    (lambda d: d["inputs"].append(d["inputs"][0]), "manifest.json: inputs: two have the same name"),
    (lambda d: d["inputs"][0].pop("dtype"), "manifest.json: inputs[0]: the key 'dtype' is missing"),
    (lambda d: d["inputs"][0].update(dtype="object"), 'manifest.json: inputs[0].dtype: "object" is none of'),
    (lambda d: d["inputs"][0].update(layout="CHWN"), 'manifest.json: inputs[0].layout: "CHWN" is none of'),
    (
        lambda d: d["inputs"][0].update(shape=[1, 3, 64]),
        "manifest.json: inputs[0].layout: NCHW has 4 axes, the shape has 3",
    ),
    (lambda d: d["inputs"][0].update(shape=[1, 3, -64, 96]), "manifest.json: inputs[0].shape[2]: -64 is not in 1 to"),
    (lambda d: d["inputs"][0].update(shape=[0, 3, 64, 96]), "manifest.json: inputs[0].shape[0]: 0 is not in 1 to"),
    (lambda d: d["inputs"][0].update(shape=[1] * 9), "manifest.json: inputs[0].shape: has 9 values"),
    (
        lambda d: d["inputs"][0].update(shape=[65536] * 4),
        "manifest.json: inputs[0].shape: 18446744073709551616 elements",
    ),
    (
        lambda d: d["inputs"][0].update(shape=[1, 3, 64, "a"]),
        'manifest.json: inputs[0].shape[3]: "a" is not an integer',
    ),
    (
        lambda d: d["inputs"][0].update(shape=[1, 3, 96, 64]),
        "manifest.json: inputs[0]: shape [1, 3, 96, 64], layout NCHW does",
    ),
    (
        lambda d: d["inputs"][0].update(layout=""),
        "manifest.json: inputs[0]: shape [1, 3, 64, 96], layout none does not",
    ),
    (
        lambda d: d["inputs"][0].update(scale=1.0, zero_point=0),
        "manifest.json: inputs[0]: scale and zero_point go together",
    ),
    (
        lambda d: d["inputs"][0].update(dtype="int8", scale=1.0),
        "manifest.json: inputs[0]: scale and zero_point go together",
    ),
    (
        lambda d: d["inputs"][0].update(dtype="uint8", scale=0, zero_point=0),
        "manifest.json: inputs[0].scale: 0 is not in",
    ),
    (
        lambda d: d["inputs"][0].update(dtype="uint8", scale=1, zero_point=256),
        "manifest.json: inputs[0].zero_point: 256 is not in 0 to 255",
    ),
    (lambda d: d.update(outputs=d["outputs"][:2]), "manifest.json: postprocess.anchors: has 3 values for 2 outputs"),
    (
        lambda d: d["outputs"][1].update(shape=[1, 14, 3, 6]),
        "manifest.json: outputs[1]: shape [1, 14, 3, 6], layout NCHW is not",
    ),
    (lambda d: d["preprocess"].update(resize="crop"), 'manifest.json: preprocess.resize: "crop" is none of'),
    (lambda d: d["preprocess"].update(height=0), "manifest.json: preprocess.height: 0 is not in"),
    (lambda d: d["preprocess"].update(pad_value=256), "manifest.json: preprocess.pad_value: 256 is not in 0 to 255"),
    (lambda d: d["preprocess"].update(std=[1, 0, 1]), "manifest.json: preprocess.std[1]: 0 is not in"),
    (lambda d: d["preprocess"].update(std=[1, -1, 1]), "manifest.json: preprocess.std[1]: -1 is not in"),
    (lambda d: d["preprocess"].update(mean=[0, 0]), "manifest.json: preprocess.mean: has 2 values; there must be 3"),
    (lambda d: d["preprocess"].update(mean=[0, 0, "0"]), 'manifest.json: preprocess.mean[2]: "0" is not a number'),
    (lambda d: d["preprocess"].update(color="GRAY"), "manifest.json: preprocess.mean: has 3 values; there must be 1"),
    (lambda d: d.update(postprocess=[]), "manifest.json: postprocess: an array is not an object"),
    (lambda d: d["postprocess"].pop("type"), "manifest.json: postprocess: the key 'type' is missing"),
    (lambda d: d["postprocess"].update(type="ssd"), 'manifest.json: postprocess.type: "ssd" is none of yolov5'),
    (lambda d: d["postprocess"].update(type={}), "manifest.json: postprocess.type: an object is none of yolov5"),
    (lambda d: d["postprocess"]["strides"].pop(), "manifest.json: postprocess.strides: has 2 values for 3 outputs"),
    (lambda d: d["postprocess"].update(strides=[8, 0, 32]), "manifest.json: postprocess.strides[1]: 0 is not in"),
    (lambda d: d["postprocess"].update(strides=[8, 32, 16]), "manifest.json: outputs[1]: shape"),
    (lambda d: d["postprocess"]["anchors"].pop(), "manifest.json: postprocess.anchors: has 2 values for 3 outputs"),
    (lambda d: d["postprocess"]["anchors"][2].pop(), "manifest.json: outputs[2]: shape"),
    (
        lambda d: d["postprocess"]["anchors"][0].append([1, 2, 3]),
        "manifest.json: postprocess.anchors[0][2]: has 3 values",
    ),
    (
        lambda d: d["postprocess"]["anchors"][0][1].__setitem__(0, -4),
        "manifest.json: postprocess.anchors[0][1][0]: -4 is not in",
    ),
    (lambda d: d["postprocess"].update(confidence=1.5), "manifest.json: postprocess.confidence: 1.5 is not in 0 to 1"),
    (lambda d: d["postprocess"].update(iou=-0.1), "manifest.json: postprocess.iou: -0.1 is not in 0 to 1"),
    (lambda d: d["postprocess"].update(max_detections=0), "manifest.json: postprocess.max_detections: 0 is not in"),
    (lambda d: d["labels"].append("car"), "manifest.json: outputs[0]: shape"),
    (lambda d: d["labels"].append(1), "manifest.json: labels[2]: 1 is not a string"),
    (lambda d: d.update(labels=["a"] * 65537), "manifest.json: labels: has 65537 values"),
    (lambda d: d["variants"].append(d["variants"][0]), "manifest.json: variants: two have the same path"),
    (lambda d: d["variants"][0].update(target="CPU"), 'manifest.json: variants[0].target: "CPU" does not match'),
    (lambda d: d["variants"][0].update(target="hi3559"), "manifest.json: variants[0].path: "),
    (lambda d: d["variants"][0].update(path="/etc/passwd"), "manifest.json: variants[0].path: "),
    (lambda d: d["variants"][0].update(path="variants\\cpu\\a"), "manifest.json: variants[0].path: "),
    (lambda d: d["variants"][0].update(path="variants/cpu/../../a"), "manifest.json: variants[0].path: "),
    (
        lambda d: d["variants"][0]["inputs"][0].update(name="x"),
        "manifest.json: variants[0].inputs: does not have the names",
    ),
    (lambda d: d["variants"][0]["outputs"].reverse(), "manifest.json: variants[0].outputs: does not have the names"),
    (
        lambda d: d["variants"][0]["inputs"][0].update(shape=[1, 96, 64, 3]),
        "manifest.json: variants[0].inputs[0]: shape [1, 96, 64, 3] holds something else",
    ),
    (lambda d: d.update(source={"file": 1}), "manifest.json: source.file: 1 is not a string"),
    (lambda d: d.update(source={str(k): "" for k in range(65)}), "manifest.json: source: has 65 keys"),
    (lambda d: d.update(source={"a\nb": "x"}), 'manifest.json: source."a\\nb": "a\\nb" has a character'),
    (lambda d: d.update(source={"a\ud800": "x"}), 'manifest.json: source."a\\ud800": "a\\ud800" has a character'),
    (lambda d: d.update(source={"": "x"}), "manifest.json: source.: has 0 characters"),
    (lambda d: d.update(sha256=[]), "manifest.json: sha256: an array is not an object"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS, ids=[message[15:75] for _, message in FAULTS])
def test_a_fault_is_named_with_its_place(detector: Manifest, change: Change, message: str) -> None:
    parse_manifest(changed(detector, lambda document: None))
    assert refusal(changed(detector, change)).startswith(message)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not JSON"),
        (b"[]", "an array is not an object"),
        (b"null", "null is not an object"),
        (b"{", "is not JSON: .*line 1, column 2"),
        (b'{"a": 1,}', "is not JSON"),
        (b'\xef\xbb\xbf{"format_version": 1}', "is not JSON"),
        (b'{"name": "\xff"}', "is not UTF-8"),
        ('{"name": "a"}'.encode("utf-16"), "is not UTF-8"),
        (b'{"format_version": NaN}', "NaN is not a JSON number"),
        (b'{"format_version": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"format_version": 1, "format_version": 2}', 'the key "format_version" stands twice'),
        (b'{"format_version": 1, "x": {"y": 0, "y": 0}}', 'the key "y" stands twice'),
        (b'{"format_version": ' + b"9" * 100_000 + b"}", "a number has 100000 digits"),
        (b'{"format_version": 1e999}', "is not an integer"),
        # How deep is too deep depends on the version of Python; from 3.13 on the parser gets to the end of these.
        (b"[" * 9_000 + b"]" * 9_000, "(is nested too deeply|an array is not an object)"),
        (b'{"a":' * 9_000, "(is nested too deeply|is not JSON)"),
        (b"[" * 200_000, "more than 10000 brackets"),
        (b"[" + b"{}," * 200_000 + b"{}]", "more than 10000 brackets"),
        (b" " * (MAX_MANIFEST_BYTES + 1), "bytes are too many"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_sound_json(raw: bytes, message: str) -> None:
    with pytest.raises(ModelFormatError, match=f"^manifest.json: .*{message}"):
        parse_manifest(raw)


def test_a_key_that_stands_twice_among_very_many_is_found_at_once() -> None:
    # Comparing each with each would take minutes.
    keys = [f"{number:x}" for number in range(150_000)]
    raw = ("{" + ",".join(f'"{key}":1' for key in [*keys, keys[-1]]) + "}").encode()
    assert refusal(raw) == f'manifest.json: the key "{keys[-1]}" stands twice in one object'


def test_a_number_too_large_for_a_float_is_refused(detector: Manifest) -> None:
    raw = changed(detector, lambda d: None).replace(b'"iou": 0.45', b'"iou": 1e999')
    assert refusal(raw) == "manifest.json: postprocess.iou: inf is not in 0 to 1"


def test_an_output_of_another_length_than_the_head_says() -> None:
    wrong = dataclasses.replace(embedding_manifest(512), postprocess=EmbeddingHead(256))
    assert refusal(dump_manifest(wrong, hashes(wrong))).startswith("manifest.json: postprocess.dim: 256 is not the 512")


def test_a_classifier_has_a_value_for_each_label() -> None:
    embedder = embedding_manifest(512)
    right = dataclasses.replace(
        embedder, task="classify", postprocess=ClassificationHead(), labels=tuple(str(k) for k in range(512))
    )
    assert parse_manifest(dump_manifest(right, hashes(right)))[0] == right
    wrong = dataclasses.replace(right, labels=right.labels[:-1])
    assert refusal(dump_manifest(wrong, hashes(wrong))) == "manifest.json: outputs: 512 values for 511 labels"


def test_an_embedder_has_one_output() -> None:
    embedder = embedding_manifest(512)
    two = dataclasses.replace(embedder, outputs=(*embedder.outputs, TensorInfo("more", (1, 512), "float32")))
    assert refusal(dump_manifest(two, hashes(two))) == "manifest.json: outputs: embedding reads 1 output, there are 2"


def test_a_variant_may_have_another_batch() -> None:
    manifest = embedding_manifest(512)
    variant = Variant(
        "cpu", "tflite", "variants/cpu/batch8.tflite", "int8",
        (TensorInfo("images", (8, 256, 128, 3), "int8", "NHWC", 0.02, -3),),
        (TensorInfo("features", (8, 512), "int8", "", 0.1, 0),),
    )  # fmt: skip
    whole = dataclasses.replace(manifest, variants=(variant,))
    assert parse_manifest(dump_manifest(whole, hashes(whole)))[0] == whole


TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs", "Cf", "Zl", "Zp"]), min_size=1, max_size=20)
WORDS = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,10}", fullmatch=True)
UNIT = st.floats(0, 1)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Any sound manifest: all tasks, layouts, types and heads."""
    color = draw(st.sampled_from(["RGB", "BGR", "GRAY"]))
    channels = 1 if color == "GRAY" else 3
    strides = tuple(draw(st.lists(st.sampled_from([4, 8, 16, 32, 64]), min_size=1, max_size=4)))
    height, width = (draw(st.integers(1, 20)) * 64 for _ in range(2))
    labels = tuple(draw(st.lists(TEXT, max_size=6)))

    def tensor(name: str, sides: tuple[int, int, int]) -> TensorInfo:
        batch, (depth, rows, columns) = draw(st.integers(1, 4)), sides
        layout = draw(st.sampled_from(["NCHW", "NHWC"]))
        shape = (batch, depth, rows, columns) if layout == "NCHW" else (batch, rows, columns, depth)
        kind = draw(st.sampled_from(["float32", "float16", "int8", "uint8"]))
        if kind in ("int8", "uint8"):
            return TensorInfo(name, shape, kind, layout, draw(st.floats(1e-9, 1e3)), draw(st.integers(0, 127)))
        return TensorInfo(name, shape, kind, layout)

    task = draw(st.sampled_from(["detect", "embed", "classify"]))
    head: Any
    if task == "detect":
        side = st.floats(0.5, 1e4)
        anchors = tuple(tuple(draw(st.lists(st.tuples(side, side), min_size=1, max_size=4))) for _ in strides)
        head = Yolov5Head(anchors, strides, draw(UNIT), draw(UNIT), draw(st.integers(1, 5000)))
        grids = [
            (len(level) * (5 + len(labels)), height // s, width // s) for level, s in zip(anchors, strides, strict=True)
        ]
    elif task == "embed":
        grids = [(draw(st.integers(1, 2048)), 1, 1)]
        head = EmbeddingHead(grids[0][0], draw(st.sampled_from(["l2", "none"])))
    else:
        grids = [(len(labels) or 9, 1, 1)]
        head = ClassificationHead(draw(st.sampled_from(["softmax", "sigmoid", "none"])))

    def tensors() -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
        outputs = tuple(tensor(f"out {k}", grid) for k, grid in enumerate(grids))
        return (tensor("images", (channels, height, width)),), outputs

    targets = draw(st.lists(WORDS, max_size=3, unique=True))
    variants = tuple(Variant(t, draw(WORDS), f"variants/{t}/m.bin", "int8", *tensors()) for t in targets)
    numbers = st.tuples(*[st.floats(1e-3, 10)] * channels)
    resize = draw(st.sampled_from(["letterbox", "stretch"]))
    preprocess = Preprocess(resize, height, width, color, draw(st.integers(0, 255)), draw(numbers), draw(numbers))
    precision = draw(st.sampled_from(["fp32", "fp16", "int8"]))
    source = draw(st.dictionaries(TEXT, TEXT, max_size=3))
    return Manifest(
        draw(TEXT), task, draw(WORDS), precision, *tensors(), preprocess, head, labels, variants, source
    )  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(manifests())
def test_any_manifest_comes_back(manifest: Manifest) -> None:
    raw = dump_manifest(manifest, hashes(manifest))
    again, sha256 = parse_manifest(raw)
    assert again == manifest
    assert sha256 == hashes(manifest)
    assert dump_manifest(again, sha256) == raw


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=8,
)


@settings(max_examples=250, deadline=None)
@given(manifest=manifests(), junk=JSON, data=st.data())
def test_any_value_replaced_is_refused_or_read_as_it_stands(manifest: Manifest, junk: Any, data: st.DataObject) -> None:
    """Whatever stands anywhere in the document: a sound manifest that says the same, or ModelFormatError, nothing else."""
    document = json.loads(dump_manifest(manifest, hashes(manifest)))
    node = document
    while True:
        key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
        if isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans()):
            node = node[key]
            continue
        node[key] = junk
        break
    try:
        again, sha256 = parse_manifest(json.dumps(document).encode())
    except ModelFormatError as error:
        refused = str(error)
    else:
        refused = ""
        assert json.loads(dump_manifest(again, sha256)) == document
    assert not refused or (refused.startswith("manifest.json: ") and refused.isprintable())
