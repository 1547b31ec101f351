"""Events of synthetic tracks with known answers."""

from __future__ import annotations

import itertools
import re
import uuid
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyasc.agent.events import EventMaker, frame_message, relative_boxes
from pyasc.agent.zones import Line, Zone
from pyasc.types import Frame, Tracks

WIDTH, HEIGHT, FPS = 200, 100, 10.0
START = 1_700_000_000.0
RIGHT_HALF = Zone("right", ((0.5, 0.0), (1.0, 0.0), (1.0, 1.0), (0.5, 1.0)))
MIDDLE = Line("middle", (0.5, 0.0), (0.5, 1.0))


def frame(index: int, width: int = WIDTH, height: int = HEIGHT) -> Frame:
    image = np.zeros((height, width, 3), np.uint8)
    return Frame(image, index, START + index / FPS, 50.0 + index / FPS)


def tracks(*rows: tuple[int, list[float]], label: str = "person", score: float = 0.9) -> Tracks:
    """Rows of track number and box (left, top, right, bottom)."""
    count = len(rows)
    return Tracks(
        np.array([box for _, box in rows], np.float32).reshape(-1, 4),
        np.full(count, score, np.float32),
        np.zeros(count, np.int64),
        [label] * count,
        np.array([number for number, _ in rows], np.int64),
    )


def box_at(x: float, scale: float = 1.0) -> list[float]:
    """A box of 20x40 pixels whose foot is at x, lower edge at 80."""
    return [(x - 10) * scale, 40 * scale, (x + 10) * scale, 80 * scale]


def walk(maker: EventMaker, places: list[float | None], start: int = 0) -> list[tuple[int, dict]]:
    """The events of track 1 that stands at each place in turn (None: not seen), with the frame's number."""
    found = []
    for index, x in enumerate(places, start):
        seen = tracks() if x is None else tracks((1, box_at(x)))
        found += [(index, event) for event in maker.update(seen, frame(index))]
    return found


def kinds(events: list[tuple[int, dict]]) -> list[tuple]:
    return [(index, event["type"], event.get("zone") or event.get("line")) for index, event in events]


def test_the_fields_of_an_event():
    (_, event), *_ = walk(EventMaker(), [50.0])
    assert list(event) == ["id", "time", "type", "track", "label", "score", "box"]
    assert uuid.UUID(event["id"]).version == 4
    assert event["time"] == "2023-11-14T22:13:20.000Z"
    assert (event["type"], event["track"], event["label"], event["score"]) == ("enter", 1, "person", 0.9)
    assert event["box"] == [0.2, 0.4, 0.1, 0.4]


def test_a_walk_from_left_to_right():
    maker = EventMaker([RIGHT_HALF], [MIDDLE], leave_after_s=2.0)
    events = walk(maker, [20.0 * k for k in range(1, 10)] + [None] * 25)
    # The foot is beyond the middle (x = 100) from frame 5 on; the zone needs three frames of it.
    assert kinds(events) == [
        (0, "enter", None),
        (5, "cross", "middle"),
        (6, "enter", "right"),
        (29, "leave", "right"),
        (29, "leave", None),
    ]
    assert events[1][1]["direction"] == "out"
    last = events[-1][1]
    assert (last["reason"], last["last_seen"]) == ("not-seen", "2023-11-14T22:13:20.800Z")
    assert maker.close("end of stream") == []


def test_a_short_gap_is_no_leave():
    assert kinds(walk(EventMaker(leave_after_s=2.0), [50.0] + [None] * 18 + [50.0])) == [(0, "enter", None)]


def test_a_track_that_comes_back_after_its_leave_enters_again():
    events = walk(EventMaker(leave_after_s=0.5), [50.0] + [None] * 10 + [50.0])
    assert kinds(events) == [(0, "enter", None), (6, "leave", None), (11, "enter", None)]
    assert {event["track"] for _, event in events} == {1}


