"""YOLOv5 in its sizes s, m, l and x, made of the demo's n so that the answers are known.

The sizes differ in two numbers (`models/yolov5?.yaml` of YOLOv5 v7.0): how wide layers are, and how many bottlenecks follow each
other. Each channel of n is repeated k times and every weight divided by k, which leaves every value as it was; the bottlenecks that
are added add zero to their input (in the neck too, where those of the released models do not add). So the large network
computes what n computes, with as many weights as its authors publish.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from pyasc.models.conversion.checkpoint import load_checkpoint
from pyasc.models.conversion.pickle_values import Record
from pyasc.models.conversion.templates import Converted, Options, from_checkpoint
from pyasc.models.conversion.torch_values import Storage, Tensor


class Size(NamedTuple):
    """A size beside n: width as a multiple of n's, bottlenecks of its C3 blocks, and the weights of its fused network.

    `parameters` is what the authors' own summary of the released model prints.
    """

    width: int
    bottlenecks: tuple[int, int, int, int]
    parameters: int


SIZES = {
    "n": Size(1, (1, 2, 3, 1), 1_867_405),
    "s": Size(2, (1, 2, 3, 1), 7_225_885),
    "m": Size(3, (2, 4, 6, 2), 21_172_173),
    "l": Size(4, (3, 6, 9, 3), 46_533_693),
    "x": Size(5, (4, 8, 12, 4), 86_705_005),
}
# The C3 blocks: of the backbone in the order of `bottlenecks`, of the neck all as many as the last one.
BACKBONE, NECK = ("2", "4", "6", "8"), ("13", "17", "20", "23")


def modules(record: Record) -> dict[str, Record]:
    found: dict[str, Record] = record.state["_modules"]
    return found


def set_tensor(place: dict[str, Any], key: str, values: NDArray[Any]) -> None:
    stored = np.ascontiguousarray(values, "<f4")
    storage = Storage("FloatStorage", stored.size, stored.dtype, lambda: memoryview(stored).cast("B"))
    place[key] = Tensor(storage, 0, stored.shape, tuple(step // 4 for step in stored.strides))


def widen(record: Record, k: int, first: bool = False, last: bool = False) -> None:
    """Repeat the channels of all convolutions and normalisations below a module."""
    for inner in modules(record).values():
        widen(inner, k, first, last)
    kept = [record.state.get(name) or {} for name in ("_parameters", "_buffers")]
    for place, key in [(part, key) for part in kept for key, value in part.items() if value is not None]:
        values = place[key].array()
        if values.ndim == 1 and not last:
            set_tensor(place, key, np.repeat(values, k))
        elif values.ndim == 4:
            outputs = values if last else np.repeat(values, k, 0)
            set_tensor(place, key, outputs if first else np.repeat(outputs, k, 1).astype(np.float32) / k)


def deepen(block: Record, count: int) -> None:
    """Add bottlenecks that give back what they get: x + silu(0)."""
    chain = modules(modules(block)["m"])
    while len(chain) < count:
        added = copy.deepcopy(chain["0"])
        added.state["add"] = True
        last = modules(modules(added)["cv2"])
        set_tensor(
            last["conv"].state["_parameters"], "weight", np.zeros(last["conv"].state["_parameters"]["weight"].shape)
        )
        for place, key in ((last["bn"].state["_parameters"], "bias"), (last["bn"].state["_buffers"], "running_mean")):
            set_tensor(place, key, np.zeros(place[key].shape))
        chain[str(len(chain))] = added


def grown(demo_dir: Path, size: Size) -> Converted:
    tree = load_checkpoint(demo_dir / "yolov5n.pt")
    layers = modules(modules(tree["model"])["model"])
    for number, layer in layers.items():
        widen(layer, size.width, first=number == "0", last=number == "24")
    counts = dict(zip(BACKBONE, size.bottlenecks, strict=True)) | dict.fromkeys(NECK, size.bottlenecks[3])
    for number, count in counts.items():
        deepen(layers[number], count)
    return from_checkpoint(tree, None, Options("fp32", (64, 96), 1, "grown"))


def outputs(made: Converted, picture: NDArray[Any]) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(made.model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"images": picture}))


PICTURE = np.random.default_rng(0).random((1, 3, 64, 96), np.float32)


@pytest.fixture(scope="module")
def smallest(demo_dir: Path) -> Converted:
    """N, whose outputs test_convert_yolov5.py compares with the reference's."""
    return grown(demo_dir, SIZES["n"])


def test_n_has_the_weights_that_its_authors_count(smallest: Converted) -> None:
    assert smallest.parameters == SIZES["n"].parameters


@pytest.mark.parametrize("name", ["s", "m", "l", "x"])
def test_each_size_has_its_weights_and_computes_what_n_does(demo_dir: Path, smallest: Converted, name: str) -> None:
    made = grown(demo_dir, SIZES[name])
    assert made.parameters == SIZES[name].parameters
    for found, expected in zip(outputs(made, PICTURE), outputs(smallest, PICTURE), strict=True):
        # Sums of k times as many products, in float32.
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
