"""YOLOv5's graph, layer by layer against plain formulas, and checkpoints that say what cannot be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyasc.errors import ConversionError
from pyasc.models.conversion.checkpoint import load_checkpoint
from pyasc.models.conversion.onnx_builder import OnnxBuilder
from pyasc.models.conversion.pickle_values import Name, Record
from pyasc.models.conversion.templates import Converted, Options, from_checkpoint
from pyasc.models.conversion.torch_modules import Module
from pyasc.models.conversion.torch_values import Storage, Tensor
from pyasc.models.conversion.yolov5_layers import Layers

DEMO = Path(__file__).resolve().parents[2] / "demo"


def run(graph: bytes, tensor: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"images": tensor}))


@pytest.fixture
def tree(demo_dir: Path) -> Any:
    """The demo detector's checkpoint, for changing."""
    return load_checkpoint(demo_dir / "yolov5n.pt")


def build(tree: Any, size: int = 64) -> Converted:
    return from_checkpoint(tree, None, Options("fp32", (size, size), 1, "test"))


def layer(tree: Any, number: int) -> Any:
    return tree["model"].state["_modules"]["model"].state["_modules"][str(number)]


def test_the_average_is_preferred(tree: Any) -> None:
    tree["ema"], tree["model"] = tree["model"], Record(Name("models.yolo", "Model"))
    assert build(tree).manifest.labels[0] == "person"


def test_a_bare_network_and_one_of_the_package_yolov5(tree: Any) -> None:
    network = tree["model"]
    network.kind = Name("yolov5.models.yolo", "DetectionModel")
    assert build(network).manifest.task == "detect"


def test_names_as_a_dict(tree: Any) -> None:
    tree["model"].state["names"] = {k: f"kind {k}" for k in reversed(range(80))}
    assert build(tree).manifest.labels[:2] == ("kind 0", "kind 1")


