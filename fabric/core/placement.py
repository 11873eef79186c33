"""Whether gangs fit machines, and how many of their nodes could be had at most.

Ray keeps a group that can never be placed pending for ever, so feasibility is decided here first,
against everything the machines have:

* equal nodes in one group are counted, which is exact for any number of them;
* unequal nodes are searched depth first, looking once at each set of equal alternatives. A search
  that spends its budget answers `Undecided`: a gang is never refused without proof;
* a share of a GPU comes from one GPU, and two GPUs are two whole ones, as Ray hands them out;
* the order in which the machines are given decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add, or_

from .records import Bundle, BundleGroup, Machine, MachineId, SchedulingPolicy
from .resources import UNIT, Resources
from .selectors import describe, matches

GPU = "GPU"
SEARCH_BUDGET = 100_000
"""How many (node, machine) pairs a search tries before it gives up, in a fraction of a second."""


@dataclass(frozen=True, slots=True)
class Placement:
    """It fits: one way to do so. Ray may choose another."""

    machines: tuple[MachineId, ...]
    """The machine of each node, in the order the nodes were asked for, group after group."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """It can never fit these machines."""

    reason: str
    most: int
    """The largest number of these nodes that could be had together, under their policies; of
    unequal nodes too many to search, the largest number found."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """It may fit; the search gave up before it knew."""

    most: int
    """The largest number of these nodes that was placed together so far."""


def fit(
    nodes: Sequence[Bundle], policy: SchedulingPolicy, machines: Iterable[Machine]
) -> Placement | Misfit | Undecided:
    """Say whether one group of nodes fits the machines."""
    return fit_all([BundleGroup(bundles=tuple(nodes), policy=policy)], machines)


def fit_all(
    groups: Sequence[BundleGroup], machines: Iterable[Machine], *, budget: int = SEARCH_BUDGET
) -> Placement | Misfit | Undecided:
    """Say whether several groups, each under its own policy, fit the machines together."""
    fleet = sorted(machines, key=lambda machine: machine.id)
    if not any(group.bundles for group in groups):
        return Misfit("the gang has no nodes", 0)
    if len(groups) == 1 and len(set(groups[0].bundles)) == 1:
        return _fit_equal(groups[0], fleet)
    return _fit_unequal(groups, fleet, budget)


def most(node: Bundle, policy: SchedulingPolicy, machines: Iterable[Machine]) -> int:
    """Count how many nodes like this one could be had together."""
    copies = [_copies(node, machine) for machine in machines]
    match policy:
        case SchedulingPolicy.STRICT_PACK:
            return max(copies, default=0)
        case SchedulingPolicy.STRICT_SPREAD:
            return sum(count > 0 for count in copies)
        case SchedulingPolicy.PACK | SchedulingPolicy.SPREAD:
            return sum(copies)


def _copies(node: Bundle, machine: Machine) -> int:
    if not matches(node.selector, machine.labels):
        return 0
    counts = []
    for name, amount in node.resources.units:
        have = machine.total[name]
        if name == GPU and amount < UNIT:
            counts.append(have // UNIT * (UNIT // amount) + have % UNIT // amount)
        else:
            counts.append(have // amount)
    return min(counts, default=0)


def _fit_equal(group: BundleGroup, fleet: Sequence[Machine]) -> Placement | Misfit:
    node, wanted = group.bundles[0], len(group.bundles)
    possible = most(node, group.policy, fleet)
    if possible < wanted:
        return Misfit(_why_not([group], fleet), possible)
    copies = [(machine.id, _copies(node, machine)) for machine in fleet]
    match group.policy:
        case SchedulingPolicy.STRICT_PACK:
            copies = [next((id, count) for id, count in copies if count >= wanted)]
        case SchedulingPolicy.STRICT_SPREAD:
            copies = [(id, min(count, 1)) for id, count in copies]
        case SchedulingPolicy.PACK | SchedulingPolicy.SPREAD:
            pass
    return Placement(tuple(id for id, count in copies for _ in range(count))[:wanted])


@dataclass(frozen=True, slots=True)
class _Item:
    """One node of a search: what it asks, and where it stood in the request."""

    bundle: Bundle
    group: int
    policy: SchedulingPolicy
    position: int

    def is_twin_of(self, other: _Item) -> bool:
        return (self.bundle, self.group) == (other.bundle, other.group)


@dataclass(frozen=True, slots=True)
class _Room:
    """What is left on one machine, each GPU by itself, and which groups have a node there."""

    labels: tuple[tuple[str, str], ...]
    free: Resources
    gpus: tuple[int, ...]
    groups: frozenset[int] = frozenset()

    @classmethod
    def on(cls, machine: Machine) -> _Room:
        whole, rest = divmod(machine.total[GPU], UNIT)
        gpus = ((rest,) if rest else ()) + (UNIT,) * whole
        return cls(tuple(sorted(machine.labels.items())), machine.total.without({GPU}), gpus)

    def after(self, item: _Item) -> Iterator[_Room]:
        """List the different ways in which the item can be taken, tightest first."""
        wanted = item.bundle.resources.without({GPU})
        if item.policy is SchedulingPolicy.STRICT_SPREAD and item.group in self.groups:
            return
        if not wanted.fits(self.free) or not matches(item.bundle.selector, dict(self.labels)):
            return
        for gpus in _gpus_after(self.gpus, item.bundle.resources[GPU]):
            yield replace(
                self, free=self.free - wanted, gpus=gpus, groups=self.groups | {item.group}
            )


def _gpus_after(gpus: tuple[int, ...], wanted: int) -> Iterator[tuple[int, ...]]:
    whole, share = divmod(wanted, UNIT)
    if not wanted:
        yield gpus
    elif whole and not share and gpus.count(UNIT) >= whole:
        yield gpus[: len(gpus) - whole]
    elif not whole:
        for have in sorted({gpu for gpu in gpus if gpu >= share}):
            others = Counter(gpus) - Counter([have])
            yield tuple(sorted([*others.elements(), have - share]))


@dataclass(frozen=True, slots=True)
class _State:
    """A partial placement: what the first `len(chosen)` items got; None is one left out."""

    rooms: tuple[_Room, ...]
    chosen: tuple[int | None, ...] = ()

    @property
    def placed(self) -> int:
        return len(self.chosen) - self.chosen.count(None)


def _fit_unequal(
    groups: Sequence[BundleGroup], fleet: Sequence[Machine], budget: int
) -> Placement | Misfit | Undecided:
    items = _largest_first(groups)
    best = _State(tuple(_Room.on(machine) for machine in fleet))
    stack, tried = [best], 0
    while stack and best.placed < len(items) and tried < budget:
        state = stack.pop()
        if state.placed > best.placed:
            best = state
        waiting = items[len(state.chosen) :]
        if state.placed + len(waiting) > best.placed:
            previous = items[len(state.chosen) - 1] if state.chosen else None
            stack.extend(reversed(_choices(state, waiting[0], previous)))
            tried += len(fleet)
    if best.placed == len(items):
        where = {item.position: at for item, at in zip(items, best.chosen, strict=True)}
        order = (where[position] for position in range(len(items)))
        return Placement(tuple(fleet[at].id for at in order if at is not None))
    if stack and _needed(groups).fits(_total(fleet)):
        return Undecided(best.placed)
    return Misfit(_why_not(groups, fleet), best.placed)


def _largest_first(groups: Sequence[BundleGroup]) -> tuple[_Item, ...]:
    """Order the nodes so that the hardest come first and equal ones are neighbours."""
    asked = [
        (bundle, number, group.policy)
        for number, group in enumerate(groups)
        for bundle in group.bundles
    ]
    items = [_Item(*one, position) for position, one in enumerate(asked)]

    def ease(item: _Item) -> tuple[object, ...]:
        resources = item.bundle.resources
        size = sum(amount for _, amount in resources.units)
        selector = describe(item.bundle.selector)
        return -resources[GPU], -size, resources.units, selector, item.group, item.position

    return tuple(sorted(items, key=ease))


def _choices(state: _State, item: _Item, previous: _Item | None) -> list[_State]:
    """List what can become of the next item, most promising first, of equal choices one.

    Twins go to machines in machine order, and when one was left out so are those after it:
    any other arrangement of them is the same one by another name.
    """
    left_out = replace(state, chosen=(*state.chosen, None))
    start: int | None = 0
    if previous is not None and item.is_twin_of(previous):
        start = state.chosen[-1]
    if start is None:
        return [left_out]
    packed = item.policy is SchedulingPolicy.STRICT_PACK
    begun = packed and any(item.group in room.groups for room in state.rooms)
    found: dict[tuple[_Room, _Room], _State] = {}
    for at, room in enumerate(state.rooms[start:], start):
        if begun and item.group not in room.groups:
            continue
        for left in room.after(item):
            rooms = (*state.rooms[:at], left, *state.rooms[at + 1 :])
            found.setdefault((room, left), _State(rooms, (*state.chosen, at)))
    return [*found.values(), left_out]


def _total(fleet: Iterable[Machine]) -> Resources:
    return reduce(add, (machine.total for machine in fleet), Resources())


def _needed(groups: Iterable[BundleGroup]) -> Resources:
    asked = (bundle.resources for group in groups for bundle in group.bundles)
    return reduce(add, asked, Resources())


def _why_not(groups: Sequence[BundleGroup], fleet: Sequence[Machine]) -> str:
    """Name the first rule that the groups break; the caller knows that they break one."""
    if not fleet:
        return "the cluster has no machines"
    for group in groups:
        for bundle in dict.fromkeys(group.bundles):
            able = [m for m in fleet if matches(bundle.selector, m.labels)]
            if not able:
                return f"no machine has the labels {describe(bundle.selector)}"
            if not any(_copies(bundle, machine) for machine in able):
                have = _largest(able, bundle.resources)
                return f"one node needs {bundle.resources}, the most on one machine is {have}"
    for group in groups:
        needed = _needed([group])
        wanted = len(group.bundles)
        hosts = [m for m in fleet if any(_copies(bundle, m) for bundle in group.bundles)]
        if group.policy is SchedulingPolicy.STRICT_SPREAD and len(hosts) < wanted:
            return f"STRICT_SPREAD needs {wanted} machines with room for a node, found {len(hosts)}"
        if group.policy is SchedulingPolicy.STRICT_PACK:
            have = _largest(fleet, needed)
            if not needed.fits(have):
                return f"STRICT_PACK needs {needed} on one machine, the most on one is {have}"
    needed, have = _needed(groups), _total(fleet)
    if not needed.fits(have):
        asked = {name for name, _ in needed.units}
        return f"together the nodes need {needed}, the cluster has {have.only(asked)}"
    return f"the cluster has {needed} in all, but not in pieces that hold a whole node each"


def _largest(fleet: Iterable[Machine], asked: Resources) -> Resources:
    most_of_each = reduce(or_, (machine.total for machine in fleet), Resources())
    return most_of_each.only({name for name, _ in asked.units})
