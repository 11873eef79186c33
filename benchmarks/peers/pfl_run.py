"""pfl-research (PyTorch) of the same work; under torchrun with several processes.

Prints seconds per round. Iteration 0 of pfl evaluates every sampled client twice, which no other
implementation does: this begins with iteration 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
import types

import torch
from models import build_model
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional
from workload import BATCH, WORKLOADS


class Timer(TrainingProcessCallback):
    """Notes when rounds end."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_begin(self, *, model):
        self.marks.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.marks.append(time.perf_counter())
        return False, Metrics()


def loss(self, x, y, eval=False):
    return functional.cross_entropy(self(x), y)


def metrics(self, x, y, eval=True):
    return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    workload = WORKLOADS[arguments.workload]
    workload.table  # noqa: B018  made before the clock starts

    def client(index: int) -> Dataset:
        x, y = workload.client(index)
        return Dataset([torch.from_numpy(x), torch.from_numpy(y)], user_id=str(index))

    chosen = itertools.chain.from_iterable(map(workload.chosen, itertools.count()))
    data = FederatedDataset(client, lambda: next(chosen))
    net = build_model(workload.model)
    net.loss, net.metrics = types.MethodType(loss, net), types.MethodType(metrics, net)
    timer, algorithm = Timer(), FederatedAveraging()
    algorithm._current_central_iteration = 1
    algorithm.run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1 + (arguments.rounds or workload.rounds),
            evaluation_frequency=10**9,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]
        ),
        model=PyTorchModel(
            model=net,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=workload.rate, local_batch_size=BATCH
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[timer],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("RANK", 0)) == 0:
        seconds = [after - before for before, after in itertools.pairwise(timer.marks)]
        result = {
            "cohort": workload.cohort,
            "seconds": seconds,
            "accuracy": workload.accuracy(net),
        }
        print("RESULT", json.dumps(result))
    if torch.distributed.is_initialized():  # pfl leaves its group open, which ends in an abort
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
