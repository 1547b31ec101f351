"""The types that all layers share."""

from __future__ import annotations

import numpy as np
import pytest

import pyasc
from pyasc.agent.files import FolderLock
from pyasc.hal.base import Buffer, Device, Executable, Queue
from pyasc.models.asc.archive import Archive
from pyasc.models.model import Model
from pyasc.models.session import Session
from pyasc.plugins.base import Plugin
from pyasc.types import Detections, Frame, Resource, Tracks


@pytest.mark.parametrize(
    "kind",
    [Archive, Buffer, Device, Executable, FolderLock, Model, Plugin, Queue, Session, pyasc.EdgeAnalyzer, pyasc.Stream],
)
def test_all_that_has_to_be_given_back_is_one_kind_of_thing(kind: type) -> None:
    assert issubclass(kind, Resource)


def test_a_resource_is_closed_at_the_end_of_with_also_after_an_error() -> None:
    class Thing(Resource):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    with Thing() as thing:
        assert thing.closed == 0
    assert thing.closed == 1
    with pytest.raises(KeyError), thing:
        raise KeyError("within")
    assert thing.closed == 2


@pytest.mark.parametrize(
    ("keep", "rows"),
    [
        (np.array([True, False, True]), [0, 2]),
        (np.array([2, 0]), [2, 0]),
        (slice(1, None), [1, 2]),
        ([1], [1]),
        (np.zeros(3, bool), []),
    ],
)
def test_rows_are_picked_with_their_labels(keep: object, rows: list[int]) -> None:
    boxes = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = Detections(boxes, np.float32([0.9, 0.8, 0.7]), np.array([5, 5, 6]), ["a", "b", "c"])
    tracks = Tracks(found.xyxy, found.score, found.class_id, found.label, np.array([7, 8, 9]))
    for part in (found[keep], tracks[keep]):
        assert part.label == ["abc"[row] for row in rows]
        assert part.xyxy.tolist() == boxes[rows].tolist()
        assert len(part) == len(rows)
    assert tracks[keep].track_id.tolist() == [7 + row for row in rows]


def test_a_single_row_is_refused_with_what_to_write_instead() -> None:
    found = Detections(np.zeros((2, 4), np.float32), np.zeros(2, np.float32), np.zeros(2, np.int64), ["a", "b"])
    for pick in (lambda: found[0], lambda: found[np.int64(1)], lambda: list(found)):  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="the slice i:i"):
            pick()


def test_what_holds_arrays_is_compared_by_identity() -> None:
    found = Detections(np.zeros((2, 4), np.float32), np.zeros(2, np.float32), np.zeros(2, np.int64), ["a", "b"])
    frame = Frame(np.zeros((2, 2, 3), np.uint8), 0, 0.0, 0.0)
    assert {found, frame} == {frame, found}
    assert found != found[:]
