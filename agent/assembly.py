"""From the specification of a pipeline to its analyzer and stream; every fault is named by its path in the document."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyasc.agent.analyzer import EdgeAnalyzer
from pyasc.agent.config import MAX_FAULTS, merge_faults, validate
from pyasc.agent.events import LEAVE_AFTER_S
from pyasc.agent.faults import join
from pyasc.agent.stream import Stream
from pyasc.errors import ConfigError, ConfigFault, DeviceError, DeviceNotFoundError, PluginError, PyascError
from pyasc.hal.registry import find_device
from pyasc.plugins.base import Detector, Plugin, Tracker, parse_config, plugin_class

_log = logging.getLogger(__name__)


def check_document(document: Mapping[str, Any], *, model_dir: Path | None) -> list[ConfigFault]:
    """Every fault of a document that can be found without loading a model or opening a device; an empty list is a good one.

    Args:
        document: from `parse_document`.
        model_dir: the folder that model names are relative to; None leaves out what another box may have: whether the files exist,
            and the devices.
    """
    pipelines = document.get("pipelines")
    return merge_faults(
        validate(document, model_dir=model_dir), check_plugins(pipelines, devices=model_dir is not None)
    )


def check_plugins(pipelines: Any, *, devices: bool = True) -> list[ConfigFault]:
    """Find the plugins and devices that a document names, and make the plugins' configurations; loads and opens nothing.

    Args:
        pipelines: of a document that may be broken in any way; parts of the wrong type are passed over: `validate` names them.
        devices: whether this box has to have the devices.
    """
    why_no_device = functools.cache(_why_no_device)
    faults: list[ConfigFault] = []
    for name, spec in pipelines.items() if isinstance(pipelines, dict) else ():
        for key, base in (("detector", Detector), ("tracker", Tracker)):
            part = spec.get(key) if isinstance(spec, dict) else None
            if isinstance(part, dict) and isinstance(part.get("plugin"), str):
                path = join("pipelines", name, key)
                faults += _Stage(base, dict(part), path, f"{path}.device", Path()).check()
        for path, device in _named_devices(spec, join("pipelines", name)) if devices else ():
            if len(faults) < MAX_FAULTS and (reason := why_no_device(device)):
                faults.append(ConfigFault(path, reason))
        if len(faults) >= MAX_FAULTS:
            break
    return faults


def _named_devices(spec: Any, path: str) -> Iterator[tuple[str, str]]:
    """The devices that a pipeline names, each with its path."""
    if not isinstance(spec, dict):
        return
    route = spec.get("route")
    parts = [("detector", spec.get("detector")), ("tracker", spec.get("tracker"))]
    parts += [(f"route[{index}]", entry) for index, entry in enumerate(route if isinstance(route, list) else ())]
    for key, part in parts:
        if isinstance(part, dict) and isinstance(part.get("device"), str):
            yield f"{path}.{key}.device", part["device"]


def _why_no_device(name: str) -> str | None:
    try:
        find_device(name)
    except DeviceNotFoundError as error:
        return str(error)
    return None


def build_analyzer(spec: Mapping[str, Any], *, path: str, model_dir: Path) -> EdgeAnalyzer:
    """Load detector and tracker of a pipeline, on each device that its route may choose.

    Args:
        spec: the pipeline, structure and meaning checked by `config.validate`.
        path: of the pipeline in the document, for faults.
        model_dir: the folder that models are named relative to.
    Raises:
        ConfigError: with every fault that could be found.
    """
    route = spec.get("route", ())
    detector_spec = dict(spec["detector"])
    device_path = f"{path}.detector.device"
    if route:
        # The device that streams of no special kind get; the others are tried below.
        first = next((index for index, entry in enumerate(route) if "when" not in entry), 0)
        if "device" not in detector_spec:
            detector_spec["device"], device_path = route[first]["device"], f"{path}.route[{first}].device"
    stages = [_Stage(Detector, detector_spec, f"{path}.detector", device_path, model_dir)]
    if "tracker" in spec:
        stages.append(_Stage(Tracker, dict(spec["tracker"]), f"{path}.tracker", f"{path}.tracker.device", model_dir))
    faults = [fault for stage in stages for fault in stage.check()]
    return _load(spec, stages, path, faults)


def open_stream(source: Mapping[str, Any]) -> Stream:
    """The stream of a pipeline's `source`; a camera that is away is tried again and again.

    Raises:
        StreamError: a file that cannot be opened.
    """
    return Stream(
        source["url"],
        transport=source.get("transport", "tcp"),
        loop=source.get("loop", False),
        realtime=source.get("realtime", False),
        every=source.get("every", 1),
        retry=True,
    )


class _Stage:
    """One plugin of a pipeline on its way from text to an object."""

    def __init__(self, base: type[Plugin], spec: dict[str, Any], path: str, device_path: str, model_dir: Path) -> None:
        self.path, self.device_path = path, device_path
        self._base, self._name = base, spec.pop("plugin")
        if isinstance(spec.get("model"), str):
            spec["model"] = str(model_dir / spec["model"])
        self._options = spec
        self._class: type[Plugin] | None = None
        self._config: Any = None

    def check(self) -> list[ConfigFault]:
        """Find the plugin and make its configuration, loading nothing."""
        try:
            found = plugin_class(self._name)
        except PluginError as error:
            return [ConfigFault(f"{self.path}.plugin", str(error))]
        if not issubclass(found, self._base):
            kind = self._base.__name__.lower()
            return [ConfigFault(f"{self.path}.plugin", f"{self._name!r} is not a {kind}")]
        try:
            self._config = parse_config(found.Config, self._options, self.path)
        except ConfigError as error:
            return list(error.faults)
        except PluginError as error:
            return [ConfigFault(f"{self.path}.plugin", str(error))]
        self._class = found
        return []

    def load(self, faults: list[ConfigFault]) -> Plugin | None:
        """Make the plugin; None when that fails, with a fault added for what is to blame, or when `check` has failed."""
        if self._class is None:
            return None
        try:
            return self._class(self._config)
        except ConfigError as error:
            faults += [
                ConfigFault(f"{self.path}.{fault.path}" if fault.path else self.path, fault.message)
                for fault in error.faults
            ]
        except Exception as error:  # noqa: BLE001 - other people's plugins may raise anything
            faults.append(self._blame(error))
        return None

    def _blame(self, error: Exception) -> ConfigFault:
        """The part of the stage that an error of loading comes from."""
        if isinstance(error, DeviceError):
            return ConfigFault(self.device_path, str(error))
        if isinstance(error, PluginError):
            return ConfigFault(f"{self.path}.plugin", str(error))
        if isinstance(error, PyascError | OSError):
            return ConfigFault(f"{self.path}.model", str(error))
        _log.error("plugin %s cannot be made", self._name, exc_info=error)
        return ConfigFault(f"{self.path}.plugin", f"{self._name} cannot be made: {type(error).__name__}: {error}")


def _load(spec: Mapping[str, Any], stages: list[_Stage], path: str, faults: list[ConfigFault]) -> EdgeAnalyzer:
    """Make the analyzer; with faults already known, the rest is loaded for its faults alone."""
    loaded: list[Any] = [stage.load(faults) for stage in stages]
    route = spec.get("route", ())
    if not faults and not hasattr(loaded[0], "prepare_device"):
        faults = _try_route(route, loaded[0], path)
    if faults:
        for plugin in loaded:
            if plugin is not None:
                plugin.close()
        raise ConfigError(faults)
    analyzer = EdgeAnalyzer(
        loaded[0],
        loaded[1] if len(loaded) > 1 else None,
        route=spec.get("route"),
        zones=spec.get("zones"),
        lines=spec.get("lines"),
        leave_after_s=float(spec.get("leave_after_s", LEAVE_AFTER_S)),
    )
    if analyzer.faults:
        analyzer.close()
        broken = [(index, entry["device"]) for index, entry in enumerate(route) if entry["device"] in analyzer.faults]
        raise ConfigError([(f"{path}.route[{index}].device", analyzer.faults[device]) for index, device in broken])
    return analyzer


def _try_route(route: Any, detector: Detector, path: str) -> list[ConfigFault]:
    """Move the detector to each device of the route, and back: a route must not fail in the night."""
    faults = []
    home = detector.device
    for index, entry in enumerate(route):
        if entry["device"] == detector.device:
            continue
        message = _why_not(detector, entry["device"])
        if message is not None:
            faults.append(ConfigFault(f"{path}.route[{index}].device", message))
    if not faults and detector.device != home:
        detector.config_device(home)
    return faults


def _why_not(detector: Detector, device: str) -> str | None:
    try:
        detector.config_device(device)
    except (PyascError, OSError) as error:
        return str(error)
    return None
