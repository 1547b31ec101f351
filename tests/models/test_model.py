"""`load_model` and what it returns, on models whose answers are known."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

import pyasc
from pyasc.errors import ConfigError, DeviceError, DeviceNotFoundError, ModelFormatError, StreamError
from pyasc.models.asc.archive import open_archive, write_archive
from pyasc.models.convert import convert
from pyasc.models.model import ClassificationModel, DetectionModel, EmbeddingModel
from pyasc.types import Detections

RED, BLUE = (0, 0, 255), (255, 0, 0)


def spots(*cells: tuple[int, int, tuple[int, int, int]], scale: int = 1) -> NDArray[np.uint8]:
    """A black picture of 96x64 pixels, or a multiple, with coloured cells of 16x16: (column, row, BGR)."""
    image = np.zeros((64, 96, 3), np.uint8)
    for x, y, color in cells:
        image[16 * y : 16 * y + 16, 16 * x : 16 * x + 16] = color
    return image.repeat(scale, axis=0).repeat(scale, axis=1)


def boxes(found: Detections) -> dict[str, list[list[float]]]:
    return {label: found[found.class_id == i].xyxy.round(2).tolist() for i, label in enumerate(("red", "blue"))}


@pytest.fixture
def no_forced_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of a graph.onnx, which a forced engine for .tflite files would refuse."""
    monkeypatch.delenv("PYASC_CPU_ENGINE", raising=False)


@pytest.fixture
def model(spots_asc: Path) -> Iterator[DetectionModel]:
    with pyasc.load_model(spots_asc, device="cpu", threads=1) as model:
        assert isinstance(model, DetectionModel)
        yield model


PICTURE = spots((2, 1, RED), (5, 3, BLUE))
FOUND = {"red": [[32, 16, 48, 32]], "blue": [[80, 48, 96, 64]]}


def test_a_model_says_what_it_is(model: DetectionModel, spots_asc: Path) -> None:
    assert (model.name, model.task, model.device, model.batch) == ("spots", "detect", "cpu", 1)
    assert model.path == spots_asc
    assert model.manifest.labels == ("red", "blue")
    assert model.executable.inputs[0].layout == "NHWC"
    assert model.engine.startswith(("ai-edge-litert ", "tflite-runtime "))


def test_detections_of_a_known_picture(model: DetectionModel) -> None:
    found = model(PICTURE)
    assert boxes(found) == FOUND
    assert [a.dtype.name for a in (found.xyxy, found.score, found.class_id)] == ["float32", "float32", "int64"]
    assert sorted(found.label) == ["blue", "red"]
    np.testing.assert_allclose(found.score, 1 / (1 + np.exp(-10)), rtol=1e-3)


@pytest.fixture
def plain_asc(spots_asc: Path, tmp_path: Path) -> Path:
    """The same model without its variant: the portable graph, NCHW, is all there is."""
    with open_archive(spots_asc) as archive:
        plain = dataclasses.replace(archive.manifest, variants=())
        write_archive(tmp_path / "plain.asc", plain, archive.graph(), {})
    return tmp_path / "plain.asc"


@pytest.mark.usefixtures("no_forced_engine")
@pytest.mark.parametrize("engine", ["onnxruntime", "opencv"])
def test_the_portable_graph_gives_the_same(plain_asc: Path, engine: str) -> None:
    with pyasc.load_model(plain_asc, device="cpu", engine=engine) as model:
        assert model.executable.inputs[0].layout == "NCHW"
        assert boxes(model(PICTURE)) == FOUND


@pytest.mark.usefixtures("no_forced_engine")
@pytest.mark.parametrize("engine", ["onnxruntime", "opencv"])
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_the_engine_that_is_asked_for_decides_about_the_form(spots_asc: Path, device: str, engine: str) -> None:
    """A .tflite variant is there too, which these engines do not run."""
    with pyasc.load_model(spots_asc, device=device, engine=engine) as model:
        assert model.engine.startswith(f"{engine} ")
        assert boxes(model(PICTURE)) == FOUND
        model.config_device("cpu")
        assert model.executable.inputs[0].layout == "NHWC"
        model.config_device("cpu", engine=engine)
        assert model.executable.inputs[0].layout == "NCHW"


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_an_unknown_engine_is_refused(spots_asc: Path, device: str) -> None:
    with pytest.raises(ConfigError, match="engine: 'abacus' is none of ai-edge-litert, "):
        pyasc.load_model(spots_asc, device=device, engine="abacus")