def test_folded_and_plain_convolutions_agree(tree: Any) -> None:
    plain = build(tree)
    conv = layer(tree, 0)
    inner, norm = conv.state["_modules"]["conv"], conv.state["_modules"].pop("bn")
    weight, (mean, variance), (gamma, beta) = (
        inner.state["_parameters"]["weight"].array().astype(np.float64),
        (norm.state["_buffers"][key].array().astype(np.float64) for key in ("running_mean", "running_var")),
        (norm.state["_parameters"][key].array().astype(np.float64) for key in ("weight", "bias")),
    )
    scale = gamma / np.sqrt(variance + norm.state["eps"])
    inner.state["_parameters"]["weight"] = as_tensor(weight * scale[:, None, None, None])
    inner.state["_parameters"]["bias"] = as_tensor(beta - mean * scale)
    image = np.random.default_rng(1).random((1, 3, 64, 64), np.float32)
    for found, wanted in zip(*(run(m.model.SerializeToString(), image) for m in (build(tree), plain)), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def as_tensor(values: Any) -> Tensor:
    values = np.ascontiguousarray(values, "<f8")
    store = Storage("DoubleStorage", values.size, values.dtype, lambda: memoryview(values.tobytes()))
    return Tensor(store, 0, values.shape, tuple(step // 8 for step in values.strides))


def record(kind: str, modules: dict[str, Record] | None = None, **state: Any) -> Record:
    module, name = ("torch.nn.modules", kind) if not kind.startswith("models.") else kind.rsplit(".", 1)
    return Record(
        Name(module + (".conv" if module.startswith("torch") else ""), name), (), {"_modules": modules or {}, **state}
    )


def conv2d(weight: Any, stride: int = 1, padding: int = 0) -> Record:
    settings = {"stride": stride, "padding": padding, "dilation": 1, "groups": 1}
    return record("Conv2d", _parameters={"weight": as_tensor(weight)}, **settings)


def apply(module: Record, image: Any) -> Any:
    builder = OnnxBuilder("test", "fp32")
    value = Layers(builder).emit(Module(module, "layer 0"), builder.input("images", image.shape))
    return run(builder.build([("out", value)]).SerializeToString(), image)[0]


@pytest.mark.parametrize(("kernel", "padding"), [(1, 0), (3, 1), (5, 2)])
def test_focus_is_slicing_and_convolving(kernel: int, padding: int) -> None:
    random = np.random.default_rng(7)
    weight, image = random.normal(size=(4, 12, kernel, kernel)), random.normal(size=(1, 3, 16, 12)).astype(np.float32)
    parts = [image[..., ::2, ::2], image[..., 1::2, ::2], image[..., ::2, 1::2], image[..., 1::2, 1::2]]
    conv = record("models.common.Conv", {"conv": conv2d(weight, padding=padding)})
    wanted = apply(conv, np.concatenate(parts, 1))
    found = apply(record("models.common.Focus", {"conv": conv}), image)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_bottleneck_csp_with_its_batch_norm_behind_the_joint() -> None:
    random = np.random.default_rng(8)
    image = random.normal(size=(1, 4, 5, 6)).astype(np.float32)
    first, deep, flat, last = (random.normal(size=shape) for shape in ((2, 4), (2, 2), (3, 4), (4, 5)))
    mean, variance, gamma, beta = (
        random.normal(size=5),
        random.random(5) + 0.5,
        random.normal(size=5),
        random.normal(size=5),
    )
    norm = record(
        "BatchNorm2d",
        eps=1e-3,
        _parameters={"weight": as_tensor(gamma), "bias": as_tensor(beta)},
        _buffers={"running_mean": as_tensor(mean), "running_var": as_tensor(variance)},
    )
    convs = {key: conv2d(w[:, :, None, None]) for key, w in (("1", first), ("2", flat), ("3", deep), ("4", last))}
    module = record(
        "models.common.BottleneckCSP",
        {
            "cv1": record("models.common.Conv", {"conv": convs["1"]}),
            "cv2": convs["2"],
            "cv3": convs["3"],
            "cv4": record("models.common.Conv", {"conv": convs["4"]}),
            "bn": norm,
            "act": record("LeakyReLU", negative_slope=0.1),
            "m": record("Sequential"),
        },
    )
    pixels = image[0].reshape(4, -1)
    joined = np.concatenate([deep @ first @ pixels, flat @ pixels])
    joined = (joined - mean[:, None]) / np.sqrt(variance + 1e-3)[:, None] * gamma[:, None] + beta[:, None]
    wanted = last @ np.where(joined > 0, joined, 0.1 * joined)
    np.testing.assert_allclose(apply(module, image)[0].reshape(4, -1), wanted, atol=1e-5)


def conv(weight: Any) -> Record:
    return record("models.common.Conv", {"conv": conv2d(weight)})


def test_ghost_layers() -> None:
    random = np.random.default_rng(9)
    image = random.normal(size=(1, 4, 5, 6)).astype(np.float32)
    pixels, shape = image[0].reshape(4, -1), (-1, 30)
    first, second = random.normal(size=(2, 4)), random.normal(size=(2, 2))
    parts = {"cv1": conv(first[:, :, None, None]), "cv2": conv(second[:, :, None, None])}
    ghost = record("models.common.GhostConv", parts)
    wanted = np.concatenate([first @ pixels, second @ first @ pixels])
    np.testing.assert_allclose(apply(ghost, image)[0].reshape(shape), wanted, atol=1e-5)
    block = {"conv": record("Sequential", {"0": ghost, "1": record("Identity")}), "shortcut": record("Sequential")}
    found = apply(record("models.common.GhostBottleneck", block), image)[0].reshape(shape)
    np.testing.assert_allclose(found, wanted + pixels, atol=1e-5)


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("kind", ["Bottleneck", "CrossConv"])
def test_bottlenecks_add_their_input_where_they_say_so(kind: str, add: bool) -> None:
    random = np.random.default_rng(10)
    image = random.normal(size=(1, 4, 5, 6)).astype(np.float32)
    first, second = random.normal(size=(2, 4)), random.normal(size=(4, 2))
    parts = {"cv1": conv(first[:, :, None, None]), "cv2": conv(second[:, :, None, None])}
    pixels = image[0].reshape(4, -1)
    found = apply(record(f"models.common.{kind}", parts, add=add), image)[0].reshape(4, -1)
    np.testing.assert_allclose(found, second @ first @ pixels + add * pixels, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "settings", "formula"),
    [
        ("SiLU", {}, lambda x: x / (1 + np.exp(-x))),
        ("Hardswish", {}, lambda x: x * np.clip(x + 3, 0, 6) / 6),
        ("LeakyReLU", {"negative_slope": 0.1}, lambda x: np.where(x > 0, x, 0.1 * x)),
        ("ReLU", {}, lambda x: np.maximum(x, 0)),
    ],
)
def test_activations(kind: str, settings: dict[str, float], formula: Callable[[Any], Any]) -> None:
    image = np.linspace(-5, 5, 101, dtype=np.float32).reshape(1, 1, 1, 101)
    np.testing.assert_allclose(apply(record(kind, **settings), image), formula(image), atol=1e-6)


def no_network(tree: Any) -> None:
    del tree["model"]


def no_stride(tree: Any) -> None:
    del layer(tree, 24).state["stride"]


def other_layer(tree: Any) -> None:
    layer(tree, 4).kind = Name("models.common", "C3TR")


def other_head(tree: Any) -> None:
    layer(tree, 24).kind = Name("models.yolo", "Segment")


def landmarks(tree: Any) -> None:
    layer(tree, 24).state["no"] = 95


def cycle(tree: Any) -> None:
    inner = layer(tree, 2).state["_modules"]["m"]
    inner.state["_modules"]["0"] = inner


def explosion(tree: Any) -> None:
    inner = layer(tree, 2).state["_modules"]["m"]
    for _ in range(8):
        inner = record("Sequential", {str(k): inner for k in range(16)})
    layer(tree, 2).state["_modules"]["m"] = inner


def bad_route(tree: Any) -> None:
    layer(tree, 12).state["f"] = [-1, 99]


def bad_concat(tree: Any) -> None:
    layer(tree, 12).state["f"] = [-1, 2]


def bad_weight(tree: Any) -> None:
    conv = layer(tree, 3).state["_modules"]["conv"]
    conv.state["_parameters"]["weight"] = as_tensor(np.full((64, 32, 3, 3), np.nan))


def narrow_weight(tree: Any) -> None:
    conv = layer(tree, 3).state["_modules"]["conv"]
    conv.state["_parameters"]["weight"] = as_tensor(np.zeros((64, 31, 3, 3)))


def text_weight(tree: Any) -> None:
    layer(tree, 3).state["_modules"]["conv"].state["_parameters"]["weight"] = "many"


def short_norm(tree: Any) -> None:
    norm = layer(tree, 3).state["_modules"]["bn"]
    for name in ("running_mean", "running_var"):
        norm.state["_buffers"][name] = as_tensor(np.ones(3))
    for name in ("weight", "bias"):
        norm.state["_parameters"][name] = as_tensor(np.ones(3))


def text_norm(tree: Any) -> None:
    layer(tree, 3).state["_modules"]["bn"] = "none"


def no_bool(tree: Any) -> None:
    layer(tree, 2).state["_modules"]["m"].state["_modules"]["0"].state["add"] = 1


def few_names(tree: Any) -> None:
    tree["model"].state["names"] = ["person"]


def huge_stride(tree: Any) -> None:
    layer(tree, 3).state["_modules"]["conv"].state["stride"] = (10**9, 10**9)


def reflecting(tree: Any) -> None:
    layer(tree, 3).state["_modules"]["conv"].state["padding_mode"] = "reflect"


def no_layers(tree: Any) -> None:
    tree["model"].state["_modules"]["model"].state["_modules"] = {}


def no_table(tree: Any) -> None:
    tree["model"].state["_modules"] = 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_network, "checkpoint without a network"),
        (no_stride, r"layer 24 \(models\.yolo\.Detect\): .* without stride"),
        (other_layer, r"layer 4 \(models\.common\.C3TR\): .* not a layer of YOLOv5 that can be converted"),
        (other_head, r"layer 24 \(models\.yolo\.Segment\): .* not the detection head"),
        (landmarks, r"layer 24 \(models\.yolo\.Detect\): has 95 values for each anchor and 80 classes"),
        (cycle, r"layer 2 \(models\.common\.C3\).*: is nested too deeply"),
        (explosion, "more than 20000 operators"),
        (bad_route, r"layer 12 \(models\.common\.Concat\): reads from layer 99"),
        (bad_concat, r"layer 12 \(models\.common\.Concat\): shapes .* cannot be joined"),
        (bad_weight, r"layer 3 \(models\.common\.Conv\), conv: weight holds values that are not finite"),
        (narrow_weight, r"layer 3 \(models\.common\.Conv\): a weight of shape \[64, 31, 3, 3\]"),
        (text_weight, r"layer 3 \(models\.common\.Conv\), conv: weight is not a tensor of 4 axes"),
        (short_norm, r"layer 3 \(models\.common\.Conv\), conv: 64 channels are followed by a BatchNorm of 3"),
        (text_norm, r"layer 3 \(models\.common\.Conv\): bn is no module"),
        (no_bool, r"layer 2 \(models\.common\.C3\), m, 0: add is neither True nor False"),
        (few_names, "has 1 class names for 80 classes"),
        (huge_stride, r"layer 3 \(models\.common\.Conv\), conv: stride is not"),
        (reflecting, r"layer 3 \(models\.common\.Conv\), conv: pads with other values than zeros"),
        (no_layers, "the network has 0 layers"),
        (no_table, "_modules is no table"),
    ],
)
def test_what_cannot_be_converted_is_named(tree: Any, change: Callable[[Any], None], message: str) -> None:
    change(tree)
    with pytest.raises(ConversionError, match=message):
        build(tree)


