"""Decide which function a `loss_function` or a `client_update` stands for.

Each is written as `module:name`, or registered under a name, as in a notebook.
"""

from __future__ import annotations

import inspect
from typing import Any

from ...core.user_code.registry import Registry


def _no_class(found: object) -> str:
    """The fault of a class where a function is needed; empty for anything else."""
    if not inspect.isclass(found):
        return ""
    name = found.__name__
    return f"it is the class {name}, where an instance or a function is asked for: `{name}()`"


_losses: Registry[Any] = Registry(
    "loss", {"cross_entropy": "torch.nn.functional:cross_entropy"}, problem_of=_no_class
)
_updates: Registry[Any] = Registry("client update", {}, problem_of=_no_class)

register_loss = _losses.register
"""Register the decorated loss under a name: `@register_loss("focal")`."""

register_client_update = _updates.register
"""Register the decorated function under a name: `@register_client_update("mine")`."""

# The methods of `Registry`, for losses and client updates.
resolve_loss, resolve_client_update = _losses.resolve, _updates.resolve
registered_loss, registered_client_update = _losses.registered, _updates.registered
bring_loss, bring_client_update = _losses.bring, _updates.bring
