"""Models on a device that comes from another package's driver, is shared, fails to open, and is lost."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import pyasc
from pyasc.errors import DeviceBusyError, DeviceLostError

# A driver as somebody else would ship it: the processor under the name of an NPU, which can be busy and be lost.
DRIVER = """
import dataclasses

from pyasc.errors import DeviceBusyError, DeviceLostError
from pyasc.hal.base import Device, Discovery, Executable
from pyasc.hal.drivers import cpu

opened, closed, loaded, state = [], [], [], {"busy": False}


def discover():
    info = dataclasses.replace(cpu.discover().devices[0], name="toy0", kind="npu", model="Toy")
    return Discovery((info,))


def open_device(name):
    if state["busy"]:
        raise DeviceBusyError("toy0: in use by another process", 16)
    opened.append(Toy())
    return opened[-1]


class Toy(Device):
    def __init__(self):
        self.info = discover().devices[0]
        self.lost = False
        self.inner = cpu.open_device("cpu")
        self.formats, self.allocate, self.queue = self.inner.formats, self.inner.allocate, self.inner.queue
        self.telemetry = self.inner.telemetry

    formats = allocate = queue = telemetry = None

    def load(self, program, **options):
        loaded.append(program.name)
        return ToyExecutable(self, self.inner.load(program, **options))

    def close(self):
        closed.append(self)
        self.inner.close()


class ToyExecutable(Executable):
    device = "toy0"

    def __init__(self, toy, inner):
        self.toy, self.inner = toy, inner
        self.precision, self.engine, self.inputs, self.outputs = inner.precision, "toy", inner.inputs, inner.outputs

    def run(self, inputs, timeout_s=30.0):
        if self.toy.lost:
            raise DeviceLostError("toy0: does not answer", 5)
        return self.inner.run(inputs, timeout_s)

    def close(self):
        self.inner.close()
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Installs the driver."""
    (tmp_path / "toy_driver.py").write_text(DRIVER)
    facts = tmp_path / "toy_driver-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-driver\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[pyasc.drivers]\ntoy = toy_driver\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("toy_driver")
    del sys.modules["toy_driver"]


@pytest.fixture
def red() -> np.ndarray:
    image = np.zeros((64, 96, 3), np.uint8)
    image[16:32, 32:48, 2] = 255
    return image


def test_auto_prefers_the_accelerator_and_models_share_it(toy: ModuleType, spots_asc: Path, red: np.ndarray) -> None:
    with pyasc.load_model(spots_asc) as first:
        used = toy.opened[-1]
        opened = len(toy.opened)
        with pyasc.load_model(spots_asc, device="npu") as second:
            assert (first.device, second.device, second.engine) == ("toy0", "toy0", "toy")
            assert len(toy.opened) == opened
            assert second(red).xyxy.tolist() == [[32, 16, 48, 32]]
        assert used not in toy.closed
        assert len(first(red)) == 1
    assert sorted(map(id, toy.closed)) == sorted(map(id, toy.opened))


def test_moving_there_and_back(toy: ModuleType, spots_asc: Path, red: np.ndarray) -> None:
    with pyasc.load_model(spots_asc, device="cpu") as model:
        assert toy.opened == []
        model.config_device("toy0", threads=1)
        assert model.device == "toy0"
        assert len(model(red)) == 1
        assert toy.closed == []
        model.config_device("cpu")
        assert toy.closed == toy.opened
        assert len(model(red)) == 1


def test_a_busy_device(toy: ModuleType, spots_asc: Path, red: np.ndarray, caplog: pytest.LogCaptureFixture) -> None:
    toy.state["busy"] = True
    with pytest.raises(DeviceBusyError) as raised:
        pyasc.load_model(spots_asc, device="toy0")
    assert raised.value.code == 16
    with pyasc.load_model(spots_asc) as model:
        assert model.device == "cpu"
        assert "toy0: in use by another process" in caplog.text
        with pytest.raises(DeviceBusyError):
            model.config_device("toy0")
        assert len(model(red)) == 1


def test_a_lost_device_is_opened_anew(toy: ModuleType, spots_asc: Path, red: np.ndarray) -> None:
    with pyasc.load_model(spots_asc, device="toy0") as first, pyasc.load_model(spots_asc, device="toy0") as second:
        (dead,) = toy.opened
        dead.lost = True
        with pytest.raises(DeviceLostError) as raised:
            first(red)
        assert raised.value.code == 5
        first.config_device("toy0")
        assert len(first(red)) == 1
        assert toy.opened[-1] is not dead
        # The other model still holds the dead one, until it moves too.
        assert toy.closed == []
        with pytest.raises(DeviceLostError):
            second(red)
        second.config_device("toy0")
        assert toy.closed == [dead]
        assert len(second(red)) == 1
        assert len(toy.opened) == 2
    assert len(toy.closed) == 2


def test_a_prepared_device_is_moved_to_without_loading(spots_asc: Path, toy: ModuleType, red: np.ndarray) -> None:
    with pyasc.load_model(spots_asc, device="cpu") as model:
        model.prepare_device("toy0", threads=1)
        prepared = len(toy.loaded)
        model.prepare_device("toy0", threads=1)
        model.config_device("toy0", threads=1)
        assert (model.device, len(toy.loaded)) == ("toy0", prepared)
        assert len(model(red)) > 0
        model.config_device("cpu")
        model.config_device("toy0", threads=1)
        assert (model.device, len(toy.loaded)) == ("toy0", prepared)
        model.config_device("toy0", threads=2)
        assert len(toy.loaded) == prepared + 1
    assert len(toy.opened) == len(toy.closed)


def test_a_prepared_device_that_was_lost_is_opened_anew(spots_asc: Path, toy: ModuleType, red: np.ndarray) -> None:
    with pyasc.load_model(spots_asc, device="cpu") as model:
        model.prepare_device("cpu")
        model.prepare_device("toy0")
        model.config_device("toy0")
        toy.opened[-1].lost = True
        with pytest.raises(DeviceLostError):
            model(red)
        model.config_device("cpu")
        assert len(model(red)) > 0
        model.prepare_device("toy0")
        model.config_device("toy0")
        assert len(model(red)) > 0
        assert len(toy.opened) == 2
    assert len(toy.opened) == len(toy.closed)


def test_a_closed_model_prepares_nothing(spots_asc: Path, toy: ModuleType) -> None:
    model = pyasc.load_model(spots_asc, device="cpu")
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model.prepare_device("toy0")
    assert len(toy.opened) == len(toy.closed)
