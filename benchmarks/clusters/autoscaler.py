"""What the autoscaler of declared Ray clusters costs: machine-seconds, and the time of a decision.

Waves of gangs come and go in virtual time, and `autoscale` has the machines. Beside it stands an
oracle that knows all that will come: it has each machine ready when a gang arrives, and keeps it
for a later gang only if that is cheaper. Both pay the start of a machine, and its idle time before
it may leave. A decision is timed on 1,000 machines, most of them in use, and 1,000 waiting gangs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import networkx as nx
from measuring import Run, called, measured, parser, spread, table

from fedpilot.fabric.core.ray_clusters.autoscaling import (
    AutoscalerSettings,
    Demand,
    PendingGang,
    SuppliedMachine,
    autoscale,
)
from fedpilot.fabric.core.ray_clusters.declaration import (
    GroupName,
    MachineGroup,
    MachineName,
    MachineTemplate,
)
from fedpilot.fabric.core.records import Bundle, BundleGroup, SchedulingPolicy
from fedpilot.fabric.core.resources import Resources

SECTION = "autoscaler"
REPETITIONS = 20
GANGS, START_S, LOOK_S = 40, 5, 1
"""Gangs of a wave, seconds until a machine has joined, and between two looks."""
BETWEEN_S = 30.0
"""The mean time between two arrivals."""
ONE = Resources.of({"CPU": 1})
WORKERS = GroupName("workers")
SETTINGS = AutoscalerSettings()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A gang, each member of which fills a machine."""

    id: str
    at_s: int
    size: int
    runs_s: int


@dataclass(slots=True)
class WaveMachine:
    """A machine of the wave; times in seconds of it."""

    name: MachineName
    began_s: int
    gang: str = ""
    idle_s: int = 0
    """Since when it is idle, if it has no gang."""
    joined: bool = False


def wave(seed: int) -> list[Arrival]:
    """Gangs of 1 to 8 members that arrive at random, and run for 30 to 600 s."""
    draw = random.Random(seed)
    at, found = 0.0, []
    for number in range(GANGS):
        at += draw.expovariate(1 / BETWEEN_S)
        found.append(Arrival(f"g{number}", int(at), draw.randint(1, 8), draw.randint(30, 600)))
    return found


def group(**fields: int) -> MachineGroup:
    return MachineGroup(
        name=WORKERS, replicas=0, most=10_000, template=MachineTemplate(resources=ONE), **fields
    )


def pending(gang: Arrival) -> PendingGang:
    bundles = (Bundle(resources=ONE),) * gang.size
    spread_out = BundleGroup(bundles=bundles, policy=SchedulingPolicy.STRICT_SPREAD)
    return PendingGang(id=gang.id, groups=(spread_out,), since_s=gang.at_s)


class Wave:
    """A declared Ray cluster on which a wave of gangs runs."""

    def __init__(self, gangs: list[Arrival]) -> None:
        self._coming = sorted(gangs, key=lambda each: each.at_s)[::-1]
        self._waiting: list[Arrival] = []
        self._ends: dict[str, int] = {}
        self._group = group()
        self._machines: list[WaveMachine] = []
        self._numbers = iter(range(10**9))
        self.machine_s = 0
        self.waits_s: list[int] = []

    def play(self) -> None:
        """Let all gangs run, and all machines leave."""
        now = 0
        while self._coming or self._waiting or self._machines:
            self._pass(now)
            self._decide(now)
            self.machine_s += LOOK_S * len(self._machines)
            now += LOOK_S

    def _pass(self, now: int) -> None:
        while self._coming and self._coming[-1].at_s <= now:
            self._waiting.append(self._coming.pop())
        for machine in self._machines:
            if not machine.joined and now - machine.began_s >= START_S:
                machine.joined, machine.idle_s = True, now
            if machine.gang and self._ends[machine.gang] <= now:
                machine.gang, machine.idle_s = "", now
        for gang in [*self._waiting]:
            free = [each for each in self._machines if each.joined and not each.gang]
            if len(free) < gang.size:
                continue
            self._waiting.remove(gang)
            self._ends[gang.id] = now + gang.runs_s
            self.waits_s.append(now - gang.at_s)
            for machine in sorted(free, key=lambda each: -each.idle_s)[: gang.size]:
                machine.gang = gang.id

    def _decide(self, now: int) -> None:
        supplied = tuple(
            SuppliedMachine(
                name=each.name,
                group=WORKERS,
                free=Resources() if each.gang else ONE,
                since_s=each.began_s + START_S,
                idle_since_s=None if each.gang else each.idle_s,
            )
            for each in self._machines
            if each.joined
        )
        waiting = tuple(map(pending, self._waiting))
        demand = Demand(seen_s=now, gangs=waiting, machines=supplied)
        edit = autoscale([self._group], demand, now, SETTINGS).edits.get(WORKERS)
        if edit is None:
            return
        self._group = replace(self._group, replicas=edit.replicas)
        leaving = {*edit.leaving}
        self._machines = [each for each in self._machines if each.name not in leaving]
        for _ in range(edit.replicas - len(self._machines)):
            self._machines.append(WaveMachine(MachineName(f"m{next(self._numbers)}"), now))


