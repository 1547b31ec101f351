"""The unit file, by systemd's own checker."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

UNIT = Path(__file__).resolve().parents[2] / "systemd" / "pyasc-agent.service"


def test_unit_passes_verify() -> None:
    assert shutil.which("systemd-analyze"), "systemd-analyze is missing: apt-get install systemd"
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(UNIT)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_unit_fits_the_program() -> None:
    from pyasc.agent import control
    from pyasc.cli.agent import DEFAULT_SETTINGS

    text = UNIT.read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert settings["Type"] == "notify"
    assert settings["ExecStart"].endswith(f"pyasc agent run --config {DEFAULT_SETTINGS}")
    assert float(settings["WatchdogSec"]) > 10 * control.TICK_S
    # the time that the agent gives itself to end
    assert float(settings["TimeoutStopSec"]) > control.ENGINE_STOP_TIMEOUT_S + control.FAREWELL_TIMEOUT_S + 3


def test_unit_leaves_the_devices_open() -> None:
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    # Each of these closes /dev/video*, /dev/dri and accelerator cards, ProtectClock by the DeviceAllow that it implies.
    assert not settings.keys() & {"DevicePolicy", "DeviceAllow", "PrivateDevices", "ProtectClock"}
    assert settings["SupplementaryGroups"].split() == ["video", "render"]
