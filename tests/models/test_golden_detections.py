"""YOLOv5n from checkpoint to boxes, against what the reference programs found in the same pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

import pyasc
from pyasc.models.convert import convert
from pyasc.models.model import DetectionModel
from pyasc.types import Detections

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "demo_detections.json"

# What is promised: least overlap of a box with the reference's, largest difference of its score.
PROMISED = {"fp32": (0.99, 0.005), "fp16": (0.97, 0.02)}


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def detector(
    request: pytest.FixtureRequest, yolov5n_asc: Path, demo_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DetectionModel]:
    path = yolov5n_asc
    if request.param == "fp16":
        path = convert(demo_dir / "yolov5n.pt", tmp_path_factory.mktemp("fp16") / "half.asc", precision="fp16")
    with pyasc.load_model(path, device="cpu", threads=2) as model:
        assert isinstance(model, DetectionModel)
        assert model.executable.precision == request.param
        yield model


def overlaps(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """IoU of each of (N, 4) with each of (M, 4), in float64."""
    size = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    common = size.clip(0).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (a, b)]
    return np.asarray(common / (areas[0][:, None] + areas[1][None] - common))


def compare(found: Detections, expected: NDArray[np.float64], precision: str) -> None:
    """Same count and classes; each box paired with the reference's nearest of its class.

    Args:
        found: highest score first.
        expected: (N, 6) x1, y1, x2, y2, score, class.
        precision: of the weights.
    """
    least_overlap, score_tolerance = PROMISED[precision]
    assert sorted(found.class_id) == sorted(expected[:, 5])
    assert (np.diff(found.score) <= 0).all()
    if not len(found):
        return
    same = found.class_id[:, None] == expected[None, :, 5]
    pairs = np.where(same, overlaps(found.xyxy.astype(np.float64), expected[:, :4]), -1)
    partner = pairs.argmax(axis=1)
    assert len(set(partner)) == len(found)
    assert pairs.max(axis=1).min() >= least_overlap
    np.testing.assert_allclose(found.score, expected[partner, 4], atol=score_tolerance)


def test_frames_of_the_demo_clip(detector: DetectionModel, demo_dir: Path) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    clip = cv2.VideoCapture(str(demo_dir / "one-by-one-person.mp4"))
    compared = 0
    for number in range(max(map(int, golden["frames"])) + 1):
        if str(number) not in golden["frames"]:
            assert clip.grab()
            continue
        good, image = clip.read()
        assert good
        expected = np.array(golden["frames"][str(number)]).reshape(-1, 6)
        compare(detector(image, confidence=0.25, iou=0.45), expected, detector.executable.precision)
        compared += len(expected)
    clip.release()
    assert compared > 8


@pytest.mark.parametrize("name", ["bus", "zidane"])
def test_reference_pictures(detector: DetectionModel, shared: Path, name: str) -> None:
    rows = json.loads((shared / "expected" / f"yolov5n_{name}.json").read_text())["detections"]
    expected = np.array([[*row["box_xyxy"], row["score"], row["cls"]] for row in rows])
    found = detector(shared / "images" / f"{name}.jpg")
    compare(found, expected, detector.executable.precision)
    assert sorted(found.label) == sorted(row["name"] for row in rows)


@pytest.mark.parametrize(
    "checkpoint",
    [
        "checkpoints/v6.0_face_nc1.pt",
        "checkpoints/v6.1_person_nc1_width0.20.pt",
        "checkpoints/v7.0_basketball_nc5.pt",
        "checkpoints/layout_v5.0_focus_spp_coco_nc80.pt",
        "weights/yolov5n_v6.0.pt",
    ],
)
def test_other_checkpoints(shared: Path, tmp_path: Path, checkpoint: str) -> None:
    """Other classes, widths and layouts, from their own checkpoints; the reference gives these boxes in the network's pixels."""
    source = shared / checkpoint
    golden = json.loads((shared / "expected" / f"ckpt_{source.stem}.json").read_text())
    with pyasc.load_model(convert(source, tmp_path / "x.asc"), device="cpu", threads=2) as model:
        compared = 0
        for run in golden["runs"]:
            rows = run["nms_conf0.25_iou0.45"]
            expected = np.array([[*row["box_xyxy_network"], row["score"], row["cls"]] for row in rows]).reshape(-1, 6)
            picture = shared / "images" / run["image"]
            _, geometry = model.preprocess(picture)
            expected[:, :4] = geometry.to_source(expected[:, :4].astype(np.float32))
            compare(model(picture), expected, "fp32")
            compared += len(expected)
        assert compared >= 3


