"""Checkpoints that attack the reader: none of their code runs, and none costs memory or time out of proportion."""

from __future__ import annotations

import contextlib
import io
import pickle
import resource
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyasc.errors import ModelFormatError, UnsafeCheckpointError
from pyasc.models.conversion.checkpoint import load_checkpoint

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def stack_name(module: str, attribute: str) -> bytes:
    return text(module) + text(attribute) + b"\x93"


def call(function: bytes, *args: bytes) -> bytes:
    return function + b"(" + b"".join(args) + b"tR"


def record(module: str, attribute: str, state: bytes) -> bytes:
    return name(module, attribute) + b")\x81" + state + b"b"


def short_bytes(raw: bytes) -> bytes:
    return b"C" + bytes([len(raw)]) + raw


def touch(canary: Path) -> bytes:
    return text(f"touch {canary}")


# Each makes the body of a pickle out of the shell command that creates the canary.
# These run in Python's own unpickler, which the test shows first.
RUN_BY_PICKLE: dict[str, Callable[[bytes], bytes]] = {
    "reduce": lambda command: call(name("posix", "system"), command),
    "os": lambda command: call(name("os", "system"), command),
    "protocol 4": lambda command: stack_name("os", "system") + command + b"\x85R",
    "memoised name": lambda c: text("os") + b"q\x070" + text("system") + b"q\x080" + b"h\x07h\x08\x93" + c + b"\x85R",
    "memoised function": lambda command: name("os", "system") + b"q\x010h\x01" + command + b"\x85R",
    "inst": lambda command: b"(" + command + b"ios\nsystem\n",
    "obj": lambda command: b"(" + name("os", "system") + command + b"o",
    "dotted": lambda command: call(stack_name("zipfile", "os.system"), command),
    "getattr": lambda c: call(
        call(name("builtins", "getattr"), call(name("builtins", "__import__"), text("os")), text("system")), c
    ),
    "eval": lambda c: call(name("builtins", "eval"), text(f"__import__('os').system({c[5:].decode()!r})")),
    "in a list": lambda command: b"](K\x01" + call(name("os", "system"), command) + b"e",
    "as a key": lambda command: b"}" + call(name("os", "system"), command) + b"Ns",
    "thrown away": lambda command: call(name("os", "system"), command) + b"0N",
    "nested pickle": lambda c: call(name("pickle", "loads"), short_bytes(b"cos\nsystem\n(" + c + b"tR.")),
    "partial": lambda c: call(call(name("functools", "partial"), name("os", "system"), c)),
    "map": lambda c: call(
        name("builtins", "list"), call(name("builtins", "map"), name("os", "system"), b"](" + c + b"e")
    ),
    "__setstate__": lambda c: (
        name("argparse", "Namespace") + b")\x81}" + text("__setstate__") + name("os", "system") + b"sb" + c + b"b"
    ),
    "factory": lambda c: (
        call(name("collections", "defaultdict"), name("os", "system")) + b"0" + call(name("os", "system"), c)
    ),
    "subprocess": lambda c: call(name("subprocess", "getoutput"), c),
}

