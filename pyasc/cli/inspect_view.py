"""How `pyasc inspect` looks: tables that keep their text whole in a pipe and fold it in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_LABELS_SHOWN = 12
_OPERATORS_SHOWN = 40
# Wide enough for the longest row: a table takes only what it needs.
_PIPE_COLUMNS = 1_000
_LOADED = {None: "", True: ", loads", False: ", does not load"}
# A hash that is folded over several lines helps nobody: a narrow terminal shows its first digits, as version control does.
_WIDE_COLUMNS, _SHA256_DIGITS, _SHORT_DIGITS = 150, 64, 12


def show(report: Mapping[str, Any]) -> None:
    """Print the report of `pyasc.cli.inspect.describe` for people."""
    # Names and labels come from the file: nothing in them is markup.
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS
    digits = _SHA256_DIGITS if console.width >= _WIDE_COLUMNS else _SHORT_DIGITS
    for table in (_facts(report), _parts(report, digits), _plan(report)):
        _print(console, table)


def _print(console: Console, table: Table) -> None:
    if console.is_terminal:
        console.print(table)
        console.print()
        return
    with console.capture() as capture:
        console.print(table)
    # Cells are padded to the width of their column; in a pipe the last one's padding is noise.
    for line in capture.get().splitlines():
        print(line.rstrip())
    print()


def _facts(report: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _fact_rows(report):
        table.add_row(name, value)
    return table


def _fact_rows(report: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    graph = report["graph"]
    yield "model", f"{report['name']}: {report['task']}, template {report['template']}, {report['precision']}"
    yield (
        "file",
        f"{report['file']}, {_size(report['size_bytes'])}, format {report['format_version']}, all hashes right",
    )
    yield from _tensor_rows("input", report["inputs"])
    yield from _tensor_rows("output", report["outputs"])
    yield "preprocess", _preprocess(report["preprocess"])
    yield "postprocess", _postprocess(report["postprocess"])
    yield "labels", _cut(report["labels"], _LABELS_SHOWN)
    yield "operators", _cut([f"{name} {count}" for name, count in graph["operators"].items()], _OPERATORS_SHOWN)
    opsets = ", ".join(f"{domain} {version}" for domain, version in graph["opsets"].items())
    yield "operator sets", f"{opsets} (ONNX IR {graph['ir_version']}, written by {graph['producer'] or 'unknown'})"
    stored = ", ".join(f"{dtype} {_size(size)}" for dtype, size in graph["weight_bytes"].items())
    yield "weights", f"{graph['parameters']:,} values in {graph['weights']} tensors: {stored or 'none'}"
    for key, value in report["source"].items():
        yield f"source {key}", value


def _tensor_rows(kind: str, tensors: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    for tensor in tensors:
        yield kind, f"{tensor['name']}: {_tensor(tensor)}"


def _tensor(tensor: Mapping[str, Any]) -> str:
    sides = " x ".join(str(side) for side in tensor["shape"])
    quantised = f", (q - {tensor['zero_point']}) * {tensor['scale']:g}" if "scale" in tensor else ""
    return f"{sides} {tensor['dtype']}{' ' if tensor['layout'] else ''}{tensor['layout']}{quantised}"


def _preprocess(step: Mapping[str, Any]) -> str:
    border = f" with grey {step['pad_value']}" if step["resize"] == "letterbox" else ""
    numbers = [" ".join(f"{value:g}" for value in step[key]) for key in ("mean", "std")]
    return f"{step['resize']} to {step['width']} x {step['height']}{border}, {step['color']}, mean {numbers[0]}, std {numbers[1]}"


def _postprocess(head: Mapping[str, Any]) -> str:
    if head["type"] == "embedding":
        return f"embedding of {head['dim']} values, normalisation {head['normalize']}"
    if head["type"] == "classification":
        return f"classification, activation {head['activation']}"
    grids = "; ".join(
        f"stride {stride}: {' '.join(f'{width:g}x{height:g}' for width, height in anchors)}"
        for stride, anchors in zip(head["strides"], head["anchors"], strict=True)
    )
    return (
        f"{head['type']}, anchors at {grids}; confidence {head['confidence']:g}, IoU {head['iou']:g}, "
        f"at most {head['max_detections']} boxes"
    )


def _parts(report: Mapping[str, Any], digits: int) -> Table:
    table = _table("part", "for", "format", "precision", "input", "size", "SHA-256")
    for part in report["variants"]:
        table.add_row(
            part["path"],
            part["target"],
            part["format"],
            part["precision"],
            _tensor(part["inputs"][0]),
            _size(part["size_bytes"]),
            part["sha256"][:digits],
        )
    graph = report["graph"]
    table.add_row(
        graph["path"],
        "any",
        "onnx",
        report["precision"],
        _tensor(report["inputs"][0]),
        _size(graph["size_bytes"]),
        graph["sha256"][:digits],
    )
    return table


def _plan(report: Mapping[str, Any]) -> Table:
    table = _table("device", "runs", "why not the others")
    for device in report["devices"]:
        marks = ["simulated"] * device["simulated"] + ["default"] * (device["device"] == report["default_device"])
        name = f"{device['device']} ({', '.join(marks)})" if marks else device["device"]
        reasons = [f"{row['path']}: {row['reason']}" for row in device["rejected"]]
        table.add_row(
            name, f"{device['runs'] or 'nothing'}{_LOADED[device['loaded']]}", "; ".join(reasons) or "there are none"
        )
        if device["error"]:
            table.add_row("", Text("fails", style="bold"), device["error"])
    for name, reason in report["absent"].items():
        table.add_row(name, "absent", reason)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    return table


def _cut(items: Sequence[str], most: int) -> str:
    more = f", ... ({len(items)} in all)" if len(items) > most else ""
    return ", ".join(items[:most]) + more or "none"


def _size(size_bytes: int) -> str:
    if size_bytes < 1000:
        return f"{size_bytes} bytes"
    return f"{size_bytes / 1e3:.1f} kB" if size_bytes < 1e6 else f"{size_bytes / 1e6:.1f} MB"
