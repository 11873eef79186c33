"""Unplaced: the gangs that have no places in a Ray cluster, and the request to Ray's autoscaler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from ...core.cluster_state import ClusterState, Entry
from ...core.ledger import Ledger
from ...core.places.borrowing import may_grow
from ...core.places.nomination import lacking
from ...core.places.request import Request
from ...core.ray_clusters.demand import MACHINES_HELP, GangKind, UnplacedGang, amounts
from ...core.records import ROOT, Bundle, BundleGroup, SchedulingPolicy
from ...core.resources import Resources
from ...core.selectors import Selector
from ...spec.queues import DEFAULT_POOL, DEFAULT_PROJECT
from ..routing.router import Router
from ..status import Statuses


class Unplaced:
    """What one Ray cluster could not place."""

    def __init__(self, state: ClusterState, statuses: Statuses, router: Router) -> None:
        self._state = state
        self._statuses = statuses
        self._router = router

    def gangs(self, most: int | None = None) -> tuple[UnplacedGang, ...]:
        """All gangs without places, those that have waited longest first.

        With `most` those of only so many virtual clusters that wait, the first in line.
        """
        state = self._state
        waiting = islice(state.in_order(state.index.waiting), most)
        found = [*map(self._whole, waiting)]
        found += [lost for lost in map(self._lost, self._lacking()) if lost is not None]
        found += [
            UnplacedGang(
                id=work.id,
                kind=GangKind.WORK,
                inside=work.cluster,
                groups=(_alone(work.demand, work.selector),),
                user=state.entries[work.cluster].user if work.cluster in state.entries else "",
                since_s=since_s,
                reason=why.reason,
                machines_help=why.physical,
            )
            for work, why, since_s in self._router.awaits()
        ]
        return tuple(sorted(found, key=lambda each: (each.since_s, each.id)))

    def demand(self) -> tuple[Resources, ...]:
        """What they ask of machines that may join, but for what Ray asks of them itself."""
        found = list[Resources]()
        for entry in self._state.in_order(self._state.index.waiting):
            if self._machines_help(entry):
                found += amounts(entry.request.groups, entry.request.least)
        for entry in self._lacking():
            of = self._state.groups.of_cluster(entry.request.id)
            if not any(group.movable for group in of) and self._machines_help(entry):
                found += amounts(*lost_part(self._state.ledger, entry.request))
        found += [work.demand for work, why, _ in self._router.awaits() if why.physical]
        return tuple(found)

    def with_all_held(self) -> tuple[Resources, ...]:
        """The request to Ray's autoscaler, which wants what is held, too; empty without demand."""
        if not (asked := self.demand()):
            return ()
        ledger = self._state.ledger
        held = [each.resources for each in ledger.vnodes.values() if each.parent in ledger.machines]
        return (*held, *asked)

    def _lacking(self) -> Iterator[Entry]:
        """The virtual clusters in trouble that run."""
        entries = self._state.entries
        known = (entries[id] for id in self._statuses.troubled if id in entries)
        return (entry for entry in known if not entry.waiting)

    def _whole(self, entry: Entry) -> UnplacedGang:
        request, statuses = entry.request, self._statuses
        at_root = request.parent == ROOT
        return UnplacedGang(
            id=request.id,
            inside=request.parent,
            groups=request.groups,
            flexible=request.least,
            user=entry.user,
            project=(request.project or DEFAULT_PROJECT) if at_root else "",
            pool=(request.pool or DEFAULT_POOL) if at_root else "",
            since_s=entry.since or entry.asked_at,
            rule=None if entry.promised else statuses.rule(request.id),
            reason=statuses.reason(request.id),
            machines_help=self._machines_help(entry),
        )

    def _lost(self, entry: Entry) -> UnplacedGang | None:
        """What a virtual cluster lacks of its minimum; None if nothing."""
        groups, flexible = lost_part(self._state.ledger, entry.request)
        if not (groups or flexible):
            return None
        since_s = self._statuses.troubled_since(entry.request.id)
        found = replace(self._whole(entry), kind=GangKind.LOST_NODES, since_s=since_s)
        return replace(found, groups=groups, flexible=flexible)

    def _machines_help(self, entry: Entry) -> bool:
        """Whether a virtual cluster could have all its places if machines joined."""
        request = entry.request
        if request.parent != ROOT:
            return self._parent_may_grow(request)
        if entry.promised:
            return False
        rule = self._statuses.rule(request.id)
        refused = rule is None and self._statuses.was_taken_back(request.id)
        return rule in MACHINES_HELP or refused

    def _parent_may_grow(self, request: Request) -> bool:
        """Whether a parent could get what it has not free, if machines had it."""
        ledger, parent, needs = self._state.ledger, request.parent, request.needs
        if parent not in ledger.clusters:
            return False
        free = Resources.total(ledger.free(vnode.id) for vnode in ledger.of(parent))
        return may_grow(ledger, parent, needs.beyond(free) or needs)


def lost_part(ledger: Ledger, request: Request) -> tuple[tuple[BundleGroup, ...], Resources]:
    """The bundles and the flexible resources that a virtual cluster lacks of its minimum."""
    missing, least = lacking(ledger, request)
    groups, number = list[BundleGroup](), 0
    for group in request.groups:
        gone = [each for n, each in enumerate(group.bundles, number) if n in missing]
        number += len(group.bundles)
        if gone:
            groups.append(replace(group, bundles=tuple(gone), most=None))
    return tuple(groups), least


def _alone(demand: Resources, selector: Selector) -> BundleGroup:
    bundle = Bundle(resources=demand, selector=selector)
    return BundleGroup(bundles=(bundle,), policy=SchedulingPolicy.PACK)
