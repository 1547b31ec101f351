"""From a configuration that came in to one that runs: checked, built by the engine, stored, switched to, proven, or undone.

    received -> checked -> `configure` (the engine builds it beside what runs) -> stored -> `commit` -> proving -> applied
                 |              |                                                     |          |
              rejected       rejected                                            rolled back  rolled back

A configuration is proven when each pipeline that it changes runs, waits for its source or has come to its end. One that fails,
stays in `starting` or takes the engine with it twice is undone: the last proven one is given to the engine again, and the undone
one, which may stand retained at the broker, is not tried again under the same content.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyasc.agent.config import MAX_FAULTS, check_version, digest, merge_faults, parse_document, validate
from pyasc.agent.ended import EndedPipelines
from pyasc.agent.masking import mask
from pyasc.agent.store import Refused, Store, Stored
from pyasc.errors import ConfigError, ConfigFault

_log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 5.0
CONFIGURE_TIMEOUT_S = 120.0
COMMIT_TIMEOUT_S = 30.0
PROVE_TIMEOUT_S = 60.0
RETRY_S = 60.0
MAX_CRASHES = 2
_GOOD_STATES = ("running", "reconnecting", "stopped")


@dataclass
class _Trial:
    """A configuration on its way. `step` is configure, commit or prove; `again` when it is stored already."""

    stored: Stored
    again: bool
    step: str
    request: int
    deadline: float
    changed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Refusal:
    """A document that is refused already, until the engine has said what is wrong with its plugins, or is late."""

    version: int | None
    sha256: str
    pipelines: Any
    faults: list[ConfigFault]
    request: int
    deadline: float


class Applier:
    """Used from the main loop only.

    Attributes:
        current: the configuration that is stored, and runs where the engine does; None when there is none.
        fault: why the stored configuration does not run; None when it does.
        settled: whether the engine that runs now has answered for the stored configuration.
    """

    def __init__(
        self,
        store: Store,
        model_dir: Path,
        send: Callable[..., bool],
        kill_engine: Callable[[str], None],
        report: Callable[[dict[str, Any]], None],
        ended: EndedPipelines,
    ) -> None:
        """Read what is stored.

        Args:
            store: where accepted configurations are.
            model_dir: where models are.
            send: to the engine, as `Supervisor.send`.
            kill_engine: ends an engine that does not answer, with the reason.
            report: publishes the content of the topic `config`.
            ended: the pipelines that a new engine shall not run again.
        """
        self._store, self._model_dir = store, model_dir
        self._send, self._kill_engine, self._report = send, kill_engine, report
        self._ended = ended
        self.current = store.current()
        self.fault: str | None = None
        self.settled = False
        self._proven = self.current if self.current is None or self.current.proven else store.previous()
        self._refused = store.refused()
        self._next: Stored | None = None
        self._trial: _Trial | None = None
        self._refusal: _Refusal | None = None
        self._states: dict[str, tuple[str, str | None]] = {}
        self._engine_up = False
        self._crashes = 0
        self._said = False
        self._retry_at: float | None = None
        self._numbers = itertools.count(1)

    @property
    def pipelines(self) -> dict[str, Any]:
        """The pipelines of the stored configuration, by name."""
        return {} if self.current is None else dict(self.current.document["pipelines"])

    # --- what happens outside

    def offer(self, payload: bytes, retained: bool = False) -> None:
        """Take a document from the topic `config/set`; an empty one, which clears the retained message, is nothing.

        Args:
            payload: the message.
            retained: it stood at the broker. If it is stale, then nobody has sent it now: the report of what runs stays.
        """
        if not payload:
            return
        self._refuse_now()  # what is said of documents comes in the order of the documents
        try:
            document = parse_document(payload)
        except ConfigError as error:
            self._say(None, "rejected", list(error.faults), None)
            return
        version = document["version"] if type(document.get("version")) is int else None
        stored = Stored(document, digest(document))
        faults = validate(document, model_dir=self._model_dir)
        newest = self._next or self.current
        if retained and version is not None and newest is not None and version < newest.version:
            _log.info("configuration %d, retained at the broker, is passed over: %d is newer", version, newest.version)
            return
        if not any(fault.path == "version" for fault in faults):
            fault = check_version(stored.version, stored.sha256, _mark(newest))
            faults = faults if fault is None else merge_faults(faults, [fault])
        if faults:
            self._refuse(version, stored, faults)
        elif self._refused is not None and self._refused.sha256 == stored.sha256:
            errors = [ConfigFault(**error) for error in self._refused.errors]
            self._say(version, "rolled-back", errors, stored.sha256)
        elif newest is not None and newest.sha256 == stored.sha256:
            self._say_again()
        else:
            if self._next is not None:
                self._supersede(self._next)
            self._next = stored
            self._advance()

    def engine_up(self) -> None:
        """The engine takes messages: give it the newest document, else the stored configuration.

        A newer one goes first: it may be the remedy for one that ends the engine again and again.
        """
        self._engine_up = True
        self._states.clear()
        self._ask()
        self._advance()

    def engine_gone(self, how: str) -> None:
        """The engine has ended."""
        self._engine_up = self.settled = False
        self._retry_at = None
        self._refuse_now()
        trial, self._trial = self._trial, None
        if trial is None:
            return
        if not trial.again and trial.step == "configure":
            fault = ConfigFault("", f"the engine ended while it built this configuration: {how}")
            self._say(trial.stored.version, "rejected", [fault], trial.stored.sha256)
        elif not trial.stored.proven:
            self._crashes += 1
            if self._crashes >= MAX_CRASHES:
                fault = ConfigFault(
                    "", f"the engine ended {self._crashes} times in a row with this configuration: {how}"
                )
                self._roll_back(trial.stored, [fault])

    def replied(self, message: dict[str, Any]) -> bool:
        """Take a `reply` of the engine; False when it answers something else."""
        trial, refusal = self._trial, self._refusal
        if refusal is not None and message.get("id") == refusal.request:
            self._refuse_now(_faults(message) if message.get("errors") else [])
            return True
        if trial is None or trial.step == "prove" or message.get("id") != trial.request:
            return False
        faults = _faults(message)
        if trial.step == "configure":
            self._configured(trial, faults)
        else:
            self._committed(trial, faults)
        return True

    def pipeline_state(self, name: str, state: str, reason: str | None) -> None:
        """Take a pipeline's state from the engine."""
        self._states[name] = (state, reason)
        self._prove()

    def tick(self) -> None:
        """Look at the deadlines."""
        now, trial = time.monotonic(), self._trial
        if self._refusal is not None and now >= self._refusal.deadline:
            self._refuse_now()
        if self._retry_at is not None and now >= self._retry_at and trial is None and self.current is not None:
            self._begin(self.current, again=True)
        if trial is None or now < trial.deadline:
            return
        if trial.step != "prove":
            self._kill_engine(f"no answer to {trial.step}")
            trial.deadline = now + CONFIGURE_TIMEOUT_S  # engine_gone comes before
            return
        waiting = [name for name in sorted(trial.changed) if self._states.get(name, ("",))[0] not in _GOOD_STATES]
        message = f"did not come up within {PROVE_TIMEOUT_S:.0f} s"
        self._trial = None
        self._roll_back(trial.stored, [ConfigFault(f"pipelines.{name}", message) for name in waiting])

    # --- refusals

    def _refuse(self, version: int | None, stored: Stored, faults: list[ConfigFault]) -> None:
        """Report the faults together with those of plugins and their options, which only the engine can name."""
        pipelines, deadline = stored.document.get("pipelines"), time.monotonic() + CHECK_TIMEOUT_S
        self._refusal = _Refusal(version, stored.sha256, pipelines, faults, next(self._numbers), deadline)
        if not isinstance(pipelines, dict):
            self._refuse_now()
        elif self._engine_up:
            self._ask()

    def _ask(self) -> None:
        refusal = self._refusal
        if refusal is not None and not self._send("check", id=refusal.request, pipelines=refusal.pipelines):
            self._refuse_now()

    def _refuse_now(self, more: Iterable[ConfigFault] = ()) -> None:
        """Report the refusal that waits for the engine, if there is one."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            self._say(refusal.version, "rejected", merge_faults(refusal.faults, more), refusal.sha256)

    # --- the steps

    def _advance(self) -> None:
        """Begin with the newest document as soon as the engine can take it, else with what it has not been given yet."""
        if not self._engine_up:
            return
        if self._next is None:
            if self.current is None:
                self.settled = True
            elif self._trial is None and not self.settled:
                self._begin(self.current, again=True)
            return
        if self._trial is not None:
            if self._trial.step != "prove":
                return
            if not self._trial.stored.proven:
                self._supersede(self._trial.stored)
        stored, self._next = self._next, None
        self._begin(stored, again=False)

    def _begin(self, stored: Stored, again: bool) -> None:
        self._retry_at = None
        request = next(self._numbers)
        self._trial = _Trial(stored, again, "configure", request, time.monotonic() + CONFIGURE_TIMEOUT_S)
        self._send(
            "configure",
            id=request,
            version=stored.version,
            pipelines=stored.document["pipelines"],
            ended=self._ended.among(stored.document["pipelines"]),
            model_dir=str(self._model_dir),
        )

    def _configured(self, trial: _Trial, faults: list[ConfigFault]) -> None:
        if faults:
            self._trial = None
            self._not_built(trial, faults)
            self._advance()
            return
        if not trial.again:
            try:
                self._store.save(trial.stored, self._proven)
            except OSError as error:
                self._trial = None
                self._send("abort", id=next(self._numbers))
                fault = ConfigFault("", f"cannot be stored: {error}")
                self._say(trial.stored.version, "rejected", [fault], trial.stored.sha256)
                self._advance()
                return
            self._crashes = 0
            self.current = trial.stored
        trial.changed = self._changed(trial)
        trial.step, trial.request = "commit", next(self._numbers)
        trial.deadline = time.monotonic() + COMMIT_TIMEOUT_S
        self._send("commit", id=trial.request)

    def _not_built(self, trial: _Trial, faults: list[ConfigFault]) -> None:
        if not trial.again:
            self._say(trial.stored.version, "rejected", faults, trial.stored.sha256)
        elif not trial.stored.proven:
            self._roll_back(trial.stored, faults)
        else:
            self._not_restored(trial.stored, faults)

    def _not_restored(self, stored: Stored, faults: list[ConfigFault]) -> None:
        """It ran before, so a device or a model is away: it stays the wanted one and is tried again."""
        self.settled = True
        self.fault = f"configuration {stored.version} cannot be built: {ConfigError(faults)}"
        self._retry_at = time.monotonic() + RETRY_S
        self._say(stored.version, "rejected", faults, stored.sha256)

    def _committed(self, trial: _Trial, faults: list[ConfigFault]) -> None:
        stored = trial.stored
        if faults:
            self._trial = None
            if stored.proven:
                self._not_restored(stored, faults)
            else:
                self._roll_back(stored, faults)
            return
        for name in trial.changed:  # what was said before is of the pipelines that were replaced
            self._states.pop(name, None)
        trial.step, trial.deadline = "prove", time.monotonic() + PROVE_TIMEOUT_S
        if stored.proven:
            self._trial = None
            self.settled = True
            # Restoring it changes nothing of what was last said, such as that a later one was rolled back.
            if stored is not _NOTHING and (self.fault is not None or not self._said):
                self._say(stored.version, "applied", [], stored.sha256)
            self.fault = None
        else:
            self._prove()
        self._advance()

    def _prove(self) -> None:
        trial = self._trial
        if trial is None or trial.step != "prove":
            return
        states = {name: self._states.get(name, ("starting", None)) for name in sorted(trial.changed)}
        failed = [(name, reason) for name, (state, reason) in states.items() if state == "failed"]
        if failed:
            self._trial = None
            faults = [ConfigFault(f"pipelines.{name}", reason or "failed") for name, reason in failed]
            self._roll_back(trial.stored, faults)
        elif all(state in _GOOD_STATES for state, _ in states.values()):
            self._trial = None
            proven = replace(trial.stored, proven=True)
            try:
                self._store.save(proven, self._proven)
            except OSError as error:
                _log.error("configuration %d runs and cannot be marked as proven: %s", proven.version, error)
            self.current = self._proven = proven
            self._crashes, self.fault = 0, None
            self.settled = True
            self._say(proven.version, "applied", [], proven.sha256)
            self._advance()

    def _roll_back(self, bad: Stored, faults: list[ConfigFault]) -> None:
        self._refused = Refused(bad.version, bad.sha256, _errors(faults))
        self._crashes = 0
        self.current = self._proven
        try:
            self._store.refuse(self._refused)
            self._store.go_back(self._proven)
        except OSError as error:
            _log.error("going back to the previous configuration cannot be stored: %s", error)
        self._say(bad.version, "rolled-back", faults, bad.sha256)
        if self._next is not None:
            self._advance()
        elif self._engine_up:
            self._begin(self.current or _NOTHING, again=True)

    def _changed(self, trial: _Trial) -> frozenset[str]:
        """The enabled pipelines that differ from the proven configuration; all of them where the engine begins anew."""
        anew = trial.again or not self.settled or self._proven is None
        before = {} if anew or self._proven is None else self._proven.document["pipelines"]
        pipelines = trial.stored.document["pipelines"].items()
        return frozenset(name for name, part in pipelines if part != before.get(name) and part.get("enabled", True))

    # --- reports

    def _supersede(self, stored: Stored) -> None:
        fault = ConfigFault("version", "a newer document came before this one was applied")
        self._say(stored.version, "rejected", [fault], stored.sha256)

    def _say_again(self) -> None:
        """The wanted configuration came once more: say how it stands, if it stands already."""
        if self._trial is None and self._next is None and self.current is not None and self.settled and not self.fault:
            self._say(self.current.version, "applied", [], self.current.sha256)

    def _say(self, version: int | None, state: str, faults: list[ConfigFault], sha256: str | None) -> None:
        level = logging.INFO if state == "applied" else logging.WARNING
        _log.log(level, "configuration %s is %s%s", version, state, f": {ConfigError(faults)}" if faults else "")
        running = None
        if self.current is not None:
            running = {"version": self.current.version, "sha256": self.current.sha256}
        report = {"version": version, "state": state, "errors": _errors(faults), "sha256": sha256, "running": running}
        self._said = True
        self._report(report)


_NOTHING = Stored({"version": 0, "pipelines": {}}, digest({"version": 0, "pipelines": {}}), proven=True)


def _mark(stored: Stored | None) -> tuple[int, str] | None:
    return None if stored is None else (stored.version, stored.sha256)


def _errors(faults: list[ConfigFault]) -> list[dict[str, str]]:
    return [{"path": fault.path, "message": fault.message} for fault in faults]


def _faults(message: dict[str, Any]) -> list[ConfigFault]:
    """The faults in a reply of the engine; an empty list when it is well."""
    if message.get("ok") is True:
        return []
    errors = (message.get("errors") or [])[:MAX_FAULTS]
    faults = [ConfigFault(str(error.get("path", "")), mask(str(error.get("message", "")))) for error in errors]
    return faults or [ConfigFault("", mask(str(message.get("error") or "the engine refuses it without a reason")))]
