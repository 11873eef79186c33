"""The manager's documents: the tree of virtual clusters as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpilot.common.text.amounts import listed

from ..core.cluster_state import Entry
from ..core.ledger import Ledger
from ..core.records import (
    ACTIVE,
    DEFAULT,
    EVERYTHING_ELSE,
    ROOT,
    VCLUSTER_LABEL,
    VNODE_LABEL,
    WAITING,
    ClusterId,
    PlaceId,
    VNode,
    VNodeId,
)
from ..core.resources import Resources, amounts
from ..core.routing.work import WorkState
from ..errors import NoSuchCluster
from .reconciler import Reconciler
from .scheduling.queue_document import notice_document, standing


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A reconciler's cluster state at one moment."""

    reconciler: Reconciler

    @property
    def _ledger(self) -> Ledger:
        return self.reconciler.state.ledger

    def document(self) -> dict[str, Any]:
        """All machines and all virtual clusters, parents before their children."""
        below: dict[ClusterId, list[ClusterId]] = {}
        for id, entry in self.reconciler.state.entries.items():
            below.setdefault(entry.request.parent, []).append(id)
        if DEFAULT in self._ledger.clusters:
            below.setdefault(ROOT, []).append(DEFAULT)
        order = [ROOT]
        for parent in order:  # grows on the way
            order += below.get(parent, ())
        unplaced = self.reconciler.admission.unplaced
        return {
            "machines": self.machines(),
            "clusters": [self.cluster(id) for id in order[1:]],
            "demand": [each.to_ray() for each in unplaced.demand()],
            "unplaced": [each.document() for each in unplaced.gangs()],
        }

    def machines(self) -> list[dict[str, Any]]:
        return [
            {
                "id": machine.id,
                "hostname": machine.hostname,
                "total": machine.total.to_ray(),
                "available": self._ledger.free(machine.id).to_ray(),
                "labels": dict(machine.labels),
            }
            for machine in sorted(self._ledger.machines.values(), key=lambda m: (m.hostname, m.id))
        ]

    def cluster(self, id: ClusterId) -> dict[str, Any]:
        """One virtual cluster; NoSuchCluster."""
        reconciler, ledger = self.reconciler, self._ledger
        entry = reconciler.state.entries.get(id)
        if entry is None and (id != DEFAULT or DEFAULT not in ledger.clusters):
            raise NoSuchCluster(id, sorted(reconciler.state.entries))
        vnodes = ledger.of(id)
        pieces = self._pieces(id)
        return {
            **self.brief(id),
            "parent": ROOT if entry is None else entry.request.parent,
            "owner": None if entry is None else entry.owner,
            "user": "" if entry is None else entry.user,
            "priority": 0,
            **({} if entry is None else self._standing(entry)),
            "deadline": None if entry is None else entry.request.deadline,
            "spec": {} if entry is None else dict(entry.spec),
            "total": Resources.total(each.resources for each in vnodes).to_ray(),
            "available": Resources.total(self._free(each.id) for each in vnodes).to_ray(),
            "borrowed": Resources.total(ledger.borrowed(each.id) for each in vnodes).to_ray(),
            "work": {str(state): reconciler.state.works.count(id, state) for state in WorkState},
            "actors_without_resources": reconciler.state.works.without_resources(id),
            "escapes": [e.reason for e in reconciler.escapes if e.cluster == id],
            "children": list(ledger.children(id)),
            "nodes": [
                {
                    **self.vnode(each, pieces.get(each.id, [])),
                    "leaves": None if entry is None else _leaves(entry, each.id),
                }
                for each in vnodes
            ],
        }

    def _standing(self, entry: Entry) -> dict[str, Any]:
        """Its project, class and notices; inside another one it has its priority only."""
        if entry.request.parent != ROOT:
            return {"priority": entry.request.priority}
        return {
            **standing(entry, self.reconciler.admission.book),
            "stopped": notice_document(entry.stopped),
            "since": entry.since,
        }

    def brief(self, id: ClusterId) -> dict[str, Any]:
        """The state of one virtual cluster, without what it holds."""
        statuses = self.reconciler.statuses
        entry = self.reconciler.state.entries.get(id)
        return {
            "id": id,
            "state": ACTIVE if entry is None else statuses.state(id),
            "reason": "" if entry is None else statuses.reason(id),
            "position": None if entry is None else statuses.position(id),
            "asked_at": None if entry is None else entry.asked_at,
        }

    def vnode(self, vnode: VNode, pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One vnode, and the bundles that carry it."""
        ledger = self._ledger
        known = ledger.machines.get(vnode.machine)
        return {
            "id": vnode.id,
            "kind": str(vnode.kind),
            "parent": vnode.parent,
            "machine": vnode.machine,
            "hostname": known.hostname if known else "",
            "total": vnode.resources.to_ray(),
            "available": self._free(vnode.id).to_ray(),
            "labels": {
                **vnode.labels,
                VNODE_LABEL: vnode.id,
                VCLUSTER_LABEL: vnode.cluster,
            },
            "loans": [
                {"resources": loan.resources.to_ray(), "until": loan.until}
                for loan in ledger.loans_of(vnode.id)
            ],
            "groups": list(pieces),
        }

    def _pieces(self, id: ClusterId) -> dict[VNodeId | None, list[dict[str, Any]]]:
        found: dict[VNodeId | None, list[dict[str, Any]]] = {}
        for group in self.reconciler.state.groups.of_cluster(id):
            for bundle, piece in enumerate(group.pieces):
                told = {"id": group.id, "bundle": bundle, "resources": piece.resources.to_ray()}
                found.setdefault(piece.vnode, []).append(told)
        return found

    def _free(self, place: PlaceId) -> Resources:
        return Resources() if self._ledger.owner(place) == DEFAULT else self._ledger.free(place)


def _leaves(entry: Entry, node: VNodeId) -> dict[str, Any] | None:
    """The notice of a node, or the one of its virtual cluster."""
    single = next((each for each in entry.nodes_leave if each.node == node), None)
    return notice_document(single or entry.leaves)


def find(document: Mapping[str, Any], id: str) -> Mapping[str, Any]:
    """A virtual cluster in a document; NoSuchCluster."""
    for cluster in document["clusters"]:
        if cluster["id"] == id:
            found: Mapping[str, Any] = cluster
            return found
    raise NoSuchCluster(id, [cluster["id"] for cluster in document["clusters"]])


def with_places(clusters: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those virtual clusters of a document that have places; `default` comes last."""
    found = [c for c in clusters if c["state"] != WAITING and (c["id"] != DEFAULT or c["total"])]
    return sorted(found, key=lambda cluster: cluster["id"] == DEFAULT)


def held_by_others(document: Mapping[str, Any], parent: str, but: str) -> str:
    """What each other virtual cluster inside a parent holds, in words; empty if there is none."""
    inside = [each for each in document["clusters"] if each["parent"] == parent]
    found = [
        f"{amounts(each['total'])} by {EVERYTHING_ELSE if each['id'] == DEFAULT else each['id']}"
        for each in with_places(inside)
        if each["id"] != but and each["total"]
    ]
    return f"held are {listed(found)}" if found else ""
