"""How many machines each group of a declared Ray cluster should have: for waiting gangs, and for
idle machines.

`autoscale` tries the gangs on what is free and on what is on its way, the longest waiting first,
each as a whole or not at all. For what has no room it adds machines, of the group that is cheapest
for it. A machine that is idle, and on which no gang was tried, may leave. It needs no memory: what
it has asked for is on its way, and counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedpilot.common.text.amounts import counted

from ..places.placement import most as most_that_fit
from ..records import Bundle, BundleGroup, Machine, MachineId, SchedulingPolicy
from ..resources import Resources
from ..selectors import matches
from .declaration import GroupName, MachineGroup, MachineName

NODE_GROUP = "ray.io/node-group"
"""Ray's label with the group of a machine."""
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingGang:
    """What must get places as a whole, and would with more machines."""

    id: str
    groups: tuple[BundleGroup, ...]
    since_s: float
    """Since when it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuppliedMachine:
    """A machine that is there."""

    name: MachineName
    group: GroupName
    free: Resources
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    since_s: float
    """Since when Ray uses it."""
    idle_since_s: float | None = None
    """None: there is work on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is known of a Ray cluster at one moment."""

    seen_s: float
    """When it was seen."""
    gangs: tuple[PendingGang, ...] = ()
    machines: tuple[SuppliedMachine, ...] = ()
    """The workers that Ray uses, and that do not leave."""
    head: SuppliedMachine | None = None
    """It has room as well, and never leaves; None while it is not ready."""
    offers: Mapping[GroupName, Resources] = field(default_factory=dict, hash=False)
    """What a machine of a group offers, where one was seen: its template may leave that open."""
    whole: bool = True
    """Whether all that waits is known; otherwise no machine leaves."""
    stuck: frozenset[GroupName] = frozenset()
    """Groups whose machines cannot be started now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSettings:
    """When machines leave."""

    stale_s: float = 30.0
    """Older facts decide nothing."""
    cooldown_s: float = 60.0
    """No machine leaves that joined later than so long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEdit:
    """What a group should be declared as."""

    replicas: int
    leaving: tuple[MachineName, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerPlan:
    """One decision."""

    edits: Mapping[GroupName, GroupEdit]
    """The groups to change."""
    unmet: Mapping[str, str]
    """The gangs that no declared group can hold, each with the reason."""


def autoscale(
    groups: Sequence[MachineGroup],
    demand: Demand | None,
    now: float,
    settings: AutoscalerSettings,
) -> AutoscalerPlan:
    """Decide how many machines each group of workers has. Without fresh facts nothing changes."""
    if demand is None or now - demand.seen_s > settings.stale_s:
        return AutoscalerPlan(edits={}, unmet={})
    fleet = _Fleet(groups, demand)
    asked: dict[GroupName, list[str]] = {}
    unmet = {}
    for gang in sorted(demand.gangs, key=lambda gang: (gang.since_s, gang.id)):
        came = fleet.place(gang.groups)
        if came is None:
            unmet[gang.id] = fleet.why_not(gang.groups)
        for name in came or ():
            asked.setdefault(name, []).append(gang.id)
    edits = {}
    for group in groups:
        added = fleet.added[group.name]
        may_leave = demand.whole and not added
        gone = _leaving(group, fleet, demand, now, settings) if may_leave else []
        if not (added or gone):
            continue
        there = {each.name for each in demand.machines}
        edits[group.name] = GroupEdit(
            replicas=group.wanted + added - len(gone),
            leaving=(*(name for name in group.leaving if name in there), *gone),
            reason=_why(asked.get(group.name, []), added, gone, group),
        )
    return AutoscalerPlan(edits=edits, unmet=unmet)


def _leaving(
    group: MachineGroup,
    fleet: _Fleet,
    demand: Demand,
    now: float,
    settings: AutoscalerSettings,
) -> list[MachineName]:
    """The machines of a group that are idle for long and that no gang needs, longest idle first."""
    idle = [
        (each.idle_since_s, each.name)
        for each in demand.machines
        if each.group == group.name
        and each.idle_since_s is not None
        and now - each.idle_since_s >= group.idle_s
        and now - each.since_s >= settings.cooldown_s
        and each.name not in fleet.used
        and each.name not in group.leaving
    ]
    return [name for _, name in sorted(idle)][: max(0, group.wanted - group.least)]


def _why(gangs: Sequence[str], added: int, gone: Sequence[MachineName], group: MachineGroup) -> str:
    if gone:
        return f"{len(gone)} idle for {group.idle_s:g} s"
    others = f" and {len(gangs) - 1} more" if len(gangs) > 1 else ""
    return f"{added} more for {gangs[0]}{others}"


class _Room:
    """What machines that are alike have free."""

    __slots__ = ("after", "copies", "free", "group", "labels", "names", "order", "rank")

    def __init__(self, order: int, group: GroupName, labels: Labels, free: Resources) -> None:
        self.order, self.group, self.labels, self.free = order, group, labels, free
        self.rank = order, free.size, labels
        """In which order rooms are tried: in use, idle, on their way; the tightest first."""
        self.names: dict[str, None] = {}
        """The machines."""
        self.copies: dict[int, int] = {}
        """How many of a bundle one of them holds, by the bundle's number."""
        self.after: dict[int, _Room] = {}
        """The room that is left of it once it has a bundle."""


