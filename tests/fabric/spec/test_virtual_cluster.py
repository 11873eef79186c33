"""A spec is the same in every form; one without meaning is refused where it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from fabric_specs import specs
from fedpilot.common.strict_yaml.reading import read
from fedpilot.common.strict_yaml.writing import written
from fedpilot.fabric import (
    FixedSizeNode,
    FixedSizeNodes,
    In,
    NotIn,
    SchedulingPolicy,
    SpecError,
    VirtualCluster,
)
from fedpilot.fabric.core.records import ClusterId
from fedpilot.fabric.spec import QueueOptions

CPU = FixedSizeNode(resources={"CPU": 1})
UP_TO_4 = FixedSizeNodes(nodes=(CPU, CPU), max_nodes=4)
TEAM = ClusterId("team")


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
        pytest.param(
            lambda: FixedSizeNode(resources={"CPU": 1}, labels={"ray.io/vnode_id": "mine"}),
            "labels.ray.io/vnode_id: .* given by the fabric",
            id="some labels are given by the fabric",
        ),
        pytest.param(
            lambda: FixedSizeNode(resources={"CPU": 1}, labels={"zone": "two words"}),
            "labels.zone: expected a value",
            id="a label's value is one word",
        ),
        pytest.param(
            lambda: VirtualCluster(flex_resource_min={"CPU": 2}, flex_resource_max={"CPU": 1}),
            "flex_resource_min.CPU: wanted at most flex_resource_max, which is 1, found 2",
            id="the least is not more than the most",
        ),
        pytest.param(
            lambda: VirtualCluster(flex_resource_max={"CPU": float("inf")}),
            "flex_resource_max: CPU must be zero or more and finite",
            id="no limit is said by leaving it out",
        ),
        pytest.param(lambda: VirtualCluster().groups(), "at least one node", id="no groups at all"),
        pytest.param(
            lambda: FixedSizeNodes(nodes=()),
            "at least one node",
            id="a group without nodes",
        ),
        pytest.param(
            lambda: VirtualCluster(
                flex_resource_min={"CPU": 1}, fixed_size_nodes=(FixedSizeNodes(nodes=(CPU,)),)
            ).groups(),
            "a gang takes fixed-size nodes only",
            id="flexible minimum",
        ),
        pytest.param(
            lambda: VirtualCluster(
                flex_resource_max={"CPU": 8}, fixed_size_nodes=(FixedSizeNodes(nodes=(CPU,)),)
            ).groups(),
            "a gang takes fixed-size nodes only",
            id="flexible maximum",
        ),
        pytest.param(
            lambda: FixedSizeNodes(nodes=(CPU, CPU), max_nodes=1),
            "max_nodes: wanted a whole number from 2, the number of nodes given, to 100000, "
            "found 1",
            id="the most nodes are not fewer than the least",
        ),
        pytest.param(
            lambda: FixedSizeNodes(nodes=(CPU,), max_nodes=2.0),  # type: ignore[arg-type]
            "max_nodes: wanted a whole number from 1, .* found 2.0",
            id="nodes are counted",
        ),
        pytest.param(
            lambda: FixedSizeNodes(nodes=(CPU, FixedSizeNode(resources={"CPU": 2})), max_nodes=3),
            "max_nodes: wanted equal nodes",
            id="more nodes of what kind",
        ),
        pytest.param(
            lambda: VirtualCluster(fixed_size_nodes=(UP_TO_4,)).request("a", parent=TEAM),
            "max_nodes: wanted no more than the given nodes inside virtual cluster 'team'",
            id="nothing grows inside another virtual cluster",
        ),
    ],
)
def test_refusals(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        make()


QUEUES: list[QueueOptions] = [
    {"project": "vision"},
    {"pool": "gpus"},
    {"priority_class": "build"},
    {"preemptible": False},
]


@pytest.mark.parametrize("queue", QUEUES, ids=str)
def test_only_the_root_has_queues(queue: QueueOptions) -> None:
    request = VirtualCluster().request("a", **queue)
    assert {name: getattr(request, name) for name in queue} == queue
    with pytest.raises(SpecError, match="none of them inside virtual cluster 'team'"):
        VirtualCluster().request("a", parent=ClusterId("team"), priority=1, **queue)


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


def test_what_may_grow_reads_well_and_asks_for_its_minimum() -> None:
    spec = VirtualCluster(fixed_size_nodes=(UP_TO_4,))
    assert str(spec) == "2 nodes of 1 CPU, at most 4 (PACK)"
    request = spec.request("a")
    assert (request.minimum, request.most, request.needs.to_ray()) == (2, 4, {"CPU": 2})
    as_many = VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=(CPU, CPU), max_nodes=2),))
    assert not as_many.request("a", parent=TEAM).elastic


def test_a_spec_may_be_written_as_in_the_proposal() -> None:
    node = FixedSizeNode(resources={"GPU": 1}, parent_node_selector={"accelerator": In("A100")})
    alone = VirtualCluster(fixed_size_nodes=[node])
    group = FixedSizeNodes(nodes=[node])
    assert alone == VirtualCluster(fixed_size_nodes=(group,))
    assert alone.node_groups[0].scheduling_policy is SchedulingPolicy.PACK


def test_how_it_is_written_makes_no_difference() -> None:
    one = FixedSizeNode(
        resources={"CPU": 1, "GPU": 0}, parent_node_selector={"b": "!in(y,x)", "a": "in(x)"}
    )
    other = FixedSizeNode(
        resources={"CPU": 1.00001}, parent_node_selector={"a": In("x"), "b": NotIn("x", "y")}
    )
    assert one == other


DOCUMENT = """
{"fixed_size_nodes": [{"nodes": [{"resources": {"GPU": 1}}, {"resources": {"GPU": 1}}],
                       "scheduling_policy": "STRICT_SPREAD"},
                      {"resources": {"CPU": 2}, "parent_node_selector": {"disk": "exists()"}}],
 "flex_resource_max": {"GPU": 0}}
