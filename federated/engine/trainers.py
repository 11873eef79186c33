"""Trainers: makes the trainer for an execution, and has it checked before clients depend on it."""

from __future__ import annotations

import platform
from contextlib import nullcontext, suppress

import torch
from torch import nn

from ..config.schema import Training
from ..core.execution import Execution, Kind
from ..errors import ExecutionRefused
from .batched import BatchedTrainer
from .client import ClientUpdate
from .compiled.chain import chain_of
from .compiled.kernels import being_compiled
from .compiled.trainer import CompiledTrainer
from .optimizers import fused_rate
from .resident import ResidentModule
from .samples import Samples
from .sequential import SequentialTrainer
from .stacking import NotStackable, stack
from .stacking.folded import first_names
from .training import ChunkTrainer

OWN_UPDATE = "`training.client_update` trains one client at a time"
WATCHED_WEIGHTS = "hooks on weights see one client's gradients at a time"
OWN_LOSS = "`training.loss_function` sees one client's batch at a time"
CPU_ONLY = "compiled training is for the CPU"


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
            self._made[execution] = self._make(execution)
        return self._made[execution]

    @property
    def module(self) -> nn.Module:
        """The module that is trained."""
        return self._resident.module

    @property
    def example(self) -> torch.Tensor:
        """A sample of the probe, as the module takes it."""
        from .probe import example

        x = self._samples.x
        return example(self.module, tuple(x.shape[1:]), x.dtype)

    @property
    def epochs(self) -> int:
        """How often a client goes through its samples."""
        return self._training.number_of_epochs

    def checked(self, execution: Execution) -> ChunkTrainer:
        """The same, once it gave on the probe what training one by one gives; ExecutionRefused."""
        if execution not in self._made:
            try:
                if execution.kind is not Kind.SEQUENTIAL:
                    self._check(execution)
                self.get(execution)
            except NotStackable as error:
                found = f"{error}, as the worker on {platform.node()} finds"
                raise ExecutionRefused(str(execution.kind), found) from error
        return self._made[execution]

    def _check(self, execution: Execution) -> None:
        from .probe import Unchecked, check

        if (why_not := self.why_not_together()) is not None:
            raise NotStackable(why_not)
        like = self._samples.x
        compiles = execution.kind is Kind.COMPILED
        turn = being_compiled(like.dtype) if compiles else nullcontext()
        with turn, suppress(Unchecked):  # then whoever named it answers for it
            check(execution, self._resident, self._training, like=like, device=self._device)

    def _make(self, execution: Execution) -> ChunkTrainer:
        resident, samples, training = self._resident, self._samples, self._training
        if execution.kind is Kind.SEQUENTIAL:
            return SequentialTrainer(
                resident, samples, training, seed=self._seed, update=self._update
            )
        why_not = self.why_not_together()
        if why_not is not None:
            raise NotStackable(why_not)
        module = resident.module
        if execution.kind is Kind.COMPILED:
            return self._compiled(module, execution.chunk_size)
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

    def _compiled(self, module: nn.Module, capacity: int) -> ChunkTrainer:
        if self._device.type != "cpu":
            raise NotStackable(CPU_ONLY)
        chain = chain_of(module, tuple(self._samples.x.shape[1:]))
        dtype = next(module.parameters()).dtype
        return CompiledTrainer(chain, capacity, self._samples, self._training, dtype=dtype)

    def why_not_together(self) -> str | None:
        """What rules out training several clients at once, whatever the model."""
        if self._update is not None:
            return OWN_UPDATE
        if any(parameter._backward_hooks for parameter in self._resident.trained.values()):
            return WATCHED_WEIGHTS
        if self._resident.loss is not nn.functional.cross_entropy:
            return OWN_LOSS
        return None
