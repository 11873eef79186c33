"""Finds actors and tasks that take resources outside of the virtual cluster of their job."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .cluster_state import ClusterState, JobId
from .places.groups import GroupId
from .records import ClusterId
from .resources import Resources

NAMES = "fedpilot.virtual_cluster"
"""The key in a Ray job's metadata that names its virtual cluster. Its drivers cannot remove it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An actor or a task that holds resources of a machine."""

    job: JobId
    kind: str
    """`actor` or `task`."""
    id: str
    name: str
    group: GroupId | None
    """The placement group that it runs in."""
    resources: Resources


@dataclass(frozen=True, slots=True)
class Escape:
    """An actor or task that runs outside the virtual cluster of its job."""

    cluster: ClusterId
    what: Running

    @property
    def reason(self) -> str:
        what = self.what
        where = f"placement group {what.group[:8]}, not its own" if what.group else "no group"
        return f"{what.kind} {what.name} of job {what.job} holds {what.resources} in {where}"


def jobs_in(
    state: ClusterState, named: Mapping[JobId, str] = MappingProxyType({})
) -> dict[JobId, ClusterId]:
    """The virtual cluster of each job: the one its drivers entered, or else the one in `named`."""
    found = {job: ClusterId(name) for job, name in named.items() if name in state.entries}
    for id, entry in state.entries.items():
        found.update(dict.fromkeys(entry.jobs, id))
    return found


def escapes(
    state: ClusterState,
    jobs: Mapping[JobId, ClusterId],
    running: Iterable[Running],
    past: Container[GroupId] = frozenset(),
) -> tuple[Escape, ...]:
    """The work that runs outside its job's virtual cluster and the virtual clusters inside that.

    Ray reports the end of a task a second late, so work in a `past` group of ours is no escape.
    """
    allowed: dict[ClusterId, frozenset[GroupId]] = {}
    found = []
    for what in running:
        cluster = jobs.get(what.job)
        if cluster is None or cluster not in state.ledger.clusters or not what.resources:
            continue
        if cluster not in allowed:
            below = state.ledger.subtree(cluster)
            mine = {group.id for each in below for group in state.groups.of_cluster(each)}
            allowed[cluster] = frozenset(mine) | {
                work.group for each in below for work in state.works.of(each)
            }
        if what.group not in allowed[cluster] and what.group not in past:
            found.append(Escape(cluster, what))
    return tuple(found)
