"""Federated learning on top of the fabric: federations, their clients, their runs.

Importing this package imports neither Ray nor torch; making a Federation does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import RunConfig, load_config, parse_config
    from .connecting import Connection, RemoteFederation, connect
    from .core.algorithm import Algorithm
    from .core.lifecycle import NodeState
    from .core.partial import Partial
    from .core.participation import BelowQuorum, TooFewSites
    from .core.partition import UnknownClient
    from .data import Dataset, register_dataset
    from .engine.client import LocalClient
    from .errors import (
        ClientFailed,
        ConfigError,
        ExecutionRefused,
        FederatedError,
        InvalidTransition,
        NoUsableUpdate,
        Problem,
        RunRefused,
        TrafficSpent,
        WorkerNotMade,
        WorkersExhausted,
    )
    from .events import Event
    from .federation import Federation
    from .models import register_model
    from .run_record import RunResult
    from .training_code import register_client_update, register_loss
    from .virtual_node import EvaluationResult, TrainResult, VirtualNode

_HOME = {
    "Algorithm": "core.algorithm",
    "BelowQuorum": "core.participation",
    "ClientFailed": "errors",
    "ConfigError": "errors",
    "Connection": "connecting",
    "Dataset": "data",
    "EvaluationResult": "virtual_node",
    "Event": "events",
    "ExecutionRefused": "errors",
    "FederatedError": "errors",
    "Federation": "federation",
    "InvalidTransition": "errors",
    "NoUsableUpdate": "errors",
    "LocalClient": "engine.client",
    "NodeState": "core.lifecycle",
    "Partial": "core.partial",
    "Problem": "errors",
    "RemoteFederation": "connecting",
    "RunConfig": "config",
    "RunRefused": "errors",
    "RunResult": "run_record",
    "TooFewSites": "core.participation",
    "TrafficSpent": "errors",
    "TrainResult": "virtual_node",
    "UnknownClient": "core.partition",
    "VirtualNode": "virtual_node",
    "WorkerNotMade": "errors",
    "WorkersExhausted": "errors",
    "connect": "connecting",
    "load_config": "config",
    "parse_config": "config",
    "register_client_update": "training_code",
    "register_dataset": "data",
    "register_loss": "training_code",
    "register_model": "models",
}

__all__ = [
    "Algorithm",
    "BelowQuorum",
    "ClientFailed",
    "ConfigError",
    "Connection",
    "Dataset",
    "EvaluationResult",
    "Event",
    "ExecutionRefused",
    "FederatedError",
    "Federation",
    "InvalidTransition",
    "LocalClient",
    "NoUsableUpdate",
    "NodeState",
    "Partial",
    "Problem",
    "RemoteFederation",
    "RunConfig",
    "RunRefused",
    "RunResult",
    "TooFewSites",
    "TrafficSpent",
    "TrainResult",
    "UnknownClient",
    "VirtualNode",
    "WorkerNotMade",
    "WorkersExhausted",
    "connect",
    "load_config",
    "parse_config",
    "register_client_update",
    "register_dataset",
    "register_loss",
    "register_model",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
