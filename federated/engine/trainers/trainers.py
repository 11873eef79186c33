"""Trainers: keeps a worker's trainers, and has each checked before clients depend on it."""

from __future__ import annotations

import platform
from contextlib import nullcontext, suppress

from ...core.execution.facts import Execution, ExecutionKind
from ...errors import ExecutionRefused
from ..compiled.kernels import being_compiled
from ..stacking import NotStackable
from ..training.training import ChunkTrainer
from .probe import Unchecked, check
from .trainer_factory import TrainerFactory


class Trainers:
    """The trainers of one worker; each is made on first need, and kept."""

    def __init__(self, factory: TrainerFactory) -> None:
        self.factory = factory
        self._made: dict[Execution, ChunkTrainer] = {}

    def get(self, execution: Execution) -> ChunkTrainer:
        """The trainer of an execution; NotStackable if it does not suit the model."""
        if execution not in self._made:
            self._made[execution] = self.factory.make(execution)
        return self._made[execution]

    def checked(self, execution: Execution) -> ChunkTrainer:
        """A trainer whose results on the probe equal training one by one; else ExecutionRefused."""
        if execution not in self._made:
            try:
                if execution.kind is not ExecutionKind.SEQUENTIAL:
                    self._check(execution)
                self.get(execution)
            except NotStackable as error:
                found = f"{error}, as the worker on {platform.node()} finds"
                # `auto` decided before the worker looked, and would decide the same again.
                raise ExecutionRefused(str(execution.kind), found, "`sequential`") from error
        return self._made[execution]

    def _check(self, execution: Execution) -> None:
        made_of = self.factory
        if (why_not := made_of.why_not_together()) is not None:
            raise NotStackable(why_not)
        like = made_of.samples.x
        compiles = execution.kind is ExecutionKind.COMPILED
        turn = being_compiled(like.dtype) if compiles else nullcontext()
        with turn, suppress(Unchecked):  # the user who named it is responsible
            check(execution, made_of.resident, made_of.training, like=like, device=made_of.device)
