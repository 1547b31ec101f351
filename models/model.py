"""`load_model`: a model file as something to call with pictures."""

from __future__ import annotations

import abc
import contextlib
import difflib
import functools
import logging
import operator
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyasc.errors import DeviceError, ModelFormatError
from pyasc.hal.base import Executable, TensorInfo
from pyasc.models.asc.archive import Archive, open_archive
from pyasc.models.asc.manifest import ClassificationHead, EmbeddingHead, Manifest, Yolov5Head
from pyasc.models.image import Image, crop, load_image
from pyasc.models.postprocess import Boxes, Thresholds, Yolov5Decoder, embeddings, probabilities
from pyasc.models.preprocess import Geometry
from pyasc.models.selftest import LOW_SCORE, faults, read_selftest
from pyasc.models.session import Session, resolve_device
from pyasc.types import Detections, Resource

_log = logging.getLogger(__name__)

Picture = NDArray[Any] | str | os.PathLike[str]


def load_model(path: str | os.PathLike[str], device: str | None = None, **options: Any) -> Model:
    """Open a model file and load it on a device.

    Args:
        path: of an `.asc` file.
        device: a device's name (`cpu`, `gpu0`, `hi3559`, `mlu220:1`), `gpu` or `npu` for the best of that kind, None or `auto` for
            the best device present that can run the model.
        options: the device's own, such as `threads`, `batch`, `precision`; each is honoured or refused.
    Returns:
        a DetectionModel, EmbeddingModel or ClassificationModel, as the file says.
    Raises:
        OSError: the file is missing or cannot be read.
        ModelFormatError: it is no model file, or damaged.
        DeviceNotFoundError, DeviceError: no such device, or it cannot run this model.
        ConfigError: an option that is unknown, wrong, or that the device cannot honour.
    """
    with contextlib.ExitStack() as undo:
        archive = undo.enter_context(open_archive(path))
        model = _CLASSES[archive.manifest.task](archive, device, options)
        undo.pop_all()
    return model


