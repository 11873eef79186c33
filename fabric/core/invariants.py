"""Checks a ledger's rules from its contents alone, to find damaged files and defects."""

from __future__ import annotations

from collections.abc import Iterator

from .ledger import Ledger
from .records import PlaceId, VNodeKind, flexible_id
from .resources import Resources


def broken(ledger: Ledger) -> list[str]:
    """Every violated rule, as a sentence; empty for a sound ledger."""
    return [*_over_capacity(ledger), *_misplaced(ledger), *_over_limits(ledger)]


def _over_capacity(ledger: Ledger) -> Iterator[str]:
    taken: dict[PlaceId, Resources] = {}
    for each in ledger.vnodes.values():
        taken[each.parent] = taken.get(each.parent, Resources()) + each.resources
    for use in ledger.uses.values():
        taken[use.vnode] = taken.get(use.vnode, Resources()) + use.resources
    for place in {*taken, *ledger.taken}:
        if place not in ledger.vnodes and place not in ledger.machines:
            yield f"{place} is gone, and something is carved out of it"
        elif not taken.get(place, Resources()).fits(ledger.total(place)):
            yield f"{place} is over its capacity"
        if taken.get(place, Resources()) != ledger.taken.get(place, Resources()):
            yield f"what is taken of {place} was added up wrongly"


def _misplaced(ledger: Ledger) -> Iterator[str]:
    for each in ledger.vnodes.values():
        if each.cluster not in ledger.clusters:
            yield f"{each.id} belongs to no cluster"
            continue
        above = ledger.clusters[each.cluster].parent
        if ledger.owner(each.parent) != above:
            yield f"{each.id} lies in {ledger.owner(each.parent)}, not in {above}"
        if each.machine != ledger.machine_of(each.parent):
            yield f"{each.id} is not on the machine of what it lies in"
        flexible = each.kind is VNodeKind.FLEXIBLE
        if flexible and each.id != flexible_id(each.cluster, each.machine):
            yield f"{each.id} is a second flexible vnode on {each.machine}"
        if not ledger.borrowed(each.id).fits(each.resources if flexible else Resources()):
            yield f"{each.id} has borrowed more than it holds"


def _over_limits(ledger: Ledger) -> Iterator[str]:
    for cluster in ledger.clusters.values():
        held = ledger.flexible_total(cluster.id)
        if cluster.exceeded(held) or (held and not cluster.flexible):
            yield f"{cluster.id} holds more flexible resources than its limit"
