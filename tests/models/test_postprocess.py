"""From a network's outputs to boxes: against the reference's own decoding, a slow one written apart, and OpenCV's suppression."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyasc.errors import ModelFormatError
from pyasc.hal.base import TensorInfo
from pyasc.models.asc.manifest import Yolov5Head
from pyasc.models.nms import nms
from pyasc.models.postprocess import Boxes, Thresholds, Yolov5Decoder, embeddings, probabilities

ANCHORS = (((10.0, 13.0), (16.0, 30.0), (33.0, 23.0)), ((30.0, 61.0), (62.0, 45.0), (59.0, 119.0)))
HEAD = Yolov5Head(ANCHORS, (8, 16))
CLASSES = 4
SIDES = (6, 8), (3, 4)
ALL = Thresholds(confidence=0.0, iou=1.0, max_detections=100_000)


def tensors(layout: str = "NCHW", dtype: str = "float32", batch: int = 1, **quantised: Any) -> list[TensorInfo]:
    shapes = [{"N": batch, "C": 3 * (5 + CLASSES), "H": h, "W": w} for h, w in SIDES]
    return [
        TensorInfo(f"o{i}", tuple(sides[axis] for axis in layout), dtype, layout, **quantised)
        for i, sides in enumerate(shapes)
    ]


def logits(seed: int = 0, shift: float = -1.0) -> list[NDArray[np.float32]]:
    """NCHW, of the size that a trained head gives."""
    random = np.random.default_rng(seed)
    return [random.normal(shift, 2, t.shape).astype(np.float32) for t in tensors()]


def laid_out(outputs: list[NDArray[Any]], layout: str) -> list[NDArray[Any]]:
    return [np.ascontiguousarray(o.transpose(0, 2, 3, 1)) if layout == "NHWC" else o for o in outputs]


def decoder(layout: str = "NCHW", **other: Any) -> Yolov5Decoder:
    return Yolov5Decoder(HEAD, tensors(layout, **other), CLASSES)


def slow_decode(outputs: list[NDArray[Any]]) -> list[tuple[list[float], float, list[float]]]:
    """(xyxy, objectness, class probabilities) of every cell and anchor, number by number."""

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-float(x)))

    rows = []
    for output, stride, anchors in zip(outputs, HEAD.strides, ANCHORS, strict=True):
        for a, (anchor_width, anchor_height) in enumerate(anchors):
            for y in range(output.shape[2]):
                for x in range(output.shape[3]):
                    v = [sigmoid(value) for value in output[0, a * (5 + CLASSES) : (a + 1) * (5 + CLASSES), y, x]]
                    cx, cy = (2 * v[0] - 0.5 + x) * stride, (2 * v[1] - 0.5 + y) * stride
                    w, h = (2 * v[2]) ** 2 * anchor_width, (2 * v[3]) ** 2 * anchor_height
                    rows.append(([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], v[4], v[5:]))
    return rows


def expected_boxes(outputs: list[NDArray[Any]], confidence: float, multi_label: bool = False) -> list[list[float]]:
    """x1, y1, x2, y2, score, class; the highest score first, nothing suppressed."""
    rows = []
    for xyxy, objectness, classes in slow_decode(outputs):
        numbers = range(CLASSES) if multi_label else [max(range(CLASSES), key=classes.__getitem__)]
        rows += [[*xyxy, objectness * classes[c], c] for c in numbers if objectness * classes[c] > confidence]
    return sorted(rows, key=lambda row: -row[4])


def as_rows(boxes: Boxes) -> NDArray[np.float64]:
    return np.column_stack([boxes.xyxy, boxes.score, boxes.class_id]).astype(np.float64)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("confidence", [0.0, 0.001, 0.1, 0.25, 0.6])
def test_decoding_agrees_with_the_formulas(layout: str, multi_label: bool, confidence: float) -> None:
    outputs = logits()
    thresholds = Thresholds(confidence, 1.0, 100_000, multi_label=multi_label)
    found = as_rows(decoder(layout)(laid_out(outputs, layout), thresholds))
    np.testing.assert_allclose(found, expected_boxes(outputs, confidence, multi_label), rtol=1e-4, atol=1e-4)
    assert len(found) > 0


def test_decoding_agrees_with_the_reference_export(shared: Path) -> None:
    """The reference's own ONNX file has the decoding inside; its heads are read beside it."""
    import onnx
    import onnxruntime

    from pyasc.models.image import read_image
    from pyasc.models.preprocess import letterbox

    model = onnx.load(str(shared / "weights" / "yolov5n_640.onnx"))
    names = [f"/model.24/m.{level}/Conv_output_0" for level in range(3)]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    picture, _ = letterbox(read_image(shared / "images" / "bus.jpg"), 640, 640)
    images = np.ascontiguousarray(picture[None, :, :, ::-1].transpose(0, 3, 1, 2)) / np.float32(255)
    decoded, *heads = session.run(["output0", *names], {"images": images})
    sides = ((10, 13), (16, 30), (33, 23)), ((30, 61), (62, 45), (59, 119)), ((116, 90), (156, 198), (373, 326))
    infos = [TensorInfo(name, head.shape, "float32", "NCHW") for name, head in zip(names, heads, strict=True)]
    found = Yolov5Decoder(Yolov5Head(sides, (8, 16, 32)), infos, 80)(heads, ALL)

    rows = decoded[0]
    scores = rows[:, 5:] * rows[:, 4:5]
    order = np.argsort(-scores.max(axis=1), kind="stable")
    best = rows[order]
    xyxy = np.c_[best[:, :2] - best[:, 2:4] / 2, best[:, :2] + best[:, 2:4] / 2]
    assert len(found.score) == 25200
    np.testing.assert_allclose(found.score, scores.max(axis=1)[order], rtol=1e-4, atol=1e-7)
    # The order of scores that differ by rounding alone is not compared.
    clear = found.score > 0.01
    np.testing.assert_allclose(found.xyxy[clear], xyxy[clear], rtol=1e-4, atol=1e-3)
    assert np.array_equal(found.class_id[clear], scores[order].argmax(axis=1)[clear])
    assert clear.sum() > 50


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("dtype", "zero_point"), [("int8", 13), ("uint8", 140)])
def test_quantised_outputs_are_read_as_the_numbers_they_stand_for(layout: str, dtype: str, zero_point: int) -> None:
    scale = 0.1
    limits = np.iinfo(dtype)
    stored = [np.clip(np.rint(o / scale) + zero_point, limits.min, limits.max).astype(dtype) for o in logits()]
    real = [(s.astype(np.float64) - zero_point) * scale for s in stored]
    decode = decoder(layout, dtype=dtype, scale=scale, zero_point=zero_point)
    found = decode(laid_out(stored, layout), Thresholds(0.2, 1.0, 1000))
    expected = np.array(expected_boxes(real, 0.2))
    np.testing.assert_allclose(found.score, expected[:, 4], rtol=1e-4)
    # Rounded values tie: equal scores may come in any order.
    np.testing.assert_allclose(np.sort(found.xyxy, axis=0), np.sort(expected[:, :4], axis=0), rtol=1e-4, atol=1e-3)


