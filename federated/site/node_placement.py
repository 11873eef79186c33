"""NodePlacement: the VirtualNodes at this site, their workers, since when, and why.

A node passes through a worker in a round's chunk, or a user materializes it by itself.
Materializing gives it a home at one worker until it is released, idle for long, or displaced by
newer nodes. Rounds do not touch nodes that have a home.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..core.lifecycle import NodeEvent, NodeRecords, NodeState, Visit, joined
from ..core.population.sampling import Indices

VISITED = 20_000
"""Nodes whose visits in rounds are remembered; a larger round keeps all of its own."""


class NodePlacement:
    """The ledger of a site's VirtualNodes, and the homes of materialized ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._ledger = NodeRecords()
        self._homes: dict[int, tuple[int, float]] = {}
        """Node -> (worker, time of last use)."""
        self._working: dict[int, int] = {}
        """Node -> unfinished orders."""
        self._visits: deque[Visit] = deque()
        self._visited = 0
        """Nodes in those visits."""

    # -- single nodes --------------------------------------------------------------------------

    def home(self, index: int, workers: Sequence[int]) -> int:
        """A node's worker; a node without one gets the worker that hosts the fewest."""
        with self._lock:
            worker, _ = self._homes.get(index, (-1, 0.0))
            if worker not in workers:
                hosts = [number for number, _ in self._homes.values()]
                worker = min(workers, key=hosts.count)
            self._homes[index] = (worker, self._clock())
            return worker

    def where(self, index: int) -> int | None:
        """A node's home, if any."""
        home = self._homes.get(index)
        return None if home is None else home[0]

    def begin(self, index: int, reason: str) -> None:
        """Record that a node gets work; `end` follows."""
        with self._lock:
            self._working[index] = self._working.get(index, 0) + 1
            self._apply([index], NodeEvent.REQUEST, reason)

    def bind(self, index: int, worker: int) -> None:
        """Record that a worker begins; reactivates a node that was released while it waited.

        It is the node's home from then on: another one than asked for, if that has left.
        """
        with self._lock:
            if index in self._homes:
                self._homes[index] = (worker, self._clock())
            if not self._ledger.able([index], NodeEvent.BIND):
                self._apply([index], NodeEvent.REQUEST, "its work had been asked for before")
            self._apply([index], NodeEvent.BIND, "its worker", worker)

    def end(self, index: int, error: BaseException | None) -> None:
        """Record that a node's work is done, or failed."""
        with self._lock:
            self._working[index] -= 1
            if not self._working[index]:
                del self._working[index]
            if index in self._homes:
                self._homes[index] = (self._homes[index][0], self._clock())
            if error is not None:
                self._homes.pop(index, None)
                self._apply_if_able(index, NodeEvent.FAIL, str(error))

    def let_go(self, index: int, reason: str) -> None:
        """Release a node from its home."""
        with self._lock:
            self._homes.pop(index, None)
            self._apply_if_able(index, NodeEvent.RELEASE, reason)

    def idle(self, limit_s: float) -> list[tuple[int, int]]:
        """(node, worker) of the nodes unused for `limit_s` seconds."""
        now = self._clock()
        with self._lock:
            return [
                (index, worker)
                for index, (worker, used) in self._homes.items()
                if now - used > limit_s and index not in self._working
            ]

    # -- nodes in a round ----------------------------------------------------------------------

    def enter(self, indices: Indices, reason: str) -> Visit:
        """Request a round's nodes; those with a home stay as they are."""
        with self._lock:
            if self._homes:
                indices = indices[~np.isin(indices, list(self._homes))]
            visit = Visit(np.sort(indices))
            visit.apply(NodeEvent.REQUEST, now=self._clock(), reason=reason)
            self._visits.append(visit)
            self._visited += len(visit.nodes)
            while self._visited - len(self._visits[0].nodes) >= VISITED:
                self._visited -= len(self._visits.popleft().nodes)
            return visit

    def carry(self, visit: Visit, worker: int, reason: str) -> None:
        self._pass(visit, NodeEvent.BIND, reason, _name(worker))

    def leave(self, visit: Visit, reason: str) -> None:
        """Release a round's nodes."""
        self._pass(visit, NodeEvent.RELEASE, reason)

    def fail(self, visit: Visit, reason: str) -> None:
        self._pass(visit, NodeEvent.FAIL, reason)

    def _pass(self, visit: Visit, event: NodeEvent, reason: str, worker: str = "") -> None:
        with self._lock:
            visit.apply(event, now=self._clock(), reason=reason, worker=worker)

    # -- both ----------------------------------------------------------------------------------

    def lose(self, worker: int, reason: str) -> None:
        """Record a worker's death: its nodes wait for another."""
        name = _name(worker)
        with self._lock:
            hosted = self._ledger.in_state(NodeState.MATERIALIZED)
            lost = [index for index in hosted if self._ledger.record(index).worker == name]
            self._apply(lost, NodeEvent.LOSE, f"{name} was lost: {reason}")
            for visit in self._visits:
                if visit.worker == name:
                    self._pass(visit, NodeEvent.LOSE, f"{name} was lost: {reason}")

    def show(self, index: int) -> dict[str, Any]:
        """A node's state as JSON values; times are seconds ago."""
        with self._lock:
            record = self._ledger.record(index)
            if index not in self._homes:
                record = joined(record, [visit for visit in self._visits if index in visit])
        now = self._clock()
        return {
            "state": str(record.state),
            "worker": record.worker,
            "reason": record.reason,
            "seconds": now - record.since if record.trail else None,
            "trail": [[now - at, str(event), why] for at, event, why in record.trail],
        }

    def _apply(
        self, indices: Iterable[int], event: NodeEvent, reason: str, worker: int | None = None
    ) -> None:
        name = "" if worker is None else _name(worker)
        self._ledger.apply(indices, event, now=self._clock(), reason=reason, worker=name)

    def _apply_if_able(self, index: int, event: NodeEvent, reason: str) -> None:
        self._apply(self._ledger.able([index], event), event, reason)


def _name(worker: int) -> str:
    return f"worker {worker}"
