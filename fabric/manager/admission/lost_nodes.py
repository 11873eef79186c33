"""LostNodes: what follows when single nodes of virtual clusters are gone.

Nodes go with a machine that dies, whose work Ray repeats elsewhere, or leave for others, and then
their work ends. Only nodes above a minimum leave alone (decision 65).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from ...core.places.groups import PlacementGroupRecord
from ...core.records import DEFAULT, ClusterId, MachineId, VNodeId
from ..routing.router import Router
from ..status import Statuses
from .bundler import Bundler


class LostNodes:
    """The nodes of one Ray cluster that are lost."""

    def __init__(
        self,
        bundler: Bundler,
        router: Router,
        statuses: Statuses,
        end: Callable[[ClusterId, str], object],
    ) -> None:
        """`end` ends a virtual cluster, and says why."""
        self._state = bundler.state
        self._bundler = bundler
        self._router = router
        self._statuses = statuses
        self._end = end

    def died(self, machine: MachineId) -> None:
        """Forget the vnodes of a dead machine, and the placement groups that only they needed."""
        ledger, groups = self._state.ledger, self._state.groups
        hostname = ledger.machines[machine].hostname
        lost = {vnode.id: vnode for vnode in ledger.machine_down(machine)}
        self._router.lost(lost.keys())
        for vnode in sorted(lost):
            for group in groups.of_vnode(vnode):
                self._lost_piece(group, lost)
        for id in sorted({vnode.cluster for vnode in lost.values()} - {DEFAULT}):
            mine = [each.id for each in lost.values() if each.cluster == id]
            self.forget_notices(id, mine)
            why = f"machine {hostname} ({machine[:8]}) died with some of its nodes"
            request = self._state.entries[id].request
            if all(map(request.is_surplus, mine)):
                for node in mine:
                    self._statuses.note(id, "node stopped", f"{node}: {why}")
                continue
            if self._state.entries[id].group in groups:
                why += "; as a placement group it is made anew once nothing runs in the rest"
            self._statuses.trouble(id, why)

    def left(self, node: VNodeId, why: str) -> None:
        """Take a node away with its work; what is inside it ends."""
        ledger, id = self._state.ledger, self._state.ledger.vnodes[node].cluster
        for child in ledger.children(id):
            if any(vnode.parent == node for vnode in ledger.of(child)):
                self._end(child, f"{node}, which it was on, left")
        carriers = self._state.groups.of_vnode(node)
        self._router.removed(group.id for group in carriers)
        self._bundler.give_up(carriers)
        ledger.drop(node)
        self.forget_notices(id, (node,))
        self._statuses.note(id, "node stopped", why, on_record=True)

    def refused(self, group: PlacementGroupRecord, why: str) -> bool:
        """Take a node above the minimum back that Ray has no room for; False for other nodes."""
        state, request = self._state, self._state.entries[group.cluster].request
        for node in group.vnodes:
            alone = state.groups.of_vnode(node) == (group,) and not state.ledger.carved(node)
            if alone and request.is_surplus(node):
                self.left(node, f"{node}: {taken_by_others(why)}")
                self._statuses.rests(request.id, self._bundler.settings.settle_s)
                return True
        return False

    def _lost_piece(self, group: PlacementGroupRecord, lost: Collection[VNodeId]) -> None:
        """Keep what others use of a placement group that has lost vnodes."""
        groups = self._state.groups
        if group.movable:
            self._bundler.lost_places(group)
            return
        pieces = tuple(
            replace(piece, vnode=None) if piece.vnode in lost else piece for piece in group.pieces
        )
        if any(piece.vnode for piece in pieces):
            groups.drop(group.id)
            groups.put(replace(group, pieces=pieces))
        else:
            self._bundler.give_up([group])

    def forget_notices(self, id: ClusterId, nodes: Collection[VNodeId]) -> None:
        entry = self._state.entries[id]
        for notice in entry.nodes_leave:
            if notice.node in nodes:
                entry = entry.without(notice)
        if entry is not self._state.entries[id]:
            self._state.add(entry)


def taken_by_others(why: str) -> str:
    """What Ray's reason for having no room means."""
    return f"others took what was free ({why.lower().replace('_', ' ')})"
