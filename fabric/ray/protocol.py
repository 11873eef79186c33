"""What the fabric needs of a Ray cluster: the protocols that Ray and its fake implement."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from enum import StrEnum
from typing import Any, Protocol

from ..core.records import Bundle, Machine, MachineId, SchedulingPolicy, VNode
from ..core.resources import Resources


class GroupState(StrEnum):
    """The state of a group of bundles."""

    PENDING = "pending"
    """It fits the cluster, but other work holds the resources."""
    INFEASIBLE = "infeasible"
    """It does not fit the present cluster, and waits for machines that may never come."""
    READY = "ready"
    """All its bundles are reserved."""
    REMOVED = "removed"
    """It holds nothing, for good."""


class Worker(Protocol):
    """A live object in its own process, which holds all resources of one vnode."""

    @property
    def name(self) -> str: ...

    @property
    def vnode(self) -> VNode: ...

    def call(self, method: str, /, *args: Any) -> Future[Any]:
        """Call a method; calls run one at a time, in the order in which they were made.

        `__init__` makes the object anew, without anything that it held.

        The future ends in the result, `WorkerFailed`, `WorkerLost` or `NotInstalled`. Its callbacks
        run in a thread of the cluster and must not block. It cannot be cancelled.
        """

    def kill(self) -> None:
        """End the process at once; may be called again."""


class Group(Protocol):
    """Bundles that are reserved together or not at all."""

    def state(self) -> GroupState: ...

    def wait(self, timeout_s: float) -> tuple[MachineId, ...] | None:
        """Wait until all bundles are reserved, and return their machines; None on timeout."""

    def start_worker(
        self, vnode: VNode, bundle: int, name: str, cls: type[Any], args: Sequence[Any]
    ) -> Worker:
        """Start `cls(*args)` in a process on the bundle, without waiting for it."""

    def remove(self) -> None:
        """Release the bundles and end all work on them; may be called again."""


class Cluster(Protocol):
    """One Ray cluster."""

    def machines(self) -> tuple[Machine, ...]:
        """The live machines."""

    def create_group(self, name: str, bundles: Sequence[Bundle], policy: SchedulingPolicy) -> Group:
        """Request bundles. GangExists if the name is taken."""

    @property
    def shared(self) -> bool:
        """Whether others also use it, so that its manager decides about resources."""

    def adopt_group(self, id: str, bundles: Sequence[Resources]) -> Group:
        """A handle of a group that a shared cluster's manager made, and will remove."""

    def worker_niceness(self) -> int | None:
        """The niceness of workers on this machine; None if unknown."""

    def put(self, value: Any) -> Any:
        """Store a value once, and return a handle that replaces it in the arguments of calls."""
