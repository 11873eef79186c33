"""Two actors that start together or not at all, each on a machine of its own.

The virtual cluster has two fixed-size nodes, strictly spread; each actor names its node by a label.
In Ray alone this takes a placement group, and bundle indices that everybody has to know.

    python examples/virtual_clusters/gang_of_actors.py          # two machines of Ray's on this host
    RAY_ADDRESS=10.0.0.1:6379 python ... [--gpu]                # a Ray cluster that is there
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray
from ray.cluster_utils import Cluster

from fedpilot import fabric
from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, In, VirtualCluster

KIND = "GPU" if "--gpu" in sys.argv else "CPU"


@contextlib.contextmanager
def two_machines() -> Iterator[str]:
    """The Ray cluster that RAY_ADDRESS names, or one of two machines, both on this host."""
    if "RAY_ADDRESS" in os.environ:
        yield os.environ["RAY_ADDRESS"]
        return
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=2)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


@ray.remote
class Actor:
    """One of the gang."""

    def where(self) -> tuple[str, str]:
        """The machine, and the index that its virtual node is labelled with."""
        node = fabric.current_node()
        return node.physical_node_id(), node.node_labels()["bundle_index"]


def main() -> None:
    """Make the gang, and ask each where it is."""
    with two_machines() as address:
        nodes = [
            FixedSizeNode(resources={KIND: 1}, labels={"bundle_index": str(i)}) for i in range(2)
        ]
        gang = FixedSizeNodes(nodes=nodes, scheduling_policy="STRICT_SPREAD")
        inside = fabric.init(
            address,
            virtual_cluster=VirtualCluster(fixed_size_nodes=[gang]),
            log_to_driver=False,
            logging_level="ERROR",
        )
        assert inside is not None
        print(f"reserved together: {len(inside.nodes())} x 1 {KIND}")
        one_each = {"num_gpus" if KIND == "GPU" else "num_cpus": 1}
        actors = [
            Actor.options(**one_each, node_labels={"bundle_index": In(str(i))}).remote()
            for i in range(2)
        ]
        places = ray.get([actor.where.remote() for actor in actors])
        for number, (machine, index) in enumerate(places):
            print(f"actor {number} is on machine {machine[:6]}, virtual node {index}")
        print(f"machines: {len({machine for machine, _ in places})}")
        fabric.shutdown()


if __name__ == "__main__":
    main()
