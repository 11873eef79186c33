"""Placement groups that are asked for inside a virtual cluster: virtual clusters inside of it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .core.selectors import parse
from .errors import NoSuchCluster
from .spec import FixedSizeNode, FixedSizeNodes, SchedulingPolicy, VirtualCluster
from .virtual_clusters import VirtualClusters
from .where import enclosing, owner_of


def make_group(
    original: Callable[..., Any],
    bundles: Sequence[Mapping[str, float]],
    strategy: str | None = None,
    name: str = "",
    lifetime: str | None = None,
    _soft_target_node_id: str | None = None,
    bundle_label_selector: Sequence[Mapping[str, str]] | None = None,
    topology_strategy: Mapping[str, str] | None = None,
) -> Any:
    """A placement group inside a virtual cluster is a virtual cluster of its own in there."""
    cluster = enclosing()
    if cluster is None:
        return original(
            bundles,
            strategy,
            name,
            lifetime,
            _soft_target_node_id,
            bundle_label_selector,
            topology_strategy,
        )
    selectors = bundle_label_selector or [{}] * len(bundles)
    spec = VirtualCluster(
        fixed_size_nodes=[
            FixedSizeNodes(
                nodes=[
                    FixedSizeNode(
                        resources={k: v for k, v in bundle.items() if v},
                        parent_node_selector={k: parse(text) for k, text in selector.items()},
                    )
                    for bundle, selector in zip(bundles, selectors, strict=True)
                ],
                scheduling_policy=SchedulingPolicy(strategy or "PACK"),
            )
        ]
    )
    id = new_group_id()
    VirtualClusters().create(
        f"{cluster}-pg-{id[:8]}",
        spec,
        parent=cluster,
        wait_s=0.0,
        detached=lifetime == "detached",
        group=id,
    )
    return known_group(id, [dict(bundle) for bundle in bundles])


def remove_group(original: Callable[..., Any], placement_group: Any) -> Any:
    """A placement group that is a virtual cluster ends as one."""
    known = None if placement_group.is_empty else owner_of(placement_group.id.hex())
    if known is None or not known[2]:
        return original(placement_group)
    with contextlib.suppress(NoSuchCluster):  # it ended with what it was in
        VirtualClusters().delete(known[0])
    return None


def new_group_id() -> str:
    """An id for a placement group that does not exist yet."""
    import ray

    return secrets.token_hex(14) + ray.get_runtime_context().get_job_id()


def known_group(id: str, sizes: Sequence[Mapping[str, float]]) -> Any:
    """A placement group of this id, whose bundles Ray need not be asked for."""
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(
        PlacementGroupID(bytes.fromhex(id)), bundle_cache=[dict(size) for size in sizes]
    )
