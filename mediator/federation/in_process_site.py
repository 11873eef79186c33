"""InProcessSite: a site in this process; local mode's transport is a function call."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import ExitStack

from fedpilot.common.text.names import joined_name
from fedpilot.fabric import (
    FabricError,
    FixedSizeNode,
    FixedSizeNodes,
    Gang,
    SchedulingPolicy,
    VirtualCluster,
    VirtualClusterManager,
)

from ..core.reservation import Answer, Promise, VNodeClass
from ..errors import SiteUnreachable
from ..workload import Notify, Payload, SiteContext, SiteWorkload, load_workload
from .futures import failed, in_future
from .site import CLASS_LABEL, GangRequest, refusal


class InProcessSite:
    """A site with its gang and workload in this process."""

    def __init__(
        self, name: str, manager: VirtualClusterManager, context: SiteContext | None = None
    ) -> None:
        self.name = name
        self._context = context or SiteContext(name=name)
        self._manager = manager
        self._gang: Gang | None = None
        self._workload: SiteWorkload | None = None

    @in_future
    def prepare(self, request: GangRequest) -> Answer:
        """Reserve the vnodes as one virtual cluster, which may grow if the request says so.

        The promise is the number of vnodes that are there at once.
        """
        try:
            groups = [self._nodes(each, request.policy) for each in request.classes]
            self._gang = self._manager.reserve(
                VirtualCluster(fixed_size_nodes=tuple(groups)),
                name=joined_name(request.name, self.name),
                timeout_s=request.timeout_s,
                project=request.project,
                pool=request.pool,
                priority_class=request.priority_class,
            )
        except FabricError as error:
            return refusal(self.name, error)
        return Promise(self.name, len(self._gang.vnodes))

    def _nodes(self, asked: VNodeClass, policy: SchedulingPolicy) -> FixedSizeNodes:
        """The vnodes of one class."""
        node = FixedSizeNode(
            resources=asked.resources,
            parent_node_selector=asked.labels,
            labels={CLASS_LABEL: asked.name} if asked.name else {},
        )
        count, most = asked.least, None
        if asked.at_least is not None:
            most = asked.at_most
        elif asked.workers is None:
            count = max(1, min(asked.at_most, self._manager.most(node, policy)))
        return FixedSizeNodes(nodes=(node,) * count, scheduling_policy=policy, max_nodes=most)

    @in_future
    def commit(self) -> None:
        """Do nothing: in this process a promise cannot lapse."""

    @in_future
    def release(self) -> None:
        """End the workload, then release the gang."""
        gang, self._gang = self._gang, None
        with ExitStack() as releasing:
            if gang is not None:
                releasing.callback(gang.release)
            if self._workload is not None:
                releasing.callback(self._workload.stop)

    @in_future
    def check(self, workload: str, spec: Payload) -> None:
        """Load the workload and have it check its spec."""
        self._workload = load_workload(workload)
        self._workload.prepare(spec, self._context)

    @in_future
    def start(self, notify: Notify) -> None:
        """Start the workload on the gang."""
        if self._workload is None or self._gang is None:
            raise RuntimeError("a site is checked and reserved before its workload starts")
        self._workload.start(self._gang, notify)

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        """Hand an order to the workload; in this process no order is repeated."""
        if self._workload is None:
            raise RuntimeError("the site's workload has not been started")
        try:
            return self._workload.deliver(order)
        except SiteUnreachable as error:  # as at a remote site
            return failed(error)
