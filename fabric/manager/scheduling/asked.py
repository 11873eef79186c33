"""Asked: a virtual cluster as the scheduler sees it, and its members as vnodes again.

Each kind of fixed-size nodes is a part of the gang; nodes above the minimum of a group are further
members of its part, in the order in which they were added. The flexible minimum may lie on any
machines in any amounts: what has a place is one member for each machine, and the rest is asked for
in pieces of one whole unit. What is borrowed and idle is no member, since it is returned as soon as
it is needed. What is borrowed and in use is one surplus member for each machine, if work there may
be stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from ...core.cluster_state import Entry
from ...core.ledger import Ledger
from ...core.places.placement import GPU
from ...core.places.request import Request
from ...core.records import (
    BundleGroup,
    ClusterId,
    MachineId,
    SchedulingPolicy,
    VNode,
    VNodeId,
    VNodeKind,
    fixed_id,
    flexible_id,
    number_of,
)
from ...core.resources import UNIT, Resources
from ...core.scheduling.records import (
    Amounts,
    Decision,
    GangPart,
    GangSpec,
    MachineIndex,
    Member,
    StopMembers,
)
from ...core.scheduling.snapshot import FINE, Scale
from ...core.selectors import Condition

MOST_PIECES = 256
"""The most pieces of one resource of a flexible minimum; larger ones get larger pieces."""


@dataclass(frozen=True, slots=True)
class AskedPart:
    """What a member of a part is: a fixed-size node, or an amount of flexible resources."""

    numbers: tuple[int, ...] = ()
    """The numbers of the fixed-size nodes that have no place."""
    amount: Resources = field(default_factory=Resources)
    """Of each flexible member."""
    group: int | None = None
    """The group of fixed-size nodes."""
    borrowed: bool = False
    """Whether it is what a flexible vnode borrowed."""


class StoppedMember(NamedTuple):
    """What a plan stops: a vnode, or only what it borrowed."""

    node: VNodeId
    borrowed: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """What a virtual cluster asks for, and what it has of it."""

    gang: GangSpec
    parts: tuple[AskedPart, ...]
    members: tuple[Member, ...] = ()
    ids: tuple[VNodeId, ...] = ()
    """The vnode of each member."""

    @property
    def stoppable(self) -> list[StoppedMember]:
        """The members, as a plan stops them."""
        return [
            StoppedMember(id, self.parts[member.part].borrowed)
            for id, member in zip(self.ids, self.members, strict=True)
        ]

    def elsewhere(
        self,
        ledger: Ledger,
        request: Request,
        to: Mapping[int, MachineIndex],
        machines: Sequence[MachineId],
    ) -> tuple[VNode, ...]:
        """All vnodes once some members, by position, are on other machines, without loans."""
        fixed: list[VNode] = []
        flexible: dict[MachineId, Resources] = {}
        for at, (id, member) in enumerate(zip(self.ids, self.members, strict=True)):
            part, machine = self.parts[member.part], machines[to.get(at, member.machine)]
            if part.borrowed:
                continue
            if part.group is not None:
                fixed.append(_fixed(ledger, request, number_of(id), machine))
            else:
                flexible[machine] = flexible.get(machine, Resources()) + part.amount
        return (*fixed, *(_flexible(ledger, request, m, flexible[m]) for m in flexible))

    def moved(self, to: Mapping[MachineIndex, MachineIndex | None]) -> Asked:
        """The same where machines have other places in the snapshot."""
        found = ((each, to[each.machine]) for each in self.members)
        members = tuple(each._replace(machine=new) for each, new in found if new is not None)
        return replace(self, members=members)

    def vnodes(
        self,
        ledger: Ledger,
        request: Request,
        members: Iterable[Member],
        machines: Sequence[MachineId],
        held: Collection[VNodeId] = (),
    ) -> list[VNode]:
        """The vnodes that new members become beside those that are `held` now.

        `machines` are those of the snapshot.
        """
        left = {
            part: [n for n in each.numbers if fixed_id(request.id, n) not in held]
            for part, each in enumerate(self.parts)
        }
        fixed: list[VNode] = []
        flexible: dict[MachineId, Resources] = {}
        for member in members:
            machine = machines[member.machine]
            if left[member.part]:
                fixed.append(_fixed(ledger, request, left[member.part].pop(0), machine))
            elif (group := self.parts[member.part].group) is not None:
                there = {*held, *(each.id for each in fixed)}
                fixed.append(_fixed(ledger, request, request.next_surplus(group, there), machine))
            else:
                before = flexible.get(machine, Resources())
                flexible[machine] = before + self.parts[member.part].amount
        return [
            *sorted(fixed, key=lambda each: each.id),
            *(_flexible(ledger, request, machine, flexible[machine]) for machine in flexible),
        ]


def asked_by(
    entry: Entry,
    expected: Sequence[VNode],
    ledger: Ledger,
    scale: Scale,
    index: Mapping[MachineId, MachineIndex],
    *,
    grows: bool = True,
    lent: Mapping[VNodeId, Resources] | None = None,
) -> Asked:
    """What a virtual cluster asks for, and has, is promised or will have, on these machines.

    Nodes under notice are gone; as long as there are some, or unless it `grows`, it asks for no
    other nodes above its minimum. `lent` is what flexible vnodes borrowed and may lose.
    """
    lent = lent or {}
    request = entry.request
    leaving = {notice.node for notice in entry.nodes_leave}
    grows = grows and not leaving and not entry.relocates
    here = () if entry.relocates else ledger.of(request.id)
    held = {
        vnode.id: vnode
        for vnode in here
        if vnode.id not in leaving or vnode.kind is VNodeKind.FLEXIBLE
    }
    for vnode in (*expected, *entry.promised):
        grown = held[vnode.id].resources if vnode.id in held else Resources()
        held[vnode.id] = replace(vnode, resources=vnode.resources + grown)
    held = {id: each for id, each in held.items() if each.machine in index}
    if not held:
        return asked_anew(request.groups, request.least, scale)
    parts, of, members = list[GangPart](), list[AskedPart](), list[tuple[int, VNode]]()
    above = sorted((id for id in held if request.is_surplus(id)), key=number_of)
    for template, numbers in _kinds(request.groups):
        there = [n for n in numbers if fixed_id(request.id, n) in held]
        members += [(len(parts), held[fixed_id(request.id, n)]) for n in there]
        part = template.part(scale, len(numbers))
        if not grows:
            mine = sum(request.group_of(number_of(id)) == template.group for id in above)
            part = replace(part, most=max(part.least, min(part.most, len(there) + mine)))
        parts.append(part)
        of.append(
            AskedPart(numbers=tuple(n for n in numbers if n not in there), group=template.group)
        )
    group, flexible = len(request.groups), Resources()
    for vnode in held.values():
        if vnode.kind is not VNodeKind.FLEXIBLE:
            continue
        flexible += vnode.resources
        own = vnode.resources
        if not entry.relocates:
            own -= ledger.borrowed(vnode.id)
        if own:
            members.append((len(parts), vnode))
            parts.append(GangPart(request=up(own, scale), least=1, most=1, group=group))
            of.append(AskedPart(amount=own))
    for part, piece in _pieces(request.least.beyond(flexible), scale, group):
        parts.append(part)
        of.append(piece)
    of_group = {each.group: part for part, each in enumerate(of) if each.group is not None}
    members += [(of_group[request.group_of(number_of(id))], held[id]) for id in above]
    for id in sorted(held.keys() & lent.keys()):
        members.append((len(parts), held[id]))
        parts.append(GangPart(request=up(lent[id], scale), least=0, most=0, group=group))
        of.append(AskedPart(amount=lent[id], borrowed=True))
    if not parts:  # all that it holds is borrowed
        return asked_anew((), Resources(), scale)
    policies = (*(each.policy for each in request.groups), SchedulingPolicy.PACK)
    return Asked(
        GangSpec(parts=tuple(parts), policies=policies),
        tuple(of),
        tuple(Member(part, index[vnode.machine]) for part, vnode in members),
        tuple(vnode.id for _, vnode in members),
    )


def stopped_by(
    decisions: Iterable[Decision], asked: Mapping[ClusterId, Asked]
) -> list[tuple[StoppedMember, ...]]:
    """What each decision of a plan stops, by what it was made of.

    A plan stops nothing that it starts itself.
    """
    left: dict[ClusterId, list[StoppedMember]] = {}
    found = list[tuple[StoppedMember, ...]]()
    for each in decisions:
        gone: tuple[StoppedMember, ...] = ()
        if isinstance(each, StopMembers):
            id = ClusterId(each.workload)
            mine = left.setdefault(id, asked[id].stoppable)
            gone = tuple(mine[at] for at in each.positions)
            left[id] = [node for node in mine if node not in gone]
        found.append(gone)
    return found


@lru_cache(maxsize=10_000)
def asked_anew(groups: tuple[BundleGroup, ...], least: Resources, scale: Scale) -> Asked:
    """A virtual cluster without any place. Equal ones have one gang, so one answer serves all."""
    parts, of = list[GangPart](), list[AskedPart]()
    for template, numbers in _kinds(groups):
        parts.append(template.part(scale, len(numbers)))
        of.append(AskedPart(numbers=numbers, group=template.group))
    for part, piece in _pieces(least, scale, len(groups)):
        parts.append(part)
        of.append(piece)
    if not parts:  # it needs nothing
        parts.append(GangPart(request=(0,) * len(scale.names), least=0, most=0))
        of.append(AskedPart())
    policies = (*(each.policy for each in groups), SchedulingPolicy.PACK)
    return Asked(GangSpec(parts=tuple(parts), policies=policies), tuple(of))


@dataclass(frozen=True, slots=True)
class _Template:
    """Fixed-size nodes of one group that ask for the same."""

    group: int
    resources: Resources
    selector: tuple[tuple[str, Condition], ...]
    surplus: int
    """How many more than the minimum there may be."""

    def part(self, scale: Scale, least: int) -> GangPart:
        return GangPart(
            request=up(self.resources, scale),
            least=least,
            most=least + self.surplus,
            selector=self.selector,
            group=self.group,
        )


def _kinds(groups: Sequence[BundleGroup]) -> list[tuple[_Template, tuple[int, ...]]]:
    """The nodes that ask for the same, by their numbers."""
    found: dict[_Template, list[int]] = {}
    number = 0
    for at, group in enumerate(groups):
        for bundle in group.bundles:
            selector = tuple(sorted(bundle.selector.items()))
            kind = _Template(at, bundle.resources, selector, group.surplus)
            found.setdefault(kind, []).append(number)
            number += 1
    return [(template, tuple(numbers)) for template, numbers in found.items()]


def _pieces(least: Resources, scale: Scale, group: int) -> list[tuple[GangPart, AskedPart]]:
    """Flexible resources as pieces of one whole, or of more for a large amount."""
    found = []
    for name, amount in least.units:
        size = UNIT * max(1, -(-amount // (UNIT * MOST_PIECES)))
        count, rest = divmod(amount, size)
        for each, many in ((size, count), (rest, 1)):
            if each and many:
                piece = Resources(((name, each),))
                part = GangPart(request=up(piece, scale), least=many, most=many, group=group)
                found.append((part, AskedPart(amount=piece)))
    return found


def up(resources: Resources, scale: Scale) -> Amounts:
    """What is asked for, in the scale's units; part of a unit counts as a whole one."""
    known = dict(resources.units)
    return tuple(
        known.get(name, 0) if unit == FINE else -(-known.get(name, 0) // UNIT)
        for name, unit in zip(scale.names, scale.units, strict=True)
    )


def down(resources: Resources, scale: Scale) -> Amounts:
    """What is there, in the scale's units; part of a unit does not count."""
    known = dict(resources.units)
    return tuple(
        known.get(name, 0) if unit == FINE else known.get(name, 0) // UNIT
        for name, unit in zip(scale.names, scale.units, strict=True)
    )


def asks_for_share(request: Request) -> bool:
    """Whether it asks for a share of a GPU."""
    asked = [bundle.resources[GPU] for group in request.groups for bundle in group.bundles]
    return any(amount % UNIT for amount in (*asked, request.least[GPU]))


def _fixed(ledger: Ledger, request: Request, number: int, machine: MachineId) -> VNode:
    labels, own = ledger.machines[machine].labels, request.own_labels(number)
    return VNode(
        id=fixed_id(request.id, number),
        cluster=request.id,
        parent=machine,
        machine=machine,
        kind=VNodeKind.FIXED,
        resources=request.bundle(number).resources,
        labels={**labels, **own} if own else labels,
    )


def _flexible(ledger: Ledger, request: Request, machine: MachineId, amount: Resources) -> VNode:
    return VNode(
        id=flexible_id(request.id, machine),
        cluster=request.id,
        parent=machine,
        machine=machine,
        kind=VNodeKind.FLEXIBLE,
        resources=amount,
        labels=ledger.machines[machine].labels,
    )
