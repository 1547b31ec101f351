"""`pyasc convert`, run as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyasc.cli.convert import command
from pyasc.models.asc.archive import open_archive
from pyasc.models.conversion.templates import TEMPLATES

ROOT = Path(__file__).resolve().parents[2]


def pyasc(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyasc", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=cwd)


def test_a_checkpoint_becomes_a_file_beside_it(demo_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "yolov5n.pt"
    source.symlink_to(demo_dir / "yolov5n.pt")
    done = pyasc("convert", source, "--precision", "fp16", "--imgsz", "320")
    assert done.returncode == 0, done.stderr
    with open_archive(tmp_path / "yolov5n.asc") as archive:
        assert archive.manifest.precision == "fp16"
        assert archive.manifest.inputs[0].shape == (1, 3, 320, 320)
    assert "yolov5n.asc: 7." in done.stdout
    for part in ("1,867,405 parameters", "25 layers", "60 Conv", "80 classes", "p3 1x255x40x40", "AGPL-3.0"):
        assert part in done.stdout
    steps = done.stderr.split("\n")
    assert steps[0] == "  0% reading"
    assert steps[-2] == "100% done"


def test_json_is_the_only_thing_on_stdout(demo_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "reid.asc"
    done = pyasc("convert", demo_dir / "osnet_x0_25.onnx", "-o", target, "--name", "reid", "--json")
    summary = json.loads(done.stdout)
    assert summary["file_bytes"] == target.stat().st_size
    assert (summary["name"], summary["template"], summary["written"]) == ("reid", "osnet", True)
    assert summary["inputs"] == {"images": [1, 3, 256, 128]}
    assert summary["outputs"] == {"output": [1, 512]}
    assert summary["operators"]["Conv"] == 187
    assert summary["seconds"] > 0


def test_a_dry_run_writes_nothing(demo_dir: Path, tmp_path: Path) -> None:
    done = pyasc("convert", demo_dir / "yolov5n.pt", "-o", tmp_path / "a.asc", "--dry-run", "--json")
    summary = json.loads(done.stdout)
    assert (summary["written"], summary["file_bytes"]) == (False, None)
    assert summary["size_bytes"]["graph.onnx"] > 7_000_000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--precision", "int8"), "precision int8 is not available yet"),
        (("--imgsz", "100"), "not a multiple of the stride 32"),
        (("--template", "osnet"), "reads ONNX files"),
    ],
)
def test_a_failure_is_one_line_and_leaves_nothing(
    demo_dir: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = pyasc("convert", demo_dir / "yolov5n.pt", "-o", tmp_path / "a.asc", *options)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if not line.lstrip()[0].isdigit()]
    assert line.startswith("pyasc: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_absent_files_and_wrong_usage(tmp_path: Path) -> None:
    absent = pyasc("convert", tmp_path / "none.pt")
    assert absent.returncode == 1
    assert "none.pt" in absent.stderr.splitlines()[-1]
    assert pyasc("convert").returncode == 2
    assert pyasc("convert", "a.pt", "--imgsz", "0").returncode == 2
    assert pyasc("convert", "a.pt", "--precision", "fp8").returncode == 2


def test_a_hostile_checkpoint_is_refused(tmp_path: Path) -> None:
    canary, source = tmp_path / "canary", tmp_path / "best.pt"
    command = f"touch {canary}".encode()
    source.write_bytes(b"\x80\x02cos\nsystem\n(X" + len(command).to_bytes(4, "little") + command + b"tR.")
    done = pyasc("convert", source)
    assert done.returncode == 1
    assert "asks for os.system, which no conversion needs; nothing of it has run" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["best.pt"]


def test_a_terminal_gets_a_bar(demo_dir: Path, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "pyasc", "convert", str(demo_dir / "yolov5n.pt"), "-o", str(tmp_path / "a.asc")]
    with subprocess.Popen(command, stderr=follower, stdout=subprocess.DEVNULL) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # The other end of a terminal is closed.
                break
            if not part:
                break
            shown += part
        assert process.wait(60) == 0
    os.close(leader)
    assert b"\x1b[" in shown
    assert b"done" in shown


def test_the_page_on_converting_names_all_options_and_families() -> None:
    page = (ROOT / "docs" / "convert.md").read_text(encoding="utf-8")
    options = {name for option in command.params for name in option.opts if name.startswith("--")} - {"--help"}
    assert options == set(re.findall(r"^\| (?:`-o`, )?`(--[a-z-]+)` \|", page, re.MULTILINE))
    for family in TEMPLATES:
        assert f"`{family}`" in page
        assert f"`{family}`" in (ROOT / "docs" / "asc-format.md").read_text(encoding="utf-8")
