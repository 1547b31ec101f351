"""Run rivals side by side: each round runs every rival once, in a process of its own, in turn."""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# A rival does its work and returns how many frames that were; `start()` marks the end of its preparation.
Rival = Callable[[Callable[[], None]], int]
ROUND_TIMEOUT_S = 900.0


def contest(rivals: Mapping[str, Rival], rounds: int) -> dict[str, dict[str, float]]:
    """Frames a second, CPU seconds a frame and peak memory of each rival, the median over the rounds."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, rival in rivals.items():
            results[name].append(_run(name, rival))
    return {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in results.items()
    }


def _run(name: str, rival: Rival) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(rival, sender), name=name)
    process.start()
    sender.close()
    try:
        if not receiver.poll(ROUND_TIMEOUT_S):
            raise TimeoutError(f"{name} took over {ROUND_TIMEOUT_S:.0f} s")
        result: dict[str, float] = receiver.recv()
    finally:
        process.kill()
        process.join()
    return result


def _child(rival: Rival, sender: Any) -> None:
    marks: list[tuple[float, float]] = []

    def start() -> None:
        marks.append((time.perf_counter(), time.process_time()))

    frames = rival(start)
    wall, cpu = time.perf_counter() - marks[-1][0], time.process_time() - marks[-1][1]
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sender.send(
        {"frames": frames, "fps": frames / wall, "cpu_ms_per_frame": 1000 * cpu / frames, "peak_mib": peak_kib / 1024}
    )


def report(title: str, results: Mapping[str, Mapping[str, float]], ratios: Mapping[str, float], target: Path) -> None:
    """Print the table and the ratios, and write both as JSON."""
    console = Console()
    table = Table(title=title, title_justify="left")
    columns = list(next(iter(results.values())))
    for column in ("", *columns):
        table.add_column(column, justify="left" if not column else "right")
    for name, row in results.items():
        table.add_row(name, *(f"{row[column]:.1f}" for column in columns))
    console.print(table)
    for name, ratio in ratios.items():
        console.print(f"{name}: {ratio:.2f}", highlight=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"results": results, "ratios": ratios}, indent=1) + "\n", encoding="utf-8")
