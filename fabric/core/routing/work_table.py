"""WorkTable: all known work, indexed by where it is, and the sums of what it holds."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Container, Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import reduce
from operator import or_
from typing import Generic, TypeVar

from ..ledger import ChangedIds
from ..places.groups import GroupId, PlacementGroupRecord, forget
from ..records import ClusterId, ProcessId, WorkId
from ..resources import Resources
from .work import Work, WorkState, alike

Id = TypeVar("Id", bound=str)
Key = TypeVar("Key")

Load = Mapping[tuple[GroupId, int], Resources]
"""The resources that work holds of each bundle."""


class WaitQueues(Generic[Id]):
    """A queue of ids for each kind, lowest number first; operations take logarithmic time."""

    def __init__(self) -> None:
        self._kinds: dict[Id, Hashable] = {}
        self._numbers: dict[Id, int] = {}
        self._lines: dict[Hashable, list[tuple[int, Id]]] = {}
        """A heap for each kind. It may contain ids that no longer wait."""
        self._heads: list[tuple[int, Id]] = []
        """A heap of all heads. It may contain former heads."""

    def __len__(self) -> int:
        return len(self._kinds)

    def __contains__(self, id: object) -> bool:
        return id in self._kinds

    def add(self, id: Id, number: int, kind: Hashable) -> None:
        self._kinds[id], self._numbers[id] = kind, number
        heapq.heappush(self._lines.setdefault(kind, []), (number, id))
        if self._head(kind) == (number, id):
            heapq.heappush(self._heads, (number, id))

    def remove(self, id: Id) -> None:
        """Remove a waiting id."""
        kind, number = self._kinds[id], self._numbers[id]
        was_head = self._head(kind) == (number, id)
        del self._kinds[id], self._numbers[id]
        head = self._head(kind)
        if head is None:
            del self._lines[kind]
        elif was_head:
            heapq.heappush(self._heads, head)

    def heads(self) -> Generator[Id, None, None]:
        """The heads, oldest first; if one is removed meanwhile, the next of its kind follows."""
        seen: set[tuple[int, Id]] = set()
        try:
            while self._heads:
                number, id = heapq.heappop(self._heads)
                if (number, id) not in seen and self._is_head(number, id):
                    seen.add((number, id))
                    yield id
        finally:
            for number, id in seen:
                if self._is_head(number, id):
                    heapq.heappush(self._heads, (number, id))

    def _is_head(self, number: int, id: Id) -> bool:
        return id in self._kinds and self._head(self._kinds[id]) == (number, id)

    def _head(self, kind: Hashable) -> tuple[int, Id] | None:
        line = self._lines[kind]
        while line and (line[0][1] not in self._kinds or self._kinds[line[0][1]] != kind):
            heapq.heappop(line)
        return line[0] if line else None


class WorkTable:
    """All known work, in the order of submission."""

    def __init__(self, works: Iterable[Work] = ()) -> None:
        self._by_id: dict[WorkId, Work] = {}
        self._by_group: dict[GroupId, dict[WorkId, None]] = {}
        self._by_cluster: dict[ClusterId, dict[WorkId, None]] = {}
        self.load: dict[tuple[GroupId, int], Resources] = {}
        """The resources that placed work holds of each bundle."""
        self.lasting: dict[tuple[GroupId, int], Resources] = {}
        """The part of `load` that actors hold."""
        self.queued: Counter[GroupId] = Counter()
        """How much work waits in Ray's queue for each placement group."""
        self._states: Counter[tuple[ClusterId, WorkState]] = Counter()
        self._held: dict[ClusterId, WaitQueues[WorkId]] = {}
        self._demands: dict[GroupId, Counter[Resources]] = {}
        self._by_owner: dict[ProcessId, dict[WorkId, None]] = {}
        self.actors: dict[str, WorkId] = {}
        """The work of each actor, by the actor's id."""
        self._without: Counter[ClusterId] = Counter()
        self._queues: dict[GroupId, dict[tuple[int, Resources], dict[WorkId, None]]] = {}
        self.changed = ChangedIds[WorkId]()
        for work in works:
            self.put(work)
        self.changed.clear()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Work]:
        return iter(self._by_id.values())

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    def __getitem__(self, id: WorkId) -> Work:
        return self._by_id[id]

    def running(self, group: PlacementGroupRecord, demand: Resources) -> int:
        """How many tasks run in a group now, if each holds `demand`."""
        bundles = [(group.id, bundle) for bundle in range(len(group.pieces))]
        load = Resources.total(self.load.get(at, Resources()) for at in bundles)
        lasting = Resources.total(self.lasting.get(at, Resources()) for at in bundles)
        return demand.copies_in(load - lasting)

    def on(self, group: GroupId) -> tuple[Work, ...]:
        """The work that was assigned a placement group, oldest first."""
        return tuple(self._by_id[id] for id in self._by_group.get(group, ()))

    def of(self, cluster: ClusterId) -> tuple[Work, ...]:
        """The work of a virtual cluster, oldest first."""
        return tuple(self._by_id[id] for id in self._by_cluster.get(cluster, ()))

    @property
    def busy(self) -> Container[GroupId]:
        """The placement groups with assigned work."""
        return self._by_group.keys()

    @property
    def owners(self) -> Collection[ProcessId]:
        """The processes that have submitted known work."""
        return self._by_owner.keys()

    def of_owner(self, owner: ProcessId) -> tuple[Work, ...]:
        """The work that a process has submitted, oldest first."""
        return tuple(self._by_id[id] for id in self._by_owner.get(owner, ()))

    def needed(self, group: GroupId) -> Resources:
        """The largest amount of each resource that a group's assigned work demands."""
        return reduce(or_, self._demands.get(group, ()), Resources())

    def queues(self, group: GroupId) -> list[Work]:
        """The first of each kind (bundle and demand) in Ray's queue for a group, oldest first."""
        heads = (self._by_id[next(iter(ids))] for ids in self._queues.get(group, {}).values())
        return sorted(heads, key=lambda work: work.number)

    def count(self, cluster: ClusterId, state: WorkState) -> int:
        """How much work of a virtual cluster is in a state."""
        return self._states[cluster, state]

    def without_resources(self, cluster: ClusterId) -> int:
        """How many actors of a virtual cluster hold no resources."""
        return self._without[cluster]

    def held(self, cluster: ClusterId) -> Generator[Work, None, None]:
        """The next held work of each kind, oldest first; after a placed one comes its successor."""
        if lines := self._held.get(cluster):
            with closing(lines.heads()) as heads:
                for id in heads:
                    yield self._by_id[id]

    def holding(self) -> tuple[ClusterId, ...]:
        """The virtual clusters with held work."""
        return tuple(self._held)

    def put(self, work: Work) -> None:
        """Add work, or replace it; replaced work keeps its position."""
        before = self._by_id.get(work.id)
        if before is not None:
            self._uncount(before)
        self._by_id[work.id] = work
        self.changed.add(work.id)
        self._by_group.setdefault(work.group, {})[work.id] = None
        self._by_cluster.setdefault(work.cluster, {})[work.id] = None
        self._by_owner.setdefault(work.owner, {})[work.id] = None
        self._demands.setdefault(work.group, Counter())[work.demand] += 1
        if work.actor:
            self.actors[work.actor] = work.id
        if work.lasting and not work.demand:
            self._without[work.cluster] += 1
        self._states[work.cluster, work.state] += 1
        match work.state:
            case WorkState.PLACED if work.demand:
                _add(self.load, work)
                if work.lasting:
                    _add(self.lasting, work)
            case WorkState.QUEUED:
                self.queued[work.group] += 1
                queues = self._queues.setdefault(work.group, {})
                queues.setdefault((work.bundle, work.demand), {})[work.id] = None
            case WorkState.HELD:
                lines = self._held.setdefault(work.cluster, WaitQueues())
                lines.add(work.id, work.number, alike(work.demand, work.selector))

    def drop(self, id: WorkId) -> Work | None:
        """Remove work and return it; None if it is unknown."""
        work = self._by_id.pop(id, None)
        if work is not None:
            self.changed.add(id)
            self._uncount(work)
            forget(self._by_cluster, work.cluster, id)
        return work

    def _uncount(self, work: Work) -> None:
        forget(self._by_group, work.group, work.id)
        forget(self._by_owner, work.owner, work.id)
        _less(self._demands[work.group], work.demand)
        if not self._demands[work.group]:
            del self._demands[work.group]
        self.actors.pop(work.actor, None)
        if work.lasting and not work.demand:
            _less(self._without, work.cluster)
        _less(self._states, (work.cluster, work.state))
        match work.state:
            case WorkState.PLACED if work.demand:
                _take_off(self.load, work)
                if work.lasting:
                    _take_off(self.lasting, work)
            case WorkState.QUEUED:
                _less(self.queued, work.group)
                queues = self._queues[work.group]
                forget(queues, (work.bundle, work.demand), work.id)
                if not queues:
                    del self._queues[work.group]
            case WorkState.HELD:
                self._held[work.cluster].remove(work.id)
                if not self._held[work.cluster]:
                    del self._held[work.cluster]


def _add(load: dict[tuple[GroupId, int], Resources], work: Work) -> None:
    at = (work.group, work.bundle)
    load[at] = load.get(at, Resources()) + work.demand


def _take_off(load: dict[tuple[GroupId, int], Resources], work: Work) -> None:
    at = (work.group, work.bundle)
    left = load[at] - work.demand
    if left:
        load[at] = left
    else:
        load.pop(at)


def _less(counts: Counter[Key], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
