"""What the lifecycle of one Ray cluster makes of the nodes that Ray knows."""

from __future__ import annotations

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import HEAD, MachineName
from fedpilot.fabric.core.ray_clusters.machines import MachineRecord, MachineState
from fedpilot.fabric.core.records import MachineId
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.ray.control_plane.ray_nodes import RayNode
from fedpilot.fabric.ray_clusters.lifecycle.cluster_lifecycle import declared_dead, ended_heads


def node(name: str, *, head: bool) -> RayNode:
    return RayNode(
        id=MachineId(name),
        name=name,
        head=head,
        draining=False,
        total=Resources(),
        available=Resources(),
    )


def machine(name: str, state: MachineState, head: str = "") -> MachineRecord:
    return MachineRecord(
        name=MachineName(name),
        number=0,
        group=HEAD,
        host="",
        template="",
        head=MachineName(head or name),
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


@pytest.mark.parametrize(
    ("known", "state", "dead"),
    [
        pytest.param(["h", "w"], MachineState.READY, False, id="it is among them"),
        pytest.param(["h"], MachineState.READY, True, id="its head is, and it is not"),
        pytest.param(["h"], MachineState.STARTING, False, id="it has not joined yet"),
        pytest.param([], MachineState.READY, False, id="the control plane has just started"),
        pytest.param(["old"], MachineState.READY, False, id="it knows an earlier head alone"),
    ],
)
def test_a_control_plane_is_believed_once_its_head_has_joined(
    known: list[str], state: MachineState, dead: bool
) -> None:
    nodes = {name: node(name, head=name != "w") for name in known}
    assert declared_dead(machine("w", state, head="h"), nodes) is dead


def test_a_head_that_its_control_plane_does_not_know_is_dead() -> None:
    assert declared_dead(machine("h", MachineState.READY), {})
