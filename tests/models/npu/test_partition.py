"""Which operators run on an accelerator and which on the CPU, and in how many parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from pyasc.models.npu.extract import extract
from pyasc.models.npu.partition import Part, partition
from pyasc.models.tflite.fuse import fuse
from pyasc.models.tflite.graph import Graph, read_graph

RNG = np.random.default_rng(0)


def conv(source: str, target: str) -> tuple[onnx.NodeProto, dict[str, Any]]:
    weights = RNG.standard_normal((4, 4, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", [source, f"w_{target}"], [target], target, pads=[1, 1, 1, 1])
    return node, {f"w_{target}": weights}


def node(kind: str, sources: str, target: str, **attributes: Any) -> tuple[onnx.NodeProto, dict[str, Any]]:
    return helper.make_node(kind, sources.split(), [target], target, **attributes), {}


def network(*parts: tuple[onnx.NodeProto, dict[str, Any]], outputs: str = "y") -> onnx.ModelProto:
    graph = helper.make_graph(
        [part for part, _ in parts],
        "test",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs.split()],
        [onnx.numpy_helper.from_array(array, name) for _, arrays in parts for name, array in arrays.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])


def cut(model: onnx.ModelProto) -> tuple[Graph, list[Part], dict[str, str]]:
    graph = read_graph(model, {node.op_type for node in model.graph.node})
    fuse(graph)
    parts, refusals = partition(graph)
    return graph, parts, {str(refusal.node): refusal.reason for refusal in refusals}


def summary(parts: Sequence[Part]) -> list[tuple[str, list[str]]]:
    return [(part.on, [node.name for node in part.nodes]) for part in parts]


def test_a_network_that_the_accelerator_knows_is_one_part() -> None:
    _, parts, refused = cut(network(conv("x", "a"), node("Sigmoid", "a", "s"), node("Mul", "a s", "b"), conv("b", "y")))
    assert [part.on for part in parts] == ["npu"]
    assert (parts[0].inputs, parts[0].outputs) == (("x",), ("y",))
    assert refused == {}


def test_an_unknown_operator_runs_on_the_cpu_between_two_parts() -> None:
    softmax = node("Softmax", "a", "b", axis=1)
    _, parts, refused = cut(network(conv("x", "a"), softmax, conv("b", "y")))
    assert summary(parts) == [("npu", ["a"]), ("cpu", ["b"]), ("npu", ["y"])]
    assert [(part.inputs, part.outputs) for part in parts] == [(("x",), ("a",)), (("a",), ("b",)), (("b",), ("y",))]
    assert refused == {"Softmax 'b'": "the accelerator has no such operator"}


def test_branches_beside_each_other_share_their_parts() -> None:
    """One change for two unknown operators that do not depend on each other, and none for what needs neither."""
    branches = [node("Softmax", "a", "s", axis=1), node("Exp", "a", "e"), conv("a", "c")]
    _, parts, _ = cut(network(conv("x", "a"), *branches, node("Sum", "s e c", "d"), conv("d", "y")))
    assert summary(parts) == [("npu", ["a", "c"]), ("cpu", ["s", "e"]), ("npu", ["d", "y"])]
    assert parts[2].inputs == ("s", "e", "c")


def test_little_work_between_operators_of_the_cpu_stays_there() -> None:
    chain = [
        node("Exp", "a", "b"),
        node("Relu", "b", "c"),
        node("MaxPool", "c", "d", kernel_shape=[2, 2]),
        node("Exp", "d", "y"),
    ]
    _, parts, refused = cut(network(conv("x", "a"), *chain))
    assert [part.on for part in parts] == ["npu", "cpu"]
    assert "changing places" in refused["MaxPool 'd'"]


def test_a_vector_in_the_accelerators_own_order_is_not_shown_to_the_cpu() -> None:
    matrix = helper.make_node("Gemm", ["f", "m"], ["g"], "g")
    known = matrix, {"m": RNG.standard_normal((256, 5)).astype(np.float32)}
    transposed = helper.make_node("Gemm", ["f", "t"], ["h"], "h", transA=1)
    unknown = transposed, {"t": RNG.standard_normal((1, 3)).astype(np.float32)}
    _, parts, refused = cut(network(conv("x", "a"), node("Flatten", "a", "f"), known, unknown, outputs="g h"))
    assert summary(parts) == [("npu", ["a"]), ("cpu", ["f", "g", "h"])]
    assert "another order" in refused["Flatten 'f'"]


def test_a_model_without_anything_for_the_accelerator_is_all_on_the_cpu() -> None:
    _, parts, _ = cut(network(node("Exp", "x", "a"), node("Relu", "a", "y")))
    assert [part.on for part in parts] == ["cpu"]


def test_yolov5_with_its_decoding_is_cut_before_the_decoding(shared: Path) -> None:
    _, parts, refused = cut(onnx.load(shared / "weights/yolov5n_640.onnx"))
    assert [part.on for part in parts] == ["npu", "cpu"]
    assert parts[0].outputs == tuple(f"/model.24/m.{level}/Conv_output_0" for level in range(3))
    assert not any(name.startswith("Conv ") for name in refused)


def test_osnet_runs_on_the_accelerator_whole(shared: Path) -> None:
    _, parts, refused = cut(onnx.load(shared / "weights/osnet_x0_25_msmt17_b1.onnx"))
    assert ([part.on for part in parts], refused) == (["npu"], {})


@pytest.mark.parametrize("between", ["Softmax", "Exp"])
def test_the_parts_together_compute_what_the_whole_does(between: str) -> None:
    model = network(conv("x", "a"), node(between, "a", "b"), conv("b", "c"), node("Add", "c a", "y"), outputs="y b")
    graph, parts, _ = cut(model)
    values = {"x": RNG.standard_normal((1, 4, 8, 8)).astype(np.float32)}
    whole = run(model, values)
    for part in parts:
        model_of_part = extract(model, part.inputs, part.outputs, graph.shapes)
        onnx.checker.check_model(model_of_part, full_check=True)
        values.update(run(model_of_part, {name: values[name] for name in part.inputs}))
    for name, array in whole.items():
        np.testing.assert_allclose(values[name], array, rtol=1e-5, atol=1e-5)


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))
