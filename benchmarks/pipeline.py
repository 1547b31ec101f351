"""The whole pipeline beside the bare inference loop of the same engine and beside the script a user would write today.

    python benchmarks/pipeline.py [--frames 300] [--rounds 3]

All three run the same yolov5n variant in the same engine with the same number of threads. The plain script is the usual one: OpenCV
reads and letterboxes, NumPy decodes the heads, OpenCV suppresses, the same OSNet makes the embeddings, deep-sort-realtime tracks.
Of each the first frame, with the loading before it, is not timed.
Needs `pip install scipy` and `pip install --no-deps deep-sort-realtime==1.3.2` beside `pyasc[demo]`; its own requirements would
replace the OpenCV build.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contest import contest, report

DEMO = Path(__file__).resolve().parent.parent / "demo"
CLIP = DEMO / "one-by-one-person.mp4"
CONFIDENCE, IOU = 0.25, 0.45
PERSON = 0


def _interpreter(asc: Path, threads: int) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    from pyasc.models.asc.archive import open_archive

    with open_archive(asc) as archive:
        variant = next(v for v in archive.manifest.variants if v.target == "cpu")
        interpreter = Interpreter(model_content=bytes(archive.entry(variant.path)), num_threads=threads)
    interpreter.allocate_tensors()
    return interpreter


def bare(start: Callable[[], None], *, detector: Path, embedder: Path, frames: int, threads: int) -> int:
    """Inference of the detector alone, on one picture again and again."""
    import numpy as np

    interpreter = _interpreter(detector, threads)
    tensor = interpreter.get_input_details()[0]
    interpreter.set_tensor(tensor["index"], np.random.default_rng(0).random(tensor["shape"], np.float32))
    interpreter.invoke()
    start()
    for _ in range(frames):
        interpreter.invoke()
    return frames


def pyasc_pipeline(start: Callable[[], None], *, detector: Path, embedder: Path, frames: int, threads: int) -> int:
    """Decode, detect, embed and track with PyASC."""
    import pyasc

    model = pyasc.load_plugin("yolov5", model=str(detector), device="cpu", threads=threads, classes=("person",))
    tracker = pyasc.load_plugin("deepsort", model=str(embedder), device="cpu")
    with pyasc.Stream(str(CLIP)) as stream, pyasc.EdgeAnalyzer(model, tracker) as analyzer:
        results = analyzer.run(stream)
        next(results)
        start()
        return sum(1 for _ in itertools.islice(results, frames))


def plain_script(start: Callable[[], None], *, detector: Path, embedder: Path, frames: int, threads: int) -> int:
    """The same work as people write it: one thing after the other."""
    import cv2
    import numpy as np
    from deep_sort_realtime.deepsort_tracker import DeepSort

    from pyasc.models.asc.archive import open_archive

    with open_archive(detector) as archive:
        head = archive.manifest.postprocess
    network, reid = _interpreter(detector, threads), _interpreter(embedder, threads)
    tracker = DeepSort(max_age=30, n_init=3, embedder=None)
    capture = cv2.VideoCapture(str(CLIP))
    for count in range(-1, frames):
        if count == 0:
            start()
        got, image = capture.read()
        if not got:
            return count
        canvas, scale, left, top = _letterbox(image)
        boxes, scores, classes = _decode(_invoke(network, canvas), head)
        keep = cv2.dnn.NMSBoxes(boxes.tolist(), scores.tolist(), CONFIDENCE, IOU)
        raw = []
        for i in np.array(keep, int).reshape(-1):
            if classes[i] == PERSON:
                x, y, w, h = (boxes[i] - [left, top, 0, 0]) / scale
                raw.append(([x, y, w, h], float(scores[i]), int(classes[i])))
        embeds = [_embed(reid, image, box) for box, _, _ in raw]
        tracker.update_tracks(raw, embeds=embeds)
    return frames


def _letterbox(image: Any, size: int = 640) -> tuple[Any, float, int, int]:
    import cv2
    import numpy as np

    height, width = image.shape[:2]
    scale = min(size / height, size / width)
    new = round(width * scale), round(height * scale)
    left, top = (size - new[0]) // 2, (size - new[1]) // 2
    resized = cv2.resize(image, new, interpolation=cv2.INTER_LINEAR)
    canvas = cv2.copyMakeBorder(
        resized, top, size - new[1] - top, left, size - new[0] - left, cv2.BORDER_CONSTANT, value=(114, 114, 114)
    )
    return cv2.cvtColor(canvas, cv2.COLOR_BGR2RGB).astype(np.float32)[None] / 255, scale, left, top


def _invoke(interpreter: Any, array: Any) -> list[Any]:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(output["index"]) for output in interpreter.get_output_details()]


def _decode(outputs: list[Any], head: Any) -> tuple[Any, Any, Any]:
    import numpy as np

    boxes, scores, classes = [], [], []
    for output in outputs:
        rows, columns = output.shape[1:3]
        level = head.strides.index(640 // rows)
        anchors = np.array(head.anchors[level], np.float32)
        values = 1 / (1 + np.exp(-output.reshape(rows, columns, len(anchors), -1)))
        grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1)[:, :, None]
        centre = (values[..., :2] * 2 - 0.5 + grid) * head.strides[level]
        size = (values[..., 2:4] * 2) ** 2 * anchors
        boxes.append(np.concatenate([centre - size / 2, size], -1).reshape(-1, 4))
        confidence = values[..., 4:5] * values[..., 5:]
        scores.append(confidence.max(-1).reshape(-1))
        classes.append(confidence.argmax(-1).reshape(-1))
    joined = [np.concatenate(part) for part in (boxes, scores, classes)]
    keep = joined[1] > CONFIDENCE
    return joined[0][keep], joined[1][keep], joined[2][keep]


def _embed(reid: Any, image: Any, box: list[float]) -> Any:
    import cv2
    import numpy as np

    x, y, w, h = (round(v) for v in box)
    crop = image[max(y, 0) : max(y + h, y + 1), max(x, 0) : max(x + w, x + 1)]
    picture = cv2.cvtColor(cv2.resize(crop, (128, 256)), cv2.COLOR_BGR2RGB).astype(np.float32) / 255
    picture = (picture - np.array([0.485, 0.456, 0.406], np.float32)) / np.array([0.229, 0.224, 0.225], np.float32)
    shape = reid.get_input_details()[0]["shape"]
    return _invoke(reid, np.repeat(picture[None], shape[0], 0))[0][0]


def main() -> None:
    """Run the contest and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["fp32", "fp16"], default="fp16")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks/pipeline.json"))
    args = parser.parse_args()
    from pyasc.models.convert import convert

    with tempfile.TemporaryDirectory() as folder:
        detector, embedder = Path(folder, "yolov5n.asc"), Path(folder, "osnet.asc")
        convert(DEMO / "yolov5n.pt", detector, precision=args.precision)
        convert(DEMO / "osnet_x0_25.onnx", embedder, precision=args.precision)
        common = {"detector": detector, "embedder": embedder, "frames": args.frames, "threads": args.threads}
        results = contest(
            {
                "bare inference": functools.partial(bare, **common),
                "PyASC pipeline": functools.partial(pyasc_pipeline, **common),
                "plain script": functools.partial(plain_script, **common),
            },
            args.rounds,
        )
    fps = {name: row["fps"] for name, row in results.items()}
    ratios = {
        "PyASC / bare inference (goal 0.85)": fps["PyASC pipeline"] / fps["bare inference"],
        "PyASC / plain script (goal 1.5)": fps["PyASC pipeline"] / fps["plain script"],
    }
    report(
        f"{args.frames} frames of {CLIP.name}, {args.threads} threads, {args.precision}", results, ratios, args.output
    )


if __name__ == "__main__":
    main()
