"""The DeepSORT plugin on made-up scenes with known answers, on wrong input, and beside the published program."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from pyasc.errors import ConfigError, DeviceNotFoundError
from pyasc.hal.registry import discover_devices
from pyasc.plugins.base import load_plugin
from pyasc.plugins.deepsort import DeepSORT
from pyasc.types import Detections, Tracks

Array = NDArray[np.float64]
GOLDEN = Path(__file__).parent.parent / "golden" / "deepsort.json"


def detections(boxes: Any, score: Any = 0.9, class_id: Any = 0) -> Detections:
    """Boxes xyxy as detections of one score and class, or of one each."""
    xyxy = np.asarray(boxes, np.float32).reshape(-1, 4)
    classes = np.broadcast_to(np.asarray(class_id, np.int64), len(xyxy))
    scores = np.broadcast_to(np.asarray(score, np.float32), len(xyxy))
    return Detections(xyxy, scores.copy(), classes.copy(), [("person", "car")[k] for k in classes])


def tracker(**options: Any) -> DeepSORT:
    made = load_plugin("deepsort", **options)
    assert isinstance(made, DeepSORT)
    return made


def at(x: float, y: float = 100, height: float = 100) -> list[float]:
    """A standing person, 0.4 as wide as high."""
    return [x - 0.2 * height, y - height / 2, x + 0.2 * height, y + height / 2]


class Crowd:
    """Twenty people with looks of their own on straight ways through 1920 x 1080; a tenth of the boxes is missing."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        cells = np.array([(x, y) for x in range(300, 1800, 300) for y in range(200, 1000, 220)], float)
        self.start = cells + self.random.uniform(-40, 40, cells.shape)
        self.speed = self.random.uniform(-2.5, 2.5, cells.shape)
        self.height = self.random.uniform(80, 180, len(cells))
        self.look = self.random.normal(size=(len(cells), 32))

    def frame(self, k: int) -> tuple[Array, Array, NDArray[np.int64]]:
        """Boxes, looks and true numbers in frame k."""
        shown = self.random.random(len(self.start)) < 0.9
        centre = self.start + self.speed * k + self.random.normal(0, 1, self.start.shape)
        half = np.c_[0.2 * self.height, 0.5 * self.height]
        look = self.look + self.random.normal(0, 0.15, self.look.shape)
        return np.c_[centre - half, centre + half][shown], look[shown], np.flatnonzero(shown)


def owners(tracks: Tracks, boxes: Array, numbers: NDArray[np.int64]) -> dict[int, int]:
    """True number by track id, by the nearest box."""
    nearest = np.abs(tracks.xyxy[:, None] - boxes[None]).sum(axis=2).argmin(axis=1)
    return dict(zip(tracks.track_id.tolist(), numbers[nearest].tolist(), strict=True))


# Life of a track


def test_a_track_is_put_out_from_its_third_detection_on() -> None:
    tracks = tracker()
    seen = [tracks.update(detections([at(50 + k), at(300 - k)])).track_id.tolist() for k in range(5)]
    assert seen == [[], [], [1, 2], [1, 2], [1, 2]]


@pytest.mark.parametrize("n_init", [1, 2, 6])
def test_n_init(n_init: int) -> None:
    tracks = tracker(n_init=n_init)
    shown = [len(tracks.update(detections([at(50)]))) for _ in range(8)]
    assert shown == [0] * (n_init - 1) + [1] * (9 - n_init)


def test_a_tentative_track_ends_at_its_first_miss() -> None:
    tracks = tracker()
    for boxes in ([at(50)], [at(50)], [], [at(50)], [at(50)]):
        assert len(tracks.update(detections(boxes))) == 0
    assert tracks.update(detections([at(50)])).track_id.tolist() == [2]


