"""What a placement group asks for, once it is a virtual cluster inside another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, In, SchedulingPolicy, VirtualCluster
from fedpilot.fabric.inside.nested_groups import spec_of

CPU = {"CPU": 1.0}


@pytest.mark.parametrize(
    ("asked", "policy"),
    [
        pytest.param({}, "PACK", id="Ray packs unless it is told otherwise"),
        pytest.param({"strategy": "SPREAD"}, "SPREAD", id="as it was told"),
        pytest.param(
            {"topology_strategy": {"ray.io/node-id": "STRICT_SPREAD"}},
            "STRICT_SPREAD",
            id="a topology of machines is the same in other words",
        ),
    ],
)
def test_the_strategy(asked: Mapping[str, Any], policy: str) -> None:
    (nodes,) = spec_of(bundles=[CPU, CPU], **asked).node_groups
    assert nodes.scheduling_policy is SchedulingPolicy(policy)


def test_every_bundle_is_a_node_where_its_labels_say() -> None:
    made = spec_of(
        bundles=[{"CPU": 1, "GPU": 0}, {"GPU": 1}],
        bundle_label_selector=[{}, {"zone": "in(a,b)"}],
    )
    wanted = FixedSizeNodes(
        nodes=[
            FixedSizeNode(resources=CPU),
            FixedSizeNode(resources={"GPU": 1}, parent_node_selector={"zone": In("a", "b")}),
        ]
    )
    assert made == VirtualCluster(fixed_size_nodes=[wanted])


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        pytest.param({"strategy": "NOWHERE"}, "Invalid placement group strategy", id="strategy"),
        pytest.param({"lifetime": "long"}, "lifetime", id="lifetime"),
        pytest.param({"bundles": []}, "non-empty list", id="no bundles"),
        pytest.param({"bundles": [{"CPU": 0}]}, "only 0 values", id="an empty bundle"),
        pytest.param(
            {"bundles": [CPU, CPU], "bundle_label_selector": [{}]},
            "should equal the length",
            id="a bundle without labels",
        ),
        pytest.param(
            {"topology_strategy": {"ray.io/gpu-domain": "STRICT_PACK"}},
            "no ray.io/gpu-domain inside a virtual cluster",
            id="a topology that is not one of machines",
        ),
    ],
)
def test_what_is_not_carried_out_is_refused(asked: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        spec_of(**{"bundles": [CPU], **asked})
