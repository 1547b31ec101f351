"""Pictures for calibration, as a network's float32 input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import ConversionError
from pyasc.hal.base import TensorInfo
from pyasc.models.asc.manifest import Manifest
from pyasc.models.image import read_image
from pyasc.models.preprocess import Preprocessor

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
# The ranges hardly change beyond some dozen pictures, and each costs a run of the whole network.
MOST = 64


def find_pictures(folder: Path, most: int = MOST) -> list[Path]:
    """Picture files of a folder and those below it, by name, spread evenly over all where there are more than `most`.

    Raises:
        ConversionError: no folder, or none in it.
    """
    if not folder.is_dir():
        raise ConversionError(f"{folder}: no folder; calibration needs one with pictures like those of the stream")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise ConversionError(f"{folder}: no picture in it ({', '.join(SUFFIXES)})")
    if len(files) <= most:
        return files
    return [files[number * len(files) // most] for number in range(most)]


def network_inputs(manifest: Manifest, files: Sequence[Path]) -> Iterator[Mapping[str, NDArray[np.float32]]]:
    """The graph's input for each picture, as pre-processing makes it.

    Raises:
        StreamError, OSError: a file is damaged or cannot be read.
    """
    info = manifest.inputs[0]
    tensor = TensorInfo(info.name, info.shape, "float32", info.layout)
    buffer = Preprocessor(manifest.preprocess, tensor).new_input()
    for file in files:
        buffer.prepare([read_image(file)])
        array = np.zeros(tensor.shape, np.float32)
        buffer.write(array)
        yield {info.name: array}
