"""Federated learning on top of the fabric: federations, their clients, their runs.

Importing this package imports neither Ray nor torch; making a Federation does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpilot.common.host.imports import lazy_names

if TYPE_CHECKING:
    from .config import RunConfig, load_config, parse_config
    from .core.algorithm import Algorithm
    from .core.lifecycle import NodeState
    from .core.population.partitions.partition import UnknownClient
    from .core.rounds.participation import BelowQuorum, TooFewSites
    from .core.sums.partial import Partial
    from .data import Dataset, register_dataset
    from .engine.training.client import LocalClient
    from .engine.training.training_code import register_client_update, register_loss
    from .errors import (
        ClientFailed,
        ConfigError,
        ExecutionRefused,
        FederatedError,
        InvalidTransition,
        NotFeasible,
        NoUsableUpdate,
        Problem,
        RunRefused,
        TrafficSpent,
        WorkerNotMade,
        WorkersExhausted,
    )
    from .experiments.run_reading import runs
    from .federation.clients.topology_manager import HybridTopologyManager, TopologyManager
    from .federation.clients.virtual_node import EvaluationResult, TrainResult, VirtualNode
    from .federation.events import Event
    from .federation.federation import Federation
    from .federation.remote.client import Connection, RemoteFederation, connect
    from .federation.runs.run_record import RunResult
    from .models import register_model

_HOME = {
    "Algorithm": "core.algorithm",
    "BelowQuorum": "core.rounds.participation",
    "Connection": "federation.remote.client",
    "Dataset": "data",
    "EvaluationResult": "federation.clients.virtual_node",
    "Event": "federation.events",
    "Federation": "federation.federation",
    "LocalClient": "engine.training.client",
    "NodeState": "core.lifecycle",
    "Partial": "core.sums.partial",
    "RemoteFederation": "federation.remote.client",
    "RunConfig": "config",
    "RunResult": "federation.runs.run_record",
    "HybridTopologyManager": "federation.clients.topology_manager",
    "TopologyManager": "federation.clients.topology_manager",
    "TooFewSites": "core.rounds.participation",
    "TrainResult": "federation.clients.virtual_node",
    "UnknownClient": "core.population.partitions.partition",
    "VirtualNode": "federation.clients.virtual_node",
    "connect": "federation.remote.client",
    "load_config": "config",
    "parse_config": "config",
    "register_client_update": "engine.training.training_code",
    "register_dataset": "data",
    "register_loss": "engine.training.training_code",
    "register_model": "models",
    "runs": "experiments.run_reading",
}
"""By public name: its module; all others are in `errors`."""

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
    "HybridTopologyManager",
    "InvalidTransition",
    "LocalClient",
    "NoUsableUpdate",
    "NodeState",
    "NotFeasible",
    "Partial",
    "Problem",
    "RemoteFederation",
    "RunConfig",
    "RunRefused",
    "RunResult",
    "TooFewSites",
    "TopologyManager",
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
    "runs",
]


__getattr__ = lazy_names(__name__, {name: _HOME.get(name, "errors") for name in __all__})


def __dir__() -> list[str]:
    return sorted(__all__)
