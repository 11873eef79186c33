"""What the lifecycle of one Ray cluster makes of the nodes that Ray knows."""

from __future__ import annotations

from fedpilot.fabric.core.ray_clusters.declaration import HEAD, MachineName
from fedpilot.fabric.core.ray_clusters.machines import MachineRecord, MachineState
from fedpilot.fabric.core.records import MachineId
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.ray.control_plane.ray_nodes import RayNode
from fedpilot.fabric.ray_clusters.lifecycle.cluster_lifecycle import ended_heads


def node(name: str, *, head: bool) -> RayNode:
    return RayNode(
        id=MachineId(name),
        name=name,
        head=head,
        draining=False,
        total=Resources(),
        available=Resources(),
    )


def machine(name: str, state: MachineState) -> MachineRecord:
    return MachineRecord(
        name=MachineName(name),
        number=0,
        group=HEAD,
        host="",
        template="",
        head=MachineName(name),
        state=state,
        since_s=0,
        reason="",
    )


def test_only_heads_of_which_nothing_is_left_have_ended() -> None:
    nodes = [
        node("gone", head=True),
        node("ends", head=True),
        node("serves", head=True),
        node("a worker of others", head=False),
    ]
    machines = [machine("ends", MachineState.STOPPING), machine("serves", MachineState.READY)]
    assert [each.name for each in ended_heads(nodes, machines)] == ["gone"]
