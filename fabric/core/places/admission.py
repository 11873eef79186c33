"""Which waiting virtual clusters are admitted now, and why the others wait.

The first request in a parent's queue that does not fit holds up all behind it, so none starves.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from ..ledger import Ledger
from ..records import ClusterId, MachineId
from .nomination import Admit, apply, place
from .request import QueuePolicy, Request


@dataclass(frozen=True, slots=True)
class QueuedAt:
    """It waits in its parent's queue, at this position, counted from 1."""

    request: Request
    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Expire:
    """Its deadline is over."""

    request: Request
    reason: str


Decision = Admit | QueuedAt | Expire


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions in queue order; iteration counts the positions behind the first of a queue."""

    queue: Sequence[Request]
    made: Mapping[ClusterId, Decision]
    """The admitted, the expired, and the first waiting request of each parent."""

    def __len__(self) -> int:
        return len(self.queue)

    def __iter__(self) -> Iterator[Decision]:
        positions: dict[ClusterId, int] = {}
        reasons: dict[ClusterId, str] = {}
        for request in self.queue:
            made = self.made.get(request.id)
            if made is None:
                positions[request.parent] += 1
                yield QueuedAt(request, positions[request.parent], reasons[request.parent])
                continue
            if isinstance(made, QueuedAt):
                positions[request.parent] = made.position
                reasons[request.parent] = _behind(request.id)
            yield made


def decide(
    ledger: Ledger,
    waiting: Sequence[Request],
    now: float,
    policy: QueuePolicy = QueuePolicy.FIFO,
    *,
    fragmented: Container[MachineId] = frozenset(),
) -> Decisions:
    """Decide about each waiting request; `waiting` is in the order of the requests.

    On `fragmented` machines the free shares of GPUs may be scattered (`gpus.py`).
    """
    trial, admitted = ledger, list[Admit]()
    made: dict[ClusterId, Decision] = {}
    first: dict[ClusterId, ClusterId] = {}
    queue = ordered(waiting, policy)
    for request in queue:
        over = request.deadline is not None and request.deadline <= now
        if request.parent in first:
            if over:
                made[request.id] = _expired(request, _behind(first[request.parent]))
            continue
        if admitted and trial is ledger:
            trial = ledger.copy()
        while admitted:
            apply(trial, admitted.pop(0), now)
        found = place(trial, request, fragmented)
        if isinstance(found, Admit):
            admitted.append(found)
            made[request.id] = found
        elif over:
            made[request.id] = _expired(request, found.reason)
        else:
            first[request.parent] = request.id
            made[request.id] = QueuedAt(request, 1, found.reason)
    return Decisions(queue, made)


def _behind(first: ClusterId) -> str:
    return f"{first} is before it"


def _expired(request: Request, reason: str) -> Expire:
    return Expire(request, f"its deadline is over; {reason}")


def ordered(waiting: Sequence[Request], policy: QueuePolicy) -> Sequence[Request]:
    """The waiting requests in queue order."""
    if policy is QueuePolicy.PRIORITY:
        return sorted(waiting, key=attrgetter("priority"), reverse=True)
    return waiting
