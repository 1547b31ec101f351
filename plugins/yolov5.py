"""The YOLOv5 detector."""

from __future__ import annotations

import contextlib
import difflib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyasc.errors import ConfigError, ConfigFault
from pyasc.models.model import DetectionModel, load_model
from pyasc.plugins.base import Detector
from pyasc.plugins.copies import Copies

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyasc.types import Detections

# The fields that are the device's business; what each means and which device has it, the driver says.
_DEVICE_OPTIONS = ("threads", "precision", "engine", "use_avx2")
# Copies for files. More gain little: the threads of one are few then.
_PARALLEL = 2


@dataclass(frozen=True, slots=True)
class YOLOv5Config:
    """The options of the YOLOv5 detector.

    Attributes:
        model: path of an `.asc` detection model.
        device: name of the device that it runs on, `auto` for the best present.
        confidence: least score of a detection, 0..1.
        iou: overlap above which the better of two boxes of a class stays, 0..1.
        classes: names of the classes to look for; empty for all of the model's.
        max_detections: at most this many in a picture, 1 or more.
        parallel: pictures that an analyzer may have in work at the same time, 1 to 8; None means 2 for files, 1 for live sources.
            On the CPU each is worked on by a copy of the model with its share of the threads: more pictures a second than with all
            threads on one, each of which takes longer, and more memory.
        threads, precision, engine, use_avx2: options of the device, for those that have them.
    """

    model: str
    device: str = "auto"
    confidence: float = 0.25
    iou: float = 0.45
    classes: tuple[str, ...] = ()
    max_detections: int = 1000
    parallel: int | None = None
    threads: int | None = None
    precision: str | None = None
    engine: str | None = None
    use_avx2: bool | None = None

    def __post_init__(self) -> None:
        checks = (
            ("model", self.model != "", "an empty path"),
            ("device", self.device != "", "an empty name"),
            ("confidence", 0 <= self.confidence <= 1, "not in 0..1"),
            ("iou", 0 <= self.iou <= 1, "not in 0..1"),
            ("max_detections", 1 <= self.max_detections <= 100_000, "not from 1 to 100000"),
            ("parallel", self.parallel is None or 1 <= self.parallel <= 8, "not from 1 to 8"),
        )
        faults = [ConfigFault(key, f"{getattr(self, key)!r} is {wrong}") for key, right, wrong in checks if not right]
        if faults:
            raise ConfigError(faults)


class YOLOv5(Detector, name="yolov5"):
    """Finds objects with a YOLOv5 model; may be called from several threads.

    Raises:
        ConfigError: the file is no detection model, a class that it does not know, an option that the device cannot honour.
        OSError, ModelFormatError, DeviceError: as for `load_model`.
    """

    Config = YOLOv5Config

    def __init__(self, config: YOLOv5Config) -> None:
        super().__init__(config)
        self.config: YOLOv5Config = config
        self._options = {name: value for name in _DEVICE_OPTIONS if (value := getattr(config, name)) is not None}
        model = load_model(config.model, config.device, **self._options)
        try:
            if not isinstance(model, DetectionModel):
                raise ConfigError([("model", f"{config.model} is no detection model, its task is {model.task}")])
            _check_classes(config.classes, model.manifest.labels)
        except BaseException:
            model.close()
            raise
        self._model = model
        self._copies = Copies(model)
        self._wanted: Mapping[str, Any] = self._options
        self._callers = 1
        self._turn = threading.Lock()
        # The options were written for this device; `auto` stands for whichever it is.
        self._home = model.device

    def detect(self, image: NDArray[np.uint8]) -> Detections:
        """Find objects in an (H, W, 3) BGR uint8 picture, highest score first."""
        config = self.config
        while True:
            with self._copies.use() as model:
                if model is not None:
                    return model(
                        image,
                        config.confidence,
                        config.iou,
                        config.classes or None,
                        max_detections=config.max_detections,
                    )

    __call__ = detect

    def config_device(self, device: str, **options: Any) -> None:
        """Move to another device; on failure the detector goes on where it was.

        Args:
            device: a name, an alias, or `auto`.
            options: the device's own. Those of the configuration belong to the device that it names: they count again when the
                detector comes back to that one, where these do not say otherwise.
        Raises:
            DeviceError, ConfigError: no such device, it cannot run the model, or not with these options.
        """
        with self._turn:
            self._place(device, self._options_on(device, options), self._callers)

    def prepare_device(self, device: str, **options: Any) -> None:
        """Load the model on another device as well, so that `config_device` to it takes no time; see `Model.prepare_device`."""
        self._model.prepare_device(device, **self._options_on(device, options))

    def _options_on(self, device: str, options: Mapping[str, Any]) -> dict[str, Any]:
        home = device in (self._home, self.config.device)
        return {**self._options, **options} if home else dict(options)

    def share(self, callers: int, live: bool = False) -> int:
        """Load as many copies of the model as `callers`, `parallel` and the threads allow, or give them up again."""
        parallel = self.config.parallel or (1 if live else _PARALLEL)
        with self._turn:
            self._place(self._model.device, self._wanted, min(callers, parallel))
            return self._callers

    @property
    def device(self) -> str:
        """Name of the device that it runs on."""
        return self._model.device

    @property
    def model(self) -> DetectionModel:
        """The model itself."""
        return self._model

    def close(self) -> None:
        """Release the model; a second call does nothing."""
        with self._turn:
            copies, self._copies = self._copies, Copies(self._model)  # calls from now on find the model closed
        copies.retire()
        self._model.close()

    def _place(self, device: str, options: Mapping[str, Any], callers: int) -> None:
        """Move to a device, with copies for so many callers where its threads can be shared out; on failure all stays."""
        before, before_options = self._model.device, self._model.options
        more: list[DetectionModel] = []
        try:
            self._model.config_device(device, **options)
            # Devices without threads of ours work on one picture at a time: callers prepare theirs meanwhile.
            threads = getattr(self._model.executable, "threads", 1)
            copies = min(callers, threads)
            if copies > 1:
                part = {**options, "threads": threads // copies}
                self._model.config_device(device, **part)
                with contextlib.ExitStack() as undo:
                    more = [undo.enter_context(self._copy(part)) for _ in range(copies - 1)]
                    undo.pop_all()
        except BaseException:
            self._model.config_device(before, **before_options)
            raise
        old, self._copies = self._copies, Copies(self._model, more)
        old.retire()
        self._wanted, self._callers = options, callers

    def _copy(self, options: Mapping[str, Any]) -> DetectionModel:
        model = load_model(self.config.model, self._model.device, **options)
        if not isinstance(model, DetectionModel) or model.manifest != self._model.manifest:
            model.close()
            raise ConfigError([("model", f"{self.config.model} is another file than the one that was loaded")])
        return model


def _check_classes(classes: tuple[str, ...], labels: tuple[str, ...]) -> None:
    faults = []
    for number, name in enumerate(classes):
        if name not in labels:
            close = difflib.get_close_matches(name, labels, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(labels[:8])}, ..."
            faults.append(ConfigFault(f"classes[{number}]", f"the model has no class {name!r}; {hint}"))
    if faults:
        raise ConfigError(faults)
