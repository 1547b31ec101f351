"""The walk over protobuf, against Google's own library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from pyasc.hal.protobuf import Wire, WireError, integer, integers, message, signed

_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def _walk(data: bytes) -> list[tuple[int, object]]:
    return [
        (number, bytes(value) if isinstance(value, memoryview) else value)
        for number, value in Wire(100).fields(memoryview(data))
    ]


@given(dims=st.lists(_INT64, max_size=5), name=st.text(max_size=200), raw=st.binary(max_size=300))
def test_it_finds_what_protobuf_wrote(dims: list[int], name: str, raw: bytes) -> None:
    found = _walk(TensorProto(dims=dims, name=name, raw_data=raw).SerializeToString())
    assert [signed(integer(value)) for number, value in found if number == 1] == dims  # type: ignore[arg-type]
    assert [value for number, value in found if number == 8] == [name.encode()]
    assert [value for number, value in found if number == 9] == [raw]


@given(st.lists(_INT64, max_size=20))
def test_packed_numbers_are_read_up_to_a_bound(numbers: list[int]) -> None:
    data = TensorProto(int64_data=numbers).SerializeToString()
    for number, value in Wire(2).fields(memoryview(data)):
        assert number == 7
        assert [signed(word) for word in integers(value, 20)] == numbers
        assert len(integers(value, 4)) == min(len(numbers), 5)


def test_numbers_of_fixed_width_are_no_messages() -> None:
    fixed32, fixed64 = b"\x0d" + bytes(range(4)), b"\x11" + bytes(range(8))
    found = list(Wire(2).fields(memoryview(fixed32 + fixed64)))
    assert found == [(1, bytes(range(4))), (2, bytes(range(8)))]
    for _, value in found:
        with pytest.raises(WireError, match="a number where a message should be"):
            message(value)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\x08", "a number does not end"),
        (b"\x08" + b"\xff" * 11, "a number does not end"),
        (b"\x00\x00", "field number 0"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00", "field number"),
        (b"\x0b", "wire type 3"),
        (b"\x0a\x05abcd", "a field of 5 bytes where 4 are left"),
        (b"\x0d\x00", "a field of 4 bytes where 1 are left"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a field of 18446744073709551615 bytes"),
        (b"\x08\x01" * 101, "more than 100 fields"),
    ],
)
def test_what_is_no_protobuf_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(WireError, match=fault):
        _walk(data)


def test_the_fields_of_all_messages_count() -> None:
    wire = Wire(3)
    ((_, inner),) = wire.fields(memoryview(b"\x0a\x04\x08\x01\x08\x02"))
    assert list(wire.fields(message(inner))) == [(1, 1), (1, 2)]
    with pytest.raises(WireError, match="more than 3 fields"):
        list(wire.fields(message(inner)))
