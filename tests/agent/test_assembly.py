"""What a check of a document finds without loading a model or opening a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyasc.agent import assembly
from pyasc.agent.assembly import check_document, check_plugins
from pyasc.agent.config import MAX_FAULTS
from pyasc.errors import DeviceNotFoundError
from pyasc.hal.base import DeviceInfo
from pyasc.hal.registry import find_device


def document(**changes: Any) -> dict[str, Any]:
    gate = {"source": {"url": "x.mp4"}, "detector": {"plugin": "yolov5", "model": "m.asc"}, **changes}
    return {"version": 1, "pipelines": {"gate": gate}}


IMPOSSIBLE = document(
    route=[
        {"when": "resolution > 1080", "device": "hi3559"},
        {"when": "resolution > 720", "device": "cpu"},
        {"device": "tpu"},
    ],
    tracker={"plugin": "deepsort", "device": "mlu220:1"},
)


def test_devices_that_are_not_there_are_named_by_path_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "m.asc").touch()
    faults = {fault.path: fault.message for fault in check_document(IMPOSSIBLE, model_dir=tmp_path)}
    assert sorted(faults) == [
        "pipelines.gate.route[0].device",
        "pipelines.gate.route[2].device",
        "pipelines.gate.tracker.device",
    ]
    assert faults["pipelines.gate.route[0].device"].startswith("no device 'hi3559': no driver in this version")
    assert faults["pipelines.gate.tracker.device"].startswith("no device 'mlu220:1': no driver in this version")
    assert "this box has: " in faults["pipelines.gate.route[2].device"]


def test_devices_are_named_beside_the_faults_of_plugins() -> None:
    gate = document(detector={"plugin": "yolov5", "model": "m.asc", "device": "npu7", "confidenc": 1})["pipelines"]
    assert [fault.path for fault in check_plugins(gate)] == [
        "pipelines.gate.detector.confidenc",
        "pipelines.gate.detector.device",
    ]


def test_devices_of_another_box_are_no_fault_here() -> None:
    assert check_document(IMPOSSIBLE, model_dir=None) == []


def test_devices_that_are_there_are_no_fault(tmp_path: Path) -> None:
    (tmp_path / "m.asc").touch()
    for name in ("cpu", "cpu:0", "auto"):
        detector = {"plugin": "yolov5", "model": "m.asc", "device": name}
        assert check_document(document(detector=detector), model_dir=tmp_path) == []


@pytest.mark.parametrize("part", [None, 5, "x", [], [5, None], {"device": 5}, [{"device": []}]])
def test_parts_of_the_wrong_type_are_passed_over(part: Any) -> None:
    check_plugins({"gate": {"detector": part, "tracker": part, "route": part}, "yard": part})


def test_search_for_devices_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def look(name: str) -> DeviceInfo:
        asked.append(name)
        raise DeviceNotFoundError(f"no device {name}")

    assert find_device("cpu").name == "cpu"
    monkeypatch.setattr(assembly, "find_device", look)
    names = [f"d{number}" for number in range(5 * MAX_FAULTS)]
    faults = check_plugins({name: {"route": [{"device": name}, {"device": "same"}]} for name in names})
    assert len(faults) == MAX_FAULTS
    assert len(asked) == len(set(asked)) <= MAX_FAULTS
