"""What HiSilicon's own compiler, the NNIE mapper, needs of a model: network, weights, configuration and pictures.

All files are in one folder and name each other relative to it, so that it can be taken to the PC where the mapper is.

A picture goes in as it comes from a camera, planes of bytes in the order blue, green, red, whatever the network was trained on:
versions of the mapper differ in what its setting RGB_order means, and agree only on BGR.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import cv2
import numpy as np
import onnx
from numpy.typing import NDArray

from pyasc.errors import ConversionError
from pyasc.hal.base import TensorInfo
from pyasc.models.asc.manifest import Manifest, Preprocess
from pyasc.models.image import load_image
from pyasc.models.npu.caffe import Blob, CaffeNetwork, to_caffe
from pyasc.models.npu.caffe_fit import Shape, take_pixels
from pyasc.models.npu.caffe_proto import caffemodel, prototxt, shortest
from pyasc.models.npu.extract import extract
from pyasc.models.npu.partition import Part
from pyasc.models.preprocess import Preprocessor
from pyasc.models.tflite.graph import Graph

Picture = Path | NDArray[np.uint8]
Precision = Literal["int8", "int16"]

_COMPILE_MODES: Mapping[Precision, int] = {"int8": 0, "int16": 1}
# Of the mapper's setting norm_type: nothing, x * data_scale, (x - mean of its channel) * data_scale.
_AS_IT_IS, _SCALED, _MEAN_AND_SCALED = 0, 3, 5
_FEATURES, _BYTES = 0, 1
_SCALE = 1 / 255
# The mapper takes 119 characters for the path of its result.
_NAME_LENGTH = 80
# Sides of a picture that goes in as bytes, in pixels.
_SMALLEST, _LARGEST = 8, 4096


class CutModel(Protocol):
    """What is needed of a model that was cut into parts."""

    @property
    def model(self) -> onnx.ModelProto:
        """The graph, for the values between its parts."""

    @property
    def manifest(self) -> Manifest:
        """Of the whole model."""

    @property
    def graph(self) -> Graph:
        """The graph as it was cut."""

    @property
    def parts(self) -> Sequence[Part]:
        """In the order in which they run."""


@dataclass(frozen=True)
class Job:
    """One network for the mapper.

    Attributes:
        part: number of the part of the model, from 0.
        prototxt, caffemodel, config: the files; the mapper is run in their folder, with the name of `config`.
        wk: what it will write.
        inputs: in the order of a compiled network's.
        outputs: in the order of a compiled network's, whose names may be these or shorter: go by the order.
        pixels: the first input takes pictures as planes of bytes, blue first; else it takes numbers like the others.
    """

    part: int
    prototxt: Path
    caffemodel: Path
    config: Path
    wk: Path
    inputs: tuple[Blob, ...]
    outputs: tuple[Blob, ...]
    pixels: bool


@dataclass(frozen=True)
class Emitted:
    """What was written.

    Attributes:
        jobs: one for each part that runs on the accelerator.
        files: all files.
    """

    jobs: tuple[Job, ...]
    files: tuple[Path, ...]


def emit_mapper(cut: CutModel, folder: Path, pictures: Sequence[Picture], precision: Precision = "int8") -> Emitted:
    """Write the files for the mapper; those of the same name are replaced.

    Args:
        cut: the model.
        folder: made if it does not exist.
        pictures: typical ones, 20 to 50: files, or (H, W, 3) uint8 BGR.
        precision: of weights and data in the compiled network.
    Raises:
        UnsupportedOperatorError: a layer has no form that the mapper takes; names it.
        ConversionError: no pictures, the network's input has sides that the chip does not take, or ONNX Runtime is missing, which
            makes the values between parts.
        StreamError: a picture is damaged.
        OSError: a file cannot be read or written.
    """
    if not pictures:
        raise ConversionError("the mapper needs typical pictures to quantise with")
    return _Emitter(cut, folder, pictures, precision).emit()


class _Emitter:
    def __init__(self, cut: CutModel, folder: Path, pictures: Sequence[Picture], precision: Precision) -> None:
        self.cut = cut
        self.folder = folder
        self.pictures = pictures
        self.precision = precision
        self.files: list[Path] = []
        stem = re.sub(r"\W+", "_", cut.manifest.name, flags=re.ASCII).strip("_")[:_NAME_LENGTH]
        self.stem = stem or "model"
        first = cut.manifest.inputs[0]
        self.picture = first.name if len(first.shape) == 4 and first.shape[1] in (1, 3) else ""

    def emit(self) -> Emitted:
        numbers = [number for number, part in enumerate(self.cut.parts) if part.on == "npu"]
        # What cannot be written is refused before anything is.
        networks = {number: self._network(self.cut.parts[number]) for number in numbers}
        self.folder.mkdir(parents=True, exist_ok=True)
        jobs = []
        for number, network in networks.items():
            name = self.stem if len(self.cut.parts) == 1 else f"{self.stem}_part{number}"
            jobs.append(self._job(name, number, network))
        if any(job.pixels for job in jobs):
            self._write_pictures()
        self._write_features(jobs)
        return Emitted(tuple(jobs), tuple(self.files))

    def _network(self, part: Part) -> CaffeNetwork:
        shapes: dict[str, Shape] = dict(self.cut.graph.shapes)
        layers = list(part.layers)
        inputs = sorted(part.inputs, key=lambda value: value != self.picture)
        if self.picture in inputs:
            spec = self.cut.manifest.preprocess
            if not _SMALLEST <= min(spec.height, spec.width) <= max(spec.height, spec.width) <= _LARGEST:
                raise ConversionError(
                    f"the network's input is {spec.width} x {spec.height}; NNIE takes pictures of {_SMALLEST} to {_LARGEST} pixels"
                )
            factors = (1 / np.array(spec.std, np.float64)).astype(np.float32)
            layers = take_pixels(layers, shapes, self.picture, factors, turned=spec.color == "RGB")
        return to_caffe(layers, shapes, inputs, part.outputs)

    def _job(self, name: str, number: int, network: CaffeNetwork) -> Job:
        text, weights, config, wk = (self.folder / f"{name}.{end}" for end in ("prototxt", "caffemodel", "cfg", "wk"))
        pixels = network.inputs[0].value == self.picture
        job = Job(number, text, weights, config, wk, network.inputs, network.outputs, pixels)
        self._write(job.prototxt, prototxt(name, network.layers).encode())
        self._write(job.caffemodel, caffemodel(name, network.layers))
        self._write(job.config, self._config(name, job).encode())
        return job

    def _write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self.files.append(path)

    def _config(self, name: str, job: Job) -> str:
        """All paths are relative: the mapper is run in the folder."""
        settings: list[tuple[str, object]] = [
            ("prototxt_file", f"./{job.prototxt.name}"),
            ("caffemodel_file", f"./{job.caffemodel.name}"),
            ("instruction_name", f"./{name}"),
            ("net_type", 0),
            ("batch_num", 1),
            ("sparse_rate", 0),
            ("compile_mode", _COMPILE_MODES[self.precision]),
            ("is_simulation", 0),
            # More makes both the mapper and what it compiles slow.
            ("log_level", 0),
            ("internal_stride", 16),
            ("RGB_order", "BGR"),
            ("data_scale", shortest(_SCALE)),
        ]
        for place, blob in enumerate(job.inputs):
            if job.pixels and place == 0:
                means = self._means()
                settings += [("image_list", f"./{self._image_list.name}"), ("image_type", _BYTES)]
                settings.append(("norm_type", _MEAN_AND_SCALED if means else _SCALED))
                settings.append(("mean_file", f"./{means.name}" if means else "null"))
            else:
                settings += [("image_list", f"./{self._features(job, blob).name}"), ("image_type", _FEATURES)]
                settings += [("norm_type", _AS_IT_IS), ("mean_file", "null")]
        return "".join(f"[{key}] {value}\n" for key, value in settings)

    @property
    def _image_list(self) -> Path:
        return self.folder / f"{self.stem}_images.txt"

    def _features(self, job: Job, blob: Blob) -> Path:
        return job.config.with_name(f"{job.config.stem}_{blob.node}.txt")

    def _means(self) -> Path | None:
        """The file with the mean of each channel, blue first; None where they are all zero."""
        spec = self.cut.manifest.preprocess
        if not any(spec.mean):
            return None
        path = self.folder / f"{self.stem}_mean.txt"
        means = spec.mean[::-1] if spec.color == "RGB" else spec.mean
        self._write(path, "".join(f"{shortest(255 * mean)}\n" for mean in means).encode())
        return path

    def _write_pictures(self) -> None:
        """Each as the network sees it, but for normalisation: of its size, with borders where it has another shape."""
        spec = self.cut.manifest.preprocess
        channels = self.cut.manifest.inputs[0].shape[1]
        color: Literal["BGR", "GRAY"] = "GRAY" if spec.color == "GRAY" else "BGR"
        plain = dataclasses.replace(spec, color=color, mean=(0.0,) * channels, std=(1.0,) * channels)
        images = self.folder / f"{self.stem}_images"
        images.mkdir(exist_ok=True)
        names = []
        for number, pixels in enumerate(_prepared(plain, "uint8", "NHWC", self.pictures)):
            done, data = cv2.imencode(".png", pixels[0])
            assert done
            self._write(images / f"{number:04}.png", data.tobytes())
            names.append(f"./{images.name}/{number:04}.png\n")
        self._write(self._image_list, "".join(names).encode())

    def _write_features(self, jobs: Sequence[Job]) -> None:
        """For inputs that are no pictures: a line of numbers, channel by channel, for each picture."""
        wanted = [
            (self._features(job, blob), blob.value) for job in jobs for blob in job.inputs[1 if job.pixels else 0 :]
        ]
        if not wanted:
            return
        between = _Between(self.cut, sorted({value for _, value in wanted}))
        files = {path: path.open("w", encoding="ascii") for path, _ in wanted}
        try:
            for values in between.of(self.pictures):
                for path, value in wanted:
                    np.savetxt(files[path], values[value].reshape(1, -1), fmt="%.6g")
        finally:
            for file in files.values():
                file.close()
        self.files += files


class _Between:
    """Values between the parts of a model, by ONNX Runtime."""

    def __init__(self, cut: CutModel, values: Sequence[str]) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ConversionError("a model in parts needs onnxruntime here: pip install 'pyasc[convert]'") from error
        self.manifest = cut.manifest
        self.inputs = [name for name in values if name in cut.graph.inputs]
        self.computed = [name for name in values if name not in cut.graph.inputs]
        self.session = None
        if not self.computed:
            return
        part = extract(cut.model, cut.graph.inputs, self.computed, cut.graph.shapes)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(part.SerializeToString(), options, ["CPUExecutionProvider"])

    def of(self, pictures: Sequence[Picture]) -> Iterator[Mapping[str, NDArray[np.float32]]]:
        name, spec = self.manifest.inputs[0].name, self.manifest.preprocess
        for picture in _prepared(spec, "float32", "NCHW", pictures):
            array = picture.astype(np.float32, copy=False)
            made = self.session.run(self.computed, {name: array}) if self.session else []
            yield {**dict.fromkeys(self.inputs, array), **dict(zip(self.computed, made, strict=True))}


def _prepared(spec: Preprocess, dtype: str, layout: str, pictures: Sequence[Picture]) -> Iterator[NDArray[np.generic]]:
    """The network's input for each picture; overwritten by the next."""
    channels = len(spec.mean)
    sides = (spec.height, spec.width)
    shape = (1, *sides, channels) if layout == "NHWC" else (1, channels, *sides)
    buffer = Preprocessor(spec, TensorInfo("", shape, dtype, layout)).new_input()
    array = np.empty(shape, dtype)
    for picture in pictures:
        buffer.prepare([load_image(picture)])
        buffer.write(array)
        yield array