class Model(Resource):
    """A model file, loaded on a device. May be called from several threads, also while another one moves it to a new device.

    Args:
        archive: closed by the model.
        device: as for `load_model`.
        options: the device's own.

    Attributes:
        path: of the file.
        manifest: what the file says of the model.
        name: of the model.
        task: `detect`, `embed` or `classify`.
    """

    def __init__(self, archive: Archive, device: str | None, options: Mapping[str, Any]) -> None:
        self.path = archive.path
        self.manifest: Manifest = archive.manifest
        self.name = self.manifest.name
        self.task = self.manifest.task
        self._archive = archive
        self._turn = threading.Lock()
        # Kept open while the model is elsewhere, by the name of the device; the session of now may be among them.
        self._ready: dict[str, Session] = {}
        self._closed = False
        self._session = self._open(device, options)

    @abc.abstractmethod
    def __call__(self, image: Picture, *args: Any, **options: Any) -> Any:
        """What the model says of a picture; arguments and result are those of its task."""

    @property
    def device(self) -> str:
        """Name of the device that it runs on."""
        return self._session.device.name

    @property
    def options(self) -> dict[str, Any]:
        """The device's options, as they were given."""
        return dict(self._session.options)

    @property
    def engine(self) -> str:
        """What computes: name and version."""
        return self._session.executable.engine

    @property
    def executable(self) -> Executable:
        """The loaded form; another one after `config_device`."""
        return self._session.executable

    @property
    def batch(self) -> int:
        """Pictures in one inference."""
        return self._session.preprocessor.batch

    def config_device(self, device: str | None, **options: Any) -> None:
        """Move to another device, or to the same one with other options.

        The new place is ready before the old one is given up: when it fails, the model goes on where it was. Calls under way
        end on the old device. Nothing happens when device and options are what they are already, unless the device was lost: then
        it is opened anew.

        Args:
            device: a name, an alias, `auto` or None, as for `load_model`.
            options: the device's own; those of before are not kept.
        Raises:
            DeviceError, ConfigError: as for `load_model`.
            ValueError: the model is closed.
        """
        with self._turn:
            with self._call() as now:
                name = resolve_device(self._archive, device, options)
                if (name, options) == (now.device.name, now.options) and not now.lost:
                    return
                self._session = self._ready_on(name, options) or self._open(name, options)
            if self._ready.get(now.device.name) is not now or now.lost:
                self._drop(now)
        _log.info("%s: now on %s", self.name, name)

    def prepare_device(self, device: str, **options: Any) -> None:
        """Load the model on another device too, and keep it there, so that `config_device` to it takes no time.

        Nothing happens where it is ready already, unless that device was lost: then it is opened anew. Each device has one set of
        options; others replace them.

        Args:
            device: a name or an alias, as for `load_model`.
            options: the device's own, as `config_device` will be given.
        Raises:
            DeviceError, ConfigError: as for `load_model`; a device that was ready with these options then is so no more.
            ValueError: the model is closed.
        """
        name = resolve_device(self._archive, device, options)
        with self._turn, self._call() as now:
            if self._ready_on(name, options) is not None:
                return
            if (name, options) == (now.device.name, now.options) and not now.lost:
                self._keep(now)
                return
        # Not in the turn: a device that does not answer must not keep the model from leaving another one.
        session = self._open(name, options)
        with self._turn:
            if self._closed or self._ready_on(name, options) is not None:
                session.close()
            else:
                self._keep(session)

    def _keep(self, session: Session) -> None:
        old = self._ready.get(session.device.name)
        self._ready[session.device.name] = session
        if old is not None and old is not self._session:
            old.close()

    def _ready_on(self, name: str, options: Mapping[str, Any]) -> Session | None:
        session = self._ready.get(name)
        return session if session is not None and session.options == options and not session.lost else None

    def _drop(self, session: Session) -> None:
        if self._ready.get(session.device.name) is session:
            del self._ready[session.device.name]
        session.close()

    def preprocess(self, image: Picture) -> tuple[NDArray[Any], Geometry]:
        """The network's input for a picture, and the way back to its pixels.

        Args:
            image: as for a call of the model.
        Returns:
            an array of the input's shape and dtype, the picture in its first row, the caller's own.
        """
        with self._call() as session:
            buffer = session.preprocessor.new_input()
            [geometry] = buffer.prepare([load_image(image)])
            array = np.zeros(session.preprocessor.tensor.shape, session.preprocessor.tensor.dtype)
            buffer.write(array)
            return array, geometry

    def close(self) -> None:
        """Give device and file back, the device when calls under way have ended; a second call does nothing."""
        with self._turn:
            for session in (self._session, *self._ready.values()):
                session.close()
            self._ready.clear()
            self._closed = True
            self._archive.close()

    @abc.abstractmethod
    def _make_reader(self, outputs: tuple[TensorInfo, ...]) -> Any:
        """What reads the outputs of a loaded form."""

    def _open(self, device: str | None, options: Mapping[str, Any]) -> Session:
        session = Session(self._archive, resolve_device(self._archive, device, options), options, self._make_reader)
        try:
            if session.form.selftest:
                self._check(session)
        except BaseException:
            session.close()
            raise
        return session

    def _check(self, session: Session) -> None:
        """Run the self-test of the form; DeviceError when the device's answers are not those of the CPU."""
        test = read_selftest(self._archive.entry(session.form.selftest), self.manifest)
        tensors = session.executable.outputs

        def compare(outputs: list[NDArray[Any]]) -> list[str]:
            return faults(test, self.manifest, tensors, outputs, self._boxes(session, outputs))

        with session.input() as buffer:
            buffer.prepare([test.picture])
            found = session.run(buffer.write, compare)
        if found:
            raise DeviceError(f"{session.device.name} computes {self.name} wrong: {'; '.join(found)}; it is not used")

    def _boxes(self, session: Session, outputs: list[NDArray[Any]]) -> list[tuple[int, float]]:
        """(class, score) of what a detector finds, for its self-test; empty for other models."""
        return []

    @contextlib.contextmanager
    def _call(self) -> Iterator[Session]:
        """The session of now, kept open for a call."""
        session = self._session
        while not session.begin():
            if session is self._session:
                raise ValueError(f"the model {self.name} is closed")
            session = self._session  # it was just moved
        try:
            yield session
        finally:
            session.end()


