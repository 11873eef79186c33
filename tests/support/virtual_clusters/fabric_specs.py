"""Specs, labels and conditions of all kinds, for tests of what must hold for any of them."""

from __future__ import annotations

from hypothesis import strategies as st

from fedpilot.fabric import (
    DoesNotExist,
    Exists,
    FixedSizeNode,
    FixedSizeNodes,
    In,
    NotIn,
    SchedulingPolicy,
    VirtualCluster,
)
from fedpilot.fabric.core.resources import UNIT

words = st.sampled_from(["a", "b", "A100", "zone-1", "x.y_z", "0"])
conditions = st.one_of(
    st.lists(words, min_size=1, max_size=3).map(lambda values: In(*values)),
    st.lists(words, min_size=1, max_size=3).map(lambda values: NotIn(*values)),
    st.just(Exists()),
    st.just(DoesNotExist()),
)
labels = st.dictionaries(words, words, max_size=3)

amounts = st.one_of(
    st.integers(1, 10 * UNIT).map(lambda units: units / UNIT), st.integers(1, 10**13).map(float)
)
names = st.sampled_from(["CPU", "memory", "disk", "accelerator:A100"])
resources = st.dictionaries(names, amounts, min_size=1, max_size=3)

nodes = st.builds(
    FixedSizeNode,
    resources=resources,
    parent_node_selector=st.dictionaries(words, conditions, max_size=2),
    labels=labels,
)
policies = st.sampled_from(SchedulingPolicy)
groups = st.builds(
    FixedSizeNodes,
    nodes=st.lists(nodes, min_size=1, max_size=3).map(tuple),
    scheduling_policy=policies,
) | st.builds(
    lambda node, least, more, policy: FixedSizeNodes(
        nodes=(node,) * least, scheduling_policy=policy, max_nodes=least + more
    ),
    nodes,
    st.integers(1, 3),
    st.integers(0, 5),
    policies,
)


@st.composite
def specs(draw: st.DrawFn) -> VirtualCluster:
    """Any virtual cluster."""
    least = draw(st.dictionaries(names, amounts, max_size=3))
    more = draw(st.dictionaries(names, st.integers(0, 10 * UNIT), max_size=3))
    return VirtualCluster(
        flex_resource_min=least,
        max_actors_without_resources=draw(st.none() | st.integers(0, 1000)),
        flex_resource_max={n: least.get(n, 0.0) + extra / UNIT for n, extra in more.items()},
        fixed_size_nodes=tuple(draw(st.lists(groups, max_size=3))),
    )
