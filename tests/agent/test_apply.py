"""Configurations on their way: what happens when the engine, the disk or a device does not go along."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyasc.agent import apply
from pyasc.agent.apply import Applier
from pyasc.agent.ended import EndedPipelines
from pyasc.agent.store import Store

Report = dict[str, Any]


def document(version: int, **pipelines: str) -> bytes:
    parts = {name: {"source": {"url": url}, "detector": {"plugin": "p"}} for name, url in pipelines.items()}
    return json.dumps({"version": version, "pipelines": parts}).encode()


class Bench:
    """An applier with the other side in the hands of the test: what it sends, kills and reports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.killed: list[str] = []
        self.reports: list[Report] = []
        self.store = Store(folder)
        self.applier = self.again()

    def again(self) -> Applier:
        """As after a restart of the agent."""
        ended = EndedPipelines(self.folder)
        self.applier = Applier(self.store, self.folder, self._send, self.killed.append, self.reports.append, ended)
        return self.applier

    def _send(self, kind: str, **fields: Any) -> bool:
        self.sent.append((kind, fields))
        return True

    def reply(self, **content: Any) -> None:
        assert self.applier.replied({"id": self.sent[-1][1]["id"], **content})

    def apply(self, version: int, **pipelines: str) -> None:
        """The way of a good one."""
        self.applier.offer(document(version, **pipelines))
        self.reply(ok=True)
        self.reply(ok=True)
        for name in pipelines:
            self.applier.pipeline_state(name, "running", None)
        assert (self.reports[-1]["version"], self.reports[-1]["state"]) == (version, "applied")

    @property
    def last(self) -> tuple[Any, str, list[str]]:
        report = self.reports[-1]
        return report["version"], report["state"], [error["path"] for error in report["errors"]]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.applier.engine_up()
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock that deadlines are measured with."""
    offset = [0.0]
    real = time.monotonic
    monkeypatch.setattr(apply.time, "monotonic", lambda: real() + offset[0])

    def move(seconds: float) -> None:
        offset[0] += seconds

    return move


def test_stored_before_it_is_switched_to_and_reported_after_it_came_up(bench: Bench) -> None:
    bench.applier.offer(document(1, gate="a"))
    assert [kind for kind, _ in bench.sent] == ["configure"]
    assert bench.store.current() is None
    bench.reply(ok=True)
    assert [kind for kind, _ in bench.sent] == ["configure", "commit"]
    stored = bench.store.current()
    assert stored is not None
    assert not stored.proven
    bench.reply(ok=True)
    bench.applier.pipeline_state("gate", "starting", None)
    assert bench.reports == []
    bench.applier.pipeline_state("gate", "running", None)
    assert bench.last == (1, "applied", [])
    assert bench.store.current() == bench.applier.current
    assert bench.applier.current is not None
    assert bench.applier.current.proven


def test_state_of_the_pipeline_that_is_replaced_proves_nothing(bench: Bench) -> None:
    bench.apply(1, gate="a", yard="a")
    bench.applier.offer(document(2, gate="b", yard="a"))
    bench.reply(ok=True)
    bench.applier.pipeline_state("gate", "stopped", None)  # the old one, on its way out
    bench.reply(ok=True)
    assert bench.last[:2] == (1, "applied")
    bench.applier.pipeline_state("yard", "failed", "no matter: it was not changed")
    bench.applier.pipeline_state("gate", "running", None)
    assert bench.last == (2, "applied", [])


def test_disk_that_takes_nothing_rejects(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.apply(1, gate="a")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pyasc.agent.store.write_atomic", full)
        bench.applier.offer(document(2, gate="b"))
        bench.reply(ok=True)
    assert bench.sent[-1][0] == "abort"
    assert bench.last[:2] == (2, "rejected")
    assert "No space left" in bench.reports[-1]["errors"][0]["message"]
    assert bench.applier.current is not None
    assert bench.applier.current.version == 1
    bench.apply(2, gate="b")


def test_engine_that_refuses_the_switch_is_given_the_one_before(bench: Bench) -> None:
    bench.apply(1, gate="a")
    bench.applier.offer(document(2, gate="b"))
    bench.reply(ok=True)
    bench.reply(ok=False, error="busy")
    assert bench.last[:2] == (2, "rolled-back")
    assert bench.sent[-1][1]["version"] == 1
    bench.reply(ok=True)
    bench.reply(ok=True)
    assert bench.last[:2] == (2, "rolled-back"), "what was said last stands"
    assert bench.applier.settled


@pytest.mark.parametrize("step", ["configure", "commit"])
def test_engine_that_does_not_answer_is_ended(bench: Bench, clock: Callable[[float], None], step: str) -> None:
    bench.apply(1, gate="a")
    bench.applier.offer(document(2, gate="b"))
    if step == "commit":
        bench.reply(ok=True)
    clock(apply.CONFIGURE_TIMEOUT_S + 1)
    bench.applier.tick()
    assert bench.killed == [f"no answer to {step}"]
    bench.applier.engine_gone(bench.killed[0])
    assert bench.last[:2] == ((2, "rejected") if step == "configure" else (1, "applied"))
    bench.applier.engine_up()
    assert bench.sent[-1][1]["version"] == (1 if step == "configure" else 2)


def test_pipeline_that_stays_in_starting_is_rolled_back(bench: Bench, clock: Callable[[float], None]) -> None:
    bench.applier.offer(document(1, gate="a", yard="b"))
    bench.reply(ok=True)
    bench.reply(ok=True)
    bench.applier.pipeline_state("yard", "running", None)
    clock(apply.PROVE_TIMEOUT_S + 1)
    bench.applier.tick()
    assert bench.last == (1, "rolled-back", ["pipelines.gate"])
    assert bench.store.current() is None
    assert bench.sent[-1][0] == "configure"
    assert bench.sent[-1][1]["pipelines"] == {}, "nothing is to run"


def test_proven_one_that_cannot_be_built_any_more_stays_wanted(bench: Bench, clock: Callable[[float], None]) -> None:
    bench.apply(1, gate="a")
    bench.applier.engine_gone("killed by SIGKILL")
    bench.applier.engine_up()
    bench.reply(ok=False, errors=[{"path": "pipelines.gate.detector.device", "message": "no such device"}])
    assert bench.last == (1, "rejected", ["pipelines.gate.detector.device"])
    assert bench.applier.fault is not None
    assert bench.applier.settled
    clock(apply.RETRY_S + 1)
    bench.applier.tick()
    bench.reply(ok=True)
    bench.reply(ok=True)
    assert bench.last == (1, "applied", [])
    assert bench.applier.fault is None


def test_agent_killed_while_it_tried_one_can_still_go_back(bench: Bench) -> None:
    bench.apply(1, gate="a")
    bench.applier.offer(document(2, gate="b"))
    bench.reply(ok=True)
    bench.again().engine_up()
    assert bench.sent[-1][1]["version"] == 2
    bench.reply(ok=True)
    bench.reply(ok=True)
    bench.applier.pipeline_state("gate", "failed", "no")
    assert bench.last == (2, "rolled-back", ["pipelines.gate"])
    assert bench.sent[-1][1]["version"] == 1
    bench.again().offer(document(2, gate="b"))
    assert bench.last == (2, "rolled-back", ["pipelines.gate"]), "not tried again, also after a restart"


def test_newer_one_replaces_one_that_is_being_proven(bench: Bench) -> None:
    bench.apply(1, gate="a")
    bench.applier.offer(document(2, gate="b"))
    bench.reply(ok=True)
    bench.reply(ok=True)
    bench.applier.offer(document(3, gate="c"))
    assert bench.last == (2, "rejected", ["version"])
    bench.reply(ok=True)
    bench.reply(ok=True)
    bench.applier.pipeline_state("gate", "failed", "no")
    assert bench.last[:2] == (3, "rolled-back")
    assert bench.sent[-1][1]["version"] == 1, "back to the one that was proven"


def test_newer_one_waits_while_another_is_built_and_only_the_newest_is_tried(bench: Bench) -> None:
    bench.applier.offer(document(1, gate="a"))
    bench.applier.offer(document(2, gate="b"))
    bench.applier.offer(document(3, gate="c"))
    assert bench.last == (2, "rejected", ["version"])
    assert len(bench.sent) == 1
    bench.reply(ok=False, error="no")
    assert bench.last[:2] == (1, "rejected")
    assert bench.sent[-1][1]["version"] == 3


def test_offered_while_the_engine_is_away(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.applier.offer(document(1, gate="a"))
    assert bench.sent == []
    bench.applier.engine_up()
    assert bench.sent[-1][1]["version"] == 1


def test_newer_one_goes_before_a_stored_one_that_ends_the_engine(bench: Bench) -> None:
    bench.apply(1, gate="a", yard="b")
    bench.applier.engine_gone("killed by SIGSEGV")
    bench.applier.offer(document(2, gate="c", yard="b"))
    bench.applier.engine_up()
    assert bench.sent[-1][1]["version"] == 2
    bench.reply(ok=False, error="no")
    assert bench.last[:2] == (2, "rejected")
    assert bench.sent[-1][1]["version"] == 1, "what is stored is given to the engine after all"
    bench.applier.engine_gone("killed by SIGSEGV")
    bench.applier.offer(document(3, gate="d", yard="b"))
    bench.applier.engine_up()
    bench.reply(ok=True)
    bench.reply(ok=True)
    bench.applier.pipeline_state("gate", "running", None)
    assert bench.last[:2] == (2, "rejected"), "with a new engine all pipelines have to come up"
    bench.applier.pipeline_state("yard", "running", None)
    assert bench.last[:2] == (3, "applied")


def test_disabled_pipeline_needs_not_come_up(bench: Bench) -> None:
    parts = {"gate": {"enabled": False, "source": {"url": "a"}, "detector": {"plugin": "p"}}}
    bench.applier.offer(json.dumps({"version": 1, "pipelines": parts}).encode())
    bench.reply(ok=True)
    bench.reply(ok=True)
    assert bench.last == (1, "applied", [])


BROKEN = b'{"version": 2, "colour": 1, "pipelines": {"gate": {"source": {"url": "a"}, "detector": {"plugin": "p"}}}}'
UNKNOWN_OPTION = {"path": "pipelines.gate.detector.confidenc", "message": "unknown key"}


def test_faults_of_plugins_come_in_the_same_report(bench: Bench) -> None:
    bench.apply(1, gate="a")
    count = len(bench.reports)
    bench.applier.offer(BROKEN)
    assert bench.sent[-1][0] == "check"
    assert list(bench.sent[-1][1]["pipelines"]) == ["gate"]
    bench.reply(ok=False, errors=[UNKNOWN_OPTION])
    assert bench.last == (2, "rejected", ["colour", "pipelines.gate.detector.confidenc"])
    assert len(bench.reports) == count + 1
    assert not bench.applier.replied({"id": bench.sent[-1][1]["id"], "ok": True}), "answered once"


def test_place_that_is_named_already_is_not_named_again(bench: Bench) -> None:
    bench.applier.offer(
        b'{"version": 1, "pipelines": {"gate": {"source": {"url": "a"}, "detector": {"plugin": "p p"}}}}'
    )
    bench.reply(ok=False, errors=[{"path": "pipelines.gate.detector.plugin", "message": "no plugin"}])
    assert bench.last == (1, "rejected", ["pipelines.gate.detector.plugin"])
    assert "does not fit" in bench.reports[-1]["errors"][0]["message"]


@pytest.mark.parametrize("how", ["late", "gone", "failed"])
def test_engine_that_cannot_check_leaves_the_known_faults(
    bench: Bench, clock: Callable[[float], None], how: str
) -> None:
    bench.applier.offer(BROKEN)
    assert bench.reports == []
    if how == "late":
        bench.applier.tick()
        assert bench.reports == []
        clock(apply.CHECK_TIMEOUT_S)
        bench.applier.tick()
    elif how == "gone":
        bench.applier.engine_gone("killed by SIGKILL")
    else:
        bench.reply(ok=False, error="ImportError: no module")
    assert bench.last == (2, "rejected", ["colour"])
    assert len(bench.reports) == 1


def test_refusals_are_told_in_the_order_of_the_documents(bench: Bench) -> None:
    bench.applier.offer(BROKEN)
    bench.applier.offer(BROKEN.replace(b"colour", b"color").replace(b"2", b"3", 1))
    assert bench.last == (2, "rejected", ["colour"])
    bench.applier.offer(document(4, gate="a"))
    assert bench.last == (3, "rejected", ["color"])
    assert [kind for kind, _ in bench.sent] == ["check", "check", "configure"]


def test_engine_that_is_starting_is_waited_for(tmp_path: Path, clock: Callable[[float], None]) -> None:
    bench = Bench(tmp_path)
    bench.applier.offer(BROKEN)
    assert (bench.sent, bench.reports) == ([], [])
    bench.applier.engine_up()
    bench.reply(ok=False, errors=[UNKNOWN_OPTION])
    assert bench.last == (2, "rejected", ["colour", "pipelines.gate.detector.confidenc"])
    bench.applier.engine_gone("killed by SIGKILL")
    bench.applier.offer(BROKEN.replace(b"2", b"3", 1))
    clock(apply.CHECK_TIMEOUT_S)
    bench.applier.tick()
    assert bench.last == (3, "rejected", ["colour"])


def test_engine_is_not_asked_where_nothing_is_to_be_checked(bench: Bench) -> None:
    bench.applier.offer(b"version: 3")
    assert bench.last == (3, "rejected", ["pipelines"])
    assert bench.sent == []


def test_stale_document_that_stands_at_the_broker_does_not_hide_the_report_of_what_runs(bench: Bench) -> None:
    bench.apply(2, gate="a")
    count = len(bench.reports)
    bench.applier.offer(document(1, gate="b"), True)
    bench.applier.offer(b'{"version": 1, "pipelines": {"gate": {"x": 1}}}', True)
    assert (len(bench.reports), bench.sent[-1][0]) == (count, "commit")
    again = bench.again()
    again.offer(document(1, gate="b"), True)
    again.engine_up()
    bench.reply(ok=True)
    bench.reply(ok=True)
    assert bench.last == (2, "applied", [])
    again.offer(document(1, gate="b"))
    bench.reply(ok=True)
    assert bench.last == (1, "rejected", ["version"])
    again.offer(document(3, gate="b"), True)
    assert bench.sent[-1][0] == "configure"


def test_stale_version_is_named_beside_other_faults(bench: Bench) -> None:
    bench.apply(3, gate="a")
    bench.applier.offer(BROKEN)
    bench.reply(ok=True)
    assert bench.last == (2, "rejected", ["colour", "version"])


def test_cleared_retained_message_is_nothing(bench: Bench) -> None:
    bench.applier.offer(b"")
    assert (bench.sent, bench.reports) == ([], [])


def test_answer_to_something_else_is_not_taken(bench: Bench) -> None:
    bench.applier.offer(document(1, gate="a"))
    assert not bench.applier.replied({"id": "cmd-1", "ok": True})
    assert not bench.applier.replied({"ok": True})
