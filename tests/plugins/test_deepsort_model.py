"""DeepSORT with an appearance model out of an `.asc` file, on people cut from the demo clip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from pyasc.errors import ConfigError, PyascError
from pyasc.models.convert import convert
from pyasc.plugins.base import load_plugin
from pyasc.types import Detections, Tracks

Image = NDArray[np.uint8]
# Frame of the clip and box of the one person in it, found by yolov5n.
PEOPLE = {"red": (140, (384, 16, 513, 388)), "white": (320, (379, 3, 542, 380))}
WIDTH, HEIGHT = 130, 370


@pytest.fixture(scope="module")
def asc(demo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("asc") / "osnet_x0_25.asc"
    convert(demo_dir / "osnet_x0_25.onnx", path, precision="fp32")
    return path


@pytest.fixture(scope="module")
def people(demo_dir: Path) -> list[Image]:
    """Two people of one size, (370, 130, 3) each."""
    video = cv2.VideoCapture(str(demo_dir / "one-by-one-person.mp4"))
    frames = {k: video.read()[1] for k in range(330)}
    video.release()
    cut = [frames[k][top:bottom, left:right] for k, (left, top, right, bottom) in PEOPLE.values()]
    return [np.asarray(cv2.resize(person, (WIDTH, HEIGHT)), np.uint8) for person in cut]


def scene(people: list[Image], places: list[tuple[int, int]]) -> tuple[Image, Detections]:
    """A grey picture of 700 x 500 with people (number, left edge) in it, and their boxes."""
    image = np.full((500, 700, 3), 128, np.uint8)
    boxes = []
    for who, left in places:
        image[60 : 60 + HEIGHT, left : left + WIDTH] = people[who]
        boxes.append([left, 60, left + WIDTH, 60 + HEIGHT])
    count = len(boxes)
    xyxy = np.array(boxes, np.float32).reshape(-1, 4)
    return image, Detections(xyxy, np.full(count, 0.9, np.float32), np.zeros(count, np.int64), ["person"] * count)


def exchange(people: list[Image]) -> Iterator[tuple[Image, Detections]]:
    """Two people side by side; after a moment unseen each stands where the other was."""
    for k in range(36):
        if 15 <= k < 21:
            yield scene(people, [])
        else:
            yield scene(people, [(0, 100), (1, 240)] if k < 15 else [(0, 240), (1, 100)])


def play(tracker: Any, people: list[Image]) -> Tracks:
    for image, found in exchange(people):
        shown = tracker.update(found, image)
    assert isinstance(shown, Tracks)
    return shown


def test_people_are_known_by_their_looks(asc: Path, people: list[Image]) -> None:
    with load_plugin("deepsort", model=str(asc), device="cpu") as tracker:
        shown = play(tracker, people)
    assert shown.track_id.tolist() == [1, 2]
    np.testing.assert_allclose(shown.xyxy[:, 0], [240, 100], atol=10)
    # The scene needs the looks: motion alone takes each for the other.
    shown = play(load_plugin("deepsort"), people)
    assert shown.track_id.tolist() == [1, 2]
    np.testing.assert_allclose(shown.xyxy[:, 0], [100, 240], atol=10)


def test_tracks_are_those_of_vectors_made_by_onnx_runtime(asc: Path, demo_dir: Path, people: list[Image]) -> None:
    session = onnxruntime.InferenceSession(str(demo_dir / "osnet_x0_25.onnx"), providers=["CPUExecutionProvider"])

    def looks(image: Image, found: Detections) -> NDArray[np.float32]:
        made = np.zeros((len(found), 512), np.float32)
        for row, (left, top, right, bottom) in enumerate(found.xyxy.astype(int)):
            rgb = cv2.resize(image[top:bottom, left:right], (128, 256))[..., ::-1] / 255
            batch = ((rgb - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).transpose(2, 0, 1)[None]
            made[row] = session.run(None, {session.get_inputs()[0].name: batch.astype(np.float32)})[0][0]
        return made

    with load_plugin("deepsort", model=str(asc), device="cpu") as ours, load_plugin("deepsort") as given:
        for image, found in exchange(people):
            shown, expected = ours.update(found, image), given.update(found, image, features=looks(image, found))
            assert shown.track_id.tolist() == expected.track_id.tolist()
            np.testing.assert_allclose(shown.xyxy, expected.xyxy, atol=1e-3)


def test_boxes_that_the_picture_does_not_show_have_no_look(asc: Path, people: list[Image]) -> None:
    with load_plugin("deepsort", model=str(asc), device="cpu", n_init=1) as tracker:
        image, found = scene(people, [(0, 100)])
        away = Detections(found.xyxy + np.float32(5000), found.score, found.class_id, found.label)
        assert tracker.update(away, image).track_id.tolist() == [1]
        assert tracker.update(away, image).track_id.tolist() == [1]
        assert tracker.without_appearance == 2
        assert tracker.update(found, image).track_id.tolist() == [2]
        assert tracker.without_appearance == 2


def test_a_model_needs_the_picture(asc: Path, people: list[Image]) -> None:
    _, found = scene(people, [(0, 100)])
    with (
        load_plugin("deepsort", model=str(asc), device="cpu") as tracker,
        pytest.raises(ValueError, match="needs the image"),
    ):
        tracker.update(found)


def test_the_model_moves_while_the_tracks_stay(asc: Path, people: list[Image]) -> None:
    with load_plugin("deepsort", model=str(asc), device="cpu", threads=1, n_init=1) as tracker:
        image, found = scene(people, [(0, 100)])
        assert tracker.update(found, image).track_id.tolist() == [1]
        tracker.config_device("cpu", threads=2)
        assert tracker.device == "cpu"
        assert tracker.update(found, image).track_id.tolist() == [1]
        with pytest.raises(PyascError):
            tracker.config_device("mlu220:7")
        assert tracker.update(found, image).track_id.tolist() == [1]
    without = load_plugin("deepsort")
    assert without.device is None
    with pytest.raises(ConfigError, match="no appearance model to move"):
        without.config_device("cpu")


def test_options_of_the_device_are_honoured_or_refused(asc: Path) -> None:
    with pytest.raises(PyascError):
        load_plugin("deepsort", model=str(asc), device="cpu", threads=-3)
    with pytest.raises(PyascError):
        load_plugin("deepsort", model=str(asc), device="cpu", precision="fp16")
    with pytest.raises(PyascError):
        load_plugin("deepsort", model=str(asc), device="no-such-device")


def test_closing_twice_is_closing(asc: Path) -> None:
    tracker = load_plugin("deepsort", model=str(asc), device="cpu")
    tracker.close()
    tracker.close()


def test_a_detector_is_no_appearance_model(demo_dir: Path, tmp_path: Path) -> None:
    convert(demo_dir / "yolov5n.pt", tmp_path / "yolov5n.asc")
    with pytest.raises(ConfigError, match="no appearance model") as caught:
        load_plugin("deepsort", model=str(tmp_path / "yolov5n.asc"), device="cpu")
    assert [fault.path for fault in caught.value.faults] == ["model"]


def test_a_missing_or_broken_model_is_named(tmp_path: Path) -> None:
    for name in ("nowhere.asc", "broken.asc"):
        if name == "broken.asc":
            (tmp_path / name).write_bytes(b"not a model")
        with pytest.raises((PyascError, OSError), match=name):
            load_plugin("deepsort", model=str(tmp_path / name), device="cpu")


def test_the_appearance_model_leaves_the_cores_to_the_detector_unless_told(asc: Path) -> None:
    with load_plugin("deepsort", model=str(asc), device="cpu") as tracker:
        assert tracker._model.executable.threads == 1
        tracker.config_device("cpu", threads=2)
        assert tracker._model.executable.threads == 2
        tracker.config_device("cpu")
        assert tracker._model.executable.threads == 1
    with load_plugin("deepsort", model=str(asc), device="cpu", threads=2) as tracker:
        assert tracker._model.executable.threads == 2
