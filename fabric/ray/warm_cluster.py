"""WarmCluster: a cluster that keeps a released gang's places and workers for the next gang.

A worker that is idle when its gang ends waits on its place. If the next gang asks for the same
bundles, it gets the places, and `cls(*args)` is made anew in the processes there, which have
imported all that it needs. Only a class that allows it is: its `follows(before, after)` compares
the arguments of the two. Everything else is as on the cluster below.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ..core.records import Bundle, Machine, MachineId, SchedulingPolicy, VNode
from ..core.resources import Resources
from ..errors import WorkerLost
from .protocol import Cluster, Group, GroupState, Worker

Asked = tuple[tuple[Bundle, ...], SchedulingPolicy]


class WarmCluster:
    """One gang at a time; `close` ends what is kept, and not the cluster below."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: tuple[Asked, _Places] | None = None
        self._in_use: set[_Places] = set()

    def create_group(self, name: str, bundles: Sequence[Bundle], policy: SchedulingPolicy) -> Group:
        """The places that are kept, if they are like these; else others, and those kept end."""
        asked = tuple(bundles), policy
        kept = self._kept
        if kept is not None and kept[0] == asked and kept[1].group.state() is GroupState.READY:
            self._kept, places = None, kept[1]
        else:
            self.close()
            places = _Places(self._cluster.create_group(name, bundles, policy))
        self._in_use.add(places)
        return _WarmGroup(self, asked, places)

    def released(self, asked: Asked, places: _Places) -> None:
        """Keep a group's places for the next one, unless another group may wait for them."""
        self._in_use.discard(places)
        self.close()
        if self._in_use or places.group.state() is not GroupState.READY:
            places.group.remove()
        else:
            self._kept = asked, places

    def close(self) -> None:
        """End what is kept; may be called twice."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept[1].group.remove()

    def machines(self) -> tuple[Machine, ...]:
        return self._cluster.machines()

    @property
    def shared(self) -> bool:
        return self._cluster.shared

    def adopt_group(self, id: str, bundles: Sequence[Resources]) -> Group:
        return self._cluster.adopt_group(id, bundles)

    def worker_niceness(self) -> int | None:
        return self._cluster.worker_niceness()

    def put(self, value: Any) -> Any:
        return self._cluster.put(value)


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A worker of the cluster below, and what it was made of."""

    worker: Worker
    cls: type[Any]
    args: Sequence[Any]

    @property
    def can_wait(self) -> bool:
        return hasattr(self.cls, "follows")

    def can_become(self, cls: type[Any], args: Sequence[Any]) -> bool:
        return self.can_wait and self.cls is cls and bool(cls.follows(self.args, args))


class _Places:
    """A group of the cluster below, and the idle workers on it, by bundle."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.idle: dict[int, _Made] = {}


class _WarmGroup:
    def __init__(self, cluster: WarmCluster, asked: Asked, places: _Places) -> None:
        self._cluster, self._asked, self._places = cluster, asked, places
        self._removed = False
        self._workers: list[_WarmWorker] = []

    def state(self) -> GroupState:
        return GroupState.REMOVED if self._removed else self._places.group.state()

    def wait(self, timeout_s: float) -> tuple[MachineId, ...] | None:
        return None if self._removed else self._places.group.wait(timeout_s)

    def start_worker(
        self, vnode: VNode, bundle: int, name: str, cls: type[Any], args: Sequence[Any]
    ) -> Worker:
        idle = self._places.idle.pop(bundle, None)
        fits = idle is not None and idle.can_become(cls, args)
        if idle is not None and not fits:
            idle.worker.kill()
        if idle is not None and fits:
            worker = idle.worker
        else:
            worker = self._places.group.start_worker(vnode, bundle, name, cls, args)
        made = _WarmWorker(self._places, bundle, name, vnode, _Made(worker, cls, args))
        if fits:
            made.renew()
        self._workers.append(made)
        return made

    def remove(self) -> None:
        if self._removed:
            return
        self._removed = True
        for worker in self._workers:
            worker.kill()
        self._cluster.released(self._asked, self._places)


class _WarmWorker:
    """A worker that is kept when it is killed, if it is idle and well."""

    def __init__(self, places: _Places, bundle: int, name: str, vnode: VNode, made: _Made) -> None:
        self.name, self.vnode = name, vnode
        self._places, self._bundle, self._made = places, bundle, made
        self._open = 0
        self._lost = self._killed = False
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Make the object anew in its process. If that fails, the process ends."""

        def made(done: Future[Any]) -> None:
            if done.exception() is not None:
                self._made.worker.kill()

        self.call("__init__", *self._made.args).add_done_callback(made)

    def call(self, method: str, /, *args: Any) -> Future[Any]:
        with self._lock:
            killed = self._killed
            self._open += not killed
        if killed:
            answer: Future[Any] = Future()
            answer.set_exception(WorkerLost(self.name, "it has ended with its gang"))
            return answer
        asked = self._made.worker.call(method, *args)
        asked.add_done_callback(self._answered)
        return asked

    def kill(self) -> None:
        with self._lock:
            if self._killed:
                return
            self._killed = True
            keeps = self._made.can_wait and not self._open and not self._lost
        if keeps:
            self._places.idle[self._bundle] = self._made
        else:
            self._made.worker.kill()

    def _answered(self, answer: Future[Any]) -> None:
        with self._lock:
            self._open -= 1
            self._lost |= isinstance(answer.exception(), WorkerLost)
