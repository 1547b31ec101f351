"""What a model's own bytes say goes in and out, compared with what its manifest promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyasc.errors import ModelFormatError
from pyasc.hal.base import Program, TensorInfo


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor as the model's own bytes describe it.

    Attributes:
        shape: None in it is a size that the model leaves open; None instead of it where only a run tells.
        others: as in `TensorInfo`.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: str
    scale: float | None = None
    zero_point: int | None = None


def compare_tables(program: Program, inputs: Sequence[Found], outputs: Sequence[Found]) -> None:
    """Raise ModelFormatError unless the model has the inputs and outputs that its program's tables promise."""
    for what, promised, found in (("input", program.inputs, inputs), ("output", program.outputs, outputs)):
        by_name = {tensor.name: tensor for tensor in found}
        if sorted(by_name) != sorted(tensor.name for tensor in promised) or len(by_name) != len(found):
            raise ModelFormatError(
                f"{program.name}: its {what}s are {', '.join(_printable(t.name) for t in found)}, "
                f"the manifest promises {', '.join(t.name for t in promised)}"
            )
        for tensor in promised:
            _compare(program.name, what, tensor, by_name[tensor.name])


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _compare(name: str, what: str, promised: TensorInfo, found: Found) -> None:
    shape = promised.shape if found.shape is None else found.shape
    fits = len(promised.shape) == len(shape) and all(
        size in (None, wanted) for size, wanted in zip(shape, promised.shape, strict=True)
    )
    if not fits or promised.dtype != found.dtype:
        text = ", ".join("?" if size is None else str(size) for size in shape)
        raise ModelFormatError(
            f"{name}: {what} {promised.name} is {found.dtype} ({text}), "
            f"the manifest promises {promised.dtype} {promised.shape}"
        )
    if promised.scale is not None and found.scale is not None:
        close = abs(promised.scale - found.scale) <= 1e-6 * abs(found.scale)
        if not close or promised.zero_point != found.zero_point:
            raise ModelFormatError(
                f"{name}: {what} {promised.name} has scale {found.scale:g} and zero point {found.zero_point}, "
                f"the manifest promises {promised.scale:g} and {promised.zero_point}"
            )
