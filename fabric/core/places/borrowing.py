"""How unmet demand grows a virtual cluster, parent by parent.

A cluster that lacks room for work makes or enlarges its flexible vnode on a machine, out of a place
of its parent there. If that place is too small and may grow, it grows in the same way, up to the
machine. What the machines lack is demand for Ray's autoscaler. Every step is a loan, which is
returned when it is due and unused (seed 000, "Autoscaling").
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from ..ledger import Ledger
from ..records import (
    ROOT,
    ClusterId,
    Loan,
    Machine,
    MachineId,
    PlaceId,
    VNode,
    VNodeId,
    VNodeKind,
    flexible_id,
)
from ..resources import Resources
from .gpus import fits_gpus, free_gpus
from .placement import GPU

SHOWN = 3
"""How many machines a reason names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One flexible vnode that is made or enlarged."""

    vnode: VNodeId
    cluster: ClusterId
    parent: PlaceId
    machine: MachineId
    by: Resources
    new: bool


@dataclass(frozen=True, slots=True)
class Growth:
    """The vnodes that grow for a demand, topmost first; no steps if it fits now."""

    machine: MachineId
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Unmet:
    """No growth makes room for the demand."""

    reason: str
    physical: bool
    """Whether another machine would help, which an autoscaler may add."""


def find_growth(
    ledger: Ledger,
    cluster: ClusterId,
    demand: Resources,
    *,
    allowed: Callable[[Machine], bool] = lambda _: True,
    fragmented: Container[MachineId] = frozenset(),
) -> Growth | Unmet:
    """Find how a cluster gets a flexible vnode with room for the whole demand.

    Enlarging a vnode comes before making one, and a nearer lender before one further up. Next the
    smallest loans win, then the first machine id.
    """
    found: list[Growth] = []
    machines = [id for id in sorted(ledger.machines) if allowed(ledger.machines[id])]
    gpus = free_gpus(ledger, machines, fragmented) if demand[GPU] else {}
    for machine in machines:
        found += [Growth(machine, way) for way in _ways(ledger, cluster, machine, demand, gpus)]
    if found:
        return min(found, key=_cost)
    limited = _limiting(ledger, cluster, demand, allowed)
    if limited is not None:
        return Unmet(f"{limited} may not hold {demand} more flexible resources", physical=False)
    names = sorted(ledger.machines[id].hostname for id in machines)
    if len(names) == len(ledger.machines):
        return Unmet(f"no machine has {demand} free", physical=True)
    if not names:
        return Unmet("no machine has the labels that it asks for", physical=True)
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return Unmet(f"no machine that may run it ({shown}) has {demand} free", physical=True)


def borrow(ledger: Ledger, growth: Growth, until: float) -> None:
    """Let the vnodes grow, each by a loan that is due at `until`."""
    for step in growth.steps:
        if step.new:
            ledger.add(
                VNode(
                    id=step.vnode,
                    cluster=step.cluster,
                    parent=step.parent,
                    machine=step.machine,
                    kind=VNodeKind.FLEXIBLE,
                    resources=step.by,
                    labels=ledger.labels(step.parent),
                )
            )
        else:
            ledger.grow(step.vnode, step.by)
        ledger.lend(Loan(vnode=step.vnode, resources=step.by, until=until))


def give_back(
    ledger: Ledger,
    now: float,
    rebundle: Callable[[Ledger, frozenset[VNodeId]], bool] = lambda _, __: True,
    *,
    early: Container[VNodeId] = (),
) -> tuple[Loan, ...]:
    """Return every loan that is due and unused, lower clusters first.

    Loans of `early` vnodes are due now, since others need them.

    Before each, `rebundle` gets a ledger without the loan and the vnodes that changed. It orders
    the new placement groups, or returns False if that is impossible, and the loan stays.
    """
    given: list[Loan] = []
    while ready := [
        loan
        for loan in ledger.loans()
        if (loan.until <= now or loan.vnode in early) and ledger.unused(loan)
    ]:
        before = len(given)
        for loan in ready:
            if not ledger.unused(loan):  # the vnode has returned another loan
                continue
            twin = ledger.copy()
            twin.give_back(loan)
            above = VNodeId(ledger.vnodes[loan.vnode].parent)
            if rebundle(twin, frozenset({loan.vnode, above} & ledger.vnodes.keys())):
                ledger.give_back(loan)
                given.append(loan)
        if len(given) == before:
            break
    return tuple(given)


def obtainable(ledger: Ledger, cluster: ClusterId, machine: MachineId) -> Resources:
    """The most that a cluster's flexible vnode on a machine could have free."""
    if cluster == ROOT:
        return ledger.free(machine)
    vnode = ledger.flexible(cluster, machine)
    above = ledger.clusters[cluster].parent
    if vnode is None:
        fixed = [ledger.free(place) for place in _fixed_places(ledger, above, machine)]
        sources = [*fixed, obtainable(ledger, above, machine)]
        return max((_capped(ledger, cluster, room) for room in sources), key=attrgetter("size"))
    upper = ledger.vnodes.get(VNodeId(vnode.parent))
    if upper is None or upper.kind is VNodeKind.FIXED:
        room = ledger.free(vnode.parent)
    else:
        room = obtainable(ledger, above, machine)
    return ledger.free(vnode.id) + _capped(ledger, cluster, room)


