"""QueueBook: the file of queues that is applied to a Ray cluster, with its revision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.cluster_state import ClusterState
from ...core.ledger import Ledger
from ...core.places.nomination import never
from ...core.places.request import Request
from ...core.records import ROOT, Machine
from ...core.scheduling.snapshot import Scale
from ...errors import QueueInUse, QueueRefused, SpecError, StaleRevision
from ...spec.queue_file import QueueFile, queue_file_of
from ...spec.queue_table import QueueTable
from ...spec.queues import DEFAULT_PROJECT
from ..files.ledger_file import QUEUES


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedQueues:
    """A file of queues, as applied."""

    file: QueueFile = field(default_factory=QueueFile.unlimited)
    revision: int = 0
    """0: there is no file."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """The file as it was given."""
    applied_by: str = ""
    applied_at: float = 0.0
    """In seconds since the epoch."""

    @classmethod
    def noted(cls, note: Mapping[str, Any]) -> AppliedQueues:
        """Read the note beside the cluster state."""
        return cls(file=queue_file_of(note["document"]), **note)

    def note(self) -> dict[str, Any]:
        """The note beside the cluster state."""
        return {
            "revision": self.revision,
            "document": self.document,
            "applied_by": self.applied_by,
            "applied_at": self.applied_at,
        }

    def table(self, scale: Scale) -> QueueTable:
        """The queues in units of a scale."""
        return QueueTable(self.file, scale, self.file.pool_names)


class QueueBook:
    """The queues of a Ray cluster; without a file there is one, with everything in it."""

    def __init__(self, note: Mapping[str, Any] | None) -> None:
        self.queues = AppliedQueues() if note is None else AppliedQueues.noted(note)
        self._table: tuple[Scale, QueueTable] | None = None
        self._unsaved = False

    @property
    def file(self) -> QueueFile:
        return self.queues.file

    @property
    def revision(self) -> int:
        """0 without a file."""
        return self.queues.revision

    def notes(self) -> Mapping[str, Any]:
        """The note to write since the last call; empty if there is none."""
        unsaved, self._unsaved = self._unsaved, False
        return {QUEUES: self.queues.note()} if unsaved else {}

    def table(self, scale: Scale) -> QueueTable:
        """The queues in units of a scale."""
        if self._table is None or self._table[0] != scale:
            self._table = scale, self.queues.table(scale)
        return self._table[1]

    def standing(self, request: Request) -> tuple[int, bool]:
        """The priority of a request's class, and whether it may be stopped for others."""
        given = request.priority_class, 0, request.preemptible
        return self.table(Scale.of({})).priority_and_preemptible(*given)

    # -- requests -----------------------------------------------------------------------------

    def check(self, request: Request, user: str | None, roles: Sequence[str] = ()) -> None:
        """Refuse a request that its project does not allow. QueueRefused.

        Any user may be listed if it is None.
        """
        why = self.file.refusal(request.project, user, roles, request.priority_class, request.pool)
        if why is not None:
            raise QueueRefused(request.id, why)

    def pool_of(self, request: Request, machines: Sequence[Machine]) -> str:
        """The pool of a request that names none: the first that could hold it, where the project
        has a quota if it has one."""
        first = self.file.first_pool(request.project)
        if len(self.file.pool_names) == 1:
            return first
        for name in (first, *self.file.pool_names):
            mine = self.in_pool(name, machines)
            if mine and never(Ledger(mine), request) is None:
                return name
        return first

    def in_pool(self, name: str, machines: Iterable[Machine]) -> list[Machine]:
        """The machines of a pool."""
        return [each for each in machines if self.file.pools_of(each.labels)[0] == name]

    # -- a new file ---------------------------------------------------------------------------

    def applied(
        self,
        document: Mapping[str, Any],
        revision: int | None,
        user: str,
        now: float,
        state: ClusterState,
    ) -> AppliedQueues:
        """What a new file would become. StaleRevision, QueueInUse, SpecError."""
        if revision is not None and revision != self.revision:
            raise StaleRevision(revision, self.revision, self.queues.applied_by)
        file = queue_file_of(document)
        if twice := _in_two_pools(state, file):
            raise SpecError(twice)
        if used := _used(state, file):
            raise QueueInUse(used)
        return AppliedQueues(
            file=file,
            revision=self.revision + 1,
            document=document,
            applied_by=user,
            applied_at=now,
        )

    def become(self, queues: AppliedQueues) -> None:
        """Replace the file."""
        self.queues, self._table, self._unsaved = queues, None, True


def _in_two_pools(state: ClusterState, file: QueueFile) -> str:
    """The machine that matches two pools of a file; one that joins later is in the first."""
    for machine in state.ledger.machines.values():
        pools = file.pools_of(machine.labels)
        if len(pools) > 1:
            return (
                f"pools: wanted each machine in one pool, found {machine.hostname} "
                f"({machine.id[:8]}) in {' and '.join(pools)}"
            )
    return ""


def _used(state: ClusterState, file: QueueFile) -> dict[str, tuple[str, ...]]:
    """The queues that a file lacks, and the virtual clusters that are in them."""
    found: dict[str, list[str]] = {}
    for request in (each.request for each in state.entries.values()):
        if request.parent != ROOT:
            continue
        if (request.project or DEFAULT_PROJECT) not in {each.name for each in file.projects}:
            found.setdefault(f"project {request.project}", []).append(request.id)
        elif request.pool and request.pool not in file.pool_names:
            found.setdefault(f"pool {request.pool}", []).append(request.id)
    return {name: tuple(ids) for name, ids in found.items()}