# These need torch, NumPy or another opcode to do harm, or try to get around the reader's own rules.
OTHERS: dict[str, Callable[[bytes], bytes]] = {
    "exec of Python 2": lambda c: call(name("__builtin__", "exec"), text(f"import os; os.system({c[5:].decode()!r})")),
    "torch.os.system": lambda c: call(stack_name("torch", "os.system"), c),
    "models.common.os.system": lambda c: call(stack_name("models.common", "os.system"), c),
    "torch.nn chain": lambda c: call(stack_name("torch.nn.modules.module", "torch.os.system"), c),
    "inside a tensor": lambda c: call(
        name("torch._utils", "_rebuild_tensor_v2"), call(name("os", "system"), c), b"K\x00", b")", b")"
    ),
    "inside a parameter": lambda c: call(
        name("torch._utils", "_rebuild_parameter"), call(name("os", "system"), c), b"\x88", b"N"
    ),
    "inside a module": lambda c: record(
        "models.yolo", "Model", b"}" + text("x") + call(name("os", "system"), c) + b"s"
    ),
    "persistent id": lambda c: call(name("os", "system"), c) + b"Q",
    "storage type": lambda c: b"(" + text("storage") + name("os", "system") + text("0") + text("cpu") + b"K\x01tQ",
    "source of a class": lambda c: b"(" + text("module") + name("os", "system") + text("") + c + b"tQ",
    "extension 1": lambda c: b"\x82\x01" + c + b"\x85R",
    "extension 2": lambda c: b"\x83\x01\x01" + c + b"\x85R",
    "extension 4": lambda c: b"\x84\x01\x00\x00\x00" + c + b"\x85R",
    "extension registered": lambda c: call(name("copyreg", "add_extension"), text("os"), text("system"), b"K\x01"),
    "torch.load": lambda c: call(name("torch.serialization", "load"), c),
    "torch.hub": lambda c: call(name("torch.hub", "load"), c),
    "load from bytes": lambda c: call(name("torch.storage", "_load_from_bytes"), c),
    "rebuild by type": lambda c: call(name("torch._tensor", "_rebuild_from_type_v2"), name("os", "system"), c),
    "runstring": lambda c: call(name("numpy.testing._private.utils", "runstring"), c, b"}"),
    "lambda": lambda c: call(name("types", "FunctionType"), c),
    "code": lambda c: call(name("types", "CodeType"), c),
    "ctypes": lambda c: call(name("ctypes", "CDLL"), c),
    "main": lambda c: call(name("__main__", "Net"), c),
    "codec": lambda c: call(name("_codecs", "encode"), c, text("zip")),
    "call of a text": lambda c: c + c + b"\x85R",
    "call of a number": lambda c: b"K\x01)R",
    "call of a record": lambda c: record("models.yolo", "Model", b"}") + b")R",
    "call of a plain type": lambda c: call(name("builtins", "dict"), c),
    "call of a storage type": lambda c: call(name("torch", "FloatStorage"), c),
    "name out of numbers": lambda c: b"K\x01K\x02\x93",
    "name with a space": lambda c: call(stack_name("models.common", "Conv; import os"), c),
    "look-alike package": lambda c: call(name("models_evil", "run"), c),
    "torch.nnx": lambda c: call(name("torch.nnx", "run"), c),
    "type": lambda c: call(name("builtins", "type"), c, b")", b"}"),
    "NEWOBJ": lambda c: name("subprocess", "Popen") + b"(" + c + b"t\x81",
    "NEWOBJ_EX": lambda c: name("subprocess", "Popen") + b"(" + c + b"t}\x92",
}


def write(path: Path, body: bytes, legacy: bool = False) -> Path:
    if legacy:
        head = b"".join(pickle.dumps(value, 2) for value in (LEGACY_MAGIC, 1001, {"little_endian": True}))
        path.write_bytes(head + b"\x80\x04" + body + b"." + pickle.dumps([], 2))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x04" + body + b".")
    return path


@pytest.mark.parametrize("kind", RUN_BY_PICKLE)
def test_the_attacks_work_on_pickle_itself(tmp_path: Path, kind: str) -> None:
    canary = tmp_path / "canary"
    pickle.loads(b"\x80\x04" + RUN_BY_PICKLE[kind](touch(canary)) + b".")
    assert canary.exists()


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("kind", [*RUN_BY_PICKLE, *OTHERS])
def test_nothing_runs(tmp_path: Path, kind: str, legacy: bool) -> None:
    canary = tmp_path / "canary"
    body = {**RUN_BY_PICKLE, **OTHERS}[kind](touch(canary))
    path = write(tmp_path / "best.pt", body, legacy)
    with pytest.raises(UnsafeCheckpointError, match=r"best\.pt: (asks for|calls) .*nothing of it has run"):
        load_checkpoint(path)
    assert not canary.exists()


def test_the_message_names_what_was_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", call(name("posix", "system"), text("true")))
    with pytest.raises(UnsafeCheckpointError, match=r"asks for posix\.system, which no conversion needs"):
        load_checkpoint(path)


