"""What all tests share: where the reference data is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of the reference data on a machine that has only the repository; nothing else is ever skipped."""
    if SHARED.is_dir():
        return
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker(
                pytest.mark.skip(reason=f"needs the reference data in {SHARED}, which is not on this machine")
            )


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference weights, pictures, clips and expected results."""
    return SHARED


@pytest.fixture(scope="session")
def demo_dir() -> Path:
    """The shipped demo data."""
    return ROOT / "demo"


@pytest.fixture(scope="session")
def yolov5n_asc(demo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped YOLOv5n, converted once."""
    from pyasc.models.convert import convert

    return convert(demo_dir / "yolov5n.pt", tmp_path_factory.mktemp("yolov5n") / "yolov5n.asc")


@pytest.fixture(scope="session")
def osnet_asc(demo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped OSNet x0.25, converted once."""
    from pyasc.models.convert import convert

    return convert(demo_dir / "osnet_x0_25.onnx", tmp_path_factory.mktemp("osnet") / "osnet_x0_25.asc")


@pytest.fixture(scope="session")
def blobs() -> Iterator[Path]:
    """Installs the plugins `blobs` and `nearest` of tests/blobs: the folder to put on the path of other processes too."""
    folder = ROOT / "tests" / "blobs"
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def blob_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip with known answers: 70 frames of 200x100 pixels, 10 a second.

    A red square of 20x20 walks from left to right, its foot at (22 + 4 k, 80) in frame k, and is out of the picture from frame 48
    on. A green one stands with its foot at (150, 40) in the frames 10 to 24.
    """
    import cv2
    import numpy as np

    path = tmp_path_factory.mktemp("blobs") / "blobs.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (200, 100))
    assert writer.isOpened()
    for k in range(70):
        image = np.zeros((100, 200, 3), np.uint8)
        image[60:80, 12 + 4 * k : 32 + 4 * k] = (0, 0, 255)
        if 10 <= k <= 24:
            image[20:40, 140:160] = (0, 255, 0)
        writer.write(image)
    writer.release()
    return path


@pytest.fixture(scope="session")
def blob_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with `blobs.asc`, which the plugin `blobs` takes, and `bad.asc`, which it refuses."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "blobs.asc").write_bytes(b"blobs")
    (folder / "bad.asc").write_bytes(b"something else")
    return folder
