"""The first nodes of an ONNX graph as a file of their own: shows which node an engine refuses that does not say it."""

from __future__ import annotations

from collections.abc import Callable

from pyasc.hal.onnx_check import MAX_FIELDS
from pyasc.hal.protobuf import Value, Wire, field, message

_MODEL_GRAPH, _GRAPH_NODE, _NODE_KIND = 7, 1, 4


def first_refused(data: bytes | memoryview, refuses: Callable[[bytes], bool]) -> str | None:
    """Kind of the first node that an engine refuses, in about log2(nodes) calls of `refuses`.

    Args:
        data: an ONNX file that `check_onnx` has found sound and the engine refuses.
        refuses: whether the engine refuses a file; files with more of the nodes are refused too.
    Returns:
        None where it refuses the graph without any node.
    """
    before, graph, after = _split(memoryview(data).cast("B"))
    others = b"".join(field(number, value) for number, value in graph if number != _GRAPH_NODE)
    nodes = [message(value) for number, value in graph if number == _GRAPH_NODE]
    written = [field(_GRAPH_NODE, node) for node in nodes]

    def refuses_first(count: int) -> bool:
        return refuses(b"".join((before, field(_MODEL_GRAPH, memoryview(b"".join((*written[:count], others)))), after)))

    if not nodes or refuses_first(0):
        return None
    taken, refused = 0, len(nodes)
    while refused - taken > 1:
        middle = (taken + refused) // 2
        if refuses_first(middle):
            refused = middle
        else:
            taken = middle
    kinds = [value for number, value in Wire(MAX_FIELDS).fields(nodes[refused - 1]) if number == _NODE_KIND]
    return str(message(kinds[-1]), "utf-8") if kinds else ""


def _split(data: memoryview) -> tuple[bytes, list[tuple[int, Value]], bytes]:
    """What stands before the graph, the graph's fields, and what stands after it."""
    walk = Wire(MAX_FIELDS)
    before, graph, after = bytearray(), list[tuple[int, Value]](), bytearray()
    for number, value in walk.fields(data):
        if number == _MODEL_GRAPH:
            graph = list(walk.fields(message(value)))
        elif graph:
            after += field(number, value)
        else:
            before += field(number, value)
    return bytes(before), graph, bytes(after)