def test_coco_pictures(detector: DetectionModel, shared: Path) -> None:
    """The settings of the reference's evaluation; every detection over 0.25 is compared, and the mAP."""
    golden = json.loads((shared / "expected" / "yolov5n_coco_val2017_40.json").read_text())
    folder = shared / "images" / "coco_val2017"
    precision = detector.executable.precision
    hits, scores, classes, truths = [], [], [], []
    for path in sorted(folder.rglob("*.jpg")):
        image = cv2.imread(str(path))
        assert image is not None
        found = detector(image, 0.001, 0.6, max_detections=300, multi_label=True)
        (labels,) = folder.rglob(f"{path.stem}.txt")
        truth = _truth(labels, image.shape[1], image.shape[0])
        hits.append(_hits(found, truth))
        scores.append(found.score)
        classes.append(found.class_id)
        truths.append(truth[:, 4])
        if precision == "fp32":
            expected = np.array(golden["detections_conf_over_0_25"]["images"][path.name]).reshape(-1, 6)
            compare(found[found.score > 0.25], expected, precision)
    assert len(truths) == 40
    table = _average_precision(
        np.concatenate(hits), np.concatenate(scores), np.concatenate(classes), np.concatenate(truths)
    )
    expected_map = golden["mAP_40_images_in_this_folder"]
    # fp32: a candidate at the threshold of 0.001 may come or go. fp16: weights of 11 bits.
    tolerance = 0.0005 if precision == "fp32" else 0.005
    assert len(table) == expected_map["n_classes"]
    assert table[:, 0].mean() == pytest.approx(expected_map["mAP50"], abs=tolerance)
    assert table.mean() == pytest.approx(expected_map["mAP50_95"], abs=tolerance)
    assert table[0, 0] == pytest.approx(expected_map["person_AP50"], abs=tolerance)


def _truth(path: Path, width: int, height: int) -> NDArray[np.float64]:
    """(N, 5) x1, y1, x2, y2 in pixels, class, from lines of class, centre and size in 0..1."""
    rows = np.loadtxt(path, ndmin=2)
    half = rows[:, 3:] / 2
    corners = np.hstack([rows[:, 1:3] - half, rows[:, 1:3] + half]) * [width, height, width, height]
    return np.hstack([corners, rows[:, :1]])


def _hits(found: Detections, truth: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(N, 10): whether a detection counts as right at IoU 0.5, 0.55 … 0.95, by the rule of YOLOv5's own evaluation.

    A detection belongs to the object that it overlaps most; of the detections of an object that which overlaps it most is right,
    whatever its score. COCO's own rule goes by score and gives 0.50 instead of 0.444 on these detections.
    """
    hits = np.zeros((len(found), 10), bool)
    iou = overlaps(truth[:, :4], found.xyxy.astype(np.float64))
    iou[truth[:, 4:5] != found.class_id[None]] = 0
    for level, least in enumerate(np.linspace(0.5, 0.95, 10)):
        if not iou.size:
            continue
        owner = iou.argmax(axis=0)
        own = iou[owner, np.arange(len(found))]
        for number in range(len(truth)):
            (mine,) = np.nonzero((owner == number) & (own >= least))
            if len(mine):
                hits[mine[own[mine].argmax()], level] = True
    return hits


def _average_precision(
    hits: NDArray[np.bool_], scores: NDArray[Any], classes: NDArray[Any], truths: NDArray[Any]
) -> NDArray[np.float64]:
    """(classes that occur, 10): area below precision over recall, at 101 points, as YOLOv5's evaluation."""
    order = np.argsort(-scores, kind="stable")
    hits, classes = hits[order], classes[order]
    points = np.linspace(0, 1, 101)
    table = []
    for number in np.unique(truths):
        right = hits[classes == number].cumsum(axis=0)
        count = np.arange(1, len(right) + 1)
        row = []
        for column in right.T:
            recall = np.r_[0, column / (truths == number).sum(), 1]
            precision = np.r_[1, column / count, 0]
            envelope = np.maximum.accumulate(precision[::-1])[::-1]
            values = np.interp(points, recall, envelope)
            row.append(float(((values[1:] + values[:-1]) / 2).sum() / 100) if len(right) else 0.0)
        table.append(row)
    return np.array(table)
