"""Ledgers of a few machines, requests for their CPUs, and what is held in them as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedpilot.fabric import Bundle, Resources, SchedulingPolicy, VNodeId
from fedpilot.fabric.core.ledger import Ledger
from fedpilot.fabric.core.places.admission import Decision, QueuedAt
from fedpilot.fabric.core.places.borrowing import Unmet, borrow, find_growth
from fedpilot.fabric.core.places.nomination import Admit, apply, place
from fedpilot.fabric.core.places.request import Request
from fedpilot.fabric.core.records import ROOT, BundleGroup, ClusterId, Use, WorkId, flexible_id
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.core.selectors import In
from fedpilot.fabric.testing.fake_cluster import fake_machine

PACK, SPREAD = SchedulingPolicy.PACK, SchedulingPolicy.SPREAD

STRICT_PACK, STRICT_SPREAD = SchedulingPolicy.STRICT_PACK, SchedulingPolicy.STRICT_SPREAD

NEVER = float("inf")


def cpus(amount: float) -> Resources:
    return Resources.of({"CPU": amount})


def group(*amounts: float, policy: SchedulingPolicy = PACK, **selector: str) -> BundleGroup:
    asked = {label: In(value) for label, value in selector.items()}
    bundles = tuple(Bundle(resources=cpus(amount), selector=asked) for amount in amounts)
    return BundleGroup(bundles=bundles, policy=policy)


def asks(
    name: str,
    *groups: BundleGroup,
    least: float = 0,
    most: float | None = None,
    inside: str = ROOT,
    **more: Any,
) -> Request:
    limits = {} if most is None else {"CPU": round(most * UNIT)}
    return Request(
        id=ClusterId(name),
        parent=ClusterId(inside),
        groups=groups,
        least=cpus(least),
        limits=limits,
        **more,
    )


def machines(**amounts: float) -> Ledger:
    return Ledger(fake_machine(name, CPU=amount) for name, amount in amounts.items())


def admit(ledger: Ledger, *requests: Request) -> None:
    for request in requests:
        found = place(ledger, request)
        assert isinstance(found, Admit), found
        apply(ledger, found, NEVER)


def run(ledger: Ledger, cluster: str, work: str, amount: float = 1) -> VNodeId | Unmet:
    """Let work begin where there is room for it, borrowing if there is none."""
    id = ClusterId(cluster)
    for each in ledger.of(id):
        if cpus(amount).fits(ledger.free(each.id)):
            ledger.start(WorkId(work), Use(vnode=each.id, resources=cpus(amount)))
            return each.id
    found = find_growth(ledger, id, cpus(amount))
    if isinstance(found, Unmet):
        return found
    borrow(ledger, found, NEVER)
    vnode = flexible_id(id, found.machine)
    ledger.start(WorkId(work), Use(vnode=vnode, resources=cpus(amount)))
    return vnode


def table(ledger: Ledger) -> dict[str, tuple[str, float, float]]:
    """The node tables of the seed: (cluster, total CPU, available CPU) by node."""
    told = {}
    for machine in ledger.machines:
        told[str(machine)] = (
            str(ROOT),
            ledger.total(machine)["CPU"] / UNIT,
            ledger.free(machine)["CPU"] / UNIT,
        )
    for id, each in ledger.vnodes.items():
        told[str(id)] = (
            str(each.cluster),
            each.resources["CPU"] / UNIT,
            ledger.free(id)["CPU"] / UNIT,
        )
    return told


def contents(ledger: Ledger) -> Mapping[str, Any]:
    return {
        "machines": ledger.machines,
        "vnodes": ledger.vnodes,
        "uses": ledger.uses,
        "loans": sorted(ledger.loans(), key=repr),
        "clusters": ledger.clusters,
        "free": {place: ledger.free(place) for place in [*ledger.machines, *ledger.vnodes]},
    }


def told(decisions: Iterable[Decision]) -> list[str]:
    said = []
    for each in decisions:
        if isinstance(each, QueuedAt):
            said.append(f"wait {each.request.id} {each.position}")
        else:
            said.append(f"{type(each).__name__.lower()} {each.request.id}")
    return said