class DetectionModel(Model):
    """Finds objects.

    Attributes:
        dropped: boxes left out so far because the network gave values for them that are not finite.
    """

    def __init__(self, archive: Archive, device: str | None, options: Mapping[str, Any]) -> None:
        head = archive.manifest.postprocess
        if not isinstance(head, Yolov5Head):
            raise ModelFormatError(f"{archive.path}: cannot detect with the post-processing {head.type}")
        self._head = head
        self.dropped = 0
        self._counting = threading.Lock()
        super().__init__(archive, device, options)

    def __call__(
        self,
        image: Picture,
        confidence: float | None = None,
        iou: float | None = None,
        classes: str | Sequence[str | int] | None = None,
        *,
        max_detections: int | None = None,
        multi_label: bool = False,
    ) -> Detections:
        """Find objects in a picture.

        Args:
            image: (H, W, 3) uint8 BGR, other arrays as `pyasc.models.image.as_bgr` takes them, or the path of a picture file.
            confidence: least score, 0..1; None takes the model's own threshold.
            iou: overlap above which the better of two boxes of a class stays, 0..1; None takes the model's own.
            classes: names or numbers of those to look for, or one name; None for all.
            max_detections: at most this many; None takes the model's own limit.
            multi_label: every class of a place above the threshold, not only the best, as evaluations on data sets do.
        Returns:
            in pixels of the picture, highest score first.
        Raises:
            ValueError: a threshold out of range, an unknown class, an array that is no picture, or the model is closed.
            OSError, StreamError: the picture file is missing or damaged.
            DeviceError: from the device.
        """
        thresholds = self.thresholds(confidence, iou, classes, max_detections, multi_label)
        return self._detect([image], thresholds)[0]

    def detect_many(
        self,
        images: Sequence[Picture],
        confidence: float | None = None,
        iou: float | None = None,
        classes: str | Sequence[str | int] | None = None,
        *,
        max_detections: int | None = None,
        multi_label: bool = False,
    ) -> list[Detections]:
        """Find objects in several pictures, as many in one inference as the option `batch` of the device says.

        Arguments and errors are those of a call; the result has the order of the pictures.

        Raises:
            TypeError: one picture instead of several; a call takes it.
        """
        if isinstance(images, str | os.PathLike) or (isinstance(images, np.ndarray) and images.ndim < 4):
            raise TypeError("detect_many takes a list of pictures; for one, call the model itself")
        thresholds = self.thresholds(confidence, iou, classes, max_detections, multi_label)
        return self._detect(images, thresholds)

    def thresholds(
        self,
        confidence: float | None = None,
        iou: float | None = None,
        classes: str | Sequence[str | int] | None = None,
        max_detections: int | None = None,
        multi_label: bool = False,
    ) -> Thresholds:
        """The thresholds of a call, checked, with the model's own where None is given."""
        return Thresholds(
            confidence=self._head.confidence if confidence is None else confidence,
            iou=self._head.iou if iou is None else iou,
            max_detections=self._head.max_detections if max_detections is None else max_detections,
            classes=None if classes is None else class_numbers(classes, self.manifest.labels),
            multi_label=multi_label,
        )

    def _boxes(self, session: Session, outputs: list[NDArray[Any]]) -> list[tuple[int, float]]:
        found = session.reader(outputs, self.thresholds(LOW_SCORE), 0)
        return list(zip(found.class_id.tolist(), found.score.tolist(), strict=True))

    def _make_reader(self, outputs: tuple[TensorInfo, ...]) -> Yolov5Decoder:
        return Yolov5Decoder(self._head, outputs, len(self.manifest.labels))

    def _detect(self, images: Sequence[Picture], thresholds: Thresholds) -> list[Detections]:
        found: list[Detections] = []
        with self._call() as session:
            batch = session.preprocessor.batch
            for start in range(0, len(images), batch):
                with session.input() as buffer:
                    places = buffer.prepare([load_image(image) for image in images[start : start + batch]])
                    boxes = session.run(buffer.write, functools.partial(_read_rows, session, thresholds, len(places)))
                found += map(self._detections, boxes, places)
        return found

    def _detections(self, boxes: Boxes, place: Geometry) -> Detections:
        if boxes.dropped:
            with self._counting:
                first, self.dropped = self.dropped == 0, self.dropped + boxes.dropped
            if first:
                _log.warning(
                    "%s on %s gives values that are not finite; such boxes are left out", self.name, self.device
                )
        labels = self.manifest.labels
        return Detections(
            place.to_source(boxes.xyxy), boxes.score, boxes.class_id, [labels[i] for i in boxes.class_id.tolist()]
        )


def _read_rows(session: Session, thresholds: Thresholds, count: int, outputs: list[NDArray[Any]]) -> list[Boxes]:
    return [session.reader(outputs, thresholds, row) for row in range(count)]


