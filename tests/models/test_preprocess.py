"""From a picture to the network's input: the reference's pixels, whatever the input's layout and dtype."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyasc.hal.base import TensorInfo
from pyasc.models.asc.manifest import Preprocess
from pyasc.models.image import read_image
from pyasc.models.preprocess import InputBuffer, Preprocessor, letterbox, place

GREY = 114


def noise(width: int, height: int) -> NDArray[np.uint8]:
    return np.random.default_rng(width * 10_000 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def reference_letterbox(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The published steps of YOLOv5's letterbox with OpenCV's own border: resize, halve the border, round it apart."""
    ratio = min(size[0] / image.shape[0], size[1] / image.shape[1])
    width, height = round(image.shape[1] * ratio), round(image.shape[0] * ratio)
    dw, dh = (size[1] - width) / 2, (size[0] - height) / 2
    if (width, height) != image.shape[1::-1]:
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    borders = round(dh - 0.1), round(dh + 0.1), round(dw - 0.1), round(dw + 0.1)
    return np.asarray(cv2.copyMakeBorder(image, *borders, cv2.BORDER_CONSTANT, value=(GREY,) * 3), np.uint8)


@pytest.mark.parametrize("name", ["bus", "zidane"])
def test_letterbox_has_the_pixels_of_the_reference(shared: Path, name: str) -> None:
    expected = json.loads((shared / "expected" / f"yolov5n_{name}.json").read_text())
    canvas, geometry = letterbox(read_image(shared / "images" / f"{name}.jpg"), 640, 640)
    assert hashlib.sha256(canvas.tobytes()).hexdigest() == expected["letterboxed_bgr_sha256"]
    assert [geometry.scale_x, geometry.scale_y] == expected["preprocess"]["ratio"]
    assert [geometry.pad_x, geometry.pad_y] == expected["preprocess"]["pad_wh"]
    boxes = np.array([found["box_xyxy_network"] for found in expected["detections"]], np.float32)
    source = np.array([found["box_xyxy"] for found in expected["detections"]])
    np.testing.assert_allclose(geometry.to_source(boxes), source, atol=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from([(32, 64), (64, 32), (64, 64)]))
def test_letterbox_of_any_size(width: int, height: int, size: tuple[int, int]) -> None:
    if min(width * size[0] / height, height * size[1] / width) < 0.6:
        return  # the reference fails where a side vanishes
    canvas, _ = letterbox(noise(width, height), size[1], size[0])
    assert np.array_equal(canvas, reference_letterbox(noise(width, height), size))


@pytest.mark.parametrize(("width", "height"), [(1, 5000), (5000, 1), (1, 1), (7680, 4320)])
def test_extreme_shapes_keep_a_pixel(width: int, height: int) -> None:
    canvas, geometry = letterbox(noise(width, height), 640, 640)
    assert canvas.shape == (640, 640, 3)
    inside = (canvas != GREY).any(axis=2)
    assert inside.any(axis=0).sum() >= 1
    assert inside.any(axis=1).sum() >= 1
    whole = np.array([[-1e6, -1e6, 1e6, 1e6]], np.float32)
    assert geometry.to_source(whole).tolist() == [[0, 0, width, height]]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 5000), st.sampled_from(["letterbox", "stretch"]))
def test_way_back_undoes_the_way_there(width: int, height: int, resize: Any) -> None:
    _, geometry = place(width, height, 640, 384, resize)
    source = np.array([[0.1 * width, 0.2 * height, 0.7 * width, height]], np.float64)
    there = source * ([geometry.scale_x, geometry.scale_y] * 2) + [geometry.pad_x, geometry.pad_y] * 2
    assert there.min() >= 0
    assert there[0, 2] <= 640
    assert there[0, 3] <= 384 + 1e-9
    np.testing.assert_allclose(
        geometry.to_source(there.astype(np.float32)), source, rtol=1e-4, atol=1e-3 * max(width, height)
    )


def tensor(dtype: str, layout: str, channels: int = 3, batch: int = 1, **quantised: Any) -> TensorInfo:
    sides = {"N": batch, "C": channels, "H": 32, "W": 48}
    return TensorInfo("images", tuple(sides[axis] for axis in layout), dtype, layout, **quantised)


def spec(color: Any = "RGB", **other: Any) -> Preprocess:
    channels = 1 if color == "GRAY" else 3
    values = {"mean": (0.0,) * channels, "std": (1.0,) * channels, **other}
    return Preprocess("letterbox", 32, 48, color, GREY, **values)


def planes(image: NDArray[np.uint8], color: str) -> NDArray[np.uint8]:
    """(H, W, C) in the network's order, by other means than the code under test."""
    if color == "GRAY":
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)[:, :, None], np.uint8)
    return image[:, :, ::-1] if color == "RGB" else image