@pytest.mark.parametrize(("missed", "same"), [(1, True), (11, True), (12, False), (40, False)])
@pytest.mark.parametrize("with_look", [True, False])
def test_someone_hidden_for_less_than_max_age_frames_comes_back_as_the_same(
    missed: int, same: bool, with_look: bool
) -> None:
    tracks = tracker(max_age=12)
    look = np.ones((1, 4))
    for k in range(15 + missed + 3):
        hidden = 15 <= k < 15 + missed
        boxes = detections([] if hidden else [at(50 + 3 * k)])
        shown = tracks.update(boxes, features=look[: len(boxes)] if with_look else None)
        assert len(shown) == 0 or not hidden
    assert shown.track_id.tolist() == [1 if same else 2]


@pytest.mark.parametrize("coast", [0, 1, 4])
def test_coast_shows_a_track_for_as_many_frames_where_it_should_be(coast: int) -> None:
    tracks = tracker(coast=coast)
    for k in range(30):
        tracks.update(detections([at(50 + 4 * k)]))
    after = [tracks.update(detections([])) for _ in range(6)]
    assert [len(shown) for shown in after] == [1] * coast + [0] * (6 - coast)
    for k, shown in enumerate(after[:coast]):
        np.testing.assert_allclose(shown.xyxy, [at(50 + 4 * (30 + k))], atol=1)


@pytest.mark.parametrize("with_look", [True, False])
def test_people_who_cross_keep_their_ids(with_look: bool) -> None:
    tracks = tracker()
    looks = np.eye(2)
    for k in range(60):
        boxes = [at(50 + 5 * k, 100), at(350 - 5 * k, 112)]
        order = [0, 1] if k % 2 else [1, 0]
        found = detections([boxes[i] for i in order])
        shown = tracks.update(found, features=looks[order] if with_look else None)
    assert owners(shown, np.array(boxes), np.arange(2)) == {1: 1, 2: 0}  # frame 0 listed the second first


def test_people_who_come_and_go_get_new_ids() -> None:
    tracks = tracker(max_age=5)
    ids = []
    for k in range(90):
        walker, x = divmod(k, 30)
        shown = tracks.update(detections([at(10 + 12 * x)] if x < 20 else []))
        ids += [(walker, one) for one in shown.track_id.tolist()]
    assert sorted(set(ids)) == [(0, 1), (1, 2), (2, 3)]


def test_appearance_brings_back_who_motion_alone_would_lose() -> None:
    """Two people vanish and come back each at the place where the other is expected."""

    def run(with_look: bool) -> dict[int, int]:
        tracks, looks = tracker(), np.eye(2)
        for k in range(40):
            far, near = at(100, 100), at(130, 106)
            boxes = [far, near] if k < 20 else [near, far]
            found = detections([] if 18 <= k < 24 else boxes)
            shown = tracks.update(found, features=looks[: len(found)] if with_look else None)
        return owners(shown, np.array(boxes), np.arange(2))

    assert run(True) == {1: 0, 2: 1}
    assert run(False) == {1: 1, 2: 0}


def test_classes_are_kept_apart_unless_told_not_to() -> None:
    for aware, ids in ((True, [2]), (False, [1])):
        tracks = tracker(class_aware=aware)
        for _ in range(5):
            tracks.update(detections([at(50)], class_id=0))
        for _ in range(5):
            shown = tracks.update(detections([at(50)], class_id=1))
        assert (shown.track_id.tolist(), shown.label, shown.class_id.tolist()) == (ids, ["car"], [1])


