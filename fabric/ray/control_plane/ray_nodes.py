"""RayNodes: the nodes of a Ray cluster, asked from outside of it, with a token of their own.

One process can ask several Ray clusters, unlike Ray's own calls, which know one token and one
cluster. It imports Ray's messages on import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from ...core.records import Bundle, BundleGroup, MachineId, SchedulingPolicy
from ...core.resources import Resources
from ...core.selectors import Condition, In, NotIn
from ...errors import ClusterRefuses, ClusterUnreachable
from .. import private_ray
from .resource_view import offered

autoscaler = private_ray.generated("autoscaler_pb2")
common = private_ray.generated("common_pb2")
tables = private_ray.generated("gcs_pb2")
messages = private_ray.generated("gcs_service_pb2")

TIMEOUT_S = 5.0
REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A raylet that the control plane counts as alive."""

    id: MachineId
    name: str
    """The name that it was started with."""
    head: bool
    draining: bool
    total: Resources
    available: Resources
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    idle_s: float = 0.0
    """How long no work has been on it; 0 while there is some."""
    host: str = ""
    """The name of the computer that it runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayView:
    """What the control plane of a Ray cluster knows now."""

    nodes: Mapping[str, RayNode] = field(default_factory=dict, hash=False)
    """The living ones, by name."""
    namesakes: tuple[RayNode, ...] = ()
    """The living ones whose name another of `nodes` has; fedpilot starts none such."""
    pending: tuple[BundleGroup, ...] = ()
    """The placement groups, tasks and actors that Ray has no room for, each whole."""


class RayNodes:
    """The control plane of one Ray cluster, at a fixed address."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        grpcs = private_ray.generated("gcs_service_pb2_grpc")
        self._nodes = grpcs.NodeInfoGcsServiceStub(self._channel)
        self._values = grpcs.InternalKVGcsServiceStub(self._channel)
        scaling = private_ray.generated("autoscaler_pb2_grpc")
        self._states = scaling.AutoscalerStateServiceStub(self._channel)

    async def look(self) -> RayView:
        """The nodes, and what waits for more. ClusterUnreachable."""
        alive = messages.GetAllNodeInfoRequest(state_filter=tables.GcsNodeInfo.ALIVE)
        nodes, state = await asyncio.gather(
            self._ask(self._nodes.GetAllNodeInfo, alive),
            self._ask(
                self._states.GetClusterResourceState,
                autoscaler.GetClusterResourceStateRequest(),
            ),
        )
        seen = state.cluster_resource_state
        states = {each.node_id: each for each in seen.node_states}
        living = [self._node(node, states.get(node.node_id)) for node in nodes.node_info_list]
        named = {node.name: node for node in living}
        return RayView(
            nodes=named,
            namesakes=tuple(node for node in living if named[node.name] is not node),
            pending=tuple(_pending(seen)),
        )

    async def value(self, key: bytes) -> bytes | None:
        """A value of Ray's key-value store; None if there is none. ClusterUnreachable."""
        answer = await self._ask(self._values.InternalKVGet, messages.InternalKVGetRequest(key=key))
        return bytes(answer.value) if answer.value else None

    def _node(self, node: Any, state: Any) -> RayNode:
        idle_s, draining = 0.0, False
        available: Mapping[str, float] = {}
        if state is not None:
            draining = state.status == autoscaler.NodeStatus.DRAINING
            available = state.available_resources
            if state.status == autoscaler.NodeStatus.IDLE:
                idle_s = state.idle_duration_ms / 1000
        return RayNode(
            id=MachineId(node.node_id.hex()),
            name=node.node_name,
            head=node.is_head_node,
            draining=draining,
            total=offered(node.resources_total),
            available=offered(available),
            labels=dict(node.labels),
            idle_s=idle_s,
            host=node.node_manager_hostname,
        )

    async def drain(self, node: MachineId, until_s: float, reason: str) -> str:
        """Let a node get no new work; the refusal of Ray, or an empty text."""
        asked = autoscaler.DrainNodeRequest(
            node_id=bytes.fromhex(node),
            reason=autoscaler.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION,
            reason_message=reason,
            deadline_timestamp_ms=int(1000 * until_s),
        )
        answer = await self._ask(self._states.DrainNode, asked)
        return "" if answer.is_accepted else str(answer.rejection_reason_message)

    async def bury(self, node: MachineId, reason: str) -> None:
        """Tell Ray at once that a node is dead, which it would notice by itself after 15 s."""
        info = common.NodeDeathInfo(
            reason=common.NodeDeathInfo.UNEXPECTED_TERMINATION, reason_message=reason
        )
        asked = messages.UnregisterNodeRequest(node_id=bytes.fromhex(node), node_death_info=info)
        await self._ask(self._nodes.UnregisterNode, asked)

    async def close(self) -> None:
        await self._channel.close()

    async def _ask(self, call: Any, request: Any) -> Any:
        try:
            return await call(request, timeout=TIMEOUT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            reason = error.details() or str(error.code())
            if error.code() in REFUSALS:
                raise ClusterRefuses(self.address, reason) from error
            raise ClusterUnreachable(self.address, reason) from error


_POLICIES = ("STRICT_SPREAD", "STRICT_PACK", "SPREAD", "PACK")


def _pending(state: Any) -> Iterator[BundleGroup]:
    """What Ray has no room for. A placement group's policy is in words in its details."""
    for each in state.pending_resource_requests:
        if bundle := _bundle(each.request):
            for _ in range(each.count):
                yield BundleGroup(bundles=(bundle,), policy=SchedulingPolicy.PACK)
    for gang in state.pending_gang_resource_requests:
        ways = getattr(gang, "bundle_selectors", ())  # older Rays lack it
        asked = ways[0].resource_requests if ways else gang.requests
        bundles = tuple(b for b in map(_bundle, asked) if b is not None)
        policy = next((name for name in _POLICIES if name in gang.details), "PACK")
        if bundles:
            yield BundleGroup(bundles=bundles, policy=SchedulingPolicy(policy))


def _bundle(request: Any) -> Bundle | None:
    """What one request needs; None for work in a placement group, which has its places."""
    if any("_group_" in name for name in request.resources_bundle):
        return None
    selector: dict[str, Condition] = {}
    for each in getattr(request, "label_selectors", ())[:1]:  # older Rays lack it
        for one in each.label_constraints:
            is_in = one.operator == common.LabelSelectorOperator.LABEL_OPERATOR_IN
            condition = In if is_in else NotIn
            selector[one.label_key] = condition(*one.label_values)
    return Bundle(resources=offered(request.resources_bundle), selector=selector)
