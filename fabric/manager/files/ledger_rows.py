"""The rows of the ledger's file: each record of the state as JSON values, and back.

A field that older versions did not write is read with a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...core.cluster_state import Entry
from ...core.ledger import Ledger
from ...core.places.groups import CarriedBundle, GroupId, PlacementGroupRecord
from ...core.places.request import Request
from ...core.records import (
    Bundle,
    BundleGroup,
    ClusterId,
    Loan,
    Machine,
    MachineId,
    PlacedCluster,
    SchedulingPolicy,
    Use,
    VNode,
    VNodeId,
    VNodeKind,
    WorkId,
)
from ...core.resources import Resources
from ...core.routing.work import Work, WorkState
from ...core.selectors import Condition, Selector, parse


def _resources(units: Iterable[Sequence[Any]]) -> Resources:
    return Resources(tuple((str(name), int(amount)) for name, amount in units))


def machine_row(machine: Machine) -> dict[str, Any]:
    return {
        "hostname": machine.hostname,
        "total": machine.total.units,
        "labels": dict(machine.labels),
    }


def machine(id: str, what: Mapping[str, Any]) -> Machine:
    return Machine(
        id=MachineId(id),
        hostname=what["hostname"],
        total=_resources(what["total"]),
        labels=what["labels"],
    )


def cluster_row(cluster: PlacedCluster) -> dict[str, Any]:
    return {
        "parent": cluster.parent,
        "limits": dict(cluster.limits),
        "flexible": cluster.flexible,
    }


def cluster(id: str, what: Mapping[str, Any]) -> PlacedCluster:
    return PlacedCluster(
        id=ClusterId(id),
        parent=ClusterId(what["parent"]),
        limits=what["limits"],
        flexible=what["flexible"],
    )


def vnode_row(ledger: Ledger, vnode: VNode) -> dict[str, Any]:
    return {
        "cluster": vnode.cluster,
        "parent": vnode.parent,
        "machine": vnode.machine,
        "kind": vnode.kind,
        "resources": vnode.resources.units,
        "labels": dict(vnode.labels),
        "loans": [[loan.resources.units, loan.until] for loan in ledger.loans_of(vnode.id)],
    }


def vnode(id: str, what: Mapping[str, Any]) -> VNode:
    return VNode(
        id=VNodeId(id),
        cluster=ClusterId(what["cluster"]),
        parent=VNodeId(what["parent"]),
        machine=MachineId(what["machine"]),
        kind=VNodeKind(what["kind"]),
        resources=_resources(what["resources"]),
        labels=what["labels"],
    )


def loans(id: str, what: Mapping[str, Any]) -> list[Loan]:
    return [
        Loan(vnode=VNodeId(id), resources=_resources(units), until=until)
        for units, until in what["loans"]
    ]


def use_row(use: Use) -> dict[str, Any]:
    return {"vnode": use.vnode, "resources": use.resources.units}


def use(what: Mapping[str, Any]) -> Use:
    return Use(vnode=VNodeId(what["vnode"]), resources=_resources(what["resources"]))


def entry_row(asked: Mapping[ClusterId, int], entry: Entry) -> dict[str, Any]:
    request = entry.request
    return {
        "asked": asked[request.id],
        "spec": dict(entry.spec),
        "owner": entry.owner,
        "user": entry.user,
        "process": entry.process,
        "jobs": sorted(entry.jobs),
        "asked_at": entry.asked_at,
        "group": entry.group,
        "waiting": entry.waiting,
        "begun": entry.begun,
        "parent": request.parent,
        "groups": [[group.policy, _bundle_rows(group)] for group in request.groups],
        "labels": [dict(labels) for labels in request.labels],
        "least": request.least.units,
        "limits": dict(request.limits),
        "flexible": request.flexible,
        "priority": request.priority,
        "deadline": request.deadline,
    }


def _bundle_rows(group: BundleGroup) -> list[Any]:
    return [[bundle.resources.units, _selector_row(bundle.selector)] for bundle in group.bundles]


def _selector_row(selector: Selector) -> dict[str, str]:
    return {label: str(condition) for label, condition in selector.items()}


def entry(id: str, what: Mapping[str, Any]) -> Entry:
    request = Request(
        id=ClusterId(id),
        parent=ClusterId(what["parent"]),
        groups=tuple(_bundle_group(*group) for group in what["groups"]),
        labels=tuple(what["labels"]),
        least=_resources(what["least"]),
        limits=what["limits"],
        flexible=what["flexible"],
        priority=what["priority"],
        deadline=what["deadline"],
    )
    return Entry(
        request=request,
        spec=what["spec"],
        owner=what["owner"],
        user=what.get("user", ""),  # files of before have none
        process=what.get("process"),  # files of before have none
        jobs=frozenset(what["jobs"]),
        asked_at=what["asked_at"],
        group=what["group"],
        waiting=what["waiting"],
        begun=what["begun"],
    )


def _bundle_group(policy: str, bundles: Sequence[Any]) -> BundleGroup:
    return BundleGroup(
        bundles=tuple(
            Bundle(resources=_resources(units), selector=_selector(selector))
            for units, selector in bundles
        ),
        policy=SchedulingPolicy(policy),
    )


def _selector(conditions: Mapping[str, str]) -> dict[str, Condition]:
    return {label: parse(text) for label, text in conditions.items()}


def group_row(group: PlacementGroupRecord) -> dict[str, Any]:
    return {
        "cluster": group.cluster,
        "policy": group.policy,
        "pieces": [
            [piece.vnode, piece.resources.units, piece.machine, _selector_row(piece.selector)]
            for piece in group.pieces
        ],
    }


def group(id: str, what: Mapping[str, Any]) -> PlacementGroupRecord:
    return PlacementGroupRecord(
        id=GroupId(id),
        cluster=ClusterId(what["cluster"]),
        policy=SchedulingPolicy(what["policy"]),
        pieces=tuple(
            CarriedBundle(
                vnode=vnode,
                resources=_resources(units),
                machine=machine,
                selector=_selector(selector),
            )
            for vnode, units, machine, selector in what["pieces"]
        ),
    )


def work_row(work: Work) -> dict[str, Any]:
    return {
        "number": work.number,
        "cluster": work.cluster,
        "demand": work.demand.units,
        "selector": _selector_row(work.selector),
        "actor": work.actor,
        "lasting": work.lasting,
        "owner": work.owner,
        "group": work.group,
        "bundle": work.bundle,
        "vnode": work.vnode,
        "state": work.state,
    }


def work(id: str, what: Mapping[str, Any]) -> Work:
    return Work(
        id=WorkId(id),
        number=what["number"],
        cluster=ClusterId(what["cluster"]),
        demand=_resources(what["demand"]),
        selector=_selector(what["selector"]),
        actor=what["actor"],
        lasting=what.get("lasting", bool(what["actor"])),  # files of before have none
        owner=what["owner"],
        group=GroupId(what["group"]),
        bundle=what["bundle"],
        vnode=what["vnode"],
        state=WorkState(what["state"]),
    )