"""


def test_a_document() -> None:
    spec = VirtualCluster.from_dict(json.loads(DOCUMENT))
    assert str(spec) == (
        "2 nodes of 1 GPU (STRICT_SPREAD); 1 node of 2 CPU where disk=exists() (PACK); "
        "at most 0 GPU"
    )


@given(spec=specs())
def test_documents_say_all_of_a_spec(spec: VirtualCluster) -> None:
    document = spec.to_dict()
    assert VirtualCluster.from_dict(json.loads(json.dumps(document))) == spec
    assert VirtualCluster.from_dict(read(written(document), str).value) == spec


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (3, "a virtual cluster: wanted a mapping, found 3"),
        ({"flex_min": {}}, "unknown key 'flex_min', allowed are flex_resource_min, flex_resource"),
        ({"flex_resource_mim": {}}, "did you mean 'flex_resource_min'"),
        ({"flex_resource_min": [1]}, r"flex_resource_min: wanted a mapping, found \[1\]"),
        ({"flex_resource_min": {"CPU": "1"}}, "flex_resource_min.CPU: wanted a number, found '1'"),
        ({"flex_resource_min": {"CPU": True}}, "flex_resource_min.CPU: wanted a number"),
        ({"flex_resource_min": {"memory": "2 gigs"}}, "wanted bytes, such as 16GiB or 1048576"),
        ({"flex_resource_min": {"CPU": "2GB"}}, "flex_resource_min.CPU: wanted a number"),
        ({"max_actors_without_resources": -1}, "wanted a whole number from 0 .*found -1"),
        ({"max_actors_without_resources": True}, "wanted a whole number from 0 .*found True"),
        ({"fixed_size_nodes": {}}, "fixed_size_nodes: wanted a list"),
        ({"fixed_size_nodes": [{}]}, r"fixed_size_nodes\[0\].resources: wanted at least one"),
        ({"fixed_size_nodes": [{"nodes": []}]}, r"fixed_size_nodes\[0\].nodes: wanted at least"),
        (
            {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}, {"resource": {}}]}]},
            r"fixed_size_nodes\[0\].nodes\[1\]: unknown key 'resource', .*mean 'resources'",
        ),
        (
            {
                "fixed_size_nodes": [
                    {"nodes": [{"resources": {"CPU": 1}}], "scheduling_policy": "pack"}
                ]
            },
            r"fixed_size_nodes\[0\].scheduling_policy: wanted one of PACK, .*found 'pack'",
        ),
        (
            {"fixed_size_nodes": [{"resources": {"CPU": 1}, "parent_node_selector": {"a": 3}}]},
            r"fixed_size_nodes\[0\].parent_node_selector.a: wanted a condition .*found 3",
        ),
        (
            {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}], "max_nodes": "3"}]},
            r"fixed_size_nodes\[0\].max_nodes: wanted a whole number from 1, .*found '3'",
        ),
        (
            {"fixed_size_nodes": [{"resources": {"CPU": 1}, "max_nodes": 3}]},
            r"fixed_size_nodes\[0\]: unknown key 'resources', allowed are nodes, ",
        ),
        (
            {"fixed_size_nodes": [{"resources": {"CPU": 1}, "labels": {"a": 3}}]},
            r"fixed_size_nodes\[0\].labels.a: expected a value .*found 3",
        ),
    ],
)
def test_a_document_without_meaning_is_refused_by_its_key(document: Any, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        VirtualCluster.from_dict(document)


def test_memory_may_be_given_as_a_size() -> None:
    document = {"flex_resource_min": {"memory": "2GB"}, "flex_resource_max": {"memory": "4 GiB"}}
    said = {"flex_resource_min": {"memory": 2e9}, "flex_resource_max": {"memory": 4.0 * 2**30}}
    assert VirtualCluster.from_dict(document).to_dict() == said
