"""Whether gangs fit machines, and how many of their nodes would fit together.

Ray keeps an infeasible group pending forever, so feasibility is decided here first:

* equal nodes in one group are counted, which is exact for any number of nodes;
* unequal nodes go to one machine if they are packed and one has room for all, and otherwise to the
  first machine with room, the hardest first. If that leaves some out, a depth-first search
  follows, which visits each set of equal alternatives once. A search without budget left answers
  `Undecided`: a gang is never refused without proof;
* a share of a GPU comes from one GPU, and two GPUs are two whole ones, as in Ray;
* the order of the machines in the call does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from ..records import Bundle, BundleGroup, Machine, MachineId, SchedulingPolicy
from ..resources import UNIT, Resources
from ..selectors import describe, matches

GPU = "GPU"
SEARCH_BUDGET = 30_000
"""How many (node, machine) pairs a search tries before it gives up, in a fraction of a second."""

Gpus = Mapping[MachineId, tuple[int, ...]]
"""What is free of each GPU, in units; without an entry, whole GPUs and one with the remainder."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One way in which it fits. Ray may choose another."""

    machines: tuple[MachineId, ...]
    """The machine of each node, in the order of the request, group after group."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """It can never fit these machines."""

    reason: str
    most: int
    """The largest number of these nodes that fits together, under their policies; for unequal
    nodes too many to search, the largest number found."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """It may fit; the search ran out of budget."""

    most: int
    """The largest number of nodes that the search placed together."""


def fit(
    nodes: Sequence[Bundle], policy: SchedulingPolicy, machines: Iterable[Machine]
) -> Placement | Misfit | Undecided:
    """Say whether one group of nodes fits the machines."""
    return fit_all([BundleGroup(bundles=tuple(nodes), policy=policy)], machines)


def fit_all(
    groups: Sequence[BundleGroup],
    machines: Iterable[Machine],
    *,
    gpus: Gpus | None = None,
    budget: int = SEARCH_BUDGET,
    free: bool = False,
) -> Placement | Misfit | Undecided:
    """Say whether several groups fit the machines together; `free`: the amounts are free ones."""
    fleet = sorted(machines, key=lambda machine: machine.id)
    gpus = gpus or {}
    if not any(group.bundles for group in groups):
        return Misfit("the gang has no nodes", 0)
    if len(groups) == 1 and len(set(groups[0].bundles)) == 1:
        return _fit_equal(groups[0], fleet, gpus, free)
    return _fit_unequal(groups, fleet, gpus, budget, free)


def most(
    node: Bundle, policy: SchedulingPolicy, machines: Iterable[Machine], gpus: Gpus | None = None
) -> int:
    """Count how many nodes like this one would fit together."""
    copies = [_copies(node, machine, gpus or {}) for machine in machines]
    match policy:
        case SchedulingPolicy.STRICT_PACK:
            return max(copies, default=0)
        case SchedulingPolicy.STRICT_SPREAD:
            return sum(count > 0 for count in copies)
        case SchedulingPolicy.PACK | SchedulingPolicy.SPREAD:
            return sum(copies)


def each_gpu(amount: int) -> tuple[int, ...]:
    """An amount of GPUs as whole GPUs, preceded by one with the remainder."""
    whole, rest = divmod(amount, UNIT)
    return ((rest,) if rest else ()) + (UNIT,) * whole


def _gpus(machine: Machine, gpus: Gpus) -> tuple[int, ...]:
    return gpus[machine.id] if machine.id in gpus else each_gpu(machine.total[GPU])


def _copies(node: Bundle, machine: Machine, gpus: Gpus) -> int:
    if not matches(node.selector, machine.labels):
        return 0
    counts = []
    for name, amount in node.resources.units:
        if name != GPU:
            counts.append(machine.total[name] // amount)
        elif amount < UNIT:
            counts.append(sum(gpu // amount for gpu in _gpus(machine, gpus)))
        else:
            counts.append(_gpus(machine, gpus).count(UNIT) * UNIT // amount)
    return min(counts, default=0)


def _fit_equal(
    group: BundleGroup, fleet: Sequence[Machine], gpus: Gpus, free: bool
) -> Placement | Misfit:
    node, wanted = group.bundles[0], len(group.bundles)
    possible = most(node, group.policy, fleet, gpus)
    if possible < wanted:
        return Misfit(_why_not([group], fleet, gpus, free), possible)
    copies = [(machine.id, _copies(node, machine, gpus)) for machine in fleet]
    match group.policy:
        case SchedulingPolicy.STRICT_PACK:
            copies = [next((id, count) for id, count in copies if count >= wanted)]
        case SchedulingPolicy.STRICT_SPREAD:
            copies = [(id, min(count, 1)) for id, count in copies]
        case SchedulingPolicy.PACK:
            copies = _on_few(copies, wanted)
        case SchedulingPolicy.SPREAD:
            copies = _on_many(copies, wanted)
    return Placement(tuple(id for id, count in copies for _ in range(count))[:wanted])


def _on_few(copies: list[tuple[MachineId, int]], wanted: int) -> list[tuple[MachineId, int]]:
    """The first that holds all; else the roomiest, and the first that holds what is left."""
    largest = sorted(copies, key=lambda each: -each[1])
    for at, (_, count) in enumerate(largest):
        if count >= wanted:
            able = {id for id, count in largest[at:] if count >= wanted}
            return [*largest[:at], next(each for each in copies if each[0] in able)]
        wanted -= count
    return largest


def _on_many(copies: list[tuple[MachineId, int]], wanted: int) -> list[tuple[MachineId, int]]:
    """As evenly as their room allows."""
    has = dict.fromkeys((id for id, _ in copies), 0)
    while wanted:
        able = [(id, count) for id, count in copies if has[id] < count]
        step = max(1, wanted // len(able))
        for id, count in able:
            more = min(step, count - has[id], wanted)
            has[id] += more
            wanted -= more
    return list(has.items())


@dataclass(frozen=True, slots=True)
class _Item:
    bundle: Bundle
    group: int
    policy: SchedulingPolicy
    position: int
    gpu: int
    others: Resources
    """What it needs besides GPUs."""

    def is_twin_of(self, other: _Item) -> bool:
        return (self.bundle, self.group) == (other.bundle, other.group)


@dataclass(frozen=True, slots=True)
class _Room:
    """What is left on one machine, GPU by GPU, and which groups have a node there."""

    labels: tuple[tuple[str, str], ...]
    free: Resources
    gpus: tuple[int, ...]
    groups: frozenset[int] = frozenset()

    @classmethod
    def on(cls, machine: Machine, gpus: tuple[int, ...]) -> _Room:
        return cls(tuple(sorted(machine.labels.items())), machine.total.without({GPU}), gpus)

    def after(self, item: _Item) -> Iterator[_Room]:
        """The different ways to place the item here, tightest first."""
        if item.policy is SchedulingPolicy.STRICT_SPREAD and item.group in self.groups:
            return
        if not item.others.fits(self.free) or not matches(item.bundle.selector, dict(self.labels)):
            return
        for gpus in _gpus_after(self.gpus, item.gpu):
            yield _Room(self.labels, self.free - item.others, gpus, self.groups | {item.group})


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
    """A partial placement: the machine of each of the first items; None for one left out."""

    rooms: tuple[_Room, ...]
    chosen: tuple[int | None, ...] = ()

    @property
    def placed(self) -> int:
        return len(self.chosen) - self.chosen.count(None)


@dataclass(slots=True)
class _Budget:
    pairs: int


def _fit_unequal(
    groups: Sequence[BundleGroup],
    fleet: Sequence[Machine],
    gpus: Gpus,
    budget: int,
    free: bool,
) -> Placement | Misfit | Undecided:
    items = _largest_first(groups)
    begin = _State(tuple(_Room.on(machine, _gpus(machine, gpus)) for machine in fleet))
    best, finished = _first_fit(items, begin, packing=True), True
    if best.placed < len(items):
        best = _first_fit(items, begin)
    if best.placed < len(items):
        best, finished = _search(items, begin, best, budget)
    if best.placed == len(items):
        where = {item.position: at for item, at in zip(items, best.chosen, strict=True)}
        order = (where[position] for position in range(len(items)))
        return Placement(tuple(fleet[at].id for at in order if at is not None))
    if not finished and _needed(groups).fits(_total(fleet)):
        return Undecided(best.placed)
    return Misfit(_why_not(groups, fleet, gpus, free), best.placed)


def _first_fit(items: Sequence[_Item], begin: _State, *, packing: bool = False) -> _State:
    """Put each node on the first machine with room; nodes that need one machine go together, and
    so do those that prefer one if `packing`. Nodes that prefer machines of their own go where
    fewest of their group are."""
    packed: dict[int, list[_Item]] = {}
    for item in items:
        if item.policy is SchedulingPolicy.STRICT_PACK or (
            packing and item.policy is SchedulingPolicy.PACK
        ):
            packed.setdefault(item.group, []).append(item)
    rooms, chosen = list(begin.rooms), dict[int, int | None]()
    mates: Counter[tuple[int, int]] = Counter()
    at: int | None = 0
    for number, item in enumerate(items):
        if item.position in chosen:
            continue
        if item.group in packed or not number or not item.is_twin_of(items[number - 1]):
            at = 0  # twins continue where the last one was placed, or did not fit
        together = packed.get(item.group, [item])
        found = None
        if at is not None and item.policy is SchedulingPolicy.SPREAD:
            here = [mates[item.group, each] for each in range(len(rooms))]
            found = _first_room(rooms, sorted(range(len(rooms)), key=here.__getitem__), together)
        elif at is not None:
            found = _first_room(rooms, range(at, len(rooms)), together)
        at = None
        if found is not None:
            at, left = found
            rooms[at] = left
            mates[item.group, at] += 1
        chosen.update({one.position: at for one in together})
    return _State(tuple(rooms), tuple(chosen[item.position] for item in items))


def _first_room(
    rooms: Sequence[_Room], order: Iterable[int], items: Sequence[_Item]
) -> tuple[int, _Room] | None:
    for at in order:
        left: _Room | None = rooms[at]
        for item in items:
            left = None if left is None else next(left.after(item), None)
        if left is not None:
            return at, left
    return None


def _search(
    items: Sequence[_Item], begin: _State, best: _State, budget: int
) -> tuple[_State, bool]:
    """Find the largest placement; also return whether the search was exhaustive."""
    left = _Budget(budget)
    stack = [_choices(begin, items, left)]
    while stack and best.placed < len(items):
        if left.pairs <= 0:
            return best, False
        state = next(stack[-1], None)
        if state is None:
            stack.pop()
            continue
        if state.placed > best.placed:
            best = state
        if state.placed + len(items) - len(state.chosen) > best.placed:
            stack.append(_choices(state, items, left))
    return best, True


def _largest_first(groups: Sequence[BundleGroup]) -> tuple[_Item, ...]:
    """Sort the nodes: the hardest first, equal ones next to each other."""
    asked = [
        (bundle, number, group.policy)
        for number, group in enumerate(groups)
        for bundle in group.bundles
    ]
    items = [
        _Item(*one, position, one[0].resources[GPU], one[0].resources.without({GPU}))
        for position, one in enumerate(asked)
    ]

    def ease(item: _Item) -> tuple[object, ...]:
        resources, selector = item.bundle.resources, describe(item.bundle.selector)
        return -item.gpu, -resources.size, resources.units, selector, item.group, item.position

    return tuple(sorted(items, key=ease))


def _choices(state: _State, items: Sequence[_Item], left: _Budget) -> Iterator[_State]:
    """The choices for the next item, most promising first, one of each set of equal ones.

    Twins go to machines in machine order; after one was left out, later ones are too.
    """
    number = len(state.chosen)
    item = items[number]
    twin = number > 0 and item.is_twin_of(items[number - 1])
    start = state.chosen[-1] if twin else 0
    if start is not None:
        packed = item.policy is SchedulingPolicy.STRICT_PACK
        begun = packed and any(item.group in room.groups for room in state.rooms)
        looked_at: set[_Room] = set()
        for at, room in enumerate(state.rooms[start:], start):
            left.pairs -= 1
            if (begun and item.group not in room.groups) or room in looked_at:
                continue
            looked_at.add(room)
            for after in room.after(item):
                rooms = (*state.rooms[:at], after, *state.rooms[at + 1 :])
                yield _State(rooms, (*state.chosen, at))
    yield _State(state.rooms, (*state.chosen, None))


def _total(fleet: Iterable[Machine]) -> Resources:
    return Resources.total(machine.total for machine in fleet)


def _needed(groups: Iterable[BundleGroup]) -> Resources:
    return Resources.total(bundle.resources for group in groups for bundle in group.bundles)


def _why_not(
    groups: Sequence[BundleGroup], fleet: Sequence[Machine], gpus: Gpus, free: bool
) -> str:
    """Name the first rule that the groups break; the caller has found that they break one."""
    most = "the most free" if free else "the most"
    if not fleet:
        return "the cluster has no machines"
    for group in groups:
        for bundle in dict.fromkeys(group.bundles):
            able = [m for m in fleet if matches(bundle.selector, m.labels)]
            if not able:
                return f"no machine has the labels {describe(bundle.selector)}"
            if not any(_copies(bundle, machine, gpus) for machine in able):
                if any(bundle.resources.fits(machine.total) for machine in able):
                    return f"one node needs {bundle.resources}, and the GPUs are free in parts only"
                have = _largest(able, bundle.resources)
                if not have.units:
                    return f"one node needs {bundle.resources}, and no machine has any" + (
                        " free" if free else ""
                    )
                return f"one node needs {bundle.resources}, {most} on one machine is {have}"
    for group in groups:
        needed = _needed([group])
        wanted = len(group.bundles)
        hosts = [m for m in fleet if any(_copies(bundle, m, gpus) for bundle in group.bundles)]
        if group.policy is SchedulingPolicy.STRICT_SPREAD and len(hosts) < wanted:
            return f"STRICT_SPREAD needs {wanted} machines with room for a node, found {len(hosts)}"
        if group.policy is SchedulingPolicy.STRICT_PACK:
            have = _largest(fleet, needed)
            if not needed.fits(have):
                return f"STRICT_PACK needs {needed} on one machine, {most} on one is {have}"
    needed, have = _needed(groups), _total(fleet)
    there = have.only({name for name, _ in needed.units})
    said = f"{there} is free" if free else f"the cluster has {there}"
    if not needed.fits(have):
        return f"together the nodes need {needed}, {said}"
    return f"{said} in all, but not in pieces that hold a whole node each"


def _largest(fleet: Iterable[Machine], asked: Resources) -> Resources:
    most_of_each = reduce(or_, (machine.total for machine in fleet), Resources())
    return most_of_each.only({name for name, _ in asked.units})
