"""A configured pipeline on a clip with known answers: faults by path, events, states, restarts."""

from __future__ import annotations

import importlib
import threading
from collections import Counter
from typing import Any

import cv2
import numpy as np
import pytest

from pyasc.agent import pipeline as pipeline_module
from pyasc.agent import stages as stages_module
from pyasc.agent.analyzer import EdgeAnalyzer
from pyasc.agent.pipeline import Pipeline
from pyasc.errors import ConfigError, PyascError

ZONES = {"right": [[0.5, 0.0], [1.0, 0.0], [1.0, 1.0], [0.5, 1.0]]}
LINES = {"middle": [[0.5, 0.0], [0.5, 1.0]]}


class Results:
    """Keeps what a pipeline gives."""

    def __init__(self) -> None:
        self.all_events: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []

    def events(self, pipeline, events):
        assert pipeline == "gate"
        self.all_events += events

    def tracks(self, pipeline, message):
        self.messages.append(dict(message))


@pytest.fixture
def results() -> Results:
    return Results()


@pytest.fixture
def make(blobs, blob_models, blob_clip, results):
    made: list[Pipeline] = []

    def build(**changes: Any) -> Pipeline:
        spec: dict[str, Any] = {
            "source": {"url": str(blob_clip)},
            "detector": {"plugin": "blobs", "model": "blobs.asc"},
            "tracker": {"plugin": "nearest"},
            "zones": ZONES,
            "lines": LINES,
        }
        spec.update(changes)
        spec = {key: value for key, value in spec.items() if value is not None}
        made.append(Pipeline("gate", spec, model_dir=blob_models, sink=results))
        return made[-1]

    yield build
    assert all(pipeline.stop() or pipeline.wedged for pipeline in made)


@pytest.fixture
def begin(make):
    def start(**changes: Any) -> Pipeline:
        pipeline = make(**changes)
        pipeline.prepare()
        pipeline.start()
        return pipeline

    return start


def state(pipeline: Pipeline) -> str:
    return str(pipeline.status()["state"])


# --- preparing


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"detector": {"plugin": "none", "model": "x"}}, "detector.plugin", "no plugin named 'none'"),
        ({"detector": {"plugin": "nearest", "model": "x"}}, "detector.plugin", "'nearest' is not a detector"),
        ({"tracker": {"plugin": "blobs"}}, "tracker.plugin", "'blobs' is not a tracker"),
        ({"detector": {"plugin": "blobs", "model": "bad.asc"}}, "detector.model", "not a model of blobs"),
        ({"detector": {"plugin": "blobs", "model": "none.asc"}}, "detector.model", "No such file"),
        (
            {"detector": {"plugin": "blobs", "model": "blobs.asc", "device": "tpu"}},
            "detector.device",
            "there is no device 'tpu'",
        ),
        ({"route": [{"device": "tpu"}]}, "route[0].device", "there is no device 'tpu'"),
        (
            {"route": [{"when": "fps > 3", "device": "tpu"}, {"device": "gpu0"}]},
            "route[0].device",
            "there is no device 'tpu'",
        ),
        ({"detector": {"plugin": "blobs", "model": "blobs.asc", "treshold": 1}}, "detector.treshold", "unknown key"),
        (
            {"detector": {"plugin": "blobs", "model": "blobs.asc", "threshold": 0}},
            "detector.threshold",
            "not in 1..255",
        ),
        ({"tracker": {"plugin": "nearest", "reach": "far"}}, "tracker.reach", "not of type float"),
    ],
)
def test_a_fault_is_named_by_its_path(make, changes, path, message):
    with pytest.raises(ConfigError) as caught:
        make(**changes).prepare()
    (fault,) = caught.value.faults
    assert fault.path == f"pipelines.gate.{path}"
    assert message in fault.message


