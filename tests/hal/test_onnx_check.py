"""Damaged and hostile ONNX files."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from pyasc.errors import ModelFormatError
from pyasc.hal.drivers.cpu import engine_statuses
from pyasc.hal.onnx_check import MAX_FIELDS, check_onnx

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
_TWO_HEADS = (GOLDEN / "two_heads.onnx").read_bytes()


def _model(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto] | None = None) -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["n", 3, None])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    graph = helper.make_graph(nodes, "main", [x], [y], weights or [])
    return bytes(helper.make_model(graph).SerializeToString())


_CONSTANT = {"value": helper.make_tensor("v", TensorProto.INT64, [1], [0])}


def _external(name: str) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    return tensor


def test_the_tables_are_those_of_the_onnx_package(demo_dir: Path) -> None:
    for path in (GOLDEN / "two_heads.onnx", demo_dir / "osnet_x0_25.onnx"):
        graph = onnx.load(str(path)).graph
        tables = check_onnx(path.read_bytes(), path.name)
        assert [found.name for found in tables.inputs] == [value.name for value in graph.input]
        assert [found.name for found in tables.outputs] == [value.name for value in graph.output]
        assert tables.operators == {node.op_type for node in graph.node}
        for found, value in zip(tables.inputs + tables.outputs, (*graph.input, *graph.output), strict=True):
            dims = value.type.tensor_type.shape.dim
            assert found.shape == tuple(dim.dim_value or None for dim in dims)
            assert found.dtype == "float32"


def test_open_sizes_and_other_types_are_read() -> None:
    tables = check_onnx(_model([helper.make_node("Shape", ["x"], ["y"])]), "m")
    assert (tables.inputs[0].shape, tables.inputs[0].dtype) == ((None, 3, None), "float16")
    assert (tables.outputs[0].shape, tables.outputs[0].dtype) == ((1,), "int64")


def test_an_initialiser_that_is_listed_as_an_input_is_none() -> None:
    weight = helper.make_tensor("x", TensorProto.FLOAT, [1], [0.0])
    data = _model([helper.make_node("Constant", [], ["y"], **_CONSTANT)], [weight])
    assert check_onnx(data, "m").inputs == ()


def test_weights_in_other_files_are_refused_wherever_they_hide() -> None:
    hidden = helper.make_graph([], "branch", [], [], [_external("w")])
    for data in (
        (GOLDEN / "external.onnx").read_bytes(),
        _model([], [_external("w")]),
        _model([helper.make_node("Constant", [], ["c"], value=_external("w"))]),
        _model([helper.make_node("If", ["x"], ["y"], then_branch=hidden, else_branch=hidden)]),
    ):
        with pytest.raises(ModelFormatError, match="weights in other files"):
            check_onnx(data, "m")


def test_a_constant_of_another_size_than_its_shape_is_refused() -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1000, 1000], raw_data=bytes(4))
    with pytest.raises(ModelFormatError, match=r"'w' of shape \(1000, 1000\) has 4 bytes"):
        check_onnx(_model([], [weight]), "m")
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-1], raw_data=b"")
    with pytest.raises(ModelFormatError, match="negative size"):
        check_onnx(_model([], [weight]), "m")


def test_a_value_that_nothing_computes_is_refused() -> None:
    for nodes in (
        [helper.make_node("Shape", ["z"], ["y"])],
        [helper.make_node("Shape", ["x"], ["z"])],
        [helper.make_node("Neg", ["a"], ["y"]), helper.make_node("Shape", ["x"], ["a"])],
    ):
        with pytest.raises(ModelFormatError, match="nothing"):
            check_onnx(_model(nodes), "m")


def test_a_graph_in_a_node_may_use_what_is_around_it() -> None:
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    branch = helper.make_graph([helper.make_node("Neg", ["a"], ["y"])], "branch", [], [y])
    nodes = [
        helper.make_node("Shape", ["x"], ["a"]),
        helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch),
    ]
    assert check_onnx(_model(nodes), "m").operators == {"Shape", "If", "Neg"}


def test_a_name_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="not UTF-8"):
        check_onnx(_TWO_HEADS.replace(b"picture", b"pictur\xff"), "m")


@pytest.mark.parametrize("engine", [e.name for e in engine_statuses() if e.version and "onnx" in e.formats])
def test_no_damaged_file_crashes_the_process(engine: str, tmp_path: Path) -> None:
    """300 damaged files through the driver in a process of its own, whose end tells whether an engine crashed."""
    random_ = random.Random(engine)
    for number in range(300):
        changed = bytearray(_TWO_HEADS)
        for _ in range(random_.choice((1, 1, 2, 4))):
            at = random_.randrange(len(changed))
            changed[at] = random_.choice((random_.randrange(256), 0, 1, 0x7F, 0x80, 0xFF, changed[at] ^ 1 << at % 8))
        (tmp_path / f"{number:03}.onnx").write_bytes(changed)
    code = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from pyasc.errors import PyascError
        from pyasc.hal.base import Program, TensorInfo
        from pyasc.hal.drivers.cpu import open_device
        inputs = tuple(TensorInfo(name, (1, 8, 8, 3), "float32") for name in ("picture", "bias"))
        outputs = TensorInfo("sum", (1, 8, 8, 3), "float32"), TensorInfo("flat", (1, 192), "float32")
        ran = refused = 0
        device = open_device("cpu")
        for path in sorted(Path(sys.argv[1]).iterdir()):
            print(path.name, file=sys.stderr, flush=True)
            try:
                program = Program("m", "onnx", memoryview(path.read_bytes()), inputs, outputs)
                device.load(program, engine={engine!r}).close()
                ran += 1
            except PyascError:
                refused += 1
        print(ran, refused)
    """)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ran, refused = (int(word) for word in done.stdout.split())
    assert ran + refused == 300
    assert refused > 100


