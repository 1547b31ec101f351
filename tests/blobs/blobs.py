"""A detector of coloured rectangles and a tracker by distance: plugins as other people install them, with known answers.

The folder is what pip would leave in site-packages; tests put it on the path.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from pyasc.errors import ConfigError, DeviceNotFoundError, ModelFormatError
from pyasc.plugins.base import Detector, Tracker
from pyasc.types import Detections, Tracks

COLORS = {"blue": 0, "green": 1, "red": 2}
# Ends the hanging of a detector with `hang_at`.
released = threading.Event()
DEVICES = ("cpu", "gpu0", "mlu220")


@dataclass(frozen=True, slots=True)
class BlobsConfig:
    model: str
    device: str = "cpu"
    threshold: int = 128
    fail_at: int = -1  # raise at this picture
    hang_at: int = -1  # do not return from this picture

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 256:
            raise ConfigError([("threshold", f"{self.threshold} is not in 1..255")])


class Blobs(Detector, name="blobs"):
    Config = BlobsConfig

    def __init__(self, config: BlobsConfig) -> None:
        super().__init__(config)
        if Path(config.model).read_bytes() != b"blobs":
            raise ModelFormatError(f"{config.model}: not a model of blobs")
        self.closed = False
        self.moves: list[str] = []
        self.config_device(config.device)
        self._count = 0

    def detect(self, image):
        if self._count == self.config.fail_at:
            raise RuntimeError("the detector fell over")
        if self._count == self.config.hang_at:
            released.wait(60)
        self._count += 1
        boxes, labels = [], []
        for label, channel in COLORS.items():
            others = np.delete(image, channel, axis=2).max(axis=2)
            mask = ((image[:, :, channel] > self.config.threshold) & (others < self.config.threshold)).astype(np.uint8)
            _, _, stats, _ = cv2.connectedComponentsWithStats(mask)
            for x, y, w, h, area in stats[1:]:
                if area >= 16:
                    boxes.append([x, y, x + w, y + h])
                    labels.append(label)
        count = len(labels)
        xyxy = np.array(boxes, np.float32).reshape(-1, 4)
        class_id = np.array([COLORS[label] for label in labels], np.int64)
        return Detections(xyxy, np.full(count, 0.75, np.float32), class_id, labels)

    def config_device(self, device, **options):
        if device not in DEVICES:
            raise DeviceNotFoundError(f"there is no device {device!r}")
        self._device = device
        self.moves.append(device)

    @property
    def device(self):
        return self._device

    def close(self):
        self.closed = True


@dataclass(frozen=True, slots=True)
class NearestConfig:
    reach: float = 0.25  # of the picture's width, in one frame


class Nearest(Tracker, name="nearest"):
    Config = NearestConfig

    def __init__(self, config: NearestConfig) -> None:
        super().__init__(config)
        self._next_id = 1
        self.closed = False
        self.reset()

    def reset(self):
        self._known: dict[int, tuple[str, np.ndarray]] = {}

    def update(self, detections, image=None, time_s=None):
        size = np.array([image.shape[1], image.shape[0]])
        numbers = []
        for label, box in zip(detections.label, detections.xyxy, strict=True):
            centre = (box[:2] + box[2:]) / 2 / size
            near = [
                (float(np.abs(place - centre).max()), number)
                for number, (kind, place) in self._known.items()
                if kind == label and number not in numbers
            ]
            distance, number = min(near, default=(1.0, 0))
            if distance > self.config.reach:
                number, self._next_id = self._next_id, self._next_id + 1
            self._known[number] = label, centre
            numbers.append(number)
        return Tracks(
            detections.xyxy, detections.score, detections.class_id, detections.label, np.array(numbers, np.int64)
        )

    def close(self):
        self.closed = True
