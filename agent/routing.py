"""Where a detector runs: a route by the stream's facts, and what happens when a device fails.

A device that raises DeviceError while it detects is out of use: the picture goes to the next device of the route at once, and the
failed one is tried again, in a thread of its own and ever more rarely, until it works and the route leads back to it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pyasc.agent.rules import Rule, parse_rule
from pyasc.errors import ConfigError, ConfigFault, DeviceError, DeviceNotFoundError, PyascError
from pyasc.types import Detections, Resource

_log = logging.getLogger(__name__)

PROBE_FIRST_S, PROBE_LAST_S = 1.0, 60.0
_WATCH_S = 1.0
_KEYS = ("when", "device", "hysteresis", "max_load")


class Entry(NamedTuple):
    """One line of a route.

    Attributes:
        rule: when it applies; None for always.
        device: where the detector runs then.
        hysteresis: share by which the facts may fall short of the rule's numbers before an entry that applies ceases to.
        max_load: an entry whose device is busier than this, 0..1, is passed over; None for never.
    """

    rule: Rule | None
    device: str
    hysteresis: float = 0.0
    max_load: float | None = None


def parse_route(route: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """Read the entries of a route.

    Raises:
        ConfigError: with the path of each fault, `route[0].when`.
    """
    entries: list[Entry] = []
    faults: list[ConfigFault] = []
    for index, given in enumerate(route):
        if not isinstance(given, Mapping):
            faults.append(ConfigFault(f"route[{index}]", f"{given!r} is no mapping with `device` and perhaps `when`"))
            continue
        found = _faults_of(given)
        faults += [ConfigFault(f"route[{index}].{key}", message) for key, message in found]
        if not found:
            rule = parse_rule(given["when"]) if "when" in given else None
            limit = given.get("max_load")
            share = float(given.get("hysteresis", 0.0))
            entries.append(Entry(rule, given["device"], share, None if limit is None else float(limit)))
    if faults:
        raise ConfigError(faults)
    return entries


def _faults_of(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    faults = [(key, "unknown key") for key in given if key not in _KEYS]
    if not isinstance(given.get("device"), str):
        faults.append(("device", "required"))
    for key, below in (("hysteresis", 1.0), ("max_load", None)):
        value = given.get(key, 0.5)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= 1 or value == below:
            faults.append((key, f"{value!r} is not within 0..1"))
    if "when" in given:
        try:
            parse_rule(given["when"])
        except (ConfigError, TypeError) as error:
            faults.append(("when", str(error)))
    return faults


class Router(Resource):
    """Moves a detector between the devices of a route.

    Args:
        detector: has `config_device` and `device`; with `prepare_device` as well, every device of the route is kept ready.
        entries: the route, not empty.
        detect: a picture's detections, on the device where the detector is.
        load: how busy a device is, 0..1, or None where that is not known.

    Attributes:
        faults: device to the reason for which it is out of use now.
        on_change: called, from any thread, when it is time to `follow` again: a device works again, or one has become too busy.
            Without it the detector is moved at once.
    """

    def __init__(
        self,
        detector: Any,
        entries: Sequence[Entry],
        detect: Callable[[Any], Detections],
        load: Callable[[str], float | None] = lambda device: None,
    ) -> None:
        self._detector, self._entries, self._detect, self._load = detector, tuple(entries), detect, load
        self.faults: dict[str, str] = {}
        self.on_change: Callable[[], None] | None = None
        self._watched = time.monotonic()
        self._facts: Mapping[str, float] = {}
        self._entry: Entry | None = None
        self._turn = threading.RLock()
        self._closing = threading.Event()
        self._probes: dict[str, threading.Thread] = {}
        self._prepare: Callable[[str], None] | None = getattr(detector, "prepare_device", None)

    @property
    def device(self) -> str | None:
        """The device of the entry that applies; None before the first `follow`, and where none applies."""
        return self._entry.device if self._entry else None

    def prepare(self) -> None:
        """Make every device of the route ready; those that cannot be are out of use."""
        for device in dict.fromkeys(entry.device for entry in self._entries):
            reason = self._why_not_ready(device)
            if reason is not None:
                self._put_out_of_use(device, reason)

    def follow(self, facts: Mapping[str, float]) -> None:
        """Move to where the route leads; stay where no entry applies.

        Args:
            facts: of the stream, as `Rule.holds` takes them.
        Raises:
            DeviceError: no device of the route works.
        """
        with self._turn:
            self._facts = dict(facts)
            self._move()

    def detect(self, image: Any) -> Detections:
        """A picture's detections; where the device fails, on the next one that works.

        Raises:
            DeviceError: from the last device that was tried.
        """
        failed: set[str] = set()
        while True:
            entry = self._entry
            try:
                return self._detect(image)
            except DeviceError as error:
                if entry is None or entry.device in failed:
                    raise
                failed.add(entry.device)
                self._fail(entry, error)

    def watch(self) -> None:
        """Look now and then whether a device has become busy or idle, where the route depends on it; to be called often."""
        now = time.monotonic()
        if now - self._watched < _WATCH_S or all(entry.max_load is None for entry in self._entries):
            return
        self._watched = now
        with self._turn:
            chosen = self._choose()
        if chosen is not self._entry:
            self._changed()

    def close(self) -> None:
        """Try failed devices no more; does not wait for one that is being tried."""
        self._closing.set()

    # --- choosing

    def _choose(self) -> Entry | None:
        """The first entry that applies and whose device works and has time; else the one of now, or any whose device works."""
        usable = [entry for entry in self._entries if entry.device not in self.faults]
        applying = [entry for entry in usable if self._applies(entry)]
        for entry in applying:
            load = None if entry.max_load is None else self._load(entry.device)
            if load is None or entry.max_load is None or load <= entry.max_load:
                return entry
        if applying:
            return applying[0]
        if self._entry in usable:
            return self._entry
        return usable[0] if self.faults and usable else None

    def _applies(self, entry: Entry) -> bool:
        if entry.rule is None:
            return True
        slack = entry.hysteresis if entry is self._entry else 0.0
        return entry.rule.holds(self._facts, slack)

    def _move(self) -> None:
        """Go where the route leads; a device that cannot be moved to is out of use, and the next one is taken."""
        while True:
            entry = self._choose()
            if entry is None and self.faults:
                raise DeviceError("; ".join(f"{device}: {reason}" for device, reason in self.faults.items()))
            if entry is None or entry is self._entry:
                return
            try:
                if self._entry is None or entry.device != self._entry.device:
                    self._detector.config_device(entry.device)
                    _log.info("the detector goes to %s", entry.device)
            except DeviceError as error:
                self._put_out_of_use(entry.device, str(error))
                continue
            self._entry = entry
            return

    # --- failing and coming back

    def _fail(self, entry: Entry, error: DeviceError) -> None:
        """Leave a device, unless another thread has done so already.

        Raises:
            DeviceError: no device of the route works.
        """
        with self._turn:
            if entry.device not in self.faults:
                self._put_out_of_use(entry.device, str(error))
            if self._entry is not None and self._entry.device == entry.device:
                self._entry = None
            try:
                self._move()
            except DeviceError:
                raise error from None

    def _why_not_ready(self, device: str) -> str | None:
        """Make a device ready; None when it is, or when that shows only by moving there."""
        if self._prepare is None:
            return None
        try:
            self._prepare(device)
        except (PyascError, OSError) as error:
            return " ".join(str(error).split())
        return None

    def _put_out_of_use(self, device: str, reason: str) -> None:
        self.faults[device] = " ".join(reason.split())
        _log.warning("device %s is out of use: %s", device, self.faults[device])
        if device not in self._probes and not self._closing.is_set():
            thread = threading.Thread(target=self._probe, args=(device,), name=f"probe {device}", daemon=True)
            self._probes[device] = thread
            thread.start()

    def _probe(self, device: str) -> None:
        """Try a device until it works, and let the route lead back to it."""
        delay_s = PROBE_FIRST_S
        while not self._closing.wait(delay_s):
            delay_s = min(2 * delay_s, PROBE_LAST_S)
            reason = self._why_not_ready(device)
            if reason is None:
                break
            self.faults[device] = reason
        with self._turn:
            del self._probes[device]
            if self._closing.is_set():
                return
            self.faults.pop(device, None)
        _log.info("device %s works again", device)
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()
            return
        with self._turn, contextlib.suppress(DeviceError):  # told in `faults`
            self._move()


def device_load(name: str) -> float | None:
    """How busy a device is, 0..1, as its telemetry says; None where it does not, or is away."""
    from pyasc.models.session import SharedDevice

    try:
        with SharedDevice(name) as shared:
            load = shared.device.telemetry().get("load")
    except (DeviceNotFoundError, DeviceError):
        return None
    return float(load) if isinstance(load, int | float) else None


class Mover:
    """Runs what chooses the device beside the frames, so that none waits while a device is made ready.

    Args:
        process: chooses; its errors come out of `check`.
    """

    def __init__(self, process: Callable[[], None]) -> None:
        self._process = process
        self._turn = threading.Lock()
        self._again = False
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._began: float | None = None

    def request(self) -> None:
        """Choose soon; a choice that is under way is followed by another one."""
        with self._turn:
            self._again = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="choose device", daemon=True)
                self._thread.start()

    def check(self) -> None:
        """Raise what choosing raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def busy_s(self) -> float:
        """Seconds for which a choice has been under way."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def join(self, timeout_s: float) -> bool:
        """Wait for a choice that is under way; False when it does not end in time."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._turn:
                if not self._again:
                    self._thread = None
                    return
                self._again = False
            self._began = time.monotonic()
            try:
                self._process()
            except Exception as error:  # noqa: BLE001 - handed to whoever takes the frames
                self._error = error
            finally:
                self._began = None
