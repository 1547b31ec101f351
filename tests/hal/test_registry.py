"""Finding devices by name and alias, and drivers of other people."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyasc.errors import DeviceError, DeviceNotFoundError
from pyasc.hal.base import DeviceInfo, Kind, best_device
from pyasc.hal.registry import DeviceList, discover_devices, find_device, open_device

_DRIVER = """
from pyasc.hal.base import Device, DeviceInfo, Discovery

class Toaster(Device):
    def __init__(self, info): self.info = info
    def formats(self): return ("toast",)
    def allocate(self, size_bytes): raise NotImplementedError
    def queue(self): raise NotImplementedError
    def load(self, program, **options): raise NotImplementedError
    def telemetry(self): return {}
    def close(self): pass

def info(name, kind="npu", **more):
    return DeviceInfo(name, "toaster", kind, "Toasters Inc", "T-800", "toaster 1.0", ("int8",), **more)

"""

InstallDriver = Callable[[str, str], None]


@pytest.fixture
def install_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallDriver:
    """`install_driver(name, source)`: what `pip install` of a package with such a driver leaves behind."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, source: str) -> None:
        module = f"pyasc_test_{name}_driver"
        (tmp_path / f"{module}.py").write_text(_DRIVER + source, encoding="utf-8")
        folder = tmp_path / f"{module}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
        (folder / "entry_points.txt").write_text(f"[pyasc.drivers]\n{name} = {module}\n", encoding="utf-8")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def _info(name: str, kind: Kind, *, simulated: bool = False, executes: bool = True) -> DeviceInfo:
    return DeviceInfo(name, name, kind, "vendor", "model", "driver", ("fp32",), simulated=simulated, executes=executes)


def test_every_box_has_a_cpu_and_says_why_it_has_no_npu() -> None:
    devices = discover_devices()
    assert "cpu" in [device.name for device in devices]
    assert "no driver in this version" in devices.absent["hi3559"]
    assert "no driver in this version" in devices.absent["mlu220"]
    for reason in devices.absent.values():
        assert "\n" not in reason


def test_the_best_comes_first() -> None:
    devices = DeviceList(
        [
            _info("cpu", "cpu"),
            _info("listed", "npu", executes=False),
            _info("sim", "npu", simulated=True),
            _info("gpu0", "gpu"),
            _info("gpu1", "gpu"),
        ],
        {},
    )
    assert [device.name for device in devices] == ["gpu0", "gpu1", "cpu", "sim", "listed"]
    assert devices.find("auto").name == "gpu0"
    assert devices.find("gpu").name == "gpu0"
    assert devices.find("npu").name == "sim"
    assert devices.find("auto") == best_device(devices)
    assert len(devices) == 5
    assert devices[:2] == (devices[0], devices[1])


def test_an_alias_finds_a_device_that_is_only_listed_where_no_other_is() -> None:
    devices = DeviceList([_info("cpu", "cpu"), _info("gpu0", "gpu", executes=False)], {})
    assert devices.find("gpu").name == "gpu0"
    assert devices.find("auto").name == "cpu"


@pytest.mark.parametrize("name", ["cpu", "auto", "cpu:0"])
def test_the_cpu_opens_by_name_and_alias(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYASC_OPENCL_CPU", raising=False)
    with open_device(name) as device:
        assert device.info.name == "cpu"


@pytest.mark.parametrize("name", ["hi3559", "mlu220", "mlu220:1", "npu"])
def test_a_device_that_is_absent_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(DeviceNotFoundError, match=r"no driver in this version.*this box has: .*cpu"):
        open_device(name)
    with pytest.raises(DeviceNotFoundError, match=r"no device .*this box has: .*cpu"):
        find_device(name)


@pytest.mark.parametrize("name", ["tpu", "", "CPU", "cpu:1", "../cpu", "gpu0\n"])
def test_an_unknown_device_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(DeviceNotFoundError, match=r"no device .*this box has: .*cpu"):
        open_device(name)
    with pytest.raises(DeviceNotFoundError, match=r"no device .*this box has: .*cpu"):
        find_device(name)


def test_opening_or_finding_the_cpu_loads_no_opencl(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("pyopencl", "pyasc.hal.drivers.opencl"))]:
        monkeypatch.delitem(sys.modules, name)
    open_device("cpu").close()
    assert find_device("cpu:0").name == "cpu"
    assert "pyasc.hal.drivers.opencl" not in sys.modules
    assert "pyopencl" not in sys.modules


