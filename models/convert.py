"""From a checkpoint or an ONNX file to an `.asc` file."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pyasc.errors import ConversionError, ModelFormatError, PyascError, UnsupportedOperatorError
from pyasc.models.asc.manifest import Manifest, Precision, Variant

if TYPE_CHECKING:
    import onnx

    from pyasc.models.conversion.templates import Converted, Options
    from pyasc.models.tflite.writer import TfliteModel

_log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Called with what is being done and how much is done, 0..1."""

_CPU_VARIANT = "variants/cpu/model.tflite"
_HASH_BYTES = 1 << 20


@dataclass(frozen=True)
class Conversion:
    """A converted model, ready to be written.

    Attributes:
        manifest: with its variants.
        graph: the portable graph, ONNX.
        variants: the compiled forms by their path in the archive.
        parameters: how many weights.
        layers: how many layers.
        operators: how often the graph has each operator.
        notes: what the user should know, such as a variant that could not be made.
    """

    manifest: Manifest
    graph: bytes
    variants: Mapping[str, bytes]
    parameters: int
    layers: int
    operators: Mapping[str, int]
    notes: tuple[str, ...] = ()


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    precision: str = "fp32",
    template: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    batch: int = 1,
    name: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert a model and write it; the target appears whole or not at all.

    Args:
        source: a `.pt` or `.pth` checkpoint of YOLOv5 or MobileNetV2, or the `.onnx` file of an appearance model.
        target: the `.asc` file, or a folder for it; without it, beside the source.
        precision: `fp32` or `fp16`, of the stored weights.
        template: the family, where it shall not be recognised: one of `pyasc.models.conversion.templates.TEMPLATES`.
        image_size: side of the square input, or (height, width), in pixels; without it the family's own, 640 for YOLOv5.
        batch: pictures at a time.
        name: of the model; without it, the source's file name.
        progress: told of each step.
    Returns:
        the path of the file.
    Raises:
        ConversionError: the model or an option cannot be converted; names the layer.
        UnsafeCheckpointError: the checkpoint names something that no conversion needs; nothing of it has run.
        ModelFormatError: the source is damaged, or something else.
        OSError: a file cannot be read or written.
    """
    path = target_path(source, target)
    made = prepare(
        source,
        precision=precision,
        template=template,
        image_size=image_size,
        batch=batch,
        name=name,
        progress=progress,
    )
    if progress:
        progress("writing", 0.9)
    write(made, path)
    if progress:
        progress("done", 1.0)
    return path


def prepare(
    source: str | os.PathLike[str],
    *,
    precision: str = "fp32",
    template: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    batch: int = 1,
    name: str | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Convert a model and write nothing; arguments and errors as `convert`."""
    source = Path(source)
    report = progress or (lambda step, share: None)
    options = _options(precision, template, image_size, batch, name or source.stem)
    report("reading", 0.0)
    try:
        converted = _read(source, template, options, report)
        report("compiling for the cpu", 0.4)
        manifest, variants, notes = _add_cpu_variant(converted)
    except (ModelFormatError, ConversionError) as error:
        raise _with_path(source, error) from error
    facts = {"file": source.name, "sha256": _sha256(source), **manifest.source}
    return Conversion(
        manifest=dataclasses.replace(manifest, source=facts),
        graph=bytes(converted.model.SerializeToString(deterministic=True)),
        variants=variants,
        parameters=converted.parameters,
        layers=converted.layers,
        operators=dict(Counter(node.op_type for node in converted.model.graph.node).most_common()),
        notes=notes,
    )


def write(made: Conversion, path: Path) -> None:
    """Write a conversion as an `.asc` file, replacing what is there in one step."""
    from pyasc.models.asc.archive import write_archive

    write_archive(path, made.manifest, made.graph, made.variants)


def target_path(source: str | os.PathLike[str], target: str | os.PathLike[str] | None) -> Path:
    """Where the `.asc` file goes.

    Raises:
        ConversionError: that is the source itself, or its folder does not exist.
    """
    source = Path(source)
    path = source.with_suffix(".asc") if target is None else Path(target)
    if path.is_dir():
        path = path / f"{source.stem}.asc"
    if not path.parent.is_dir():
        raise ConversionError(f"{path}: the folder {path.parent} does not exist")
    if path.exists() and source.exists() and path.samefile(source):
        raise ConversionError(f"{path}: source and target are the same file")
    return path


def _options(
    precision: str, template: str | None, image_size: int | tuple[int, int] | None, batch: int, name: str
) -> Options:
    from pyasc.models.conversion.templates import TEMPLATES, Options

    if precision in ("int8", "auto"):
        raise ConversionError(f"precision {precision} is not available yet; choose fp32 or fp16")
    if precision not in get_args(Precision):
        raise ConversionError(f"precision {precision} is not known; choose fp32 or fp16")
    if template is not None and template not in TEMPLATES:
        raise ConversionError(f"template {template} is not known; there are {', '.join(TEMPLATES)}")
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    return Options("fp16" if precision == "fp16" else "fp32", size, batch, name)


def _read(source: Path, template: str | None, options: Options, report: Progress) -> Converted:
    from pyasc.models.conversion.checkpoint import load_checkpoint
    from pyasc.models.conversion.onnx_source import read_onnx
    from pyasc.models.conversion.templates import from_checkpoint, from_onnx

    if source.suffix.lower() == ".onnx":
        model = read_onnx(source, options.batch)
        report("building the graph", 0.2)
        return from_onnx(model, template, options)
    tree = load_checkpoint(source)
    report("building the graph", 0.2)
    return from_checkpoint(tree, template, options)


def _add_cpu_variant(converted: Converted) -> tuple[Manifest, dict[str, bytes], tuple[str, ...]]:
    """The `.tflite` form for the cpu; where an operator has none, the portable graph serves the cpu too, and a note says so."""
    manifest = converted.manifest
    try:
        compiled = _to_tflite(converted.model, manifest.precision)
    except UnsupportedOperatorError as error:
        note = f"no variant for the cpu, which will run graph.onnx instead: {error}"
        _log.warning("%s: %s", manifest.name, note)
        return manifest, {}, (note,)
    variant = Variant(
        target="cpu",
        format="tflite",
        path=_CPU_VARIANT,
        precision=manifest.precision,
        inputs=compiled.inputs,
        outputs=compiled.outputs,
    )
    return dataclasses.replace(manifest, variants=(variant,)), {_CPU_VARIANT: compiled.data}, ()


def _to_tflite(model: onnx.ModelProto, precision: str) -> TfliteModel:
    try:
        from pyasc.models.tflite.writer import to_tflite
    except ImportError as error:
        raise ConversionError(f"conversion needs {error.name}: pip install 'pyasc[convert]'") from error
    return to_tflite(model, "fp16" if precision == "fp16" else "fp32")


def _with_path(source: Path, error: PyascError) -> PyascError:
    text = str(error)
    return type(error)(text if text.startswith(str(source)) else f"{source}: {text}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(_HASH_BYTES):
            digest.update(part)
    return digest.hexdigest()
