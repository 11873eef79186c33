"""Flower's simulation (Ray backend) of the same work; prints seconds per round."""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
import time

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workload import WORKLOADS, build_model, train

client = ClientApp()
resident_model = functools.lru_cache(build_model)


@client.train()
def train_client(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    workload = WORKLOADS[message.content["config"]["workload"]]
    model = resident_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = workload.client(context.node_config["partition-id"])
    train(model, x, y)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
    )
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when each round begins."""

    marks: list[float]

    def configure_train(self, *args, **kwargs):
        self.marks.append(time.perf_counter())
        return super().configure_train(*args, **kwargs)


def main(name: str) -> None:
    workload = WORKLOADS[name]
    marks: list[float] = []
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Timed(
            fraction_train=workload.cohort / workload.population,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.population,
        )
        strategy.marks = marks
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(build_model().state_dict()),
            train_config=ConfigRecord({"workload": name}),
            num_rounds=workload.rounds,
        )
        marks.append(time.perf_counter())

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=workload.population,
        backend_config={
            "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
            "init_args": {"address": "local"},
        },
    )
    seconds = [after - before for before, after in itertools.pairwise(marks)]
    print("RESULT", json.dumps({"cohort": workload.cohort, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1])