def test_a_driver_of_other_people_is_found_and_opened(install_driver: InstallDriver) -> None:
    install_driver(
        "toaster",
        """
def discover():
    return Discovery((info("toaster"), info("toaster:1")), {"grill": "no grill: plug it in"})

def open_device(name):
    return Toaster(info(name))
""",
    )
    devices = discover_devices()
    assert devices[0].name == "toaster"
    assert devices.absent["grill"] == "no grill: plug it in"
    for name, found in {"toaster": "toaster", "toaster:1": "toaster:1", "npu": "toaster", "auto": "toaster"}.items():
        with open_device(name) as device:
            assert device.info.name == found
            assert device.formats() == ("toast",)
    with pytest.raises(DeviceNotFoundError, match="plug it in"):
        open_device("grill")


def test_a_driver_takes_the_place_of_the_note_that_there_is_none(install_driver: InstallDriver) -> None:
    install_driver(
        "nnie",
        """
def discover():
    return Discovery((info("hi3559"),), {"mlu220": "the card is not plugged in"})

def open_device(name):
    return Toaster(info(name))
""",
    )
    devices = discover_devices()
    assert "hi3559" not in devices.absent
    assert devices.absent["mlu220"] == "the card is not plugged in"
    assert devices.find("npu").name == "hi3559"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no luck today')", "RuntimeError: no luck today"),
        ("import a_module_that_is_not_there", "ModuleNotFoundError"),
        ("def discover(): return 1 / 0\ndef open_device(name): pass", "ZeroDivisionError"),
        ("def discover(): return ['cpu']\ndef open_device(name): pass", "returned list instead of Discovery"),
        ("def discover(): return Discovery(('npu0',))\ndef open_device(name): pass", "named str instead of DeviceInfo"),
        ("def discover(): return Discovery((info('x', 'tpu'),))\ndef open_device(name): pass", "of the kind 'tpu'"),
        ("def discover(): return Discovery()", "has no open_device"),
        ("def discover(", "SyntaxError"),
    ],
)
def test_a_driver_that_fails_costs_nobody_else(
    install_driver: InstallDriver, caplog: pytest.LogCaptureFixture, source: str, reason: str
) -> None:
    name = f"broken{abs(hash(source))}"
    install_driver(name, source)
    with caplog.at_level(logging.WARNING):
        devices = discover_devices()
        discover_devices()
    assert reason in devices.absent[name]
    assert "\n" not in devices.absent[name]
    assert "cpu" in [device.name for device in devices]
    assert len([record for record in caplog.records if name in record.getMessage()]) == 1
    with pytest.raises(DeviceNotFoundError, match=name):
        open_device(name)


def test_a_second_device_of_a_name_is_left_out(install_driver: InstallDriver, caplog: pytest.LogCaptureFixture) -> None:
    install_driver(
        "impostor",
        "def discover(): return Discovery((info('cpu', 'cpu'),))\ndef open_device(name): raise AssertionError\n",
    )
    with caplog.at_level(logging.WARNING):
        devices = discover_devices()
    assert [device.vendor for device in devices if device.name == "cpu"] != ["Toasters Inc"]
    assert "impostor" in caplog.text
    with open_device("cpu") as device:
        assert device.info.vendor != "Toasters Inc"


@pytest.mark.parametrize(
    ("body", "reason"),
    [("return 1 / 0", "ZeroDivisionError: division by zero"), ("return 'yes'", "opened str instead of a Device")],
)
def test_a_driver_that_cannot_open_its_device_is_named(install_driver: InstallDriver, body: str, reason: str) -> None:
    name = f"clumsy{abs(hash(body))}"
    install_driver(name, f"def discover(): return Discovery((info('{name}'),))\ndef open_device(name):\n    {body}\n")
    with pytest.raises(DeviceError, match=f"{name}: driver {name}.*{reason}"):
        open_device(name)


def test_an_error_while_opening_reaches_the_caller(install_driver: InstallDriver) -> None:
    install_driver(
        "busy",
        """
from pyasc.errors import DeviceBusyError

def discover():
    return Discovery((info("busy"),))

def open_device(name):
    raise DeviceBusyError("busy: in use by process 1", 17)
""",
    )
    with pytest.raises(DeviceError, match="in use") as caught:
        open_device("busy")
    assert caught.value.code == 17