@pytest.mark.parametrize("scale", [2, 7, 40])
def test_boxes_are_in_pixels_of_the_source(model: DetectionModel, scale: int) -> None:
    found = boxes(model(spots((2, 1, RED), (5, 3, BLUE), scale=scale)))
    assert found == {label: [[v * scale for v in box] for box in rows] for label, rows in FOUND.items()}


def test_the_border_of_the_letterbox_is_taken_off_and_boxes_are_clipped(model: DetectionModel) -> None:
    # 96 x 48 pixels in 96 x 64: 8 rows of border above. The red cell of the input is half border, half picture.
    image = np.zeros((48, 96, 3), np.uint8)
    image[:8, 16:32] = RED
    found = model(image, confidence=0.0001, classes=["red"])
    assert found.xyxy.tolist() == [[16, 0, 32, 8]]


def test_a_path_is_read_and_turned_upright(model: DetectionModel, tmp_path: Path) -> None:
    for path in (tmp_path / "x.png", str(tmp_path / "y.png")):
        Path(path).write_bytes(cv2.imencode(".png", PICTURE)[1].tobytes())
        assert boxes(model(path)) == FOUND


@pytest.mark.parametrize(
    "change",
    [
        lambda a: np.dstack([a, np.zeros(a.shape[:2], np.uint8)]),
        lambda a: a.astype(np.uint16) * 257,
        lambda a: np.asfortranarray(a),
        lambda a: a[:, :, ::-1].copy()[:, :, ::-1],
    ],
)
def test_other_arrays_are_the_same_picture(model: DetectionModel, change: Callable[[Any], Any]) -> None:
    assert boxes(model(change(PICTURE))) == FOUND


def test_pictures_without_objects(model: DetectionModel) -> None:
    for image in (np.zeros((1, 1, 3), np.uint8), np.full((64, 96), 255, np.uint8), np.zeros((4320, 7680, 3), np.uint8)):
        found = model(image)
        assert len(found) == 0
        assert found.xyxy.shape == (0, 4)
        assert found.label == []


