"""Reads PyTorch checkpoints without PyTorch and without running anything of them.

Two formats are read, both of `torch.save`: a ZIP archive with `data.pkl` and a file for each storage (since PyTorch 1.6), and the
older run of pickles with the storages behind. The objects are inert: see `pickle_reader` and `torch_values`.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyasc.errors import ModelFormatError, UnsafeCheckpointError
from pyasc.models.conversion.checkpoint_zip import TorchZip
from pyasc.models.conversion.file_kind import describe
from pyasc.models.conversion.pickle_reader import read_pickle
from pyasc.models.conversion.pickle_values import Rules
from pyasc.models.conversion.torch_values import STORAGE_DTYPES, Storage, rules

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_NOTHING = Rules({}, lambda module, name: False)


def load_checkpoint(path: str | os.PathLike[str]) -> Any:
    """The tree of a `.pt` or `.pth` file.

    The file is mapped and its numbers are read when `Tensor.array` asks for them: leave it unchanged while the tree is in use.

    Returns:
        plain Python values, `Tensor`, `Array`, and a `Record` for each object of a class.
    Raises:
        UnsafeCheckpointError: its pickle names something that no conversion needs; nothing of it has run.
        ModelFormatError: it is damaged, or something else than a checkpoint; the text says what.
        OSError: it is absent or cannot be read.
    """
    path = Path(path)
    try:
        return _load(_map(path))
    except UnsafeCheckpointError as error:
        raise UnsafeCheckpointError(f"{path}: {error}") from error
    except ModelFormatError as error:
        raise ModelFormatError(f"{path}: {error}") from error


def _map(path: Path) -> memoryview:
    # O_NONBLOCK: opening a FIFO returns at once, and is then refused.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise ModelFormatError("is a directory")
        if not stat.S_ISREG(status.st_mode):
            raise ModelFormatError("is not a regular file")
        if not status.st_size:
            raise ModelFormatError("is empty")
        return memoryview(mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ))
    finally:
        os.close(fd)


def _load(data: memoryview) -> Any:
    other = describe(data)
    if other:
        raise ModelFormatError(other)
    if bytes(data[:4]) == b"PK\x03\x04":
        return _load_zip(TorchZip(data))
    return _load_legacy(data)


def _load_zip(archive: TorchZip) -> Any:
    storages: dict[str, Storage] = {}

    def load_storage(kind: str, key: str, count: int) -> Storage:
        return _once(storages, kind, key, count, lambda: archive.storage(kind, key, count))

    tree, _ = read_pickle(archive.pickle(), rules(load_storage))
    return tree


def _once(storages: dict[str, Storage], kind: str, key: str, count: int, make: Callable[[], Storage]) -> Storage:
    known = storages.get(key)
    if known is None:
        known = storages[key] = make()
    if (known.kind, known.count) != (kind, count):
        raise ModelFormatError(f"storage {key} is described in two ways")
    return known


def _load_legacy(data: memoryview) -> Any:
    magic, at = _start_of_legacy(data)
    if magic != _MAGIC:
        raise ModelFormatError("is a pickle, but not one that torch.save wrote")
    protocol, at = read_pickle(data, _NOTHING, at)
    if protocol != _PROTOCOL:
        raise ModelFormatError(f"is of an unknown protocol{f', {protocol}' if isinstance(protocol, int) else ''}")
    system, at = read_pickle(data, _NOTHING, at)
    if not isinstance(system, dict):
        raise ModelFormatError("lacks the description of the system that wrote it")
    places: dict[str, memoryview] = {}
    storages: dict[str, Storage] = {}

    def load_storage(kind: str, key: str, count: int) -> Storage:
        # Always in little endian: big-endian machines swap when they write.
        dtype = np.dtype("<" + STORAGE_DTYPES[kind])
        return _once(storages, kind, key, count, lambda: Storage(kind, count, dtype, lambda: places[key]))

    tree, at = read_pickle(data, rules(load_storage), at)
    keys, at = read_pickle(data, _NOTHING, at)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or sorted(keys) != sorted(storages):
        raise ModelFormatError("its list of storages is not that of its tensors")
    for key in keys:
        at = _place(data, at, storages[key], key, places)
    return tree


def _start_of_legacy(data: memoryview) -> tuple[Any, int]:
    try:
        return read_pickle(data, _NOTHING)
    except ModelFormatError as error:
        raise ModelFormatError("is no PyTorch checkpoint: neither a ZIP archive nor a pickle") from error


def _place(data: memoryview, at: int, storage: Storage, key: str, places: dict[str, memoryview]) -> int:
    start = at + 8
    end = start + storage.count * storage.dtype.itemsize
    if end > len(data):
        raise ModelFormatError(f"is cut off: storage {key} ends at byte {end}, the file has {len(data)}")
    if int.from_bytes(data[at:start], "little") != storage.count:
        raise ModelFormatError(f"storage {key} does not have the {storage.count} numbers that its tensors say")
    places[key] = data[start:end]
    return end
