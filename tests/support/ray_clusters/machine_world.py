"""A provider and a Ray in virtual time, and a manager of a declared Ray cluster that may crash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fedpilot.fabric.core.ray_clusters.declaration import (
    HEAD,
    DeclaredRayCluster,
    FaultTolerance,
    GroupName,
    MachineGroup,
    MachineName,
    MachineTemplate,
    RayClusterName,
)
from fedpilot.fabric.core.ray_clusters.lifecycle import (
    STATE_TRANSITIONS,
    DrainMachine,
    LifecycleAction,
    LifecycleSettings,
    LifecycleTurn,
    RayClusterMemory,
    RayClusterView,
    StartMachine,
    StopMachine,
    StopStray,
    turn,
)
from fedpilot.fabric.core.ray_clusters.machines import MachineRecord, MachineState, Sighting

BOOT_S = 3.0
"""From the start of a machine to its joining."""
END_S = 1.0
"""How long a provider takes to end a machine."""


def group(name: str, replicas: int = 1, **fields: object) -> MachineGroup:
    """A group of workers that may grow to ten."""
    given = {"name": GroupName(name), "replicas": replicas, "most": 10, **fields}
    return MachineGroup(**given)  # type: ignore[arg-type]


def declared(*workers: MachineGroup, **fields: object) -> DeclaredRayCluster:
    head = MachineGroup(name=HEAD, least=1)
    given = {"name": RayClusterName("c"), "head": head, "workers": workers, **fields}
    return DeclaredRayCluster(**given)  # type: ignore[arg-type]


def template(version: int) -> MachineTemplate:
    """A template that differs from those of other versions."""
    return MachineTemplate(parameters={"version": str(version)})


FAULT_TOLERANT = FaultTolerance()


@dataclass(kw_only=True)
class FakeMachine:
    """What there is of a machine."""

    name: MachineName
    group: GroupName
    host: str
    head: MachineName
    joins_s: float | None
    """When it will have joined; None: never."""
    ends_s: float | None = None
    dead: bool = False
    work: float = 0.0
    """What its loss would cost; 0: it is idle."""
    idle_since_s: float = 0.0


@dataclass(kw_only=True)
class MachineWorld:
    """One declared Ray cluster, its provider, its Ray and its manager."""

    declared: DeclaredRayCluster
    settings: LifecycleSettings = field(default_factory=LifecycleSettings)
    now: float = 1000.0
    deleted: bool = False
    memory: RayClusterMemory = field(default_factory=RayClusterMemory)
    there: dict[MachineName, FakeMachine] = field(default_factory=dict)
    hosts_down: frozenset[str] = frozenset()
    hosts_blink: frozenset[str] = frozenset()
    """Hosts that have not answered for a moment; what they had is known."""
    head_waits: str = ""
    """Why a head could not keep its state now."""
    joins: bool = True
    """Whether what starts now will join."""
    last: LifecycleTurn | None = None
    started: list[MachineName] = field(default_factory=list)
    """Every machine ever started."""
    wrongs: list[str] = field(default_factory=list)
    """What must not happen, and did."""

    def view(self) -> RayClusterView:
        self._pass()
        heads = {m.name for m in self.there.values() if m.group == HEAD and self._up(m)}
        found = {}
        for record in self.memory.machines:
            machine = self.there.get(record.name)
            if record.host in self.hosts_down:
                found[record.name] = Sighting(exists=None)
            elif machine is None:
                found[record.name] = Sighting(exists=False)
            else:
                served = bool(heads) if self.declared.fault_tolerance else machine.head in heads
                joined = self._up(machine) and (machine.group == HEAD or served)
                idle = machine.idle_since_s if joined and not machine.work else None
                found[record.name] = Sighting(
                    exists=True,
                    joined=joined,
                    dead=machine.dead,
                    idle_since_s=idle,
                    loss=machine.work,
                )
        strays = {
            (machine.host, name)
            for name, machine in self.there.items()
            if name not in found and machine.host not in self.hosts_down
        }
        return RayClusterView(
            machines=found,
            hosts_away=self.hosts_down,
            hosts_silent=self.hosts_down | self.hosts_blink,
            strays=frozenset(strays),
            head_waits=self.head_waits,
        )

    def _up(self, machine: FakeMachine) -> bool:
        away = machine.host in self.hosts_down or machine.dead
        return not away and machine.joins_s is not None and machine.joins_s <= self.now

    def _pass(self) -> None:
        gone = [
            m.name for m in self.there.values() if m.ends_s is not None and m.ends_s <= self.now
        ]
        for name in gone:
            del self.there[name]

    def turn(self, *, crash: int | None = None) -> LifecycleTurn:
        """One turn of the manager, which dies after `crash` of its steps: keeping, then acting."""
        view = self.view()
        found = turn(
            self.declared, self.memory, view, self.now, self.settings, deleted=self.deleted
        )
        steps = 0
        if crash is not None and steps >= crash:
            return found
        state, before = found.memory.state, self.memory.state
        if state is not before and state not in STATE_TRANSITIONS[before]:
            self.wrongs.append(f"{before} became {state}")
        self._check(found, view)
        self.memory, self.last = found.memory, found
        for action in found.actions:
            steps += 1
            if crash is not None and steps >= crash:
                return found
            self._apply(action)
        return found

    def _apply(self, action: LifecycleAction) -> None:
        if isinstance(action, StopStray):
            self.there[action.name].ends_s = self.now + END_S
            return
        machine = self.there.get(action.machine.name)
        match action:
            case StartMachine():
                if machine is None and action.machine.host not in self.hosts_down:
                    self._begin(action.machine)
            case StopMachine():
                if machine is not None and machine.ends_s is None:
                    machine.ends_s = self.now + END_S
            case DrainMachine():
                if machine is not None and machine.work:
                    machine.work, machine.idle_since_s = 0.0, self.now

    def _begin(self, record: MachineRecord) -> None:
        if record.name in self.started:
            self.wrongs.append(f"{record.name} was started twice")
        self.started.append(record.name)
        if record.group == HEAD and any(
            m.group == HEAD and m.host == record.host and not m.dead for m in self.there.values()
        ):
            self.wrongs.append(f"{record.name} started beside another head")
        self.there[record.name] = FakeMachine(
            name=record.name,
            group=record.group,
            host=record.host,
            head=record.head,
            joins_s=self.now + BOOT_S if self.joins else None,
            idle_since_s=self.now + BOOT_S,
        )

    def _check(self, found: LifecycleTurn, view: RayClusterView) -> None:
        """No machine in use leaves by choice while an idle one of its group stays."""
        before = {each.name: each for each in self.memory.machines}
        groups = {each.name: each for each in self.declared.workers}
        for machine in found.memory.machines:
            was, mine = before.get(machine.name), groups.get(machine.group)
            chosen = machine.state is MachineState.DRAINING and "more machines" in machine.reason
            if was is None or mine is None or not chosen or was.state is MachineState.DRAINING:
                continue
            if view.machines[machine.name].idle_since_s is None:
                idle = [
                    each.name
                    for each in found.memory.machines
                    if each.group == machine.group
                    and each.state is MachineState.READY
                    and view.machines[each.name].idle_since_s is not None
                ]
                if idle:
                    self.wrongs.append(f"{machine.name} left in use while {idle[0]} was idle")

    def run(self, seconds: float, step_s: float = 1.0) -> None:
        """Let time pass, with a turn in each step."""
        until = self.now + seconds
        while self.now < until:
            self.turn()
            self.now += step_s

    def settle(self, most_s: float = 5000.0) -> None:
        """Let time pass until nothing changes any more."""
        until = self.now + most_s
        while self.now < until:
            before = self.memory
            found = self.turn()
            if found.memory == before and not found.actions and found.wake_s is None:
                starting = any(m.state is MachineState.STARTING for m in self.memory.machines)
                if not starting:
                    return
            self.now += 1.0
        raise AssertionError(f"it did not come to rest: {self.memory}")

    def kill(self, name: MachineName) -> None:
        """A machine's processes end, or hang until Ray declares it dead; its files stay."""
        self.there[name].dead = True

    def vanish(self, name: MachineName) -> None:
        """Nothing of a machine is left, as after a crash of its host."""
        del self.there[name]
        self.started.remove(name)

    def names(self, group: str, *states: MachineState) -> list[MachineName]:
        """The machines of a group, by state if any are given."""
        return [
            each.name
            for each in self.memory.machines
            if each.group == group and (not states or each.state in states)
        ]

    def change(self, **fields: object) -> None:
        """Declare the cluster otherwise."""
        self.declared = replace(self.declared, **fields)  # type: ignore[arg-type]

    def scale(self, name: str, replicas: int, leaving: Iterable[MachineName] = ()) -> None:
        """Declare another number of machines in a group, and those that should leave."""
        self.change(
            workers=tuple(
                replace(each, replicas=replicas, leaving=tuple(leaving))
                if each.name == name
                else each
                for each in self.declared.workers
            )
        )