def test_thresholds_and_classes(model: DetectionModel) -> None:
    dim = spots((0, 0, (0, 0, 130)), (3, 0, RED))  # logit 20 * 130 / 255 - 10 = 0.2
    assert len(model(dim)) == 2
    assert len(model(dim, confidence=0.6)) == 1
    assert model(dim, max_detections=1).xyxy.tolist() == [[48, 0, 64, 16]]
    for classes in (["blue"], [1], ("blue", 1), "blue", [np.int64(1)]):  # type: Any
        assert model(PICTURE, classes=classes).label == ["blue"]
    assert len(model(PICTURE, classes=[])) == 0
    with pytest.raises(TypeError):
        model(PICTURE, classes=[0.5])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 1.5}, "confidence"),
        ({"confidence": float("nan")}, "confidence"),
        ({"iou": -0.1}, "iou"),
        ({"max_detections": 0}, "max_detections"),
        ({"classes": ["blu"]}, "'blu'.*blue"),
        ({"classes": [2]}, r"2 is not in 0\.\.1"),
        ({"classes": [-1]}, "-1"),
    ],
)
def test_wrong_arguments_name_themselves(model: DetectionModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(PICTURE, **options)


@pytest.mark.parametrize("one", ["x.jpg", Path("x.jpg"), PICTURE])
def test_one_picture_is_not_several(model: DetectionModel, one: Any) -> None:
    with pytest.raises(TypeError, match="call the model itself"):
        model.detect_many(one)


def test_wrong_pictures(model: DetectionModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="float64"):
        model(np.zeros((4, 4, 3)))
    with pytest.raises(FileNotFoundError):
        model(tmp_path / "none.jpg")
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    with pytest.raises(StreamError, match=r"bad\.jpg"):
        model(tmp_path / "bad.jpg")
    assert boxes(model(PICTURE)) == FOUND


def test_several_pictures_with_and_without_a_batch(spots_asc: Path) -> None:
    pictures = [spots((k % 6, k % 4, RED if k % 2 else BLUE), scale=1 + k % 3) for k in range(7)]
    with (
        pyasc.load_model(spots_asc, device="cpu") as single,
        pyasc.load_model(spots_asc, device="cpu", batch=3) as three,
    ):
        assert isinstance(single, DetectionModel)
        assert isinstance(three, DetectionModel)
        assert three.batch == 3
        expected = [boxes(single(picture)) for picture in pictures]
        assert all(sum(map(len, found.values())) == 1 for found in expected)
        for model in (single, three):
            assert [boxes(found) for found in model.detect_many(pictures)] == expected
            assert model.detect_many([]) == []
        assert boxes(three(PICTURE)) == FOUND


def test_preprocess_gives_what_the_network_takes(model: DetectionModel) -> None:
    array, geometry = model.preprocess(PICTURE)
    assert np.array_equal(array[0], PICTURE[:, :, ::-1] / np.float32(255))
    again, _ = model.preprocess(np.zeros((64, 96, 3), np.uint8))
    assert not again.any()
    assert array.any()
    assert (geometry.scale_x, geometry.pad_x, geometry.width, geometry.height) == (1, 0, 96, 64)
    outputs = model.executable.run([array])
    assert [output.shape for output in outputs] == [info.shape for info in model.executable.outputs]


def test_values_that_are_not_finite_never_come_out(
    make_spots: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    with pyasc.load_model(make_spots(shift=float("nan")), device="cpu") as model, caplog.at_level(logging.WARNING):
        assert isinstance(model, DetectionModel)
        assert len(model(PICTURE)) == 0
        assert model.dropped == 2
        assert len(model(PICTURE)) == 0
        assert model.dropped == 4
    assert [record.getMessage() for record in caplog.records if "not finite" in record.getMessage()] == [
        "spots on cpu gives values that are not finite; such boxes are left out"
    ]


# Opening, moving, closing


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pyasc.load_model(tmp_path / "none.asc")
    (tmp_path / "bad.asc").write_bytes(b"PK\3\4 no model")
    with pytest.raises(ModelFormatError, match=r"bad\.asc"):
        pyasc.load_model(tmp_path / "bad.asc")


@pytest.mark.parametrize("device", [None, "auto"])
def test_auto_is_a_device_that_runs_the_model(spots_asc: Path, device: str | None) -> None:
    with pyasc.load_model(spots_asc, device=device) as model:
        assert model.device in {info.name for info in pyasc.discover_devices() if info.executes}


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_model_that_no_device_runs_says_why(plain_asc: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setenv("PYASC_CPU_ENGINE", "ai-edge-litert")
    with pytest.raises(
        DeviceError,
        match=r"(cpu cannot run|no device of this box can run) spots .*graph\.onnx: the device loads tflite, not onnx",
    ):
        pyasc.load_model(plain_asc, device=device)


def test_unknown_devices_and_options(spots_asc: Path) -> None:
    with pytest.raises(DeviceNotFoundError, match="tpu7"):
        pyasc.load_model(spots_asc, device="tpu7")
    with pytest.raises(ConfigError, match="colour"):
        pyasc.load_model(spots_asc, device="cpu", colour="red")
    with pytest.raises(ConfigError, match="threads"):
        pyasc.load_model(spots_asc, device="cpu", threads=0)
    with pytest.raises(ConfigError, match="precision"):
        pyasc.load_model(spots_asc, device="cpu", precision="int8")


def test_closing(spots_asc: Path) -> None:
    first, second = (pyasc.load_model(spots_asc, device="cpu") for _ in range(2))
    first.close()
    first.close()
    for call in (
        lambda: first(PICTURE),
        lambda: first.config_device("cpu", threads=1),
        lambda: first.preprocess(PICTURE),
    ):
        with pytest.raises(ValueError, match="spots is closed"):
            call()
    # The device that both used is still open for the other.
    with second:
        assert boxes(second(PICTURE)) == FOUND


def test_moving_to_other_options(model: DetectionModel) -> None:
    before = model.executable
    model.config_device("cpu", threads=1)
    assert model.executable is before
    model.config_device("cpu", threads=2)
    assert model.executable is not before
    assert boxes(model(PICTURE)) == FOUND
    model.config_device("auto")
    assert boxes(model(PICTURE)) == FOUND
    with pytest.raises(ValueError, match="closed"):
        before.run([model.preprocess(PICTURE)[0]])


@pytest.mark.parametrize(
    ("device", "options", "error"),
    [("nowhere", {}, DeviceNotFoundError), ("cpu", {"colour": 1}, ConfigError), ("cpu", {"threads": 0}, ConfigError)],
)
def test_a_move_that_fails_leaves_the_model_where_it_is(
    model: DetectionModel, device: str, options: dict[str, Any], error: type[Exception]
) -> None:
    before = model.executable
    with pytest.raises(error):
        model.config_device(device, **options)
    assert model.executable is before
    assert boxes(model(PICTURE)) == FOUND


def test_calls_from_several_threads_while_the_model_moves(model: DetectionModel) -> None:
    pictures = [spots((k, 2, RED), scale=1 + k % 2) for k in range(6)]
    expected = [boxes(model(picture)) for picture in pictures]
    moves = 30
    moved = threading.Event()

    def look(k: int) -> int:
        calls = 0
        while not moved.is_set() or calls == 0:
            assert boxes(model(pictures[k])) == expected[k]
            calls += 1
        return calls

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(look, k) for k in (1, 3, 4)]
        try:
            for k in range(moves):
                model.config_device("cpu", threads=1 + k % 2)
        finally:
            moved.set()
        assert all(call.result(timeout=60) > 0 for call in calls)


def test_closing_during_calls_lets_them_end(spots_asc: Path) -> None:
    model = pyasc.load_model(spots_asc, device="cpu", threads=1)
    assert isinstance(model, DetectionModel)
    started = threading.Barrier(3, timeout=30)

    def look() -> int:
        count = 0
        started.wait()
        with pytest.raises(ValueError, match="spots is closed"):
            while True:
                assert boxes(model(PICTURE)) == FOUND
                count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(look) for _ in range(2)]
        started.wait()
        model.close()
        for call in calls:
            call.result(timeout=60)


# The other tasks


@pytest.fixture(scope="module")
def osnet(osnet_asc: Path) -> Iterator[EmbeddingModel]:
    with pyasc.load_model(osnet_asc, device="cpu", threads=2) as model:
        assert isinstance(model, EmbeddingModel)
        yield model


def noise(height: int = 300, width: int = 200) -> NDArray[np.uint8]:
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (height // 20, width // 20, 3), dtype=np.uint8)
    return np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


BOXES = np.array([[10.7, 20.2, 90.9, 180.0], [0, 0, 200, 300], [150, 250, 260, 400], [-20, 5, 30, 70]], np.float32)


def test_embeddings_agree_with_onnx_runtime(osnet: EmbeddingModel, demo_dir: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(demo_dir / "osnet_x0_25.onnx"), providers=["CPUExecutionProvider"])
    image = noise()
    found = osnet(image, BOXES)
    assert found.shape == (4, 512)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    for vector, (x1, y1, x2, y2) in zip(found, BOXES, strict=True):
        part = image[max(int(y1), 0) : int(y2), max(int(x1), 0) : int(x2)]
        rgb = cv2.resize(part, (128, 256), interpolation=cv2.INTER_LINEAR)[:, :, ::-1] / 255.0
        values = ((rgb - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).transpose(2, 0, 1)[None].astype(np.float32)
        expected = session.run(None, {session.get_inputs()[0].name: values})[0][0]
        assert vector @ expected / np.linalg.norm(expected) > 0.9999


def test_embeddings_agree_with_the_reference(osnet: EmbeddingModel, shared: Path) -> None:
    folder = shared / "mot" / "TUD-Campus"
    rows = np.loadtxt(folder / "det" / "det.txt", delimiter=",")
    features = np.load(folder / "det" / "det_osnet_x0_25_f16.npy").astype(np.float32)
    for frame in (1, 20):
        (here,) = np.nonzero(rows[:, 0] == frame)
        xywh = rows[here, 2:6]
        found = osnet(folder / "img1" / f"{frame:06d}.jpg", np.hstack([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]]))
        assert len(here) > 3
        assert (found * features[here]).sum(axis=1).min() > 0.999


def test_embeddings_with_and_without_a_batch(osnet: EmbeddingModel, demo_dir: Path, tmp_path: Path) -> None:
    path = convert(demo_dir / "osnet_x0_25.onnx", tmp_path / "three.asc", batch=3)
    with pyasc.load_model(path, device="cpu") as three:
        assert isinstance(three, EmbeddingModel)
        assert three.batch == 3
        np.testing.assert_allclose(three(noise(), BOXES), osnet(noise(), BOXES), atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_appearance_model_of_one_picture_can_be_enlarged(demo_dir: Path, tmp_path: Path, precision: str) -> None:
    """Its flattening Reshape leaves the size of the batch open in the .tflite file."""
    path = convert(demo_dir / "osnet_x0_25.onnx", tmp_path / "osnet.asc", precision=precision)
    picture = np.random.default_rng(3).integers(0, 256, (300, 200, 3), np.uint8)
    boxes = np.float32([[0, 0, 60, 120], [40, 30, 130, 290], [100, 100, 180, 250], [10, 150, 90, 300]])
    with pyasc.load_model(path, device="cpu", threads=1) as one:
        expected = one(picture, boxes)
    with pyasc.load_model(path, device="cpu", threads=1, batch=3) as three:
        assert (three.batch, three.executable.inputs[0].layout) == (3, "NHWC")
        np.testing.assert_allclose(three(picture, boxes), expected, atol=1e-5)


def test_boxes_without_a_pixel_have_no_look(osnet: EmbeddingModel) -> None:
    useless = [[-9, -9, -1, -1], [np.nan, 0, 9, 9], [5, 5, 5, 50], [50, 50, 5, 5], [1e30, 0, 2e30, 50]]
    found = osnet(noise(), np.array([useless[0], BOXES[0], *useless[1:]], np.float32))
    assert found.any(axis=1).tolist() == [False, True, False, False, False, False]
    assert np.array_equal(found[1], osnet(noise(), BOXES[:1])[0])
    assert osnet(noise(), np.empty((0, 4), np.float32)).shape == (0, 512)


def test_the_whole_picture_is_one_box(osnet: EmbeddingModel) -> None:
    assert np.array_equal(osnet(noise()), osnet(noise(), BOXES[1:2]))


def test_boxes_may_be_a_list(osnet: EmbeddingModel) -> None:
    assert np.array_equal(osnet(noise(), BOXES.tolist()), osnet(noise(), BOXES))


@pytest.mark.parametrize("shape", [(4,), (2, 5), (1, 2, 4)])
def test_boxes_of_another_shape(osnet: EmbeddingModel, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shape"):
        osnet(noise(), np.zeros(shape, np.float32))


def classifier(path: Path, labels: tuple[str, ...]) -> Path:
    """Three logits: four times the mean of red, green and blue."""
    from onnx import TensorProto, helper, numpy_helper

    from pyasc.hal.base import TensorInfo
    from pyasc.models.asc.manifest import ClassificationHead, Manifest, Preprocess

    kernel = numpy_helper.from_array((np.eye(3) * 4).astype(np.float32)[:, :, None, None], "k")
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["mean"]),
        helper.make_node("Conv", ["mean", "k"], ["four"], kernel_shape=[1, 1]),
        helper.make_node("Flatten", ["four"], ["logits"]),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, (1, 3, 32, 32))
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, (1, 3))
    graph = helper.make_graph(nodes, "colours", [images], [logits], [kernel])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    manifest = Manifest(
        "colours",
        "classify",
        "onnx",
        "fp32",
        (TensorInfo("images", (1, 3, 32, 32), "float32", "NCHW"),),
        (TensorInfo("logits", (1, 3), "float32"),),
        Preprocess("stretch", 32, 32),
        ClassificationHead(),
        labels,
    )
    write_archive(path, manifest, model.SerializeToString(), {})
    return path


@pytest.mark.usefixtures("no_forced_engine")
@pytest.mark.parametrize("labels", [("red", "green", "blue"), ()])
def test_classification(tmp_path: Path, labels: tuple[str, ...]) -> None:
    with pyasc.load_model(classifier(tmp_path / "c.asc", labels), device="cpu") as model:
        assert isinstance(model, ClassificationModel)
        found = model(np.full((50, 40, 3), (255, 0, 102), np.uint8))
        expected = np.exp([4, 1.6, 0])
        np.testing.assert_allclose(found.score, expected / expected.sum(), rtol=1e-4)
        assert found.class_id.tolist() == [2, 0, 1]
        assert found.label == (["blue", "red", "green"] if labels else ["2", "0", "1"])
        assert len(model(noise(), top=1).label) == 1
        with pytest.raises(ValueError, match="top"):
            model(noise(), top=0)
