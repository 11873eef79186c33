"""Which machines of a group leave, how many start, and on which host the next one does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .declaration import MachineGroup, MachineName, UpgradeKind
from .machines import MachineRecord, MachineState, Sighting

HERE = ""
"""The host of a group that names none: where its provider runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """What makes a group as declared."""

    leaving: Mapping[MachineName, str]
    """The machines that leave now, each with the reason."""
    starting: int
    """How many machines start now."""
    waits: str = ""
    """Why a machine that should leave has to stay for now."""


def resize(
    group: MachineGroup,
    live: Sequence[MachineRecord],
    seen: Mapping[MachineName, Sighting],
    upgrade: UpgradeKind,
    max_unavailable: int,
) -> Resizing:
    """Compare a group with its machines that are starting or ready.

    No ready machine leaves if fewer than the group's minimum would stay. For a new template, or for
    other hosts, at most `max_unavailable` are away, or all if they are recreated. A machine starts
    in advance where that forbids the first one to leave.
    """
    wanted, least = group.wanted, min(group.least, group.wanted)
    may_miss = wanted if upgrade is UpgradeKind.RECREATE else max_unavailable
    ready = [each for each in live if each.state is MachineState.READY]
    outdated = [each for each in ready if is_outdated(each, group, upgrade)]
    named = [each for each in ready if each.name in group.leaving]
    stuck = bool(named) and len(ready) <= least
    stuck |= bool(outdated) and len(ready) <= wanted - may_miss
    advance = int(stuck and len(ready) >= wanted)
    leaving: dict[MachineName, str] = {}
    stays = len(ready)

    def leave(machines: Iterable[MachineRecord], at_least: int) -> None:
        nonlocal stays
        for machine in machines:
            if machine.name in leaving:
                continue
            if machine.state is MachineState.READY:
                if stays <= at_least:
                    continue
                stays -= 1
            leaving[machine.name] = _why(machine, group)

    leave((each for each in live if _starts_in_vain(each, group)), 0)
    order = leaves_first([each for each in live if each.name not in leaving], group, seen)
    leave(order[: max(0, len(order) - wanted - advance)], least)
    leave(named, least)
    leave(leaves_first(outdated, group, seen), max(0, wanted - may_miss))
    return Resizing(
        leaving=leaving,
        starting=max(0, wanted + advance - (len(live) - len(leaving))),
        waits="a machine has to start before another may leave" if stuck else "",
    )


def is_outdated(machine: MachineRecord, group: MachineGroup, upgrade: UpgradeKind) -> bool:
    """Whether a machine has to be replaced, since its group declares machines otherwise now."""
    if machine.host not in hosts_of(group):
        return True
    return upgrade is not UpgradeKind.NONE and machine.template != group.template.digest


def _starts_in_vain(machine: MachineRecord, group: MachineGroup) -> bool:
    otherwise = machine.template != group.template.digest or machine.host not in hosts_of(group)
    return machine.state is MachineState.STARTING and otherwise


def _why(machine: MachineRecord, group: MachineGroup) -> str:
    if machine.name in group.leaving:
        return "the declaration names it to leave"
    if machine.host not in hosts_of(group):
        return f"{machine.host or 'this host'} is no host of {group.name} any more"
    if machine.template != group.template.digest:
        return f"{group.name} is declared otherwise now"
    return f"{group.name} has more machines than the {group.wanted} that it should have"


def leaves_first(
    machines: Iterable[MachineRecord], group: MachineGroup, seen: Mapping[MachineName, Sighting]
) -> list[MachineRecord]:
    """Machines in the order in which they leave.

    First those that the declaration names, then those that have not joined, then those with another
    template, then the idle ones, the longest idle first; of machines in use the one whose loss
    costs least, and the youngest.
    """

    def key(machine: MachineRecord) -> tuple[bool, bool, bool, bool, float, float, float, str]:
        sighting = seen.get(machine.name, Sighting(exists=True))
        idle = sighting.idle_since_s
        return (
            machine.name not in group.leaving,
            machine.state is not MachineState.STARTING,
            machine.template == group.template.digest and machine.host in hosts_of(group),
            idle is None,
            0.0 if idle is None else idle,
            sighting.loss,
            -machine.since_s,
            machine.name,
        )

    return sorted(machines, key=key)


def hosts_of(group: MachineGroup) -> tuple[str, ...]:
    """The hosts on which machines of a group may run."""
    return group.hosts or (HERE,)


def next_hosts(
    group: MachineGroup, machines: Iterable[MachineRecord], away: frozenset[str], count: int
) -> list[str]:
    """A host for each of the next machines: always the one with the fewest, the first of equals.

    Empty if no host of the group answers.
    """
    counts = {host: 0 for host in hosts_of(group) if host not in away}
    for each in machines:
        if each.host in counts:
            counts[each.host] += 1
    found = []
    for _ in range(count if counts else 0):
        host = min(counts, key=lambda host: counts[host])
        counts[host] += 1
        found.append(host)
    return found
