"""What a run's configuration may say: every key, its type, its default and what it means.

`learning`, `schedules` and `data` decide the bits of a run, `running` says where and with which
sites, `sweep` at which points `fedpilot sweep` trains; `rules` are those between sections,
`vnode_classes` is what a gang is made of, and `values` what sections are. Unknown keys and wrong
types are refused (strict, no coercion but int to float). `broken_rules` checks rules between keys
and names the key to change. What needs the data or the model (more clients than samples) is checked
in `prepare/inputs`, before anything starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fedpilot.common.strict_yaml.schema_problems import Conflict

from .data import Data
from .learning import Evaluation, FederationConfig, Graph, Hierarchy, Model, Run, Training
from .rules import (
    BETWEEN,
    class_conflicts_of_run,
    graph_conflicts,
    hierarchy_conflicts,
    late_conflicts,
    reassignment_conflicts,
    replica_conflicts,
    share_conflicts,
)
from .running import (
    SITES_IN_WORDS,
    Outputs,
    Participation,
    ResourcesConfig,
    Robustness,
    SitesConfig,
    Traffic,
)
from .schedules import Schedule
from .sweep import Sweep
from .values import Section
from .vnode_classes import ClientsOfClass, VNodeClassConfig, WorkersRange

__all__ = [
    "ClientsOfClass",
    "Data",
    "Evaluation",
    "FederationConfig",
    "Graph",
    "Hierarchy",
    "Model",
    "Outputs",
    "Participation",
    "ResourcesConfig",
    "Robustness",
    "Run",
    "RunConfig",
    "Schedule",
    "SitesConfig",
    "Sweep",
    "Traffic",
    "Training",
    "VNodeClassConfig",
    "WorkersRange",
]


class RunConfig(Section):
    """One run, as a config file says it."""

    run: Run = Run()
    federation: FederationConfig = FederationConfig()
    hierarchy: Hierarchy | None = None
    graph: Graph | None = None
    model: Model
    data: Data
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    resources: ResourcesConfig = ResourcesConfig()
    sites: Annotated[SitesConfig, SITES_IN_WORDS] = SitesConfig()
    participation: Participation = Participation()
    robustness: Robustness = Robustness()
    traffic: Traffic = Traffic()
    outputs: Outputs = Outputs()
    sweep: Sweep | None = None

    @property
    def clients_share_a_model(self) -> bool:
        """Whether clients train from the run's model: not so in groups, nor on graphs."""
        return self.federation.topology == "star"

    @property
    def clients_keep_states(self) -> bool:
        """Whether clients keep something between rounds: what their own code keeps, or a model."""
        return self.training.client_update is not None or self.federation.is_graph

    @property
    def evaluated_nodes(self) -> str:
        """Which clients of a graph have their own models evaluated."""
        if not self.federation.is_graph:
            return "none"
        return self.evaluation.nodes or "sampled"

    def broken_rules(self) -> Iterator[Conflict]:
        for sections, conflicts in BETWEEN.items():
            yield from conflicts(*(getattr(self, name) for name in sections))
        yield from hierarchy_conflicts(self)
        yield from class_conflicts_of_run(self)
        yield from graph_conflicts(self)
        yield from late_conflicts(self)
        yield from replica_conflicts(self)
        yield from reassignment_conflicts(self)
        if self.sites.count is not None:
            yield from share_conflicts(self.robustness, self.sites.count)
