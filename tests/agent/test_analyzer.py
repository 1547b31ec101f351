"""EdgeAnalyzer on a clip with known answers, with plugins installed as other people's are."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
import threading
import time
import types

import cv2
import numpy as np
import pytest

import pyasc
from pyasc.errors import ConfigError, DeviceError, DeviceLostError, PluginError, PyascError, StreamError
from pyasc.models.model import load_model
from pyasc.plugins import yolov5

ZONES = {"right": [[0.5, 0.0], [1.0, 0.0], [1.0, 1.0], [0.5, 1.0]]}
LINES = {"middle": [[0.5, 0.0], [0.5, 1.0]]}


@pytest.fixture
def detector(blobs, blob_models):
    return pyasc.load_plugin("blobs", model=str(blob_models / "blobs.asc"))


@pytest.fixture
def tracker(blobs):
    return pyasc.load_plugin("nearest")


def two(callers: int, live: bool = False) -> int:
    """`share` of a detector for two threads."""
    return min(callers, 2)


def stage_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name in ("detect", "track")]


def test_every_frame_comes_once_in_order_with_its_own_tracks(detector, tracker, blob_clip):
    with pyasc.Stream(blob_clip) as stream, pyasc.EdgeAnalyzer(detector, tracker) as analyzer:
        found = list(analyzer.run(stream))
    assert [frame.index for frame, _ in found] == list(range(70))
    for frame, tracks in found:
        red = tracks[np.array(tracks.label) == "red"]
        if frame.index < 40:
            assert red.xyxy == pytest.approx(
                np.array([[12, 60, 32, 80]]) + 4 * frame.index * np.array([1, 0, 1, 0]), abs=1
            )
            assert red.track_id.tolist() == [1]
        elif frame.index >= 48:
            assert len(red) == 0
        assert ("green" in tracks.label) == (10 <= frame.index <= 24)
    assert not stage_threads()
    assert (detector.closed, tracker.closed) == (True, True)


def test_without_a_tracker_there_are_detections(detector, blob_clip):
    with pyasc.Stream(blob_clip) as stream:
        frame, found = next(pyasc.EdgeAnalyzer(detector).run(stream))
    assert type(found) is pyasc.Detections
    assert found.label == ["red"]
    assert frame.index == 0


def test_a_plain_callable_is_a_detector(detector, blob_clip):
    with pyasc.Stream(blob_clip) as stream:
        _, found = next(pyasc.EdgeAnalyzer(detector.detect).run(stream))
    assert found.label == ["red"]


def test_events_of_zones_and_lines(detector, tracker, blob_clip):
    analyzer = pyasc.EdgeAnalyzer(detector, tracker, zones=ZONES, lines=LINES)
    seen = []
    with pyasc.Stream(blob_clip) as stream:
        for frame, _ in analyzer.run(stream):
            seen += [(frame.index, event) for event in analyzer.events]
        ends = list(analyzer.events)
    kinds = [(index, e["type"], e["label"], e.get("zone") or e.get("line")) for index, e in seen]
    assert [kind for kind in kinds if kind[1] != "leave"] == [
        (0, "enter", "red", None),
        (10, "enter", "green", None),
        (12, "enter", "green", "right"),
        (20, "cross", "red", "middle"),
        (22, "enter", "red", "right"),
    ]
    # Two seconds, twenty frames, after they were last seen.
    assert [kind[1:] for kind in kinds if kind[1] == "leave"] + [
        (e["type"], e["label"], e.get("zone")) for e in ends
    ] == [
        ("leave", "green", "right"),
        ("leave", "green", None),
        ("leave", "red", "right"),
        ("leave", "red", None),
    ]
    assert next(e for _, e in seen if e["type"] == "cross")["direction"] == "out"


def test_whoever_is_there_at_the_end_leaves_with_the_reason(detector, tracker, blob_clip):
    analyzer = pyasc.EdgeAnalyzer(detector, tracker)
    with pyasc.Stream(blob_clip) as stream:
        run = analyzer.run(stream)
        for _ in range(5):
            next(run)
        run.close()
    assert [(event["type"], event["reason"]) for event in analyzer.events] == [("leave", "stopped")]
    assert not stage_threads()


class Chooser(pyasc.EdgeAnalyzer):
    """As in the manual, without calling the base's `__init__`."""

    def __init__(self, detector, tracker):
        self.detector = detector
        self.tracker = tracker
        self.asked = []

    def process(self, stream):
        self.asked.append((stream.resolution, stream.width, stream.height))
        if stream.resolution > 100:
            self.detector.config_device("mlu220")
        else:
            self.detector.config_device("gpu0")


