"""A detector that is shared by several threads: copies of the model, their threads, their end."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest

import pyasc
from pyasc.errors import ConfigError, DeviceMemoryError, DeviceNotFoundError
from pyasc.models.convert import convert
from pyasc.plugins import yolov5
from pyasc.plugins.copies import Copies


@pytest.fixture(scope="module")
def yolov5n(demo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "yolov5n.asc"
    convert(demo_dir / "yolov5n.pt", path, precision="fp16")
    return str(path)


@pytest.fixture(scope="module")
def picture(demo_dir: Path) -> np.ndarray:
    capture = cv2.VideoCapture(str(demo_dir / "one-by-one-person.mp4"))
    images = [capture.read()[1] for _ in range(101)]
    return images[100]


def threads_of(detector) -> int:
    return detector.model.executable.threads


def test_sharing_splits_the_threads_and_gives_them_back(yolov5n, picture):
    with pyasc.load_plugin("yolov5", model=yolov5n, device="cpu", threads=2) as detector:
        before = detector.detect(picture)
        assert detector.share(2) == 2
        assert threads_of(detector) == 1
        found = []
        callers = [threading.Thread(target=lambda: found.append(detector.detect(picture))) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(60)
        assert detector.share(1) == 1
        assert threads_of(detector) == 2
    assert len(before) > 0
    assert len(found) == 4
    for other in found:
        assert other.label == before.label
        assert other.xyxy == pytest.approx(before.xyxy, abs=0.1)


@pytest.mark.parametrize("options", [{"parallel": 1, "threads": 2}, {"threads": 1}])
def test_no_copies_where_they_are_not_wanted_or_have_no_threads(yolov5n, options):
    with pyasc.load_plugin("yolov5", model=yolov5n, device="cpu", **options) as detector:
        assert detector.share(2) == options.get("parallel", 2)
        assert threads_of(detector) == options["threads"]


def test_a_failed_move_leaves_the_copies_as_they_were(yolov5n, picture):
    with pyasc.load_plugin("yolov5", model=yolov5n, device="cpu", threads=2) as detector:
        detector.share(2)
        with pytest.raises(DeviceNotFoundError):
            detector.config_device("tpu")
        assert threads_of(detector) == 1
        assert len(detector.detect(picture)) > 0


def test_a_copy_of_another_file_is_refused(yolov5n, picture, demo_dir, tmp_path):
    """Every other picture would be judged by another model."""
    path = tmp_path / "model.asc"
    shutil.copy(yolov5n, path)
    with pyasc.load_plugin("yolov5", model=str(path), device="cpu", threads=2) as detector:
        convert(demo_dir / "yolov5n.pt", path, precision="fp32")
        with pytest.raises(ConfigError, match=r"model: .* another file"):
            detector.share(2)
        assert threads_of(detector) == 2
        assert len(detector.detect(picture)) > 0


def test_copies_are_closed_when_one_more_cannot_be_made(monkeypatch, yolov5n, picture):
    opened, load = [], yolov5.load_model

    def load_three(*arguments, **options):
        if len(opened) == 3:
            raise DeviceMemoryError("no room for a fourth")
        opened.append(load(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(yolov5, "load_model", load_three)
    with pyasc.load_plugin("yolov5", model=yolov5n, device="cpu", threads=4, parallel=4) as detector:
        with pytest.raises(DeviceMemoryError, match="fourth"):
            detector.share(4)
        for copy in opened[1:]:
            with pytest.raises(ValueError, match="closed"):
                copy(picture)
        assert threads_of(detector) == 4
        assert len(detector.detect(picture)) > 0


def test_a_wrong_number_is_refused(yolov5n):
    with pytest.raises(ConfigError, match="parallel"):
        pyasc.load_plugin("yolov5", model=yolov5n, parallel=0)


class Closable:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_copies_that_are_in_use_close_after_the_last_call():
    first, second = Closable(), Closable()
    copies = Copies(first, [second])
    with copies.use() as one, copies.use() as other:
        assert {one, other} == {first, second}
        copies.retire()
        with copies.use() as late:
            assert late is None
        assert not second.closed
    assert second.closed
    assert not first.closed
