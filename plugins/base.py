"""What a plugin is, and how one is found.

A plugin is a class with a name and a configuration data class. Ours are modules of this package; other people's are entry points
of the group `pyasc.plugins` whose name is the plugin's and whose value is the class.
"""

from __future__ import annotations

import abc
import dataclasses
import difflib
import importlib
import importlib.metadata
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pyasc.errors import ConfigError, ConfigFault, PluginError
from pyasc.types import Resource

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyasc.types import Detections, Tracks

# Built-in plugin name to module; the module has exactly one class that registers under the name.
_BUILT_IN = {"yolov5": "pyasc.plugins.yolov5", "deepsort": "pyasc.plugins.deepsort"}
_CLASSES: dict[str, type[Plugin]] = {}
# A hostile document may have more unknown keys than anyone reads, and each hint costs time.
_MAX_UNKNOWN = 100


class _PluginMeta(abc.ABCMeta):
    """Lets a class have the keyword `name`, which ABCMeta of Python 3.10 takes for the class's own name."""

    def __new__(
        mcls, class_name: str, bases: tuple[type, ...], body: dict[str, Any], /, name: str | None = None, **kwargs: Any
    ) -> _PluginMeta:
        body = body if name is None else {**body, "name": name}
        return super().__new__(mcls, class_name, bases, body, **kwargs)

    def __init__(
        cls, class_name: str, bases: tuple[type, ...], body: dict[str, Any], /, name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(class_name, bases, body, **kwargs)


class Plugin(Resource, metaclass=_PluginMeta):
    """Base of all plugins. A subclass gives its name: `class Smooth(Tracker, name="smooth")`.

    `Config` is a frozen data class; its fields are the keys that the plugin takes, and its `__post_init__` raises ConfigError for
    values out of range. No file access, download or thread at import; models are opened in `__init__`, released in `close`.
    """

    name: ClassVar[str]
    Config: ClassVar[type]

    def __init__(self, config: Any) -> None:
        self.config = config

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("name")  # put there by the metaclass
        if name is None:
            return
        if not dataclasses.is_dataclass(getattr(cls, "Config", None)):
            raise TypeError(f"plugin {name}: {cls.__module__}.{cls.__qualname__} has no data class Config")
        if name in _CLASSES:
            raise TypeError(f"two plugins are named {name}: {_CLASSES[name].__module__} and {cls.__module__}")
        _CLASSES[name] = cls

    def close(self) -> None:
        """Release models and devices; a second call does nothing."""


class Detector(Plugin):
    """Finds objects in single pictures."""

    @abc.abstractmethod
    def detect(self, image: NDArray[np.uint8]) -> Detections:
        """Find objects in an (H, W, 3) BGR uint8 picture."""

    @abc.abstractmethod
    def config_device(self, device: str, **options: Any) -> None:
        """Move to another device; the state of the detector, if any, is kept."""

    def share(self, callers: int, live: bool = False) -> int:
        """Get ready for calls of `detect` from several threads at the same time.

        Args:
            callers: threads that may call; 1 when that has ended.
            live: whether the pictures come at a pace of their own, so that the time for one counts and not their number a second.
        Returns:
            how many of them are of use, at most `callers`; 1 from a detector that is for one thread.
        Raises:
            PyascError: as `config_device`; the detector goes on as it was.
        """
        return 1

    @property
    @abc.abstractmethod
    def device(self) -> str:
        """Name of the device that it runs on."""


class Tracker(Plugin):
    """Gives detections identities from frame to frame."""

    @abc.abstractmethod
    def update(
        self, detections: Detections, image: NDArray[np.uint8] | None = None, time_s: float | None = None
    ) -> Tracks:
        """Take the detections of the next frame.

        Args:
            detections: of this frame, in its pixels.
            image: the frame, (H, W, 3) BGR uint8, for trackers that look at it.
            time_s: capture time on a clock that does not jump; None means one frame period after the last call.
        Returns:
            confirmed tracks that this frame shows.
        """

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget all tracks; ids go on counting up."""


def plugin_class(name: str) -> type[Plugin]:
    """The class of a plugin by its name.

    Raises:
        PluginError: no such plugin, or its module fails to import.
    """
    if name not in _CLASSES and name in _BUILT_IN:
        importlib.import_module(_BUILT_IN[name])
    if name not in _CLASSES:
        _load_entry_point(name)
    return _CLASSES[name]


def load_plugin(name: str, **options: Any) -> Any:
    """Make a plugin with these options.

    Raises:
        PluginError: no such plugin.
        ConfigError: an unknown option or a wrong value; names the option.
    """
    cls = plugin_class(name)
    config = parse_config(cls.Config, options)
    return cls(config)


def parse_config(config: type, options: Mapping[str, Any], path: str = "") -> Any:
    """Make a plugin's configuration of the options, all faults in one ConfigError, each with its path.

    Types are compared with the data class's annotations; an int is taken for a float, a list for a tuple.

    Raises:
        ConfigError: an unknown or missing key, a wrong type, or whatever the data class raises for its values.
        PluginError: the data class has annotations that cannot be resolved.
    """
    try:
        hints = typing.get_type_hints(config)
    except Exception as error:
        raise PluginError(f"{config.__module__}.{config.__qualname__}: its annotations: {error}") from error
    fields = {field.name: field for field in dataclasses.fields(config)}
    prefix = f"{path}." if path else ""
    unknown = [key for key in options if key not in fields][:_MAX_UNKNOWN]
    faults = [ConfigFault(f"{prefix}{key}", f"unknown key{_hint(key, fields)}") for key in unknown]
    for key, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if key in options and not _fits(options[key], hints[key]):
            faults.append(ConfigFault(f"{prefix}{key}", f"{options[key]!r} is not of type {_type_name(hints[key])}"))
        elif key not in options and required:
            faults.append(ConfigFault(f"{prefix}{key}", "required"))
    if faults:
        raise ConfigError(faults)
    try:
        return config(**{key: _as_hinted(value, hints[key]) for key, value in options.items()})
    except ConfigError as error:
        raise ConfigError([(prefix + fault.path, fault.message) for fault in error.faults]) from error
    except Exception as error:
        raise ConfigError([(path, f"{type(error).__name__}: {error}")]) from error


def _load_entry_point(name: str) -> None:
    entries = [entry for entry in importlib.metadata.entry_points(group="pyasc.plugins") if entry.name == name]
    if not entries:
        known = sorted({*_BUILT_IN, *_CLASSES, *importlib.metadata.entry_points(group="pyasc.plugins").names})
        others = f" (there are: {', '.join(known)})"
        raise PluginError(f"no plugin named {name!r}{_hint(name, known) or others}")
    try:
        cls = entries[0].load()
    except Exception as error:
        raise PluginError(f"plugin {name}: {entries[0].value} cannot be loaded: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Plugin)):
        raise PluginError(f"plugin {name}: {entries[0].value} is not a subclass of pyasc.plugins.base.Plugin")
    _CLASSES.setdefault(name, cls)


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name[:64], list(known), n=1)
    return f" (did you mean `{close[0]}`?)" if close else ""


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; True for annotations that say nothing that could be checked."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    kind = origin or hint
    if origin is typing.Literal:
        return value in args
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, arg) for arg in args)
    if kind in (float, int):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if hint is typing.Any or not isinstance(kind, type):
        return True
    if origin is tuple and Ellipsis not in args:
        return isinstance(value, list | tuple) and len(value) == len(args) and all(map(_fits, value, args))
    if not isinstance(value, (list, tuple) if kind is tuple else kind):
        return False
    if isinstance(value, Mapping) and len(args) == 2:
        return all(_fits(key, args[0]) and _fits(item, args[1]) for key, item in value.items())
    if isinstance(value, Collection) and args:
        return not isinstance(value, str) and all(_fits(item, args[0]) for item in value)
    return True


def _as_hinted(value: Any, hint: Any) -> Any:
    """A list as a tuple where its annotation has no list: configurations are frozen."""
    kinds = (hint, *typing.get_args(hint))
    wants_list = any((typing.get_origin(kind) or kind) is list for kind in kinds)
    return tuple(value) if isinstance(value, list) and not wants_list else value


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
