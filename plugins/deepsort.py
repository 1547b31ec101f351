"""DeepSORT: identities from motion and appearance.

Source: Wojke, Bewley and Paulus, "Simple Online and Realtime Tracking with a Deep Association Metric", ICIP 2017. A track is
tentative until it was seen `n_init` frames in a row, then confirmed until it was not seen for `max_age` frame periods. Confirmed
tracks are matched by appearance inside the gate of their motion, those seen last first; tentative ones, and what is left of the
confirmed ones that were seen in the frame before, by overlap. Without appearance the confirmed tracks go by overlap too.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyasc.errors import ConfigError, ConfigFault
from pyasc.plugins import kalman
from pyasc.plugins.association import Pairs, assign, cascade, iou
from pyasc.plugins.base import Tracker
from pyasc.plugins.frame_clock import FrameClock
from pyasc.plugins.gallery import cosine_distances, unit_vectors
from pyasc.plugins.tracks import TrackTable
from pyasc.types import Detections, Tracks

if TYPE_CHECKING:
    from pyasc.models.model import EmbeddingModel

_log = logging.getLogger(__name__)

# The fields that are the device's business; what each means and which device has it, the driver says.
_DEVICE_OPTIONS = ("threads", "precision", "engine", "use_avx2", "batch")


@dataclass(frozen=True, slots=True)
class DeepSORTConfig:
    """The options of DeepSORT.

    Attributes:
        model: path of an `.asc` appearance model; None tracks by motion and overlap alone.
        device: name of the device that the appearance model runs on, `auto` for the best present. One that is not there is an
            error also without a model.
        threads, precision, engine, use_avx2, batch: options of the device for the appearance model, for devices that have them.
            Without `threads` it takes one.
        max_cosine_distance: the largest distance of a detection to the nearest remembered appearance, above 0, up to 2. It goes
            with the model: 0.3 is for OSNet x0.25, the published program has 0.2 for its own network.
        nn_budget: appearances remembered for each track, 1 to 10000; the oldest goes first.
        max_iou_distance: the largest 1 - IoU of a match by overlap, above 0, below 1.
        max_age: frame periods that a confirmed track lives without being seen, 1 to 100000.
        n_init: frames in a row in which a new track must be seen before it is put out, 1 or more.
        min_confidence: detections with a lower score are ignored. The detector has a threshold of its own.
        class_aware: a detection continues only a track of its own class.
        gating_only_position: gate matches by appearance with the centre of the box alone, not also aspect ratio and height.
        coast: put out also tracks that were last seen up to this many frames ago, where the motion model has them; the published
            program shows them for 1 frame.
        frame_rate: frames a second, 0.001 to 1000, that `max_age` and the motion noise refer to where frames come with times; None
            learns it from the times.
    """

    model: str | None = None
    device: str = "auto"
    threads: int | None = None
    precision: str | None = None
    engine: str | None = None
    use_avx2: bool | None = None
    batch: int | None = None
    max_cosine_distance: float = 0.3
    nn_budget: int = 100
    max_iou_distance: float = 0.7
    max_age: int = 30
    n_init: int = 3
    min_confidence: float = 0.0
    class_aware: bool = True
    gating_only_position: bool = False
    coast: int = 0
    frame_rate: float | None = None

    def __post_init__(self) -> None:
        rate = self.frame_rate
        checks = (
            ("model", self.model != "", "an empty path; leave it out to track without appearance"),
            ("device", self.device != "", "an empty name"),
            ("max_cosine_distance", 0 < self.max_cosine_distance <= 2, "not above 0 and up to 2"),
            ("nn_budget", 1 <= self.nn_budget <= 10000, "not from 1 to 10000"),
            ("max_iou_distance", 0 < self.max_iou_distance < 1, "not between 0 and 1"),
            ("max_age", 1 <= self.max_age <= 100000, "not from 1 to 100000"),
            ("n_init", self.n_init >= 1, "below 1"),
            ("min_confidence", 0 <= self.min_confidence <= 1, "not from 0 to 1"),
            ("coast", self.coast >= 0, "below 0"),
            ("frame_rate", rate is None or 0.001 <= rate <= 1000, "not from 0.001 to 1000 frames a second"),
        )
        faults = [ConfigFault(key, f"{getattr(self, key)!r} is {wrong}") for key, right, wrong in checks if not right]
        if self.model is None:
            given = [key for key in _DEVICE_OPTIONS if getattr(self, key) is not None]
            faults += [ConfigFault(key, "needs an appearance model") for key in given]
        if faults:
            raise ConfigError(faults)


@dataclass(frozen=True, slots=True)
class _Sight:
    """What one frame shows: N detections, as (x, y, a, h) too, and their looks where the frame has such.

    Attributes:
        unit: (N, D) float32 unit vectors; zero where the look is not known.
        known: (N,) bool.
    """

    found: Detections
    xyah: NDArray[np.float64]
    unit: NDArray[np.float32] | None
    known: NDArray[np.bool_]


class DeepSORT(Tracker, name="deepsort"):
    """The tracker. Instances share nothing; the same calls give the same tracks; not for use by two threads at once.

    Raises:
        ConfigError: the file is no appearance model, or an option that the device cannot honour.
        OSError, ModelFormatError, DeviceError: as for `pyasc.load_model`.

    Attributes:
        dropped: detections dropped so far because their box or score was not finite or the box had no area.
        without_appearance: detections so far whose appearance could not be told (outside the picture, or a vector that is zero
            or not finite); these are matched by overlap alone.
    """

    Config = DeepSORTConfig

    def __init__(self, config: DeepSORTConfig) -> None:
        super().__init__(config)
        self.config: DeepSORTConfig = config
        self.dropped = 0
        self.without_appearance = 0
        self._model = _open_model(config)
        self._home = self.device
        self._table = TrackTable()
        self.reset()

    def reset(self) -> None:
        """Forget all tracks, the picture's size and the time; ids go on counting up."""
        self._table.clear()
        self._clock = FrameClock(self.config.frame_rate)
        self._size: tuple[int, int] | None = None
        self._dim: int | None = None

    @property
    def device(self) -> str | None:
        """Name of the device that the appearance model runs on; None without a model."""
        return self._model.device if self._model is not None else None

    def config_device(self, device: str, **options: Any) -> None:
        """Move the appearance model to another device; the tracks stay.

        Args:
            device: a name, an alias, or `auto`.
            options: the device's own. Those of the configuration belong to the device that it names: they count again when the
                model comes back to that one, where these do not say otherwise.
        Raises:
            ConfigError: there is no appearance model, or the device cannot honour an option.
            DeviceError: no such device, or it cannot run the model; the model goes on where it was.
        """
        if self._model is None:
            raise ConfigError([ConfigFault("device", "there is no appearance model to move")])
        home = device in (self._home, self.config.device)
        wanted = {**_device_options(self.config), **options} if home else options
        self._model.config_device(device, **wanted)
        _leave_cores_to_the_detector(self._model, wanted)

    def close(self) -> None:
        """Release the appearance model; a second call does nothing."""
        if self._model is not None:
            self._model.close()

    def update(
        self,
        detections: Detections,
        image: NDArray[np.uint8] | None = None,
        time_s: float | None = None,
        *,
        features: NDArray[np.floating] | None = None,
        size: tuple[int, int] | None = None,
    ) -> Tracks:
        """Take the detections of the next frame.

        A picture of another size than the last one is taken for the same view in another resolution: live tracks are rescaled and
        keep their ids. A frame that is late by its time moves the tracks on by as many frame periods.

        Args:
            detections: of this frame, in its pixels.
            image: the frame, (H, W, 3) BGR uint8; needed with an appearance model unless features are given.
            time_s: capture time on a clock that does not jump; None means one frame period after the last call.
            features: appearance of the detections where it was computed elsewhere, (N, D) of any length, D the same in each call.
            size: width and height of the frame where there is no image to tell.
        Returns:
            confirmed tracks that this frame shows, by id, with the boxes of the motion filter, which may reach over the picture's
            edge; with `coast` also those seen a little before.
        Raises:
            ValueError: arrays do not fit together, or an image is missing that the appearance model needs.
        """
        detections = _checked(detections)
        size = _picture_size(image, size)
        found, given = self._admit(detections, features)
        sight = self._look(found, image, given)
        self._advance(size, time_s)
        self._absorb(sight, *self._associate(sight))
        return self._table.output(self._table.confirmed & (self._table.misses <= self.config.coast))

    def _admit(
        self, detections: Detections, features: NDArray[np.floating] | None
    ) -> tuple[Detections, NDArray[np.floating] | None]:
        """The detections that can be used, and their rows of the features."""
        if features is not None:
            features = np.asarray(features)
            if features.ndim != 2 or len(features) != len(detections):
                raise ValueError(f"features have shape {features.shape}, not ({len(detections)}, D)")
        boxes = detections.xyxy
        sound = (
            np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] > boxes[:, :2]).all(axis=1) & np.isfinite(detections.score)
        )
        self.dropped += int((~sound).sum())
        keep = sound & (detections.score >= self.config.min_confidence)
        return detections[keep], features[keep] if features is not None else None

    def _look(self, found: Detections, image: NDArray[np.uint8] | None, given: NDArray[np.floating] | None) -> _Sight:
        """The detections with what is known of their appearance."""
        xyah = kalman.to_xyah(found.xyxy)
        if given is None and self._model is not None:
            if image is None:
                raise ValueError("deepsort: the appearance model needs the image of the frame")
            given = self._model(image, found.xyxy)
        if given is None:
            return _Sight(found, xyah, None, np.zeros(len(found), np.bool_))
        if len(found):
            if self._dim not in (None, given.shape[1]):
                raise ValueError(f"features have {given.shape[1]} values each, those before had {self._dim}")
            self._dim = given.shape[1]
        unit, known = unit_vectors(given)
        self.without_appearance += int((~known).sum())
        return _Sight(found, xyah, unit, known)

    def _advance(self, size: tuple[int, int] | None, time_s: float | None) -> None:
        """Bring the live tracks into this frame's pixels and time."""
        table = self._table
        if size is not None:
            if self._size not in (None, size):
                x, y = size[0] / self._size[0], size[1] / self._size[1]
                table.states = kalman.rescale(table.states, x=x, y=y)
            self._size = size
        tick = self._clock.tick(time_s)
        if tick.stretch != 1:
            table.states = kalman.rescale(table.states, period=tick.stretch)
            table.age /= tick.stretch
        table.keep(table.age + tick.steps <= self.config.max_age)
        table.advance(tick.steps)

    def _associate(self, sight: _Sight) -> Pairs:
        """Pair rows of the table with detections: confirmed tracks by the cascade, then the recent of the rest by overlap."""
        table, config, found = self._table, self.config, sight.found
        overlap = 1 - iou(table.states.xyxy(), np.asarray(found.xyxy, np.float64))
        if config.class_aware:
            overlap[table.class_id[:, None] != found.class_id[None]] = np.inf
        confirmed = np.flatnonzero(table.confirmed)
        # Without looks, Mahalanobis distances in the place of overlaps would be the paper's other choice. By them the least
        # certain tracks, whose gates are the widest, take the detections of others: that made two thirds more identity
        # switches on the MOTChallenge sequences of the tests.
        cost, limit = overlap[confirmed], config.max_iou_distance
        if sight.unit is not None:
            allowed = np.isfinite(overlap[confirmed])
            cost = self._appearance_cost(confirmed, allowed, sight.xyah, sight.unit, sight.known)
            limit = config.max_cosine_distance
        rows, columns = cascade(cost, limit, table.misses[confirmed])
        rows = confirmed[rows]
        recent, free = table.misses == 1, np.ones(len(found), np.bool_)
        recent[rows], free[columns] = False, False
        left_rows, left_columns = np.flatnonzero(recent), np.flatnonzero(free)
        more_rows, more_columns = assign(overlap[np.ix_(left_rows, left_columns)], config.max_iou_distance)
        return np.concatenate([rows, left_rows[more_rows]]), np.concatenate([columns, left_columns[more_columns]])

    def _appearance_cost(
        self,
        confirmed: NDArray[np.int64],
        allowed: NDArray[np.bool_],
        xyah: NDArray[np.float64],
        unit: NDArray[np.float32],
        known: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        """Cosine distances of confirmed tracks and detections, infinite outside the gate of the motion."""
        position_only = self.config.gating_only_position
        distance = kalman.gating_distance(self._table.states[confirmed], xyah, position_only)
        inside = (distance <= kalman.CHI2_95[2 if position_only else 4]) & allowed & known
        return cosine_distances([self._table.gallery[row] for row in confirmed], unit, inside)

    def _absorb(self, sight: _Sight, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Correct matched tracks, end tentative ones that were missed, start new ones, and remember looks."""
        table, found = self._table, sight.found
        new = np.ones(len(found), np.bool_)
        new[columns] = False
        started = np.flatnonzero(new)
        before = len(table)
        table.correct(rows, found[columns], sight.xyah[columns])
        table.append(found[started], sight.xyah[started], self.config.nn_budget)
        if sight.unit is not None:
            owners = np.concatenate([rows, np.arange(before, len(table))])
            for row, column in zip(owners, np.concatenate([columns, started]), strict=True):
                if sight.known[column]:
                    table.gallery[row].add(sight.unit[column])
        table.confirmed |= table.hits >= self.config.n_init
        table.keep(table.confirmed | (table.misses == 0))


def _open_model(config: DeepSORTConfig) -> EmbeddingModel | None:
    if config.model is None:
        _check_device(config.device)
        _tell_without_model()
        return None
    from pyasc.models.model import EmbeddingModel, load_model

    options = _device_options(config)
    model = load_model(config.model, config.device, **options)
    if not isinstance(model, EmbeddingModel):
        model.close()
        raise ConfigError([ConfigFault("model", f"{config.model} is no appearance model, its task is {model.task}")])
    _leave_cores_to_the_detector(model, options)
    return model


def _check_device(name: str) -> None:
    """Raise DeviceNotFoundError where a device is asked for that is not there, also when nothing of ours would run on it."""
    if name != "auto":
        from pyasc.hal.registry import discover_devices

        discover_devices().find(name)


@functools.cache
def _tell_without_model() -> None:
    # Once a process: trackers are built anew at each restart of a pipeline.
    _log.info("deepsort: no appearance model, tracking by motion and overlap alone")


def _leave_cores_to_the_detector(model: EmbeddingModel, options: Mapping[str, Any]) -> None:
    """One thread on a device with threads of ours, unless options say otherwise: a crop's network is too small to gain by more."""
    if "threads" not in options and getattr(model.executable, "threads", 1) > 1:
        model.config_device(model.device, **options, threads=1)


def _device_options(config: DeepSORTConfig) -> dict[str, Any]:
    return {key: value for key in _DEVICE_OPTIONS if (value := getattr(config, key)) is not None}


def _checked(detections: Detections) -> Detections:
    """The detections as arrays of the types they should have."""
    with np.errstate(over="ignore", invalid="ignore"):
        xyxy, score = np.asarray(detections.xyxy, np.float32), np.asarray(detections.score, np.float32)
    class_id, count = np.asarray(detections.class_id, np.int64), len(detections)
    if (xyxy.shape, score.shape, class_id.shape) != ((count, 4), (count,), (count,)):
        raise ValueError(
            f"detections: xyxy {xyxy.shape}, score {score.shape}, class_id {class_id.shape} do not fit {count} labels"
        )
    return Detections(xyxy, score, class_id, detections.label)


def _picture_size(image: NDArray[np.uint8] | None, size: tuple[int, int] | None) -> tuple[int, int] | None:
    """Width and height of the frame, None where nobody tells."""
    if size is not None and not (len(size) == 2 and min(size) > 0):
        raise ValueError(f"size: {size} is not a width and a height above 0")
    if image is None:
        return size
    if image.ndim < 2 or 0 in image.shape[:2]:
        raise ValueError(f"image: shape {image.shape} is not that of a picture")
    shown = (int(image.shape[1]), int(image.shape[0]))
    if size not in (None, shown):
        raise ValueError(f"size: {size} is not the size {shown} of the image")
    return shown
