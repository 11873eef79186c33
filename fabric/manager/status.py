"""Statuses: each virtual cluster's state beyond the cluster state, and the history.

Only deletions of another user's virtual clusters are on disk; a new manager finds the states again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core.cluster_state import ClusterState
from ..core.places.admission import Decision, QueuedAt
from ..core.records import ACTIVE, RECOVERING, ROOT, STARTING, WAITING, ClusterId
from ..core.scheduling.records import Rule
from ..core.scheduling.waiting_line import WaitingLine
from ..spec.queues import DEFAULT_PROJECT

MOST_REST_S = 30.0
"""The longest pause before another try to admit a virtual cluster that Ray had no room for."""

HISTORY, ENDINGS = 1000, 10_000
"""How many events are remembered, and for how many virtual clusters the reason of their end."""
ON_RECORD = 200
"""How many recorded events are remembered, by this manager and its successors."""
RECORD = "on record"
"""The name of their note in the ledger's file."""
log = logging.getLogger(__name__)


class Statuses:
    """The states of the virtual clusters of one Ray cluster, and their history."""

    def __init__(self, state: ClusterState, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._starting: dict[ClusterId, float] = {}
        self._told: dict[ClusterId, QueuedAt] = {}
        self._nested: Iterable[Decision] = ()
        """The last decisions on requests inside others, until `_wait` reads them."""
        self._line = WaitingLine(state)
        self._troubles: dict[ClusterId, tuple[str, float]] = {}
        """What is wrong with some, and since when."""
        self._resting: dict[ClusterId, float] = {}
        """When virtual clusters that Ray had no room for may try again."""
        self._attempts: Counter[ClusterId] = Counter()
        """How often Ray lacked the room that the cluster state had free."""
        self._endings: dict[ClusterId, str] = {}
        self._events: dict[ClusterId, asyncio.Event] = {}
        self._history: deque[Mapping[str, Any]] = deque(maxlen=HISTORY)
        self._record: deque[Mapping[str, Any]] = deque(maxlen=ON_RECORD)
        self._unsaved = False
        """Whether an event was recorded since the last call of `notes`."""
        self._numbers = itertools.count(1)

    # -- recorded events ----------------------------------------------------------------------

    def restore(self, notes: Mapping[str, Any]) -> None:
        """Load the events that an earlier manager recorded."""
        self._record.extend(notes.get(RECORD) or ())
        numbers = [each["number"] for each in self._record]
        self._numbers = itertools.count(1 + max(numbers, default=0))

    def notes(self) -> Mapping[str, Any]:
        """The notes to write since the last call; empty if there are none."""
        unsaved, self._unsaved = self._unsaved, False
        return {RECORD: list(self._record)} if unsaved else {}

    # -- the states ---------------------------------------------------------------------------

    def state(self, id: ClusterId) -> str:
        """`waiting`, `starting`, `active` or `recovering`."""
        if self._state.entries[id].waiting:
            return WAITING
        if id in self._starting:
            return STARTING
        return RECOVERING if id in self._troubles else ACTIVE

    def reason(self, id: ClusterId) -> str:
        """Why it is not active; empty if it is."""
        if self._state.entries[id].waiting:
            told = self._wait(id)
            trouble = self._troubles.get(id)
            return trouble[0] if trouble else told.reason if told else "it has just asked"
        if id in self._starting:
            return "Ray is making its placement groups"
        return self._troubles[id][0] if id in self._troubles else ""

    def rule(self, id: ClusterId) -> Rule | None:
        """By which rule the last plan left it without places; None if it did not."""
        return self._line.rule(id)

    def position(self, id: ClusterId) -> int | None:
        """Its position in its parent's queue, counted from 1; None if it does not wait."""
        told = self._wait(id)
        return told.position if told and self._state.entries[id].waiting else None

    def ending(self, id: ClusterId) -> str:
        """Why it ended."""
        return self._endings.get(id, "it was deleted")

    @property
    def starting(self) -> Mapping[ClusterId, float]:
        """Admitted virtual clusters that wait for Ray, and since when."""
        return self._starting

    @property
    def troubled(self) -> list[ClusterId]:
        """The virtual clusters in trouble."""
        return sorted(self._troubles)

    def troubled_since(self, id: ClusterId) -> float:
        """Since when one is in trouble."""
        return self._troubles[id][1]

    @property
    def resting(self) -> list[ClusterId]:
        """The virtual clusters that were taken back too recently to try again."""
        now = self._clock()
        return [id for id, until in self._resting.items() if until > now]

    def was_taken_back(self, id: ClusterId) -> bool:
        """Whether Ray has had no room for it where the ledger had some."""
        return id in self._resting

    def history(self) -> tuple[Mapping[str, Any], ...]:
        """The latest events, oldest first, preceded by older recorded ones."""
        first = self._history[0]["number"] if self._history else math.inf
        return (*(each for each in self._record if each["number"] < first), *self._history)

    async def news(self, id: ClusterId, within_s: float) -> None:
        """Wait, at most `within_s`, until it is active, has ended, or its start is interrupted."""
        event = self._events.setdefault(id, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), within_s)

    # -- changes -------------------------------------------------------------

    def asked(self, id: ClusterId) -> None:
        """Record a request, perhaps under the name of one that has ended."""
        self._endings.pop(id, None)
        self.note(id, "asked", "")

    def stopped(self, id: ClusterId, why: str) -> None:
        """Record that it left its places for others, and waits again."""
        self._starting.pop(id, None)
        self._troubles.pop(id, None)
        self.note(id, "stopped", why, on_record=True)

    def line_up(self, nested: Iterable[Decision], line: WaitingLine) -> None:
        """Keep the last decisions on requests inside others, and the line at the root."""
        self._nested, self._line = nested, line

    def tell(self, wait: QueuedAt) -> None:
        """Record that it stays in the queue."""
        self._told[wait.request.id] = wait

    def starts(self, id: ClusterId) -> None:
        """Record that it has its places in the cluster state, and now waits for Ray."""
        self._starting[id] = self._clock()

    def admitted(self, id: ClusterId, why: str = "") -> None:
        self._told.pop(id, None)
        self._troubles.pop(id, None)
        self.starts(id)
        self.note(id, "admitted", why)

    def active(self, id: ClusterId) -> None:
        """Record that Ray has placed all that it holds."""
        del self._starting[id]
        self._attempts.pop(id, None)
        self.note(id, ACTIVE, "")
        self._wake(id)

    def interrupted(self, id: ClusterId, why: str) -> None:
        """Record a trouble during its start; the repair may take any time."""
        del self._starting[id]
        self.trouble(id, why)
        self._wake(id)

    def waits_again(self, id: ClusterId, why: str, rest_s: float) -> None:
        """Record that it was taken back; it rests before the next try, twice as long each time."""
        self._starting.pop(id, None)
        self.rests(id, rest_s)
        self._troubles[id] = why, self._clock()
        self.note(id, "waits again", why)

    def rests(self, id: ClusterId, rest_s: float) -> None:
        """Record that Ray refused it places, so it asks for more later, after twice as long each
        time."""
        self._attempts[id] += 1
        rest_s *= 2 ** (self._attempts[id] - 1)
        self._resting[id] = self._clock() + min(rest_s, MOST_REST_S)

    def trouble(self, id: ClusterId, why: str) -> None:
        """Record a trouble, once for each cause."""
        known = self._troubles.get(id)
        if id in self._state.entries and (known is None or known[0] != why):
            self._troubles[id] = why, self._clock() if known is None else known[1]
            self.note(id, RECOVERING, why)

    def recovered(self, id: ClusterId) -> None:
        """Record that it is no longer in trouble."""
        del self._troubles[id]
        self.note(id, "recovered", "")

    def ended(self, id: ClusterId, why: str, *, on_record: bool = False) -> None:
        """Record its end, and forget all but the reason."""
        for known in (self._told, self._starting, self._resting, self._attempts, self._troubles):
            known.pop(id, None)
        self._endings[id] = why
        while len(self._endings) > ENDINGS:
            del self._endings[next(iter(self._endings))]
        self.note(id, "ended", why, on_record=on_record)
        self._wake(id)

    def note(self, id: ClusterId, event: str, why: str, *, on_record: bool = False) -> None:
        """Add an event to the history."""
        entry = self._state.entries.get(id)
        project = ""
        if entry is not None and entry.request.parent == ROOT:
            project = entry.request.project or DEFAULT_PROJECT
        told = {
            "number": next(self._numbers),
            "time": self._clock(),
            "cluster": id,
            "project": project,
            "event": event,
            "reason": why,
        }
        self._history.append(told)
        if on_record:
            self._record.append(told)
            self._unsaved = True
        log.info("%s: %s %s", id, event, why)

    def _wait(self, id: ClusterId) -> QueuedAt | None:
        """Its position and reason; the first call after a decision computes all of them."""
        waits = [each for each in self._nested if isinstance(each, QueuedAt)]
        self._told.update((each.request.id, each) for each in waits)
        self._nested = ()
        return self._told.get(id) or self._line.get(id)

    def _wake(self, id: ClusterId) -> None:
        event = self._events.pop(id, None)
        if event is not None:
            event.set()