def test_all_faults_come_at_once(make):
    pipeline = make(
        detector={"plugin": "blobs", "model": "blobs.asc", "threshold": "high", "x": 1}, tracker={"plugin": "none"}
    )
    with pytest.raises(ConfigError) as caught:
        pipeline.prepare()
    assert {fault.path.removeprefix("pipelines.gate.") for fault in caught.value.faults} == {
        "detector.threshold",
        "detector.x",
        "tracker.plugin",
    }


def test_the_route_starts_with_its_unconditional_device(begin, until):
    pipeline = begin(route=[{"when": "resolution > 1080", "device": "mlu220"}, {"device": "gpu0"}])
    until(lambda: state(pipeline) == "stopped", "the end of the clip")
    assert pipeline.status()["device"] == "gpu0"


def test_a_disabled_pipeline_is_checked_and_does_not_run(make, begin):
    pipeline = begin(enabled=False)
    assert pipeline.status() == {
        "state": "stopped",
        "device": None,
        "fps": 0.0,
        "resolution": None,
        "reason": "disabled",
    }
    with pytest.raises(PyascError, match="disabled"):
        pipeline.restart()
    with pytest.raises(ConfigError):
        make(enabled=False, tracker={"plugin": "none"}).prepare()


# --- running


def test_a_clip_from_start_to_end(begin, results, until):
    pipeline = begin(publish_tracks=True)
    until(lambda: state(pipeline) == "stopped", "the end of the clip")
    assert pipeline.status() == {
        "state": "stopped",
        "device": "cpu",
        "fps": 0.0,
        "resolution": 100,
        "reason": "end of stream",
    }
    assert Counter((e["type"], e["label"], e.get("zone") or e.get("line")) for e in results.all_events) == Counter(
        {
            ("enter", "red", None): 1,
            ("enter", "red", "right"): 1,
            ("cross", "red", "middle"): 1,
            ("leave", "red", "right"): 1,
            ("leave", "red", None): 1,
            ("enter", "green", None): 1,
            ("enter", "green", "right"): 1,
            ("leave", "green", "right"): 1,
            ("leave", "green", None): 1,
        }
    )
    assert [message["frame"] for message in results.messages] == list(range(70))
    assert results.messages[9]["tracks"] == [
        {
            "track": 1,
            "label": "red",
            "score": 0.75,
            "box": pytest.approx([0.24, 0.6, 0.1, 0.2], abs=0.01),
        }
    ]
    statistics = pipeline.statistics()
    assert (statistics["frames"], statistics["events"], statistics["dropped"]) == (70, 9, 0)


def test_every_third_frame(begin, results, blob_clip, until):
    pipeline = begin(source={"url": str(blob_clip), "every": 3}, publish_tracks=True)
    until(lambda: state(pipeline) == "stopped", "the end of the clip")
    assert [message["frame"] for message in results.messages] == list(range(0, 70, 3))


def test_stopping_makes_everybody_leave(begin, results, blob_clip, until):
    pipeline = begin(source={"url": str(blob_clip), "loop": True})
    until(lambda: results.all_events, "the first event")
    assert pipeline.stop()
    assert not pipeline.alive
    assert results.all_events[-1]["type"] == "leave"
    assert results.all_events[-1]["reason"] in ("stopped", "not-seen")
    state_of: dict[tuple[int, Any], str] = {}
    for event in results.all_events:
        if event["type"] != "cross":
            state_of[event["track"], event.get("zone")] = event["type"]
    assert set(state_of.values()) == {"leave"}
    with pytest.raises(PyascError, match="stopped"):
        pipeline.restart()


def test_a_snapshot_is_the_newest_frame_with_boxes(begin, make, until):
    with pytest.raises(PyascError, match="no picture yet"):
        make().snapshot()
    pipeline = begin()
    until(lambda: state(pipeline) == "stopped", "the end of the clip")
    frame, data = pipeline.snapshot()
    assert (frame.width, frame.height) == (200, 100)
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert image.shape == (100, 200, 3)
    assert image[:, 98:103].any()