def test_names_in_messages_are_short_and_printable(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", stack_name("x" * 100_000, "\x1b[2J\n"))
    with pytest.raises(UnsafeCheckpointError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert len(message) < 400 + len(str(path))
    assert message.isprintable()


def test_a_plain_pickle_under_a_checkpoint_name_runs_nothing(tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "a.pt"
    path.write_bytes(b"\x80\x02" + call(name("os", "system"), touch(canary)) + b".")
    with pytest.raises(UnsafeCheckpointError, match=r"os\.system"):
        load_checkpoint(path)
    assert not canary.exists()


# Bodies that are no checkpoint, and would cost much if they were believed.
EXPENSIVE: dict[str, bytes] = {
    "text of 4 EiB": b"\x8d" + struct.pack("<Q", 1 << 62),
    "text of 4 GiB": b"X\xff\xff\xff\xff",
    "bytes of 4 EiB": b"\x8e" + struct.pack("<Q", 1 << 62),
    "bytearray of 4 EiB": b"\x96" + struct.pack("<Q", 1 << 62),
    "integer of 2 GiB": b"\x8b\xff\xff\xff\x7f",
    "integer of negative size": b"\x8b\xff\xff\xff\xff",
    "integer of a million digits": b"I" + b"9" * 1_000_000 + b"\n",
    "integer of 4000 digits": b"L" + b"9" * 4000 + b"L\n",
    "frame of 4 EiB": b"\x95" + struct.pack("<Q", 1 << 62),
    "line without an end": b"c" + b"a" * 1_000_000,
    "nested tuple as a key": b"}" + b")" + b"\x85" * 1_000_000 + b"Ns",
    "nested tuple in a frozenset": b"(" + b")" + b"\x85" * 1_000_000 + b"\x91",
    "list as a key": b"}]Ns",
    "large integer as a key": b"}\x8a\x08" + b"\xff" * 7 + b"\x7fNs",
    "copies of copies": text("a" * 1_000_000)
    + b"q\x000"
    + b"".join(name("_codecs", "encode") + b"h\x00" + text("latin1") + b"\x86R0" for _ in range(600))
    + b"N",
    "states of states": b"}q\x00("
    + b"".join(text(f"k{k}") + b"N" for k in range(20_000))
    + b"u0"
    + name("models.yolo", "Model")
    + b")\x81"
    + b"h\x00b" * 200_000,
    "array larger than its bytes": call(
        name("numpy.core.multiarray", "_reconstruct"), name("numpy", "ndarray"), b"K\x00\x85", b"C\x01b"
    )
    + b"(K\x01J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86"
    + call(name("numpy", "dtype"), text("f8"), b"\x89", b"\x88")
    + b"\x89C\x00tb",
    "array of objects": call(
        name("numpy.core.multiarray", "_reconstruct"), name("numpy", "ndarray"), b"K\x00\x85", b"C\x01b"
    )
    + b"(K\x01K\x01\x85"
    + call(name("numpy", "dtype"), text("O8"), b"\x89", b"\x88")
    + b"\x89](Net b",
    "dtype by comma": call(name("numpy", "dtype"), text("f8,f8," * 10_000)),
}

BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "two values": b"NN",
    "a mark": b"(",
    "pop of nothing": b"0",
    "no mark": b"Nt",
    "value is a mark": b"(\x85",
    "memo of nothing": b"h\x09",
    "memo of a mark": b"(q\x00",
    "append to text": text("a") + b"Na",
    "item of a number": b"K\x01NNs",
    "odd items": b"}(Nu",
    "add to a list": b"](N\x90",
    "build of text": text("a") + b"}b",
    "state of a list": name("models.yolo", "Model") + b")\x81]b",
    "state with numbers as names": name("models.yolo", "Model") + b")\x81}K\x01Nsb",
    "call without a tuple": name("torch._utils", "_rebuild_parameter") + b"NR",
    "call with keywords": name("models.yolo", "Model") + b")}" + text("a") + b"Ns\x92",
    "too few arguments": call(name("torch._utils", "_rebuild_tensor_v2")),
    "unknown opcode": b"\xff",
    "protocol 6": b"\x80\x06N",
    "buffer": b"\x97",
    "bad text": b"X\x02\x00\x00\x00\xc3\x28",
    "bad float": b"Fnot\n",
    "quoted": b"S'\\x41'\n",
    "set of lists": call(name("builtins", "set"), b"](]e"),
    "dict of triples": call(name("collections", "OrderedDict"), b"](NNN\x87e"),
    "dtype of nothing": call(name("numpy", "dtype"), b"N"),
    "scalar of the wrong size": call(
        name("numpy.core.multiarray", "scalar"), call(name("numpy", "dtype"), text("f8")), b"C\x01a"
    ),
}


@pytest.mark.parametrize("kind", [*EXPENSIVE, *BROKEN])
def test_damage_is_one_clear_error(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a.pt", {**EXPENSIVE, **BROKEN}[kind])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFormatError, match=r"a\.pt: the pickle is damaged at byte \d+: "):
        load_checkpoint(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB


def test_a_memo_of_large_numbers_costs_nothing(tmp_path: Path) -> None:
    assert load_checkpoint(write(tmp_path / "a.pt", b"Nr\xff\xff\xff\xff0j\xff\xff\xff\xff")) is None


def test_values_nested_a_million_deep_are_harmless(tmp_path: Path) -> None:
    tree = load_checkpoint(write(tmp_path / "a.pt", b"]" * 1_000_000 + b"a" * 999_999))
    depth = 0
    while tree:
        tree, depth = tree[0], depth + 1
    assert depth == 999_999


@pytest.mark.parametrize("place", ["magic", "protocol", "system", "storages"])
def test_values_nested_deeply_in_the_old_formats_head(tmp_path: Path, place: str) -> None:
    parts = {"magic": LEGACY_MAGIC, "protocol": 1001, "system": {"little_endian": True}, "tree": {}, "storages": []}
    deep = b"]" * 50_000 + b"a" * 49_999 + b"."
    head = b"".join(deep if key == place else pickle.dumps(value, 2) for key, value in parts.items())
    (tmp_path / "a.pt").write_bytes(b"\x80\x02" + head)
    with pytest.raises(ModelFormatError):
        load_checkpoint(tmp_path / "a.pt")


SOUND = (
    b"}("
    + text("model")
    + record(
        "models.yolo",
        "Model",
        b"}(" + text("names") + b"](" + text("a") + text("b") + b"e" + text("eps") + b"G?PbM\xd2\xf1\xa9\xfcu",
    )
    + text("weight")
    + call(
        name("torch._utils", "_rebuild_tensor_v2"),
        b"(" + text("storage") + name("torch", "FloatStorage") + text("0") + text("cpu") + b"K\x04tQ",
        b"K\x00",
        b"K\x02K\x02\x86",
        b"K\x02K\x01\x86",
        b"\x89",
        call(name("collections", "OrderedDict")),
    )
    + text("epoch")
    + b"\x8a\x01\xff"
    + text("best")
    + call(
        name("numpy.core.multiarray", "scalar"),
        call(name("numpy", "dtype"), text("f8"), b"\x89", b"\x88")
        + b"(K\x03"
        + text("<")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
        b"C\x08" + struct.pack("<d", 0.5),
    )
    + text("set")
    + call(name("__builtin__", "set"), b"](K\x01K\x02e")
    + b"u"
)


def sound_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + SOUND + b".")
        archive.writestr("archive/data/0", struct.pack("<4f", 1, 2, 3, 4))
    return file.getvalue()


def sound_legacy() -> bytes:
    head = b"".join(pickle.dumps(value, 2) for value in (LEGACY_MAGIC, 1001, {"little_endian": True}))
    return head + b"\x80\x02" + SOUND + b"." + pickle.dumps(["0"], 2) + struct.pack("<q4f", 4, 1, 2, 3, 4)


FILES = {"zip": sound_zip(), "legacy": sound_legacy()}


@pytest.mark.parametrize("kind", FILES)
def test_the_file_that_is_mutated_is_sound(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.pt").write_bytes(FILES[kind])
    tree = load_checkpoint(tmp_path / "a.pt")
    assert (tree["epoch"], tree["best"], tree["set"]) == (-1, 0.5, {1, 2})
    assert tree["weight"].array().tolist() == [[1, 2], [3, 4]]


@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from(sorted(FILES)), data=st.data())
def test_mutations_raise_only_our_errors(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    raw = bytearray(FILES[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        change = data.draw(st.sampled_from(["set", "insert", "delete", "copy"]))
        if change == "set":
            raw[at] = data.draw(st.integers(0, 255))
        elif change == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        elif change == "delete":
            del raw[at : at + data.draw(st.integers(1, 4))]
        else:
            start = data.draw(st.integers(0, len(raw) - 1))
            raw[at:at] = raw[start : start + data.draw(st.integers(1, 40))]
    path = tmp_path_factory.mktemp("mutated") / "a.pt"
    path.write_bytes(raw)
    try:
        tree = load_checkpoint(path)
        if isinstance(tree, dict) and hasattr(tree.get("weight"), "array"):
            tree["weight"].array()
    except (ModelFormatError, UnsafeCheckpointError):
        pass


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_mutated_pickles_raise_only_our_errors(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """As above, inside of a sound archive, so that the checksum does not stop what is to be tested."""
    raw = bytearray(SOUND)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    path = write(tmp_path_factory.mktemp("mutated") / "a.pt", bytes(raw))
    with contextlib.suppress(ModelFormatError, UnsafeCheckpointError):
        load_checkpoint(path)
