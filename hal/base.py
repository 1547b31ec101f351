"""What every device of PyASC offers, whatever library drives it.

A driver (`hal/drivers/NAME.py`) subclasses `Device`, `Buffer`, `Queue`, `Event` and `Executable`, and has two functions:
`discover() -> Discovery` and `open_device(name) -> Device`. Everything is a context manager, `close()` may be called twice,
and each wait has a timeout.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pyasc.types import Resource

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Kind = Literal["cpu", "gpu", "npu"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What is known of a device without running anything on it.

    Attributes:
        name: `cpu`, `gpu0`, `hi3559`, `mlu220`; a second one of a kind `mlu220:1`.
        family: the target name of variants in model files: `cpu`, `opencl`, `hi3559`, `mlu220`.
        kind: cpu, gpu or npu.
        vendor: as the driver's library says it.
        model: product name, as the library says it.
        driver: library and version behind the driver.
        precisions: what it computes in, best first: `fp32`, `fp16`, `int16`, `int8`.
        memory_bytes: size of the memory that its buffers come from; None where the library does not tell.
        cores: cores or compute units; None where unknown.
        peak_ops: operations a second by precision, a multiplication with its addition being two, from a data sheet or from
            published measurements; empty where unknown. OpenCL does not tell it.
        link: how data gets there: `host` (shares the memory), `pcie`, `usb`, `axi`.
        link_bytes_s: bandwidth of the link; None for `host` or where unknown.
        power_w: rated power; None where unknown.
        simulated: True when no hardware is behind it.
        executes: True when it runs model files; False when it is listed only.
    """

    name: str
    family: str
    kind: Kind
    vendor: str
    model: str
    driver: str
    precisions: tuple[str, ...]
    memory_bytes: int | None = None
    cores: int | None = None
    peak_ops: Mapping[str, float] = field(default_factory=dict)
    link: str = "host"
    link_bytes_s: float | None = None
    power_w: float | None = None
    simulated: bool = False
    executes: bool = True


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a driver found: devices, or why there are none.

    Attributes:
        devices: in the driver's own order.
        absent: device kind or name to the reason in one line with the remedy; empty when all that it looks for are there.
    """

    devices: tuple[DeviceInfo, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, shape, dtype and layout of one input or output.

    Attributes:
        name: as in the model's manifest.
        shape: as the device wants it; every size is positive.
        dtype: NumPy's name: `float32`, `float16`, `int8`, `uint8`.
        layout: `NCHW`, `NHWC`, or `` where the axes have no such meaning.
        scale, zero_point: real value = (stored - zero_point) * scale, for quantised dtypes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = ""
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A model in a form that a driver takes, with the tables that its file may lack.

    Attributes:
        name: for messages.
        format: `tflite`, `onnx`, `wk`, `cambricon`.
        data: the bytes; often a view of a mapped file, kept open by the caller until the executable is closed.
        inputs, outputs: in the manifest's order.
        precision: of the stored weights.
        segment: which of the file's networks, from 0, where the format holds several.
    """

    name: str
    format: str
    data: memoryview
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    precision: str = "fp32"
    segment: int = 0


