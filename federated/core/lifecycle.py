"""The life of a VirtualNode: a transition table, and a bounded ledger of those ever touched.

    virtual ──request──► pending ──bind──► materialized ──release──► released
                            ▲                  │                        │
                            └──────lose────────┘◄───────request─────────┘
    pending, materialized ──fail──► failed ──request──► pending

A `virtual` node has no worker and takes no memory. A `pending` node waits for a worker. A
`materialized` node is bound to a warm FederatedNode, and is pending again if that is lost. A
`released` node gave its place back: after its work, when idle for long, or on request.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidTransition


class NodeState(StrEnum):
    """States of a VirtualNode."""

    VIRTUAL = "virtual"
    PENDING = "pending"
    MATERIALIZED = "materialized"
    RELEASED = "released"
    FAILED = "failed"


class NodeEvent(StrEnum):
    """Events of a VirtualNode."""

    REQUEST = "request"
    BIND = "bind"
    """A worker hosts it now."""
    LOSE = "lose"
    """Its worker died."""
    RELEASE = "release"
    FAIL = "fail"
    """Its work raised, or no worker was available."""


_S, _E = NodeState, NodeEvent

TRANSITIONS: dict[NodeState, dict[NodeEvent, NodeState]] = {
    _S.VIRTUAL: {_E.REQUEST: _S.PENDING},
    _S.PENDING: {
        _E.REQUEST: _S.PENDING,
        _E.BIND: _S.MATERIALIZED,
        _E.RELEASE: _S.RELEASED,
        _E.FAIL: _S.FAILED,
    },
    _S.MATERIALIZED: {
        _E.REQUEST: _S.MATERIALIZED,
        _E.BIND: _S.MATERIALIZED,
        _E.LOSE: _S.PENDING,
        _E.RELEASE: _S.RELEASED,
        _E.FAIL: _S.FAILED,
    },
    _S.RELEASED: {_E.REQUEST: _S.PENDING},
    _S.FAILED: {_E.REQUEST: _S.PENDING},
}


def after(state: NodeState, event: NodeEvent, subject: str = "the node") -> NodeState:
    """The next state; raises InvalidTransition for a pair that is not in the table."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise InvalidTransition(subject, state, event) from None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """State and recent history of one touched VirtualNode."""

    state: NodeState
    worker: str
    """The FederatedNode that hosts it or hosted it last."""
    reason: str
    since: float
    """When this state began, on the ledger's clock."""
    trail: tuple[tuple[float, NodeEvent, str], ...]
    """(time, event, reason) of the latest events, oldest first."""


class NodeRecords:
    """Records of touched nodes by index; beyond a bound it drops those settled longest.

    A dropped node is `virtual` again, so memory does not grow with the population.
    """

    TRAIL = 8
    """Events kept per node."""

    def __init__(self, keep: int = 20_000) -> None:
        self._records: OrderedDict[int, NodeRecord] = OrderedDict()
        self._keep = keep

    def able(self, indices: Iterable[int], event: NodeEvent) -> list[int]:
        """The nodes that can take this event."""
        records = self._records
        return [i for i in indices if event in TRANSITIONS[records.get(i, _UNTOUCHED).state]]

    def record(self, index: int) -> NodeRecord:
        """The record of a node; a virtual one if it was never touched or was dropped."""
        return self._records.get(index, _UNTOUCHED)

    def apply(
        self, indices: Iterable[int], event: NodeEvent, *, now: float, reason: str, worker: str = ""
    ) -> None:
        """Apply one event to every node; raises InvalidTransition at the first that refuses it."""
        records = self._records
        for index in indices:
            old = records.get(index, _UNTOUCHED)
            state = after(old.state, event, f"node {index}")
            records[index] = NodeRecord(
                state,
                worker or old.worker,
                reason,
                now if state is not old.state else old.since,
                (*old.trail[1 - self.TRAIL :], (now, event, reason)),
            )
            records.move_to_end(index)
        self._forget()

    def _forget(self) -> None:
        if len(self._records) <= self._keep:
            return
        settled = (NodeState.RELEASED, NodeState.FAILED)
        surplus = len(self._records) - self._keep
        for index in [i for i, r in self._records.items() if r.state in settled][:surplus]:
            del self._records[index]

    def in_state(self, *states: NodeState) -> tuple[int, ...]:
        """Indices of the nodes in these states, least recently touched first."""
        return tuple(i for i, record in self._records.items() if record.state in states)

    def __len__(self) -> int:
        return len(self._records)


@dataclass(slots=True, eq=False)
class Visit:
    """Nodes that pass through a round together; their events are stored once for all of them."""

    nodes: NDArray[np.int64]
    """Sorted."""
    state: NodeState = NodeState.VIRTUAL
    worker: str = ""
    trail: list[tuple[float, NodeEvent, str]] = field(default_factory=list)

    def apply(self, event: NodeEvent, *, now: float, reason: str, worker: str = "") -> None:
        """Apply an event to them; ignore one that their state does not allow."""
        if event in TRANSITIONS[self.state]:
            self.state = TRANSITIONS[self.state][event]
            self.worker = worker or self.worker
            self.trail.append((now, event, reason))

    def __contains__(self, index: int) -> bool:
        at = int(np.searchsorted(self.nodes, index))
        return at < len(self.nodes) and int(self.nodes[at]) == index


def joined(record: NodeRecord, visits: Iterable[Visit]) -> NodeRecord:
    """A node's own record, merged with the visits that it was part of."""
    trail, last = list(record.trail), record.trail[-1][0] if record.trail else -math.inf
    state, worker, reason, since = record.state, record.worker, record.reason, record.since
    for visit in visits:
        for number, (at, event, why) in enumerate(visit.trail):
            trail.append((at, event, why))
            if at >= last:
                before, state = state, TRANSITIONS[state].get(event, state)
                since = since if state is before else at
                reason = why
                worker = visit.worker if number == len(visit.trail) - 1 else worker
    trail.sort(key=lambda entry: entry[0])
    return NodeRecord(state, worker, reason, since, tuple(trail[-NodeRecords.TRAIL :]))


_UNTOUCHED = NodeRecord(NodeState.VIRTUAL, "", "never needed so far", 0.0, ())
