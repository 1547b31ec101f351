"""The package's shape: what is on disk is what setup.cfg ships, and `import pyasc` stays light."""

from __future__ import annotations

import configparser
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import pyasc

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("agent", "firmware_tools", "hal", "models", "plugins", "runtime", "vendors")


@pytest.fixture(scope="module")
def config() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_each_layer_folder_has_its_link_and_its_line(config: configparser.ConfigParser) -> None:
    mapped = dict(line.split(" = ") for line in config["options"]["package_dir"].strip().splitlines())
    assert mapped == {"pyasc": "pyasc", **{f"pyasc.{layer}": layer for layer in LAYERS}}
    for layer in LAYERS:
        link = ROOT / "pyasc" / layer
        assert link.is_symlink()
        assert link.readlink() == Path("..") / layer


def test_setup_cfg_lists_every_package_on_disk(config: configparser.ConfigParser) -> None:
    listed = set(config["options"]["packages"].split())
    on_disk = {"pyasc", "pyasc.cli"}
    for layer in LAYERS:
        for init in (ROOT / layer).rglob("__init__.py"):
            on_disk.add("pyasc." + ".".join(init.parent.relative_to(ROOT).parts))
    assert listed == on_disk


def test_import_is_light() -> None:
    code = "import pyasc, sys; print([m for m in ('numpy', 'cv2', 'cffi', 'pyopencl', 'click') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout.strip() == "[]"


def test_public_names_are_sorted_and_there() -> None:
    assert sorted(pyasc.__all__) == pyasc.__all__
    for name in pyasc.__all__:
        assert getattr(pyasc, name) is not None
    assert set(pyasc.__all__) <= set(dir(pyasc))


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pyasc.nothing


def test_every_verb_of_the_command_has_its_module() -> None:
    from pyasc.cli import _VERBS

    for verb in _VERBS:
        assert importlib.import_module(f"pyasc.cli.{verb}").command.name == verb


def test_unknown_verb_is_a_usage_error() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pyasc", "nothing"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2
    assert "No such command 'nothing'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("options", "shown"), [([], False), (["--debug"], True)])
def test_an_error_that_nobody_foresaw_is_one_line_and_with_debug_a_traceback(options: list[str], shown: bool) -> None:
    code = (
        "import sys, types, click, pyasc.cli as cli; cli._VERBS['boom'] = ''; "
        "boom = click.Command('boom', callback=lambda: {}['nothing']); "
        "sys.modules['pyasc.cli.boom'] = types.SimpleNamespace(command=boom); cli.main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *options, "boom"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert ("Traceback" in result.stderr) == shown
    if not shown:
        assert result.stderr == "pyasc: KeyError: 'nothing' (see pyasc --debug)\n"


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "pyasc", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (result.returncode, result.stderr) == (1, "pyasc: No space left on device\n")
