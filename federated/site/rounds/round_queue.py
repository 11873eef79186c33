"""RoundQueue: the orders of a round, one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from ...engine.journal import RoundKey
from ..cohorts import Cohort
from ..orders import Answer, or_fail
from ..workers.pool import SharedModel


class Round(Protocol):
    """A round's order at this site, as the queue of orders knows it."""

    answer: Answer
    key: RoundKey
    cohort: Cohort
    late_for: int
    on_lingering: Callable[[], None]

    def begin(self, model: SharedModel) -> None: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...
    def hand_up(self) -> None: ...

    @property
    def may_be_late(self) -> bool: ...
    @property
    def lingers(self) -> bool: ...


class RoundQueue:
    """The orders of one attempt at a round, one after another.

    A worker has one sum at a time. There are several orders when this site also trains clients of a
    lost one. An order of another attempt, or about clients of an earlier order, supersedes earlier
    ones, unless those are closed and may be late.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Round | None = None
        self._lingering: list[Round] = []
        """Closed and not yet done."""
        self._waiting: list[tuple[Round, SharedModel]] = []

    def add(self, new: Round, model: SharedModel) -> None:
        """Begin an order as soon as those before it are done."""
        with self._lock:
            stale = [each for each in self._open() if _supersedes(new, each)]
            self._waiting = [(each, its) for each, its in self._waiting if each not in stale]
            self._waiting.append((new, model))
        for each in stale:
            each.abandon()
        new.on_lingering = self._go_on
        self._go_on()

    def find(self, key: RoundKey) -> Round | None:
        """The order with that key, unless it is done."""
        with self._lock:
            return next((each for each in self._open() if each.key == key), None)

    def hand_up(self) -> None:
        """Have workers hand up what they have trained, since they are about to be ended."""
        with self._lock:
            begun = [*self._lingering, *([] if self._current is None else [self._current])]
        for each in begun:
            each.hand_up()

    def _open(self) -> list[Round]:
        current = [] if self._current is None else [self._current]
        return [*self._lingering, *current, *(each for each, _ in self._waiting)]

    def _go_on(self) -> None:
        with self._lock:
            self._lingering = [each for each in self._lingering if not each.answer.done()]
            if self._current is not None and not self._current.answer.done():
                if not (self._current.lingers and self._waiting):
                    return
                self._lingering.append(self._current)
            self._current = None
            if not self._waiting:
                return
            begun, model = self._waiting.pop(0)
            self._current = begun
        or_fail(begun.answer, lambda: begun.begin(model))
        begun.answer.add_done_callback(lambda _: self._go_on())


def _supersedes(new: Round, old: Round) -> bool:
    if old.may_be_late and new.key.round_number - old.key.round_number <= old.late_for:
        return False
    if replace(new.key, part="") != replace(old.key, part=""):
        return True
    return bool(np.isin(new.cohort.clients, old.cohort.clients, assume_unique=True).any())
