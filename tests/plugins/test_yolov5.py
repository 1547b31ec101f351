"""The YOLOv5 plugin: options, devices, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pyasc
from pyasc.errors import ConfigError, DeviceNotFoundError
from pyasc.plugins.yolov5 import YOLOv5


@pytest.fixture
def picture() -> NDArray[np.uint8]:
    """A red cell at (2, 1), a dim red one at (0, 0), a blue one at (5, 3); see the fixture make_spots."""
    image = np.zeros((64, 96, 3), np.uint8)
    image[16:32, 32:48, 2] = 255
    image[:16, :16, 2] = 130
    image[48:, 80:, 0] = 255
    return image


def load(path: Path, **options: Any) -> YOLOv5:
    plugin = pyasc.load_plugin("yolov5", model=str(path), **{"device": "cpu", **options})
    assert isinstance(plugin, YOLOv5)
    return plugin


def test_it_finds_what_the_model_finds(spots_asc: Path, picture: NDArray[np.uint8]) -> None:
    with load(spots_asc) as detector, pyasc.load_model(spots_asc, device="cpu") as model:
        found, expected = detector.detect(picture), model(picture)
        assert np.array_equal(found.xyxy, expected.xyxy)
        assert found.label == expected.label == detector(picture).label
        assert sorted(found.label) == ["blue", "red", "red"]


def test_its_options_are_used(spots_asc: Path, picture: NDArray[np.uint8]) -> None:
    with load(spots_asc, confidence=0.6, classes=["red"]) as detector:
        assert detector.detect(picture).xyxy.tolist() == [[32, 16, 48, 32]]
    with load(spots_asc, max_detections=1) as detector:
        assert len(detector.detect(picture)) == 1
    with load(spots_asc, confidence=0.6, classes=("blue",)) as detector:
        assert detector.detect(picture).label == ["blue"]


def test_iou_is_used(make_spots: Callable[..., Path]) -> None:
    # Boxes as wide as 4 * 16 pixels (logit 200): neighbours in a row overlap by 3 / 5.
    image = np.zeros((64, 96, 3), np.uint8)
    image[16:32, 32:64, 2] = 255
    path = make_spots(shift=200.0)
    for iou, count in ((0.45, 1), (0.7, 2)):
        with load(path, iou=iou) as detector:
            assert len(detector.detect(image)) == count


@pytest.mark.parametrize(
    ("options", "path", "message"),
    [
        ({"classes": ("blu",)}, "classes[0]", "did you mean blue?"),
        ({"classes": ("red", "elephant")}, "classes[1]", "it has red, blue"),
        ({"confidence": 1.2}, "confidence", "1.2"),
        ({"confidence": float("nan")}, "confidence", "nan"),
        ({"iou": -1.0}, "iou", "-1.0"),
        ({"max_detections": 0}, "max_detections", "0"),
        ({"device": ""}, "device", "empty"),
        ({"model": ""}, "model", "empty"),
        ({"threads": 0}, "threads", "0"),
        ({"threads": "two"}, "threads", "two"),
        ({"use_avx2": False}, "use_avx2", "AVX2"),
        ({"precision": "int8"}, "precision", "int8"),
        ({"engine": "steam"}, "engine", "steam"),
        ({"colour": "red"}, "colour", "unknown key"),
    ],
)
def test_wrong_options_are_refused_by_name(spots_asc: Path, options: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        pyasc.load_plugin("yolov5", **{"model": str(spots_asc), "device": "cpu", **options})
    ((found_path, found_message),) = raised.value.faults
    assert found_path == path
    assert message in found_message


def test_a_model_of_another_task_is_refused(osnet_asc: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load(osnet_asc)
    ((path, message),) = raised.value.faults
    assert path == "model"
    assert "embed" in message


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.asc")


def test_moving(spots_asc: Path, picture: NDArray[np.uint8]) -> None:
    with load(spots_asc, device="auto", threads=1) as detector:
        home = detector.device
        before = detector.model.executable
        # Where it is already, under either name and with the options of the configuration: nothing to do.
        detector.config_device("auto")
        detector.config_device(home)
        assert detector.model.executable is before
        detector.config_device("cpu", threads=2)
        assert detector.device == "cpu"
        assert len(detector.detect(picture)) == 3
        with pytest.raises(DeviceNotFoundError):
            detector.config_device("nowhere")
        with pytest.raises(ConfigError, match="colour"):
            detector.config_device("cpu", colour=1)
        assert len(detector.detect(picture)) == 3


def test_closing(spots_asc: Path, picture: NDArray[np.uint8]) -> None:
    detector = load(spots_asc)
    detector.close()
    detector.close()
    with pytest.raises(ValueError, match="closed"):
        detector.detect(picture)
