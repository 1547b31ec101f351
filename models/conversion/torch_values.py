"""Tensors, storages and arrays of a checkpoint, and what its pickle may name.

A storage stays where it lies in the file, and a tensor is a checked window of it; NumPy arrays are made when they are asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import ModelFormatError, UnsafeCheckpointError
from pyasc.models.conversion.pickle_values import Call, Name, Rules, checked_key

_MAX_AXES = 16
_MAX_ARRAY_ELEMENTS = 1 << 28

# torch's typed storages. NumPy has no bfloat16: its bits are read and widened.
STORAGE_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "DoubleStorage": "f8",
        "FloatStorage": "f4",
        "HalfStorage": "f2",
        "BFloat16Storage": "u2",
        "LongStorage": "i8",
        "IntStorage": "i4",
        "ShortStorage": "i2",
        "CharStorage": "i1",
        "ByteStorage": "u1",
        "BoolStorage": "?",
    }
)


@dataclass(eq=False, slots=True)
class Storage:
    """A run of numbers in the file.

    Attributes:
        kind: torch's name, `HalfStorage`.
        count: how many numbers.
        dtype: of the numbers as they lie in the file.
        load: reads them; the result is a view of the file where it lies there uncompressed.
    """

    kind: str
    count: int
    dtype: np.dtype[Any]
    load: Callable[[], memoryview]

    def array(self) -> NDArray[Any]:
        """The numbers, read-only, (count,)."""
        return np.frombuffer(self.load(), self.dtype, self.count)


@dataclass(eq=False, slots=True)
class Tensor:
    """A strided window of a storage that lies within it.

    Attributes:
        storage: where its numbers are.
        offset: of its first number in the storage.
        shape, strides: in numbers, not bytes.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<Tensor {self.shape} of {self.storage.kind}>"

    def array(self) -> NDArray[Any]:
        """The tensor as a C-contiguous array; bfloat16 becomes float32."""
        numbers = self.storage.array()[self.offset :]
        size = numbers.itemsize
        window = np.lib.stride_tricks.as_strided(
            numbers, self.shape, tuple(step * size for step in self.strides), writeable=False
        )
        if self.storage.kind == "BFloat16Storage":
            return (np.ascontiguousarray(window).astype(np.uint32) << 16).view(np.float32)
        return np.ascontiguousarray(window, numbers.dtype.newbyteorder("=")).reshape(self.shape)

    def set_state(self, state: Any) -> None:
        """Attributes of a tensor are of no use to a conversion."""


@dataclass(eq=False, slots=True)
class ArrayDtype:
    """A NumPy dtype while it is read: what the constructor named, and the byte order that comes later."""

    code: str
    order: Literal["<", ">", "|", "="] = "="

    def set_state(self, state: Any) -> None:
        """(version, byte order, subarray, names, ...)."""
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "="):
            raise ModelFormatError("a NumPy dtype of a form that no checkpoint has")
        if any(part is not None for part in state[2:5]):
            raise ModelFormatError("a NumPy dtype with fields")
        self.order = state[1]

    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        found: np.dtype[Any] = np.dtype(self.code).newbyteorder("=" if self.order == "|" else self.order)
        return found


