"""`pyasc devices`: what this box has, and why the rest is absent."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from typing import Any

import click

from pyasc.errors import DeviceError
from pyasc.hal.base import DeviceInfo
from pyasc.hal.drivers.cpu import EngineStatus, engine_statuses
from pyasc.hal.registry import DeviceList, discover_devices, open_device

_log = logging.getLogger(__name__)

_MIB = 1 << 20
LOAD_INTERVAL_S = 0.2


@click.command(name="devices")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(as_json: bool) -> None:
    """What this box has, with precisions, memory and temperature, and why other devices are absent."""
    devices = discover_devices()
    measured = {info.name: _telemetry(info) for info in devices}
    engines = engine_statuses()
    if as_json:
        click.echo(json.dumps(_document(devices, measured, engines), indent=1, allow_nan=False))
    else:
        _print_tables(devices, measured, engines)


def _telemetry(info: DeviceInfo) -> dict[str, float | int | str | None]:
    """What a device measures now; a device that cannot be opened is listed all the same."""
    try:
        with open_device(info.name) as device:
            device.telemetry()  # loads are measured from one call to the next
            time.sleep(LOAD_INTERVAL_S)
            return device.telemetry()
    except DeviceError as error:
        _log.warning("%s: no telemetry: %s", info.name, error)
        return {}


def _document(
    devices: DeviceList, measured: dict[str, dict[str, Any]], engines: tuple[EngineStatus, ...]
) -> dict[str, Any]:
    return {
        "devices": [
            {**dataclasses.asdict(info), "peak_ops": dict(info.peak_ops), "telemetry": measured[info.name]}
            for info in devices
        ],
        "absent": dict(devices.absent),
        "cpu_engines": [dataclasses.asdict(engine) for engine in engines],
    }


def _print_tables(devices: DeviceList, measured: dict[str, dict[str, Any]], engines: tuple[EngineStatus, ...]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for info in devices:
        console.print(_device_table(info, measured[info.name]))
        console.print()
    console.print(_engine_table(engines))
    if devices.absent:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("absent", no_wrap=True)
        table.add_column("why", overflow="fold")
        for name, reason in devices.absent.items():
            table.add_row(Text(name), Text(reason))
        console.print()
        console.print(table)


def _device_table(info: DeviceInfo, measured: dict[str, Any]) -> Any:
    """One device, a line for each property: model names are too long for columns on a terminal of 80 characters."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    title = Text.assemble((info.name, "bold cyan"), "  ", info.kind, ", ", "simulated" if info.simulated else "real")
    table.add_row(Text("device"), title)
    model = info.model if info.vendor in info.model else f"{info.vendor} {info.model}"
    rows = {
        "model": model,
        "driver": info.driver,
        "runs models": "yes" if info.executes else "no, memory and transfers only",
        "precisions": ", ".join(info.precisions),
        "cores": _or_dash(info.cores),
        "memory": _memory(info, measured),
        "temperature": _value(measured.get("temperature_c"), "{:.0f} °C"),
        "load": _value(measured.get("load"), "{:.0%}"),
    }
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    return table


def _engine_table(engines: tuple[EngineStatus, ...]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("CPU engine", "version", "formats", "use"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "CPU engine")
    for engine in engines:
        use = f"runs {', '.join(engine.used_for)}" if engine.used_for else engine.reason or "when asked for by name"
        table.add_row(Text(engine.name), Text(_or_dash(engine.version)), Text(", ".join(engine.formats)), Text(use))
    return table


def _memory(info: DeviceInfo, measured: dict[str, Any]) -> str:
    total = _value(info.memory_bytes, "{:,.0f} MiB", _MIB)
    used, free = (measured.get(f"memory_{what}_bytes") for what in ("used", "free"))
    if used is None or free is None:
        return f"{total}, use unknown"
    return f"{total}: {_value(used, '{:,.0f}', _MIB)} used, {_value(free, '{:,.0f}', _MIB)} free"


def _value(number: Any, text: str, unit: float = 1) -> str:
    return "-" if number is None else text.format(number / unit)


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