def test_float16_outputs() -> None:
    half = [o.astype(np.float16) for o in logits()]
    found = as_rows(decoder(dtype="float16")(half, Thresholds(0.2, 1.0, 1000)))
    np.testing.assert_allclose(found, expected_boxes([h.astype(float) for h in half], 0.2), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_rows_of_a_batch(layout: str) -> None:
    both = [np.concatenate(pair) for pair in zip(logits(1), logits(2), strict=True)]
    decode = decoder(layout, batch=2)
    for row, seed in enumerate((1, 2)):
        found = decode(laid_out(both, layout), Thresholds(0.2, 1.0, 1000), row)
        np.testing.assert_allclose(as_rows(found), expected_boxes(logits(seed), 0.2), rtol=1e-4, atol=1e-4)


def test_score_has_to_be_above_the_threshold_exactly() -> None:
    outputs = [np.full(t.shape, -50, np.float32) for t in tensors()]
    outputs[0][0, 4:6, 2, 3] = 0, 200  # objectness 0.5, class 0 for certain
    decode = decoder()
    assert len(decode(outputs, Thresholds(0.5, 0.5, 10)).score) == 0
    found = decode(outputs, Thresholds(math.nextafter(0.5, 0), 0.5, 10))
    assert found.score.tolist() == [0.5]
    assert found.class_id.tolist() == [0]
    assert len(decode(outputs, Thresholds(1.0, 0.5, 10)).score) == 0


def test_only_the_wanted_classes() -> None:
    outputs = logits()
    for multi_label in (False, True):
        wanted = decoder()(outputs, Thresholds(0.1, 1.0, 1000, (1, 3), multi_label))
        expected = [row for row in expected_boxes(outputs, 0.1, multi_label) if row[5] in (1, 3)]
        np.testing.assert_allclose(as_rows(wanted), expected, rtol=1e-4, atol=1e-4)
    assert len(decoder()(outputs, Thresholds(0.1, 1.0, 1000, ())).score) == 0


def test_most_detections() -> None:
    outputs = logits()
    every = as_rows(decoder()(outputs, Thresholds(0.1, 0.45, 1000)))
    few = as_rows(decoder()(outputs, Thresholds(0.1, 0.45, 7)))
    assert len(every) > 7
    assert np.array_equal(few, every[:7])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("channel", [0, 2, 4, 5, 8])
def test_rows_with_values_that_are_not_finite_are_dropped_and_counted(layout: str, value: float, channel: int) -> None:
    outputs = logits(shift=3.0)
    clean = as_rows(decoder()(outputs, Thresholds(0.01, 1.0, 1000)))
    gone = outputs[1][0, 9 + channel, 1, 2], outputs[0][0, channel, 4, 4]
    assert all(np.isfinite(gone))
    for output, anchor, y, x in ((outputs[1], 1, 1, 2), (outputs[0], 0, 4, 4)):
        output[0, 9 * anchor + channel, y, x] = value
    found = decoder(layout)(laid_out(outputs, layout), Thresholds(0.01, 1.0, 1000))
    assert found.dropped == 2
    assert len(found.score) == len(clean) - 2
    assert np.isfinite(as_rows(found)).all()


def test_nothing_but_nan_is_no_detection() -> None:
    outputs = [np.full(t.shape, np.nan, np.float32) for t in tensors()]
    found = decoder()(outputs, ALL)
    assert found.xyxy.shape == (0, 4)
    assert found.dropped == sum(3 * h * w for h, w in SIDES)


@pytest.mark.parametrize("value", [-3e38, 3e38])
def test_largest_values_stay_finite(value: float) -> None:
    outputs = [np.full(t.shape, value, np.float32) for t in tensors()]
    found = decoder()(outputs, Thresholds(0.0, 1.0, 1000))
    assert np.isfinite(as_rows(found)).all()
    assert len(found.score) == (0 if value < 0 else sum(3 * h * w for h, w in SIDES))


def test_candidates_are_bounded_to_the_best() -> None:
    """As the reference: no more than 30000 of a picture, those of the highest score, whatever the threshold lets through."""
    info = TensorInfo("o", (1, 3 * 85, 40, 40), "float32", "NCHW")
    outputs = [np.random.default_rng(0).normal(0, 2, info.shape).astype(np.float32)]
    decode = Yolov5Decoder(Yolov5Head(ANCHORS[:1], (8,)), [info], 80)
    found = decode(outputs, Thresholds(0.0, 1.0, 1_000_000, multi_label=True))
    grid = 1 / (1 + np.exp(-outputs[0].reshape(3, 85, -1).astype(np.float64)))
    scores = np.sort((grid[:, 5:] * grid[:, 4:5]).ravel())[::-1]
    assert len(found.score) == 30_000 < len(scores)
    np.testing.assert_allclose(found.score, scores[:30_000], rtol=1e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((-0.1, 0.5, 10), "confidence"),
        ((1.1, 0.5, 10), "confidence"),
        ((math.nan, 0.5, 10), "confidence"),
        ((0.5, -1, 10), "iou"),
        ((0.5, 2, 10), "iou"),
        ((0.5, math.nan, 10), "iou"),
        ((0.5, 0.5, 0), "max_detections"),
    ],
)
def test_thresholds_out_of_range(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Thresholds(*values)


@pytest.mark.parametrize(
    ("values", "message"), [((0.5, 0.5, 2.5), "max_detections: 2.5"), (("0.5", 0.5, 1), "confidence: '0.5'")]
)
def test_thresholds_that_are_no_numbers(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Thresholds(*values)
    assert Thresholds(np.float32(0.5), 1, np.int64(3)).max_detections == 3  # type: ignore[arg-type]


def test_tables_that_do_not_fit_the_head() -> None:
    with pytest.raises(ModelFormatError, match="channels"):
        Yolov5Decoder(HEAD, tensors(), CLASSES + 1)
    with pytest.raises(ModelFormatError, match="no classes"):
        Yolov5Decoder(HEAD, tensors(), 0)
    with pytest.raises(ModelFormatError, match="layout"):
        Yolov5Decoder(HEAD, [TensorInfo("x", (1, 27, 6, 8), "float32")] * 2, CLASSES)


# Suppression


def slow_nms(xyxy: NDArray[np.float32], class_id: NDArray[np.int64], iou: float) -> list[int]:
    """Greedy suppression, pair by pair, in float32 as torchvision's."""
    kept: list[int] = []
    one = np.float32
    for i, a in enumerate(xyxy):
        for j in kept:
            b = xyxy[j]
            width = max(one(0), min(a[2], b[2]) - max(a[0], b[0]))
            height = max(one(0), min(a[3], b[3]) - max(a[1], b[1]))
            common = width * height
            union = (b[2] - b[0]) * (b[3] - b[1]) + (a[2] - a[0]) * (a[3] - a[1]) - common
            if class_id[i] == class_id[j] and union > 0 and float(common / union) > iou:
                break
        else:
            kept.append(i)
    return kept


def random_boxes(count: int, seed: int = 0, classes: int = 1) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    corner = random.uniform(0, 100, (count, 2))
    size = random.uniform(0, 60, (count, 2))
    return np.hstack([corner, corner + size]).astype(np.float32), random.integers(0, classes, count)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 120), st.integers(0, 1000), st.integers(1, 3), st.floats(0, 1))
