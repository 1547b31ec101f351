"""Events on disk between the engine that makes them and the broker that acknowledges them.

SQLite in WAL mode with `synchronous=FULL`: what `append` has returned from survives a power cut. A removal need not: a lost one
means that the event is published once more, with the same id.

Bounds: the oldest events are dropped first, counted, and leave a gap in `seq` that a receiver sees. While the disk takes nothing
(full, read-only), events wait in memory, bounded, and are written when it does again. A damaged file is moved aside and a new one
begun; `seq` goes on from where the damaged one can still be read, else from the seconds since 1970, which no count reaches.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import sqlite3
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pyasc.agent.clock import rfc3339

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_TABLES = """
CREATE TABLE event (
    n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, pipeline TEXT NOT NULL, added REAL NOT NULL, payload BLOB NOT NULL
);
CREATE TABLE sequence (pipeline TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE open_track (
    pipeline TEXT NOT NULL, track INTEGER NOT NULL, zone TEXT NOT NULL, event TEXT NOT NULL, PRIMARY KEY (pipeline, track, zone)
) WITHOUT ROWID;
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
PRAGMA user_version = 1;
"""
# A clock that says less than this has not been set yet (a box without battery starts in 1970): age is unknown.
_CLOCK_IS_SET = 1_700_000_000.0
_RECENT_IDS = 4096
_WAITING_EVENTS = 10_000
_VACUUM_AFTER_EVENTS = 2000

Batch = tuple[str, Sequence[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """Bounds of the spool; what is over them is dropped, oldest first."""

    max_bytes: int = 64 * 1024 * 1024
    max_events: int = 200_000
    max_age_s: float = 7 * 86400.0


class Row(NamedTuple):
    """One event that waits for its acknowledgement; `payload` is what is published."""

    n: int
    pipeline: str
    payload: bytes


class Spool:
    """The events of a box. Used from one thread.

    Attributes:
        fault: why the disk takes no events now; None when it does.
        dropped: events lost to the bounds since the spool was first made.
        damaged: how often a damaged file was moved aside since this object was made; the numbers of rows then begin anew.
    """

    def __init__(self, path: Path, limits: SpoolLimits | None = None) -> None:
        """Open or make the file.

        A file that cannot be opened now, such as on a full disk, is tried again; `fault` says why.

        Raises:
            OSError: the folder cannot be made.
        """
        self._path = path
        self._limits = limits or SpoolLimits()
        self._waiting: deque[Batch] = deque()
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._removed_since_vacuum = 0
        self._first_seq = self._count = self._bytes = self._stored_dropped = 0
        self._dropping = False
        self._connection: sqlite3.Connection | None = None
        self._rescued: dict[str, int] | None = {}  # sequences for a new file; None: they could not be read
        self.fault: str | None = None
        self.damaged = 0
        self.dropped = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._guard(self._opened, None)

    def append(self, batches: Iterable[Batch]) -> int:
        """Store events, each batch with its pipeline's name, in one transaction; each gets the next `seq` of its pipeline.

        An event needs `id` and `type`, its `track` is a number, all of it is JSON. Others are left out; returns how many.

        An event whose id is stored, or was among the last few thousand, is left out. `enter` opens a track (or its stay in a zone),
        `leave` closes it. When the disk takes nothing, the events wait in memory and `fault` says why.
        """
        refused = 0
        for pipeline, events in batches:
            sound = [event for event in events if _is_sound(event)]
            self._waiting.append((pipeline, sound))
            refused += len(events) - len(sound)
        if self._waiting:
            self._flush()
        return refused

    def retry(self) -> None:
        """Write what waits in memory, if anything does, and see whether a fault of the disk is over."""
        if self._waiting or self.fault is not None:
            self._flush()

    def read(self, after: int, limit: int) -> list[Row]:
        """Up to `limit` events in order, from the first whose number is above `after`."""
        query = "SELECT n, pipeline, payload FROM event WHERE n > ? ORDER BY n LIMIT ?"
        none: list[Any] = []
        return [Row(*row) for row in self._guard(lambda: self._db.execute(query, (after, limit)).fetchall(), none)]

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget events that the broker has acknowledged; numbers that are gone already are passed over."""
        rows = [(number,) for number in numbers]
        if rows:
            self._guard(lambda: self._remove(rows), None)

    def close_open_tracks(self, reason: str, time_s: float) -> int:
        """Write a `leave` event with a reason for each track, and each stay in a zone, that is open; returns how many.

        Args:
            reason: such as `engine-restarted`.
            time_s: time of the events, seconds since 1970. One that entered later than that leaves when it entered: frames of a
                file that is read faster than it plays have times ahead of the clock.
        """
        none: list[tuple[str, dict[str, Any]]] = []
        rows = self._guard(self._open_tracks, none)
        batches: list[Batch] = []
        for pipeline, entered in rows:
            time_ = max(
                rfc3339(time_s), str(entered.get("time", ""))
            )  # of one form, so the later one is the greater text
            event = {**entered, "id": str(uuid.uuid4()), "time": time_, "type": "leave"}
            batches.append((pipeline, [{**event, "reason": reason}]))
        self.append(batches)
        return len(batches)

    def summary(self) -> dict[str, Any]:
        """What telemetry says of it; `oldest` is when the oldest event was stored, `fault` why the disk takes none, or None."""
        oldest = self._guard(lambda: self._db.execute("SELECT added FROM event ORDER BY n LIMIT 1").fetchone(), None)
        return {
            "pending": self._count + sum(len(events) for _, events in self._waiting),
            "bytes": self._bytes,
            "dropped": self.dropped,
            "oldest": None if oldest is None else rfc3339(oldest[0]),
            "damaged": self.damaged,
            "fault": self.fault,
        }

    def close(self) -> None:
        """Write what waits and close the file; a second call does nothing."""
        self.retry()
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._close()

    def _open_tracks(self) -> list[tuple[str, dict[str, Any]]]:
        query = "SELECT pipeline, event FROM open_track ORDER BY pipeline, track, zone DESC"
        rows = [(pipeline, _parsed(text)) for pipeline, text in self._db.execute(query).fetchall()]
        if not all(isinstance(event, dict) for _, event in rows):
            raise sqlite3.DatabaseError("an open track cannot be read")
        return rows

    # --- writing

    def _flush(self) -> None:
        """Write the waiting batches, some hundred events a transaction, so that a long outage of the disk ends in bounded steps."""
        while self._waiting or self.fault is not None:
            part = list(itertools.islice(self._waiting, 256))
            try:
                self._write(part)
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if self._mended(error):
                    continue
                self._bound_waiting()
                return
            for _ in part:
                self._waiting.popleft()
            if self.fault is not None:
                _log.info("the disk takes events again: %s", self._path)
                self.fault = None

    def _write(self, batches: Sequence[Batch]) -> None:
        count, size, dropped, ids = 0, 0, self.dropped, []
        with self._transaction():
            for pipeline, events in batches:
                seq = self._sequence(pipeline)
                for event in events:
                    if event["id"] in self._recent:
                        continue
                    payload = _payload(event, seq + 1)
                    stored = self._db.execute(
                        "INSERT OR IGNORE INTO event (id, pipeline, added, payload) VALUES (?, ?, ?, ?)",
                        (event["id"], pipeline, time.time(), payload),
                    )
                    if stored.rowcount == 0:
                        continue
                    seq, count, size = seq + 1, count + 1, size + len(payload)
                    ids.append(event["id"])
                    self._track(pipeline, event)
                self._db.execute("INSERT OR REPLACE INTO sequence VALUES (?, ?)", (pipeline, seq))
            lost, lost_bytes = self._drop(self._count + count, self._bytes + size)
            if lost or dropped != self._stored_dropped or self.fault is not None:
                self._db.execute("INSERT OR REPLACE INTO counter VALUES ('dropped', ?)", (dropped + lost,))
        self.dropped = self._stored_dropped = dropped + lost
        self._count += count - lost
        self._bytes += size - lost_bytes
        self._recent.update(dict.fromkeys(ids))
        while len(self._recent) > _RECENT_IDS:
            self._recent.popitem(last=False)

    def _sequence(self, pipeline: str) -> int:
        row = self._db.execute("SELECT seq FROM sequence WHERE pipeline = ?", (pipeline,)).fetchone()
        return self._first_seq if row is None else int(row[0])

    def _track(self, pipeline: str, event: dict[str, Any]) -> None:
        key = (pipeline, event.get("track"), event.get("zone", ""))
        if key[1] is None:
            return
        if event["type"] == "enter":
            self._db.execute("INSERT OR REPLACE INTO open_track VALUES (?, ?, ?, ?)", (*key, json.dumps(event)))
        elif event["type"] == "leave":
            self._db.execute("DELETE FROM open_track WHERE pipeline = ? AND track = ? AND zone = ?", key)

    def _drop(self, count: int, size: int) -> tuple[int, int]:
        """Delete from the oldest on what is over the bounds; returns how many events and bytes."""
        lost, lost_bytes, last, too_old = 0, 0, 0, time.time() - self._limits.max_age_s
        for n, added, length in self._db.execute("SELECT n, added, length(payload) FROM event ORDER BY n"):
            aged = _CLOCK_IS_SET < added < too_old
            if count - lost <= self._limits.max_events and size - lost_bytes <= self._limits.max_bytes and not aged:
                break
            lost, lost_bytes, last = lost + 1, lost_bytes + length, n
        if lost:
            self._db.execute("DELETE FROM event WHERE n <= ?", (last,))
            if not self._dropping:
                _log.warning("the spool is at its bounds: the oldest events are dropped")
        self._dropping = lost > 0
        return lost, lost_bytes

    def _bound_waiting(self) -> None:
        total = sum(len(events) for _, events in self._waiting)
        while total > _WAITING_EVENTS:
            _, events = self._waiting.popleft()
            total -= len(events)
            self.dropped += len(events)

    def _remove(self, rows: Sequence[tuple[int]]) -> None:
        count, size = 0, 0
        with self._transaction():
            for row in rows:
                found = self._db.execute("SELECT length(payload) FROM event WHERE n = ?", row).fetchone()
                if found is not None:
                    self._db.execute("DELETE FROM event WHERE n = ?", row)
                    count, size = count + 1, size + found[0]
        self._count -= count
        self._bytes -= size
        self._removed_since_vacuum += count
        if self._count == 0 and self._removed_since_vacuum > _VACUUM_AFTER_EVENTS:
            self._removed_since_vacuum = 0
            # A script steps to the end; execute() would give back a single page.
            self._db.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE);")

    # --- the file

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def _guard(self, action: Callable[[], _T], otherwise: _T) -> _T:
        """Do it; when the file is damaged begin a new one, when the disk fails say so; both give `otherwise`."""
        try:
            return action()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            self._mended(error)
        return otherwise

    def _mended(self, error: sqlite3.DatabaseError | UnicodeDecodeError) -> bool:
        """True after a damaged file was put aside; False for a fault of the disk, which may pass. Our own mistakes are raised.

        Text that is damaged, also in what SQLite says of the damage, cannot be decoded.
        """
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.DataError | sqlite3.NotSupportedError):
            raise error
        if isinstance(error, sqlite3.OperationalError) and not str(error).startswith(("no such", "Could not decode")):
            if self.fault is None:
                _log.error("events wait in memory: %s: %s", self._path, error)
            self.fault = str(error)
            return False
        self._begin_anew(error)
        return True

    @property
    def _db(self) -> sqlite3.Connection:
        return self._connection or self._opened()

    def _opened(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, timeout=5.0)
        try:
            new = db.execute("PRAGMA user_version").fetchone()[0] == 0
            if new:
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA journal_size_limit = 4194304")
            if new:
                self._make_tables(db)
            check = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if check != "ok":
                raise sqlite3.DatabaseError(check)
            counters = dict(db.execute("SELECT name, value FROM counter").fetchall())
            counted = db.execute("SELECT count(*), coalesce(sum(length(payload)), 0) FROM event").fetchone()
        except BaseException:
            db.close()
            raise
        self._first_seq = int(counters.get("first_seq", 0))
        # What was dropped and could not be written down yet is added.
        self.dropped += int(counters.get("dropped", 0)) - self._stored_dropped
        self._stored_dropped = int(counters.get("dropped", 0))
        self._count, self._bytes = (int(number) for number in counted)
        self._connection = db
        return db

    def _make_tables(self, db: sqlite3.Connection) -> None:
        """All in one transaction: a new file is whole or empty."""
        first_seq = int(time.time()) if self._rescued is None else 0
        db.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";"):
            db.execute(statement)
        db.execute("INSERT INTO counter VALUES ('first_seq', ?)", (first_seq,))
        db.executemany("INSERT INTO sequence VALUES (?, ?)", (self._rescued or {}).items())
        db.execute("COMMIT")

    def _begin_anew(self, error: Exception) -> None:
        """Move a damaged file aside and begin a new one, with as much of the sequences as can be read."""
        self._close()
        self._rescued = _rescue(self._path)
        aside = self._path.with_name(f"{self._path.name}.damaged")
        for suffix in ("", "-wal", "-shm"):
            part = self._path.with_name(self._path.name + suffix)
            with contextlib.suppress(FileNotFoundError):
                part.replace(aside.with_name(aside.name + suffix))
        self.damaged += 1
        self._count = self._bytes = self._stored_dropped = 0
        _log.error("the spool was damaged (%s): moved to %s, begun anew", error, aside)

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _is_sound(event: object) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("id"), str) or not isinstance(event.get("type"), str):
        return False
    track = event.get("track")
    if not (track is None or (type(track) is int and abs(track) < 2**63)) or not isinstance(event.get("zone", ""), str):
        return False
    try:
        json.dumps(event, allow_nan=False)
    except (ValueError, TypeError):
        return False
    return True


def _parsed(text: Any) -> Any:
    """The JSON in a column; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None


def _payload(event: dict[str, Any], seq: int) -> bytes:
    rest = {key: value for key, value in event.items() if key not in ("id", "seq")}
    text = json.dumps({"id": event["id"], "seq": seq, **rest}, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def _rescue(path: Path) -> dict[str, int] | None:
    """The sequences of a damaged file; None when they cannot be read."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            sequences = dict(db.execute("SELECT pipeline, seq FROM sequence").fetchall())
    except (sqlite3.Error, UnicodeDecodeError):
        return None
    return {str(pipeline): int(seq) for pipeline, seq in sequences.items()}
