"""fedpilot: a federated multi-cluster fabric on Ray.

    from fedpilot import Federation

    with Federation("configs/quickstart.yaml") as federation:
        result = federation.run()

Names are imported on first use, so that importing fedpilot is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .federated import (
        Federation,
        RunConfig,
        RunResult,
        VirtualNode,
        connect,
        load_config,
        register_client_update,
        register_dataset,
        register_loss,
        register_model,
        runs,
    )

__all__ = [
    "Federation",
    "RunConfig",
    "RunResult",
    "VirtualNode",
    "connect",
    "load_config",
    "register_client_update",
    "register_dataset",
    "register_loss",
    "register_model",
    "runs",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("fedpilot.federated"), name)
    raise AttributeError(f"module 'fedpilot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
