"""Arrays in the memory of a device, or shared with it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyasc.errors import DeviceMemoryError
from pyasc.hal.base import Buffer, Device
from pyasc.hal.host import HostBuffer
from pyasc.hal.registry import open_device
from pyasc.types import Resource

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ArrayBuffer(Resource):
    """Device memory that holds one array.

    Attributes:
        buffer: the memory itself.
        device: name of the device whose memory it is.
        shape, dtype: of the array.
        size_bytes: of the array.
    """

    def __init__(
        self, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Device | None = None
    ) -> None:
        self.buffer = buffer
        self.device = buffer.device
        self.shape = shape
        self.dtype = dtype
        self.size_bytes = math.prod(shape) * dtype.itemsize
        self._owner = owner

    @property
    def array(self) -> NDArray[Any]:
        """The array itself, without a copy; TypeError where the host cannot address the device's memory (see `numpy`)."""
        import numpy as np

        view = self.buffer.view()
        if view is None:
            raise TypeError(f"the host cannot address the memory of {self.device}: numpy() makes a copy")
        return np.frombuffer(view, self.dtype).reshape(self.shape)

    def numpy(self) -> NDArray[Any]:
        """A copy of the array in host memory."""
        import numpy as np

        copy = np.empty(self.shape, self.dtype)
        self.buffer.read(copy)
        return copy

    def write(self, data: NDArray[Any]) -> None:
        """Replace the content; ValueError unless shape and dtype are the same."""
        if data.shape != self.shape or data.dtype != self.dtype:
            raise ValueError(f"{data.dtype} {data.shape} instead of {self.dtype} {self.shape}")
        self.buffer.write(data)

    def close(self) -> None:
        """Give the memory back, and the device where this object opened it."""
        self.buffer.close()
        if self._owner is not None:
            self._owner.close()

    def __repr__(self) -> str:
        return f"ArrayBuffer({self.dtype} {self.shape} on {self.device})"


def create_buffer(data: Any, view_only: bool = False, device: str = "cpu") -> ArrayBuffer:
    """Make data usable as a buffer.

    Args:
        data: a NumPy array, or any other object with the buffer protocol (bytes, bytearray, memoryview, mmap, array).
        view_only: True shares the memory of `data`, which then has to be C-contiguous: a change of one is seen in the other, and
            what is read-only stays so. False copies.
        device: whose memory; memory can be shared with `cpu` alone.
    Returns:
        the buffer; `.array` is the array on it.
    Raises:
        TypeError: not an array and no buffer, or an array of Python objects.
        ValueError: empty; or to be shared and not contiguous, or not on the CPU.
        DeviceNotFoundError, DeviceMemoryError: from the device.
    """
    array = _as_array(data)
    if view_only:
        if device != "cpu":
            raise ValueError(f"view_only shares host memory, {device} has its own: use copy_to_device")
        return ArrayBuffer(HostBuffer(array), array.shape, array.dtype)
    if device == "cpu":
        try:
            copy = array.copy("C")
        except MemoryError as error:
            raise DeviceMemoryError(f"cpu: no memory for a buffer of {array.nbytes} bytes") from error
        return ArrayBuffer(HostBuffer(copy), array.shape, array.dtype)
    return copy_to_device(array, device)


def copy_to_device(frame: Any, device: str = "gpu0") -> ArrayBuffer:
    """Copy an array into the memory of a device.

    Args:
        frame: a NumPy array, or any other object with the buffer protocol; need not be contiguous.
        device: name or alias, as for `open_device`.
    Returns:
        the array on the device; `.numpy()` copies it back, `close()` frees it.
    Raises:
        TypeError, ValueError: not an array; empty.
        DeviceNotFoundError, DeviceMemoryError: from the device.
    """
    import numpy as np

    array = np.asarray(_as_array(frame), order="C")  # ascontiguousarray would give a single number an axis
    owner = open_device(device)
    try:
        buffer = owner.allocate(array.nbytes)
        try:
            buffer.write(array)
        except BaseException:
            buffer.close()
            raise
    except BaseException:
        owner.close()
        raise
    return ArrayBuffer(buffer, array.shape, array.dtype, owner)


def _as_array(data: Any) -> NDArray[Any]:
    """`data` as an array on the same memory."""
    import numpy as np

    array = data if isinstance(data, np.ndarray) else np.asarray(memoryview(data))
    if array.dtype.hasobject:
        raise TypeError("an array of Python objects has no memory that a device could use")
    if not array.nbytes:
        raise ValueError("an empty array: a buffer has at least one byte")
    return array
