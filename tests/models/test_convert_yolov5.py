"""Converted detectors against the reference: its raw outputs, its ONNX export, and what it finds in the demo clip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest

from pyasc.errors import ConversionError, ModelFormatError
from pyasc.models.asc.manifest import Yolov5Head
from pyasc.models.convert import Conversion, prepare

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "demo_detections.json"
DETECTORS = [
    "yolov5n",
    "yolov5n_v6.0",
    "layout_v1.0_legacy_fp32_random_nc3",
    "layout_v3.0_bottleneckcsp_hardswish_random_nc5",
    "layout_v5.0_focus_spp_coco_nc80",
    "v6.0_face_nc1",
    "v6.1_person_nc1_width0.20",
    "v7.0_basketball_nc5",
    "v7.0_duckie_nc4",
]


def letterbox(image: Any, size: int = 640) -> tuple[Any, float, int, int]:
    height, width = image.shape[:2]
    ratio = min(size / height, size / width)
    wide, high = round(width * ratio), round(height * ratio)
    if (wide, high) != (width, height):
        image = cv2.resize(image, (wide, high), interpolation=cv2.INTER_LINEAR)
    left, top = round((size - wide) / 2 - 0.1), round((size - high) / 2 - 0.1)
    canvas = np.full((size, size, 3), 114, np.uint8)
    canvas[top : top + high, left : left + wide] = image
    return canvas, ratio, left, top


def network_input(canvas: Any) -> Any:
    return np.ascontiguousarray(canvas[:, :, ::-1].transpose(2, 0, 1)[None], np.float32) / 255


def run(graph: bytes, tensor: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"images": tensor}))


def decode(levels: list[Any], head: Yolov5Head, order: list[int] | None = None) -> Any:
    """Rows of x, y, w, h, objectness, classes, in the order of the reference's output."""
    rows = []
    for k in order or range(len(levels)):
        batch, _, high, wide = levels[k].shape
        anchors = np.array(head.anchors[k])
        cells = levels[k].astype(np.float64).reshape(batch, len(anchors), -1, high, wide).transpose(0, 1, 3, 4, 2)
        cells = 1 / (1 + np.exp(-cells))
        grid = np.stack(np.meshgrid(np.arange(wide), np.arange(high)), -1)
        cells[..., :2] = (cells[..., :2] * 2 - 0.5 + grid) * head.strides[k]
        cells[..., 2:4] = (cells[..., 2:4] * 2) ** 2 * anchors[None, :, None, None]
        rows.append(cells.reshape(batch, -1, cells.shape[-1]))
    return np.concatenate(rows, 1)


def expected_of(shared: Path, stem: str) -> tuple[Path, dict[str, Any]]:
    path = shared / ("weights" if stem.startswith("yolov5n") else "checkpoints") / f"{stem}.pt"
    return path, json.loads((shared / "expected" / f"ckpt_{stem}.json").read_text())


def head_of(made: Conversion) -> Yolov5Head:
    assert isinstance(made.manifest.postprocess, Yolov5Head)
    return made.manifest.postprocess


@pytest.mark.parametrize("stem", DETECTORS)
def test_raw_outputs_are_those_of_the_reference(shared: Path, stem: str) -> None:
    path, expected = expected_of(shared, stem)
    made = prepare(path)
    manifest, head = made.manifest, head_of(made)
    assert list(manifest.labels) == expected["names"]
    assert sorted(head.strides) == sorted(expected["stride"])
    for reference in expected["runs"]:
        canvas = letterbox(cv2.imread(str(shared / "images" / reference["image"])))[0]
        order = [head.strides.index(int(stride)) for stride in expected["stride"]]
        found = decode(run(made.graph, network_input(canvas)), head, order)
        assert list(found.shape) == reference["shape"]
        assert found.sum() == pytest.approx(reference["sum"], rel=2e-6)
        assert np.abs(found).mean() == pytest.approx(reference["abs_mean"], rel=2e-6)
        for row in reference["top20_by_objectness"]:
            check_row(found, row)


