"""A cluster without Ray: the same protocols in one process; values are shared, not copied."""

from __future__ import annotations

import os
import threading
import traceback
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet

from ..core.places.placement import Placement, fit
from ..core.records import Bundle, Machine, MachineId, SchedulingPolicy, VNode
from ..core.resources import Resources
from ..errors import FabricError, GangExists, WorkerFailed, WorkerLost
from ..ray.protocol import GroupState


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def fake_machine(name: str, labels: Mapping[str, str] | None = None, **amounts: float) -> Machine:
    """Describe a machine in one line: `fake_machine("a", CPU=4, labels={"zone": "z1"})`."""
    return Machine(
        id=MachineId(name), hostname=name, total=Resources.of(amounts), labels=labels or {}
    )


@dataclass
class Faults:
    """Planned faults: the nth call of a method, over all workers, kills its worker."""

    _planned: set[tuple[str, int]] = field(default_factory=set)
    _calls: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def kill_at(self, method: str, nth: int) -> None:
        """Lose the worker that begins the nth call of the method, counted from one."""
        self._planned.add((method, nth))

    def strike(self, method: str) -> bool:
        """Count a call, and say whether its worker dies."""
        with self._lock:
            self._calls[method] += 1
            return (method, self._calls[method]) in self._planned


@dataclass(frozen=True)
class Stored:
    value: Any


_AT_WORK: WeakSet[FakeWorker] = WeakSet()


def ended_workers_are_done(timeout_s: float) -> list[str]:
    """Wait for what ended workers still compute, and name those that do so after that time.

    A process that is killed computes no more; a thread goes on, and shares PyTorch's generator.
    """
    return [worker.name for worker in list(_AT_WORK) if not worker.is_done(timeout_s)]


class FakeWorker:
    """An object with its own thread, which runs calls in order until it is ended."""

    def __init__(
        self, name: str, vnode: VNode, cls: type[Any], args: Sequence[Any], faults: Faults
    ) -> None:
        self.name, self.vnode = name, vnode
        self._faults = faults
        self._waiting: deque[tuple[Future[Any], str, tuple[Any, ...]]] = deque()
        self._running: Future[Any] | None = None
        self._end: FabricError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(cls, args), name=name, daemon=True)
        _AT_WORK.add(self)
        self._thread.start()

    def call(self, method: str, /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            end = self._end
            if end is None:
                self._waiting.append((future, method, args))
                self._changed.notify_all()
        if end is not None:
            future.set_exception(end)
        return future

    def kill(self) -> None:
        self.end(WorkerLost(self.name, "it was killed"))

    def end(self, error: FabricError) -> None:
        """Fail all present and later calls; only the first end counts."""
        with self._changed:
            if self._end is not None:
                return
            self._end = error
            failing = [self._running] if self._running is not None else []
            failing += [future for future, _, _ in self._waiting]
            self._running = None
            self._waiting.clear()
            self._changed.notify_all()
        for future in failing:
            future.set_exception(error)

    def is_done(self, timeout_s: float) -> bool:
        """Wait until an ended worker computes no more; True at once for one that was not ended."""
        if self._end is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self, cls: type[Any], args: Sequence[Any]) -> None:
        try:
            instance = cls(*_resolved(args))
        except Exception as error:
            self.end(_failed(self.name, "__init__", error))
            return
        while (call := self._next()) is not None:
            future, method, call_args = call
            result, failure = None, None
            try:
                if self._faults.strike(method):
                    self.end(WorkerLost(self.name, f"it was made to die in {method!r}"))
                    return
                if method == "__init__":  # it is made anew, and lets go of what it was
                    vars(instance).clear()
                result = getattr(instance, method)(*_resolved(call_args))
            except Exception as error:
                failure = _failed(self.name, method, error)
            with self._changed:
                if self._running is not future:
                    return
                self._running = None
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)

    def _next(self) -> tuple[Future[Any], str, tuple[Any, ...]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._end is not None)
            if self._end is not None:
                return None
            call = self._waiting.popleft()
            self._running = call[0]
            return call


def _resolved(args: Sequence[Any]) -> list[Any]:
    return [arg.value if isinstance(arg, Stored) else arg for arg in args]