def two_sizes(folder):
    """Six pictures, the last three twice as large: one red square that stays where it is."""
    for number in range(6):
        scale = 1 if number < 3 else 2
        image = np.zeros((100 * scale, 200 * scale, 3), np.uint8)
        image[60 * scale : 80 * scale, 40 * scale : 60 * scale] = (0, 0, 255)
        cv2.imwrite(str(folder / f"{number}.png"), image)
    return folder


def test_process_chooses_the_device_before_the_first_frame_and_at_each_change(detector, tracker, tmp_path):
    analyzer = Chooser(detector, tracker)
    with pyasc.Stream(two_sizes(tmp_path)) as stream:
        numbers = [tracks.track_id.tolist() for _, tracks in analyzer.run(stream)]
    assert analyzer.asked == [(100, 200, 100), (200, 400, 200)]
    assert detector.moves == ["cpu", "gpu0", "mlu220"]
    assert numbers == [[1]] * 6


def test_a_route_chooses_the_device(detector, tracker, tmp_path):
    route = [{"when": "resolution > 150 and fps <= 30", "device": "mlu220"}, {"device": "gpu0"}]
    with pyasc.Stream(two_sizes(tmp_path)) as stream:
        list(pyasc.EdgeAnalyzer(detector, tracker, route=route).run(stream))
    assert detector.moves == ["cpu", "gpu0", "mlu220"]


@pytest.mark.parametrize(
    ("route", "path"),
    [
        ([{"when": "resolution > 3"}], "route[0].device"),
        ([{"when": "size > 3", "device": "cpu"}], "route[0].when"),
        ([{"device": "cpu"}, {"device": "cpu", "if": "x"}], "route[1].if"),
        (["cpu"], "route[0]"),
    ],
)
def test_a_wrong_route_is_refused_with_its_path(detector, route, path):
    with pytest.raises(ConfigError) as caught:
        pyasc.EdgeAnalyzer(detector, route=route)
    assert [fault.path for fault in caught.value.faults] == [path]


def test_zones_need_a_tracker_and_a_run_needs_a_detector(detector, blob_clip):
    with pytest.raises(ConfigError, match="need a tracker"):
        pyasc.EdgeAnalyzer(detector, zones=ZONES)
    with pyasc.Stream(blob_clip) as stream:
        with pytest.raises(ConfigError, match="no detector"):
            next(pyasc.EdgeAnalyzer().run(stream))
        with pytest.raises(PluginError, match="int is no detector"):
            next(pyasc.EdgeAnalyzer(3).run(stream))


def test_a_route_needs_a_detector_that_can_be_moved(detector):
    with pytest.raises(ConfigError, match="route: the detector has no config_device"):
        pyasc.EdgeAnalyzer(detector.detect, route=[{"device": "cpu"}])


def test_zones_and_lines_that_are_none_are_refused_with_their_names(detector, tracker):
    with pytest.raises(ConfigError, match=r"zones\.door: 2 points"):
        pyasc.EdgeAnalyzer(detector, tracker, zones={"door": [[0, 0], [1, 1]]}, lines=LINES)
    with pytest.raises(ConfigError, match=r"lines\.gate: a point is not in 0\.\.1"):
        pyasc.EdgeAnalyzer(detector, tracker, zones=ZONES, lines={"gate": [[0, 0], [320, 200]]})


def test_a_model_that_was_opened_is_closed_when_the_tracker_fails(monkeypatch, spots_asc):
    opened = []
    monkeypatch.setattr("pyasc.models.model.load_model", lambda path: opened.append(load_model(path)) or opened[-1])
    with pytest.raises(PluginError, match="no plugin named"):
        pyasc.EdgeAnalyzer(spots_asc, "no such tracker")
    with pytest.raises(ValueError, match="closed"):
        opened[0](np.zeros((8, 8, 3), np.uint8))


