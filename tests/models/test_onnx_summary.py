"""The summary of an ONNX file, against what the `onnx` package reads of it, and on damaged and hostile files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from pyasc.errors import ModelFormatError
from pyasc.models.asc.onnx_summary import MAX_FIELDS, OnnxSummary, summarize_onnx


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from nodes_of(inner)


def by_the_onnx_package(model: onnx.ModelProto) -> OnnxSummary:
    operators = Counter(
        f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes_of(model.graph)
    )
    sizes: Counter[str] = Counter()
    for tensor in model.graph.initializer:
        sizes[np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).name] += numpy_helper.to_array(tensor).nbytes
    return OnnxSummary(
        model.ir_version,
        model.producer_name,
        {opset.domain or "ai.onnx": opset.version for opset in model.opset_import},
        dict(operators),
        len(model.graph.initializer),
        sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer),
        dict(sizes),
    )


def small_model() -> onnx.ModelProto:
    """A graph with a nested graph, an operator of another domain, and weights of several types."""
    value = helper.make_tensor_value_info
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "branch", [], [value("y", TensorProto.FLOAT, [2])]
    )
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], name="first"),
        helper.make_node("Add", ["a", "w"], ["b"]),
        helper.make_node("Gelu", ["b"], ["c"], domain="com.microsoft"),
        helper.make_node("If", ["cond"], ["d"], then_branch=branch, else_branch=branch),
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.ones(5, np.float32))),
    ]
    weights = [
        numpy_helper.from_array(np.arange(2, dtype=np.float32), "w"),
        numpy_helper.from_array(np.ones((3, 4), np.float16), "h"),
        numpy_helper.from_array(np.ones((2, 1, 7), np.int8), "q"),
        numpy_helper.from_array(np.array(3, np.int64), "scalar"),
        numpy_helper.from_array(np.zeros((0, 4), np.float32), "nothing"),
    ]
    inputs = [value("x", TensorProto.FLOAT, [2]), value("cond", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "main", inputs, [value("d", TensorProto.FLOAT, [2])], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, producer_name="a test, of PyASC", opset_imports=opsets)


def test_it_says_what_the_onnx_package_says() -> None:
    model = small_model()
    summary = summarize_onnx(model.SerializeToString())
    assert summary == by_the_onnx_package(model)
    assert list(summary.operators.items())[:2] == [("Add", 2), ("Relu", 2)]
    assert summary.weight_bytes == {"float32": 8, "float16": 24, "int8": 14, "int64": 8}


def test_on_the_shipped_model(demo_dir: Path) -> None:
    path = demo_dir / "osnet_x0_25.onnx"
    assert summarize_onnx(path.read_bytes()) == by_the_onnx_package(onnx.load(path))


def test_on_all_reference_models(shared: Path) -> None:
    paths = sorted((shared / "weights").glob("*.onnx"))
    assert paths
    for path in paths:
        assert summarize_onnx(path.read_bytes()) == by_the_onnx_package(onnx.load(path)), path


def test_weights_in_typed_fields_are_counted() -> None:
    model = small_model()
    model.graph.initializer.append(helper.make_tensor("typed", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0]))
    model.graph.initializer.append(helper.make_tensor("text", TensorProto.STRING, [2], [b"ab", b"c"]))
    before, after = summarize_onnx(small_model().SerializeToString()), summarize_onnx(model.SerializeToString())
    assert after.parameters == before.parameters + 5
    assert after.weight_bytes["float32"] == before.weight_bytes["float32"] + 12
    assert after.weight_bytes["string"] == 3


def test_the_model_may_be_a_view() -> None:
    raw = small_model().SerializeToString()
    assert summarize_onnx(memoryview(b"\0" * 64 + raw)[64:]) == summarize_onnx(raw)


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


OPSET = field(8, b"\x10\x11")


def nested(depth: int) -> bytes:
    graph = field(1, field(4, b"Relu"))
    for _ in range(depth):
        graph = field(1, field(4, b"If") + field(5, field(6, graph)))
    return OPSET + field(7, graph)


def weight(tensor: bytes) -> bytes:
    return OPSET + field(7, field(5, tensor))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not an ONNX model: 0 graphs, 0 operator sets"),
        (b"TFL3" * 10, "is not an ONNX model|is cut off"),
        (b"PK\x03\x04" + bytes(100), "is not an ONNX model|is cut off"),
        (field(7, b""), "0 operator sets"),
        (OPSET, "0 graphs"),
        (OPSET + field(7, b"") * 2, "2 graphs"),
        (OPSET + b"\x38\x01", "a number where a message should be"),
        (OPSET + field(1, b"8"), "a message where a number should be"),
        (OPSET + b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "is cut off: a field of 18446744073709551615 bytes"),
        (OPSET + b"\x3a" + b"\xff" * 30, "a number does not end"),
        (OPSET + b"\x3a", "a number does not end"),
        (OPSET + b"\x3b\x3c", "wire type 3"),
        (OPSET + b"\x00\x00", "field number 0"),
        (OPSET + field(7, field(1, field(1, b"x"))), "a node has no operator"),
        (OPSET + field(7, field(1, field(4, b"Re\x1b[2Jlu"))), r"an operator is named 'Re\\x1b\[2Jlu'"),
        (OPSET + field(7, field(1, field(4, b"a" * 100_000))), "an operator is named"),
        (OPSET + field(7, b"".join(field(1, field(4, b"Op%d" % k)) for k in range(1001))), "1000 kinds"),
        (nested(8), "nested more than 8 deep"),
        (nested(500), "nested more than 8 deep"),
        (weight(b"\x08\x64\x10\x01"), "0 bytes for 100 values"),
        (weight(b"\x08" + varint(2**64 - 1) + b"\x10\x01" + field(9, bytes(64))), "64 bytes for 18446744073709551615"),
        (weight(b"\x08\x01" * 65), "more than 64 dimensions"),
        (weight(field(1, b"\x01" * 65)), "more than 64 dimensions"),
        (weight(field(1, b"\x01" * 1_000_000)), "more than 64 dimensions"),
        (weight(b"\x08\x01\x70\x01"), "another file"),
        (weight(field(13, b"../../etc/passwd")), "another file"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_sound_model(raw: bytes, message: str) -> None:
    with pytest.raises(ModelFormatError, match=f"^graph.onnx: .*({message})"):
        summarize_onnx(raw)


def test_eight_nested_graphs_are_read() -> None:
    assert summarize_onnx(nested(7)).operators == {"If": 7, "Relu": 1}


def test_a_bomb_of_small_fields_is_refused() -> None:
    with pytest.raises(ModelFormatError, match=f"more than {MAX_FIELDS} fields"):
        summarize_onnx(OPSET + field(7, b"\x5a\x00" * (MAX_FIELDS + 1)))


def summary_or_none(raw: bytes) -> OnnxSummary | None:
    try:
        return summarize_onnx(raw)
    except ModelFormatError:
        return None


def test_every_truncation_is_refused_or_reads_less() -> None:
    """Protobuf has no length of the whole: a file cut between two fields of the model is a shorter model."""
    raw = small_model().SerializeToString()
    cut = [summary_or_none(raw[:length]) for length in range(len(raw))]
    assert summarize_onnx(raw) not in cut
    assert cut.count(None) > 0.9 * len(raw)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_gives_an_answer_or_one_error(data: st.DataObject) -> None:
    raw = bytearray(small_model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    summary = summary_or_none(bytes(raw))
    if summary is not None:
        assert summary.weights <= len(raw)
        assert all(name.isprintable() and count > 0 for name, count in summary.operators.items())
