"""Builds a config's model, and tries it on two samples of the data."""

from __future__ import annotations

import numpy as np
import torch

from ... import models
from ...config.schema import RunConfig, Training
from ...core.population.sampling import Indices
from ...core.randomness import Purpose
from ...core.state import Array, Roles, TensorRole
from ...core.user_code.registry import RegistryError
from ...engine.stacking import NotStackable, stack
from ...engine.training.client import client_update_function
from ...engine.training.modules import (
    ONE_GENERATOR,
    fitted,
    loss_function,
    roles_of,
    seed_torch,
    state_of,
)
from ...errors import ConfigError, FederatedError
from ...models import ModelError
from .blame import blaming, blaming_users_code
from .run_inputs import SiteData

SUITS_EVERY_MODEL = "`auto`, or `sequential`, which suits every model"


def fresh_module(config: RunConfig, data: SiteData) -> torch.nn.Module:
    """The config's model with the weights of round 0, in the type of the data."""
    name, options = config.model.model_type, config.model.options
    with ONE_GENERATOR:
        seed_torch(config.run.random_seed, Purpose.INIT)
        built = models.build(name, options, data.input_shape, data.num_classes)
    return fitted(built, data.x.dtype)


def build_model(config: RunConfig, data: SiteData) -> tuple[dict[str, Array], Roles]:
    """The model of round 0 and its tensors' roles; ConfigError if it does not fit the data."""
    name, options = config.model.model_type, config.model.options
    with blaming("model.model_type", ", ".join(models.available()), RegistryError):
        models.resolve(name)
    allowed = f"the options of `{name}`: {', '.join(models.options(name)) or 'none'}"
    with blaming("model.options", allowed, RegistryError):
        models.check(name, options)
    fits = (
        f"a model for {_kind_of(data.x)} of shape {data.input_shape} and {data.num_classes} "
        "classes, as this data set has"
    )
    with (
        blaming_users_code("model.model_type", fits),
        blaming("model.model_type", fits, ModelError, FederatedError, TypeError, RuntimeError),
    ):
        module = fresh_module(config, data)
        initial = state_of(module)
        roles = roles_of(module, keep_buffers=config.model.buffers == "keep")
        module.eval()
    if TensorRole.TRAINED not in roles.values():
        found = f"`{name}` has no parameter that requires a gradient"
        raise ConfigError.about("model.model_type", found, fits)
    with blaming("training.loss_function", "`cross_entropy` or `module:function`", RegistryError):
        loss = loss_function(config.training.loss_function)
    with (
        blaming("model.model_type", fits, Exception),
        torch.no_grad(),
    ):
        probed = _probe(data.x)
        outputs = module(torch.from_numpy(data.x[probed]))
        if len(data.test_x):
            module(torch.from_numpy(data.test_x[_probe(data.test_x)]))
        if config.training.loss_function == "cross_entropy":
            _check_outputs(tuple(outputs.shape), len(probed), data.num_classes)
    scalar = "a function of (outputs, labels) that gives the mean loss, a tensor without dimensions"
    with blaming("training.loss_function", scalar, Exception):
        _check_loss(loss(outputs.clone().requires_grad_(), torch.from_numpy(data.y[probed])))
    _check_way_of_training(config.training, module)
    return initial, roles


def _check_way_of_training(training: Training, module: torch.nn.Module) -> None:
    function = "`module:function` of a client, see `fedpilot.LocalClient`"
    with blaming("training.client_update", function, RegistryError):
        client_update_function(training.client_update)
    if training.execution in ("folded", "mapped"):
        with blaming("training.execution", SUITS_EVERY_MODEL, NotStackable):
            stack(module, training.execution, 1, fused=False)


def _probe(x: Array) -> Indices:
    """Two samples to try a model on; for tokens, one has the largest token."""
    rows = np.arange(min(2, len(x)))
    if x.dtype.kind == "i":
        rows[-1] = x.reshape(len(x), -1).max(axis=1).argmax()
    return rows


def _kind_of(x: Array) -> str:
    return "tokens (int64, as `transformer` takes them)" if x.dtype.kind == "i" else "samples"


def _check_outputs(shape: tuple[int, ...], samples: int, num_classes: int) -> None:
    if len(shape) != 2 or shape[0] != samples or shape[1] < num_classes:
        raise ValueError(
            f"for {samples} samples the model gives outputs of shape {shape}, where cross entropy "
            f"needs ({samples}, {num_classes})"
        )


def _check_loss(found: object) -> None:
    if not isinstance(found, torch.Tensor) or found.ndim or not found.requires_grad:
        what = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else repr(found)
        raise ValueError(f"it gives {what}, of which no gradient can be taken")