def test_a_failing_plugin_fails_the_pipeline_which_tries_again(begin, results, until, monkeypatch):
    monkeypatch.setattr(pipeline_module, "_RETRY_FIRST_S", 0.05)
    pipeline = begin(detector={"plugin": "blobs", "model": "blobs.asc", "fail_at": 5})
    until(lambda: state(pipeline) == "failed", "a failure")
    assert pipeline.status()["reason"] == "RuntimeError: the detector fell over"
    until(lambda: pipeline.statistics()["restarts"] >= 2, "two restarts")
    assert [(e["type"], e.get("reason")) for e in results.all_events[:2]] == [("enter", None), ("leave", "failed")]


def test_a_missing_file_is_a_failure_with_its_reason(begin, until):
    pipeline = begin(source={"url": "/none/clip.mp4"})
    until(lambda: state(pipeline) == "failed", "a failure")
    assert pipeline.status()["reason"] == "/none/clip.mp4: there is no such file or folder"


def test_a_camera_that_is_away_is_waited_for_and_its_password_hidden(begin, until):
    pipeline = begin(source={"url": "rtsp://user:secret@127.0.0.1:9/x"})
    until(lambda: state(pipeline) == "reconnecting", "reconnecting")
    assert "Connection refused" in pipeline.status()["reason"]
    assert "secret" not in pipeline.status()["reason"]
    assert pipeline.stop(5)


def test_restarting_begins_again_with_new_numbers(begin, results, until):
    pipeline = begin()
    until(lambda: state(pipeline) == "stopped", "the end of the clip")
    pipeline.restart()
    until(lambda: pipeline.statistics()["frames"] == 140, "the clip twice")
    assert pipeline.statistics()["restarts"] == 1
    assert len({event["id"] for event in results.all_events}) == 18


def test_a_detector_that_does_not_come_back_is_noticed(begin, results, until, monkeypatch):
    monkeypatch.setattr(EdgeAnalyzer, "stall_s", 0.3)
    monkeypatch.setattr(stages_module, "_JOIN_S", 0.1)
    hang = importlib.import_module("blobs").released
    hang.clear()
    pipeline = begin(detector={"plugin": "blobs", "model": "blobs.asc", "hang_at": 3})
    until(lambda: pipeline.wedged and not pipeline.alive, "the hang is noticed")
    assert pipeline.status()["reason"] == "the detect stage has not come back from a frame for 0.3 s"
    assert results.all_events[-1]["reason"] == "failed"
    hang.set()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "detect"], "the thread is free")


def test_two_sizes_keep_the_identity(begin, results, tmp_path, until):
    for number in range(8):
        scale = 1 if number < 4 else 2
        image = np.zeros((100 * scale, 200 * scale, 3), np.uint8)
        image[60 * scale : 80 * scale, 40 * scale : 60 * scale] = (0, 0, 255)
        cv2.imwrite(str(tmp_path / f"{number}.png"), image)
    pipeline = begin(
        source={"url": str(tmp_path)},
        route=[{"when": "resolution > 150", "device": "mlu220"}, {"device": "gpu0"}],
        publish_tracks=True,
    )
    until(lambda: state(pipeline) == "stopped", "the end of the folder")
    assert [[row["track"] for row in message["tracks"]] for message in results.messages] == [[1]] * 8
    assert {tuple(row["box"]) for message in results.messages for row in message["tracks"]} == {(0.2, 0.6, 0.1, 0.2)}
    assert (pipeline.status()["device"], pipeline.status()["resolution"]) == ("mlu220", 200)


def test_no_threads_are_left(begin, blob_clip, until):
    before = set(threading.enumerate())
    pipeline = begin(source={"url": str(blob_clip), "loop": True})
    until(lambda: state(pipeline) == "running", "running")
    assert pipeline.stop()
    until(lambda: set(threading.enumerate()) <= before, "all threads ended")