def test_graphs_within_graphs_end_somewhere() -> None:
    def wrapped(field: int, content: bytes) -> bytes:
        size, prefix = len(content), b""
        while size > 0x7F:
            prefix += bytes([size & 0x7F | 0x80])
            size >>= 7
        return bytes([field << 3 | 2]) + prefix + bytes([size]) + content

    graph = b""
    for _ in range(2000):  # graph of a node (1) of an attribute (5) of a graph (6)
        graph = wrapped(1, wrapped(5, wrapped(6, graph)))
    with pytest.raises(ModelFormatError, match="more than 16 deep"):
        check_onnx(wrapped(7, graph), "deep")


def test_more_fields_than_any_network_has_are_refused() -> None:
    with pytest.raises(ModelFormatError, match=f"more than {MAX_FIELDS} fields"):
        check_onnx(b"\x08\x01" * (MAX_FIELDS + 1), "m")


def test_more_dimensions_than_any_tensor_has_are_refused() -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1] * 100_000, raw_data=bytes(4))
    with pytest.raises(ModelFormatError, match="more than 64 dimensions"):
        check_onnx(_model([], [weight]), "m")


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"PK\x03\x04", b"\xff" * 50, b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"]
)
def test_what_is_no_onnx_is_refused(data: bytes) -> None:
    with pytest.raises(ModelFormatError, match="not a sound ONNX file"):
        check_onnx(data, "m")


def test_two_graphs_are_refused() -> None:
    with pytest.raises(ModelFormatError, match="several graphs"):
        check_onnx(_TWO_HEADS + _TWO_HEADS, "m")


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_whatever_is_in_the_file_there_is_no_other_error(data: st.DataObject) -> None:
    changed = bytearray(_TWO_HEADS[: data.draw(st.integers(0, len(_TWO_HEADS)))] or b"\0")
    for _ in range(data.draw(st.integers(0, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ModelFormatError):
        check_onnx(bytes(changed), "changed")


def test_an_operator_with_control_characters_in_its_name_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="an operator is called") as caught:
        check_onnx(_model([helper.make_node("Re\x1b[31mlu\n", ["x"], ["y"])]), "m")
    assert str(caught.value).isprintable()
