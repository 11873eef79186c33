"""Everything that the manager of a Ray cluster must remember."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NewType

from ..pickle_names import travels
from .ledger import ChangedIds, Ledger
from .places.groups import GroupId, PlacementGroupRecord, PlacementGroups
from .places.request import Request
from .records import ClusterId, ProcessId
from .routing.work import Work
from .routing.work_table import WorkTable

ANSWERS = 10_000
"""How many answers are remembered: all that Ray may ask for again after the manager died."""

JobId = NewType("JobId", str)
"""A job of Ray's, in hex."""


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A virtual cluster from its request until it ends."""

    request: Request
    spec: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The requested spec, as a document."""
    owner: JobId | None = None
    """The job with which it ends; without a job it stays until it is deleted."""
    user: str = ""
    """The user that requested it; empty if unknown."""
    process: ProcessId | None = None
    """The process with which it also ends: the requesting one, if that is not the job's driver."""
    jobs: frozenset[JobId] = frozenset()
    """The jobs that work inside it, and should use nothing outside it."""
    asked_at: float = 0.0
    """Seconds since the epoch."""
    group: GroupId | None = None
    """The required id of its placement group, if a user requested a placement group."""
    waiting: bool = True
    """Whether it still waits for its places."""
    begun: bool = False
    """Whether all its places have existed once. From then on it keeps them."""


class ClusterState:
    """The ledger, the entries, the placement groups, and the work in them."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        entries: Iterable[Entry] = (),
        groups: Iterable[PlacementGroupRecord] = (),
        works: Iterable[Work] = (),
    ) -> None:
        self.ledger = ledger or Ledger()
        self.groups = PlacementGroups(groups)
        self.works = WorkTable(works)
        self.entries: dict[ClusterId, Entry] = {entry.request.id: entry for entry in entries}
        """In the order of their requests."""
        self.changed_entries = ChangedIds[ClusterId]()
        self.answers: dict[str, tuple[str, ...]] = {}
        """The answers to requests that may be repeated, by idempotency key."""
        self.changed_answers = ChangedIds[str]()

    @property
    def waiting(self) -> list[Request]:
        """The waiting requests, in the order in which they were made."""
        return [entry.request for entry in self.entries.values() if entry.waiting]

    def within(self, cluster: ClusterId) -> list[Entry]:
        """The virtual cluster's entry and those of all inside it, including waiting ones."""
        found = {cluster: self.entries[cluster]}
        todo = [cluster]
        for parent in todo:  # grows on the way
            inside = {id: e for id, e in self.entries.items() if e.request.parent == parent}
            found.update(inside)
            todo += inside
        return list(found.values())

    def add(self, entry: Entry) -> None:
        """Add an entry, or replace the one with the same id."""
        self.entries[entry.request.id] = entry
        self.changed_entries.add(entry.request.id)

    def admit(self, cluster: ClusterId) -> None:
        """Record that a virtual cluster has its places."""
        self.add(replace(self.entries[cluster], waiting=False))

    def remove(self, cluster: ClusterId) -> Entry | None:
        """Remove an entry and return it; None if there is none."""
        self.changed_entries.add(cluster)
        return self.entries.pop(cluster, None)

    def answer(self, key: str, ended: tuple[str, ...]) -> None:
        """Remember an answer; forget the oldest beyond `ANSWERS`."""
        self.answers[key] = ended
        self.changed_answers.add(key)
        while len(self.answers) > ANSWERS:
            oldest = next(iter(self.answers))
            del self.answers[oldest]
            self.changed_answers.add(oldest)
