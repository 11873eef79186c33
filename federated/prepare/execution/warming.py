"""Compiles the kernels that workers would otherwise compile in their first round."""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np
import torch
from torch import nn

from fedpilot.mediator.cli.compiling import mark

from ...config.schema import Training
from ...core.execution.facts import Execution, ExecutionKind
from ...core.population.partitions.bootstrap import bootstrap
from ...core.state import TensorRole
from ...core.sums.distances import squared_distances
from ...core.topology.edges import Edges
from ...core.topology.mixing import metropolis
from ...engine.compiled.kernels import are_ready
from ...engine.compiled.mixing import add_up, largest, mix
from ...engine.sums.summing import RunningSum
from ...engine.trainers.resident import ResidentModule
from ...engine.trainers.trainer_factory import TrainerFactory
from ...engine.trainers.trainers import Trainers
from ...engine.training.modules import loss_function
from ...engine.training.samples import Samples
from ...engine.training.training import Start

CPU = torch.device("cpu")
CLIENTS = 2


def warm() -> str:
    """Compile the kernels of dense layers in float32 and of exact sums; reports the time."""
    there, began = are_ready(torch.float32), time.perf_counter()
    x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    training = Training(batch_size=2)
    samples = Samples(x, y, bootstrap(y, CLIENTS, 2, 0), training, seed=0, device=CPU)
    module = nn.Linear(2, 2)
    resident = ResidentModule(module, loss_function("cross_entropy"), CPU)
    trainers = Trainers(
        TrainerFactory(resident=resident, samples=samples, training=training, seed=0, device=CPU)
    )
    trainer = trainers.checked(Execution(ExecutionKind.COMPILED, CLIENTS))
    model = {name: tensor.clone() for name, tensor in resident.tensors().items()}
    chunk, begun = samples.chunk(range(CLIENTS)), Start(model, training.learning_rate)
    for exponent in (20, 60):  # sums in float64, and sums that leave it
        summing = RunningSum(model, dict.fromkeys(model, TensorRole.TRAINED), str)
        summing.begin(model, dict.fromkeys(model, exponent))
        for trained in trainer.train(chunk, 1, begun, {}):
            summing.add(chunk.clients, trained.tensors, chunk.sizes, trained.losses)
    pair = metropolis(Edges.undirected(2, [(0, 1)]))
    rows, zeros = np.ones((2, 2), dtype=np.float32), np.zeros(2, np.float32)
    for most in (1, 1 << 60):  # the same two for mixtures
        mix(rows, zeros, pair, 0, most, np.empty_like(rows))
    add_up(rows, zeros, pair, 0, np.empty((2, 2), dtype=np.int64))
    largest(rows, zeros)
    squared_distances(rows, zeros)
    with suppress(OSError):
        mark().parent.mkdir(parents=True, exist_ok=True)
        mark().touch()
    if there:
        return "there already"
    return f"compiled in {time.perf_counter() - began:.0f} s"
