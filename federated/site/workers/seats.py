"""Seats: the workers of a pool by number, each on a vnode of the gang.

A number is used again once its worker has left, so numbers stay below the most workers that there
were at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fedpilot.fabric import Gang, VNode, Worker
from fedpilot.fabric.gangs import NodeNotice
from fedpilot.mediator.federation.site import CLASS_LABEL

from ..states.shared_memory import sharers
from .lru import LRU


@dataclass(slots=True)
class Seat:
    """One vnode's worker, and the models that it has."""

    vnode: VNode
    surplus: bool
    """Whether others may claim the vnode alone, at any time."""
    worker: Worker | None = None
    generation: int = 0
    """The number of this worker's start, in the whole pool."""
    up: bool = False
    notice: NodeNotice | None = None
    """That the vnode must leave."""
    sharers: str = ""
    """Who can share memory with the worker (`states.shared_memory.sharers`)."""
    models: LRU[None] = field(default_factory=LRU)
    """Keys of the worker's models, updated as the worker does."""
    busy_since: float = 0.0

    @property
    def vnode_class(self) -> str:
        """The name of the vnode's class; empty if there is one class only."""
        return self.vnode.labels.get(CLASS_LABEL, "")

    @property
    def shares_memory(self) -> bool:
        """Whether the worker runs where it can share this process's memory."""
        return self.sharers != "" and self.sharers == sharers()


class Seats:
    """The workers of a pool; only its thread changes them, and any thread may read."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._seats: dict[int, Seat] = {}
        self._starts = itertools.count(1)
        for vnode in gang.vnodes:
            self.add(vnode)

    def add(self, vnode: VNode) -> int:
        """Add a seat, with the first number that is free, and return that."""
        number = next(n for n in itertools.count() if n not in self._seats)
        self._seats[number] = Seat(vnode, self._gang.may_leave(vnode))
        return number

    def drop(self, number: int) -> None:
        """Remove a seat, and end its worker."""
        self.end(self._seats.pop(number))

    def renew(self) -> None:
        """Have a seat for each vnode of a gang that has got them anew."""
        for number, _ in self:
            self.drop(number)
        for vnode in self._gang.vnodes:
            self.add(vnode)

    def begin(self, number: int, now: float) -> Seat:
        """Note that another worker starts on a seat."""
        seat = self._seats[number]
        self.end(seat)
        seat.models = LRU()
        seat.busy_since = now
        return seat

    def end(self, seat: Seat) -> None:
        """End the worker of a seat; what it still answers counts for nothing."""
        seat.generation, seat.up = next(self._starts), False
        if seat.worker is not None:
            seat.worker.kill()
            seat.worker = None

    def of(self, number: int, generation: int) -> Seat | None:
        """A seat, if it still has the worker of this start."""
        seat = self._seats.get(number)
        return seat if seat is not None and seat.generation == generation else None

    def __getitem__(self, number: int) -> Seat:
        return self._seats[number]

    def __iter__(self) -> Iterator[tuple[int, Seat]]:
        return iter(list(self._seats.items()))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of all workers."""
        return tuple(number for number, _ in self)

    @property
    def leaving(self) -> frozenset[int]:
        """Workers under notice."""
        return frozenset(number for number, seat in self if seat.notice is not None)

    @property
    def classes(self) -> Mapping[int, str]:
        """The vnode class of each worker."""
        return {number: seat.vnode_class for number, seat in self}

    def size(self, vnode_class: str | None = None) -> int:
        """How many workers there are (of a class) that need not leave; at least 1."""
        mine = (seat for _, seat in self if vnode_class in (None, seat.vnode_class))
        return max(1, sum(seat.notice is None for seat in mine))

    @property
    def up(self) -> int:
        """How many workers have answered."""
        return sum(seat.up for _, seat in self)

    @property
    def all_up(self) -> bool:
        """Whether all workers have answered."""
        return all(seat.up for _, seat in self)

    def may_leave(self, number: int) -> bool:
        """Whether a worker's place may be claimed at any time, alone."""
        return self._seats[number].surplus

    @property
    def all_share_memory(self) -> bool:
        """Whether all workers run where they can share this process's memory."""
        here = sharers()
        found = {seat.sharers for _, seat in self} - {""}  # one that has just come says it later
        return bool(here) and found == {here}
