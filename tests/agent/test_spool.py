"""Events on disk: nothing lost, nothing twice, bounded, and what happens when the disk or the file fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyasc.agent.clock import rfc3339
from pyasc.agent.spool import Spool, SpoolLimits


def event(kind: str = "cross", track: int = 1, **more: Any) -> dict[str, Any]:
    known = {
        "time": rfc3339(),
        "type": kind,
        "track": track,
        "label": "person",
        "score": 0.9,
        "box": [0.1, 0.2, 0.3, 0.4],
    }
    return {"id": str(uuid.uuid4()), **known, **more}


def stored(spool: Spool) -> list[dict[str, Any]]:
    return [json.loads(row.payload) for row in spool.read(0, 1_000_000)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "spool.db"


@pytest.fixture
def spool(path: Path) -> Iterator[Spool]:
    opened = Spool(path)
    yield opened
    opened.close()


def test_sequence_counts_up_per_pipeline_across_restarts(path: Path) -> None:
    for start in (1, 3):
        spool = Spool(path)
        spool.append([("gate", [event()]), ("yard", [event(), event()]), ("gate", [event()])])
        rows = spool.read(0, 100)
        gate = [json.loads(row.payload)["seq"] for row in rows if row.pipeline == "gate"]
        assert gate[-2:] == [start, start + 1]
        if start == 1:
            spool.remove(row.n for row in rows)  # an empty spool counts on too
        spool.close()


def test_payload_is_the_event_with_its_sequence(spool: Spool) -> None:
    sent = event("enter", 7, zone="tür", box=[0.25, 0.5, 0.125, 1.0])
    spool.append([("gate", [sent])])
    (row,) = spool.read(0, 10)
    assert json.loads(row.payload) == {**sent, "seq": 1}
    assert "tür".encode() in row.payload


def test_repeated_event_is_stored_once_also_after_its_removal(spool: Spool) -> None:
    one, two = event(), event()
    spool.append([("gate", [one, one]), ("gate", [one])])
    spool.append([("gate", [one, two])])
    assert [(e["id"], e["seq"]) for e in stored(spool)] == [(one["id"], 1), (two["id"], 2)]
    spool.remove(row.n for row in spool.read(0, 10))
    spool.append([("gate", [one])])
    assert stored(spool) == []


def test_read_goes_on_behind_a_number(spool: Spool) -> None:
    spool.append([("gate", [event(track=i) for i in range(5)])])
    first = spool.read(0, 2)
    assert [json.loads(row.payload)["track"] for row in spool.read(first[-1].n, 2)] == [2, 3]


def test_removal_in_any_order_and_twice(spool: Spool) -> None:
    spool.append([("gate", [event(track=i) for i in range(4)])])
    spool.remove([3, 1])
    spool.remove([1, 3, 99])
    assert [e["track"] for e in stored(spool)] == [1, 3]
    assert spool.summary()["pending"] == 2


def test_bound_of_events_drops_the_oldest_and_counts(path: Path) -> None:
    spool = Spool(path, SpoolLimits(max_events=10))
    spool.append([("gate", [event(track=i) for i in range(8)])])
    spool.append([("gate", [event(track=i) for i in range(8, 13)])])
    assert [e["seq"] for e in stored(spool)] == list(range(4, 14))
    assert spool.summary()["dropped"] == 3
    spool.close()
    again = Spool(path, SpoolLimits(max_events=10))
    assert again.summary()["dropped"] == 3
    again.append([("gate", [event()])])
    assert again.summary()["dropped"] == 4
    again.close()


def test_bound_of_bytes(path: Path) -> None:
    spool = Spool(path, SpoolLimits(max_bytes=10_000))
    for _ in range(100):
        spool.append([("gate", [event(note="ü" * 300)])])
    summary = spool.summary()
    assert summary["bytes"] == sum(len(row.payload) for row in spool.read(0, 1000)) <= 10_000
    assert summary["pending"] + summary["dropped"] == 100
    assert stored(spool)[-1]["seq"] == 100
    spool.close()


def test_age_counts_only_where_the_clock_was_set(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(path, SpoolLimits(max_age_s=3600))
    now = time.time()
    for moment, track in ((1000.0, 1), (now - 7200, 2), (now, 3)):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        spool.append([("gate", [event(track=track)])])
    # the one of 1970 stands first and is of unknown age, so it keeps what is behind it
    assert [e["track"] for e in stored(spool)] == [1, 2, 3]
    spool.remove([1])
    spool.append([("gate", [event(track=4)])])
    assert [e["track"] for e in stored(spool)] == [3, 4]
    assert spool.summary()["oldest"] == rfc3339(now)
    spool.close()


def test_open_tracks_are_closed_with_a_reason_also_after_a_restart(path: Path) -> None:
    spool = Spool(path)
    tracks = [event("enter", 1), event("enter", 1, zone="door"), event("enter", 2), event("cross", 2, line="gateway")]
    spool.append([("gate", [*tracks, event("leave", 2)]), ("yard", [event("enter", 1)])])
    spool.close()
    spool = Spool(path)
    before = len(stored(spool))
    assert spool.close_open_tracks("engine-restarted", 1_800_000_000.5) == 3
    closed = stored(spool)[before:]
    assert [(e["type"], e["track"], e.get("zone")) for e in closed] == [
        ("leave", 1, "door"),
        ("leave", 1, None),
        ("leave", 1, None),
    ]
    assert {e["reason"] for e in closed} == {"engine-restarted"}
    assert {e["time"] for e in closed} == {"2027-01-15T08:00:00.500Z"}
    assert [e["seq"] for e in closed] == [6, 7, 2]
    assert all(e["label"] == "person" and e["box"] for e in closed)
    assert len({e["id"] for e in stored(spool)}) == before + 3
    assert spool.close_open_tracks("engine-restarted", 0.0) == 0
    spool.close()


def test_track_does_not_leave_before_it_entered(path: Path) -> None:
    spool = Spool(path)
    ahead, past = "2027-01-15T08:00:07.250Z", "2027-01-15T07:59:59.000Z"
    spool.append([("gate", [{**event("enter", 1), "time": past}, {**event("enter", 2), "time": ahead}])])
    assert spool.close_open_tracks("engine-restarted", 1_800_000_000.5) == 2
    leaves = {e["track"]: e["time"] for e in stored(spool) if e["type"] == "leave"}
    assert leaves == {1: "2027-01-15T08:00:00.500Z", 2: ahead}
    spool.close()


_WRITER = """
import json, sys
from pathlib import Path
from pyasc.agent.spool import Spool
spool = Spool(Path(sys.argv[1]))
number = 0
while True:
    spool.append([("gate", [{"id": f"{sys.argv[2]}-{number + i}", "type": "cross", "track": 1} for i in range(3)])])
    number += 3
    print(number, flush=True)
