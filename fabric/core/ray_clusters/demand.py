"""What could not be placed, gang by gang, and the request to Ray's autoscaler.

A gang is placed as a whole, so it is no set of parts: a machine for one half of it is no use. Who
adds machines reads gangs. Ray's own autoscaler takes amounts only; what they are is decided here.

Ray keeps one request for the whole cluster, and each new one replaces it. If the present one is
what we wrote last, the others' part is unchanged; otherwise all of it is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Any

from ..records import ROOT, Bundle, BundleGroup, ClusterId, SchedulingPolicy
from ..resources import Resources
from ..scheduling.records import Rule, SchedulingPlan, Workload
from ..scheduling.snapshot import SchedulingSnapshot

MACHINES_HELP = frozenset({Rule.NO_ROOM, Rule.KEPT, Rule.MAY_COME, Rule.NEVER})
"""The rules by which a gang waits that could start on more, or on larger, machines."""


class GangKind(StrEnum):
    """What has no places."""

    VIRTUAL_CLUSTER = "virtual-cluster"
    """All that a virtual cluster, or a workload of a case, needs to start."""
    LOST_NODES = "lost-nodes"
    """What a virtual cluster has lost; the rest of it runs."""
    WORK = "work"
    """A task or an actor for which its virtual cluster could borrow nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplacedGang:
    """What must be placed as a whole, and is not."""

    id: str
    """The virtual cluster, or the work."""
    kind: GangKind = GangKind.VIRTUAL_CLUSTER
    inside: ClusterId = ROOT
    """The virtual cluster that should give it places."""
    groups: tuple[BundleGroup, ...] = ()
    """The bundles without places, by the policy that places them."""
    flexible: Resources = field(default_factory=Resources)
    """What it needs besides, on any machines in any parts."""
    user: str = ""
    project: str = ""
    """Empty inside a virtual cluster, where there are no queues."""
    pool: str = ""
    since_s: float
    """Since when it has no places."""
    rule: Rule | None = None
    """Why it has none, if a plan decided that."""
    reason: str = ""
    """The same in words."""
    machines_help: bool
    """Whether it could start if machines joined; not so if a limit or a quota holds it up, or if
    others are about to leave its places."""

    def document(self) -> dict[str, Any]:
        """The gang as plain JSON values."""
        return {
            "id": self.id,
            "kind": str(self.kind),
            "inside": self.inside,
            "groups": [
                {"policy": str(each.policy), "bundles": _bundles(each)} for each in self.groups
            ],
            "flexible": self.flexible.to_ray(),
            "user": self.user,
            "project": self.project or None,
            "pool": self.pool or None,
            "since": self.since_s,
            "rule": None if self.rule is None else str(self.rule),
            "reason": self.reason,
            "machines_help": self.machines_help,
        }


def _bundles(group: BundleGroup) -> list[dict[str, Any]]:
    """Equal bundles that follow each other, once with their number."""
    return [
        {
            "count": len(list(equal)),
            "resources": each.resources.to_ray(),
            "selector": {label: str(condition) for label, condition in each.selector.items()},
        }
        for each, equal in groupby(group.bundles)
    ]


def unplaced(snapshot: SchedulingSnapshot, plan: SchedulingPlan) -> tuple[UnplacedGang, ...]:
    """The gangs of a snapshot that a plan could not place, those that have waited longest first."""
    found = [
        _gang(snapshot, snapshot.workloads[id], wait.reason.rule, wait.reason.text)
        for wait in plan.waits
        for id in wait.workloads
    ]
    return tuple(sorted(found, key=lambda each: (each.since_s, each.id)))


def _gang(
    snapshot: SchedulingSnapshot, workload: Workload, rule: Rule, reason: str
) -> UnplacedGang:
    queue, scale, gang = snapshot.queues[workload.queue], snapshot.scale, workload.gang
    bundles: list[list[Bundle]] = [[] for _ in gang.policies]
    for part, count in zip(gang.parts, workload.missing, strict=True):
        resources = Resources.of(scale.by_name(part.request))
        bundles[part.group] += [Bundle(resources=resources, selector=dict(part.selector))] * count
    since_s = workload.waits_since_s
    return UnplacedGang(
        id=workload.id,
        kind=GangKind.LOST_NODES if workload.members else GangKind.VIRTUAL_CLUSTER,
        groups=tuple(
            BundleGroup(bundles=tuple(mine), policy=policy or SchedulingPolicy.PACK)
            for mine, policy in zip(bundles, gang.policies, strict=True)
            if mine
        ),
        project=queue.name,
        pool=queue.pool,
        since_s=0.0 if since_s is None else since_s,
        rule=rule,
        reason=reason,
        machines_help=rule in MACHINES_HELP,
    )


def amounts(groups: Iterable[BundleGroup], flexible: Resources) -> Iterator[Resources]:
    """What a gang asks for, part by part: all that Ray's autoscaler can be asked for."""
    for group in groups:
        for bundle in group.bundles:
            yield bundle.resources
    if flexible:
        yield flexible


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDemand:
    """The last request to Ray's autoscaler."""

    others: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    """Our previous part, which Ray still has if the manager died before it wrote `ours`."""

    @property
    def all(self) -> tuple[str, ...]:
        """The whole request as written to Ray."""
        return self.others + self.ours


def merged(there: Sequence[str], last: PublishedDemand, ours: Sequence[str]) -> PublishedDemand:
    """The next request, given the one at Ray, the last one that we wrote, and our new part."""
    left_by_us = (sorted(last.all), sorted(last.others + last.before))
    others = last.others if sorted(there) in left_by_us else tuple(there)
    return PublishedDemand(others=others, ours=tuple(ours), before=last.ours)
