"""The snippets of the README and of the documentation run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import cv2
import pytest

ROOT = Path(__file__).resolve().parent.parent


def _snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def _run(code: str, folder: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def folder(tmp_path: Path, yolov5n_asc: Path, osnet_asc: Path) -> Path:
    """A working folder as the snippets expect it."""
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    (tmp_path / "yolov5n.asc").symlink_to(yolov5n_asc)
    (tmp_path / "osnet_x0_25.asc").symlink_to(osnet_asc)
    capture = cv2.VideoCapture(str(ROOT / "demo" / "one-by-one-person.mp4"))
    cv2.imwrite(str(tmp_path / "picture.jpg"), capture.read()[1])
    capture.release()
    return tmp_path


def test_readme_snippet_tracks_the_person(folder: Path) -> None:
    (folder / "yolov5n.asc").unlink()
    (code,) = _snippets("README.md")
    lines = _run(code, folder).splitlines()
    assert len(lines) > 100
    assert {line.split()[1] for line in lines} >= {"person"}


def test_sdk_page_snippets_run(folder: Path) -> None:
    _run("\n".join(_snippets("docs/sdk.md")), folder)


def test_plugin_page_snippets_run(folder: Path) -> None:
    load, define = _snippets("docs/plugins.md")
    _run(load, folder)
    use = "\npicture = np.zeros((40, 60, 3), np.uint8)\npicture[10:20, 30:50] = 255\n"
    use += "print(Bright(BrightConfig()).detect(picture).xyxy.tolist())"
    assert _run(define + use, folder).strip() == "[[30.0, 10.0, 50.0, 20.0]]"
