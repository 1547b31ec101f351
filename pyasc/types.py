"""Small types that several layers share. NumPy is not imported.

Those that hold arrays compare by identity: arrays of several values have no single answer to `==`.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self


class Resource(abc.ABC):
    """Something that has to be given back: usable with `with`, closed once, closing again does nothing."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give it back; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """Objects found in one picture.

    Attributes:
        xyxy: (N, 4) float32, left, top, right, bottom in pixels of the source picture.
        score: (N,) float32, 0..1, highest first when a detector made them.
        class_id: (N,) int64.
        label: N strings.
    """

    xyxy: NDArray[np.float32]
    score: NDArray[np.float32]
    class_id: NDArray[np.int64]
    label: list[str]

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, keep: Any) -> Detections:
        """The rows of a boolean mask, an index array or a slice, as a new object."""
        rows = _row_numbers(keep, self.class_id)
        return Detections(self.xyxy[keep], self.score[keep], self.class_id[keep], [self.label[i] for i in rows])


@dataclass(frozen=True, slots=True, eq=False)
class Tracks(Detections):
    """Objects with identities.

    Attributes:
        track_id: (N,) int64, from 1, never used twice by one tracker.
    """

    track_id: NDArray[np.int64]

    def __getitem__(self, keep: Any) -> Tracks:
        """The rows of a boolean mask, an index array or a slice, as a new object."""
        rows = _row_numbers(keep, self.class_id)
        return Tracks(
            self.xyxy[keep], self.score[keep], self.class_id[keep], [self.label[i] for i in rows], self.track_id[keep]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One picture of a stream.

    Attributes:
        image: (H, W, 3) uint8, BGR.
        index: number of the frame in its stream, from 0, frames that were dropped counted too.
        time: capture time, seconds since 1970 in UTC.
        clock: the same instant on the monotonic clock, in seconds; use it for intervals.
    """

    image: NDArray[np.uint8]
    index: int
    time: float
    clock: float

    @property
    def height(self) -> int:
        """Lines of the picture."""
        return int(self.image.shape[0])

    @property
    def width(self) -> int:
        """Columns of the picture."""
        return int(self.image.shape[1])


def _row_numbers(keep: Any, class_id: NDArray[np.int64]) -> list[int]:
    # Made of an array that is there: the agent's control process, which uses this module, has no NumPy.
    numbers = class_id.astype("int64")
    numbers[:] = range(len(class_id))
    rows: list[int] | int = numbers[keep].tolist()
    if isinstance(rows, int):
        raise TypeError("rows are taken by a mask, an index array or a slice; one row i by the slice i:i + 1")
    return rows
