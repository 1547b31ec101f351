"""A model on a device: the form that was chosen, loaded, with memory for its input."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyasc.errors import DeviceError, DeviceLostError, ModelFormatError
from pyasc.hal.base import Device, DeviceInfo, Executable, Program, T, TensorInfo
from pyasc.hal.registry import discover_devices, open_device
from pyasc.models.asc.archive import Archive
from pyasc.models.asc.plan import Form, choose_form, make_plan
from pyasc.models.preprocess import InputBuffer, Preprocessor
from pyasc.runtime.parts import PartsExecutable
from pyasc.types import Resource

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Opened:
    device: Device
    users: int = 0


class SharedDevice(Resource):
    """An opened device that several models of the process use; the last one to go closes it."""

    _by_name: ClassVar[dict[str, _Opened]] = {}
    _turn: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str) -> None:
        self.name = name
        self._held = True
        with self._turn:
            if name not in self._by_name:
                self._by_name[name] = _Opened(open_device(name))
            self._opened = self._by_name[name]
            self._opened.users += 1
        self.device = self._opened.device

    def retire(self) -> None:
        """Share it no longer: it is lost, and who opens the device from now on tries it anew."""
        with self._turn:
            self._forget()

    def close(self) -> None:
        """Let go of the device; a second call does nothing."""
        with self._turn:
            if not self._held:
                return
            self._held = False
            self._opened.users -= 1
            if self._opened.users == 0:
                self._forget()
                self.device.close()

    def _forget(self) -> None:
        if self._by_name.get(self.name) is self._opened:
            del self._by_name[self.name]


class Session(Resource):
    """A model, loaded on one device.

    Closing it while calls are under way leaves the closing to the last of them.

    Args:
        archive: the model; stays open as long as the session.
        device: a device's own name.
        options: for `Device.load`.
        make_reader: makes what reads the outputs of the loaded form.

    Attributes:
        device: what is known of the device.
        form: of the model, that runs there.
        options: as given.
        executable: the loaded form.
        preprocessor: for its input.
        reader: as made by `make_reader`.
        lost: True when the device was lost: the session is of no use any more.
    """

    def __init__(
        self,
        archive: Archive,
        device: str,
        options: Mapping[str, Any],
        make_reader: Callable[[tuple[TensorInfo, ...]], Any],
    ) -> None:
        self.options = dict(options)
        self.lost = False
        with contextlib.ExitStack() as undo:
            self._shared = undo.enter_context(SharedDevice(device))
            self.device: DeviceInfo = self._shared.device.info
            formats = self._shared.device.formats(**options)
            self.form = choose_form(archive.manifest, self.device, formats, options.get("precision"))
            self.executable = undo.enter_context(_load(archive, self._shared.device, self.form, options))
            if len(self.executable.inputs) != 1:
                raise ModelFormatError(f"{archive.path}: {len(self.executable.inputs)} inputs; a picture fills one")
            self.preprocessor = Preprocessor(archive.manifest.preprocess, self.executable.inputs[0])
            self.reader = make_reader(self.executable.outputs)
            self._release = undo.pop_all()
        self._inputs: deque[InputBuffer] = deque()
        self._turn = threading.Lock()
        self._calls = 0
        self._closing = False

    def begin(self) -> bool:
        """Keep the session open for one call, which has to `end`; False when it is closed."""
        with self._turn:
            if not self._closing:
                self._calls += 1
            return not self._closing

    def end(self) -> None:
        """A call has ended."""
        with self._turn:
            self._calls -= 1
            last = self._closing and self._calls == 0
        if last:
            self._release.close()

    @contextlib.contextmanager
    def input(self) -> Iterator[InputBuffer]:
        """Scratch memory for one inference: each thread its own, used again by later calls."""
        try:
            buffer = self._inputs.pop()
        except IndexError:
            buffer = self.preprocessor.new_input()
        yield buffer
        self._inputs.append(buffer)

    def run(self, write: Callable[[NDArray[Any]], None], read: Callable[[list[NDArray[Any]]], T]) -> T:
        """What `read` makes of the outputs of one inference on what `write` puts into the input; see `Executable.run_in_place`."""
        try:
            return self.executable.run_in_place(lambda inputs: write(inputs[0]), read)
        except DeviceLostError:
            self.lost = True
            self._shared.retire()
            raise

    def close(self) -> None:
        """Give executable and device back, now or when the last call under way ends; a second call does nothing."""
        with self._turn:
            if self._closing:
                return
            self._closing = True
            idle = self._calls == 0
        if idle:
            self._release.close()


def resolve_device(archive: Archive, name: str | None, options: Mapping[str, Any] | None = None) -> str:
    """A device's own name for a name, an alias, or None and `auto`: the best device present that can run the model.

    Args:
        archive: the model.
        name: of the device.
        options: for `Device.load`; they may narrow the forms of the model that a device takes.
    Raises:
        ConfigError: an option that decides about the form is wrong.
        DeviceNotFoundError: no such device.
        DeviceError: no device of this box can run the model; says why for each.
    """
    if name in ("gpu", "npu"):
        return discover_devices().find(name).name
    if name not in (None, "auto"):
        return str(name).removesuffix(":0")
    reasons: list[str] = []
    devices = discover_devices()
    for info in devices:
        if not info.executes:
            continue
        try:
            with SharedDevice(info.name) as shared:
                formats = shared.device.formats(**(options or {}))
                plan = make_plan(archive.manifest, shared.device.info, formats, (options or {}).get("precision"))
        except DeviceError as error:
            reasons.append(f"{info.name}: {error}")
            continue
        if plan.form is not None:
            if reasons:
                _log.warning("%s: on %s (%s)", archive.path, info.name, "; ".join(reasons))
            return info.name
        reasons += [f"{info.name}: {path}: {reason}" for path, reason in plan.rejected]
    reasons += [f"{name}: {reason}" for name, reason in devices.absent.items()]
    raise DeviceError(f"no device of this box can run {archive.manifest.name} ({'; '.join(reasons)})")


def _load(archive: Archive, device: Device, form: Form, options: Mapping[str, Any]) -> Executable:
    if form.parts:
        return _load_parts(archive, device, form, options)
    program = Program(
        name=archive.manifest.name,
        format=form.format,
        data=archive.entry(form.path),
        inputs=form.inputs,
        outputs=form.outputs,
        precision=form.precision,
    )
    return device.load(program, **options)


def _load_parts(archive: Archive, device: Device, form: Form, options: Mapping[str, Any]) -> Executable:
    """The parts of a form, each on its device; of the options the CPU's parts take `batch` alone."""
    shared = {key: value for key, value in options.items() if key == "batch"}
    with contextlib.ExitStack() as undo:
        parts = []
        for part in form.parts:
            program = Program(
                name=archive.manifest.name,
                format=part.format,
                data=archive.entry(part.path),
                inputs=part.inputs,
                outputs=part.outputs,
                precision=form.precision if part.on == "device" else "fp32",
                segment=part.segment,
            )
            if part.on == "device":
                parts.append(undo.enter_context(device.load(program, **options)))
            else:
                cpu = undo.enter_context(SharedDevice("cpu"))
                parts.append(undo.enter_context(cpu.device.load(program, **shared)))
        inputs, outputs = ([tensor.name for tensor in tensors] for tensors in (form.inputs, form.outputs))
        release = contextlib.ExitStack()
        made = PartsExecutable(device.info.name, parts, inputs, outputs, release)
        release.push(undo.pop_all())
        return made
