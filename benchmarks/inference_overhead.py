"""What the device layer costs: `Executable.run` beside the loop that a user would write with the engine alone.

    python benchmarks/inference_overhead.py [--model yolov5n.tflite …] [--seconds 20] [--threads 2] [--engines model.onnx]

Both sides run the same bytes in the same engine with the same number of threads, in one process, in short blocks that alternate, so
that what else the machine does meets both alike. The ratio is the median of those of neighbouring blocks; the goal is at most 1.05.
Without `--model` the models are `relu` of the device tests, whose call takes microseconds and shows the overhead itself, and
YOLOv5n, converted from the demo's checkpoint.
`--engines` compares the engines that run a model in ONNX instead, and is where the driver's order of preference comes from.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from pyasc.hal.base import Device, Program, TensorInfo
from pyasc.hal.drivers.cpu import engine_statuses
from pyasc.hal.model_tables import Found
from pyasc.hal.onnx_check import check_onnx
from pyasc.hal.registry import open_device

GOAL = 1.05
BLOCK_S = 0.25
DEMO = Path(__file__).resolve().parent.parent / "demo"
GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
MODULES = {"ai-edge-litert": "ai_edge_litert.interpreter", "tflite-runtime": "tflite_runtime.interpreter"}


def bare_interpreter(path: Path, threads: int) -> Any:
    """The engine that the driver prefers, used by hand."""
    name = next(engine.name for engine in engine_statuses() if "tflite" in engine.used_for)
    interpreter = importlib.import_module(MODULES[name]).Interpreter(
        model_content=path.read_bytes(), num_threads=threads
    )
    interpreter.allocate_tensors()
    return interpreter


def program_of(path: Path, interpreter: Any) -> Program:
    """The model with the tables that its file would have in an archive."""
    interpreter.invoke()  # sizes that the file leaves open are known then

    def tables(details: list[dict[str, Any]]) -> tuple[TensorInfo, ...]:
        arrays = [interpreter.get_tensor(detail["index"]) for detail in details]
        return tuple(TensorInfo(d["name"], a.shape, a.dtype.name) for d, a in zip(details, arrays, strict=True))

    inputs, outputs = tables(interpreter.get_input_details()), tables(interpreter.get_output_details())
    return Program(path.name, "tflite", memoryview(path.read_bytes()), inputs, outputs)


def alternate(rivals: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """The median time of a call, in seconds, in each block of each rival.

    Who comes first changes from round to round; a first round is for warming up and not counted.
    """
    medians: dict[str, list[float]] = {name: [] for name in rivals}
    order = list(rivals)
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 2 or time.perf_counter() < end:
        for name in order:
            times = []
            block_end = time.perf_counter() + BLOCK_S
            while len(times) < 3 or time.perf_counter() < block_end:
                started = time.perf_counter()
                rivals[name]()
                times.append(time.perf_counter() - started)
            if rounds:
                medians[name].append(statistics.median(times))
        order.reverse()
        rounds += 1
    return medians


def overhead(device: Device, path: Path, threads: int, seconds: float) -> dict[str, float | str]:
    """Both sides on one model."""
    interpreter = bare_interpreter(path, threads)
    program = program_of(path, interpreter)
    random = np.random.default_rng(0)
    arrays = [(random.random(t.shape, np.float32) * 100).astype(t.dtype) for t in program.inputs]
    input_index = [detail["index"] for detail in interpreter.get_input_details()]
    output_index = [detail["index"] for detail in interpreter.get_output_details()]

    def by_hand() -> list[Any]:
        for index, array in zip(input_index, arrays, strict=True):
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in output_index]

    with device.load(program, threads=threads) as executable:
        for mine, theirs in zip(executable.run(arrays), by_hand(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        times = alternate({"by hand": by_hand, "PyASC": lambda: executable.run(arrays)}, seconds)
        engine = executable.engine
    bare, ours = times["by hand"], times["PyASC"]
    ratios = sorted(mine / theirs for mine, theirs in zip(ours, bare, strict=True))
    return {
        "model": path.name,
        "by hand us": statistics.median(bare) * 1e6,
        "PyASC us": statistics.median(ours) * 1e6,
        "ratio": statistics.median(ratios),
        "quarter of ratios below": ratios[len(ratios) // 4],
        "above": ratios[3 * len(ratios) // 4],
        "engine": engine,
        "threads": threads,
    }


def engines(device: Device, path: Path, threads: int, seconds: float) -> list[dict[str, float | str]]:
    """Every engine that runs a model in ONNX."""

    def tables(found: tuple[Found, ...]) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo(f.name, tuple(size or 1 for size in f.shape or ()), f.dtype) for f in found)

    read = check_onnx(path.read_bytes(), path.name)
    program = Program(path.name, "onnx", memoryview(path.read_bytes()), tables(read.inputs), tables(read.outputs))
    arrays = [np.random.default_rng(0).random(t.shape, np.float32).astype(t.dtype) for t in program.inputs]
    usable = [engine.name for engine in engine_statuses() if engine.version and "onnx" in engine.formats]
    loaded = {name: device.load(program, engine=name, threads=threads) for name in usable}
    try:
        times = alternate(
            {name: functools.partial(executable.run, arrays) for name, executable in loaded.items()}, seconds
        )
        return [
            {"model": path.name, "engine": loaded[name].engine, "threads": threads, "ms": statistics.median(t) * 1e3}
            for name, t in times.items()
        ]
    finally:
        for executable in loaded.values():
            executable.close()


def _yolov5n(folder: Path) -> Path:
    from pyasc.models.asc.archive import open_archive
    from pyasc.models.convert import convert

    path = folder / "yolov5n.tflite"
    with open_archive(convert(DEMO / "yolov5n.pt", folder / "yolov5n.asc")) as archive:
        path.write_bytes(archive.entry("variants/cpu/model.tflite"))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", help="a .tflite file; may be given several times")
    parser.add_argument("--engines", type=Path, help="compare engines on this .onnx file instead")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks/inference_overhead.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_device("cpu") as device:
        models = args.model or [GOLDEN / "relu.tflite", _yolov5n(Path(folder))]
        if args.engines:
            rows = engines(device, args.engines, args.threads, args.seconds)
        else:
            rows = [overhead(device, path, args.threads, args.seconds) for path in models]
    table = Table(title=f"{args.seconds:g} s a model, blocks of {BLOCK_S} s in turn, medians", title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="left" if column in ("model", "engine") else "right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    console = Console()
    console.print(table)
    if not args.engines:
        console.print(
            f"goal: ratio at most {GOAL}, for models that do any work (relu does none: its row is the overhead)"
        )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps({"results": rows, "goal": GOAL}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
