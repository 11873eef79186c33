"""A site as the mediator sees it, and the one that lives in the mediator's own process."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from fedpilot.fabric import (
    FabricError,
    FixedSizeNode,
    FixedSizeNodes,
    Gang,
    SchedulingPolicy,
    VirtualCluster,
    VirtualClusterManager,
)

from .core.reservation import Answer, Promise, Refusal
from .workload import Notify, Payload, SiteWorkload, load_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """A site's part of a gang: so many vnodes of one size."""

    name: str
    resources: Mapping[str, float]
    """Of one vnode, in Ray's words: `CPU`, `GPU`, `memory` (bytes), custom ones."""
    workers: int | None = None
    """Vnodes; None for as many as fit, up to `at_most`."""
    at_most: int = 16
    policy: SchedulingPolicy = SchedulingPolicy.SPREAD
    timeout_s: float = 60.0


class Site(Protocol):
    """One Ray cluster that takes part: first reserved, then worked with."""

    @property
    def name(self) -> str: ...

    def prepare(self, request: GangRequest) -> Answer:
        """Reserve this site's part of a gang, or say why not."""

    def commit(self) -> None:
        """The whole gang stands: keep what was promised."""

    def release(self) -> None:
        """Give back what was promised or committed, with everything on it."""

    def check(self, workload: str, spec: Payload) -> None:
        """Load a workload and let it check its spec; raises what is wrong with it."""

    def start(self, notify: Notify) -> None:
        """Start the checked workload on the committed vnodes."""

    def deliver(self, order: Payload) -> str:
        """Hand an order to the workload; the ticket of its answer."""

    def collect(self, ticket: str) -> Future[Payload]:
        """The answer to an order."""


class InProcessSite:
    """A site in this very process: local mode's transport is a function call."""

    def __init__(self, name: str, manager: VirtualClusterManager) -> None:
        self._name = name
        self._manager = manager
        self._gang: Gang | None = None
        self._workload: SiteWorkload | None = None

    @property
    def name(self) -> str:
        """How the site is called."""
        return self._name

    def prepare(self, request: GangRequest) -> Answer:
        """Reserve the vnodes as one virtual cluster of fixed size."""
        node = FixedSizeNode(resources=request.resources)
        workers = request.workers
        if workers is None:
            workers = max(1, min(request.at_most, self._manager.most(node, request.policy)))
        group = FixedSizeNodes(nodes=(node,) * workers, scheduling_policy=request.policy)
        try:
            self._gang = self._manager.reserve(
                VirtualCluster(fixed_size_nodes=(group,)),
                name=f"{request.name}-{self._name}",
                timeout_s=request.timeout_s,
            )
        except FabricError as error:
            return Refusal(self._name, str(error))
        return Promise(self._name, len(self._gang.vnodes))

    def commit(self) -> None:
        """Nothing to do: in this process a promise cannot lapse."""

    def release(self) -> None:
        """End the workload, then give the gang back."""
        gang, self._gang = self._gang, None
        with ExitStack() as releasing:
            if gang is not None:
                releasing.callback(gang.release)
            if self._workload is not None:
                releasing.callback(self._workload.stop)

    def check(self, workload: str, spec: Payload) -> None:
        """Load the workload and let it check its spec."""
        self._workload = load_workload(workload)
        self._workload.prepare(spec)

    def start(self, notify: Notify) -> None:
        """Start the workload on the gang."""
        if self._workload is None or self._gang is None:
            raise RuntimeError("a site is checked and reserved before its workload starts")
        self._workload.start(self._gang, notify)

    def deliver(self, order: Payload) -> str:
        """Hand an order to the workload."""
        return self._running().deliver(order)

    def collect(self, ticket: str) -> Future[Payload]:
        """The answer to an order."""
        return self._running().collect(ticket)

    def _running(self) -> SiteWorkload:
        if self._workload is None:
            raise RuntimeError("the site's workload has not been started")
        return self._workload
