"""Chooses a run's execution for the coordinator, before sites start: cost model, then the checks.

The cost model names the cheapest execution, and the probe checks it. After a refusal comes the next
of compiled, folded, mapped, and one by one, which suits every model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from ..config.schema import Training
from ..core.execution.execution import SEQUENTIAL_CHUNK, Choice, ExecutionWish, decide
from ..core.execution.facts import Circumstances, Execution, ExecutionKind, LayerKind, ModelFacts
from ..errors import ExecutionRefused
from .compiled.chain import chain_of
from .stacking import NotStackable, stack
from .structure import facts_of
from .trainers import probe
from .trainers.resident import ResidentModule
from .trainers.trainer_factory import CPU_ONLY, why_not_together
from .training.client import ClientUpdate
from .training.modules import Loss
from .training.optimizers import is_plain

CPU = torch.device("cpu")
MATES_OF_CONVOLUTIONS = "mapped convolutions give bits that depend on a client's mates"


def choose(
    module: nn.Module,
    training: Training,
    where: Circumstances,
    wish: ExecutionWish,
    *,
    input_shape: tuple[int, ...],
    dtype: torch.dtype,
    loss: Loss,
    update: ClientUpdate | None,
    threads: int = 1,
) -> Choice:
    """The execution of a run; ExecutionRefused if the named one gives other results.

    The module is a new one, and not usable afterwards.
    """
    together = wish.kind is not None and wish.kind is not ExecutionKind.SEQUENTIAL
    trained = (weight for weight in module.parameters() if weight.requires_grad)
    if (why_not := why_not_together(trained, loss, update)) is not None:
        if together:
            raise ExecutionRefused(str(wish.kind), why_not)
        size = wish.chunk_size or SEQUENTIAL_CHUNK
        return Choice(Execution(ExecutionKind.SEQUENTIAL, size), why_not)
    if wish.kind is ExecutionKind.SEQUENTIAL:
        return decide(NO_FACTS, where, {}, wish)
    sample = probe.example(module, input_shape, dtype)
    try:
        facts = facts_of(module, sample)
    except Exception as error:
        if wish.kind is None:
            why = f"its code fails on samples of random numbers: {type(error).__name__}: {error}"
            return Choice(Execution(ExecutionKind.SEQUENTIAL, SEQUENTIAL_CHUNK), why[:300])
        facts = NO_FACTS
    with _threads(threads):
        choice = _checked(module, training, where, wish, facts, like=sample, loss=loss)
    return choice if facts is NO_FACTS else replace(choice, facts=facts)


NO_FACTS = ModelFacts(layers=(), trained=1, tensors=1, inputs=1, itemsize=4)


def _checked(
    module: nn.Module,
    training: Training,
    where: Circumstances,
    wish: ExecutionWish,
    facts: ModelFacts,
    *,
    like: torch.Tensor,
    loss: Loss,
) -> Choice:
    kinds = (ExecutionKind.COMPILED, ExecutionKind.FOLDED, ExecutionKind.MAPPED)
    asked = [wish.kind] if wish.kind else kinds
    refused = refusals(asked, module, training, where, facts, like)
    resident = ResidentModule(module, loss, CPU)
    while True:
        if wish.kind in refused:
            raise ExecutionRefused(str(wish.kind), refused[wish.kind])
        choice = decide(facts, where, refused, wish)
        kind = choice.execution.kind
        if kind is ExecutionKind.SEQUENTIAL:
            return choice
        try:
            if kind is ExecutionKind.COMPILED:
                # Workers compile the kernel and check it; here its description suffices.
                probe.check_chain(module, tuple(like.shape[1:]), like.dtype)
            else:
                probe.check(choice.execution, resident, training, like=like, device=CPU)
            return choice
        except NotStackable as error:
            if wish.kind is not None and isinstance(error, probe.Unchecked):
                return choice  # the user who named it is responsible
            refused[kind] = str(error)


def refusals(
    kinds: Sequence[ExecutionKind],
    module: nn.Module,
    training: Training,
    where: Circumstances,
    facts: ModelFacts,
    like: torch.Tensor,
) -> dict[ExecutionKind, str]:
    """The executions that the model's structure rules out, and why."""
    convolutions = any(layer.kind is LayerKind.CONVOLUTION for layer in facts.layers)
    weights = next(module.parameters()).dtype
    on_cpus = where.device == "cpu" or where.also_cpu
    refused: dict[ExecutionKind, str] = {}
    for kind in kinds:
        if kind is ExecutionKind.COMPILED and where.device != "cpu":
            refused[kind] = CPU_ONLY
        elif kind is ExecutionKind.COMPILED and like.dtype != weights:
            refused[kind] = f"samples are {like.dtype}"
        elif kind is ExecutionKind.MAPPED and on_cpus and convolutions:
            refused[kind] = MATES_OF_CONVOLUTIONS
        else:
            try:
                if kind is ExecutionKind.COMPILED:
                    chain_of(module, tuple(like.shape[1:]))
                else:
                    stack(module, kind, 1, fused=is_plain(training))
            except NotStackable as error:
                refused[kind] = str(error)
    return refused


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
