"""Measures the executions that suit a config's model on this machine, for `fedpilot tune`.

A run never measures: its execution must not depend on a clock. Users who want the last bit of speed
measure once and write the keys into the config; they are then part of the run's identity.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedpilot.common.strict_yaml.writing import with_keys

from ...config.schema import RunConfig
from ...config.schema.vnode_classes import threads_of
from ...core.execution.autotune import Timing, TunedExecution, judged
from ...core.execution.execution import SEQUENTIAL_CHUNK, sizes
from ...core.execution.facts import Execution, ExecutionKind
from ...core.population.partitions.bootstrap import bootstrap
from ...engine.choosing import refusals
from ...engine.structure import facts_of
from ...engine.trainers.probe import example
from ...engine.trainers.resident import ResidentModule
from ...engine.trainers.trainer_factory import TrainerFactory
from ...engine.trainers.trainers import Trainers
from ...engine.training.client import client_update_function
from ...engine.training.modules import loss_function, state_of, to_tensors
from ...engine.training.samples import Samples
from ...engine.training.training import Start
from ...errors import ExecutionRefused
from ..inputs.model import fresh_module
from ..inputs.run_inputs import RunInputs
from .execution_choice import circumstances, settled

CPU = torch.device("cpu")
CLIENTS_ALONE = 8
"""Clients in a measurement one by one."""
TURNS = 7


@dataclass(frozen=True, slots=True)
class Tuned:
    """The measurements, and the choice of a run without tuning."""

    verdict: TunedExecution
    chosen: Execution
    refused: dict[ExecutionKind, str]
    """Executions that do not suit the model, and why."""


def tune(config: RunConfig, inputs: RunInputs) -> Tuned:
    """Measure all suitable executions in turn, by this thread's CPU time; may raise Disturbed."""
    auto = config.training.model_copy(
        update={"execution": "auto", "chunk_size": "auto", "execution_reason": None}
    )
    config = config.model_copy(update={"training": auto})
    decided = settled(config, inputs).config.training
    chosen = Execution(ExecutionKind(decided.execution), int(decided.chunk_size))
    before = torch.get_num_threads()
    torch.set_num_threads(threads_of(config.resources.classes[0]))
    try:
        trainers, samples, model = _worker(config, inputs)
        ways, refused = _ways(config, inputs, trainers)
        work = {way: _work(trainers, samples, model, way, auto.batch_size) for way in ways}
        timings: dict[Execution, list[Timing]] = {way: [] for way in ways}
        for turn in range(TURNS + 1):
            for way in ways:  # in turn, so that a disturbance affects all
                timing = work[way]()
                if turn:  # the first turn warms up
                    timings[way].append(timing)
    finally:
        torch.set_num_threads(before)
    return Tuned(judged(timings), chosen, refused)


def write(path: Path, execution: Execution) -> None:
    """Set the keys in a config file; its comments stay."""
    keys = {"execution": str(execution.kind), "chunk_size": execution.chunk_size}
    text = with_keys(
        path.read_text(), "training", keys, without=("execution_model", "execution_reason")
    )
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(text)
    aside.replace(path)


def _worker(
    config: RunConfig, inputs: RunInputs
) -> tuple[Trainers, Samples, dict[str, torch.Tensor]]:
    """A worker's trainers, with clients of medium size that draw from the data."""
    data, training = inputs.data, config.training
    module = fresh_module(config, data)
    batch = training.batch_size
    count = min(circumstances(config, inputs).cohort, 64)
    clients = bootstrap(data.y, count, (batch, 3 * batch), config.run.random_seed)
    samples = Samples(data.x, data.y, clients, training, seed=config.run.random_seed, device=CPU)
    loss = loss_function(training.loss_function)
    resident = ResidentModule(module, loss, CPU, example=samples.x[:2].clone())
    trainers = Trainers(
        TrainerFactory(
            resident=resident,
            samples=samples,
            training=training,
            seed=config.run.random_seed,
            device=CPU,
            update=client_update_function(training.client_update),
        )
    )
    return trainers, samples, resident.laid_out(to_tensors(state_of(module), CPU))


def _ways(
    config: RunConfig, inputs: RunInputs, trainers: Trainers
) -> tuple[list[Execution], dict[ExecutionKind, str]]:
    """The sequential execution and all others with the same results; and the refused ones."""
    alone = Execution(ExecutionKind.SEQUENTIAL, SEQUENTIAL_CHUNK)
    where = circumstances(config, inputs)
    kinds = [kind for kind in ExecutionKind if kind is not ExecutionKind.SEQUENTIAL]
    made_of = trainers.factory
    if (why := made_of.why_not_together()) is not None:
        return [alone], dict.fromkeys(kinds, why)
    module, x = made_of.resident.module, made_of.samples.x
    like = example(module, tuple(x.shape[1:]), x.dtype)
    try:
        facts = facts_of(module, like)
    except Exception:
        return [alone], dict.fromkeys(kinds, "its code fails on samples of random numbers")
    ways, refused = [alone], refusals(kinds, module, config.training, where, facts, like)
    for kind in kinds:
        if kind in refused:
            continue
        try:
            for size in sizes(facts, where):
                trainers.checked(Execution(kind, size))
                ways.append(Execution(kind, size))
        except ExecutionRefused as error:
            refused[kind] = error.reason
    return ways, refused


def _work(
    trainers: Trainers,
    samples: Samples,
    model: dict[str, torch.Tensor],
    way: Execution,
    batch: int,
) -> Callable[[], Timing]:
    trainer = trainers.checked(way)
    most = CLIENTS_ALONE if way.kind is ExecutionKind.SEQUENTIAL else way.chunk_size
    chunk = samples.chunk(np.arange(min(most, samples.partition.number_of_clients)))
    begun = Start(model, trainers.factory.training.learning_rate)
    steps = int((-(-chunk.sizes // batch)).sum()) * trainers.factory.training.number_of_epochs

    def measure() -> Timing:
        cpu_s, wall_s = time.thread_time(), time.perf_counter()
        for _ in trainer.train(chunk, 1, begun, {}):
            pass
        cpu_s, wall_s = time.thread_time() - cpu_s, time.perf_counter() - wall_s
        return Timing(cpu_s / steps, wall_s / steps)

    return measure
