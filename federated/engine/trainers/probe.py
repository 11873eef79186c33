"""Checks on a fixed probe that an execution gives the results of training one by one.

Its samples are drawn by counters, for the shape and type of a sample; it holds no client's data. So
coordinator and workers check the same, and a worker with another result is at fault.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...config.schema import Training
from ...core.execution.facts import Execution, ExecutionKind
from ...core.population.partitions.bootstrap import bootstrap
from ...errors import ClientFailed
from ..compiled.chain import Dense, chain_of
from ..compiled.dense import NONE, RELU, SIGMOID, TANH
from ..stacking import NotStackable
from ..training.samples import Samples
from ..training.training import ChunkTrainer, Start
from .resident import ResidentModule
from .trainer_factory import TrainerFactory

CLIENTS = 16
POOL = 64
"""Samples that the probe's clients draw from."""
STEPS = 2
LARGEST_BATCH = 32
LARGEST_RATE = 0.05
"""Upper limit of the learning rate, so that the probe's few steps do not diverge."""
FEW = 3
"""Clients compared with training one by one."""
SEED = 0
AGREE = 1e-6
"""Largest deviation of training together in float64, relative to the largest move."""
AGREE_ABOUT = 1e-3
"""The same in the model's own type."""


Results = dict[int, dict[str, Tensor]]


