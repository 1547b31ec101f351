"""`pyasc inspect`: what an `.asc` file holds and which part of it each device of this box would run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pyasc.cli.inspect_view import show
from pyasc.errors import DeviceError
from pyasc.hal.base import DeviceInfo
from pyasc.hal.registry import discover_devices, open_device
from pyasc.models.archive import Archive, open_archive
from pyasc.models.manifest import GRAPH_PATH, Manifest
from pyasc.models.manifest_json import manifest_values
from pyasc.models.onnx_summary import summarize_onnx
from pyasc.models.plan import Plan, make_plan


@click.command("inspect")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def command(file: Path, as_json: bool) -> None:
    """What the model FILE (.asc) holds, checked, and which part of it each device of this box would run."""
    with open_archive(file) as archive:
        report = describe(archive)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        show(report)


def describe(archive: Archive) -> dict[str, Any]:
    """All that `pyasc inspect` says, as JSON values.

    Raises:
        ModelFormatError: the graph is not sound ONNX.
    """
    report = {"file": str(archive.path), "size_bytes": archive.size_bytes, **manifest_values(archive.manifest)}
    report["variants"] = [{**variant, **_entry(archive, variant["path"])} for variant in report["variants"]]
    report["graph"] = {"path": GRAPH_PATH, **_entry(archive, GRAPH_PATH), **_graph(archive)}
    devices = discover_devices()
    report["devices"] = [_device(archive.manifest, info) for info in devices]
    report["absent"] = dict(devices.absent)
    return report


def _entry(archive: Archive, path: str) -> dict[str, Any]:
    return {"size_bytes": archive.size_of(path), "sha256": archive.sha256[path]}


def _graph(archive: Archive) -> dict[str, Any]:
    with archive.graph() as view:
        summary = summarize_onnx(view, f"{archive.path}: {GRAPH_PATH}")
    return {name: getattr(summary, name) for name in summary.__dataclass_fields__}


def _device(manifest: Manifest, info: DeviceInfo) -> dict[str, Any]:
    error = None
    plan = Plan(None, ())
    try:
        plan = make_plan(manifest, info, _formats(info))
    except DeviceError as failure:
        error = str(failure)
    return {
        "device": info.name,
        "model": info.model,
        "simulated": info.simulated,
        "runs": plan.form.path if plan.form else None,
        "format": plan.form.format if plan.form else None,
        "precision": plan.form.precision if plan.form else None,
        "rejected": [{"path": path, "reason": reason} for path, reason in plan.rejected],
        "error": error,
    }


def _formats(info: DeviceInfo) -> tuple[str, ...]:
    if not info.executes:
        return ()
    with open_device(info.name) as device:
        return device.formats()
