"""What the rounds of a site share, and what they learn of its pace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedpilot.mediator import Notify, Payload

from ...engine.journal import Journal, RoundKey
from ..node_placement import NodePlacement
from ..states.client_states import ClientStates
from ..workers.pool import WorkerPool

PROGRESS_S = 0.5
"""Interval of progress reports, in rounds that last longer."""


class Pace:
    """The cost of a sample in the last round."""

    def __init__(self) -> None:
        self.seconds_per_sample: float | None = None
        """Of one worker; None before any measurement."""

    def measured(self, samples: int, seconds: float) -> None:
        """Record a round's time."""
        if samples:
            self.seconds_per_sample = seconds / samples


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
