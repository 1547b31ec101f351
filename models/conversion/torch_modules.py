"""A pickled `torch.nn.Module` as a converter looks at it: children, settings and arrays, each checked when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import ConversionError
from pyasc.models.conversion.pickle_values import Record, shown
from pyasc.models.conversion.torch_values import Tensor

# What float32 can hold; larger settings are damage.
_MAX_NUMBER = 3e38


class Module:
    """One module of the tree.

    Attributes:
        kind: its class, `models.common.Conv`.
        where: names it in messages, `layer 3 (models.common.C3), cv1`.
    """

    def __init__(self, record: Record, where: str) -> None:
        self.record = record
        self.kind = str(record.kind)
        self.where = where

    @property
    def name(self) -> str:
        """The class without its module."""
        return self.record.kind.name

    def fail(self, reason: str) -> NoReturn:
        """Raise ConversionError that names the module."""
        raise ConversionError(f"{self.where}: {reason}")

    def has(self, child: str) -> bool:
        """Whether there is such a child; ConversionError when there is something else in its place."""
        found = self._table("_modules").get(child)
        if found is not None and not isinstance(found, Record):
            self.fail(f"{child} is no module")
        return found is not None

    def child(self, name: str) -> Module:
        """A child by name."""
        record = self._table("_modules").get(name)
        if not isinstance(record, Record):
            self.fail(f"{self.kind} without {shown(name)}")
        return Module(record, f"{self.where}, {shown(name)}")

    def children(self) -> Iterator[Module]:
        """The children in order."""
        for name in self._table("_modules"):
            yield self.child(str(name))

    def setting(self, name: str) -> Any:
        """An attribute; ConversionError when it is absent."""
        if name not in self.record.state:
            self.fail(f"{self.kind} without {name}")
        return self.record.state[name]

    def flag(self, name: str) -> bool:
        """An attribute that is True or False."""
        value = self.setting(name)
        if not isinstance(value, bool):
            self.fail(f"{name} is neither True nor False")
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        """An attribute that is a whole number within limits."""
        value = self.setting(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(f"{name} is not a whole number from {low} to {high}")
        return value

    def pair(self, name: str, low: int, high: int) -> tuple[int, int]:
        """An attribute that is one number for both axes or one for each."""
        value = self.setting(name)
        pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
        if len(pair) != 2 or not all(type(part) is int and low <= part <= high for part in pair):
            self.fail(f"{name} is not one or two whole numbers from {low} to {high}")
        return pair

    def number(self, name: str) -> float:
        """An attribute that is a finite number."""
        value = self.setting(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not -_MAX_NUMBER < value < _MAX_NUMBER:
            self.fail(f"{name} is not a number")
        return float(value)

    def array(self, name: str, axes: int) -> NDArray[np.float64]:
        """A parameter, buffer or attribute that is a tensor, as float64."""
        found = self.optional_array(name, axes)
        if found is None:
            self.fail(f"{self.kind} without {name}")
        return found

    def optional_array(self, name: str, axes: int) -> NDArray[np.float64] | None:
        """The same; None where it is absent or None, as the bias of a convolution may be."""
        tensor = self._table("_parameters").get(name)
        if tensor is None:
            tensor = self._table("_buffers").get(name)
        if tensor is None:
            tensor = self.record.state.get(name)
        if tensor is None:
            return None
        if not isinstance(tensor, Tensor) or len(tensor.shape) != axes:
            self.fail(f"{name} is not a tensor of {axes} axes")
        values = tensor.array().astype(np.float64)
        if not np.isfinite(values).all():
            self.fail(f"{name} holds values that are not finite")
        return values

    def _table(self, name: str) -> dict[Any, Any]:
        table = self.record.state.get(name, {})
        if not isinstance(table, dict):
            self.fail(f"{name} is no table")
        return table


def text_of(value: Any, limit: int = 60) -> str:
    """A value of a checkpoint, fit for a message."""
    return shown(str(value))[:limit] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
