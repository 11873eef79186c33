"""What the fabric needs of a Ray cluster, and no more: the protocols that Ray and its fake meet."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from enum import StrEnum
from typing import Any, Protocol

from ..core.records import Bundle, Machine, MachineId, SchedulingPolicy, VNode
from ..core.resources import Resources


class GroupState(StrEnum):
    """Where a group of bundles stands."""

    PENDING = "pending"
    """It fits the cluster; something else holds the resources."""
    INFEASIBLE = "infeasible"
    """It does not fit the cluster as it is, and waits for machines that may never come."""
    READY = "ready"
    """All its bundles are reserved."""
    REMOVED = "removed"
    """It holds nothing and never will again."""


class Worker(Protocol):
    """A live object in a process of its own that holds all the resources of one vnode."""

    @property
    def name(self) -> str: ...

    @property
    def vnode(self) -> VNode: ...

    def call(self, method: str, /, *args: Any) -> Future[Any]:
        """Call a method; calls run one at a time, in the order they were made.

        The future ends in the result, `WorkerFailed`, `WorkerLost` or `NotInstalled`. Its callbacks
        run in a thread of the cluster's: they must not block. It cannot be cancelled.
        """

    def kill(self) -> None:
        """End the process at once; may be called again."""


class Group(Protocol):
    """Bundles that are reserved together or not at all."""

    def state(self) -> GroupState: ...

    def wait(self, timeout_s: float) -> tuple[MachineId, ...] | None:
        """Wait until all bundles are reserved and say on which machines; None when time is up."""

    def start_worker(
        self, vnode: VNode, bundle: int, name: str, cls: type[Any], args: Sequence[Any]
    ) -> Worker:
        """Make `cls(*args)` in a process on the bundle, without waiting for it."""

    def remove(self) -> None:
        """Give the bundles back and end what runs on them; may be called again."""


class Cluster(Protocol):
    """One Ray cluster."""

    def machines(self) -> tuple[Machine, ...]:
        """List the machines that are alive."""

    def create_group(self, name: str, bundles: Sequence[Bundle], policy: SchedulingPolicy) -> Group:
        """Ask for bundles; `GangExists` when the name is taken."""

    @property
    def shared(self) -> bool:
        """Whether others use it too, so that its own manager has to be asked for room."""

    def adopt_group(self, id: str, bundles: Sequence[Resources]) -> Group:
        """A group that the manager of a shared cluster made, and ends."""

    def worker_niceness(self) -> int | None:
        """How nice the processes of workers are on this machine; None if that is not known."""

    def put(self, value: Any) -> Any:
        """Store a value once and give a handle that stands for it as an argument of a call."""
