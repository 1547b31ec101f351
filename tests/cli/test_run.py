"""`pyasc run` as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import pytest


class Cli:
    """Runs `pyasc run` with the test plugins installed."""

    def __init__(self, plugins: Path, folder: Path) -> None:
        path = {"PYTHONPATH": str(plugins), "COLUMNS": "200"}
        self.env = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")} | path
        self.folder = folder

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "pyasc", "run", *map(str, arguments)]

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=120
        )


@pytest.fixture
def run(blobs, tmp_path) -> Cli:
    return Cli(blobs, tmp_path)


@pytest.fixture
def on_clip(blob_clip, blob_models) -> tuple[object, ...]:
    return (blob_clip, "--detector", "blobs", "--model", blob_models / "blobs.asc", "--tracker", "nearest")


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_events_and_a_summary_for_people(run, on_clip):
    done = run(*on_clip)
    assert done.returncode == 0, done.stderr
    out = done.stdout.splitlines()
    assert [line.split("  ", 1)[1] for line in out[:4]] == [
        "enter red 1",
        "enter green 2",
        "leave green 2 reason not-seen",
        "leave red 1 reason not-seen",
    ] or out[3].endswith("reason end-of-stream")
    assert out[-2].startswith("70 frames in ")
    assert " on cpu" in out[-2]
    assert out[-1] == "events: 2 enter, 2 leave; tracks: 2"


def test_json_lines_for_machines(run, on_clip):
    done = run(*on_clip, "--json", "--frames", "15")
    assert done.returncode == 0, done.stderr
    messages = lines(done.stdout)
    frames = [m for m in messages if m["type"] == "frame"]
    assert [m["frame"] for m in frames] == list(range(15))
    assert frames[12]["tracks"][1] == {
        "track": 1,
        "label": "red",
        "score": 0.75,
        "box": pytest.approx([0.3, 0.6, 0.1, 0.2], abs=0.01),
    }
    assert [(m["type"], m["label"], m.get("reason")) for m in messages if m["type"] != "frame"] == [
        ("enter", "red", None),
        ("enter", "green", None),
        ("leave", "red", "stopped"),
        ("leave", "green", "stopped"),
    ]
    assert "15 frames in" in done.stderr


def test_without_a_tracker_there_are_detections(run, on_clip):
    done = run(*on_clip[:-2], "--tracker", "none", "--json", "--frames", "2", "--every", "10")
    messages = lines(done.stdout)
    assert [m["frame"] for m in messages] == [0, 10]
    assert [sorted(row["label"] for row in m["detections"]) for m in messages] == [["red"], ["green", "red"]]


def test_the_annotated_video(run, on_clip, tmp_path):
    done = run(*on_clip, "--output", "out.mp4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "video: out.mp4"
    assert [path.name for path in tmp_path.iterdir()] == ["out.mp4"]
    capture = cv2.VideoCapture(str(tmp_path / "out.mp4"))
    images = []
    while (got := capture.read())[0]:
        images.append(got[1])
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(10)
    assert len(images) == 70
    assert images[30].shape == (100, 200, 3)
    # The label stands above the box: there the clip itself is black.
    assert images[30][45:58, 132:152].max() > 100
    assert images[69].max() < 60


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)], ids=["int", "hup"])
def test_an_interrupted_run_leaves_a_complete_video_and_its_code(run, on_clip, tmp_path, number, code):
    process = subprocess.Popen(
        run.command(*on_clip, "--output", "out.mp4", "--json", "--realtime"),
        env=run.env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    assert not (tmp_path / "out.mp4").exists()
    process.send_signal(number)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert "frames/s" in errors
    assert lines(rest)[-1]["reason"] == "stopped"
    capture = cv2.VideoCapture(str(tmp_path / "out.mp4"))
    assert 3 <= capture.get(cv2.CAP_PROP_FRAME_COUNT) < 70
    assert [path.name for path in tmp_path.iterdir()] == ["out.mp4"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("none.mp4", "--model", "x.asc"), 1, "none.mp4: there is no such file or folder"),
        (("{clip}",), 2, "--model is missing"),
        (("{clip}", "--model", "x.pt"), 2, "convert it first by `pyasc convert x.pt`"),
        (("{clip}", "--model", "x.asc", "--output", "out.gif"), 2, "must end in .mp4"),
        (("{clip}", "--model", "x.asc", "--model-dir", "."), 2, "--model-dir is for a CONFIG"),
        (("{clip}", "--model", "x.asc", "--confidence", "2"), 2, "confidence"),
        (("{clip}", "--model", "x.asc", "--show"), 1, "there is no display"),
        (("{clip}", "--model", "{bad}", "--detector", "blobs"), 1, "not a model of blobs"),
        (("{clip}", "--model", "{good}", "--detector", "dots"), 1, "no plugin named 'dots'"),
        (("{clip}", "--model", "{good}", "--detector", "blobs", "--threads", "2"), 1, "threads: unknown key"),
        (("{clip}", "--model", "{good}", "--detector", "blobs", "--output", "no/out.mp4"), 1, "there is no folder no"),
        (("rtsp://u:secret@127.0.0.1:9/x", "--model", "x.asc"), 1, "Connection refused"),
        (("{clip}", "--model", "x.asc", "--transport", "udp"), 2, "--transport udp is for rtsp addresses"),
        ((".", "--model", "x.asc", "--transport", "udp"), 2, "--transport udp is for rtsp addresses"),
        (("rtsp://u:secret@127.0.0.1:9/x", "--model", "x.asc", "--realtime"), 2, "is for files and folders"),
        (("/dev/video7", "--model", "x.asc", "--realtime"), 2, "is for files and folders"),
        (("{clip}", "--model", "x.asc", "--tracker", "none", "--tracker-model", "y.asc"), 2, "--tracker is none"),
        (("none.yaml",), 1, "No such file"),
        (("none.yaml", "--every", "3"), 2, "--every is for a SOURCE"),
        (("none.yaml", "--output", "out.gif"), 2, "must end in .mp4"),
    ],
)
def test_a_mistake_is_one_line_with_the_cause(run, blob_clip, blob_models, arguments, code, message):
    places = {"clip": blob_clip, "good": blob_models / "blobs.asc", "bad": blob_models / "bad.asc"}
    done = run(*(argument.format(**places) for argument in arguments))
    assert done.returncode == code
    assert message in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr
    assert code == 2 or len([line for line in done.stderr.splitlines() if line.strip()]) == 1
    assert done.stdout == ""


def test_all_pipelines_of_a_document(run, blob_clip, blob_models, tmp_path):
    document = {
        "version": 1,
        "pipelines": {
            name: {
                "source": {"url": str(blob_clip)},
                "detector": {"plugin": "blobs", "model": "blobs.asc"},
                "tracker": {"plugin": "nearest"},
                "lines": {"middle": [[0.5, 0.0], [0.5, 1.0]]},
            }
            for name in ("gate", "door")
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(document))
    done = run("config.json", "--model-dir", blob_models, "--json")
    assert done.returncode == 0, done.stderr
    for name in ("gate", "door"):
        messages = [m for m in lines(done.stdout) if m["pipeline"] == name]
        kinds = [m["type"] for m in messages if m["type"] != "frame"]
        assert sorted(kinds) == ["cross", "enter", "enter", "leave", "leave"]
        assert [m["frame"] for m in messages if m["type"] == "frame"] == list(range(70))
    assert "140 frames in" in done.stderr


def document_of(clip: Path, *names: str, **more: Any) -> str:
    pipeline = {
        "source": {"url": str(clip)},
        "detector": {"plugin": "blobs", "model": "blobs.asc"},
        "tracker": {"plugin": "nearest"},
        **more,
    }
    return json.dumps({"version": 1, "pipelines": dict.fromkeys(names, pipeline)})


def pictures_of(path: Path) -> list[Any]:
    capture = cv2.VideoCapture(str(path))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(10)
    images = []
    while (got := capture.read())[0]:
        images.append(got[1])
    return images


def test_the_video_of_a_document_has_its_zones_and_ends_after_its_frames(run, blob_clip, blob_models, tmp_path):
    zones = {"z": [[0.55, 0.5], [0.95, 0.5], [0.95, 0.9], [0.55, 0.9]]}
    (tmp_path / "config.json").write_text(document_of(blob_clip, "gate", zones=zones, publish_tracks=True))
    done = run("config.json", "--model-dir", blob_models, "--output", "out.mp4", "--frames", "30", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "video: out.mp4"
    assert [m["frame"] for m in lines(done.stdout) if m["type"] == "frame"] == list(range(30))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "out.mp4"]
    images = pictures_of(tmp_path / "out.mp4")
    assert len(images) == 30
    assert images[0][70, 188:192].max() > 150  # the zone's right side, where the clip is black
    assert images[29][45:58, 132:152].max() > 100  # the label above the red square


def test_several_pipelines_write_a_video_each(run, blob_clip, blob_models, tmp_path):
    (tmp_path / "config.json").write_text(document_of(blob_clip, "gate", "door"))
    done = run("config.json", "--model-dir", blob_models, "--output", "out.avi", "--frames", "5")
    assert done.returncode == 0, done.stderr
    assert "10 frames in" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["video: out-door.avi", "video: out-gate.avi"]
    assert [len(pictures_of(tmp_path / f"out-{name}.avi")) for name in ("gate", "door")] == [5, 5]


def test_an_interrupted_document_leaves_complete_videos(run, blob_clip, blob_models, tmp_path):
    (tmp_path / "config.json").write_text(
        document_of(blob_clip, "gate", "door", source={"url": str(blob_clip), "loop": True})
    )
    process = subprocess.Popen(
        run.command("config.json", "--model-dir", blob_models, "--output", "out.mp4", "--json"),
        env=run.env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    seen: set[str] = set()
    while seen != {"gate", "door"}:
        seen.add(json.loads(process.stdout.readline())["pipeline"])
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "out-door.mp4", "out-gate.mp4"]
    assert min(len(pictures_of(tmp_path / f"out-{name}.mp4")) for name in ("gate", "door")) >= 1


def test_a_window_is_for_one_pipeline_and_needs_a_display(run, blob_clip, blob_models, tmp_path):
    (tmp_path / "two.json").write_text(document_of(blob_clip, "gate", "door"))
    done = run("two.json", "--model-dir", blob_models, "--show")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--show is for one pipeline, two.json runs 2" in done.stderr
    (tmp_path / "one.json").write_text(document_of(blob_clip, "gate"))
    done = run("one.json", "--model-dir", blob_models, "--show")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no display" in done.stderr


def test_faults_of_a_document_come_with_their_paths(run, blob_clip, blob_models, tmp_path):
    (tmp_path / "config.yaml").write_text(
        f"version: 1\npipelines:\n  gate:\n    source: {{url: {blob_clip}}}\n"
        "    detector: {plugin: blobs, model: bad.asc}\n    tracker: {plugin: nearest, reach: far}\n"
    )
    done = run("config.yaml", "--model-dir", blob_models)
    assert done.returncode == 1
    assert "pipelines.gate.tracker.reach" in done.stderr
    (tmp_path / "config.yaml").write_text(
        f"version: 1\npipelines:\n  gate:\n    colour: red\n    source: {{url: {blob_clip}}}\n"
        "    detector: {plugin: blobs, model: blobs.asc, treshold: 1}\n    tracker: {plugin: neerest}\n"
        f"  door:\n    source: {{url: {blob_clip}}}\n    detector: {{plugin: blobs, model: absent.asc}}\n"
    )
    done = run("config.yaml", "--model-dir", blob_models)
    assert done.returncode == 1
    for path in ("gate.colour", "gate.detector.treshold", "gate.tracker.plugin", "door.detector.model"):
        assert f"pipelines.{path}: " in done.stderr


@pytest.mark.parametrize("kind", ["document", "source"])
def test_a_reader_that_goes_away_ends_the_run(blobs, blob_clip, blob_models, tmp_path, kind):
    (tmp_path / "config.yaml").write_text(
        f"version: 1\npipelines:\n  gate:\n    source: {{url: {blob_clip}, loop: true}}\n"
        "    detector: {plugin: blobs, model: blobs.asc}\n    tracker: {plugin: nearest}\n"
    )
    words = ["config.yaml", "--model-dir", str(blob_models)]
    if kind == "source":
        words = [
            str(blob_clip),
            "--detector",
            "blobs",
            "--model",
            str(blob_models / "blobs.asc"),
            "--tracker",
            "nearest",
        ]
    process = subprocess.Popen(
        [sys.executable, "-m", "pyasc", "run", *words, "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(blobs)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdout.close()  # before it has begun to write
        said = process.stderr.read()
        assert process.wait(30) == 1
    assert "Traceback" not in said
    assert "failed" not in said
    assert "Exception ignored" not in said


def test_a_failed_pipeline_makes_the_exit_code_1(run, blob_clip, blob_models, tmp_path):
    (tmp_path / "config.yaml").write_text(
        f"version: 1\npipelines:\n  good:\n    source: {{url: {blob_clip}}}\n"
        "    detector: {plugin: blobs, model: blobs.asc}\n"
        f"  bad:\n    source: {{url: {blob_clip}}}\n    detector: {{plugin: blobs, model: blobs.asc, fail_at: 3}}\n"
    )
    done = run("config.yaml", "--model-dir", blob_models)
    assert done.returncode == 1
    assert "bad: failed: RuntimeError: the detector fell over" in done.stdout
    assert "73 frames in" in done.stdout
