"""Two data sets at a time, each in a virtual cluster of its own, so that neither starves the other.

The job has a fixed amount of CPUs and divides it: most for the training data, the rest for the
validation data. Ray Data uses what it finds, and finds only what its virtual cluster has.

    pip install "ray[data]"
    python examples/virtual_clusters/multi_datasets.py          # a Ray of its own
    RAY_ADDRESS=10.0.0.1:6379 python ...                        # a Ray cluster that is there
"""

from __future__ import annotations

import logging
import os
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import numpy as np
import ray

from fedpilot import fabric
from fedpilot.fabric import VirtualCluster

TRAIN_CPUS, VALIDATION_CPUS = 3, 1
CPUS = TRAIN_CPUS + VALIDATION_CPUS


def exactly(cpus: float) -> VirtualCluster:
    """A virtual cluster of so many CPUs, no more and no less."""
    return VirtualCluster(flex_resource_min={"CPU": cpus}, flex_resource_max={"CPU": cpus})


def prepare(batch: dict[str, Any]) -> dict[str, Any]:
    """Square the numbers, and say in which virtual cluster that was done."""
    where = fabric.current_cluster().cluster_id()
    return {"square": batch["id"] ** 2, "where": np.full(len(batch["id"]), where)}


def total(rows: int, name: str) -> None:
    """Prepare so many rows in the current virtual cluster."""
    here = fabric.current_cluster()
    cpus = ray.cluster_resources()["CPU"]
    found = ray.data.range(rows, override_num_blocks=4).map_batches(prepare).take_all()
    inside = {row["where"] for row in found} == {here.cluster_id()}
    print(f"{name}: {len(found)} rows on {cpus:g} CPUs, all inside: {inside}")


def main() -> None:
    """Divide the CPUs of the job between two data sets."""
    local = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": CPUS, "include_dashboard": False}
    address = os.environ.get("RAY_ADDRESS", "local")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    fabric.init(address, virtual_cluster=exactly(CPUS), **local, **quiet)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with exactly(TRAIN_CPUS):
        total(3000, "training")
        with_the_rest = ray.cluster_resources()["CPU"]
    with exactly(VALIDATION_CPUS):
        total(1000, "validation")
    print(f"the job has its {ray.available_resources()['CPU']:g} CPUs back")
    assert with_the_rest == TRAIN_CPUS
    fabric.shutdown()


if __name__ == "__main__":
    main()