IN_USE, IDLE, ON_ITS_WAY = range(3)
_Undo = list[tuple[str, "_Room | None", "_Room | None"]]


class _Fleet:
    """Machines, real and supposed, by what they have free; gangs take from it."""

    def __init__(self, groups: Sequence[MachineGroup], demand: Demand) -> None:
        self.added = {group.name: 0 for group in groups}
        """New machines, by group."""
        self.used: set[str] = set()
        """Machines on which gangs were placed."""
        self._left: dict[GroupName, int] = {}
        self._most = {group.name: group.most for group in groups}
        self._rooms: dict[tuple[int, GroupName, Labels, Resources], _Room] = {}
        self._new: dict[GroupName, tuple[_Room, float]] = {}
        """An empty machine of each group that may grow, and its cost."""
        self._numbers: dict[Bundle, int] = {}
        self._bundles: list[Bundle] = []
        """The different bundles, by number: they are compared often."""
        self._failed: set[tuple[BundleGroup, ...]] = set()
        """Gangs that found no places: nothing comes back while others take."""
        there: dict[GroupName, int] = {}
        for machine in (*([demand.head] if demand.head else ()), *demand.machines):
            there[machine.group] = there.get(machine.group, 0) + 1
            labels = tuple(sorted(machine.labels.items()))
            order = IN_USE if machine.idle_since_s is None else IDLE
            self._room(order, machine.group, labels, machine.free).names[machine.name] = None
        for group in groups:
            if group.name in demand.stuck or group.suspended:
                continue
            labels = tuple(sorted({NODE_GROUP: group.name, **group.template.labels}.items()))
            whole = demand.offers.get(group.name, group.template.resources)
            room = self._room(ON_ITS_WAY, group.name, labels, whole)
            for number in range(group.wanted - there.get(group.name, 0)):
                room.names[f"{group.name}+{number}"] = None
            self._left[group.name] = group.most - group.wanted
            self._new[group.name] = room, group.cost

    def _room(self, order: int, group: GroupName, labels: Labels, free: Resources) -> _Room:
        key = order, group, labels, free
        if key not in self._rooms:
            self._rooms[key] = _Room(*key)
        return self._rooms[key]

    def _number(self, bundle: Bundle) -> int:
        number = self._numbers.setdefault(bundle, len(self._bundles))
        if number == len(self._bundles):
            self._bundles.append(bundle)
        return number

    def place(self, groups: tuple[BundleGroup, ...]) -> list[GroupName] | None:
        """Give a gang places, if it has a machine for each bundle; the groups of new machines, or
        None if it has none."""
        if groups in self._failed:
            return None
        undo: _Undo = []
        new: list[GroupName] = []
        for group in groups:
            if not self._place_group(group, undo, new):
                for name, before, after in reversed(undo):
                    _move(name, after, before)
                for name_of_group in new:
                    self.added[name_of_group] -= 1
                    self._left[name_of_group] += 1
                self._failed.add(groups)
                return None
        self.used.update(name for name, _, _ in undo)
        return new

    def _place_group(self, group: BundleGroup, undo: _Undo, new: list[GroupName]) -> bool:
        together = group.policy is SchedulingPolicy.STRICT_PACK
        bundles = [_sum(group.bundles)] if together else sorted(group.bundles, key=_hardest)
        numbers = [self._number(each) for each in bundles]
        mine: dict[str, _Room] = {}
        """The machines of this group, and what they have left."""
        for at, number in enumerate(numbers):
            found = self._machine_for(number, group.policy, mine)
            if found is None:
                found = self._new_machine(number, group.policy, numbers[at:].count(number), new)
                if found is None:
                    return False
                _move(found[0], None, found[1])
                undo.append((found[0], None, found[1]))
            name, room = found
            after = room.after.get(number)
            if after is None:
                free = room.free - self._bundles[number].resources
                after = room.after[number] = self._room(room.order, room.group, room.labels, free)
            _move(name, room, after)
            undo.append((name, room, after))
            mine[name] = after
        return True

    def _machine_for(
        self, number: int, policy: SchedulingPolicy, mine: Mapping[str, _Room]
    ) -> tuple[str, _Room] | None:
        """A machine with room: one that the group has, or as its policy says another."""
        if policy is SchedulingPolicy.PACK:
            for name, room in mine.items():
                if self._copies(number, room):
                    return name, room
        spread = policy in (SchedulingPolicy.SPREAD, SchedulingPolicy.STRICT_SPREAD)
        best: tuple[str, _Room] | None = None
        for room in self._rooms.values():
            if not room.names or (best is not None and best[1].rank <= room.rank):
                continue
            if self._copies(number, room):
                free = (name for name in reversed(room.names) if not spread or name not in mine)
                if (found := next(free, None)) is not None:
                    best = found, room
        if best is None and policy is SchedulingPolicy.SPREAD:
            able = ((name, room) for name, room in mine.items() if self._copies(number, room))
            return next(able, None)
        return best

    def _new_machine(
        self, number: int, policy: SchedulingPolicy, equal: int, new: list[GroupName]
    ) -> tuple[str, _Room] | None:
        """A new machine of the group that is cheapest for so many equal bundles."""
        best: tuple[float, float, GroupName] | None = None
        for name, (room, cost) in self._new.items():
            copies = self._copies(number, room)
            if not copies or self._left[name] <= 0:
                continue
            each = 1 if policy is SchedulingPolicy.STRICT_SPREAD else copies
            price = cost * math.ceil(equal / each)
            if best is None or (price, cost, name) < best:
                best = price, cost, name
        if best is None:
            return None
        group = best[2]
        self.added[group] += 1
        self._left[group] -= 1
        new.append(group)
        return f"{group}++{self.added[group]}", self._new[group][0]

    def _copies(self, number: int, room: _Room) -> int:
        """How many such bundles one machine of a room holds."""
        found = room.copies.get(number)
        if found is None:
            machine = Machine(
                id=MachineId(""), hostname="", total=room.free, labels=dict(room.labels)
            )
            found = most_that_fit(self._bundles[number], SchedulingPolicy.PACK, [machine])
            room.copies[number] = found
        return found

    def why_not(self, groups: Iterable[BundleGroup]) -> str:
        """Why a gang could not get its places."""
        for group in groups:
            for bundle in dict.fromkeys(group.bundles):
                able = [
                    name
                    for name, (room, _) in self._new.items()
                    if matches(bundle.selector, dict(room.labels))
                ]
                number = self._number(bundle)
                if not any(self._copies(number, room) for room, _ in self._new.values()):
                    where = "its labels" if not able else f"{bundle.resources}"
                    return f"no group has a machine with {where}"
        limits = ", ".join(f"{counted(most, 'machine')} of {n}" for n, most in self._most.items())
        return f"the groups may have no more than {limits}"


def _move(name: str, before: _Room | None, after: _Room | None) -> None:
    """Take a machine from one room to another; None: from nowhere, or to nowhere."""
    if before is not None:
        del before.names[name]
    if after is not None:
        after.names[name] = None


def _hardest(bundle: Bundle) -> tuple[int, str]:
    return -bundle.resources.size, str(bundle.selector)


def _sum(bundles: Sequence[Bundle]) -> Bundle:
    """Bundles that need one machine, as one."""
    selector = {label: each for bundle in bundles for label, each in bundle.selector.items()}
    return Bundle(
        resources=Resources.total(bundle.resources for bundle in bundles), selector=selector
    )