@dataclass(eq=False, slots=True)
class Array:
    """A NumPy array of the pickle itself; `value` is None until its state has come."""

    value: NDArray[Any] | None = None

    def set_state(self, state: Any) -> None:
        """(version, shape, dtype, in Fortran's order, bytes)."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise ModelFormatError("a NumPy array of a form that no checkpoint has")
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, ArrayDtype) or not isinstance(raw, bytes):
            raise ModelFormatError("a NumPy array of objects")
        sides, dtype = _sides(shape, "shape of a NumPy array"), kind.dtype()
        if math.prod(sides) * dtype.itemsize != len(raw):
            raise ModelFormatError(f"a NumPy array of shape {sides} has {len(raw)} bytes")
        self.value = np.frombuffer(raw, dtype).reshape(sides, order="F" if fortran else "C")


def rules(load_storage: Callable[[str, str, int], Storage]) -> Rules:
    """What the pickle of a checkpoint may name.

    Args:
        load_storage: gives the storage of (kind, key, count of numbers).
    """

    def persistent(key: Any) -> Any:
        # The old format also wraps the classes of modules, together with their source text.
        if isinstance(key, tuple) and len(key) == 4 and key[0] == "module" and isinstance(key[1], Name):
            return key[1]
        if not isinstance(key, tuple) or len(key) not in (5, 6) or key[0] != "storage":
            raise ModelFormatError("a persistent id that is no storage")
        _, kind, name, _, count, *view = key
        if not isinstance(kind, Name) or kind.module != "torch" or kind.name not in STORAGE_DTYPES:
            raise ModelFormatError("a storage of unknown type")
        if not isinstance(name, str) or not _is_count(count) or any(part is not None for part in view):
            raise ModelFormatError("a storage whose description is not sound")
        return load_storage(kind.name, name, count)

    return Rules(_CALLS, _is_inert, _VALUES, persistent)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48


def _sides(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or len(value) > _MAX_AXES or not all(map(_is_count, value)):
        raise ModelFormatError(f"the {what} is not sound")
    return tuple(value)


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_unused: Any) -> Tensor:
    shape, strides = _sides(size, "shape of a tensor"), _sides(stride, "strides of a tensor")
    if not isinstance(storage, Storage) or not _is_count(offset) or len(shape) != len(strides):
        raise ModelFormatError("a tensor whose description is not sound")
    count = math.prod(shape)
    last = offset + sum((side - 1) * step for side, step in zip(shape, strides, strict=True)) if count else offset
    if last >= storage.count + (count == 0) or count > storage.count:
        raise ModelFormatError(f"a tensor of shape {shape} reaches outside of its storage of {storage.count} numbers")
    return Tensor(storage, offset, shape, strides)


def _rebuild_parameter(data: Any, *_unused: Any) -> Any:
    if not isinstance(data, Tensor):
        raise ModelFormatError("a parameter that is no tensor")
    return data


def _dtype(code: Any, *_unused: Any) -> ArrayDtype:
    if not isinstance(code, str) or not re.fullmatch(r"[biufc](1|2|4|8|16)|b|\?", code):
        raise ModelFormatError("a NumPy dtype that is no number")
    return ArrayDtype(code)


def _scalar(kind: Any, raw: Any = None) -> Any:
    if not isinstance(kind, ArrayDtype) or not isinstance(raw, bytes) or kind.dtype().itemsize != len(raw):
        raise ModelFormatError("a NumPy number of a form that no checkpoint has")
    return np.frombuffer(raw, kind.dtype())[0].item()


def _encode(text: Any, encoding: Any = None) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise UnsafeCheckpointError("asks for a text encoding other than latin1; nothing of it has run")
    return text.encode("latin1")


def _dict(pairs: Any = ()) -> dict[Any, Any]:
    if not isinstance(pairs, tuple | list) or any(not isinstance(p, tuple | list) or len(p) != 2 for p in pairs):
        raise ModelFormatError("a dict of a form that no checkpoint has")
    return {checked_key(key): value for key, value in pairs}


def _default_dict(_factory: Any = None) -> dict[Any, Any]:
    return {}


def _sequence(values: Any) -> tuple[Any, ...] | list[Any]:
    if not isinstance(values, tuple | list):
        raise ModelFormatError("a collection of a form that no checkpoint has")
    return values


def _set(values: Any = ()) -> set[Any]:
    return set(map(checked_key, _sequence(values)))


def _frozenset(values: Any = ()) -> frozenset[Any]:
    return frozenset(map(checked_key, _sequence(values)))


def _size(values: Any = ()) -> tuple[Any, ...]:
    return tuple(_sequence(values))


def _reconstruct(kind: Any, _shape: Any, _code: Any) -> Array:
    if kind != Name("numpy", "ndarray"):
        raise ModelFormatError("a NumPy array of another class")
    return Array()


_CALLS: Mapping[str, Call] = MappingProxyType(
    {
        "torch._utils._rebuild_tensor": _rebuild_tensor,
        "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
        "torch._utils._rebuild_parameter": _rebuild_parameter,
        "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
        "torch.Size": _size,
        "collections.OrderedDict": _dict,
        "collections.defaultdict": _default_dict,
        "builtins.set": _set,
        "__builtin__.set": _set,
        "builtins.frozenset": _frozenset,
        "__builtin__.frozenset": _frozenset,
        "_codecs.encode": _encode,
        "numpy.dtype": _dtype,
        **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
        **{f"numpy.{core}.multiarray._reconstruct": _reconstruct for core in ("core", "_core")},
    }
)

_DTYPES = "float64 double float32 float float16 half bfloat16 int64 long int32 int int16 short int8 uint8 bool"
_VALUES = frozenset(
    {
        "numpy.ndarray",
        *(f"torch.{name}" for name in STORAGE_DTYPES),
        *(f"torch.{name}" for name in _DTYPES.split()),
        *(f"{module}.{name}" for module in ("builtins", "__builtin__") for name in ("dict", "list", "int", "float")),
    }
)

# Objects of these become Records: parts of networks and of the settings they were trained with.
_INERT_PACKAGES = ("models", "utils", "ultralytics", "yolov5", "torch.nn", "torchvision.transforms")
_INERT_NAMES = frozenset(
    {
        "torch.device",
        "argparse.Namespace",
        "types.SimpleNamespace",
        *(f"{module}.{kind}Path" for module in ("pathlib", "pathlib._local") for kind in ("Posix", "Windows")),
        *(f"{module}.Pure{kind}Path" for module in ("pathlib", "pathlib._local") for kind in ("Posix", "Windows")),
    }
)


def _is_inert(module: str, name: str) -> bool:
    if f"{module}.{name}" in _INERT_NAMES:
        return True
    # A dotted name is a chain of attributes, which leads anywhere: `models.common` and `os.system`.
    return name.isidentifier() and any(module == top or module.startswith(top + ".") for top in _INERT_PACKAGES)
