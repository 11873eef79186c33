"""What the manager of a declared Ray cluster does next: starts, drains and ends machines.

`turn` compares the declaration with what is remembered and what is seen. It may be asked again at
any moment: a machine that it wants is remembered before it is started, and its start is asked for
until the provider has it. Workers start once the head has, and wait for it themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fedpilot.common.text.amounts import counted

from .declaration import HEAD, DeclaredRayCluster, GroupName, MachineGroup, MachineName
from .failures import Failure, FailureSettings, counting, patience
from .machines import LIVE, MachineEvent, MachinePlace, MachineRecord, MachineState, Sighting
from .resizing import is_outdated, next_hosts, resize


class RayClusterState(StrEnum):
    """What has become of a declared Ray cluster; the first, second and sixth are KubeRay's."""

    READY = "ready"
    """All machines are there."""
    SUSPENDED = "suspended"
    """It has no machines for now."""
    STARTING = "starting"
    """Its head does not serve yet."""
    SCALING = "scaling"
    """The head serves; workers are missing, or leave."""
    RECOVERING = "recovering"
    """Its head has served, and is away."""
    FAILED = "failed"
    """Its head cannot be started."""
    DELETING = "deleting"
    """Its machines end, and it with them."""


C = RayClusterState
STATE_TRANSITIONS: Mapping[RayClusterState, frozenset[RayClusterState]] = {
    C.STARTING: frozenset({C.READY, C.SCALING, C.FAILED, C.SUSPENDED, C.DELETING}),
    C.READY: frozenset({C.SCALING, C.RECOVERING, C.SUSPENDED, C.FAILED, C.DELETING}),
    C.SCALING: frozenset({C.READY, C.RECOVERING, C.SUSPENDED, C.FAILED, C.DELETING}),
    C.RECOVERING: frozenset({C.READY, C.SCALING, C.FAILED, C.SUSPENDED, C.DELETING}),
    C.SUSPENDED: frozenset({C.STARTING, C.FAILED, C.DELETING}),
    C.FAILED: frozenset({C.STARTING, C.READY, C.SCALING, C.RECOVERING, C.SUSPENDED, C.DELETING}),
    C.DELETING: frozenset(),
}
"""Which state may follow which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleSettings:
    """Times of the manager of Ray clusters."""

    join_s: float = 180.0
    """How long a machine may take to join before it has failed."""
    forget_s: float = 3600.0
    """How long a machine that should end is remembered while its host does not answer."""
    failures: FailureSettings = field(default_factory=FailureSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayClusterMemory:
    """What must survive the manager of a declared Ray cluster."""

    state: RayClusterState = RayClusterState.STARTING
    state_since_s: float = 0.0
    machines: tuple[MachineRecord, ...] = ()
    """In the order in which they were wanted."""
    next_number: int = 0
    """Of the next machine; no number comes twice."""
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RayClusterView:
    """What is seen of a declared Ray cluster now."""

    machines: Mapping[MachineName, Sighting] = field(default_factory=dict)
    hosts_away: frozenset[str] = frozenset()
    """Hosts that have not answered for so long that their machines are lost."""
    hosts_silent: frozenset[str] = frozenset()
    """Hosts that do not answer now, those that are away among them: nothing is started there."""
    strays: frozenset[MachinePlace] = frozenset()
    """What is there of machines that should not be, or not there."""
    head_waits: str = ""
    """Why a head could not keep its state now; none starts meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMachine:
    """Start a machine; the provider does nothing if it has it already."""

    machine: MachineRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainMachine:
    """Give the work on a machine notice, and no more work to the machine."""

    machine: MachineRecord
    until_s: float
    """When the machine ends, with or without work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMachine:
    """End all that belongs to a machine."""

    machine: MachineRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStray:
    """End what a provider has of a machine that is not remembered, or not there."""

    name: MachineName
    host: str


LifecycleAction = StartMachine | DrainMachine | StopMachine | StopStray


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleTurn:
    """One decision about a declared Ray cluster."""

    memory: RayClusterMemory
    """To be kept before an action begins."""
    actions: tuple[LifecycleAction, ...]
    reasons: Mapping[GroupName, str]
    """Why a group is not as declared."""
    given_up: frozenset[GroupName]
    """The groups that start no machines for now, since those keep failing."""
    wake_s: float | None
    """When time alone may change the decision; None: never."""
    finished: bool = False
    """Whether a deleted cluster has nothing left."""


def turn(
    declared: DeclaredRayCluster,
    memory: RayClusterMemory,
    view: RayClusterView,
    now: float,
    settings: LifecycleSettings,
    *,
    deleted: bool = False,
) -> LifecycleTurn:
    """Decide what happens to a declared Ray cluster next."""
    found = _Round(declared, memory, view, now, settings)
    found.look()
    found.end_drained()
    if deleted or declared.suspended:
        found.end_all("the cluster is deleted" if deleted else "the cluster is suspended")
    else:
        found.keep_head()
        for group in declared.workers:
            found.keep_group(group)
        found.end_others()
        found.renew_head()
    return found.decided(deleted)


class _Round:
    """The decision while it is made."""

    def __init__(
        self,
        declared: DeclaredRayCluster,
        memory: RayClusterMemory,
        view: RayClusterView,
        now: float,
        settings: LifecycleSettings,
    ) -> None:
        self.declared, self.memory, self.view = declared, memory, view
        self.now, self.settings = now, settings
        self.machines = {each.name: each for each in memory.machines}
        self.failures = list(counting(memory.failures, self._useful(), now, settings.failures))
        self.next_number = memory.next_number
        self.reasons: dict[GroupName, str] = {}
        self.wakes: list[float] = []
        self.given_up: set[GroupName] = set()

    def _useful(self) -> dict[GroupName, float]:
        """When a machine of each group last became ready that has stayed so."""
        stable_s = self.settings.failures.stable_s
        found: dict[GroupName, float] = {}
        for each in self.memory.machines:
            if each.state is MachineState.READY and self.now - each.since_s >= stable_s:
                found[each.group] = max(each.since_s, found.get(each.group, each.since_s))
        return found

    def of(self, group: GroupName, *states: MachineState) -> list[MachineRecord]:
        """The machines of a group in these states."""
        return [
            each for each in self.machines.values() if each.group == group and each.state in states
        ]

    def seen(self, machine: MachineRecord) -> Sighting:
        return self.view.machines.get(machine.name, Sighting(exists=False))

    # -- what has happened -------------------------------------------------------------------------

    def look(self) -> None:
        """Take what is seen of each machine into its record."""
        for machine in self.memory.machines:
            if machine.host in self.view.hosts_away:
                self._look_from_afar(machine)
            elif (seen := self.seen(machine)).exists is not None:
                self._look_at(machine, seen)

    def _look_from_afar(self, machine: MachineRecord) -> None:
        """Its host does not answer: its machine is lost, and ended when the host is back."""
        if machine.state is not MachineState.STOPPING:
            self._lost(machine, f"its host {machine.host} does not answer")
        elif self.now - machine.since_s >= self.settings.forget_s:
            self._event(machine, MachineEvent.ENDED, "its host has not come back")
        else:
            self.wakes.append(machine.since_s + self.settings.forget_s)

    def _look_at(self, machine: MachineRecord, seen: Sighting) -> None:
        state = machine.state
        if state is MachineState.STOPPING:
            if not seen.exists:
                self._event(machine, MachineEvent.ENDED, "nothing of it is left")
        elif seen.trouble or seen.dead:
            self._lost(machine, seen.trouble or "Ray has declared it dead")
        elif not seen.exists and state is not MachineState.STARTING:
            self._lost(machine, "its processes have ended")
        elif seen.joined:
            self._event(machine, MachineEvent.JOINED, "Ray uses it")
        elif state is MachineState.STARTING:
            until_s = machine.since_s + self.settings.join_s
            if self.now >= until_s:
                self._lost(machine, f"it has not joined within {self.settings.join_s:g} s")
            self.wakes.append(until_s)

    def _lost(self, machine: MachineRecord, reason: str) -> None:
        """End what is left of a machine that has failed, and count it if it was of no use."""
        ready = machine.state is MachineState.READY
        useful = ready and self.now - machine.since_s >= self.settings.failures.stable_s
        if machine.live and not useful:
            failure = Failure(
                group=machine.group,
                template=machine.template,
                started_s=machine.since_s,
                at_s=self.now,
                joined=ready,
                reason=reason,
            )
            self.failures.append(failure)
        self._event(machine, MachineEvent.STOP, reason)

    def _event(self, machine: MachineRecord, event: MachineEvent, reason: str) -> None:
        self.machines[machine.name] = self.machines[machine.name].after(event, self.now, reason)

    # -- what should be ----------------------------------------------------------------------------

    def keep_head(self) -> None:
        """Start the head if there is none. Without fault tolerance its workers end with it."""
        head, group = self.head, self.declared.head
        if head is None:
            ending = self.of(HEAD, MachineState.STOPPING)
            hosts = next_hosts(group, (), self.view.hosts_away, 1)
            there = [each for each in ending if each.host not in self.view.hosts_away]
            strays = sorted(name for host, name in self.view.strays if host in hosts)
            if there or strays:
                name = there[-1].name if there else strays[0]
                self.reasons[HEAD] = f"{name} has to end before the next head starts"
            elif any(each in self.view.hosts_silent for each in hosts):
                self.reasons[HEAD] = f"its host {hosts[0]} does not answer for now"
            elif self.view.head_waits:
                self.reasons[HEAD] = f"a head has to wait: {self.view.head_waits}"
            else:
                self._start(group, 1, None)
                head = self.head
        elif self.view.head_waits:
            self.reasons[HEAD] = f"it cannot keep its state: {self.view.head_waits}"
        for worker in [each for each in self.machines.values() if each.group != HEAD]:
            if head is not None and worker.head == head.name:
                continue
            if self.declared.fault_tolerance is None:
                self._event(worker, MachineEvent.STOP, f"its head {worker.head} has ended")
            elif head is not None:
                self.machines[worker.name] = replace(worker, head=head.name)

    @property
    def head(self) -> MachineRecord | None:
        """The head that serves, or starts."""
        return next(iter(self.of(HEAD, MachineState.STARTING, MachineState.READY)), None)

    def keep_group(self, group: MachineGroup) -> None:
        """Bring a group of workers to the number and the template that are declared."""
        head = self.head
        if head is None or not self.seen(head).exists:
            if group.wanted:
                self.reasons[group.name] = "it waits for the head"
            return
        live = self.of(group.name, *LIVE)
        change = resize(
            group, live, self.view.machines, self.declared.upgrade, self.declared.max_unavailable
        )
        for name, reason in change.leaving.items():
            self._event(self.machines[name], MachineEvent.DRAIN, reason)
        if change.waits:
            self.reasons[group.name] = change.waits
        self._start(group, change.starting, head.name)

    def end_others(self) -> None:
        """Machines of groups that are not declared any more leave."""
        declared = {each.name for each in self.declared.groups}
        for machine in list(self.machines.values()):
            if machine.live and machine.group not in declared:
                self._event(
                    machine, MachineEvent.DRAIN, f"{machine.group} is not declared any more"
                )

    def renew_head(self) -> None:
        """A head that is declared otherwise now is replaced, after all workers."""
        head, group = self.head, self.declared.head
        if head is None or not is_outdated(head, group, self.declared.upgrade):
            return
        ready = head.state is MachineState.READY
        failing = {each.group for each in self.failures}
        if ready and not all(
            self._complete(each) or each.name in failing for each in self.declared.workers
        ):
            self.reasons[HEAD] = "it is replaced once all workers are as declared"
            return
        reason = "it is declared otherwise now"
        self._event(head, MachineEvent.STOP if ready else MachineEvent.DRAIN, reason)

    def end_all(self, reason: str) -> None:
        """All workers end, then the head."""
        workers = [each for each in self.machines.values() if each.group != HEAD]
        left = [each for each in workers if each.state is not MachineState.GONE]
        for machine in left or list(self.machines.values()):
            self._event(machine, MachineEvent.STOP, reason)

    def end_drained(self) -> None:
        """End machines that no work is on any more, or whose work has had its time."""
        groups = {each.name: each for each in self.declared.groups}
        for machine in list(self.machines.values()):
            if machine.state is not MachineState.DRAINING:
                continue
            until_s = self._drained_by(machine, groups)
            if self.seen(machine).idle_since_s is not None:
                self._event(machine, MachineEvent.STOP, f"no work is on it; {machine.reason}")
            elif self.now >= until_s:
                self._event(machine, MachineEvent.STOP, f"its work has had time; {machine.reason}")
            else:
                self.wakes.append(until_s)

    def _drained_by(
        self, machine: MachineRecord, groups: Mapping[GroupName, MachineGroup]
    ) -> float:
        group = groups.get(machine.group, self.declared.head)
        return machine.since_s + group.drain_s

    def _complete(self, group: MachineGroup) -> bool:
        """Whether a group is as declared; what is left on a host that is away does not count."""
        there = [
            each
            for each in self.machines.values()
            if each.group == group.name
            and each.state is not MachineState.GONE
            and each.host not in self.view.hosts_away
        ]
        upgrade = self.declared.upgrade
        return len(there) == group.wanted and all(
            each.state is MachineState.READY and not is_outdated(each, group, upgrade)
            for each in there
        )

    def _start(self, group: MachineGroup, count: int, head: MachineName | None) -> None:
        """Want machines, unless the group has to wait; a head is its own head."""
        if count <= 0:
            return
        digest = group.template.digest
        wait = patience(self.failures, group.name, digest, self.now, self.settings.failures)
        if wait.reason:
            self.reasons[group.name] = wait.reason
            self.wakes.append(wait.from_s)
            if wait.given_up:
                self.given_up.add(group.name)
            return
        mine = self.of(group.name, *LIVE)
        hosts = next_hosts(group, mine, self.view.hosts_silent, count)
        if not hosts:
            self.reasons[group.name] = f"none of its hosts answers: {', '.join(group.hosts)}"
        for host in hosts:
            number, self.next_number = self.next_number, self.next_number + 1
            name = MachineName(f"{self.declared.name}-{group.name}-{number}")
            self.machines[name] = MachineRecord(
                name=name,
                number=number,
                group=group.name,
                host=host,
                template=digest,
                head=head or name,
                since_s=self.now,
                reason=f"{group.name} should have {counted(group.wanted, 'machine')}",
            )

    # -- the answer --------------------------------------------------------------------------------

    def decided(self, deleted: bool) -> LifecycleTurn:
        """The decision, once all of it is made."""
        machines = tuple(m for m in self.machines.values() if m.state is not MachineState.GONE)
        state = self._state(deleted)
        before = self.memory
        return LifecycleTurn(
            memory=RayClusterMemory(
                state=state,
                state_since_s=before.state_since_s if state is before.state else self.now,
                machines=machines,
                next_number=self.next_number,
                failures=tuple(self.failures),
            ),
            actions=(
                *(each for machine in machines for each in self._actions(machine)),
                *self._strays(),
            ),
            reasons=dict(self.reasons),
            given_up=frozenset(self.given_up),
            wake_s=min((each for each in self.wakes if each > self.now), default=None),
            finished=deleted and not machines and not any(self._strays()),
        )

    def _actions(self, machine: MachineRecord) -> Iterator[LifecycleAction]:
        exists = self.seen(machine).exists
        match machine.state:
            case MachineState.STARTING if exists is False:
                yield StartMachine(machine=machine)
            case MachineState.DRAINING if exists:
                groups = {each.name: each for each in self.declared.groups}
                yield DrainMachine(machine=machine, until_s=self._drained_by(machine, groups))
            case MachineState.STOPPING if exists:
                yield StopMachine(machine=machine)

    def _suspended(self, before: RayClusterState) -> RayClusterState:
        """Suspended once nothing is left; until then as before, or as what leaves machines."""
        if not any(each.state is not MachineState.GONE for each in self.machines.values()):
            return RayClusterState.SUSPENDED
        return RayClusterState.SCALING if before is RayClusterState.READY else before

    def _strays(self) -> Iterator[StopStray]:
        for host, name in sorted(self.view.strays):
            yield StopStray(name=name, host=host)

    def _state(self, deleted: bool) -> RayClusterState:
        before, head = self.memory.state, self.head
        if deleted:
            return RayClusterState.DELETING
        if self.declared.suspended:
            return self._suspended(before)
        if HEAD in self.given_up:
            return RayClusterState.FAILED
        if head is not None and head.state is MachineState.READY:
            whole = all(self._complete(each) for each in self.declared.groups)
            return RayClusterState.READY if whole else RayClusterState.SCALING
        if before in (RayClusterState.READY, RayClusterState.SCALING):
            return RayClusterState.RECOVERING
        if before in (RayClusterState.STARTING, RayClusterState.RECOVERING):
            return before
        return RayClusterState.STARTING
