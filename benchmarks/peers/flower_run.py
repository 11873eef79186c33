"""Flower's simulation (Ray backend) of the same work; prints seconds per round."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

from flower_client import client
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from models import build_model
from workload import WORKLOADS


class Timed(FedAvg):
    """FedAvg that notes when each round begins."""

    marks: list[float]

    def configure_train(self, *args, **kwargs):
        self.marks.append(time.perf_counter())
        return super().configure_train(*args, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--actors", type=int, default=2, help="on two CPUs")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--evaluate", action="store_true", help="the model of every round")
    arguments = parser.parse_args()
    workload = WORKLOADS[arguments.workload]
    model = build_model(workload.model)
    marks: list[float] = []
    accuracy = {"last": 0.0}
    server = ServerApp()

    def judge(_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": workload.accuracy(model)})

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Timed(
            fraction_train=workload.cohort / workload.population,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.population,
        )
        strategy.marks = marks
        found = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(model.state_dict()),
            train_config=ConfigRecord({"workload": arguments.workload}),
            num_rounds=arguments.rounds or workload.flower_rounds,
            evaluate_fn=judge if arguments.evaluate else None,
        )
        marks.append(time.perf_counter())
        accuracy["last"] = judge(0, found.arrays)["accuracy"]

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=workload.population,
        backend_config={
            "client_resources": {"num_cpus": 2 / arguments.actors, "num_gpus": 0.0},
            # never a cluster that is there already
            "init_args": {"address": "local", "num_cpus": 2},
        },
    )
    seconds = [after - before for before, after in itertools.pairwise(marks)]
    result = {"cohort": workload.cohort, "seconds": seconds, "accuracy": accuracy["last"]}
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()