@pytest.mark.parametrize(
    ("result", "text"),
    [(None, "the detector gave NoneType instead of Detections"), ([1], "the detector gave list")],
)
def test_a_detector_that_gives_something_else_is_an_error(blob_clip, result, text):
    with pyasc.Stream(blob_clip) as stream, pytest.raises(PluginError, match=text):
        list(pyasc.EdgeAnalyzer(lambda image: result).run(stream))
    assert not stage_threads()


def test_a_tracker_that_gives_something_else_is_an_error(detector, tracker, blob_clip):
    tracker.update = lambda detections, image=None, time_s=None: detections
    with pyasc.Stream(blob_clip) as stream, pytest.raises(PluginError, match="gave Detections instead of Tracks"):
        list(pyasc.EdgeAnalyzer(detector, tracker).run(stream))
    assert not stage_threads()


def test_a_plugin_that_leaves_the_program_ends_the_run_with_an_error(detector, tracker, blob_clip):
    """A SystemExit ends a thread without a word, and the run would wait for it for ever."""
    with pyasc.Stream(blob_clip) as stream, pytest.raises(PluginError, match=r"raised SystemExit\(3\)"):
        list(pyasc.EdgeAnalyzer(lambda image: sys.exit(3)).run(stream))
    tracker.update = lambda detections, image=None, time_s=None: sys.exit(4)
    with pyasc.Stream(blob_clip) as stream, pytest.raises(PluginError, match=r"raised SystemExit\(4\)"):
        list(pyasc.EdgeAnalyzer(detector, tracker).run(stream))
    assert not stage_threads()


@pytest.mark.parametrize("number", [0, 9, None])
def test_a_detector_for_no_thread_at_all_is_refused(detector, blob_clip, number):
    detector.share = lambda callers, live=False: number
    with pyasc.Stream(blob_clip) as stream, pytest.raises(PluginError, match=f"gave {number} instead of 1 to 8"):
        next(pyasc.EdgeAnalyzer(detector).run(stream))


def test_a_detector_that_was_closed_in_the_middle_ends_the_run_with_that(spots_asc, blob_clip, caplog):
    detector = pyasc.load_plugin("yolov5", model=str(spots_asc), device="cpu", threads=2)
    analyzer = pyasc.EdgeAnalyzer(detector)
    with pyasc.Stream(blob_clip, loop=True) as stream, pytest.raises(ValueError, match="closed"):
        for _ in analyzer.run(stream):
            detector.close()
    assert "cannot be given back" in caplog.text
    assert not stage_threads()


def test_an_error_of_the_detector_comes_after_the_frames_before_it(blobs, blob_models, tracker, blob_clip):
    detector = pyasc.load_plugin("blobs", model=str(blob_models / "blobs.asc"), fail_at=7)
    analyzer = pyasc.EdgeAnalyzer(detector, tracker)
    seen = []
    with pyasc.Stream(blob_clip) as stream, pytest.raises(RuntimeError, match="fell over"):
        for frame, _ in analyzer.run(stream):
            seen.append(frame.index)
    assert seen == list(range(7))
    assert [event["reason"] for event in analyzer.events] == ["failed"]
    assert not stage_threads()


def test_an_error_of_the_tracker_comes_too(detector, blob_clip):
    class Broken(type(pyasc.load_plugin("nearest"))):
        def update(self, detections, image=None, time_s=None):
            raise ValueError("no")

    with pyasc.Stream(blob_clip) as stream, pytest.raises(ValueError, match="no"):
        list(pyasc.EdgeAnalyzer(detector, Broken(Broken.Config())).run(stream))
    assert not stage_threads()


