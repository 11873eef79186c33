"""What the rounds of a site share, and what they learn of its pace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedpilot.mediator import Notify, Payload

from ...core.population.vnode_classes import ClientClasses
from ...engine.journal import Journal, RoundKey
from ..node_placement import NodePlacement
from ..states.client_states import ClientStates
from ..workers.pool import WorkerPool

PROGRESS_S = 0.5
"""Interval of progress reports, in rounds that last longer."""


class Pace:
    """The cost of a sample in the last round, on each vnode class."""

    def __init__(self) -> None:
        self._seconds: dict[str | None, float] = {}

    def of(self, vnode_class: str | None) -> float | None:
        """Seconds per sample of one worker; None before any measurement."""
        return self._seconds.get(vnode_class)

    def measured(self, samples: int, seconds: float, vnode_class: str | None = None) -> None:
        """Record a round's time."""
        if samples:
            self._seconds[vnode_class] = seconds / samples


class ClassTimes:
    """The samples and the seconds of one round, on each vnode class."""

    def __init__(self) -> None:
        self._spent: dict[str | None, tuple[int, float]] = {}

    def add(self, samples: int, seconds: float, vnode_class: str | None) -> None:
        """Count what a piece of work took."""
        had, took = self._spent.get(vnode_class, (0, 0.0))
        self._spent[vnode_class] = had + samples, took + seconds

    def tell(self, pace: Pace) -> None:
        """Record the round's times."""
        for vnode_class, (samples, seconds) in self._spent.items():
            pace.measured(samples, seconds, vnode_class)


class RoundProgress:
    """Reports how many clients of a round are trained, in rounds that last."""

    def __init__(self, notify: Notify, key: RoundKey, of: int, clock: Callable[[], float]) -> None:
        self._notify, self._clock = notify, clock
        self._key, self._of = key, of
        self._done = 0
        self._told_at = clock()

    def recovered(self, clients: int) -> None:
        """Count clients that were trained before this process."""
        self._done = clients

    def trained(self, clients: int, *, more: bool) -> None:
        """Count clients; report if `more` are to come, and the last report is old."""
        self._done = min(self._done + clients, self._of)  # some are trained again
        now = self._clock()
        if more and now - self._told_at >= PROGRESS_S:
            self._told_at = now
            counts = {"round": self._key.round_number, "done": self._done, "of": self._of}
            header = {**counts, "part": self._key.part}
            self._notify(Payload(kind="clients_done", header=header))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all rounds of a site share."""

    pool: WorkerPool
    put: Callable[[Any], Any]
    """Puts a value in the fabric's object store; a worker's call gets it without a copy."""
    placement: NodePlacement
    journal: Journal
    pace: Pace
    notify: Notify
    states: ClientStates | None
    classes: ClientClasses | None = None
    """The vnode class of each client; None if there is one class only."""