class EmbeddingModel(Model):
    """Makes appearance vectors.

    Attributes:
        dim: length of a vector.
    """

    def __init__(self, archive: Archive, device: str | None, options: Mapping[str, Any]) -> None:
        head = archive.manifest.postprocess
        if not isinstance(head, EmbeddingHead):
            raise ModelFormatError(f"{archive.path}: cannot embed with the post-processing {head.type}")
        self._head = head
        self.dim = head.dim
        super().__init__(archive, device, options)

    def __call__(self, image: Picture, xyxy: ArrayLike | None = None) -> NDArray[np.float32]:
        """Vectors of parts of a picture, as many in one inference as the option `batch` of the device says.

        Args:
            image: as for `DetectionModel`.
            xyxy: (N, 4) boxes in pixels of the picture, an array or a list, cut to it; None means one box around the whole picture.
        Returns:
            (N, dim) float32, of unit length where the model's file says so (`l2`, the usual). Zeros for a box without a pixel of
            the picture, for one that is not finite, and where the network gives values that are not finite.
        Raises:
            ValueError: boxes of another shape, an array that is no picture, or the model is closed.
            OSError, StreamError: the picture file is missing or damaged.
            DeviceError: from the device.
        """
        picture = load_image(image)
        if xyxy is None:
            parts: list[Image | None] = [picture]
        else:
            boxes = np.asarray(xyxy, np.float64)
            if boxes.ndim != 2 or boxes.shape[1] != 4:
                raise ValueError(f"boxes have the shape (N, 4), not {boxes.shape}")
            parts = [crop(picture, box) for box in boxes]
        vectors = np.zeros((len(parts), self.dim), np.float32)
        seen = [(number, part) for number, part in enumerate(parts) if part is not None]
        with self._call() as session:
            batch = session.preprocessor.batch
            for start in range(0, len(seen), batch):
                numbers, crops = zip(*seen[start : start + batch], strict=True)
                with session.input() as buffer:
                    buffer.prepare(crops)
                    made = session.run(buffer.write, lambda outputs: session.reader(outputs[0]))
                vectors[list(numbers)] = made[: len(numbers)]
        return vectors

    def _make_reader(self, outputs: tuple[TensorInfo, ...]) -> Any:
        return functools.partial(embeddings, tensor=outputs[0], normalize=self._head.normalize)


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """What a classifier says of one picture, highest score first.

    Attributes:
        score: (N,) float32; 0..1 but where the model's file has the activation `none`.
        class_id: (N,) int64.
        label: N strings; the class's number where the model has no names.
    """

    score: NDArray[np.float32]
    class_id: NDArray[np.int64]
    label: list[str]


class ClassificationModel(Model):
    """Says what a picture shows."""

    def __init__(self, archive: Archive, device: str | None, options: Mapping[str, Any]) -> None:
        head = archive.manifest.postprocess
        if not isinstance(head, ClassificationHead):
            raise ModelFormatError(f"{archive.path}: cannot classify with the post-processing {head.type}")
        self._head = head
        super().__init__(archive, device, options)

    def __call__(self, image: Picture, top: int = 5) -> Classes:
        """The best classes of a picture.

        Args:
            image: as for `DetectionModel`.
            top: at most this many, 1 or more.
        Raises:
            ValueError: `top` is below 1, an array that is no picture, or the model is closed.
            OSError, StreamError: the picture file is missing or damaged.
            DeviceError: from the device, also when it gives values that are not finite.
        """
        if top < 1:
            raise ValueError(f"top: {top!r} is below 1")
        with self._call() as session, session.input() as buffer:
            buffer.prepare([load_image(image)])
            scores = session.run(buffer.write, lambda outputs: session.reader(outputs[0]))[0]
        if not np.isfinite(scores).all():
            raise DeviceError(f"{self.name} on {self.device} gives values that are not finite")
        best = np.argsort(-scores, kind="stable")[:top]
        labels = self.manifest.labels
        return Classes(scores[best], best, [labels[i] if labels else str(i) for i in best.tolist()])

    def _make_reader(self, outputs: tuple[TensorInfo, ...]) -> Any:
        return functools.partial(probabilities, tensor=outputs[0], activation=self._head.activation)


_CLASSES: dict[str, type[DetectionModel | EmbeddingModel | ClassificationModel]] = {
    "detect": DetectionModel,
    "embed": EmbeddingModel,
    "classify": ClassificationModel,
}


def class_numbers(classes: str | Sequence[str | int], labels: Sequence[str]) -> tuple[int, ...]:
    """Class ids of names or ids, or of one name.

    Raises:
        TypeError: neither a name nor a whole number.
        ValueError: a class that the model does not have; the text names it and similar ones.
    """
    numbers: list[int] = []
    for wanted in [classes] if isinstance(classes, str) else classes:
        if isinstance(wanted, str):
            if wanted not in labels:
                close = difflib.get_close_matches(wanted, labels, n=3) or list(labels[:5])
                raise ValueError(f"classes: the model has no class {wanted!r} (it has {', '.join(close)}, ...)")
            numbers += [number for number, label in enumerate(labels) if label == wanted]
        elif 0 <= (number := operator.index(wanted)) < len(labels):
            numbers.append(number)
        else:
            raise ValueError(f"classes: {wanted!r} is not in 0..{len(labels) - 1}")
    return tuple(numbers)