def test_a_stream_that_breaks_ends_the_run_with_its_error(detector, tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    with pytest.raises(StreamError):
        list(pyasc.EdgeAnalyzer(detector).run(pyasc.Stream(tmp_path / "clip.mp4")))


def test_a_second_run_begins_anew_and_two_at_a_time_are_refused(detector, tracker, blob_clip):
    analyzer = pyasc.EdgeAnalyzer(detector, tracker)
    with pyasc.Stream(blob_clip) as one, pyasc.Stream(blob_clip) as two:
        run = analyzer.run(one)
        _, first = next(run)
        with pytest.raises(PyascError, match="one stream at a time"):
            next(analyzer.run(two))
        run.close()
        _, second = next(analyzer.run(two))
    assert first.track_id.tolist() == [1]
    assert second.track_id.tolist() == [2]


def test_figures_of_the_running_stages(detector, tracker, blob_clip):
    analyzer = pyasc.EdgeAnalyzer(detector, tracker)
    assert analyzer.stats() == {}
    with pyasc.Stream(blob_clip, loop=True) as stream:
        run = analyzer.run(stream)
        for _ in range(20):
            next(run)
        stats = analyzer.stats()
        run.close()
    assert set(stats) == {"stages", "queues", "dropped"}
    assert stats["stages"]["detect"]["frames"] >= stats["stages"]["track"]["frames"] >= 20
    assert stats["stages"]["detect"]["ms"] > 0
    assert set(stats["queues"]) == {"detect", "track", "output"}


def test_the_stages_work_at_the_same_time(detector, tracker, blob_clip):
    """Detector and tracker each wait until the other is at work too: one after the other they would never meet."""
    meeting = threading.Barrier(2, timeout=20)
    detect, update = detector.detect, tracker.update

    def meet(call, first):
        numbers = itertools.count()

        def both(*arguments):
            if next(numbers) >= first:
                meeting.wait()
            return call(*arguments)

        return both

    detector.detect, tracker.update = meet(detect, 1), meet(update, 0)
    with pyasc.Stream(blob_clip) as stream:
        run = pyasc.EdgeAnalyzer(detector, tracker).run(stream)
        assert [next(run)[0].index for _ in range(30)] == list(range(30))
        meeting.abort()
        run.close()


def test_a_detector_for_two_threads_is_called_by_two_and_the_order_kept(detector, tracker, blob_clip):
    """Each even picture comes back only after the odd one that follows it: one call at a time would never end."""
    detect, odd_is_done = detector.detect, [threading.Event() for _ in range(35)]
    numbers = {}
    lock = threading.Lock()

    def cross(image):
        with lock:
            number = numbers["next"] = numbers.get("next", -1) + 1
        found = detect(image)
        if number % 2:
            odd_is_done[number // 2].set()
        else:
            assert odd_is_done[number // 2].wait(20)
        return found

    detector.detect, detector.share = cross, two
    with pyasc.Stream(blob_clip) as stream:
        found = list(pyasc.EdgeAnalyzer(detector, tracker).run(stream))
    assert [frame.index for frame, _ in found] == list(range(70))
    for frame, tracks in found[:40]:
        red = tracks[np.array(tracks.label) == "red"]
        assert red.xyxy[0, 0] == pytest.approx(12 + 4 * frame.index, abs=1)


def test_the_device_changes_only_when_no_picture_is_in_work(detector, tracker, tmp_path):
    at_work = []
    detect, move = detector.detect, detector.config_device

    def watched(image):
        at_work.append(image.shape)
        found = detect(image)
        at_work.remove(image.shape)
        return found

    def moved(device):
        assert not at_work
        move(device)

    detector.detect, detector.config_device, detector.share = watched, moved, two
    with pyasc.Stream(two_sizes(tmp_path)) as stream:
        assert len(list(Chooser(detector, tracker).run(stream))) == 6
    assert detector.moves == ["cpu", "gpu0", "mlu220"]


def test_an_error_in_one_of_two_threads_comes_after_the_frames_before_it(blobs, blob_models, blob_clip):
    detector = pyasc.load_plugin("blobs", model=str(blob_models / "blobs.asc"))
    detect, numbers = detector.detect, itertools.count()

    def failing(image):
        if next(numbers) == 8:
            raise RuntimeError("the ninth call")
        return detect(image)

    detector.detect, detector.share = failing, two
    seen = []
    with pyasc.Stream(blob_clip) as stream, pytest.raises(RuntimeError, match="ninth"):
        for frame, _ in pyasc.EdgeAnalyzer(detector).run(stream):
            seen.append(frame.index)
    assert seen in (list(range(8)), list(range(9)), list(range(7)))
    assert not stage_threads()


@pytest.fixture(scope="module")
def demo_models(demo_dir, tmp_path_factory):
    from pyasc.models.convert import convert

    folder = tmp_path_factory.mktemp("demo-models")
    for name in ("yolov5n.pt", "osnet_x0_25.onnx"):
        convert(demo_dir / name, folder / f"{name.rpartition('.')[0]}.asc", precision="fp16")
    return folder


def test_the_demo_clip_gives_what_the_plain_loop_gives(demo_dir, demo_models):
    def parts():
        detector = pyasc.load_plugin(
            "yolov5", model=str(demo_models / "yolov5n.asc"), device="cpu", classes=("person",)
        )
        return detector, pyasc.load_plugin("deepsort", model=str(demo_models / "osnet_x0_25.asc"), device="cpu")

    clip, frames = demo_dir / "one-by-one-person.mp4", 90
    capture = cv2.VideoCapture(str(clip))
    detector, tracker = parts()
    expected = []
    with detector, tracker:
        for number in range(frames):
            image = capture.read()[1]
            expected.append(tracker.update(detector.detect(image), image, number / 10))
    with pyasc.Stream(clip) as stream, pyasc.EdgeAnalyzer(*parts()) as analyzer:
        found = [tracks for _, tracks in itertools.islice(analyzer.run(stream), frames)]
    assert sum(len(tracks) for tracks in expected) > 20
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.track_id.tolist() == theirs.track_id.tolist()
        assert ours.xyxy == pytest.approx(theirs.xyxy, abs=0.5)


def test_closing_ends_a_run_that_is_under_way(spots_asc, blob_clip, caplog):
    detector = pyasc.load_plugin("yolov5", model=str(spots_asc), device="cpu", threads=2)
    analyzer = pyasc.EdgeAnalyzer(detector)
    with pyasc.Stream(blob_clip) as stream:
        results = analyzer.run(stream)
        next(results)
        analyzer.close()
        assert not stage_threads()
        assert list(results) == []
    assert not caplog.records
    with pytest.raises(ValueError, match="closed"):
        detector.detect(np.zeros((8, 8, 3), np.uint8))


def test_a_program_may_end_in_the_middle_of_a_run(spots_asc, blob_clip):
    """A thread inside of an engine would take the process down with `terminate called`, about every other time."""
    code = """
        import atexit, sys, threading
        atexit.register(lambda: print([t.name for t in threading.enumerate() if t.name in ("detect", "track")]))
        import pyasc
        detector = pyasc.load_plugin("yolov5", model=sys.argv[1], device="cpu", threads=2)
        run = pyasc.EdgeAnalyzer(detector, "deepsort").run(pyasc.Stream(sys.argv[2], loop=True))
        next(run)
        print([t.name for t in threading.enumerate() if t.name == "track"])
        sys.exit(5)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(spots_asc), str(blob_clip)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout.splitlines()) == (5, ["['track']", "[]"]), ended.stderr


def test_a_late_frame_does_not_hold_up_the_ones_after_it(detector, blob_clip):
    """The first call waits until another thread has done two frames more."""
    two_more, calls = threading.Event(), itertools.count()

    def detect(image):
        number = next(calls)
        if number == 0:
            assert two_more.wait(20)
        elif number == 2:
            two_more.set()
        return detector.detect(image)

    late = types.SimpleNamespace(detect=detect, share=two)
    with pyasc.Stream(blob_clip) as stream:
        found = list(pyasc.EdgeAnalyzer(late).run(stream))
    assert [frame.index for frame, _ in found] == list(range(70))


def test_a_slow_consumer_holds_the_stages_back(detector, tracker, blob_clip):
    analyzer = pyasc.EdgeAnalyzer(detector, tracker)
    with pyasc.Stream(blob_clip, loop=True) as stream:
        run = analyzer.run(stream)
        next(run)
        deadline = time.monotonic() + 10
        pause = threading.Event()
        while analyzer.stats()["queues"] != {"detect": 4, "track": 2, "output": 2}:
            assert time.monotonic() < deadline, analyzer.stats()
            pause.wait(0.01)
        assert analyzer.stats()["stages"]["detect"]["frames"] < 10
        run.close()


@pytest.mark.parametrize(
    ("realtime", "options", "copies"),
    [
        (False, {}, 2),
        (True, {}, 1),
        (True, {"parallel": 2}, 2),
        (False, {"parallel": 3}, 3),
        (False, {"parallel": 1}, 1),
    ],
)
def test_copies_of_the_model_are_for_streams_that_wait(monkeypatch, spots_asc, blob_clip, realtime, options, copies):
    """Three threads, shared out over the copies; a live picture gets all of them."""
    loaded = []
    load = yolov5.load_model
    monkeypatch.setattr(yolov5, "load_model", lambda *a, **k: loaded.append(load(*a, **k)) or loaded[-1])
    detector = pyasc.load_plugin("yolov5", model=str(spots_asc), device="cpu", threads=3, **options)
    with pyasc.Stream(blob_clip, realtime=realtime) as stream, pyasc.EdgeAnalyzer(detector) as analyzer:
        run = analyzer.run(stream)
        next(run)
        assert len(loaded) == copies
        assert {model.executable.threads for model in loaded} == {3 // copies}
        run.close()
        assert detector.model.executable.threads == 3


def test_a_camera_that_is_away_is_taken_for_live():
    with pyasc.Stream("http://127.0.0.1:9/x", retry=True) as away:
        assert away.drops


class Slow(Chooser):
    """Needs for the larger size a device that takes long to be ready."""

    def process(self, stream):
        if stream.resolution > 100:
            assert self.ready.wait(10)
        super().process(stream)


def test_frames_do_not_wait_while_another_device_is_made_ready(detector, tracker, tmp_path):
    detector.prepare_device = lambda device: None  # what says that it may be moved while it works
    analyzer = Slow(detector, tracker)
    analyzer.ready = threading.Event()
    frames = []
    with pyasc.Stream(two_sizes(tmp_path)) as stream:
        for frame, _ in analyzer.run(stream):
            frames.append(frame.index)
            if len(frames) == 6:
                assert detector.moves == ["cpu", "gpu0"]
                analyzer.ready.set()
    assert frames == list(range(6))
    assert detector.moves == ["cpu", "gpu0", "mlu220"]
    assert not analyzer.wedged


class Failing(Chooser):
    def process(self, stream):
        if stream.resolution > 100:
            raise DeviceError("mlu220: does not answer", 5)
        super().process(stream)


@pytest.mark.parametrize("beside", [False, True])
def test_an_error_of_choosing_ends_the_run(detector, tracker, tmp_path, beside):
    if beside:
        detector.prepare_device = lambda device: None
    with pyasc.Stream(two_sizes(tmp_path), loop=beside) as stream, pytest.raises(DeviceError, match="does not answer"):
        for _ in Failing(detector, tracker).run(stream):
            pass


def test_a_frame_is_detected_on_the_next_device_when_one_is_lost(detector, tracker, blob_clip, monkeypatch):
    """Frame 5 meets the loss: it is detected elsewhere, none is missing or doubled, and tracks go on."""
    detect, calls = detector.detect, itertools.count()

    def fragile(image):
        if detector.device == "gpu0" and next(calls) >= 5:
            raise DeviceLostError("gpu0: does not answer", 5)
        return detect(image)

    monkeypatch.setattr(detector, "detect", fragile)
    route = [{"when": "resolution > 10", "device": "gpu0"}, {"device": "mlu220"}]
    with pyasc.Stream(blob_clip) as stream, pyasc.EdgeAnalyzer(detector, tracker, route=route) as analyzer:
        found = []
        for frame, tracks in analyzer.run(stream):
            found.append((frame.index, tracks))
            assert frame.index < 6 or analyzer.faults == {"gpu0": "gpu0: does not answer"}
    assert [index for index, _ in found] == list(range(70))
    assert {number for _, tracks in found[:40] for number in tracks[np.array(tracks.label) == "red"].track_id} == {1}
    assert detector.moves == ["cpu", "gpu0", "mlu220"]