def test_the_end_of_the_stream_ends_every_track_and_stay():
    maker = EventMaker([RIGHT_HALF])
    walk(maker, [150.0] * 5)
    maker.update(tracks((1, box_at(150)), (2, box_at(20))), frame(5))
    events = maker.close("end-of-stream")
    assert [(e["type"], e["track"], e.get("zone"), e["reason"]) for e in events] == [
        ("leave", 1, "right", "end-of-stream"),
        ("leave", 1, None, "end-of-stream"),
        ("leave", 2, None, "end-of-stream"),
    ]
    assert {event["time"] for event in events} == {"2023-11-14T22:13:20.500Z"}
    assert maker.close("again") == []


def test_a_change_of_resolution_changes_nothing_for_zones_lines_and_boxes():
    maker = EventMaker([RIGHT_HALF], [MIDDLE])
    events = walk(maker, [60.0, 90.0, 130.0])
    for index in range(3, 6):
        seen = tracks((1, box_at(130.0, scale=3.0)))
        events += [(index, event) for event in maker.update(seen, frame(index, 3 * WIDTH, 3 * HEIGHT))]
    assert kinds(events) == [(0, "enter", None), (2, "cross", "middle"), (4, "enter", "right")]
    assert events[-1][1]["box"] == pytest.approx([0.6, 0.4, 0.1, 0.4])


def test_a_box_over_the_edge_is_cut_and_its_foot_held_inside():
    maker = EventMaker([Zone("ground", ((0.0, 0.9), (1.0, 0.9), (1.0, 1.0), (0.0, 1.0)))])
    events = [
        event for index in range(3) for event in maker.update(tracks((1, [-20.0, 50.0, 20.0, 130.0])), frame(index))
    ]
    assert [(event["type"], event.get("zone")) for event in events] == [("enter", None), ("enter", "ground")]
    assert events[0]["box"] == [0.0, 0.5, 0.1, 0.5]


def test_one_wrong_label_does_not_change_a_tracks_label():
    maker = EventMaker()
    for index in range(10):
        maker.update(tracks((1, box_at(50)), label="cat" if index == 9 else "dog"), frame(index))
    assert maker.close("end")[0]["label"] == "dog"


def test_a_label_that_stays_wins():
    maker = EventMaker()
    for index in range(30):
        maker.update(tracks((1, box_at(50)), label="dog" if index < 3 else "cat"), frame(index))
    assert maker.close("end")[0]["label"] == "cat"


def test_the_frame_message():
    message = frame_message(tracks((7, box_at(50))), frame(3))
    assert message == {
        "time": "2023-11-14T22:13:20.300Z",
        "frame": 3,
        "tracks": [{"track": 7, "label": "person", "score": 0.9, "box": [0.2, 0.4, 0.1, 0.4]}],
    }


numbers = st.floats(-300, 500, allow_nan=False)


@given(st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=5))
def test_relative_boxes_are_inside_the_picture(boxes):
    for left, top, width, height in relative_boxes([sorted(b[::2]) + sorted(b[1::2]) for b in boxes], 200, 100):
        assert left >= 0
        assert top >= 0
        assert left + width <= 1 + 1e-9
        assert top + height <= 1 + 1e-9


seen_tracks = st.dictionaries(st.integers(1, 4), st.integers(0, WIDTH), max_size=4)


@given(st.lists(seen_tracks, max_size=60), st.sampled_from([0.15, 0.35, 1.0]))
def test_enters_and_leaves_alternate_and_all_end(history, leave_after_s):
    maker = EventMaker([RIGHT_HALF], [MIDDLE], leave_after_s)
    events = []
    for index, places in enumerate(history):
        seen = tracks(*((number, box_at(float(x))) for number, x in places.items()))
        events += maker.update(seen, frame(index))
    events += maker.close("end")
    state: dict[tuple, str] = {}
    for event in events:
        if event["type"] == "cross":
            assert state.get((event["track"], None)) == "enter"
            continue
        key = (event["track"], event.get("zone"))
        assert state.get(key, "leave") != event["type"]
        if event.get("zone"):
            assert state.get((event["track"], None)) == "enter"
        state[key] = event["type"]
    assert all(last == "leave" for last in state.values())
    assert {number for number, _ in state} == {number for places in history for number in places}
    assert max(Counter(event["id"] for event in events).values(), default=1) == 1
    assert all(a["time"] <= b["time"] for a, b in itertools.pairwise(events))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"]) for event in events)
