"""DeepSORT's association beside deep-sort-realtime's: the same boxes and appearance vectors, frame by frame in turn.

    python benchmarks/tracker.py [--frames 300] [--dim 512] [--objects 10 50 100]

Both trackers run in one process on one thread with the same settings; each frame goes to the one, then to the other, and the order
changes with every frame. The scene is made up: people on straight ways through 1920 x 1080, a tenth of the boxes missing.
Needs `pip install scipy` and `pip install --no-deps deep-sort-realtime==1.3.2` beside `pyasc`; its own requirements would replace
the OpenCV build.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from deep_sort_realtime.deepsort_tracker import DeepSort
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import pyasc
from pyasc.types import Detections

Array = NDArray[np.float32]
SETTINGS: dict[str, Any] = {
    "max_age": 30,
    "n_init": 3,
    "nn_budget": 100,
    "max_iou_distance": 0.7,
    "max_cosine_distance": 0.3,
}
GOAL = 0.5


def scene(objects: int, frames: int, dim: int) -> Iterator[tuple[Array, Array]]:
    """Boxes xyxy (N, 4) and appearance vectors (N, dim) of each frame."""
    random = np.random.default_rng(objects)
    centre, speed = random.uniform([0, 0], [1920, 1080], (objects, 2)), random.uniform(-4, 4, (objects, 2))
    height = random.uniform(60, 200, objects)
    half = np.c_[0.2 * height, 0.5 * height]
    look = random.normal(size=(objects, dim))
    for _ in range(frames):
        centre += speed
        outside = (centre < 0) | (centre > [1920, 1080])
        speed[outside] *= -1
        shown = random.random(objects) > 0.1
        noisy = (centre + random.normal(0, 1, centre.shape))[shown]
        vectors = (look + random.normal(0, 0.3, look.shape))[shown]
        yield np.c_[noisy - half[shown], noisy + half[shown]].astype(np.float32), vectors.astype(np.float32)


def ours() -> tuple[Callable[[Array, Array], None], Callable[[], int]]:
    """PyASC's tracker as a function of a frame, and the number of identities so far."""
    tracker = pyasc.load_plugin("deepsort", **SETTINGS)
    ids: set[int] = set()

    def update(boxes: Array, vectors: Array) -> None:
        count = len(boxes)
        found = Detections(boxes, np.ones(count, np.float32), np.zeros(count, np.int64), ["person"] * count)
        ids.update(tracker.update(found, features=vectors).track_id.tolist())

    return update, lambda: len(ids)


def theirs() -> tuple[Callable[[Array, Array], None], Callable[[], int]]:
    """deep-sort-realtime in the same way."""
    tracker = DeepSort(embedder=None, **SETTINGS)
    ids: set[str] = set()

    def update(boxes: Array, vectors: Array) -> None:
        raw = [([*box[:2], *(box[2:] - box[:2])], 1.0, "person") for box in boxes]
        tracks = tracker.update_tracks(raw, embeds=list(vectors))
        ids.update(track.track_id for track in tracks if track.is_confirmed() and track.time_since_update == 0)

    return update, lambda: len(ids)


def measure(objects: int, frames: int, dim: int) -> dict[str, float]:
    """Milliseconds a frame, the median over the second half of the frames, when the galleries are full; identities."""
    rivals = {"pyasc": ours(), "deep_sort_realtime": theirs()}
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for k, (boxes, vectors) in enumerate(scene(objects, frames, dim)):
        for name in sorted(rivals, reverse=bool(k % 2)):
            begin = time.perf_counter()
            rivals[name][0](boxes, vectors)
            times[name].append(1000 * (time.perf_counter() - begin))
    medians = {f"{name}_ms": statistics.median(row[frames // 2 :]) for name, row in times.items()}
    identities = {f"{name}_ids": float(rival[1]()) for name, rival in rivals.items()}
    ratio = medians["pyasc_ms"] / medians["deep_sort_realtime_ms"]
    return {"objects": float(objects), **medians, "ratio": ratio, **identities}


def main() -> None:
    """Measure, print the table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--dim", type=int, default=512, help="length of an appearance vector; OSNet has 512")
    parser.add_argument("--objects", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks/tracker.json"))
    args = parser.parse_args()
    rows = [measure(objects, args.frames, args.dim) for objects in args.objects]
    title = f"ms a frame, {args.frames} frames, vectors of {args.dim}, one thread; goal: ratio at most {GOAL}"
    table = Table(title=title, title_justify="left")
    for column in ("objects", "PyASC", "deep-sort-realtime", "ratio", "ids", "ids (theirs)"):
        table.add_column(column, justify="right")
    for row in rows:
        ms = [f"{row[key]:.2f}" for key in ("pyasc_ms", "deep_sort_realtime_ms", "ratio")]
        table.add_row(f"{row['objects']:.0f}", *ms, f"{row['pyasc_ids']:.0f}", f"{row['deep_sort_realtime_ids']:.0f}")
    Console().print(table)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    said = {"frames": args.frames, "dim": args.dim, "settings": SETTINGS, "goal_ratio": GOAL, "rows": rows}
    args.output.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
