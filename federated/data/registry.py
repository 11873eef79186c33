"""Decide which loader a `dataset_type` stands for.

A loader is a function of keyword options that returns a `Dataset`. Built-ins are imported on first
use; your own are registered, or written as `module:function`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpilot.federated.core.user_code.registry import Registry

from .dataset import Dataset
from .errors import DataError

_loaders: Registry[Dataset] = Registry(
    "data set",
    {
        "cifar10": f"{__package__}.cifar:cifar10",
        "cifar100": f"{__package__}.cifar:cifar100",
        "digits": f"{__package__}.digits:digits",
        "idx": f"{__package__}.idx:idx",
        "npz": f"{__package__}.npz:npz",
        "synthetic": f"{__package__}.synthetic:synthetic",
    },
)

register_dataset = _loaders.register
"""Register the decorated loader under a name: `@register_dataset("mine")`."""

# The methods of `Registry`, for data sets.
registered = _loaders.registered
available = _loaders.available
resolve = _loaders.resolve
options = _loaders.options
check = _loaders.check


def load(dataset_type: str, options: Mapping[str, Any] | None = None) -> Dataset:
    """Load a data set.

    Raises `UnknownName`, `BadPath` or `BadOption` for the config, `DataError` for the data.
    """
    found: object = _loaders.call(dataset_type, options or {})
    if not isinstance(found, Dataset):
        raise DataError(dataset_type, f"its loader gave {type(found).__name__}, not a Dataset")
    return found
