"""`pyasc inspect`: what an `.asc` file holds and which part of it each device of this box would run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pyasc.cli.inspect_view import show
from pyasc.errors import DeviceError, PyascError
from pyasc.hal.base import DeviceInfo, Program
from pyasc.hal.model_tables import compare_tables
from pyasc.hal.onnx_check import check_onnx
from pyasc.hal.registry import discover_devices, open_device
from pyasc.models.asc.archive import Archive, open_archive
from pyasc.models.asc.manifest import GRAPH_PATH
from pyasc.models.asc.manifest_json import manifest_values
from pyasc.models.asc.onnx_summary import summarize_onnx
from pyasc.models.asc.plan import Plan, make_plan
from pyasc.models.model import load_model
from pyasc.models.session import resolve_device


@click.command("inspect")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--load", is_flag=True, help="Also load it on each device of this box, and say what fails.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def command(file: Path, load: bool, as_json: bool) -> int:
    """What the model FILE (.asc) holds, checked, and which part of it each device of this box would run.

    With --load the exit code is 1 when a device that should run it cannot load it.
    """
    with open_archive(file) as archive:
        report = describe(archive, load=load)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        show(report)
    return int(any(row["loaded"] is False for row in report["devices"]))


def describe(archive: Archive, *, load: bool = False) -> dict[str, Any]:
    """All that `pyasc inspect` says, as JSON values.

    Args:
        archive: to describe.
        load: load the model on every device that would run it, as `load_model` does.
    Raises:
        ModelFormatError: the graph is not sound ONNX, or has other inputs and outputs than the manifest says.
    """
    report = {"file": str(archive.path), "size_bytes": archive.size_bytes, **manifest_values(archive.manifest)}
    report["variants"] = [{**variant, **_entry(archive, variant["path"])} for variant in report["variants"]]
    report["graph"] = {"path": GRAPH_PATH, **_entry(archive, GRAPH_PATH), **_graph(archive)}
    devices = discover_devices()
    report["devices"] = [_device(archive, info, load) for info in devices]
    report["default_device"] = _default_device(archive)
    report["absent"] = dict(devices.absent)
    return report


def _entry(archive: Archive, path: str) -> dict[str, Any]:
    return {"size_bytes": archive.size_of(path), "sha256": archive.sha256[path]}


def _graph(archive: Archive) -> dict[str, Any]:
    name, manifest = f"{archive.path}: {GRAPH_PATH}", archive.manifest
    with archive.graph() as view:
        summary = summarize_onnx(view, name)
        tables = check_onnx(view, name)
        program = Program(name, "onnx", view, manifest.inputs, manifest.outputs)
        compare_tables(program, tables.inputs, tables.outputs)
    return {name: getattr(summary, name) for name in summary.__dataclass_fields__}


def _device(archive: Archive, info: DeviceInfo, load: bool) -> dict[str, Any]:
    error = loaded = None
    plan = Plan(None, ())
    try:
        plan = make_plan(archive.manifest, info, _formats(info))
        if load and plan.form is not None:
            loaded = False
            load_model(archive.path, device=info.name).close()
            loaded = True
    except PyascError as failure:
        error = str(failure)
    return {
        "device": info.name,
        "model": info.model,
        "simulated": info.simulated,
        "runs": plan.form.path if plan.form else None,
        "format": plan.form.format if plan.form else None,
        "precision": plan.form.precision if plan.form else None,
        "rejected": [{"path": path, "reason": reason} for path, reason in plan.rejected],
        "loaded": loaded,
        "error": error,
    }


def _default_device(archive: Archive) -> str | None:
    try:
        return resolve_device(archive, None)
    except DeviceError:
        return None


def _formats(info: DeviceInfo) -> tuple[str, ...]:
    if not info.executes:
        return ()
    with open_device(info.name) as device:
        return device.formats()
