"""`pyasc demo` as a newcomer runs it: the whole main job with the embedded broker, ended by itself or by Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import cv2
import psutil
import pytest

from pyasc.cli.demo import SHORT_FRAMES

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240


def _demo(output: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "pyasc", "demo", "--data", str(ROOT / "demo"), "--output", str(output), *options]


def _processes_of(output: Path) -> list[psutil.Process]:
    """Processes that the demo started and that still live, told by their command lines and working files."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline()) + process.environ().get("PYASC_TEST_DEMO", "")
        except psutil.Error:
            continue
        if str(output) in words:
            found.append(process)
    return found


@pytest.fixture(scope="module")
def short_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    output = tmp_path_factory.mktemp("demo")
    result = subprocess.run(
        _demo(output, "--short", "--json"),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYASC_TEST_DEMO": str(output)},
    )
    assert result.returncode == 0, result.stderr
    return output, json.loads(result.stdout)


def test_the_short_demo_tracks_the_person_and_reports(short_demo: tuple[Path, dict[str, object]]) -> None:
    output, summary = short_demo
    assert summary["device"] == "cpu"
    assert summary["events_missing"] == 0
    events = [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert len({event["id"] for event in events}) == len(events)
    kinds = [event["type"] for event in events if event["label"] == "person" and "zone" not in event]
    assert kinds[0] == "enter"
    assert kinds.count("enter") == kinds.count("leave"), "every track that entered has left when the pipeline stopped"


def test_the_pictures_of_the_demo_can_be_opened(short_demo: tuple[Path, dict[str, object]]) -> None:
    output, _ = short_demo
    capture = cv2.VideoCapture(str(output / "annotated.mp4"))
    assert (capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT)) == (768, 432)
    assert capture.get(cv2.CAP_PROP_FRAME_COUNT) >= SHORT_FRAMES
    capture.release()
    assert cv2.imread(str(output / "contact-sheet.jpg")).shape[1] == 3 * 480


def test_the_demo_leaves_no_process(short_demo: tuple[Path, dict[str, object]]) -> None:
    output, _ = short_demo
    assert _processes_of(output) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["int", "term", "hup"]
)
def test_a_signal_in_a_terminal_ends_everything(tmp_path: Path, number: signal.Signals, code: int) -> None:
    controller, terminal = pty.openpty()
    shown = bytearray()
    told = threading.Event()

    def read() -> None:
        while True:
            try:
                part = os.read(controller, 65536)
            except OSError:  # the terminal has been closed
                told.set()
                return
            shown.extend(part)
            if b"running" in shown and re.search(rb"agent \d+ MiB, engine \d+ MiB", shown):
                told.set()

    process = subprocess.Popen(
        _demo(tmp_path),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "PYASC_TEST_DEMO": str(tmp_path), "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
    )
    os.close(terminal)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert told.wait(TIMEOUT_S), shown.decode(errors="replace")
        assert process.poll() is None, shown.decode(errors="replace")
        process.send_signal(number)
        assert process.wait(60) == code
    finally:
        process.kill()
        process.wait()
    reader.join(10)
    os.close(controller)
    assert b"Traceback" not in shown
    assert _processes_of(tmp_path) == []


def test_missing_data_is_one_line(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pyasc", "demo", "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        f"pyasc: no demo data in {tmp_path}: name the folder with one-by-one-person.mp4 by --data"
    ]


def test_a_broker_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = subprocess.run(
        _demo(tmp_path, "--broker", "mqtt://127.0.0.1:9"),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.strip().startswith("pyasc: no broker at 127.0.0.1:9")


def test_a_device_that_is_not_there_is_one_line_and_leaves_no_process(tmp_path: Path) -> None:
    result = subprocess.run(
        _demo(tmp_path, "--short", "--device", "gpu7"),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYASC_TEST_DEMO": str(tmp_path)},
    )
    assert result.returncode == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("pyasc: ")]
    assert "pipelines.gate.detector.device: no device 'gpu7'" in line
    assert _processes_of(tmp_path) == []
