"""What placement groups do, and the same with virtual clusters.

Each part does a thing twice: as code for placement groups has it, which goes on working inside a
virtual cluster and makes a virtual cluster inside of it; then with a `with` block instead.

    python examples/virtual_clusters/placement_groups_replaced.py   # a Ray of its own
    RAY_ADDRESS=10.0.0.1:6379 python ... [--gpu]                    # a Ray cluster that is there
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedpilot import fabric
from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, In, VirtualCluster

KIND = "GPU" if "--gpu" in sys.argv else "CPU"
ONE = {"num_cpus": 0, "num_gpus": 1} if KIND == "GPU" else {"num_cpus": 1}
BIG, SMALL = 2, 1


@ray.remote
def where() -> str:
    """The virtual cluster that this runs in."""
    return fabric.current_cluster().cluster_id()


@ray.remote
class Actor:
    """Something that stays where it is."""

    def size(self) -> float:
        """What the virtual node of this actor has."""
        return fabric.current_node().total_resources()[KIND]


def run_a_task_in_both() -> None:
    """A group of two bundles that are packed, and a task that runs in it."""
    group = placement_group([{KIND: BIG}, {KIND: SMALL}], strategy="PACK")
    assert group.wait(30)
    strategy = PlacementGroupSchedulingStrategy(placement_group=group)
    ran = ray.get(where.options(**ONE, scheduling_strategy=strategy).remote())
    children = [each.cluster_id() for each in fabric.current_cluster().child_clusters()]
    print(f"placement group: is a virtual cluster: {[ran] == children}")
    remove_placement_group(group)

    nodes = [FixedSizeNode(resources={KIND: amount}) for amount in (BIG, SMALL)]
    packed = FixedSizeNodes(nodes=nodes, scheduling_policy="PACK")
    with VirtualCluster(fixed_size_nodes=[packed]) as cluster:
        ran = ray.get(where.options(**ONE).remote())
        print(f"virtual cluster: the task ran in it: {ran == cluster.cluster_id()}")


def run_actors_in_the_first() -> None:
    """An actor in the first of two bundles, that is, on the first of two virtual nodes."""
    group = placement_group([{KIND: BIG}, {KIND: SMALL}])
    assert group.wait(30)
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    actor = Actor.options(**ONE, scheduling_strategy=strategy).remote()
    print(f"bundle 0: the node of the actor has {ray.get(actor.size.remote()):g} {KIND}")
    remove_placement_group(group)

    nodes = [
        FixedSizeNode(resources={KIND: amount}, labels={"bundle_index": str(index)})
        for index, amount in enumerate((BIG, SMALL))
    ]
    with VirtualCluster(fixed_size_nodes=[FixedSizeNodes(nodes=nodes)]):
        actor = Actor.options(**ONE, node_labels={"bundle_index": In("0")}).remote()
        print(f"label 0: the node of the actor has {ray.get(actor.size.remote()):g} {KIND}")


def main() -> None:
    """Both parts, in a virtual cluster that has room for one of them at a time."""
    local = {"num_cpus": 4, "include_dashboard": False} if "RAY_ADDRESS" not in os.environ else {}
    fabric.init(
        os.environ.get("RAY_ADDRESS", "local"),
        virtual_cluster=VirtualCluster(
            flex_resource_min={KIND: BIG + SMALL}, flex_resource_max={KIND: BIG + SMALL}
        ),
        log_to_driver=False,
        logging_level="ERROR",
        **local,
    )
    run_a_task_in_both()
    run_actors_in_the_first()
    print(f"free again: {ray.available_resources()[KIND]:g} {KIND}")
    fabric.shutdown()


if __name__ == "__main__":
    main()
