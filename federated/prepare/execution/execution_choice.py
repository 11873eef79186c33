"""Chooses how a run computes a chunk, from its config, model and data."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...config import with_execution
from ...config.schema import RunConfig, Training
from ...config.schema.vnode_classes import device_of, threads_of
from ...core.execution.cost_model import NEWEST
from ...core.execution.execution import AS_CONFIGURED, Choice, ExecutionWish
from ...core.execution.facts import (
    FIGURED_MEMORY,
    Circumstances,
    ExecutionKind,
    ModelFacts,
)
from ...engine.choosing import choose
from ...engine.training.client import client_update_function
from ...engine.training.modules import ONE_GENERATOR, loss_function
from ...engine.training.optimizers import is_plain
from ...errors import ConfigError, ExecutionRefused
from ..grouping import steps_of
from ..inputs.model import SUITS_EVERY_MODEL, fresh_module
from ..inputs.run_inputs import RunInputs


class Settled(NamedTuple):
    """A config without `auto`, why it is so, and what of the model decided it, if anything did."""

    config: RunConfig
    reason: str
    facts: ModelFacts | None


def settled(config: RunConfig, inputs: RunInputs) -> Settled:
    """The config with its `auto` replaced, and the reason; ConfigError for an unsuitable choice.

    The record of an earlier run stays as it is.
    """
    try:
        choice = _choice(config, inputs)
    except ExecutionRefused as error:
        found = f"`{error.execution}`, which does not suit this model: {error.reason}"
        raise ConfigError.about("training.execution", found, SUITS_EVERY_MODEL) from error
    training = config.training
    number, reason = training.execution_model, training.execution_reason
    if training.execution == "auto" or training.chunk_size == "auto":
        number, reason = number or NEWEST, choice.reason
    kind, size = str(choice.execution.kind), choice.execution.chunk_size
    made = with_execution(config, kind, size, model=number, reason=reason)
    return Settled(made, reason or AS_CONFIGURED, choice.facts)


def _choice(config: RunConfig, inputs: RunInputs) -> Choice:
    training, data = config.training, inputs.data
    with ONE_GENERATOR:
        return choose(
            fresh_module(config, data),
            training,
            circumstances(config, inputs),
            wish_of(training),
            input_shape=data.input_shape,
            dtype=torch.from_numpy(data.x[:0].copy()).dtype,
            loss=loss_function(training.loss_function),
            update=client_update_function(training.client_update),
            threads=threads_of(config.resources.classes[0]),
        )


def wish_of(training: Training) -> ExecutionWish:
    """The parts of an execution that the config sets."""
    return ExecutionWish(
        kind=None if training.execution == "auto" else ExecutionKind(training.execution),
        chunk_size=None if training.chunk_size == "auto" else training.chunk_size,
        model=training.execution_model,
    )


def circumstances(config: RunConfig, inputs: RunInputs) -> Circumstances:
    """The config's facts about the costs of training; independent of the machines."""
    training, classes = config.training, config.resources.classes
    devices = {device_of(each) for each in classes}
    return Circumstances(
        batch_size=training.batch_size,
        rule=rule_of(training),
        cohort=_company(config, inputs),
        memory=min(each.memory_per_worker or FIGURED_MEMORY for each in classes),
        device="cuda" if "cuda" in devices else "cpu",
        also_cpu=len(devices) > 1,
    )


def rule_of(training: Training) -> str:
    """The optimizer's kind, as the cost model names it."""
    if training.optimizer != "sgd":
        return "adam"
    return "plain" if is_plain(training) else "momentum"


def _company(config: RunConfig, inputs: RunInputs) -> int:
    """The most clients that train from one model in a round."""
    steps, groups = steps_of(config), inputs.data.groups
    if steps is None or groups is None:
        return inputs.cohort_size
    return steps.largest(groups)
