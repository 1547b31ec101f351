"""A device that computes something else than the CPU is found out, and the fault is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import pyasc
from pyasc.errors import DeviceError, ModelFormatError
from pyasc.hal.base import TensorInfo
from pyasc.models.asc.archive import open_archive, write_archive
from pyasc.models.asc.manifest import Manifest
from pyasc.models.image import read_image
from pyasc.models.postprocess import Thresholds, Yolov5Decoder
from pyasc.models.preprocess import letterbox
from pyasc.models.selftest import decode_picture, encode_picture, faults, read_selftest, write_selftest
from pyasc.runtime.values import convert

Outputs = list[NDArray[Any]]


class Case(NamedTuple):
    """A test of yolov5n, and the CPU's outputs for its picture in the graph's layout."""

    manifest: Manifest
    entry: bytes
    outputs: Outputs


@pytest.fixture(scope="module")
def case(yolov5n_asc: Path, shared: Path) -> Case:
    """Made from a real picture with people and a bus."""
    with pyasc.load_model(yolov5n_asc, device="cpu") as model:
        manifest, executable = model.manifest, model.executable
        letterboxed, _ = letterbox(read_image(shared / "images/bus.jpg"), 640, 640)
        data = encode_picture(letterboxed)
        array, _ = model.preprocess(decode_picture(data, manifest.preprocess))
        made = executable.run([array])
        outputs = [convert(*pair) for pair in zip(made, executable.outputs, manifest.outputs, strict=True)]
    return Case(manifest, write_selftest(data, outputs, boxes_of(manifest, outputs, 0.25)), outputs)


def boxes_of(manifest: Manifest, outputs: Outputs, confidence: float) -> list[tuple[int, float]]:
    decode = Yolov5Decoder(manifest.postprocess, manifest.outputs, len(manifest.labels))  # type: ignore[arg-type]
    found = decode(outputs, Thresholds(confidence, 0.45, 300))
    return list(zip(found.class_id.tolist(), found.score.tolist(), strict=True))


def verdict(
    case: Case, change: Callable[[NDArray[Any]], NDArray[Any]], tensors: tuple[TensorInfo, ...] | None = None
) -> list[str]:
    test = read_selftest(memoryview(case.entry), case.manifest)
    changed = [change(output.copy()) for output in case.outputs]
    boxes = boxes_of(case.manifest, changed, 0.05) if tensors is None else []
    return faults(test, case.manifest, tensors or case.manifest.outputs, changed, boxes)


def test_the_stored_answers_are_those_of_the_cpu(case: Case) -> None:
    test = read_selftest(memoryview(case.entry), case.manifest)
    assert test.picture.shape == (640, 640, 3)
    assert {case.manifest.labels[number] for number, _ in test.boxes} == {"person", "bus"}
    assert [len(numbers) for numbers in test.samples] == [4096] * 3
    assert verdict(case, lambda output: output) == []


@pytest.mark.parametrize("levels", [127, 1000])
def test_quantisation_is_no_fault(case: Case, levels: int) -> None:
    def rounded(output: NDArray[Any]) -> NDArray[Any]:
        step = np.abs(output).max() / levels
        return np.rint(output / step) * np.float32(step)

    assert verdict(case, rounded) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda output: np.full_like(output, -4.6), "is the constant -4.6"),
        (lambda output: output * 4096, "has another scale: 4.1e+03 times the CPU's"),
        (lambda output: output / 16, "has another scale: 0.0625 times the CPU's"),
        (lambda output: output * np.nan, "has values that are not finite"),
        (lambda output: np.random.default_rng(0).standard_normal(output.shape).astype("f4"), "is not the CPU's"),
        (lambda output: np.clip(output, -6, 6), "is saturated: "),
        (lambda output: np.roll(output, 7, axis=1), "is not the CPU's"),
    ],
    ids=["constant", "large", "small", "nan", "noise", "saturated", "shifted"],
)
def test_a_wrong_answer_is_named(case: Case, change: Callable[[NDArray[Any]], NDArray[Any]], message: str) -> None:
    found = verdict(case, change)
    assert len(found) == 3
    assert [fault for fault in found if message not in fault] == []


def test_a_wrong_layout_is_named(case: Case) -> None:
    """The device gives channels last, and says that it gives them first."""
    found = verdict(case, lambda output: np.ascontiguousarray(output.transpose(0, 2, 3, 1)), case.manifest.outputs)
    assert [fault.split(" has ")[1] for fault in found] == ["another layout: NHWC, not NCHW"] * 3


def test_a_missing_class_is_named(case: Case) -> None:
    bus = case.manifest.labels.index("bus")

    def without_bus(output: NDArray[Any]) -> NDArray[Any]:
        output.reshape(3, 85, -1)[:, 5 + bus] = -12
        return output

    assert verdict(case, without_bus) == ["class 'bus' is missing"]


def test_a_saturated_score_is_named(case: Case) -> None:
    def sure(output: NDArray[Any]) -> NDArray[Any]:
        grid = output.reshape(3, 85, -1)
        grid[:, 4:][grid[:, 4:] > 0.5] = 15
        return output

    assert verdict(case, sure)[0].startswith("a score is saturated: 1.000, the CPU's best is 0.")


def test_quantised_outputs_of_another_layout_are_read_by_their_tables(case: Case) -> None:
    tensors = tuple(
        TensorInfo(tensor.name, tuple(tensor.shape[i] for i in (0, 2, 3, 1)), "int32", "NHWC", 1 / 4096, 0)
        for tensor in case.manifest.outputs
    )
    test = read_selftest(memoryview(case.entry), case.manifest)
    stored = [convert(*pair) for pair in zip(case.outputs, case.manifest.outputs, tensors, strict=True)]
    assert faults(test, case.manifest, tensors, stored, boxes_of(case.manifest, case.outputs, 0.05)) == []


@pytest.mark.parametrize("cut", [0, 7, 11, 1000, -1])
def test_a_cut_entry_is_refused(case: Case, cut: int) -> None:
    with pytest.raises(ModelFormatError, match="self-test: "):
        read_selftest(memoryview(case.entry)[:cut], case.manifest)


def test_changed_entries_are_refused_or_read_and_nothing_else(case: Case) -> None:
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(200):
        data = bytearray(case.entry)
        data[rng.integers(0, 20)] = rng.integers(0, 256)
        data[rng.integers(0, len(data))] = rng.integers(0, 256)
        try:
            read_selftest(memoryview(bytes(data)), case.manifest)
        except ModelFormatError:
            refused += 1
    assert refused > 100


def test_an_entry_of_another_model_is_refused(case: Case) -> None:
    other = dataclasses.replace(case.manifest, outputs=case.manifest.outputs[:2])
    with pytest.raises(ModelFormatError, match="3 outputs for the 2 of the model"):
        read_selftest(memoryview(case.entry), other)


def stored(asc: Path, target: Path, entry: bytes) -> Path:
    """The model with a self-test beside its variant for the cpu."""
    with open_archive(asc) as archive:
        [variant] = archive.manifest.variants
        tested = dataclasses.replace(variant, selftest="variants/cpu/selftest.bin")
        entries = {variant.path: bytes(archive.entry(variant.path)), tested.selftest: entry}
        write_archive(target, dataclasses.replace(archive.manifest, variants=(tested,)), archive.graph(), entries)
    return target


def test_a_model_is_tested_when_it_is_loaded(case: Case, yolov5n_asc: Path, tmp_path: Path) -> None:
    with pyasc.load_model(stored(yolov5n_asc, tmp_path / "tested.asc", case.entry), device="cpu") as model:
        assert model.device == "cpu"


def test_a_device_that_fails_the_test_is_not_used(case: Case, yolov5n_asc: Path, tmp_path: Path) -> None:
    test = read_selftest(memoryview(case.entry), case.manifest)
    doubled = [2 * output for output in case.outputs]
    wrong = write_selftest(encode_picture(test.picture), doubled, test.boxes)
    with pytest.raises(
        DeviceError, match=r"cpu computes yolov5n wrong: .* has another scale: 0\.50\d* times the CPU's"
    ):
        pyasc.load_model(stored(yolov5n_asc, tmp_path / "tested.asc", wrong), device="cpu")
