"""A sweep of Ray Tune and a data set of Ray Data in one job, without taking from each other.

Two trials run at a time; each has two trainers, gang scheduled on a pair of fixed-size nodes. The
data set runs on flexible resources, at least one CPU and at most DATA_CPUS. Tune asks for its
placement groups as ever: each becomes a virtual cluster inside the one of the job.

    pip install "ray[tune,data]"
    python examples/virtual_clusters/tune_and_dataset.py        # a Ray of its own
    RAY_ADDRESS=10.0.0.1:6379 python ... [--gpu]                # a Ray cluster that is there
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # Tune is quiet then
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")

import ray
from ray import tune

from fedpilot import fabric
from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, VirtualCluster

KIND = "GPU" if "--gpu" in sys.argv else "CPU"
ONE = {"num_cpus": 0, "num_gpus": 1} if KIND == "GPU" else {"num_cpus": 1}
DATA_CPUS = 2
RATES = (0.1, 0.5, 1.5)


@ray.remote(**ONE)
class Trainer:
    """Walks down a parabola, as one of two that do so together."""

    def train(self, numbers: list[float], rate: float) -> tuple[float, str]:
        """The loss at the end, and what the virtual cluster that this ran in is a part of."""
        at = 10.0
        for number in numbers:
            at -= rate * (at - number)
        above = fabric.current_cluster().parent_cluster()
        return at**2, "" if above is None else above.cluster_id()


def trial(config: dict[str, Any]) -> None:
    """One point of the sweep: two trainers, one result."""
    trainers = [Trainer.remote() for _ in range(2)]
    done = ray.get([each.train.remote(config["numbers"], config["rate"]) for each in trainers])
    tune.report({"loss": sum(loss for loss, _ in done) / 2, "inside": done[0][1]})


def halve(batch: dict[str, Any]) -> dict[str, Any]:
    """What the data set does to its rows."""
    return {"number": batch["id"] / 1e6}


def pair() -> FixedSizeNodes:
    """Room for the two trainers of one trial."""
    nodes = [FixedSizeNode(resources={KIND: 1}) for _ in range(2)]
    return FixedSizeNodes(nodes=nodes, scheduling_policy="PACK")


def main() -> None:
    """Prepare the numbers, sweep the rates, and say where all of it ran."""
    local = (
        {"num_cpus": 4 + DATA_CPUS, "include_dashboard": False}
        if "RAY_ADDRESS" not in os.environ
        else {}
    )
    job = fabric.init(
        os.environ.get("RAY_ADDRESS", "local"),
        virtual_cluster=VirtualCluster(
            fixed_size_nodes=[pair(), pair()],
            flex_resource_min={"CPU": 1},
            flex_resource_max={"CPU": DATA_CPUS},
        ),
        log_to_driver=False,
        logging_level="ERROR",
        **local,
    )
    assert job is not None
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    numbers = ray.data.range(100, override_num_blocks=4).map_batches(halve).take_all()
    print(f"data set: {len(numbers)} rows")

    bundles = tune.PlacementGroupFactory([{}, {KIND: 1}, {KIND: 1}], strategy="PACK")
    with tempfile.TemporaryDirectory() as folder:
        results = tune.Tuner(
            tune.with_resources(trial, bundles),
            param_space={
                "rate": tune.grid_search(list(RATES)),
                "numbers": [row["number"] for row in numbers],
            },
            tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=2),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
        rows = [each.metrics["inside"] for each in results]
        best = results.get_best_result().config["rate"]
    inside = all(row == job.cluster_id() for row in rows)
    print(f"sweep: {len(rows)} trials, each in a virtual cluster of the job: {inside}")
    print(f"best rate: {best:g}")
    fabric.shutdown()


if __name__ == "__main__":
    main()