def test_classes_are_kept_apart_where_looks_agree() -> None:
    tracks = tracker()
    for k in range(8):
        shown = tracks.update(detections([at(50)], class_id=k // 4), features=np.ones((1, 4)))
    assert shown.track_id.tolist() == [2]


def test_the_one_seen_last_chooses_before_the_one_that_fits_better() -> None:
    tracks = tracker()
    left, right = np.array([1.0, 0.0]), np.array([1.0, 0.5])  # 0.11 apart
    for _ in range(10):
        tracks.update(detections([at(100), at(115)]), features=np.array([left, right]))
    for _ in range(3):
        tracks.update(detections([at(115)]), features=np.array([right]))
    assert tracks.update(detections([at(108)]), features=np.array([left])).track_id.tolist() == [2]


@pytest.mark.parametrize(("missed", "same"), [(0, True), (1, False), (3, False)])
@pytest.mark.parametrize("look", [[0.0, 1.0], [0.0, 0.0]])
def test_overlap_finds_only_who_was_there_in_the_frame_before(missed: int, same: bool, look: list[float]) -> None:
    tracks = tracker(max_cosine_distance=0.3 if any(look) else 2.0)
    for _ in range(10):
        tracks.update(detections([at(100)]), features=np.array([[1.0, 0.0]]))
    for _ in range(missed):
        tracks.update(detections([]))
    for _ in range(3):
        shown = tracks.update(detections([at(100)]), features=np.array([look]))
    assert shown.track_id.tolist() == [1 if same else 2]


def test_score_is_that_of_the_last_detection_and_low_ones_are_ignored() -> None:
    tracks = tracker(min_confidence=0.5)
    for score in (0.6, 0.7, 0.8):
        shown = tracks.update(detections([at(50), at(400)], score=[score, 0.49]))
    assert shown.score.tolist() == pytest.approx([0.8])
    assert tracks.dropped == 0


def test_reset_forgets_tracks_and_not_ids() -> None:
    tracks = tracker(n_init=1)
    tracks.update(detections([at(50), at(300)]), features=np.eye(2))
    tracks.reset()
    assert len(tracks.update(detections([]))) == 0
    assert tracks.update(detections([at(50)]), features=np.eye(3)[:1]).track_id.tolist() == [3]


def test_instances_share_nothing_and_repeat_themselves() -> None:
    def play(*sinks: DeepSORT) -> Iterator[list[int]]:
        crowd = Crowd(3)
        for k in range(20):
            boxes, looks, _ = crowd.frame(k)
            for sink in sinks:
                shown = sink.update(detections(boxes), features=looks)
                yield [*shown.track_id.tolist(), *shown.xyxy.ravel().tolist()]

    alone = list(play(tracker()))
    together = list(play(tracker(), tracker()))
    assert together[::2] == together[1::2] == alone


# Beside the published program


def test_is_the_published_tracker() -> None:
    golden = json.loads(GOLDEN.read_text())
    tracks = tracker(**golden["settings"])
    mapped: dict[int, int] = {}
    for frame in golden["frames"]:
        boxes = np.array(frame["xyxy"]).reshape(-1, 4)
        shown = tracks.update(detections(boxes), features=np.array(frame["features"]).reshape(-1, 8))
        expected = np.array(frame["tracks"]).reshape(-1, 5)
        # The published program numbers tracks that start in one frame in an order of its own.
        ours_order, theirs_order = shown.xyxy[:, 0].argsort(), expected[:, 1].argsort()
        np.testing.assert_allclose(shown.xyxy[ours_order], expected[theirs_order, 1:], atol=2e-3)
        ids = expected[theirs_order, 0].astype(int).tolist()
        for ours, theirs in zip(shown.track_id[ours_order].tolist(), ids, strict=True):
            assert mapped.setdefault(ours, theirs) == theirs
    assert len(set(mapped.values())) == len(mapped) > 9


# Other sizes, other rates


@pytest.mark.parametrize("size", [(1280, 720), (3840, 2160), (960, 1080), (1440, 540)])
@pytest.mark.parametrize("with_look", [True, False])
def test_identities_survive_another_resolution(size: tuple[int, int], with_look: bool) -> None:
    crowd, tracks = Crowd(1), tracker()
    scale = np.array([size[0] / 1920, size[1] / 1080] * 2)
    before: dict[int, int] = {}
    for k in range(60):
        boxes, looks, numbers = crowd.frame(k)
        now = (1920, 1080) if k < 30 else size
        boxes = boxes if k < 30 else boxes * scale
        shown = tracks.update(detections(boxes), features=looks if with_look else None, size=now)
        if 20 <= k < 30:
            before |= owners(shown, boxes, numbers)
        elif k >= 30:
            for one, number in owners(shown, boxes, numbers).items():
                assert before[one] == number
    assert len(before) == 20


def test_the_image_tells_the_size_too() -> None:
    def run(change: bool) -> Tracks:
        tracks = tracker()
        for k in range(20):
            half = change and k >= 10
            image = np.zeros((240, 320, 3) if half else (480, 640, 3), np.uint8)
            shown = tracks.update(detections(np.array([at(100 + 9 * k)]) * (0.5 if half else 1)), image)
        return shown

    np.testing.assert_allclose(run(True).xyxy * 2, run(False).xyxy, rtol=1e-5)
    assert run(True).track_id.tolist() == run(False).track_id.tolist() == [1]


def fast_crowd(rate: int, times: bool, seed: int) -> int:
    """How many of twenty ids are lost when only every fourth frame comes from frame 60 on."""
    crowd, tracks = Crowd(seed), tracker()
    crowd.speed *= 4
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    for k in range(120):
        boxes, looks, numbers = crowd.frame(k)
        if k > 60 and k % 4:
            continue
        shown = tracks.update(detections(boxes), time_s=k / rate if times else None, features=looks)
        now = owners(shown, boxes, numbers)
        if 40 <= k <= 60:
            before |= now
        elif k > 80:
            after |= now
    assert len(before) == 20
    return sum(after.get(one) != number for one, number in before.items())


@pytest.mark.parametrize("seed", range(4))
def test_identities_survive_a_quarter_of_the_frame_rate(seed: int) -> None:
    assert fast_crowd(30, times=True, seed=seed) == 0


def slow_down(hidden: range, speed: float) -> list[int]:
    """Ids shown at the end of a walk at 30 frames a second, and from frame 40 on at 7.5; `hidden` counts the slow frames."""
    tracks = tracker()
    times = [k / 30 for k in range(40)] + [40 / 30 + k * 4 / 30 for k in range(90)]
    for k, time in enumerate(times):
        boxes = [] if k - 40 in hidden else [at(50 + speed * 30 * time)]
        shown = tracks.update(detections(boxes), time_s=time)
    return shown.track_id.tolist()


def test_a_new_rate_that_stays_becomes_the_frame_period() -> None:
    assert slow_down(hidden=range(0), speed=8) == [1]
    # Hidden while the period changes: 25 of the slow frames are 100 of the fast ones, max_age is 30.
    assert slow_down(hidden=range(28, 53), speed=0) == [1]
    assert slow_down(hidden=range(50, 80), speed=0) == [2]


def test_without_times_the_rate_change_costs_identities() -> None:
    """The scene is hard enough to show what the times are for."""
    assert sum(fast_crowd(30, times=False, seed=seed) for seed in range(4)) >= 20


def test_a_steady_rate_gives_what_no_times_give() -> None:
    def run(times: list[float] | None) -> list[list[float]]:
        crowd, tracks = Crowd(2), tracker()
        made = []
        for k in range(80):
            boxes, looks, _ = crowd.frame(k)
            shown = tracks.update(detections(boxes), time_s=None if times is None else times[k], features=looks)
            made.append([*shown.track_id.tolist(), *shown.xyxy.ravel().tolist()])
        return made

    published = run(None)
    assert run([k / 29.97 for k in range(80)]) == published
    assert run([round(k / 25, 3) + 0.004 * (k % 3 - 1) for k in range(80)]) == published


@pytest.mark.parametrize(("gap_s", "same"), [(0.9, True), (1.5, False)])
def test_max_age_is_a_time_where_frames_have_times(gap_s: float, same: bool) -> None:
    tracks = tracker(max_age=30)
    times = [k / 30 for k in range(20)]
    times += [times[-1] + gap_s + k / 30 for k in range(3)]
    for time in times:
        shown = tracks.update(detections([at(50)]), time_s=time)
    assert shown.track_id.tolist() == [1 if same else 2]


def test_time_that_runs_back_counts_as_one_frame() -> None:
    tracks = tracker()
    for time in (5.0, 5.1, 5.2, 1.0, 1.1, 1.1, float("nan"), 1.2):
        shown = tracks.update(detections([at(50)]), time_s=time)
    assert shown.track_id.tolist() == [1]


# Wrong input

BAD_BOXES = {
    "not a number": [np.nan, 0, 10, 10],
    "infinite": [0, 0, np.inf, 10],
    "no area": [10, 10, 10, 10],
    "no height": [10, 10, 20, 10],
    "negative width": [20, 10, 10, 30],
}


@pytest.mark.parametrize("bad", BAD_BOXES.values(), ids=BAD_BOXES.keys())
def test_a_bad_box_is_dropped_and_counted_and_hurts_nobody_else(bad: list[float]) -> None:
    tracks = tracker()
    looks = np.eye(2)
    for k in range(4):
        shown = tracks.update(detections([bad, at(50)]), features=looks)
        assert tracks.dropped == k + 1
    assert shown.track_id.tolist() == [1]
    np.testing.assert_allclose(shown.xyxy, [at(50)], atol=1e-3)


def test_a_score_that_is_no_number_is_dropped_and_counted() -> None:
    tracks = tracker(n_init=1)
    assert len(tracks.update(detections([at(50), at(300)], score=[np.nan, 0.5]))) == 1
    assert tracks.dropped == 1


@pytest.mark.parametrize("blank", [np.zeros(4), np.full(4, np.nan), np.array([np.inf, 0, 0, 0])])
def test_a_look_that_says_nothing_leaves_the_match_to_overlap(blank: Array) -> None:
    tracks = tracker()
    for k in range(12):
        features = np.array([blank if k % 3 == 0 else np.ones(4)])
        shown = tracks.update(detections([at(50 + k)]), features=features)
    assert shown.track_id.tolist() == [1]
    assert tracks.without_appearance == 4


def test_the_length_of_a_look_means_nothing() -> None:
    def run(length: float) -> list[list[int]]:
        crowd, tracks = Crowd(5), tracker()
        frames = [crowd.frame(k) for k in range(30)]
        return [tracks.update(detections(b), features=f * length).track_id.tolist() for b, f, _ in frames]

    assert run(1) == run(1000) == run(1e-6)


def test_looks_of_another_length_are_refused_and_change_nothing() -> None:
    tracks = tracker(n_init=1)
    tracks.update(detections([at(50)]), features=np.ones((1, 8)))
    with pytest.raises(ValueError, match="have 9 values each, those before had 8"):
        tracks.update(detections([at(50)]), features=np.ones((1, 9)))
    with pytest.raises(ValueError, match=r"shape \(2, 8\), not \(1, D\)"):
        tracks.update(detections([at(50)]), features=np.ones((2, 8)))
    assert tracks.update(detections([at(50)]), features=np.ones((1, 8))).track_id.tolist() == [1]


def test_arrays_that_do_not_fit_are_refused() -> None:
    good = detections([at(50), at(90)])
    for bad in (
        Detections(good.xyxy[:, :3], good.score, good.class_id, good.label),
        Detections(good.xyxy, good.score[:1], good.class_id, good.label),
        Detections(good.xyxy, good.score, good.class_id, ["person"]),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            tracker().update(bad)
    with pytest.raises(ValueError, match="not a width and a height"):
        tracker().update(good, size=(0, 5))
    with pytest.raises(ValueError, match="is not the size"):
        tracker().update(good, np.zeros((4, 6, 3), np.uint8), size=(4, 6))
    with pytest.raises(ValueError, match="not that of a picture"):
        tracker().update(good, np.zeros((0, 6, 3), np.uint8))


def test_nothing_ever() -> None:
    tracks = tracker()
    for _ in range(50):
        shown = tracks.update(detections([]), features=np.zeros((0, 4)))
    assert (len(shown), shown.xyxy.shape, shown.track_id.dtype) == (0, (0, 4), np.int64)


def test_a_thousand_boxes() -> None:
    tracks = tracker()
    boxes = [at(40 * x, 110 * y) for x in range(50) for y in range(20)]
    for _ in range(3):
        shown = tracks.update(detections(boxes), features=np.ones((1000, 16)))
    assert shown.track_id.tolist() == list(range(1, 1001))


def test_boxes_outside_the_picture_are_tracked_like_others() -> None:
    tracks = tracker()
    image = np.zeros((200, 200, 3), np.uint8)
    for k in range(5):
        shown = tracks.update(detections([at(-500 - k, -500), at(9000, 50)]), image)
    assert shown.track_id.tolist() == [1, 2]


wild = st.one_of(st.floats(width=32), st.floats(-500, 500, width=32))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_input_of_the_right_shape_raises(data: st.DataObject) -> None:
    tracks = tracker(n_init=1, coast=3, max_age=4)
    ids: set[int] = set()
    for _ in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.integers(0, 5))
        boxes = data.draw(hnp.arrays(np.float32, (count, 4), elements=wild))
        looks = data.draw(st.none() | hnp.arrays(np.float32, (count, 3), elements=st.floats(width=32)))
        size = data.draw(st.none() | st.tuples(st.integers(1, 10000), st.integers(1, 10000)))
        time = data.draw(st.none() | st.floats())
        shown = tracks.update(detections(boxes), time_s=time, features=looks, size=size)
        assert np.isfinite(shown.xyxy).all()
        assert (shown.xyxy[:, 2:] > shown.xyxy[:, :2]).all()
        assert len(set(shown.track_id.tolist())) == len(shown)
        ids |= set(shown.track_id.tolist())
    assert min(ids, default=1) >= 1


# Configuration


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_cosine_distance", 0.0),
        ("max_cosine_distance", 2.5),
        ("nn_budget", 0),
        ("nn_budget", 10**6),
        ("max_iou_distance", 1.0),
        ("max_iou_distance", float("nan")),
        ("max_age", 0),
        ("n_init", 0),
        ("min_confidence", 1.5),
        ("coast", -1),
        ("frame_rate", 0.0),
        ("frame_rate", float("inf")),
        ("model", ""),
        ("device", ""),
        ("threads", 2),
        ("precision", "fp16"),
        ("engine", "opencv"),
        ("use_avx2", True),
        ("batch", 4),
        ("max_age", "30"),
        ("max_agee", 30),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plugin("deepsort", **{key: value})
    assert [fault.path for fault in caught.value.faults] == [key]


def test_all_wrong_options_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_plugin("deepsort", max_age=0, n_init=0, coast=-3)
    assert [fault.path for fault in caught.value.faults] == ["max_age", "n_init", "coast"]


def test_tracking_without_a_model_is_said_once_a_process() -> None:
    program = (
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "from pyasc.plugins.base import load_plugin\n"
        "for _ in range(3): load_plugin('deepsort')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if "no appearance model" in line]
    assert said == ["INFO:pyasc.plugins.deepsort:deepsort: no appearance model, tracking by motion and overlap alone"]


def test_a_device_that_is_not_there_is_an_error_without_a_model_too() -> None:
    with pytest.raises(DeviceNotFoundError) as caught:
        load_plugin("deepsort", device="mlu220:7")
    # With the reason that the registry gives.
    with pytest.raises(DeviceNotFoundError) as expected:
        discover_devices().find("mlu220:7")
    assert str(caught.value) == str(expected.value)
    assert load_plugin("deepsort", device="cpu").device is None


def test_the_manual_lists_every_option_and_its_default() -> None:
    manual = (Path(__file__).parent.parent.parent / "docs" / "plugins.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(r"^\| `(\w+)` \| ([^|]+) \|", manual.split("## DeepSORT")[1].split("\n## ")[0], re.MULTILINE)
    )
    words = {"none": None, "learnt": None, "true": True, "false": False, "auto": "auto"}
    said = {name: words[text] if (text := cell.strip(" `")) in words else float(text) for name, cell in rows.items()}
    assert said == {field.name: field.default for field in dataclasses.fields(DeepSORT.Config)}
