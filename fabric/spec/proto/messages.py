"""Converts specs to protobuf messages and back; no other module touches the generated code.

A message is read as strictly as a document: unknown fields are refused, never dropped.
"""

from __future__ import annotations

from typing import assert_never

from google.protobuf import unknown_fields
from google.protobuf.message import DecodeError, Message

from ...core.records import SchedulingPolicy
from ...core.selectors import Condition, DoesNotExist, Exists, In, NotIn
from ...errors import SpecError
from .. import FixedSizeNode, FixedSizeNodes, VirtualCluster, located
from . import virtual_cluster_pb2 as pb


def to_bytes(spec: VirtualCluster) -> bytes:
    """The spec as a serialized `fedpilot.v1.VirtualCluster`; equal specs give equal bytes."""
    return to_message(spec).SerializeToString(deterministic=True)


def from_bytes(serialized: bytes) -> VirtualCluster:
    """The inverse of `to_bytes`. SpecError if the bytes are no spec."""
    try:
        message = pb.VirtualCluster.FromString(serialized)
    except DecodeError as error:
        raise SpecError(f"a virtual cluster: not a fedpilot.v1.VirtualCluster: {error}") from error
    return from_message(message)


def to_message(spec: VirtualCluster) -> pb.VirtualCluster:
    return pb.VirtualCluster(
        flex_resource_min=spec.flex_resource_min,
        flex_resource_max=spec.flex_resource_max,
        fixed_size_nodes=[
            pb.FixedSizeNodes(
                nodes=[_node(node) for node in nodes.nodes],
                scheduling_policy=str(nodes.scheduling_policy),
                max_nodes=nodes.max_nodes,
            )
            for nodes in spec.node_groups
        ],
        max_actors_without_resources=spec.max_actors_without_resources,
    )


def from_message(message: pb.VirtualCluster) -> VirtualCluster:
    """The inverse of `to_message`. SpecError for an invalid spec."""
    _refuse_unknown("a virtual cluster", message)
    return VirtualCluster(
        flex_resource_min=dict(message.flex_resource_min),
        flex_resource_max=dict(message.flex_resource_max),
        fixed_size_nodes=tuple(
            _group_of(f"fixed_size_nodes[{i}]", nodes)
            for i, nodes in enumerate(message.fixed_size_nodes)
        ),
        max_actors_without_resources=(
            message.max_actors_without_resources
            if message.HasField("max_actors_without_resources")
            else None
        ),
    )


def _node(node: FixedSizeNode) -> pb.FixedSizeNode:
    expressions = [
        pb.LabelMatchExpression(key=label, operator=_operator(condition))
        for label, condition in node.selector.items()
    ]
    return pb.FixedSizeNode(
        resources=node.resources,
        parent_node_selector=pb.LabelMatchExpressions(expressions=expressions),
        labels=node.labels,
    )


def _operator(condition: Condition) -> pb.LabelOperator:
    match condition:
        case In(values):
            return pb.LabelOperator(label_in=pb.LabelIn(values=values))
        case NotIn(values):
            return pb.LabelOperator(label_not_in=pb.LabelNotIn(values=values))
        case Exists():
            return pb.LabelOperator(label_exists=pb.LabelExists())
        case DoesNotExist():
            return pb.LabelOperator(label_does_not_exist=pb.LabelDoesNotExist())
        case _:
            assert_never(condition)


def _group_of(at: str, message: pb.FixedSizeNodes) -> FixedSizeNodes:
    _refuse_unknown(at, message)
    if message.scheduling_policy not in pb.SchedulingPolicy.values():
        raise SpecError(
            f"{at}.scheduling_policy: wanted one of {', '.join(SchedulingPolicy)}, "
            f"found number {message.scheduling_policy}"
        )
    policy = SchedulingPolicy(pb.SchedulingPolicy.Name(message.scheduling_policy))
    nodes = tuple(_node_of(f"{at}.nodes[{i}]", node) for i, node in enumerate(message.nodes))
    most = message.max_nodes if message.HasField("max_nodes") else None
    with located(at, "."):
        return FixedSizeNodes(nodes=nodes, scheduling_policy=policy, max_nodes=most)


def _node_of(at: str, message: pb.FixedSizeNode) -> FixedSizeNode:
    _refuse_unknown(at, message)
    selector: dict[str, Condition] = {}
    _refuse_unknown(f"{at}.parent_node_selector", message.parent_node_selector)
    for expression in message.parent_node_selector.expressions:
        here = f"{at}.parent_node_selector.{expression.key}"
        _refuse_unknown(here, expression)
        if expression.key in selector:
            raise SpecError(f"{here}: wanted one condition, found two")
        selector[expression.key] = _condition_of(here, expression.operator)
    with located(at, "."):
        return FixedSizeNode(
            resources=dict(message.resources),
            parent_node_selector=selector,
            labels=dict(message.labels),
        )


def _condition_of(at: str, message: pb.LabelOperator) -> Condition:
    try:
        match message.WhichOneof("label_operator"):
            case "label_in":
                return In(*message.label_in.values)
            case "label_not_in":
                return NotIn(*message.label_not_in.values)
            case "label_exists":
                return Exists()
            case "label_does_not_exist":
                return DoesNotExist()
    except ValueError as error:
        raise SpecError(f"{at}: {error}") from error
    raise SpecError(f"{at}: wanted an operator that this version knows, found none")


def _refuse_unknown(at: str, message: Message) -> None:
    unknown = unknown_fields.UnknownFieldSet(message)
    if len(unknown):
        number = unknown[0].field_number
        raise SpecError(f"{at}: field {number} is unknown to this version of fedpilot")
