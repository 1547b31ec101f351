"""Copies of one model for calls from several threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from pyasc.models.model import DetectionModel


class Copies:
    """Copies of a model; each call gets the one that is least in use.

    Args:
        first: stays open when the copies are given up.
        more: closed then, when the last call on them has ended.
    """

    def __init__(self, first: DetectionModel, more: Sequence[DetectionModel] = ()) -> None:
        self._models = (first, *more)
        self._users = [0] * len(self._models)
        self._turn = threading.Lock()
        self._retired = False

    @contextlib.contextmanager
    def use(self) -> Iterator[DetectionModel | None]:
        """A model for one call; None when the copies have been given up in the meantime."""
        with self._turn:
            number = None if self._retired else min(range(len(self._users)), key=self._users.__getitem__)
            if number is not None:
                self._users[number] += 1
        if number is None:
            yield None
            return
        try:
            yield self._models[number]
        finally:
            with self._turn:
                self._users[number] -= 1
                last = self._retired and not any(self._users)
            if last:
                self._close()

    def retire(self) -> None:
        """Give the copies up; calls under way end in peace."""
        with self._turn:
            last = not self._retired and not any(self._users)
            self._retired = True
        if last:
            self._close()

    def _close(self) -> None:
        for model in self._models[1:]:
            model.close()