@pytest.mark.parametrize("size", [100, 0, -32, 16384])
def test_impossible_image_sizes(tree: Any, size: int) -> None:
    with pytest.raises(ConversionError, match=f"an image size of {size} x {size}"):
        build(tree, size)


def tables_of(tree: Any) -> list[dict[Any, Any]]:
    """Every table of attributes that can be reached, each once."""
    found: list[dict[Any, Any]] = []
    seen, todo = set(), [tree]
    while todo:
        value = todo.pop()
        table = value.state if isinstance(value, Record) else value
        if isinstance(table, dict) and table and id(table) not in seen:
            seen.add(id(table))
            found.append(table)
            todo.extend(table.values())
    return found


ODD_VALUES = [
    None,
    -1,
    0,
    1,
    "x",
    [],
    {},
    (),
    (1, 1),
    (-1, 2),
    1e308,
    float("nan"),
    1 << 70,
    True,
    Name("a", "b"),
    b"x",
]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_changed_trees_raise_only_our_errors(data: st.DataObject) -> None:
    tree = load_checkpoint(DEMO / "yolov5n.pt")
    tables = tables_of(tree)
    for _ in range(data.draw(st.integers(1, 3))):
        table = data.draw(st.sampled_from(tables))
        key = data.draw(st.sampled_from(list(table)))
        other = data.draw(st.sampled_from(tables))
        table[key] = data.draw(st.sampled_from([*ODD_VALUES, other, *other.values()]))
    with contextlib.suppress(ConversionError):
        assert build(tree).manifest.task == "detect"