def test_nms_is_greedy_within_each_class(count: int, seed: int, classes: int, iou: float) -> None:
    xyxy, class_id = random_boxes(count, seed, classes)
    assert nms(xyxy, class_id, iou).tolist() == slow_nms(xyxy, class_id, iou)


def test_nms_across_its_blocks() -> None:
    xyxy, class_id = random_boxes(900, classes=2)
    expected = slow_nms(xyxy, class_id, 0.7)
    assert len(expected) > 100
    assert nms(xyxy, class_id, 0.7).tolist() == expected
    assert nms(xyxy, class_id, 0.7, 100).tolist() == expected[:100]


def test_nms_agrees_with_opencv() -> None:
    xyxy, class_id = random_boxes(400)
    xywh = np.hstack([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]]).astype(np.float64)
    scores = np.linspace(1, 0.5, len(xyxy))
    for iou in (0.2, 0.45, 0.6):
        expected = np.array(cv2.dnn.NMSBoxes(xywh.tolist(), scores.tolist(), 0.0, iou)).ravel()
        assert nms(xyxy, class_id, iou).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("width", "iou", "kept"),
    [
        (5, 0.5, 2),  # exactly the threshold stays
        (5, math.nextafter(0.5, 0), 1),
        (6, 0.6, 1),  # float32 of 0.6 is above 0.6: torchvision, which compares in float64, suppresses
        (7, 0.7, 2),  # float32 of 0.7 is below
    ],
)
def test_nms_at_the_threshold(width: int, iou: float, kept: int) -> None:
    xyxy = np.array([[0, 0, 10, 1], [0, 0, width, 1]], np.float32)
    assert len(nms(xyxy, np.zeros(2, np.int64), iou)) == kept


