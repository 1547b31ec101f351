"""Writes deepsort.json: a made-up scene and what the published tracker makes of it.

Needs deep-sort-realtime 1.3.2, which carries the published program's tracker. Run: python tests/golden/make_deepsort.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from deep_sort_realtime.deep_sort.detection import Detection
from deep_sort_realtime.deep_sort.nn_matching import NearestNeighborDistanceMetric
from deep_sort_realtime.deep_sort.tracker import Tracker

SETTINGS = {"max_cosine_distance": 0.2, "nn_budget": 10, "max_iou_distance": 0.7, "max_age": 12, "n_init": 3}


def scene(objects: int = 9, frames: int = 80, dim: int = 8) -> list[dict[str, Any]]:
    """People who cross a picture of 640 x 480, hide for a while and come back, with false boxes and noise."""
    random = np.random.default_rng(20170321)
    start, speed = random.uniform([0, 80], [640, 400], (objects, 2)), random.uniform(-5, 5, (objects, 2))
    height = random.uniform(60, 140, objects)
    look = random.normal(size=(objects, dim))
    first, hidden = random.integers(0, 25, objects), random.integers(30, 60, objects)
    away = random.integers(2, 18, objects)
    made = []
    for k in range(frames):
        seen = (k >= first) & ~((k >= hidden) & (k < hidden + away)) & (random.random(objects) > 0.08)
        centre = (start + speed * (k - first)[:, None] + random.normal(0, 1.5, (objects, 2)))[seen]
        half = np.c_[height * 0.2, height * 0.5][seen] * random.normal(1, 0.02, (seen.sum(), 1))
        vectors = (look + random.normal(0, 0.25, look.shape))[seen]
        if random.random() < 0.3:
            centre = np.r_[centre, random.uniform([0, 0], [640, 480], (1, 2))]
            half, vectors = np.r_[half, [[15, 40]]], np.r_[vectors, random.normal(size=(1, dim))]
        made.append(
            {"xyxy": np.c_[centre - half, centre + half].round(2).tolist(), "features": vectors.round(3).tolist()}
        )
    return made


def track(frames: list[dict[str, Any]]) -> None:
    """Add to each frame the confirmed tracks that it shows: id, left, top, right, bottom."""
    metric = NearestNeighborDistanceMetric("cosine", SETTINGS["max_cosine_distance"], int(SETTINGS["nn_budget"]))
    tracker = Tracker(metric, SETTINGS["max_iou_distance"], SETTINGS["max_age"], SETTINGS["n_init"])
    for frame in frames:
        boxes = np.array(frame["xyxy"]).reshape(-1, 4)
        boxes[:, 2:] -= boxes[:, :2]
        tracker.predict()
        tracker.update([Detection(box, 1.0, vector) for box, vector in zip(boxes, frame["features"], strict=True)])
        shown = [one for one in tracker.tracks if one.is_confirmed() and one.time_since_update == 0]
        frame["tracks"] = [[int(one.track_id), *one.to_ltrb().round(3).tolist()] for one in shown]


if __name__ == "__main__":
    frames = scene()
    track(frames)
    said = {
        "made_by": "deep-sort-realtime 1.3.2, tests/golden/make_deepsort.py",
        "settings": SETTINGS,
        "frames": frames,
    }
    lines = json.dumps(said).replace('{"xyxy"', '\n{"xyxy"')
    Path(__file__).with_name("deepsort.json").write_text(lines + "\n")
