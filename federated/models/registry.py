"""Decide which model a `model_type` stands for.

A model is a class or a function of keyword options that returns a `torch.nn.Module`. Its parameters
`input_shape` and `num_classes`, if any, are filled in from the data. Built-ins are imported on
first use, and PyTorch with them; your own are registered, or written as `module:Class`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedpilot.federated.core.user_code.registry import Registry

from .errors import ModelError

if TYPE_CHECKING:
    from torch import nn

_BUILTIN = ("cnn", "lenet", "logistic_regression", "mlp", "resnet18")


def _no_instance(found: object) -> str:
    """The fault of a module where its class or factory is needed; empty for anything else."""
    if inspect.isclass(found) or not hasattr(found, "state_dict"):
        return ""
    name = type(found).__name__
    return (
        f"it is an instance of {name}, where a class or a function is asked for: every run makes "
        f"its model anew; name the class {name}, or a function that returns the model"
    )


_models: Registry[nn.Module] = Registry(
    "model",
    {
        **{name: f"{__package__}.builtin:{name}" for name in _BUILTIN},
        "transformer": f"{__package__}.transformer:transformer",
    },
    supplied=("input_shape", "num_classes"),
    problem_of=_no_instance,
)

register_model = _models.register
"""Register the decorated class or function under a name: `@register_model("mine")`."""

# The methods of `Registry`, for models.
registered = _models.registered
bring = _models.bring
available = _models.available
resolve = _models.resolve
options = _models.options
check = _models.check


def build(
    model_type: str,
    options: Mapping[str, Any] | None,
    input_shape: Sequence[int],
    num_classes: int,
) -> nn.Module:
    """Build a model with initial weights from PyTorch's global generator.

    Raises `UnknownName`, `BadPath`, `BadOption` (config), `ModelError` (data do not suit).
    """
    from torch import nn

    supplied = {"input_shape": tuple(input_shape), "num_classes": num_classes}
    found: object = _models.call(model_type, options or {}, supplied)
    if not isinstance(found, nn.Module):
        raise ModelError(model_type, f"it gave {type(found).__name__}, not a torch.nn.Module")
    return found
