"""BorrowedPlaces: takes what a flexible vnode borrowed back for others, with the work that uses it.

A vnode that has borrowed all that it holds goes as a whole. Any other keeps its own part. The work
on it that was submitted last ends first. Then goes what virtual clusters inside borrowed there, and
at last these end, the youngest first, until all that was borrowed is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from ...core.ledger import Ledger
from ...core.places.groups import Either, PlacementGroupRecord
from ...core.records import ClusterId, VNode, VNodeId, VNodeKind
from ..routing.router import Router
from ..status import Statuses
from .bundler import Bundler


class BorrowedPlaces:
    """What the virtual clusters of one Ray cluster borrowed."""

    def __init__(
        self,
        bundler: Bundler,
        router: Router,
        statuses: Statuses,
        end: Callable[[ClusterId, str], object],
        give_back: Callable[[frozenset[VNodeId]], None],
    ) -> None:
        """`end` ends a virtual cluster, and says why; `give_back` returns unused loans early."""
        self._state = bundler.state
        self._bundler = bundler
        self._router = router
        self._statuses = statuses
        self._end = end
        self._give_back = give_back

    @property
    def _ledger(self) -> Ledger:
        return self._state.ledger

    def take_back(self, id: VNodeId, why: str) -> None:
        """End what uses the loans of a vnode, and return them."""
        known = self._ledger.vnodes.get(id)
        if known is None or not self._ledger.borrowed(id):
            return  # they were returned meanwhile
        self._statuses.note(known.cluster, "node stopped", why, on_record=True)
        if self._is_all_borrowed(known):
            self._vacate(known)
            return
        while self._lends(id) and self._end_more(id):
            pass
        self._bundler.rebundle(self._ledger, {id} & self._ledger.vnodes.keys())

    def _lends(self, id: VNodeId) -> bool:
        """Return the loans of a vnode; whether some are still in use."""
        self._give_back(frozenset({id}))
        return id in self._ledger.vnodes and bool(self._ledger.borrowed(id))

    def _end_more(self, id: VNodeId) -> bool:
        """End what is to end next on a vnode; False if nothing is left."""
        works = [
            each
            for each in self._state.works.of(self._ledger.vnodes[id].cluster)
            if each.vnode == id and each.demand
        ]
        if works:
            last = max(works, key=attrgetter("number"))
            known = self._state.groups.get(last.group)
            self._remove(() if known is None else (known,))
            self._router.removed((last.group,))
            return True
        # Work without resources, and work that waits for a placement group, may be in the way.
        used = Either(self._state.works.busy, self._bundler.in_use)
        if busy := [each for each in self._state.groups.of_vnode(id) if each.id in used]:
            self._remove(busy)
            return True
        why = f"{id}, which it was on, left"
        inside = self._inside(id)
        lent = (each for each in inside if each.kind is VNodeKind.FLEXIBLE)
        if loan := next((each for each in lent if self._ledger.borrowed(each.id)), None):
            self.take_back(loan.id, why)
        elif inside:
            self._end(inside[0].cluster, why)
        return bool(inside)

    def _is_all_borrowed(self, vnode: VNode) -> bool:
        return self._ledger.borrowed(vnode.id) == vnode.resources

    def _inside(self, id: VNodeId) -> list[VNode]:
        """The vnodes carved out of one, those of the youngest virtual clusters first."""
        order = {cluster: at for at, cluster in enumerate(self._state.entries)}
        found = [each for each in self._ledger.vnodes.values() if each.parent == id]
        return sorted(found, key=lambda each: (-order.get(each.cluster, 0), each.id))

    def _vacate(self, vnode: VNode) -> None:
        """Take a vnode away with all that is on it."""
        for inside in self._inside(vnode.id):
            if inside.id not in self._ledger.vnodes:
                continue
            if inside.kind is VNodeKind.FLEXIBLE and self._is_all_borrowed(inside):
                self._vacate(inside)
            else:
                self._end(inside.cluster, f"{vnode.id}, which it was on, left")
        self._remove(self._state.groups.of_vnode(vnode.id))
        self._ledger.drop(vnode.id)

    def _remove(self, groups: Iterable[PlacementGroupRecord]) -> None:
        """Remove placement groups: Ray ends the work in them."""
        gone = tuple(groups)
        self._router.removed(group.id for group in gone)
        self._bundler.give_up(gone)