"""


def test_killed_writer_loses_nothing_that_was_stored(path: Path) -> None:
    promised = 0
    for run in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, path, str(run)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(20)]
            os.kill(writer.pid, signal.SIGKILL)
            lines += writer.stdout.readlines()
        promised += int([line for line in lines if line.endswith("\n")][-1])
    spool = Spool(path)
    events = stored(spool)
    assert len(events) >= promised
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
    assert len({e["id"] for e in events}) == len(events)
    spool.close()


def _fill(path: Path, count: int = 400) -> None:
    spool = Spool(path)
    spool.append([("gate", [event(track=i) for i in range(count)])])
    spool.close()


def _damage_events(path: Path) -> None:
    """Spoil the root page of the table of events."""
    with sqlite3.connect(path) as db:
        page = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'event'").fetchone()[0]
        size = db.execute("PRAGMA page_size").fetchone()[0]
    db.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * size : page * size] = b"\xa5" * size
    path.write_bytes(data)


def test_damaged_events_leave_the_sequence(path: Path) -> None:
    _fill(path)
    _damage_events(path)
    spool = Spool(path)
    assert spool.damaged == 1
    assert stored(spool) == []
    spool.append([("gate", [event()])])
    assert stored(spool)[0]["seq"] == 401
    assert path.with_name("spool.db.damaged").exists()
    spool.close()


@pytest.mark.parametrize("damage", ["header", "garbage", "truncated", "no tables"])
def test_unreadable_file_begins_at_a_sequence_above_any_count(path: Path, damage: str) -> None:
    _fill(path)
    data = path.read_bytes()
    if damage == "no tables":
        path.unlink()
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 1")
        db.close()
    else:
        path.write_bytes({"header": bytes(100) + data[100:], "garbage": b"x" * 5000, "truncated": data[:5000]}[damage])
    began = int(time.time())
    spool = Spool(path)
    assert spool.damaged == 1
    spool.append([("gate", [event()]), ("new", [event()])])
    assert all(e["seq"] > began for e in stored(spool))
    spool.close()
    again = Spool(path)
    assert len(stored(again)) == 2
    again.close()


def test_file_damaged_while_in_use_is_replaced(path: Path) -> None:
    spool = Spool(path)
    for start in range(0, 3000, 100):
        spool.append([("gate", [event(track=start + i, note="x" * 2000) for i in range(100)])])
    spool.close()
    spool = Spool(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 4 : len(data) // 2] = b"\xa5" * (len(data) // 2 - len(data) // 4)
    path.write_bytes(data)  # in place: the same file, as a failing disk would change it
    assert spool.read(0, 10_000) == []
    spool.append([("gate", [event(track=-2)])])
    assert spool.damaged == 1
    assert [(e["track"], e["seq"]) for e in stored(spool)] == [(-2, 3001)]
    spool.close()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=64)), min_size=1, max_size=5), st.floats(0, 1)
)
def test_any_damage_is_survived(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[float, bytes]], length: float
) -> None:
    path = tmp_path_factory.mktemp("damage") / "spool.db"
    _fill(path, 60)
    data = bytearray(path.read_bytes())
    for where, what in cuts:
        at = int(where * len(data))
        data[at : at + len(what)] = what
    path.write_bytes(data[: max(int(length * 2 * len(data)), 1)])
    spool = Spool(path)
    spool.append([("gate", [event("enter", 5)])])
    spool.close_open_tracks("end", 0.0)
    last = spool.read(0, 1_000_000)[-1]
    assert json.loads(last.payload)["type"] == "leave"
    spool.remove([last.n])
    spool.close()


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"[]"])
def test_open_track_that_is_damaged_does_not_keep_the_agent_from_starting(path: Path, damage: bytes) -> None:
    spool = Spool(path)
    spool.append([("gate", [event("enter", 1)])])
    spool.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE open_track SET event = CAST(? AS TEXT)", (damage,))
    spool = Spool(path)
    assert spool.close_open_tracks("agent-restarted", 0.0) == 0
    assert spool.damaged == 1
    spool.append([("gate", [event("enter", 2)])])
    assert stored(spool)[-1]["seq"] == 2, "the sequence goes on"
    spool.close()


_FULL = """
import json, resource, sys
from pathlib import Path
from pyasc.agent.spool import Spool
spool = Spool(Path(sys.argv[1]))
spool.append([("gate", [{"id": "first", "type": "enter", "track": 1}])])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
for number in range(600):
    spool.append([("gate", [{"id": f"e{number}", "type": "cross", "track": 1, "note": "x" * 500}])])
