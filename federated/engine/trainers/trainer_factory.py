"""TrainerFactory: makes the trainer for an execution, or says why the model rules it out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...config.schema import Training
from ...core.execution.facts import Execution, ExecutionKind
from ..compiled.chain import chain_of
from ..compiled.trainer import CompiledTrainer
from ..stacking import NotStackable, stack
from ..stacking.folded import first_names
from ..training.client import ClientUpdate
from ..training.modules import Loss
from ..training.optimizers import is_plain
from ..training.samples import Samples
from ..training.training import ChunkTrainer
from .batched import BatchedTrainer
from .resident import ResidentModule
from .sequential import SequentialTrainer

CPU_ONLY = "compiled training is for the CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFactory:
    """The parts of one worker's trainers."""

    resident: ResidentModule
    samples: Samples
    training: Training
    seed: int
    device: torch.device
    update: ClientUpdate | None = None
    all_rows: bool | None = None
    """Whether a step of many clients computes all rows; by default as the device needs."""

    def make(self, execution: Execution) -> ChunkTrainer:
        """The trainer of an execution; NotStackable if it does not suit the model."""
        resident, samples, training = self.resident, self.samples, self.training
        if execution.kind is ExecutionKind.SEQUENTIAL:
            return SequentialTrainer(
                resident, samples, training, seed=self.seed, update=self.update
            )
        if (why_not := self.why_not_together()) is not None:
            raise NotStackable(why_not)
        module = resident.module
        if execution.kind is ExecutionKind.COMPILED:
            return self._compiled(module, execution.chunk_size)
        stacked = stack(module, execution.kind, execution.chunk_size, fused=is_plain(training))
        canonical = first_names(module)
        names = {
            name: canonical.get(id(parameter), name)
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if parameter.requires_grad
        }
        names = {name: row for name, row in names.items() if row in stacked.rows}
        return BatchedTrainer(
            stacked,
            names,
            samples,
            training,
            seed=self.seed,
            device=self.device,
            all_rows=self.device.type != "cpu" if self.all_rows is None else self.all_rows,
        )

    def _compiled(self, module: nn.Module, capacity: int) -> ChunkTrainer:
        if self.device.type != "cpu":
            raise NotStackable(CPU_ONLY)
        chain = chain_of(module, tuple(self.samples.x.shape[1:]))
        dtype = next(module.parameters()).dtype
        return CompiledTrainer(chain, capacity, self.samples, self.training, dtype=dtype)

    def why_not_together(self) -> str | None:
        """What rules out training several clients at once."""
        return why_not_together(self.resident.trained.values(), self.resident.loss, self.update)


def why_not_together(
    trained: Iterable[Tensor], loss: Loss, update: ClientUpdate | None
) -> str | None:
    """What rules out training several clients at once, for any model."""
    if update is not None:
        return "`training.client_update` trains one client at a time"
    if any(weight._backward_hooks for weight in trained):
        return "hooks on weights see one client's gradients at a time"
    if loss is not nn.functional.cross_entropy:
        return "`training.loss_function` sees one client's batch at a time"
    return None
