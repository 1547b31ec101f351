"""The snippets of the README and of the documentation run as they are written and give what is shown below them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyasc
from pyasc import errors
from pyasc.models.asc.archive import open_archive

ROOT = Path(__file__).resolve().parent.parent


def _snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def _examples(page: str) -> list[tuple[str, str]]:
    """Each snippet of a page, and the output that is shown right below it; empty where none is."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", text, re.DOTALL)


def _run_page(page: str, folder: Path) -> list[tuple[list[str], list[str]]]:
    """Run a page from top to bottom as one program: for each snippet the lines that it printed and those that are shown."""
    codes, shown = zip(*_examples(page), strict=True)
    printed = _run("\nprint('\\x1e')\n".join(codes), folder).split("\x1e\n")
    return [(found.splitlines(), wanted.splitlines()) for found, wanted in zip(printed, shown, strict=True)]


def _assert_alike(found: str, shown: str) -> None:
    """The same words and small numbers; scores within 0.02 and pixels within 3, as engines and decoders round differently."""
    number = r"-?\d+(?:\.\d+)?"
    assert re.split(number, found) == re.split(number, shown), found
    for is_one, wanted in zip(re.findall(number, found), re.findall(number, shown), strict=True):
        allowed = 0.02 if "." in wanted else 3 if abs(int(wanted)) > 9 else 0
        assert abs(float(is_one) - float(wanted)) <= allowed, found


def _run(code: str, folder: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def folder(tmp_path: Path, yolov5n_asc: Path, osnet_asc: Path) -> Path:
    """A working folder as the pages expect it that do not make their own."""
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    (tmp_path / "yolov5n.asc").symlink_to(yolov5n_asc)
    (tmp_path / "osnet_x0_25.asc").symlink_to(osnet_asc)
    return tmp_path


def test_readme_snippet_tracks_the_person(folder: Path) -> None:
    (folder / "yolov5n.asc").unlink()
    ((lines, shown),) = _run_page("README.md", folder)
    assert len(lines) > 100
    assert shown.pop() == "…"
    for found, wanted in zip(lines, shown, strict=False):
        _assert_alike(found, wanted)


def test_sdk_page_gives_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    for found, shown in _run_page("docs/sdk.md", tmp_path):
        if shown:
            assert len(found) == len(shown), found
            for line, wanted in zip(found, shown, strict=True):
                _assert_alike(line, wanted)


def test_sdk_page_introduces_every_public_name_and_error() -> None:
    text = (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8")
    assert [name for name in pyasc.__all__ if f"pyasc.{name}" not in text] == []
    names = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(names) > 15
    assert [name for name in names if f"`{name}`" not in text and f"pyasc.errors.{name}`" not in text] == []


def test_convert_page_snippet_runs(folder: Path) -> None:
    (code,) = _snippets("docs/convert.md")
    _run(code, folder)
    with open_archive(folder / "converted.asc") as archive:
        assert archive.manifest.precision == "fp16"


def test_format_page_snippet_reads_a_file(folder: Path) -> None:
    read, _write = _snippets("docs/asc-format.md")  # the other one is for tests/models/test_archive.py
    with open_archive(folder / "yolov5n.asc") as archive:
        assert archive.sha256["graph.onnx"] in _run(read, folder)


def test_plugin_page_snippets_run(folder: Path) -> None:
    load, define = _snippets("docs/plugins.md")
    _run(load, folder)
    use = "\npicture = np.zeros((40, 60, 3), np.uint8)\npicture[10:20, 30:50] = 255\n"
    use += "print(Bright(BrightConfig()).detect(picture).xyxy.tolist())"
    assert _run(define + use, folder).strip() == "[[30.0, 10.0, 50.0, 20.0]]"
