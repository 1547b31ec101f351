"""What all tests share: where the reference data is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="session")
def make_spots(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a YOLOv5 model with known answers: `make_spots(shift=0.0)` returns its path.

    Its input is 96x64 pixels. Each cell of 16x16 pixels that is red or blue is found, as just this box, with the class `red` or
    `blue` and a score of 0.9999 for the pure colours; grey, white, black and the letterbox's border are not. `shift` is added to
    the logits of the widths: 0 keeps the 16 pixels, NaN makes every box that is found useless.
    """
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from pyasc.hal.base import TensorInfo
    from pyasc.models.asc.archive import write_archive
    from pyasc.models.asc.manifest import Manifest, Preprocess, Variant, Yolov5Head
    from pyasc.models.tflite.writer import to_tflite

    def make(shift: float = 0.0) -> Path:
        nodes, weights, outputs, infos = [], [], [], []
        for stride in (8, 16, 32):
            kernel = np.zeros((7, 3, stride, stride), np.float32)
            bias = np.array([0, 0, 0, 0, -20, 0, 0], np.float32)
            if stride == 16:
                red, green, blue = np.eye(3) * 20 / stride**2
                for channel, mix in ((4, red + blue - 2 * green), (5, red - blue), (6, blue - red)):
                    kernel[channel] = mix[:, None, None]
                bias[2], bias[4] = shift, -10
            weights += [numpy_helper.from_array(kernel, f"k{stride}"), numpy_helper.from_array(bias, f"b{stride}")]
            shape = (1, 7, 64 // stride, 96 // stride)
            nodes.append(
                helper.make_node(
                    "Conv",
                    ["images", f"k{stride}", f"b{stride}"],
                    [f"o{stride}"],
                    strides=[stride] * 2,
                    kernel_shape=[stride] * 2,
                )
            )
            outputs.append(helper.make_tensor_value_info(f"o{stride}", TensorProto.FLOAT, shape))
            infos.append(TensorInfo(f"o{stride}", shape, "float32", "NCHW"))
        images = helper.make_tensor_value_info("images", TensorProto.FLOAT, (1, 3, 64, 96))
        graph = helper.make_graph(nodes, "spots", [images], outputs, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        onnx.checker.check_model(model)
        compiled = to_tflite(model)
        variant = Variant("cpu", "tflite", "variants/cpu/model.tflite", "fp32", compiled.inputs, compiled.outputs)
        manifest = Manifest(
            name="spots",
            task="detect",
            template="yolov5",
            precision="fp32",
            inputs=(TensorInfo("images", (1, 3, 64, 96), "float32", "NCHW"),),
            outputs=tuple(infos),
            preprocess=Preprocess("letterbox", 64, 96),
            postprocess=Yolov5Head((((8.0, 8.0),), ((16.0, 16.0),), ((32.0, 32.0),)), (8, 16, 32)),
            labels=("red", "blue"),
            variants=(variant,),
        )
        path = tmp_path_factory.mktemp("spots") / "spots.asc"
        write_archive(path, manifest, model.SerializeToString(), {variant.path: compiled.data})
        return path

    return make


@pytest.fixture(scope="session")
def spots_asc(make_spots: Callable[..., Path]) -> Path:
    """The model of `make_spots`."""
    return make_spots()
