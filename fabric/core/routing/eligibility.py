"""Which vnodes and machines may run work, by its labels; and why the work can never run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter, or_

from ..ledger import Ledger
from ..places.borrowing import too_large_for
from ..records import NODE_LABEL, VCLUSTER_LABEL, VNODE_LABEL, ClusterId, Machine, VNode
from ..resources import UNIT, Resources
from ..selectors import In, Selector, describe, matches


@dataclass(frozen=True, slots=True)
class Never:
    """The virtual cluster could not run the work even if it were idle."""

    reason: str


def allows(vnode: VNode, selector: Selector) -> bool:
    """Whether a vnode has the labels that work selects."""
    if not selector:
        return True
    ours = {VNODE_LABEL: vnode.id, VCLUSTER_LABEL: vnode.cluster}
    return matches(selector, {**vnode.labels, **ours})


def allowed_machines(
    ledger: Ledger, cluster: ClusterId, selector: Selector
) -> Callable[[Machine], bool]:
    """Which machines a cluster may grow on for work, by the labels of its vnode there."""

    def allowed(machine: Machine) -> bool:
        there = ledger.flexible(cluster, machine.id)
        if there is not None:
            return allows(there, selector)
        return matches(selector, {**machine.labels, VCLUSTER_LABEL: cluster})

    return allowed


def names_machines(selector: Selector) -> bool:
    """Whether only certain machines may run the work, so that a new machine would not help."""
    return isinstance(selector.get(NODE_LABEL), In)


def never(
    ledger: Ledger,
    cluster: ClusterId,
    demand: Resources,
    mine: Sequence[VNode],
    selector: Selector,
    no_growth: str,
    machines_come: bool,
) -> Never | None:
    """Why a demand could not run even in an idle cluster; `no_growth` is why no vnode grows for it.

    Work that names machines is also refused if the cluster holds nothing there and cannot grow now.
    """
    known = ledger.clusters[cluster]
    if any(demand.fits(vnode.resources) for vnode in mine):
        return None
    if names_machines(selector) and not mine:
        where = _machines_named(ledger, selector)
        return Never(f"{cluster} holds nothing on {where}, and cannot grow there: {no_growth}")
    if selector and not mine and not known.flexible:
        return Never(f"no node of {cluster} has the labels {describe(selector)}")
    if not known.flexible or known.exceeded(demand):
        what = _most(ledger, cluster, mine, demand)
        return Never(f"{demand} is more than {cluster} may run at once: {what}")
    allowed = allowed_machines(ledger, cluster, selector)
    above = too_large_for(ledger, known.parent, demand, allowed=allowed)
    if above is not None:
        nodes = [vnode for vnode in ledger.of(above) if allowed(ledger.machines[vnode.machine])]
        lacks = f"{above}, which {cluster} is in, "
        if selector and not nodes and not ledger.clusters[above].flexible:
            return Never(f"{lacks}holds nothing with the labels {describe(selector)}")
        what = _most(ledger, above, nodes, demand)
        return Never(f"{demand} is more than {lacks}may hold: {what}")
    if machines_come and not names_machines(selector):
        return None
    machines = [each for each in ledger.machines.values() if allowed(each)]
    if any(demand.fits(each.total) for each in machines):
        return None
    which = f" with the labels {describe(selector)}" if selector else ""
    if not machines and selector:
        return Never(f"no machine of {cluster} has the labels {describe(selector)}")
    return Never(f"no machine{which} has {demand}: the most on one is {_largest(machines, demand)}")


def _machines_named(ledger: Ledger, selector: Selector) -> str:
    known = [each.hostname for each in ledger.machines.values() if matches(selector, each.labels)]
    named = selector.get(NODE_LABEL)
    ids = named.values if isinstance(named, In) else ()
    shown = ", ".join(id[:8] for id in ids)
    return f"machine {shown} ({', '.join(known) or 'which is not in the Ray cluster'})"


def _largest(machines: Iterable[Machine], demand: Resources) -> str:
    """The most that one machine has of each demanded resource, zeros included."""
    totals = [each.total for each in machines]
    most = reduce(or_, totals, Resources())
    return ", ".join(f"{most[name] / UNIT:.15g} {name}" for name, _ in demand.units)


def _most(ledger: Ledger, cluster: ClusterId, nodes: Iterable[VNode], demand: Resources) -> str:
    known = ledger.clusters[cluster]
    if known.flexible:
        over = tuple(sorted(known.exceeded(demand).items()))
        return f"its limit is {Resources(over)}"
    biggest = max((vnode.resources for vnode in nodes), key=attrgetter("size"), default=Resources())
    return f"its largest node, which has {biggest}"
