"""What is written for the NNIE mapper: read back as it would be, it computes what the model computes. And runs of a stand-in."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest

from pyasc.errors import ConversionError, UnsupportedOperatorError
from pyasc.hal.base import TensorInfo
from pyasc.models.asc.manifest import EmbeddingHead, Manifest, Preprocess
from pyasc.models.convert import prepare
from pyasc.models.npu.mapper import Emitted, Job, emit_mapper
from pyasc.models.npu.mapper_run import MAPPER_VARIABLE, mapper_program, run_mapper
from pyasc.models.npu.partition import Part, partition
from pyasc.models.tflite.fuse import fuse
from pyasc.models.tflite.graph import Graph, read_graph

Run = Callable[[str, bytes, Mapping[str, Any]], dict[str, Any]]


@dataclass
class Cut:
    model: onnx.ModelProto
    manifest: Manifest
    graph: Graph
    parts: Sequence[Part]


def cut(model: onnx.ModelProto, manifest: Manifest) -> Cut:
    graph = read_graph(model, {node.op_type for node in model.graph.node})
    fuse(graph)
    return Cut(model, manifest, graph, partition(graph)[0])


def small(
    nodes: str, constants: Mapping[str, Any], spec: Preprocess, *, name: str = "small", outputs: str = "y"
) -> Cut:
    """A model whose constants are random numbers."""
    rng = np.random.default_rng(3)
    shape = (1, len(spec.mean), spec.height, spec.width)
    results = ", ".join(f"float {result}" for result in outputs.split())
    text = f'<ir_version: 8, opset_import: ["": 13]> g (float{list(shape)} x) => ({results}) {{{nodes}}}'
    model = onnx.parser.parse_model(text)
    for constant, size in constants.items():
        array = rng.standard_normal(size).astype(np.float32) / 4
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, constant))
    for result in model.graph.output:
        result.type.tensor_type.ClearField("shape")
    inputs = (TensorInfo("x", shape, "float32", "NCHW"),)
    wanted = tuple(TensorInfo(result, (1, 1), "float32") for result in outputs.split())
    return cut(model, Manifest(name, "embed", "test", "fp32", inputs, wanted, spec, EmbeddingHead(1)))


def settings(config: Path) -> dict[str, list[str]]:
    """A configuration as the mapper reads it; those of inputs occur once for each."""
    found: dict[str, list[str]] = {}
    for line in config.read_text().splitlines():
        key, value = re.fullmatch(r"\[(\w+)\] (\S+)", line).groups()  # type: ignore[union-attr]
        found.setdefault(key, []).append(value)
    return found


def pixels_of(job: Job) -> list[Any]:
    """The pictures that calibrate a network, normalised as its configuration says."""
    told, folder = settings(job.config), job.config.parent
    means = np.zeros(1)
    if told["norm_type"][0] == "5":
        means = np.loadtxt(folder / told["mean_file"][0], ndmin=1)
    else:
        assert (told["norm_type"][0], told["mean_file"][0]) == ("3", "null")
    shape = job.inputs[0].shape
    pictures = []
    for name in (folder / told["image_list"][0]).read_text().splitlines():
        pixels = cv2.imread(str(folder / name), cv2.IMREAD_COLOR if shape[0] == 3 else cv2.IMREAD_GRAYSCALE)
        assert pixels is not None
        planes = pixels.reshape(*shape[1:], shape[0]).transpose(2, 0, 1)
        made = (planes - means.reshape(-1, 1, 1)) * float(told["data_scale"][0])
        pictures.append(made[None].astype(np.float32))
    return pictures


def results(job: Job, run: Run, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Of a network, by the graph's names."""
    tops = run(job.prototxt.read_text(), job.caffemodel.read_bytes(), inputs)
    return {blob.value: tops[blob.node] for blob in job.outputs}


def expected(model: onnx.ModelProto | bytes, names: Iterable[str], inputs: Mapping[str, Any]) -> list[Any]:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return list(onnxruntime.InferenceSession(data).run(list(names), dict(inputs)))


@pytest.fixture
def bus(shared: Path) -> Path:
    return shared / "images" / "bus.jpg"