def check_row(found: Any, row: Any) -> None:
    index, values = row["row"], row["values"]
    # Pixels to 0.01, probabilities to 1e-4: float32 sums in another order.
    np.testing.assert_allclose(found[0, index, :4], values[:4], atol=0.01, rtol=1e-4)
    np.testing.assert_allclose(found[0, index, 4 : len(values)], values[4:], atol=1e-4)


def test_the_same_as_the_references_own_export(shared: Path, demo_dir: Path) -> None:
    made = prepare(demo_dir / "yolov5n.pt")
    image = np.random.default_rng(5).random((1, 3, 640, 640), np.float32)
    session = onnxruntime.InferenceSession(shared / "weights" / "yolov5n_640.onnx", providers=["CPUExecutionProvider"])
    wanted = session.run(None, {"images": image})[0]
    found = decode(run(made.graph, image), head_of(made))
    np.testing.assert_allclose(found[..., 4:], wanted[..., 4:], atol=1e-4)
    np.testing.assert_allclose(found[..., :4], wanted[..., :4], atol=1e-4 * 640)


@pytest.mark.parametrize(("precision", "iou", "score"), [("fp32", 0.99, 0.005), ("fp16", 0.97, 0.02)])
def test_the_demo_clip_gives_the_references_detections(
    demo_dir: Path, precision: str, iou: float, score: float
) -> None:
    golden = json.loads(GOLDEN.read_text())
    made = prepare(demo_dir / "yolov5n.pt", precision=precision)
    session = onnxruntime.InferenceSession(made.graph, providers=["CPUExecutionProvider"])
    for image, wanted in zip(clip_frames(demo_dir, golden["frames"]), golden["frames"].values(), strict=True):
        canvas, ratio, left, top = letterbox(image)
        rows = decode(session.run(None, {"images": network_input(canvas)}), head_of(made))[0]
        assert_same_boxes(rows, wanted, (ratio, left, top), iou, score)


def clip_frames(demo_dir: Path, numbers: Any) -> list[Any]:
    clip = cv2.VideoCapture(str(demo_dir / "one-by-one-person.mp4"))
    frames = [clip.read()[1] for _ in range(max(map(int, numbers)) + 1)]
    clip.release()
    return [frames[int(number)] for number in numbers]


def assert_same_boxes(rows: Any, wanted: Any, placed: tuple[float, int, int], iou: float, score: float) -> None:
    """Each golden box has its best row of the same class where it is, and no row is sure of anything else."""
    ratio, left, top = placed
    scores = rows[:, 5:] * rows[:, 4:5]
    corners = np.c_[rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2]
    corners = ((corners - [left, top, left, top]) / ratio).clip(0, [768, 432, 768, 432])
    sure = (scores.max(1) > 0.25 + score) & (rows[:, 4] > 0.25 + score)
    explained = np.zeros(len(rows), bool)
    for *box, best, kind in wanted:
        size = np.minimum(corners[:, 2:], box[2:]) - np.maximum(corners[:, :2], box[:2])
        inner = size.clip(0).prod(1)
        overlap = inner / ((corners[:, 2:] - corners[:, :2]).prod(1) + np.prod(np.subtract(box[2:], box[:2])) - inner)
        near = (overlap >= 0.45) & (scores.argmax(1) == kind)
        top_row = int(np.where(near, scores.max(1), -1).argmax())
        assert overlap[top_row] >= iou
        assert scores[top_row].max() == pytest.approx(best, abs=score)
        explained |= near
    assert not (sure & ~explained).any()


