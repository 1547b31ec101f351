"""Writing and opening of sound `.asc` files."""

from __future__ import annotations

import dataclasses
import errno
import gc
import hashlib
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pyasc.errors import ModelFormatError
from pyasc.models.asc.archive import open_archive, write_archive
from pyasc.models.asc.container import write_zip
from pyasc.models.asc.manifest import Manifest

VARIANT = "variants/cpu/model.tflite"


def test_a_model_comes_back_as_it_was_written(small_asc: Path, detector: Manifest) -> None:
    with open_archive(small_asc) as archive:
        assert archive.manifest == detector
        assert bytes(archive.graph()) == bytes(range(256)) * 2 + b"end"
        assert bytes(archive.entry(VARIANT)) == b"tflite" * 33
        assert archive.path == small_asc
        assert archive.size_bytes == small_asc.stat().st_size
        assert archive.size_of(VARIANT) == 6 * 33
        assert archive.sha256[VARIANT] == hashlib.sha256(b"tflite" * 33).hexdigest()


@pytest.mark.parametrize(("name", "kind"), [("yolov5n.pt", "a checkpoint"), ("osnet_x0_25.onnx", "an ONNX file")])
def test_a_file_to_be_converted_is_told_from_a_damaged_one(demo_dir: Path, name: str, kind: str) -> None:
    path = demo_dir / name
    with pytest.raises(ModelFormatError) as caught:
        open_archive(path)
    assert str(caught.value) == f"{path} is {kind}: convert it first by `pyasc convert {path}`"


def test_views_are_read_only_and_need_no_copy(small_asc: Path) -> None:
    with open_archive(small_asc) as archive:
        view = archive.graph()
        assert view.readonly
        assert isinstance(view.obj, mmap.mmap)
        with pytest.raises(TypeError):
            view[0] = 1


def test_an_unknown_entry_and_a_closed_archive(small_asc: Path) -> None:
    archive = open_archive(small_asc)
    with pytest.raises(KeyError):
        archive.entry("variants/cpu/other.tflite")
    archive.close()
    archive.close()
    with pytest.raises(ValueError, match=r"small\.asc is closed"):
        archive.graph()


def test_a_view_outlives_the_archive_and_the_last_one_ends_the_mapping(small_asc: Path) -> None:
    def mapped() -> bool:
        return str(small_asc) in Path("/proc/self/maps").read_text()

    with open_archive(small_asc) as archive:
        view = archive.graph()
        assert mapped()
    assert bytes(view[-3:]) == b"end"
    del view, archive
    gc.collect()
    assert not mapped()


def test_closing_gives_files_and_mapping_back(small_asc: Path) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    archive = open_archive(small_asc)
    archive.close()
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert str(small_asc) not in Path("/proc/self/maps").read_text()


def test_python_opens_it_as_a_zip(small_asc: Path) -> None:
    with zipfile.ZipFile(small_asc) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["manifest.json", "graph.onnx", VARIANT]
        assert archive.read(VARIANT) == b"tflite" * 33
        document = json.loads(archive.read("manifest.json"))
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    assert document["labels"] == ["person", "Fußgänger"]
    assert document["sha256"][VARIANT] == hashlib.sha256(b"tflite" * 33).hexdigest()