def _failed(worker: str, method: str, error: Exception) -> WorkerFailed:
    trace = "".join(traceback.format_exception(error))
    failure = WorkerFailed(worker, method, type(error).__name__, str(error), trace)
    failure.__cause__ = error
    return failure


class FakeGroup:
    def __init__(
        self, cluster: FakeCluster, name: str, bundles: Sequence[Bundle], policy: SchedulingPolicy
    ) -> None:
        self.name, self.bundles, self.policy = name, tuple(bundles), policy
        self.hosts: tuple[MachineId, ...] | None = None
        self.workers: list[FakeWorker] = []
        self.removed = False
        self._cluster = cluster

    def state(self) -> GroupState:
        if self.removed:
            return GroupState.REMOVED
        if self.hosts is not None:
            return GroupState.READY
        fits = fit(self.bundles, self.policy, self._cluster.machines())
        return GroupState.PENDING if isinstance(fits, Placement) else GroupState.INFEASIBLE

    def wait(self, timeout_s: float) -> tuple[MachineId, ...] | None:
        return self._cluster.wait(self, timeout_s)

    def start_worker(
        self, vnode: VNode, bundle: int, name: str, cls: type[Any], args: Sequence[Any]
    ) -> FakeWorker:
        worker = FakeWorker(name, vnode, cls, args, self._cluster.faults)
        self.workers.append(worker)
        return worker

    def remove(self) -> None:
        self._cluster.remove(self)


class FakeCluster:
    def __init__(self, machines: Sequence[Machine], clock: ManualClock | None = None) -> None:
        self.faults = Faults()
        self._machines = tuple(machines)
        self._clock = clock
        self._groups: dict[str, FakeGroup] = {}
        self._changed = threading.Condition()

    def machines(self) -> tuple[Machine, ...]:
        return self._machines

    def groups(self) -> tuple[FakeGroup, ...]:
        return tuple(self._groups.values())

    def create_group(
        self, name: str, bundles: Sequence[Bundle], policy: SchedulingPolicy
    ) -> FakeGroup:
        with self._changed:
            if name in self._groups:
                raise GangExists(name)
            group = self._groups[name] = FakeGroup(self, name, bundles, policy)
            self._place_waiting()
        return group

    @property
    def shared(self) -> bool:
        return False

    def adopt_group(self, id: str, bundles: Sequence[Resources]) -> FakeGroup:
        raise FabricError("a fake cluster has no manager, so there are no groups of its to adopt")

    def worker_niceness(self) -> int | None:
        return os.nice(0)

    def put(self, value: Any) -> Stored:
        return Stored(value)

    def wait(self, group: FakeGroup, timeout_s: float) -> tuple[MachineId, ...] | None:
        """Wait in real time, or move the manual clock to the deadline at once."""
        with self._changed:
            if self._clock is None:
                self._changed.wait_for(lambda: group.hosts is not None, timeout_s)
            elif group.hosts is None:
                self._clock.advance(timeout_s)
            return group.hosts

    def remove(self, group: FakeGroup) -> None:
        with self._changed:
            group.removed, group.hosts = True, None
            self._groups.pop(group.name, None)
            self._place_waiting()
        for worker in group.workers:
            worker.end(WorkerLost(worker.name, "its vnode was given back"))

    def kill_worker(self, name: str) -> None:
        for group in self.groups():
            for worker in group.workers:
                if worker.name == name:
                    worker.end(WorkerLost(name, "its process died"))
                    return
        raise LookupError(f"no worker named {name!r}")

    def _place_waiting(self) -> None:
        for group in self._groups.values():
            if group.hosts is None:
                found = fit(group.bundles, group.policy, self._free())
                if isinstance(found, Placement):
                    group.hosts = found.machines
        self._changed.notify_all()

    def _free(self) -> list[Machine]:
        free = {machine.id: machine for machine in self._machines}
        for group in self._groups.values():
            for host, bundle in zip(group.hosts or (), group.bundles, strict=False):
                free[host] = replace(free[host], total=free[host].total - bundle.resources)
        return list(free.values())