class Event(abc.ABC):
    """The end of one piece of queued work."""

    @property
    @abc.abstractmethod
    def done(self) -> bool:
        """True when the work has ended, well or not."""

    @abc.abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Return when the work has ended well.

        Raises:
            DeviceTimeoutError: it has not ended after `timeout_s`; it goes on, and may be waited for again.
            DeviceError: it ended with this error.
        """


class Buffer(Resource):
    """Device memory of a fixed size."""

    size_bytes: int
    device: str

    @abc.abstractmethod
    def write(self, data: Any, offset_bytes: int = 0) -> None:
        """Copy from any C-contiguous buffer; ValueError when it does not fit."""

    @abc.abstractmethod
    def read(self, into: Any, offset_bytes: int = 0) -> None:
        """Copy to a writable C-contiguous buffer, as many bytes as it has; ValueError when it asks for more than there is."""

    @abc.abstractmethod
    def view(self) -> memoryview | None:
        """The memory itself where the host can address it, else None. Valid until `close`."""


class Queue(Resource):
    """Work in order: what is submitted first ends first."""

    @abc.abstractmethod
    def run(self, executable: Executable, inputs: Sequence[NDArray[Any]]) -> RunEvent:
        """Submit one inference; `inputs` must stay unchanged until the event is done."""

    @abc.abstractmethod
    def finish(self, timeout_s: float) -> None:
        """Wait for all that was submitted; DeviceTimeoutError when that takes longer."""


class RunEvent(Event):
    """The end of an inference, with its outputs."""

    @abc.abstractmethod
    def outputs(self, timeout_s: float) -> list[NDArray[Any]]:
        """Wait and return the outputs, in the order of `Executable.outputs`; the caller owns them."""


class Executable(Resource):
    """A model, ready to run on one device. Calls from several threads are serialised by the driver."""

    device: str
    precision: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    engine: str

    @abc.abstractmethod
    def run(self, inputs: Sequence[NDArray[Any]], timeout_s: float = 30.0) -> list[NDArray[Any]]:
        """Run once.

        Args:
            inputs: one array for each of `self.inputs`, of its shape and dtype, C-contiguous.
            timeout_s: how long the caller will wait.
        Returns:
            one array for each of `self.outputs`; the caller owns them.
        Raises:
            ValueError: a wrong number, shape or dtype.
            DeviceTimeoutError, DeviceLostError, DeviceError: from the device.
        """

    def run_in_place(
        self,
        write: Callable[[list[NDArray[Any]]], None],
        read: Callable[[list[NDArray[Any]]], T],
        timeout_s: float = 30.0,
    ) -> T:
        """Run once on what `write` puts into the inputs and return what `read` makes of the outputs, without the copies of `run`.

        Args:
            write: gets one array for each of `self.inputs`, of its shape and dtype, C-contiguous, which may be the device's own
                memory and holds anything: it fills them, and keeps none.
            read: gets one array for each of `self.outputs`, which may be the device's own memory: it changes none, and keeps none.
                Neither runs anything on this executable.
            timeout_s: as for `run`.
        Raises:
            what `run`, `write` and `read` raise.
        """
        import numpy as np

        inputs = [np.empty(tensor.shape, tensor.dtype) for tensor in self.inputs]
        write(inputs)
        return read(self.run(inputs, timeout_s))


class Device(Resource):
    """An opened device."""

    info: DeviceInfo

    @abc.abstractmethod
    def formats(self, **options: Any) -> tuple[str, ...]:
        """Model formats that `load` takes on this box, best first.

        Args:
            options: for `load`; those that narrow the formats do so here, the others are left to `load` to check.
        Raises:
            ConfigError: a wrong value of an option that narrows the formats, or one that this device cannot honour.
        """

    @abc.abstractmethod
    def allocate(self, size_bytes: int) -> Buffer:
        """Device memory; ValueError for a size below 1, DeviceMemoryError when there is not enough."""

    @abc.abstractmethod
    def queue(self) -> Queue:
        """A new queue."""

    @abc.abstractmethod
    def load(self, program: Program, **options: Any) -> Executable:
        """Make a program ready to run.

        Args:
            program: in one of `formats(**options)`.
            options: the device's own, such as `threads`; each is honoured or refused.
        Raises:
            ConfigError: an unknown option, a wrong value, or one that this device cannot honour.
            ModelFormatError: the program is damaged.
            UnsupportedOperatorError: the device cannot run it; names operator and node.
            DeviceMemoryError: it does not fit.
        """

    @abc.abstractmethod
    def telemetry(self) -> dict[str, float | int | str | None]:
        """What the device measures now.

        `memory_used_bytes`, `memory_free_bytes`, `temperature_c`, `power_w`, `load` (0..1); None where it does not tell.
        """


def preference(info: DeviceInfo) -> tuple[bool, bool, int]:
    """A sort key, best first: what runs models before what is only listed, hardware before simulators, NPU, GPU, CPU."""
    order: dict[str, int] = {"npu": 0, "gpu": 1, "cpu": 2}
    return not info.executes, info.simulated, order[info.kind]


def best_device(devices: Sequence[DeviceInfo], kind: Kind | None = None) -> DeviceInfo | None:
    """The device to prefer: hardware before simulators, then NPU before GPU before CPU, then the driver's own order.

    Only devices that run models take part.
    """
    usable = [info for info in devices if info.executes and (kind is None or info.kind == kind)]
    return min(usable, key=preference, default=None)


def check_arrays(tensors: Sequence[TensorInfo], arrays: Sequence[NDArray[np.generic]]) -> None:
    """Raise ValueError unless each array has its tensor's shape and dtype and is C-contiguous."""
    if len(arrays) != len(tensors):
        raise ValueError(f"{len(arrays)} arrays for {len(tensors)} inputs ({', '.join(t.name for t in tensors)})")
    for tensor, array in zip(tensors, arrays, strict=True):
        if array.shape != tensor.shape or array.dtype.name != tensor.dtype:
            raise ValueError(
                f"input {tensor.name}: {array.dtype} {array.shape} instead of {tensor.dtype} {tensor.shape}"
            )
        if not array.dtype.isnative:
            raise ValueError(f"input {tensor.name}: its bytes are not in the order of this machine")
        if not array.flags.c_contiguous:
            raise ValueError(f"input {tensor.name}: not C-contiguous")
