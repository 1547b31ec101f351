"""Conversion for programs: `Torch2ASC`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from pyasc.errors import ConversionError
from pyasc.models.convert import Progress
from pyasc.models.convert import convert as convert_file

__all__ = ["Torch2ASC"]

# The lowest that the exporter writes by itself; its default would follow torch.
_OPSET = 18


class Torch2ASC:
    """Converts PyTorch models to `.asc` files.

    Args:
        precision: `fp32` or `fp16`, of the stored weights.
        template: the model's family, where it shall not be recognised: `yolov5`, `osnet`, `mobilenetv2`, `classifier`.
        image_size: side of the square input, or (height, width), in pixels; without it the family's own.
        batch: pictures at a time.
        name: of the model; without it, the source's file name or the module's class.
        progress: called with each step and the share that is done, 0..1.
    Raises:
        ValueError: a precision or template that there is not, a size or batch that no model has.
    """

    def __init__(
        self,
        precision: str = "fp32",
        *,
        template: str | None = None,
        image_size: int | tuple[int, int] | None = None,
        batch: int = 1,
        name: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        _check(precision, template, image_size, batch)
        self.precision = precision
        self.template = template
        self.image_size = image_size
        self.batch = batch
        self.name = name
        self.progress = progress

    def convert(self, source: Any, target: str | os.PathLike[str] | None = None, example_input: Any = None) -> Path:
        """Convert a checkpoint, an ONNX file, or a module.

        Args:
            source: path of a `.pt`, `.pth` or `.onnx` file, which needs no torch; or a `torch.nn.Module`.
            target: the `.asc` file; needed for a module, else beside the source.
            example_input: for a module, a float32 tensor (batch, 3, height, width) that torch's exporter traces it with; not
                needed for YOLOv5's own module, which is read like its checkpoint.
        Returns:
            the path of the file.
        Raises:
            ConversionError, UnsafeCheckpointError, ModelFormatError, OSError: as `pyasc.models.convert.convert`.
        """
        if isinstance(source, str | os.PathLike):
            if example_input is not None:
                raise ConversionError("example_input belongs to a torch.nn.Module, not to a file")
            return self._convert_file(source, target, self.name)
        return self._convert_module(source, target, example_input)

    def _convert_file(
        self, source: str | os.PathLike[str], target: str | os.PathLike[str] | None, name: str | None
    ) -> Path:
        return convert_file(
            source,
            target,
            precision=self.precision,
            template=self.template,
            image_size=self.image_size,
            batch=self.batch,
            name=name,
            progress=self.progress,
        )

    def _convert_module(self, module: Any, target: str | os.PathLike[str] | None, example_input: Any) -> Path:
        try:
            import torch
        except ImportError as error:
            raise ConversionError("a torch.nn.Module needs torch: pip install 'pyasc[torch]'") from error
        if not isinstance(module, torch.nn.Module):
            raise ConversionError(f"a {type(module).__name__} is neither a path nor a torch.nn.Module")
        # An exported YOLOv5 has its decoding inside; its own description gives the graph that every device can run.
        as_checkpoint = type(module).__module__ in ("models.yolo", "yolov5.models.yolo")
        if target is None or (example_input is None and not as_checkpoint):
            raise ConversionError("a torch.nn.Module is converted with a target and an example_input")
        name = self.name or type(module).__name__
        with tempfile.TemporaryDirectory(prefix="pyasc-") as folder:
            path = Path(folder) / ("module.pt" if as_checkpoint else "module.onnx")
            if as_checkpoint:
                torch.save({"model": module}, path)
            else:
                _export(torch, module, example_input, path)
            return self._convert_file(path, target, name)


def _check(precision: str, template: str | None, image_size: int | tuple[int, int] | None, batch: int) -> None:
    from pyasc.models.conversion.templates import TEMPLATES, Options

    if precision not in ("fp32", "fp16"):
        raise ValueError(f"precision {precision!r} is not available; choose fp32 or fp16")
    if template is not None and template not in TEMPLATES:
        raise ValueError(f"template {template!r} is not known; there are {', '.join(TEMPLATES)}")
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if not isinstance(batch, int) or (size is not None and [type(side) for side in size] != [int, int]):
        raise ValueError(f"batch {batch!r} is a whole number, image_size {image_size!r} one or (height, width)")
    try:
        Options("fp16" if precision == "fp16" else "fp32", size, batch, "")
    except ConversionError as error:
        raise ValueError(str(error)) from error


def _export(torch: Any, module: Any, example_input: Any, path: Path) -> None:
    training = module.training
    module.eval()
    try:
        torch.onnx.export(
            module,
            (example_input,),
            str(path),
            opset_version=_OPSET,
            input_names=["images"],
            external_data=False,
            verbose=False,
        )
    except Exception as error:  # Whatever the exporter or the module itself raises.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConversionError(f"torch cannot export {type(module).__name__}: {reason}") from error
    finally:
        module.train(training)