def capacity(ledger: Ledger, cluster: ClusterId) -> Resources:
    """The most that all places of a cluster could have together if no other cluster held any."""
    if cluster == ROOT:
        return Resources.total(each.total for each in ledger.machines.values())
    known = ledger.clusters[cluster]
    fixed = Resources.total(
        each.resources for each in ledger.of(cluster) if each.kind is VNodeKind.FIXED
    )
    if not known.flexible:
        return fixed
    return fixed + capacity(ledger, known.parent).beyond(fixed).capped(known.limits)


def may_grow(ledger: Ledger, cluster: ClusterId, by: Resources) -> bool:
    """Whether a cluster, and all above it, may hold so much more if machines have it."""
    while cluster != ROOT:
        if not ledger.within_limits(cluster, by):
            return False
        cluster = ledger.clusters[cluster].parent
    return True


def too_large_for(
    ledger: Ledger,
    cluster: ClusterId,
    demand: Resources,
    *,
    allowed: Callable[[Machine], bool] = lambda _: True,
) -> ClusterId | None:
    """The nearest cluster, from this one upwards, that can never hold a demand in one place.

    The machines' sizes do not count, since larger machines may join.
    """
    while cluster != ROOT:
        known = ledger.clusters[cluster]
        mine = [each for each in ledger.of(cluster) if allowed(ledger.machines[each.machine])]
        if any(demand.fits(each.resources) for each in mine):
            return None
        if known.exceeded(demand) or not known.flexible:
            return cluster
        cluster = known.parent
    return None


def _ways(
    ledger: Ledger,
    cluster: ClusterId,
    machine: MachineId,
    need: Resources,
    gpus: Mapping[PlaceId, tuple[int, ...]],
) -> Iterator[tuple[Step, ...]]:
    """All ways for a cluster to have `need` free on its flexible vnode on a machine."""
    if cluster == ROOT:
        if need.fits(ledger.free(machine)) and fits_gpus(need, gpus.get(machine, ())):
            yield ()
        return
    vnode = ledger.flexible(cluster, machine)
    missing = need if vnode is None else need.beyond(ledger.free(vnode.id))
    if not missing:
        yield ()
        return
    if not ledger.within_limits(cluster, missing):
        return
    above = ledger.clusters[cluster].parent
    for parent, steps in _sources(ledger, above, machine, vnode, missing, gpus):
        yield (
            *steps,
            Step(
                vnode=flexible_id(cluster, machine),
                cluster=cluster,
                parent=parent,
                machine=machine,
                by=missing,
                new=vnode is None,
            ),
        )


def _sources(
    ledger: Ledger,
    above: ClusterId,
    machine: MachineId,
    vnode: VNode | None,
    missing: Resources,
    gpus: Mapping[PlaceId, tuple[int, ...]],
) -> Iterator[tuple[PlaceId, tuple[Step, ...]]]:
    """The parent's places that could give `missing`, each with the steps that must come first."""
    grows: PlaceId = machine if above == ROOT else flexible_id(above, machine)
    for place in _fixed_places(ledger, above, machine):
        if (vnode is None or vnode.parent == place) and missing.fits(ledger.free(place)):
            yield place, ()
    if vnode is None or vnode.parent == grows:
        for steps in _ways(ledger, above, machine, missing, gpus):
            yield grows, steps


def _fixed_places(ledger: Ledger, cluster: ClusterId, machine: MachineId) -> list[VNodeId]:
    if cluster == ROOT:
        return []
    mine = ledger.of(cluster)
    return [each.id for each in mine if each.kind is VNodeKind.FIXED and each.machine == machine]


def _limiting(
    ledger: Ledger, cluster: ClusterId, demand: Resources, allowed: Callable[[Machine], bool]
) -> ClusterId | None:
    """The nearest cluster whose limit forbids the demand on every allowed machine."""
    while cluster != ROOT:
        held = max(
            (
                ledger.free(each.id)
                for each in ledger.of(cluster)
                if each.kind is VNodeKind.FLEXIBLE and allowed(ledger.machines[each.machine])
            ),
            key=attrgetter("size"),
            default=Resources(),
        )
        if not ledger.within_limits(cluster, demand.beyond(held)):
            return cluster
        cluster = ledger.clusters[cluster].parent
    return None


def _capped(ledger: Ledger, cluster: ClusterId, room: Resources) -> Resources:
    """The part of `room` that a cluster's limits still allow."""
    held, known = ledger.flexible_total(cluster), ledger.clusters[cluster]
    if not known.flexible:
        return Resources()
    return room.capped({name: max(0, most - held[name]) for name, most in known.limits.items()})


def _cost(growth: Growth) -> tuple[int, int, int, str]:
    steps = growth.steps
    size = sum(step.by.size for step in steps)
    return sum(step.new for step in steps), len(steps), size, str(growth.machine)