def test_yolov5n_from_bytes_of_pictures_to_its_heads(demo_dir: Path, bus: Path, tmp_path: Path, run_caffe: Run) -> None:
    made = prepare(demo_dir / "yolov5n.pt", image_size=(320, 256))
    model = cut(onnx.load_from_string(made.graph), made.manifest)
    emitted = emit_mapper(model, tmp_path / "nnie", [bus, np.full((90, 120, 3), (250, 10, 90), np.uint8)])
    [job] = emitted.jobs
    for pixels, image in zip(pixels_of(job), (cv2.imread(str(bus)), None), strict=True):
        if image is None:
            # A flat colour in a frame: 120 x 90 becomes 256 x 192, in the middle of 320 lines.
            canvas = np.full((320, 256, 3), 114, np.uint8)
            canvas[64:256] = (250, 10, 90)
        else:
            high, wide = image.shape[:2]
            wide = round(wide * 320 / high)
            canvas = np.full((320, 256, 3), 114, np.uint8)
            left = (256 - wide) // 2
            canvas[:, left : left + wide] = cv2.resize(image, (wide, 320), interpolation=cv2.INTER_LINEAR)
        x = np.ascontiguousarray(canvas[:, :, ::-1].transpose(2, 0, 1)[None], np.float32) / 255
        found = results(job, run_caffe, {job.inputs[0].node: pixels})
        names = [output.name for output in made.manifest.outputs]
        for name, wanted in zip(names, expected(made.graph, names, {"images": x}), strict=True):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-4)


