"""Trainers: makes the trainer for an execution, and tries out which execution is the fastest."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..config.schema import Training
from ..core.execution import (
    Choice,
    Execution,
    Kind,
    Measured,
    Question,
    choose,
    how_many_fit,
    sizes_to_try,
)
from ..core.sampling import Indices
from ..errors import ClientFailed
from .batched import BatchedTrainer
from .client import ClientUpdate
from .compiled.chain import chain_of
from .compiled.trainer import CompiledTrainer
from .optimizers import fused_rate
from .resident import ResidentModule
from .samples import Chunk, Samples
from .sequential import SequentialTrainer
from .stacking import NotStackable, stack
from .stacking.folded import first_names
from .training import ChunkTrainer

AS_CONFIGURED = "as the configuration says"
OWN_UPDATE = "`training.client_update` trains one client at a time"
WATCHED_WEIGHTS = "hooks on weights see one client's gradients at a time"
OWN_LOSS = "`training.loss_function` sees one client's batch at a time"
OWN_REASONS = frozenset({AS_CONFIGURED, OWN_UPDATE, WATCHED_WEIGHTS, OWN_LOSS})
"""Reasons for a choice that say the same whatever the data and the user's code."""
SEQUENTIAL_CHUNK = 64
TOO_LARGE_S = 0.25
"""A client whose few steps of a trial take this long has nothing to gain from company."""
STEPS = 3
"""Local steps of a client in a trial, at most."""
PATIENCE_S = 0.08
"""How long each way is measured."""
AGREE = 1e-6
"""How far training together may lie from training alone in float64, of the largest move."""
AGREE_ABOUT = 1e-3
"""The same in the model's own type."""