def written(buffer: InputBuffer, preprocessor: Preprocessor) -> NDArray[Any]:
    """The network's input in memory that held something else before."""
    dtype = np.dtype(preprocessor.tensor.dtype)
    array = np.full(preprocessor.tensor.shape, np.nan if dtype.kind == "f" else 77, dtype)
    buffer.write(array)
    return array


def filled(preprocessor: Preprocessor, image: NDArray[np.uint8]) -> NDArray[Any]:
    buffer = preprocessor.new_input()
    buffer.prepare([image])
    return written(buffer, preprocessor)


def as_hwc(array: NDArray[Any], layout: str) -> NDArray[Any]:
    return array.transpose(0, 2, 3, 1) if layout == "NCHW" else array


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("color", ["RGB", "BGR", "GRAY"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size", [(48, 32), (30, 40), (97, 33)])
def test_input_is_the_letterbox_divided_by_255(layout: str, color: str, dtype: str, size: tuple[int, int]) -> None:
    image = noise(*size)
    array = filled(Preprocessor(spec(color), tensor(dtype, layout, 1 if color == "GRAY" else 3)), image)
    assert array.dtype == dtype
    expected = (planes(reference_letterbox(image, (32, 48)), color) / np.float32(255)).astype(dtype)
    assert np.array_equal(as_hwc(array, layout)[0], expected)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_mean_and_std_belong_to_their_channels(layout: str) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    image = noise(30, 40)
    array = filled(Preprocessor(spec("RGB", mean=mean, std=std), tensor("float32", layout)), image)
    expected = (planes(reference_letterbox(image, (32, 48)), "RGB") / 255.0 - mean) / std
    np.testing.assert_allclose(as_hwc(array, layout)[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point"),
    [("uint8", 1 / 255, 0), ("int8", 1 / 255, -128), ("uint8", 1 / 64, 10), ("int16", 1 / 32767, 0)],
)
def test_quantised_inputs_stand_for_the_same_numbers(layout: str, dtype: str, scale: float, zero_point: int) -> None:
    image = noise(30, 40)
    info = tensor(dtype, layout, scale=scale, zero_point=zero_point)
    array = filled(Preprocessor(spec(), info), image)
    real = (as_hwc(array, layout)[0].astype(np.float64) - zero_point) * scale
    expected = planes(reference_letterbox(image, (32, 48)), "RGB") / 255
    assert array.dtype == dtype
    assert np.abs(real - expected).max() <= scale / 2 + 1e-9


def test_integers_without_a_scale_take_the_pixels() -> None:
    image = noise(30, 40)
    array = filled(Preprocessor(spec("BGR"), tensor("uint8", "NHWC")), image)
    assert np.array_equal(array[0], reference_letterbox(image, (32, 48)))


def test_values_outside_the_range_of_the_type_saturate() -> None:
    info = tensor("int8", "NHWC", scale=1 / 255, zero_point=0)
    array = filled(Preprocessor(spec(), info), np.full((32, 48, 3), 255, np.uint8))
    assert (array == 127).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("color", ["RGB", "BGR", "GRAY"])
def test_scratch_memory_used_again_keeps_nothing_of_the_picture_before(layout: str, color: str) -> None:
    preprocessor = Preprocessor(spec(color), tensor("float32", layout, 1 if color == "GRAY" else 3))
    used = preprocessor.new_input()
    for size in ((48, 32), (10, 90), (90, 10), (48, 32), (33, 31), (33, 31), (1, 1)):
        image = noise(*size)
        before = image.copy()
        fresh = preprocessor.new_input()
        assert used.prepare([image]) == fresh.prepare([image])
        assert np.array_equal(written(used, preprocessor), written(fresh, preprocessor))
        assert np.array_equal(image, before)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_rows_of_a_batch_are_pictures_of_their_own(layout: str) -> None:
    images = [noise(48, 32), noise(20, 30), noise(64, 9)]
    preprocessor = Preprocessor(spec(), tensor("float32", layout, batch=3))
    single = Preprocessor(spec(), tensor("float32", layout))
    batch = preprocessor.new_input()
    for count in (3, 2):
        batch.prepare(images[:count])
        rows = written(batch, preprocessor)
        for row, image in enumerate(images[:count]):
            assert np.array_equal(rows[row], filled(single, image)[0])
        assert np.isnan(rows[count:]).all()  # nothing is written where there is no picture


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_stretch_fills_the_whole_input(layout: str) -> None:
    image = noise(20, 70)
    stretch = Preprocess("stretch", 32, 48, "RGB")
    preprocessor = Preprocessor(stretch, tensor("float32", layout))
    buffer = preprocessor.new_input()
    [geometry] = buffer.prepare([image])
    array = written(buffer, preprocessor)
    expected = cv2.resize(image, (48, 32), interpolation=cv2.INTER_LINEAR)[:, :, ::-1] / np.float32(255)
    assert np.array_equal(as_hwc(array, layout)[0], expected)
    assert (geometry.scale_x, geometry.scale_y, geometry.pad_x, geometry.pad_y) == (48 / 20, 32 / 70, 0, 0)