def test_osnet_with_a_mean_and_a_deviation_of_each_channel(
    demo_dir: Path, bus: Path, tmp_path: Path, run_caffe: Run
) -> None:
    made = prepare(demo_dir / "osnet_x0_25.onnx")
    model = cut(onnx.load_from_string(made.graph), made.manifest)
    [job] = emit_mapper(model, tmp_path, [bus], "int16").jobs
    assert settings(job.config)["compile_mode"] == ["1"]
    # ImageNet's means, blue first.
    np.testing.assert_allclose(np.loadtxt(tmp_path / "osnet_x0_25_mean.txt"), [103.53, 116.28, 123.675])
    small_bus = cv2.resize(cv2.imread(str(bus)), (128, 256), interpolation=cv2.INTER_LINEAR)
    x = (small_bus[:, :, ::-1] / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    [name] = [tensor.name for tensor in made.manifest.inputs]
    inputs = {name: np.ascontiguousarray(x.transpose(2, 0, 1)[None], np.float32)}
    [output] = made.manifest.outputs
    [wanted] = expected(made.graph, [output.name], inputs)
    [pixels] = pixels_of(job)
    found = results(job, run_caffe, {job.inputs[0].node: pixels})[output.name]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("nodes", ["y = Conv(x, w)", "p = MaxPool<kernel_shape=[3,3]>(x) y = Conv(p, w)"])
@pytest.mark.parametrize(
    ("color", "mean", "std", "norm_type", "means"),
    [
        ("GRAY", (0.5,), (0.25,), "5", [127.5]),
        ("BGR", (0.1, 0.2, 0.3), (0.5, 1.0, 2.0), "5", [25.5, 51, 76.5]),
        ("RGB", (0.1, 0.2, 0.3), (0.5, 1.0, 2.0), "5", [76.5, 51, 25.5]),
        ("RGB", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "3", None),
        ("BGR", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "3", None),
    ],
)
def test_normalisation_and_order_of_channels(
    nodes: str, color: Any, mean: Any, std: Any, norm_type: str, means: Any, tmp_path: Path, run_caffe: Run
) -> None:
    channels = len(mean)
    model = small(nodes, {"w": (5, channels, 3, 3)}, Preprocess("stretch", 12, 16, color, mean=mean, std=std))
    image = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    [job] = emit_mapper(model, tmp_path, [image]).jobs
    told = settings(job.config)
    assert (told["norm_type"], told["RGB_order"], told["image_type"]) == ([norm_type], ["BGR"], ["1"])
    assert (tmp_path / "small_mean.txt").exists() == (means is not None)
    if means is not None:
        np.testing.assert_allclose(np.loadtxt(tmp_path / "small_mean.txt", ndmin=1), means)
    planes = {"RGB": image[:, :, ::-1], "BGR": image, "GRAY": cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)[:, :, None]}[
        color
    ]
    x = ((planes / 255 - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)
    [pixels] = pixels_of(job)
    [wanted] = expected(model.model, ["y"], {"x": x})
    found = results(job, run_caffe, {job.inputs[0].node: pixels})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_configuration_in_full(tmp_path: Path) -> None:
    model = small("y = Conv(x, w)", {"w": (5, 3, 3, 3)}, Preprocess("letterbox", 16, 16), name="Tür 1/a")
    emitted = emit_mapper(model, tmp_path / "new" / "folder", [np.zeros((4, 4, 3), np.uint8)] * 2)
    folder = tmp_path / "new" / "folder"
    assert (folder / "T_r_1_a.cfg").read_text().splitlines() == [
        "[prototxt_file] ./T_r_1_a.prototxt",
        "[caffemodel_file] ./T_r_1_a.caffemodel",
        "[instruction_name] ./T_r_1_a",
        "[net_type] 0",
        "[batch_num] 1",
        "[sparse_rate] 0",
        "[compile_mode] 0",
        "[is_simulation] 0",
        "[log_level] 0",
        "[internal_stride] 16",
        "[RGB_order] BGR",
        "[data_scale] 0.003921569",
        "[image_list] ./T_r_1_a_images.txt",
        "[image_type] 1",
        "[norm_type] 3",
        "[mean_file] null",
    ]
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(emitted.files)


def test_parts_after_the_first_are_calibrated_with_numbers(tmp_path: Path, run_caffe: Run) -> None:
    nodes = "a = Conv(x, w) b = Relu(a) c = Softmax<axis=1>(b) d = Conv(c, v) e = Add(d, b) y = Conv(e, v)"
    model = small(nodes, {"w": (4, 3, 1, 1), "v": (4, 4, 1, 1)}, Preprocess("stretch", 8, 10))
    assert [part.on for part in model.parts] == ["npu", "cpu", "npu"]
    images = list(np.random.default_rng(0).integers(0, 256, (3, 8, 10, 3), np.uint8))
    first, second = emit_mapper(model, tmp_path, images).jobs
    assert [(job.part, job.config.name, job.pixels) for job in (first, second)] == [
        (0, "small_part0.cfg", True),
        (2, "small_part2.cfg", False),
    ]
    told = settings(second.config)
    assert told["image_type"] == told["norm_type"] == ["0", "0"]
    assert told["mean_file"] == ["null", "null"]
    assert [blob.value for blob in second.inputs] == list(model.parts[2].inputs)
    lists = [np.loadtxt(tmp_path / name) for name in told["image_list"]]
    for place, image in enumerate(images):
        x = image[:, :, ::-1].transpose(2, 0, 1)[None].astype(np.float32) / 255
        whole = onnx.ModelProto()
        whole.CopyFrom(model.model)
        whole.graph.output.extend(onnx.ValueInfoProto(name=blob.value) for blob in second.inputs)
        *between, y = expected(whole, [*(blob.value for blob in second.inputs), "y"], {"x": x})
        inputs = {}
        for blob, rows, wanted in zip(second.inputs, lists, between, strict=True):
            np.testing.assert_allclose(rows[place], wanted.reshape(-1), rtol=1e-5, atol=1e-6)
            inputs[blob.node] = rows[place].reshape(wanted.shape).astype(np.float32)
        np.testing.assert_allclose(results(second, run_caffe, inputs)["y"], y, rtol=1e-4, atol=1e-4)


def test_nothing_is_written_when_something_is_refused(tmp_path: Path) -> None:
    spec, w = Preprocess("stretch", 16, 16), {"w": (5, 3, 3, 3)}
    mean = small("a = Conv(x, w) y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(a)", w, spec)
    with pytest.raises(UnsupportedOperatorError, match="y: Caffe has no mean that leaves out the border"):
        emit_mapper(mean, tmp_path / "out", [np.zeros((4, 4, 3), np.uint8)])
    with pytest.raises(ConversionError, match="needs typical pictures"):
        emit_mapper(small("y = Conv(x, w)", w, spec), tmp_path / "out", [])
    tiny = small("y = Conv(x, w)", w, Preprocess("stretch", 4, 16))
    with pytest.raises(ConversionError, match="input is 16 x 4; NNIE takes pictures of 8 to 4096 pixels"):
        emit_mapper(tiny, tmp_path / "out", [np.zeros((4, 4, 3), np.uint8)])
    assert not (tmp_path / "out").exists()


# Does what is known of the mapper: reads a configuration in the current folder, checks its files, writes the compiled network.
STAND_IN = r"""#!/bin/sh
value() { sed -n "s/^\[$1\] //p" "$config"; }
config=$1
for key in prototxt_file caffemodel_file image_list; do
    [ -s "$(value $key)" ] || { echo "no $key"; exit 3; }
done
echo "begin net parsing...."
{ printf 'abcdefgh\300\0\0\0'; head -c 300 /dev/zero; } > "$(value instruction_name).wk"
echo "end binary code generating"
"""


@pytest.fixture
def emitted(tmp_path: Path) -> Emitted:
    model = small("y = Conv(x, w)", {"w": (5, 3, 3, 3)}, Preprocess("letterbox", 16, 16))
    return emit_mapper(model, tmp_path / "with space", [np.zeros((4, 4, 3), np.uint8)])


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a program and names it as the mapper."""

    def write(text: str) -> str:
        path = tmp_path / "nnie_mapper_11"
        path.write_text(text)
        path.chmod(0o755)
        monkeypatch.setenv(MAPPER_VARIABLE, str(path))
        found = mapper_program()
        assert found
        return found

    return write


def test_the_mapper_is_run_in_the_folder(emitted: Emitted, program: Callable[[str], str]) -> None:
    [job] = emitted.jobs
    made = run_mapper(program(STAND_IN), job)
    assert made == job.wk
    assert made.stat().st_size == 312
    assert job.config.with_suffix(".log").read_text().splitlines()[-1] == "end binary code generating"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "#!/bin/sh\necho 'ERROR: Permute'\nexit 5\n",
            r"it failed with the exit code 5: ERROR: Permute \(more in .*small.log\)",
        ),
        (
            "#!/bin/sh\nprintf 'bad \\033[31m layer\\n****\\n\\n'\nexit 1\n",
            r"it failed with the exit code 1: bad \[31m layer \(more in",
        ),
        ("#!/bin/sh\nkill -SEGV $$\n", "it was ended by the signal 11$"),
        ("#!/bin/sh\necho done\n", r"it has not written small.wk: done \("),
        ("#!/bin/sh\necho text > small.wk\n", "small.wk is no compiled network$"),
        ("#!/nowhere/at/all\n", r"it cannot be started \(No such file or directory\)"),
    ],
)
def test_a_mapper_that_fails_is_one_line(text: str, said: str, emitted: Emitted, program: Callable[[str], str]) -> None:
    with pytest.raises(ConversionError, match=f"^[^\n]*nnie_mapper_11: {said}") as caught:
        run_mapper(program(text), emitted.jobs[0])
    assert str(caught.value).isprintable()


def test_a_result_of_an_earlier_run_is_not_taken_for_a_new_one(emitted: Emitted, program: Callable[[str], str]) -> None:
    [job] = emitted.jobs
    earlier = run_mapper(program(STAND_IN), job).read_bytes()
    with pytest.raises(ConversionError, match=r"it has not written small\.wk"):
        run_mapper(program("#!/bin/sh\n"), job)
    assert job.wk.read_bytes() == earlier


def test_a_mapper_that_does_not_end_is_stopped_with_all_it_started(
    emitted: Emitted, program: Callable[[str], str], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    hanging = program(f"#!/bin/sh\nexec 3> '{pipe}'\necho started >&3\nsleep 1000 &\nwait\n")
    with pytest.raises(ConversionError, match="stopped, as it had not ended after 1 s"):
        run_mapper(hanging, emitted.jobs[0], timeout_s=1)
    # The pipe ends when nobody is left who could write to it.
    said = [b"?"]
    while said[-1] and select.select([reading], [], [], 60)[0]:
        said.append(os.read(reading, 100))
    os.close(reading)
    assert said == [b"?", b"started\n", b""]


def test_the_mapper_is_found_or_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(MAPPER_VARIABLE, raising=False)
    assert mapper_program() is None
    plain = tmp_path / "plain"
    plain.write_text("no program")
    monkeypatch.setenv(MAPPER_VARIABLE, str(plain))
    with pytest.raises(ConversionError, match=f"{MAPPER_VARIABLE}: .*plain is no program that can be run"):
        mapper_program()
