"""What the living nodes of a Ray say of a declared cluster that is not ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...core.ray_clusters.autoscaling import NODE_GROUP
from ...core.ray_clusters.declaration import HEAD, GroupName, MachineName
from ...core.ray_clusters.machines import MachineState
from ...core.ray_clusters.operated import OperatedMachine, SeenResource
from ...ray.control_plane.ray_nodes import RayNode

WORKERS = GroupName("workers")
"""The group of machines that carry no label of a group."""


def seen_of(nodes: Iterable[RayNode]) -> SeenResource:
    """The cluster as it is: what runs there is what was declared.

    It serves once its head is among its nodes.
    """
    there = list(nodes)
    workers = sum(not node.head and not node.draining for node in there)
    head = any(node.head for node in there)
    return SeenResource(
        ours=True,
        observed=True,
        head_ready=head,
        ready_workers=workers,
        desired_workers=workers,
        trouble="" if head else "its control plane answers, and has no head among its nodes",
    )


def counts_of(nodes: Iterable[RayNode]) -> dict[str, int]:
    """How many machines there are, by group; the head's group is always there."""
    return {HEAD: 0, **Counter(map(group_of, nodes))}


def group_of(node: RayNode) -> GroupName:
    """The group of a node: of the head, of its label `ray.io/node-group`, or `workers`."""
    if node.head:
        return HEAD
    labelled = node.labels.get(NODE_GROUP, "")
    return WORKERS if labelled in ("", HEAD) else GroupName(labelled)


def machines_of(
    nodes: Iterable[RayNode],
    before: Mapping[MachineName, OperatedMachine],
    next_number: int,
    now: float,
) -> tuple[dict[MachineName, OperatedMachine], int]:
    """The nodes as machines, with the times and numbers of those before; the next number.

    Several nodes may have one name in Ray, and a later one may get it again. So the beginning of
    the node's id is part of a machine's name.
    """
    found: dict[MachineName, OperatedMachine] = {}
    for node in sorted(nodes, key=lambda each: (not each.head, each.name, each.id)):
        name = MachineName(f"{node.name}-{node.id[:8]}")
        was = before.get(name)
        if was is None:
            number, next_number = next_number, next_number + 1
        else:
            number = was.number
        state = MachineState.DRAINING if node.draining else MachineState.READY
        machine = OperatedMachine(
            name=name,
            number=number,
            group=group_of(node),
            host=node.host,
            node=node.name,
            state=state,
            since_s=now,
            reason="Ray gives it no new work" if node.draining else "Ray uses it",
            offers=node.total.to_ray(),
            labels=dict(node.labels),
        )
        if was is not None and was.state is state:
            machine = replace(machine, since_s=was.since_s)
        found[name] = machine
    return found, next_number
