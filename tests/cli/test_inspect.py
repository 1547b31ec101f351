"""`pyasc inspect`, run as a user runs it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pty
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

from pyasc.errors import ModelFormatError
from pyasc.hal.base import TensorInfo
from pyasc.hal.registry import discover_devices, open_device
from pyasc.models.asc.archive import open_archive, write_archive
from pyasc.models.asc.manifest import ClassificationHead, EmbeddingHead, Manifest, Preprocess, Variant
from pyasc.models.asc.plan import choose_form
from pyasc.models.model import load_model

VARIANT = "variants/hi3559/model.wk"
NAME = "osnet [red]x0.25[/red] :smile:"


def inspect(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyasc", "inspect", *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def graph(demo_dir: Path) -> bytes:
    return (demo_dir / "osnet_x0_25.onnx").read_bytes()


@pytest.fixture(scope="module")
def embedder(graph: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped appearance model as an `.asc` file, with something for an NPU beside it."""
    path = tmp_path_factory.mktemp("inspect") / "embedder.asc"
    images = TensorInfo("images", (1, 3, 256, 128), "float32", "NCHW")
    quantised = TensorInfo("images", (1, 256, 128, 3), "uint8", "NHWC", 0.0078125, 128)
    features = (TensorInfo("output", (1, 512), "float32"),)
    preprocess = Preprocess("stretch", 256, 128, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    variant = Variant("hi3559", "wk", VARIANT, "int8", (quantised,), features)
    manifest = Manifest(
        NAME, "embed", "osnet", "fp32", (images,), features, preprocess, EmbeddingHead(512),
        variants=(variant,), source={"file": "osnet_x0_25.onnx", "licence": "MIT"},
    )  # fmt: skip
    write_archive(path, manifest, graph, {VARIANT: b"compiled"})
    return path


@pytest.fixture(scope="module")
def report(embedder: Path) -> dict[str, Any]:
    done = inspect(embedder, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_the_graph_is_what_the_onnx_package_reads(report: dict[str, Any], graph: bytes) -> None:
    model = onnx.load_from_string(graph)
    assert report["graph"]["operators"] == dict(Counter(node.op_type for node in model.graph.node))
    assert report["graph"]["opsets"] == {"ai.onnx": model.opset_import[0].version}
    assert report["graph"]["weights"] == len(model.graph.initializer)
    assert report["graph"]["size_bytes"] == len(graph)
    assert report["graph"]["sha256"] == hashlib.sha256(graph).hexdigest()


def test_the_machine_form_has_the_whole_manifest(report: dict[str, Any], embedder: Path) -> None:
    assert (report["file"], report["size_bytes"]) == (str(embedder), embedder.stat().st_size)
    assert (report["name"], report["task"], report["template"], report["precision"]) == (NAME, "embed", "osnet", "fp32")
    assert report["inputs"][0]["shape"] == [1, 3, 256, 128]
    assert report["preprocess"]["mean"] == [0.485, 0.456, 0.406]
    assert report["postprocess"] == {"type": "embedding", "dim": 512, "normalize": "l2"}
    assert report["source"] == {"file": "osnet_x0_25.onnx", "licence": "MIT"}
    (variant,) = report["variants"]
    assert (variant["target"], variant["size_bytes"]) == ("hi3559", 8)
    assert variant["sha256"] == hashlib.sha256(b"compiled").hexdigest()
    assert (variant["inputs"][0]["scale"], variant["inputs"][0]["zero_point"]) == (0.0078125, 128)


def test_every_device_of_this_box_has_the_plan_that_loading_follows(report: dict[str, Any], embedder: Path) -> None:
    devices = discover_devices()
    assert [row["device"] for row in report["devices"]] == [info.name for info in devices]
    assert report["absent"] == dict(devices.absent)
    with open_archive(embedder) as archive, open_device("cpu") as cpu:
        form = choose_form(archive.manifest, cpu.info, cpu.formats())
    row = next(row for row in report["devices"] if row["device"] == "cpu")
    assert (row["runs"], row["format"], row["precision"]) == (form.path, form.format, form.precision)
    assert {"path": VARIANT, "reason": "compiled for hi3559"} in row["rejected"]


def test_the_default_device_is_the_one_that_load_model_takes(report: dict[str, Any], embedder: Path) -> None:
    with load_model(embedder) as model:
        assert report["default_device"] == model.device


def test_loading_says_what_works(embedder: Path, report: dict[str, Any]) -> None:
    assert {row["loaded"] for row in report["devices"]} == {None}
    done = inspect(embedder, "--load", "--json")
    assert done.returncode == 0
    loaded = json.loads(done.stdout)
    for row in loaded["devices"]:
        assert row["loaded"] == (True if row["runs"] else None)
        assert row["error"] is None
    assert any("graph.onnx, loads" in line for line in inspect(embedder, "--load").stdout.splitlines())


def test_loading_says_what_fails(tmp_path: Path, embedder: Path, graph: bytes) -> None:
    """A variant for the cpu that is no model: the plan still names it, as loading does, and loading it fails."""
    with open_archive(embedder) as archive:
        manifest = archive.manifest
    path = "variants/cpu/model.tflite"
    variant = Variant("cpu", "tflite", path, "fp32", manifest.inputs, manifest.outputs)
    write_archive(tmp_path / "m.asc", dataclasses.replace(manifest, variants=(variant,)), graph, {path: b"no model"})
    done = inspect(tmp_path / "m.asc", "--load", "--json")
    assert done.returncode == 1
    row = next(row for row in json.loads(done.stdout)["devices"] if row["device"] == "cpu")
    assert (row["runs"], row["loaded"]) == (path, False)
    with pytest.raises(ModelFormatError) as caught:
        load_model(tmp_path / "m.asc", device="cpu")
    assert row["error"] == str(caught.value)
    assert f"{path}, does not load" in inspect(tmp_path / "m.asc", "--load").stdout


def test_a_manifest_that_contradicts_the_graph(tmp_path: Path, embedder: Path, graph: bytes) -> None:
    with open_archive(embedder) as archive:
        outputs = (TensorInfo("features", (1, 512), "float32"),)
        manifest = dataclasses.replace(archive.manifest, outputs=outputs, variants=())
    write_archive(tmp_path / "m.asc", manifest, graph, {})
    fails(inspect(tmp_path / "m.asc"), 1, "graph.onnx: its outputs are output, the manifest promises features")


def test_the_form_for_people(embedder: Path, report: dict[str, Any]) -> None:
    done = inspect(embedder)
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert f"model {NAME}: embed, template osnet, fp32" in lines
    assert "input images: 1 x 3 x 256 x 128 float32 NCHW" in lines
    assert "preprocess stretch to 128 x 256, RGB, mean 0.485 0.456 0.406, std 0.229 0.224 0.225" in lines
    assert "postprocess embedding of 512 values, normalisation l2" in lines
    assert "labels none" in lines
    assert "source licence MIT" in lines
    assert any(line.startswith("operators Conv 187, Relu 101, ") for line in lines)
    assert any(VARIANT in line and line.endswith(report["variants"][0]["sha256"]) for line in lines)
    assert any("(q - 128) * 0.0078125" in line for line in lines)
    assert any(line.startswith(f"{report['default_device']} (default) graph.onnx ") for line in lines)
    assert any(line.startswith("cpu ") and f"{VARIANT}: compiled for hi3559" in line for line in lines)


def test_a_pipe_gets_plain_text_and_whole_lines(embedder: Path) -> None:
    out = inspect(embedder).stdout
    assert "\x1b" not in out
    assert out.isascii()
    assert all(line == line.rstrip() for line in out.splitlines())


def test_a_terminal_gets_lines_that_fit_it(embedder: Path) -> None:
    main, side = pty.openpty()
    try:
        environment = {**os.environ, "COLUMNS": "60", "TERM": "xterm", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "pyasc", "inspect", str(embedder)]
        with subprocess.Popen(command, stdout=side, stderr=subprocess.DEVNULL, env=environment) as process:
            os.close(side)
            text = read_to_the_end(main).decode()
            assert process.wait(60) == 0
    finally:
        os.close(main)
    plain = "".join(part.partition("m")[2] if number else part for number, part in enumerate(text.split("\x1b[")))
    assert max(map(len, plain.splitlines())) <= 60
    assert NAME.split(maxsplit=1)[0] in plain


def read_to_the_end(descriptor: int) -> bytes:
    """Everything until the other side of the terminal is closed, which Linux reports as an error of reading."""
    parts = []
    try:
        while part := os.read(descriptor, 65536):
            parts.append(part)
    except OSError:
        pass
    return b"".join(parts)


def test_a_classifier_with_many_labels(tmp_path: Path, graph: bytes) -> None:
    labels = tuple(f"class {number}" for number in range(512))
    images = (TensorInfo("images", (1, 3, 256, 128), "float32", "NCHW"),)
    manifest = Manifest(
        "c", "classify", "onnx", "fp32", images, (TensorInfo("output", (1, 512), "float32"),),
        Preprocess("letterbox", 256, 128), ClassificationHead("softmax"), labels,
    )  # fmt: skip
    write_archive(tmp_path / "c.asc", manifest, graph, {})
    done = inspect(tmp_path / "c.asc")
    assert done.returncode == 0, done.stderr
    assert "class 11, ... (512 in all)" in done.stdout
    assert "letterbox to 128 x 256 with grey 114" in done.stdout
    assert "classification, activation softmax" in done.stdout
    assert json.loads(inspect(tmp_path / "c.asc", "--json").stdout)["labels"] == list(labels)


def fails(done: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    assert done.returncode == code
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_file_is_one_line_and_exit_code_1(tmp_path: Path, embedder: Path) -> None:
    path = tmp_path / "damaged.asc"
    raw = bytearray(embedder.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    fails(inspect(path), 1, f"pyasc: {path}: graph.onnx: its SHA-256 is not that of the manifest")
    path.write_bytes(raw[:-1])
    fails(inspect(path, "--json"), 1, f"pyasc: {path}: ")


def test_a_graph_that_is_no_onnx(tmp_path: Path, embedder: Path) -> None:
    with open_archive(embedder) as archive:
        write_archive(tmp_path / "m.asc", archive.manifest, b"no model", {VARIANT: b"x"})
    fails(inspect(tmp_path / "m.asc"), 1, f"pyasc: {tmp_path / 'm.asc'}: graph.onnx: ")


def test_an_absent_file_and_wrong_use(tmp_path: Path) -> None:
    fails(inspect(tmp_path / "absent.asc"), 1, "absent.asc")
    fails(inspect(tmp_path), 1, "not a regular file")
    fails(inspect(), 2, "FILE")
    fails(inspect("--colour", "x"), 2, "--colour")