full = spool.summary()
for start in range(0, 11_000, 50):
    spool.append([("gate", [{"id": f"f{start + i}", "type": "cross", "track": 1} for i in range(50)])])
over = spool.summary()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
spool.retry()
print(json.dumps([full, over, spool.summary(), [json.loads(row.payload) for row in spool.read(0, 99999)]]))
spool.close()
"""


def test_full_disk_keeps_events_in_memory_bounded_and_writes_them_later(path: Path) -> None:
    """The size limit of a process stands for the full disk: writes beyond it fail in the same place."""
    done = subprocess.run([sys.executable, "-c", _FULL, path], capture_output=True, text=True, check=True, timeout=120)
    full, over, later, events = json.loads(done.stdout)
    assert full["fault"]
    assert full["pending"] == 601
    assert full["dropped"] == 0
    assert over["dropped"] > 0
    assert later["fault"] is None
    assert later["dropped"] == over["dropped"]
    assert later["pending"] == len(events) == 601 + 11_000 - later["dropped"]
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
    assert events[-1]["id"] == "f10999"
    assert done.stderr.count("events wait in memory") <= 1


def test_file_shrinks_when_the_backlog_is_gone(path: Path) -> None:
    spool = Spool(path)
    spool.append([("gate", [event(note="x" * 500) for _ in range(4000)])])
    spool.close()
    spool = Spool(path)
    before = path.stat().st_size
    spool.remove(row.n for row in spool.read(0, 10_000))
    assert path.stat().st_size < before / 10
    spool.close()


def test_file_that_cannot_be_opened_now_is_tried_again(path: Path) -> None:
    path.mkdir(parents=True)
    spool = Spool(path)
    spool.append([("gate", [event(track=1)])])
    assert spool.summary()["pending"] == 1
    assert "unable to open" in str(spool.fault)
    assert spool.read(0, 10) == []
    path.rmdir()
    spool.retry()
    assert spool.fault is None
    assert [(e["track"], e["seq"]) for e in stored(spool)] == [(1, 1)]
    spool.close()
    spool.close()


@pytest.mark.parametrize(
    "bad",
    [
        5,
        {},
        {"id": 1, "type": "x"},
        {"id": "a"},
        {"id": "a", "type": "enter", "track": []},
        {"id": "a", "type": "x", "track": 2**70},
        {"id": "a", "type": "x", "zone": 3},
        {"id": "a", "type": "x", "score": float("nan")},
        {"id": "a", "type": "x", "more": {1}},
    ],
)
def test_malformed_event_is_left_out_alone(spool: Spool, bad: Any) -> None:
    assert spool.append([("gate", [event(track=1), bad]), ("gate", [event(track=2)])]) == 1
    assert [e["track"] for e in stored(spool)] == [1, 2]
    assert spool.damaged == 0
