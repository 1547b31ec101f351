"""Which node an engine refuses, found by asking it for the first nodes of the graph."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from pyasc.errors import ModelFormatError, UnsupportedOperatorError
from pyasc.hal.base import Program, TensorInfo
from pyasc.hal.drivers.cpu import engine_statuses, open_device
from pyasc.hal.onnx_prefix import first_refused


def _chain(kinds: list[str]) -> bytes:
    """Each node takes what the one before it computes: x -> ... -> y."""
    names = ["x", *(f"t{number}" for number in range(1, len(kinds))), "y"]
    nodes = [helper.make_node(kind, [names[n]], [names[n + 1]]) for n, kind in enumerate(kinds)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [2], [1.5, -2.0])]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights), producer_name="a test")
    model.opset_import[0].version = 13
    model.metadata_props.add(key="k", value="v")
    return bytes(model.SerializeToString())


@given(st.lists(st.sampled_from(["Relu", "Foo", "Bar"]), min_size=1, max_size=40))
def test_the_first_node_that_is_refused_is_named(kinds: list[str]) -> None:
    whole = onnx.load_from_string(_chain(kinds))

    def refuses(data: bytes) -> bool:
        part = onnx.load_from_string(data)
        count = len(part.graph.node)
        assert part.graph.node == whole.graph.node[:count]
        part.graph.ClearField("node")
        part.graph.node.extend(whole.graph.node)
        assert part == whole  # all but the nodes is as it was
        return any(kind != "Relu" for kind in kinds[:count])

    if set(kinds) == {"Relu"}:
        assert first_refused(_chain(kinds), lambda data: True) is None
    else:
        assert first_refused(_chain(kinds), refuses) == next(kind for kind in kinds if kind != "Relu")


def test_a_graph_without_nodes_has_none() -> None:
    assert first_refused(_chain([]), lambda data: True) is None


@pytest.mark.parametrize(
    ("kinds", "refused"),
    [
        (["Relu"] * 9 + ["PyascOne"] + ["Sigmoid"] * 3 + ["PyascTwo"], "PyascOne"),
        (["Relu", "Conv", "Relu"], "Conv"),  # known, but has no kernel here
    ],
)
@pytest.mark.parametrize("engine", [e.name for e in engine_statuses() if e.version and "onnx" in e.formats])
def test_an_engine_names_the_operator_that_it_refuses(
    engine: str, kinds: list[str], refused: str, capfd: pytest.CaptureFixture[str]
) -> None:
    x, y = (TensorInfo(name, (1, 4), "float32") for name in "xy")
    program = Program("chain", "onnx", memoryview(_chain(kinds)), (x,), (y,))
    with (
        open_device("cpu") as device,
        pytest.raises((UnsupportedOperatorError, ModelFormatError), match=refused) as caught,
    ):
        device.load(program, engine=engine)
    assert "\n" not in str(caught.value)
    if refused == "PyascOne":
        assert isinstance(caught.value, UnsupportedOperatorError)
    assert capfd.readouterr().err.count("parseModel") <= 2  # what OpenCV says of the whole graph, 5.0 twice