def oracle_s(gangs: list[Arrival]) -> float:
    """The fewest machine-seconds with each machine there when its gang arrives.

    Each member takes a machine that starts for it and leaves idle, or one that another member has
    left not longer ago than it may stay idle: the cheapest such pairs are a matching.
    """
    idle_s = group().idle_s
    fresh_s = START_S + idle_s
    members = [each for each in gangs for _ in range(each.size)]
    pairs = nx.Graph()
    for before, left in enumerate(members):
        for after, comes in enumerate(members):
            gap_s = comes.at_s - (left.at_s + left.runs_s)
            if 0 <= gap_s <= idle_s:
                pairs.add_edge(("left", before), ("comes", after), weight=fresh_s - gap_s)
    chosen = nx.max_weight_matching(pairs)
    saved_s = sum(pairs[a][b]["weight"] for a, b in chosen)
    return sum(each.runs_s + fresh_s for each in members) - saved_s


def decision_s() -> float:
    """CPU seconds of one decision about 1,000 machines and 1,000 gangs."""
    draw = random.Random(1)
    small = MachineGroup(
        name=GroupName("small"),
        replicas=1000,
        most=5000,
        template=MachineTemplate(resources=Resources.of({"CPU": 8})),
    )
    machines = tuple(
        SuppliedMachine(
            name=MachineName(f"small-{number}"),
            group=small.name,
            free=Resources.of({"CPU": 8 - used}) if used < 8 else Resources(),
            since_s=0.0,
            idle_since_s=None,
        )
        for number in range(1000)
        for used in [draw.choice([8, 8, 8, 7, 6, 4])]
    )
    policies = [SchedulingPolicy.PACK, SchedulingPolicy.SPREAD, SchedulingPolicy.STRICT_SPREAD]
    gangs = []
    for number in range(1000):
        bundle = Bundle(resources=Resources.of({"CPU": draw.choice([1, 2, 4])}))
        bundles = (bundle,) * draw.randint(1, 8)
        groups = (BundleGroup(bundles=bundles, policy=draw.choice(policies)),)
        gangs.append(PendingGang(id=f"g{number}", groups=groups, since_s=number))
    demand = Demand(seen_s=2000.0, gangs=tuple(gangs), machines=machines)
    begin = time.process_time()
    autoscale([small], demand, 2000.0, SETTINGS)
    return time.process_time() - begin


def child(seed: int) -> Run:
    """Play the wave of a seed, and decide once."""
    gangs = wave(seed)
    there = Wave(gangs)
    there.play()
    decision_s()
    return {
        "machine_s": there.machine_s,
        "oracle_s": oracle_s(gangs),
        "waited_s": sum(there.waits_s) / len(there.waits_s),
        "decision_s": decision_s(),
    }


def text(runs: Mapping[str, list[Run]]) -> str:
    """The table that the page shows."""
    mine = runs["waves"]
    rows = [
        ["machine-seconds, in those of the oracle", spread(_ratio(run) for run in mine).text(2)],
        ["mean wait of a gang, s", spread(run["waited_s"] for run in mine).text(1)],
        ["a decision, CPU ms", spread(run["decision_s"] for run in mine).text(1, 1e3)],
    ]
    return table([f"{len(mine)} waves", "median and range"], rows)


def _ratio(run: Run) -> float:
    return float(run["machine_s"] / run["oracle_s"])


def main() -> None:
    options = parser(__doc__ or "", REPETITIONS)
    given = options.parse_args()

    def once(_name: str, turn: int) -> Run:
        return called("autoscaler:child", turn)

    def say(run: Run) -> str:
        return f"{_ratio(run):.2f}x of the oracle, {1e3 * run['decision_s']:.1f} ms"

    print("\n" + text(measured(SECTION, ["waves"], once, say, given)))


if __name__ == "__main__":
    main()
