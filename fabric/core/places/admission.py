"""Which waiting virtual clusters are admitted now, and why the others wait.

Those inside one parent form a queue. The first that does not fit holds up all behind it, so that
none starves.
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
    """It waits in the queue of its parent, at this position, counted from 1."""

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
    """The decision about each waiting request, in the order of the queue.

    Requests behind the first of their queue are many; their positions are counted on iteration.
    """

    queue: Sequence[Request]
    made: Mapping[ClusterId, Decision]
    """Which are admitted, which expire, and which is first in the queue of each parent."""

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
    """Decide about each waiting request, given in the order in which they were made.

    On `fragmented` machines the GPUs are free in smaller parts than they could be (`gpus.py`).
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
    """The waiting requests in the order of the queue."""
    if policy is QueuePolicy.PRIORITY:
        return sorted(waiting, key=attrgetter("priority"), reverse=True)
    return waiting