def test_other_zip_tools_find_no_fault(small_asc: Path) -> None:
    """Whichever of them this machine has; Python's own is always one."""
    commands = [
        [sys.executable, "-m", "zipfile", "-t"],
        ["unzip", "-tqq"],
        ["zip", "-T"],
        ["7z", "t"],
        ["bsdtar", "-tf"],
    ]
    for command in commands:
        if shutil.which(command[0]):
            done = subprocess.run([*command, str(small_asc)], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr


def test_a_file_made_as_the_format_page_shows_is_read(
    small_asc: Path, detector: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Python's zipfile, which has its own dates, versions and permissions."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "asc-format.md").read_text(encoding="utf-8")
    (code,) = [part for part in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "ZipInfo" in part]
    with zipfile.ZipFile(small_asc) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    monkeypatch.chdir(tmp_path)
    exec(code, {"entries": entries})
    with open_archive("model.asc") as read:
        assert read.manifest == detector
        assert bytes(read.graph()) == dict(entries)["graph.onnx"]


def test_every_entry_is_aligned_to_64_bytes(small_asc: Path) -> None:
    raw = small_asc.read_bytes()
    with zipfile.ZipFile(small_asc) as archive:
        for info in archive.infolist():
            header = raw[info.header_offset : info.header_offset + 30]
            start = (
                info.header_offset
                + 30
                + int.from_bytes(header[26:28], "little")
                + int.from_bytes(header[28:], "little")
            )
            assert start % 64 == 0
            assert raw[start : start + info.file_size] == archive.read(info)


@pytest.mark.parametrize("length", [*range(1, 130)])
def test_alignment_holds_for_every_length(tmp_path: Path, detector: Manifest, length: int) -> None:
    path = tmp_path / "m.asc"
    write_archive(path, detector, bytes(length), {VARIANT: b"x"})
    with open_archive(path) as archive:
        assert bytes(archive.graph()) == bytes(length)
        assert bytes(archive.entry(VARIANT)) == b"x"


def test_the_same_model_gives_the_same_bytes(write_small: Callable[[], Path]) -> None:
    first = write_small().read_bytes()
    os.utime(write_small(), (1, 1))
    assert write_small().read_bytes() == first


def test_a_new_file_replaces_the_old_one_while_it_is_read(small_asc: Path, detector: Manifest) -> None:
    with open_archive(small_asc) as old:
        write_archive(small_asc, detector, b"new", {VARIANT: b"newer"})
        assert bytes(old.graph()[-3:]) == b"end"
        with open_archive(small_asc) as new:
            assert bytes(new.graph()) == b"new"
    assert [path.name for path in small_asc.parent.iterdir()] == ["small.asc"]


def test_views_are_taken_as_data(tmp_path: Path, small_asc: Path, detector: Manifest) -> None:
    copy = tmp_path / "copy.asc"
    with open_archive(small_asc) as archive:
        write_archive(copy, detector, archive.graph(), {VARIANT: archive.entry(VARIANT)})
    assert copy.read_bytes() == small_asc.read_bytes()


@pytest.mark.parametrize("variants", [{}, {VARIANT: b"x", "variants/cpu/b": b"x"}, {"graph.onnx": b"x", VARIANT: b"x"}])
def test_variants_that_the_manifest_does_not_name_are_refused(
    tmp_path: Path, detector: Manifest, variants: dict[str, bytes]
) -> None:
    with pytest.raises(ModelFormatError, match="the manifest names"):
        write_archive(tmp_path / "m.asc", detector, b"x", variants)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "manifest.json: name: has 0 characters"),
        ({"labels": ("person",)}, r"manifest.json: outputs\[0\]: shape"),
        ({"format_version": 2}, "needs a newer PyASC"),
        ({"source": {"file": "\ud800"}}, "cannot be printed|not UTF-8"),
    ],
)
def test_the_writer_holds_to_the_rules_of_the_reader(
    tmp_path: Path, detector: Manifest, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelFormatError, match=message):
        write_archive(tmp_path / "m.asc", dataclasses.replace(detector, **change), b"x", {VARIANT: b"x"})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_empty_graph_is_refused(tmp_path: Path, detector: Manifest) -> None:
    with pytest.raises(ModelFormatError, match=r"graph\.onnx is empty"):
        write_archive(tmp_path / "m.asc", detector, b"", {VARIANT: b"x"})
    assert list(tmp_path.iterdir()) == []


def test_a_file_over_4_gib_is_refused_before_anything_is_written(tmp_path: Path, detector: Manifest) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb+") as file:
        file.truncate(2**32)
        with mmap.mmap(file.fileno(), 2**32, access=mmap.ACCESS_READ) as huge, memoryview(huge) as view:
            path = tmp_path / "huge"
            with path.open("wb") as output, pytest.raises(ModelFormatError, match="do not fit"):
                write_zip(output, [("graph.onnx", view)])
            assert path.stat().st_size == 0


def test_a_full_disk_leaves_the_old_file(small_asc: Path, detector: Manifest) -> None:
    """A limit on the size of files stands for the full disk: the same write fails in the same place."""
    before = small_asc.read_bytes()
    code = (
        "import resource, signal, sys\n"
        "from pyasc.models.asc.archive import open_archive, write_archive\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with open_archive(sys.argv[1]) as old: manifest = old.manifest\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"write_archive(sys.argv[1], manifest, bytes(100_000), {{{VARIANT!r}: b'x'}})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(small_asc)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert os.strerror(errno.EFBIG) in done.stderr
    assert small_asc.read_bytes() == before
    assert [path.name for path in small_asc.parent.iterdir()] == ["small.asc"]


def test_absence_and_permission_are_the_systems_own_errors(tmp_path: Path, detector: Manifest) -> None:
    with pytest.raises(FileNotFoundError):
        open_archive(tmp_path / "absent.asc")
    with pytest.raises(FileNotFoundError) as caught:
        write_archive(tmp_path / "absent" / "m.asc", detector, b"x", {VARIANT: b"x"})
    assert caught.value.filename == str(tmp_path / "absent" / "m.asc"), "not that of a temporary file"
