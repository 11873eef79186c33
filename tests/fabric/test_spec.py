"""A spec without meaning is refused where it is written; one we cannot reserve yet, later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedpilot.fabric import (
    FixedSizeNode,
    FixedSizeNodes,
    SchedulingPolicy,
    SpecError,
    VirtualCluster,
)

CPU = FixedSizeNode(resources={"CPU": 1})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(
            lambda: FixedSizeNode(resources={}), "at least one amount", id="a node needs resources"
        ),
        pytest.param(
            lambda: FixedSizeNode(resources={"CPU": 0}), "at least one", id="zero is no resource"
        ),
        pytest.param(
            lambda: FixedSizeNode(resources={"CPU": -1}), "zero or more", id="nor is less than zero"
        ),
        pytest.param(
            lambda: FixedSizeNode(resources={"GPU": 1.5}),
            "whole GPUs",
            id="one and a half GPUs cannot be had",
        ),
        pytest.param(
            lambda: FixedSizeNode(resources={"CPU": 1}, parent_node_selector={"zone": "in("}),
            "zone: expected",
            id="a selector that cannot be read is refused",
        ),
        pytest.param(lambda: VirtualCluster().groups(), "at least one node", id="no groups at all"),
        pytest.param(
            lambda: VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=()),)).groups(),
            "at least one node",
            id="a group without nodes",
        ),
        pytest.param(
            lambda: VirtualCluster(
                flex_resource_min={"CPU": 1}, fixed_size_nodes=(FixedSizeNodes(nodes=(CPU,)),)
            ).groups(),
            "flexible resources are not supported yet",
            id="flexible minimum",
        ),
        pytest.param(
            lambda: VirtualCluster(
                flex_resource_max={"CPU": 8}, fixed_size_nodes=(FixedSizeNodes(nodes=(CPU,)),)
            ).groups(),
            "flexible resources are not supported yet",
            id="flexible maximum",
        ),
    ],
)
def test_refusals(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        make()


def test_a_spec_reads_well() -> None:
    nodes = FixedSizeNodes(
        nodes=(
            *(FixedSizeNode(resources={"CPU": 1}),) * 2,
            FixedSizeNode(resources={"GPU": 1}, parent_node_selector={"zone": "!z1"}),
        ),
        scheduling_policy=SchedulingPolicy.STRICT_SPREAD,
    )
    assert str(VirtualCluster(fixed_size_nodes=(nodes,))) == (
        "2 nodes of 1 CPU and 1 node of 1 GPU where zone=!z1 (STRICT_SPREAD)"
    )