class Trainers:
    """The trainers of one worker; each is made when it is first needed, and kept."""

    def __init__(
        self,
        resident: ResidentModule,
        samples: Samples,
        training: Training,
        *,
        seed: int,
        device: torch.device,
        update: ClientUpdate | None,
    ) -> None:
        self._resident = resident
        self._samples = samples
        self._training = training
        self._seed = seed
        self._device = device
        self._update = update
        self._made: dict[Execution, ChunkTrainer] = {}

    def get(self, execution: Execution) -> ChunkTrainer:
        """The trainer of an execution; NotStackable if the model cannot be trained that way."""
        if execution not in self._made:
            self._made[execution] = self._make(
                execution, self._resident, self._samples, self._training
            )
        return self._made[execution]

    def _make(
        self, execution: Execution, resident: ResidentModule, samples: Any, training: Training
    ) -> ChunkTrainer:
        if execution.kind is Kind.SEQUENTIAL:
            return SequentialTrainer(
                resident, samples, training, seed=self._seed, update=self._update
            )
        why_not = self.why_not_together()
        if why_not is not None:
            raise NotStackable(why_not)
        module = resident.module
        if execution.kind is Kind.COMPILED:
            return self._compiled(module, execution.chunk_size, samples, training)
        stacked = stack(module, execution.kind, execution.chunk_size, rate=fused_rate(training))
        canonical = first_names(module)
        names = {
            name: canonical.get(id(parameter), name)
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if parameter.requires_grad
        }
        names = {name: row for name, row in names.items() if row in stacked.rows}
        return BatchedTrainer(
            stacked, names, samples, training, seed=self._seed, device=self._device
        )

    def _compiled(
        self, module: nn.Module, capacity: int, samples: Any, training: Training
    ) -> ChunkTrainer:
        if self._device.type != "cpu":
            raise NotStackable("compiled training is for the CPU")
        chain = chain_of(module, tuple(samples.x.shape[1:]))
        dtype = next(module.parameters()).dtype
        return CompiledTrainer(chain, capacity, samples, training, dtype=dtype)

    def why_not_together(self) -> str | None:
        """What rules out training several clients at once, whatever the model."""
        if self._update is not None:
            return OWN_UPDATE
        if any(parameter._backward_hooks for parameter in self._resident.trained.values()):
            return WATCHED_WEIGHTS
        if self._resident.loss is not nn.functional.cross_entropy:
            return OWN_LOSS
        return None

    # -- the trial ----------------------------------------------------------------------------

    def try_out(self, question: Question, clients: Indices, memory: int) -> Choice:
        """Train some clients each way for a moment, and choose.

        `memory` is the vnode's, in bytes. NotStackable where the question names a way that would
        give other results than training one by one.
        """
        training = self._training.model_copy(update={"number_of_epochs": 1})
        model = {name: tensor.clone() for name, tensor in self._resident.tensors().items()}
        chunk = _cut(self._samples.chunk(clients), training.batch_size * STEPS)
        alone = Execution(Kind.SEQUENTIAL, question.chunk_size or SEQUENTIAL_CHUNK)
        if question.kind is Kind.SEQUENTIAL:
            return Choice(alone, AS_CONFIGURED)
        why_not = self.why_not_together()
        if why_not is not None:
            if question.kind is not None:
                raise NotStackable(why_not)
            return Choice(alone, why_not)
        sizes = self._sizes(question, chunk, training, memory)
        if question.kind is not None:
            return self._best_of(question.kind, sizes, chunk, model, training)
        one = self._make(alone, self._resident, self._samples, training)
        largest = _slice(chunk, 0, 1)
        try:
            _warm_up(one, largest, model, training)
            taken = _time(one, largest, model)
        except ClientFailed as error:  # its round will tell
            return Choice(alone, f"the trial failed: {error.reason}", lasting=False)
        if taken > TOO_LARGE_S:
            seconds = f"{taken:.1f} s for a few steps of one client"
            return Choice(alone, f"a client is work enough by itself: {seconds}")
        first = Measured(alone, taken / _steps(largest, training) * _mean_steps(chunk, training))
        together: list[Measured] = []
        refused: list[str] = []
        for kind in (Kind.COMPILED, Kind.FOLDED, Kind.MAPPED):
            if kind is Kind.MAPPED and any(m.execution.kind is Kind.FOLDED for m in together):
                break  # folding is the faster of the two
            try:
                measured = self._measure(kind, sizes, chunk, model, training)
                best = choose(first, [*together, *measured], ()).execution
                if best.kind is kind:
                    self._check(best, chunk, model, training)
                together += measured
            except NotStackable as error:
                refused.append(f"{kind}: {error}")
        return choose(first, together, refused)

    def _best_of(
        self,
        kind: Kind,
        sizes: tuple[int, ...],
        chunk: Chunk,
        model: Mapping[str, Tensor],
        training: Training,
    ) -> Choice:
        """The best chunk size of a kind that is asked for by name."""
        measured = self._measure(kind, sizes, chunk, model, training)
        best = min(measured, key=lambda each: each.seconds_per_client).execution
        self._check(best, chunk, model, training)
        return Choice(best, AS_CONFIGURED)

    def _sizes(
        self, question: Question, chunk: Chunk, training: Training, memory: int
    ) -> tuple[int, ...]:
        if question.chunk_size is not None:
            return (question.chunk_size,)
        most = how_many_fit(self._bytes_per_client(training), memory)
        return sizes_to_try(self._device.type, min(question.cohort, len(chunk)), most)

    def _measure(
        self,
        kind: Kind,
        sizes: tuple[int, ...],
        chunk: Chunk,
        model: Mapping[str, Tensor],
        training: Training,
    ) -> list[Measured]:
        measured = []
        for size in sizes:
            execution = Execution(kind, size)
            trainer = self._make(execution, self._resident, self._samples, training)
            some = _slice(chunk, 0, size)
            with _refusing():
                _warm_up(trainer, some, model, training)
                seconds = _time(trainer, some, model)
            each = seconds / _steps(some, training) * _mean_steps(chunk, training)
            measured.append(Measured(execution, each))
        return measured

    def _check(
        self, execution: Execution, chunk: Chunk, model: Mapping[str, Tensor], training: Training
    ) -> None:
        """NotStackable unless it gives what one by one gives, and whoever the mates are."""
        some = _slice(chunk, 0, execution.chunk_size)
        trainer = self._make(execution, self._resident, self._samples, training)
        with _refusing():
            whole = _results(trainer, some, model)
        last = len(some)
        for start, stop in ((0, 1), (min(1, last - 1), last), (last // 2, last)):
            part = _results(trainer, _slice(some, start, stop), model)
            if any(not torch.equal(part[name], whole[name][start:stop]) for name in part):
                raise NotStackable("a client's bits depend on its mates")
        # The last batch is not full, so that what fills it up would show.
        few = _cut(_slice(some, 0, 3), training.batch_size * STEPS - 1)
        with self._exactly(execution.kind, model) as (resident, samples, wide, agree):
            alone = self._make(
                Execution(Kind.SEQUENTIAL, SEQUENTIAL_CHUNK), resident, samples, training
            )
            expected = _results(alone, few, wide)
            with _refusing():
                found = _results(self._make(execution, resident, samples, training), few, wide)
        moved = max(float((expected[n] - wide[n]).abs().max()) for n in found)
        apart = max(float((expected[n] - found[n]).abs().max()) for n in found)
        if not apart <= agree * moved:
            raise NotStackable("samples of a batch influence each other")
        for name in expected.keys() - found.keys():
            if not torch.equal(expected[name], wide[name].expand_as(expected[name])):
                raise NotStackable(f"training changes {name}, which is no parameter")

    @contextmanager
    def _exactly(
        self, kind: Kind, model: Mapping[str, Tensor]
    ) -> Iterator[tuple[ResidentModule, Any, Mapping[str, Tensor], float]]:
        """What to compare a way with training one by one on, and how far they may be apart.

        In float64, where exactness shows right and wrong. A compiled chain is known layer by layer,
        and takes seconds to compile for another type.
        """
        if kind is Kind.COMPILED:
            yield self._resident, self._samples, model, AGREE_ABOUT
            return
        with _in_double(self._resident, model) as (resident, wide):
            yield resident, _Doubled(self._samples), wide, AGREE

    def _bytes_per_client(self, training: Training) -> int:
        """Weights, gradients, the optimizer's memory and a batch's activations."""
        module = self._resident.module
        weights = sum(t.numel() * t.element_size() for t in self._resident.trained.values())
        copies = {"sgd": 2 + (training.momentum > 0)}.get(training.optimizer, 4)
        activations = 0

        def count(_module: nn.Module, _inputs: Any, output: Any) -> None:
            nonlocal activations
            if isinstance(output, Tensor):
                activations += output.numel() * output.element_size()

        hooks = [layer.register_forward_hook(count) for layer in module.modules()]
        try:
            with torch.no_grad():
                module.eval()
                module(self._samples.x[: training.batch_size].clone())
        finally:
            for hook in hooks:
                hook.remove()
        return weights * copies + 2 * activations


class _Doubled:
    """Samples in float64."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self.partition, self.positions = samples.partition, samples.positions

    def gather(self, positions: Indices) -> tuple[Tensor, Tensor]:
        x, y = self._samples.gather(positions)
        return (x.double() if x.is_floating_point() else x), y


@contextmanager
def _in_double(
    resident: ResidentModule, model: Mapping[str, Tensor]
) -> Iterator[tuple[ResidentModule, dict[str, Tensor]]]:
    """The module and a model in float64, without dropout, where exactness shows right and wrong."""
    module = copy.deepcopy(resident.module).double()
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    wide = {n: t.double() if t.is_floating_point() else t.clone() for n, t in model.items()}
    device = next(iter(resident.trained.values())).device
    yield ResidentModule(module, resident.loss, device), wide


@contextmanager
def _refusing() -> Iterator[None]:
    """NotStackable for what fails where clients train together, since one by one it did not."""
    try:
        yield
    except ClientFailed as error:
        cause = error.__cause__
        raise NotStackable(
            str(cause) if isinstance(cause, NotStackable) else error.reason
        ) from error


def _results(trainer: ChunkTrainer, chunk: Chunk, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = [
        {name: tensor.clone() for name, tensor in trained.tensors.items()}
        for trained in trainer.train(chunk, 0, model, {})
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _warm_up(
    trainer: ChunkTrainer, chunk: Chunk, model: Mapping[str, Tensor], training: Training
) -> None:
    """A step of one client, so that compiling and whatever else is done once is not measured."""
    for _ in trainer.train(_cut(_slice(chunk, 0, 1), training.batch_size), 0, model, {}):
        pass


def _time(trainer: ChunkTrainer, chunk: Chunk, model: Mapping[str, Tensor]) -> float:
    """Seconds to train a chunk: the least of several times."""
    taken: list[float] = []
    began = time.perf_counter()
    for turn in itertools.count():
        started = time.perf_counter()
        for _ in trainer.train(chunk, 0, model, {}):
            pass
        if next(iter(model.values())).is_cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
        if turn and (time.perf_counter() - began > PATIENCE_S or taken[-1] > PATIENCE_S):
            break
        if turn == 0 and taken[0] > TOO_LARGE_S * len(chunk):
            break
    return min(taken)


def _steps(chunk: Chunk, training: Training) -> int:
    """Steps of an epoch, over all clients: what makes times of different clients comparable."""
    return max(1, int((-(-chunk.sizes // training.batch_size)).sum()))


def _mean_steps(chunk: Chunk, training: Training) -> float:
    return _steps(chunk, training) / max(1, len(chunk))


def _cut(chunk: Chunk, most: int) -> Chunk:
    """The same clients with their first samples only."""
    sizes = np.minimum(chunk.sizes, most)
    starts = np.cumsum(chunk.sizes) - chunk.sizes
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return Chunk(chunk.clients, chunk.keys, sizes, chunk.rows[np.repeat(starts, sizes) + within])


def _slice(chunk: Chunk, start: int, stop: int) -> Chunk:
    ends = np.cumsum(chunk.sizes)
    first = int(ends[start - 1]) if start else 0
    last = int(ends[min(stop, len(chunk)) - 1])
    return Chunk(
        chunk.clients[start:stop],
        chunk.keys[start:stop],
        chunk.sizes[start:stop],
        chunk.rows[first:last],
    )
