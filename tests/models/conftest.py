"""A small model file that the tests of the format share; its graph and its variant are not real ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from pyasc.hal.base import TensorInfo
from pyasc.models.asc.archive import write_archive
from pyasc.models.asc.manifest import Manifest, Preprocess, Variant, Yolov5Head

STRIDES = (8, 16, 32)
VARIANT = "variants/cpu/model.tflite"
GRAPH_BYTES, VARIANT_BYTES = bytes(range(256)) * 2 + b"end", b"tflite" * 33


def nhwc(tensor: TensorInfo) -> TensorInfo:
    batch, channels, height, width = tensor.shape
    return dataclasses.replace(tensor, shape=(batch, height, width, channels), layout="NHWC")


@pytest.fixture
def detector() -> Manifest:
    """A detector of two classes with a variant for the cpu."""
    inputs = (TensorInfo("images", (1, 3, 64, 96), "float32", "NCHW"),)
    outputs = tuple(TensorInfo(f"grid{s}", (1, 14, 64 // s, 96 // s), "float32", "NCHW") for s in STRIDES)
    variant = Variant("cpu", "tflite", VARIANT, "fp16", tuple(map(nhwc, inputs)), tuple(map(nhwc, outputs)))
    return Manifest(
        name="small",
        task="detect",
        template="yolov5",
        precision="fp16",
        inputs=inputs,
        outputs=outputs,
        preprocess=Preprocess("letterbox", 64, 96),
        postprocess=Yolov5Head((((10.0, 13.0), (16.0, 30.5)),) * 3, STRIDES),
        labels=("person", "Fußgänger"),
        variants=(variant,),
        source={"file": "small.pt", "licence": "none"},
    )


@pytest.fixture
def write_small(tmp_path: Path, detector: Manifest) -> Callable[[], Path]:
    """Writes the detector and returns the path."""

    def write() -> Path:
        path = tmp_path / "small.asc"
        write_archive(path, detector, GRAPH_BYTES, {VARIANT: VARIANT_BYTES})
        return path

    return write


@pytest.fixture
def small_asc(write_small: Callable[[], Path]) -> Path:
    """The detector as a file."""
    return write_small()
