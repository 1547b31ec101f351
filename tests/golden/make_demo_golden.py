"""Writes demo_detections.json: what the reference's own ONNX export of YOLOv5n finds in frames of the demo clip.

Needs the file that `export.py --weights yolov5n.pt --include onnx` of YOLOv5 v7.0 makes (640 x 640, the decoding inside), and
onnxruntime. Shares no code with PyASC. Run: python tests/golden/make_demo_golden.py yolov5n_640.onnx
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime

FRAMES = (0, 75, 195, 255, 330, 540)
SIZE, CONFIDENCE, IOU = 640, 0.25, 0.45
CLIP = Path(__file__).resolve().parents[2] / "demo" / "one-by-one-person.mp4"


def letterbox(image: Any) -> tuple[Any, float, int, int]:
    height, width = image.shape[:2]
    ratio = min(SIZE / height, SIZE / width)
    new_width, new_height = round(width * ratio), round(height * ratio)
    left, top = round((SIZE - new_width) / 2 - 0.1), round((SIZE - new_height) / 2 - 0.1)
    canvas = np.full((SIZE, SIZE, 3), 114, np.uint8)
    if (new_width, new_height) != (width, height):
        image = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    canvas[top : top + new_height, left : left + new_width] = image
    return canvas, ratio, left, top


def overlap(box: Any, others: Any) -> Any:
    size = np.minimum(box[2:4], others[:, 2:4]) - np.maximum(box[:2], others[:, :2])
    inner = size.clip(0).prod(1)
    return inner / ((box[2:4] - box[:2]).prod() + (others[:, 2:4] - others[:, :2]).prod(1) - inner)


def detect(session: Any, image: Any) -> list[list[float]]:
    """Rows of x1, y1, x2, y2 in pixels of the frame, score, class; the highest score first."""
    canvas, ratio, left, top = letterbox(image)
    tensor = np.ascontiguousarray(canvas[:, :, ::-1].transpose(2, 0, 1)[None], np.float32) / 255
    raw = session.run(None, {"images": tensor})[0][0]
    raw = raw[raw[:, 4] > CONFIDENCE]
    scores = raw[:, 5:] * raw[:, 4:5]
    rows = np.c_[raw[:, :2] - raw[:, 2:4] / 2, raw[:, :2] + raw[:, 2:4] / 2, scores.max(1), scores.argmax(1)]
    rows = rows[rows[:, 4] > CONFIDENCE]
    rows = rows[np.argsort(-rows[:, 4], kind="stable")]
    found = []
    while len(rows):
        best, rows = rows[0], rows[1:]
        found.append(best)
        rows = rows[(rows[:, 5] != best[5]) | (overlap(best, rows) <= IOU)]
    height, width = image.shape[:2]
    for row in found:
        row[:4] = (row[:4] - [left, top, left, top]) / ratio
        row[:4] = row[:4].clip(0, [width, height, width, height])
    return [[*(round(float(v), 3) for v in row[:4]), round(float(row[4]), 5), int(row[5])] for row in found]


def main() -> None:
    model = Path(sys.argv[1])
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    clip = cv2.VideoCapture(str(CLIP))
    frames, shas = {}, {}
    for number in range(max(FRAMES) + 1):
        good, image = clip.read()
        assert good, number
        if number in FRAMES:
            frames[str(number)] = detect(session, image)
            shas[str(number)] = hashlib.sha256(image.tobytes()).hexdigest()
    clip.release()
    golden = {
        "tool": f"onnxruntime {onnxruntime.__version__}, opencv {cv2.__version__}, numpy {np.__version__}",
        "command": f"python tests/golden/make_demo_golden.py {model.name}",
        "model_sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "row": "x1, y1, x2, y2 in pixels of the frame, score, class",
        "settings": {"confidence": CONFIDENCE, "iou": IOU, "letterbox": SIZE},
        "frame_bgr_sha256": shas,
        "frames": frames,
    }
    target = Path(__file__).with_name("demo_detections.json")
    head = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in golden.items() if k != "frames")
    body = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in frames.items())
    target.write_text(f'{{\n{head},\n"frames": {{\n{body}\n}}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
