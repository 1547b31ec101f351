"""The Python binding of CNRT and CNDEV, on the simulators and on libraries that are wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyasc.errors import DeviceLostError, DeviceMemoryError, DeviceTimeoutError
from pyasc.vendors.cambricon.status import Statuses

ABI = json.loads((Path(__file__).resolve().parents[2] / "golden" / "cambricon_abi.json").read_bytes())
LOOK = """
from pyasc.vendors.cambricon import cndev, cnrt
card, figures = cnrt.cnrt(), cndev.cndev()
print(card.version_text, card.simulated, figures.simulated, sum(cnrt.outstanding(card).values()))
print(figures.memory(0), figures.temperature_c(0), figures.power_w(0), figures.load(0), figures.driver(0))
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin", **environment}
    )


def test_the_simulator_is_opened_where_it_is_asked_for(libraries: Path) -> None:
    done = run(LOOK, PYASC_SIMULATE="mlu220")
    assert done.stdout.splitlines() == ["4.10.1 True True 0", f"({4 << 30}, 0) 51.0 3.7 0.0 4.9.2"], done.stderr


def test_a_file_that_is_named_is_opened(libraries: Path) -> None:
    named = {"PYASC_CNRT_LIB": str(libraries / "libcnrt.so"), "PYASC_CNDEV_LIB": str(libraries / "libcndev.so")}
    assert run(LOOK, **named).stdout.startswith("4.10.1 True True 0")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {},
            "DeviceNotFoundError: there is no libcnrt.so; install Cambricon's Neuware with CNRT 4, or let PYASC_CNRT_LIB",
        ),
        ({"PYASC_CNRT_LIB": "/none.so"}, "DeviceNotFoundError: there is no /none.so; install"),
        (
            {"PYASC_CNRT_LIB": "libm.so.6"},
            "DeviceNotFoundError: libm.so.6 is another library than Cambricon's Neuware with",
        ),
        ({"PYASC_CNRT_LIB": __file__}, f"DeviceNotFoundError: {__file__} cannot be opened: "),
        ({"PYASC_SIMULATE": "mlu370"}, "ConfigError: PYASC_SIMULATE: there is no simulator of 'mlu370'"),
        ({"PYASC_SIMULATE": "mlu220", "PYASC_SIM": "mlu220.api=50000"}, "is CNRT 5.0.0; PyASC knows 4.4 to 4.10"),
    ],
)
def test_a_library_that_is_missing_or_wrong_is_one_line(
    libraries: Path, environment: dict[str, str], message: str
) -> None:
    done = run("from pyasc.vendors.cambricon import cnrt; cnrt.cnrt()", **environment)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("version", "number"), [("4.4.0", 40400), ("4.7.12", 40712), ("4.10.1", 41001)])
def test_status_codes_have_the_names_of_the_version(cnrt: Any, version: str, number: int) -> None:
    newest = dict(cnrt.ffi.typeof("cnrtRet_t").relements)
    statuses = Statuses(number, newest)
    for name, code in ABI["cnrt"]["statuses"][version].items():
        # What 4.4 called a stream is a queue since.
        assert statuses.numbers[name.replace("_STREAM", "_QUEUE")] == code, name


@pytest.mark.parametrize(
    ("name", "kind"),
    [("TIMEOUT", DeviceTimeoutError), ("NOMEM", DeviceMemoryError), ("NODEV", DeviceLostError)],
)
def test_a_failed_call_is_the_exception_of_its_kind(cnrt: Any, name: str, kind: Callable[..., Exception]) -> None:
    for version, number in (("4.4.0", 40400), ("4.10.1", 41001)):
        code = ABI["cnrt"]["statuses"][version][f"CNRT_RET_ERR_{name}"]
        error = Statuses(number, dict(cnrt.ffi.typeof("cnrtRet_t").relements)).error(code, "mlu220: cnrtMalloc")
        assert type(error) is kind
        assert error.code == code
        assert str(error) == f"mlu220: cnrtMalloc failed: CNRT_RET_ERR_{name} ({code})"