def test_fp16_halves_the_file_and_is_what_it_says(demo_dir: Path) -> None:
    full, half = (prepare(demo_dir / "yolov5n.pt", precision=precision) for precision in ("fp32", "fp16"))
    assert 0.48 < len(half.graph) / len(full.graph) < 0.52
    assert full.variants.keys() == half.variants.keys() == {"variants/cpu/model.tflite"}
    for path, data in half.variants.items():
        assert 0.48 < len(data) / len(full.variants[path]) < 0.53
    assert [made.manifest.precision for made in (full, half)] == ["fp32", "fp16"]
    assert half.manifest.variants[0].precision == "fp16"
    stored = {t.data_type for t in onnx.load_from_string(half.graph).graph.initializer if len(t.dims) == 4}
    assert stored == {onnx.TensorProto.FLOAT16}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_opencv_reads_the_graph(demo_dir: Path, precision: str) -> None:
    made = prepare(demo_dir / "yolov5n.pt", precision=precision, image_size=160)
    image = np.random.default_rng(5).random((1, 3, 160, 160), np.float32)
    net = cv2.dnn.readNetFromONNX(np.frombuffer(made.graph, np.uint8))
    net.setInput(image)
    for found, wanted in zip(net.forward(["p3", "p4", "p5"]), run(made.graph, image), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_the_variant_and_the_manifest_fit(demo_dir: Path) -> None:
    manifest = prepare(demo_dir / "yolov5n.pt").manifest
    assert [(t.name, t.shape, t.layout) for t in manifest.outputs] == [
        (name, (1, 255, side, side), "NCHW") for name, side in (("p3", 80), ("p4", 40), ("p5", 20))
    ]
    (variant,) = manifest.variants
    assert (variant.target, variant.format) == ("cpu", "tflite")
    assert [(t.name, t.shape, t.layout) for t in variant.outputs] == [
        (name, (1, side, side, 255), "NHWC") for name, side in (("p3", 80), ("p4", 40), ("p5", 20))
    ]
    head = manifest.postprocess
    assert isinstance(head, Yolov5Head)
    assert head.strides == (8, 16, 32)
    assert head.anchors[0] == ((10, 13), (16, 30), (33, 23))
    assert head.anchors[2] == ((116, 90), (156, 198), (373, 326))
    assert manifest.labels[0] == "person"
    assert "AGPL" in manifest.source["licence"]


@pytest.mark.parametrize(("size", "batch"), [((320, 640), 1), ((96, 64), 2), ((32, 32), 1)])
def test_other_sizes_and_batches(demo_dir: Path, size: tuple[int, int], batch: int) -> None:
    made = prepare(demo_dir / "yolov5n.pt", image_size=size, batch=batch)
    assert (made.manifest.preprocess.height, made.manifest.preprocess.width) == size
    levels = run(made.graph, np.zeros((batch, 3, *size), np.float32))
    assert [level.shape for level in levels] == [
        (batch, 255, size[0] // stride, size[1] // stride) for stride in (8, 16, 32)
    ]


@pytest.mark.parametrize(
    ("stem", "kind", "message"),
    [
        ("v7.0_cls_pose_nc8", ConversionError, r"is a models\.yolo\.ClassificationModel; of YOLOv5 only detectors"),
        ("yolov5face_plate_landmarks_nc2", ConversionError, r"layer 0 \(models\.common\.StemBlock\): .* not a layer"),
        (
            "yolov5lite_s_coco_nc80",
            ConversionError,
            r"layer 0 \(models\.common\.conv_bn_relu_maxpool\): .* not a layer",
        ),
        (
            "ultralytics8_leyolo_nano_nc80",
            ConversionError,
            r"is a ultralytics\..*DetectionModel of ultralytics 8 or later",
        ),
        ("state_dict_only_shufflenet", ConversionError, "is a checkpoint without a network"),
        ("torchscript_lenet5", ModelFormatError, "is a TorchScript archive"),
        ("bad_truncated_1MiB", ModelFormatError, "is a ZIP archive that is cut off or damaged"),
        ("bad_git_lfs_pointer", ModelFormatError, "is a Git LFS pointer, not the checkpoint; run git lfs pull"),
    ],
)
def test_refused_reference_files(shared: Path, stem: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=rf"{stem}\.pt: {message}"):
        prepare(shared / "checkpoints" / f"{stem}.pt")