def test_nms_keeps_boxes_of_no_area_and_none() -> None:
    xyxy = np.array([[5, 5, 5, 5], [5, 5, 5, 5], [0, 0, 9, 9]], np.float32)
    assert nms(xyxy, np.zeros(3, np.int64), 0.0).tolist() == [0, 1, 2]
    assert nms(np.empty((0, 4), np.float32), np.empty(0, np.int64), 0.5).tolist() == []


def test_nms_of_30000_boxes_that_all_stay() -> None:
    corner = np.stack(np.divmod(np.arange(30_000), 200), axis=1) * 10
    xyxy = np.hstack([corner, corner + 9]).astype(np.float32)
    assert nms(xyxy, np.zeros(30_000, np.int64), 0.45, 1000).tolist() == list(range(1000))


# Vectors and probabilities


def test_embeddings_have_unit_length_or_are_zero() -> None:
    rows = np.array([[3, 4, 0], [0, 0, 0], [1e30, 1e30, 0], [1e-30, 0, 0], [np.nan, 1, 1], [np.inf, 1, 1]], np.float32)
    half = math.sqrt(0.5)
    expected = np.array([[0.6, 0.8, 0], [0, 0, 0], [half, half, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]])
    found = embeddings(rows, TensorInfo("x", rows.shape, "float32"), "l2")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    raw = embeddings(rows, TensorInfo("x", rows.shape, "float32"), "none")
    assert np.array_equal(raw[:4], rows[:4])
    assert not raw[4:].any()


def test_quantised_embeddings() -> None:
    stored = np.array([[[[13]], [[14]]]], np.int8)
    found = embeddings(stored, TensorInfo("x", (1, 2, 1, 1), "int8", scale=0.5, zero_point=10), "l2")
    np.testing.assert_allclose(found, [[0.6, 0.8]], rtol=1e-6)


def test_probabilities() -> None:
    row = np.array([[1000.0, 1000.0, 0.0], [0.0, 0.0, math.log(2)]], np.float32)
    info = TensorInfo("x", row.shape, "float32")
    np.testing.assert_allclose(probabilities(row, info, "softmax"), [[0.5, 0.5, 0], [0.25, 0.25, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(probabilities(row, info, "sigmoid"), [[1, 1, 0.5], [0.5, 0.5, 2 / 3]], rtol=1e-6)
    assert np.array_equal(probabilities(row, info, "none"), row)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_cannot_be_told_is_nan_without_a_warning(value: float) -> None:
    row = np.array([[value, 1.0], [0.0, 0.0]], np.float32)
    scores = probabilities(row, TensorInfo("x", row.shape, "float32"), "softmax")
    assert np.isnan(scores[0]).any()
    assert scores[1].tolist() == [0.5, 0.5]
