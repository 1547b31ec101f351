"""`pyasc convert`: a checkpoint or ONNX file to an `.asc` file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click


@click.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", "target", type=click.Path(path_type=Path), help="The .asc file, or a folder for it.")
@click.option(
    "--precision",
    type=click.Choice(["fp32", "fp16", "int8", "auto"]),
    default="fp32",
    show_default=True,
    help="Of the stored weights; fp16 halves the file.",
)
@click.option("--imgsz", "image_size", type=click.IntRange(1), metavar="N", help="Side of the square input in pixels.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Pictures at a time.")
@click.option(
    "--template",
    type=click.Choice(["yolov5", "osnet", "mobilenetv2", "classifier"]),
    help="The model's family, where it shall not be recognised.",
)
@click.option("--name", help="Of the model; the source's file name if not given.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--dry-run", is_flag=True, help="Convert and show the summary, and write nothing.")
def command(
    source: Path,
    target: Path | None,
    precision: str,
    image_size: int | None,
    batch: int,
    template: str | None,
    name: str | None,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Convert SOURCE, a YOLOv5 checkpoint (.pt) or an appearance model (.onnx, .pt), to an .asc file.

    Nothing that a checkpoint contains is run; one that asks for it is refused.
    """
    from pyasc.models.convert import prepare, target_path, write

    start = time.monotonic()
    path = target_path(source, target)
    with _progress() as progress:
        made = prepare(
            source,
            precision=precision,
            template=template,
            image_size=image_size,
            batch=batch,
            name=name,
            progress=progress,
        )
        if not dry_run:
            progress("writing", 0.9)
            write(made, path)
        progress("done", 1.0)
    summary = _summary(made, path, dry_run, time.monotonic() - start)
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        _print(summary)


def _summary(made: Any, path: Path, dry_run: bool, seconds: float) -> dict[str, Any]:
    manifest = made.manifest
    return {
        "file": str(path),
        "written": not dry_run,
        "name": manifest.name,
        "task": manifest.task,
        "template": manifest.template,
        "precision": manifest.precision,
        "inputs": {tensor.name: list(tensor.shape) for tensor in manifest.inputs},
        "outputs": {tensor.name: list(tensor.shape) for tensor in manifest.outputs},
        "labels": len(manifest.labels),
        "layers": made.layers,
        "parameters": made.parameters,
        "operators": dict(made.operators),
        "size_bytes": {"graph.onnx": len(made.graph), **{entry: len(data) for entry, data in made.variants.items()}},
        "file_bytes": None if dry_run else path.stat().st_size,
        "source": dict(manifest.source),
        "notes": list(made.notes),
        "seconds": round(seconds, 3),
    }


def _print(summary: dict[str, Any]) -> None:
    size = summary["file_bytes"]
    head = f"{summary['file']}: " + (f"{size / 1e6:.1f} MB" if size is not None else "not written")
    shapes = [
        ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in summary[k].items())
        for k in ("inputs", "outputs")
    ]
    print(f"{head}, {summary['name']}, {summary['task']} ({summary['template']}), {summary['precision']}")
    print(f"  {shapes[0]} -> {shapes[1]}" + (f", {summary['labels']} classes" if summary["labels"] else ""))
    print(f"  {summary['layers']} layers, {summary['parameters']:,} parameters, {summary['seconds']:.1f} s")
    print("  operators: " + ", ".join(f"{count} {name}" for name, count in summary["operators"].items()))
    print("  entries: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in summary["size_bytes"].items()))
    if "licence" in summary["source"]:
        print(f"  licence: {summary['source']['licence']}")
    for note in summary["notes"]:
        print(f"  note: {note}")


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal; elsewhere a line for each step."""
    if not sys.stderr.isatty():
        yield lambda step, share: print(f"{share:4.0%} {step}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda step, share: bar.update(task, description=step, completed=share)