def example(module: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A sample of the probe, (1, *input_shape)."""
    return _pool(module, input_shape, dtype)[:1]


def check(
    execution: Execution,
    resident: ResidentModule,
    training: Training,
    *,
    like: Tensor,
    device: torch.device,
) -> None:
    """Raise NotStackable unless a client's result is the same alone and with any others.

    `like` are samples (n, ...), used for their shape and type only.
    """
    make = partial(_Probe, resident.module, training, tuple(like.shape[1:]), like.dtype, device)
    probe = make()
    execution = Execution(execution.kind, min(execution.chunk_size, CLIENTS))
    exact = execution.kind is not ExecutionKind.COMPILED
    # A compiled chain is known layer by layer, and takes seconds to compile for another type.
    # Inexact executions are compared by plain gradients: Adam amplifies their rounding errors.
    wide, module = (
        (make(double=True), _doubled(resident)) if exact else (make(plain=True), resident)
    )
    model, model_in_wide = _model_of(resident), _model_of(module)
    expected = _alone(wide, module, model_in_wide)
    _check_mates(execution, probe, resident, model)
    together = wide.trainer(Execution(execution.kind, FEW), module)
    with _refusing():
        found = wide.results(together, 0, FEW, model_in_wide)
    _compare(expected, found, model_in_wide, AGREE if exact else AGREE_ABOUT)


class Unchecked(NotStackable):
    """The model's code does not train on random numbers, so the probe cannot check it."""


def check_chain(module: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise NotStackable unless the module computes its chain of layers; runs no kernel.

    A function may have the name of another.
    """
    wide = copy.deepcopy(module).cpu().double().train()
    x = _pool(module, input_shape, dtype).double()
    with torch.no_grad():
        expected, found = wide(x), _through(chain_of(module, input_shape), wide, x.flatten(1))
    if not torch.allclose(expected, found, rtol=AGREE, atol=AGREE):
        raise NotStackable("it computes something else than the chain of its layers")


_ACTIVATIONS: Mapping[int, Any] = {
    NONE: lambda x: x,
    RELU: torch.relu,
    TANH: torch.tanh,
    SIGMOID: torch.sigmoid,
}


def _through(chain: tuple[Dense, ...], module: nn.Module, x: Tensor) -> Tensor:
    for dense in chain:
        layer = module.get_submodule(dense.path)
        assert isinstance(layer, nn.Linear)
        x = _ACTIVATIONS[dense.activation](nn.functional.linear(x, layer.weight, layer.bias))
    return x


class _Probe:
    """Clients that are the same on every machine, and their training.

    `double` makes their samples float64, `plain` trains them with plain SGD.
    """

    def __init__(
        self,
        module: nn.Module,
        training: Training,
        input_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        *,
        double: bool = False,
        plain: bool = False,
    ) -> None:
        batch = min(training.batch_size, LARGEST_BATCH)
        changes: dict[str, Any] = {
            "number_of_epochs": 1,
            "batch_size": batch,
            "learning_rate": min(training.learning_rate, LARGEST_RATE),
        }
        if plain:
            changes |= {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
        self.training = training.model_copy(update=changes)
        self.device = device
        x = _pool(module, input_shape, dtype)
        y = np.arange(POOL, dtype=np.int64) % 2
        # The last batch is not full, so that wrong padding shows.
        sizes = (max(1, STEPS * batch - 2), max(1, STEPS * batch - 1))
        clients = bootstrap(y, CLIENTS, sizes, SEED, id_pattern="probe {index}")
        values = (x.double() if double and x.is_floating_point() else x).numpy()
        self.samples = Samples(values, y, clients, self.training, seed=SEED, device=device)

    def trainer(self, execution: Execution, resident: ResidentModule) -> ChunkTrainer:
        return TrainerFactory(
            resident=resident,
            samples=self.samples,
            training=self.training,
            seed=SEED,
            device=self.device,
        ).make(execution)

    def results(
        self, trainer: ChunkTrainer, start: int, stop: int, model: Mapping[str, Tensor]
    ) -> Results:
        """What clients `start` to `stop` become, each by its number."""
        chunk, found = self.samples.chunk(np.arange(start, stop)), Results()
        begun = Start(model, self.training.learning_rate)
        for trained in trainer.train(chunk, 0, begun, {}):
            for at, client in enumerate(chunk.clients[trained.where].tolist()):
                found[client] = {name: rows[at].clone() for name, rows in trained.tensors.items()}
        return found


def _pool(module: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Samples of numbers in [0, 1), or of tokens that every table of the module holds."""
    counter = torch.Generator().manual_seed(SEED)
    shape = (POOL, *input_shape)
    if dtype.is_floating_point:
        return torch.rand(shape, generator=counter, dtype=torch.float64).to(dtype)
    tables = (nn.Embedding, nn.EmbeddingBag)
    words = [each.num_embeddings for each in module.modules() if isinstance(each, tables)]
    return torch.randint(max(1, min(words, default=2)), shape, generator=counter).to(dtype)


def _check_mates(
    execution: Execution, probe: _Probe, resident: ResidentModule, model: Mapping[str, Tensor]
) -> None:
    last = execution.chunk_size
    trainer = probe.trainer(execution, resident)
    with _refusing():
        whole = probe.results(trainer, 0, last, model)
        for start, stop in ((0, 1), (min(1, last - 1), last), (last // 2, last)):
            part = probe.results(trainer, start, stop, model)
            for client, bits in part.items():
                if any(not torch.equal(bits[n], whole[client][n]) for n in bits):
                    raise NotStackable("a client's bits depend on its mates")


def _alone(probe: _Probe, resident: ResidentModule, model: Mapping[str, Tensor]) -> Results:
    """Results of some clients one by one; Unchecked if they allow no comparison."""
    try:
        alone = probe.trainer(Execution(ExecutionKind.SEQUENTIAL, FEW), resident)
        found = probe.results(alone, 0, FEW, model)
    except ClientFailed as error:
        raise Unchecked(f"it fails on samples of random numbers: {error.reason}") from error
    for bits in found.values():
        if not all(bool(torch.isfinite(tensor).all()) for tensor in bits.values()):
            raise Unchecked("samples of random numbers make its weights infinite")
    return found


def _compare(expected: Results, found: Results, model: Mapping[str, Tensor], agree: float) -> None:
    moved, apart = 0.0, 0.0
    for client, bits in found.items():
        for name, tensor in bits.items():
            moved = max(moved, float((expected[client][name] - model[name]).abs().max()))
            apart = max(apart, float((expected[client][name] - tensor).abs().max()))
    if not apart <= agree * moved:
        raise NotStackable("samples of a batch influence each other")
    for client, bits in expected.items():
        for name in bits.keys() - found[client].keys():
            if not torch.equal(bits[name], model[name]):
                raise NotStackable(f"training changes {name}, which is no parameter")


def _doubled(resident: ResidentModule) -> ResidentModule:
    """The module in float64 without dropout, where only wrong code makes a difference."""
    module = copy.deepcopy(resident.module).double()
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    device = next(iter(resident.trained.values())).device
    return ResidentModule(module, resident.loss, device)


def _model_of(resident: ResidentModule) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in resident.tensors().items()}


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn failures on the probe into NotStackable."""
    try:
        yield
    except ClientFailed as error:
        cause = error.__cause__
        raise NotStackable(
            str(cause) if isinstance(cause, NotStackable) else error.reason
        ) from error
