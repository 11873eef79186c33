"""Turns placement groups that are requested inside a virtual cluster into nested ones."""

from __future__ import annotations

import contextlib
import inspect
import secrets
from collections.abc import Callable
from typing import Any

from ..core.records import NODE_LABEL, SchedulingPolicy
from ..core.selectors import parse
from ..errors import NoSuchCluster
from ..ray import private_ray
from ..spec import FixedSizeNode, FixedSizeNodes, VirtualCluster
from .context import enclosing, owner_of
from .virtual_clusters import VirtualClusters

UNDERSTOOD = {
    "bundles",
    "strategy",
    "lifetime",
    "_soft_target_node_id",
    "bundle_label_selector",
    "topology_strategy",
}
"""The supported options of a placement group; a future Ray may have more."""


def make_group(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a placement group a virtual cluster inside this one; it ends with its actor or job."""
    import ray

    cluster = enclosing()
    if cluster is None:
        return original(*args, **kwargs)
    given = inspect.signature(original).bind(*args, **kwargs)
    given.apply_defaults()
    asked = {name: value for name, value in given.arguments.items() if name != "name"}
    spec = spec_of(**asked)
    id = secrets.token_hex(14) + ray.get_runtime_context().get_job_id()
    VirtualClusters().create(
        f"pg-{id[:12]}",
        spec,
        parent=cluster,
        wait_s=0.0,
        detached=asked.get("lifetime") == "detached",
        with_process=bool(ray.get_runtime_context().get_actor_id()),
        group=id,
    )
    return private_ray.group_handle(id, asked["bundles"])


def spec_of(**asked: Any) -> VirtualCluster:
    """The spec of a placement group; ValueError if Ray or a virtual cluster refuses it."""
    from ray.util.placement_group import validate_placement_group

    known = inspect.signature(validate_placement_group).parameters  # they differ between Rays
    validate_placement_group(**{name: value for name, value in asked.items() if name in known})
    if new := sorted(name for name in asked.keys() - UNDERSTOOD if asked[name]):
        raise ValueError(f"placement_group({', '.join(new)}): not known inside a virtual cluster")
    topology = dict(asked.get("topology_strategy") or {})
    strategy = topology.pop(NODE_LABEL, None) or asked.get("strategy") or SchedulingPolicy.PACK
    if topology:
        raise ValueError(f"topology_strategy: no {', '.join(topology)} inside a virtual cluster")
    bundles = asked["bundles"]
    selectors = asked.get("bundle_label_selector") or [{}] * len(bundles)
    nodes = [
        FixedSizeNode(
            resources={name: amount for name, amount in bundle.items() if amount},
            parent_node_selector={label: parse(text) for label, text in selector.items()},
        )
        for bundle, selector in zip(bundles, selectors, strict=True)
    ]
    policy = SchedulingPolicy(strategy)
    return VirtualCluster(fixed_size_nodes=[FixedSizeNodes(nodes=nodes, scheduling_policy=policy)])


def remove_group(original: Callable[..., Any], placement_group: Any) -> Any:
    """End a placement group that is a virtual cluster as one."""
    known = None if placement_group.is_empty else owner_of(placement_group.id.hex())
    if known is None or not known[2]:
        return original(placement_group)
    with contextlib.suppress(NoSuchCluster):  # it ended with its parent
        VirtualClusters().delete(known[0])
    return None
