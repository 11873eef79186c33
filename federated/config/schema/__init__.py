"""What a run's configuration may say: every key, its type, its default and what it means.

The sections follow the concerns of a run: `learning` and `data` decide its bits, `running` says
where and with whom; `rules` are those between sections, `values` what all sections are made of.
Key names that the FedPilot documentation gives (`dataset_type`, `data_distribution_kind`,
`number_of_epochs`, `placement_group_strategy`, ...) are kept. Unknown keys and wrong types are
refused (strict, no coercion but int to float); rules that span keys are told by `broken_rules`,
which names the key to change. Whatever needs the data or the model (more clients than samples, a
model that does not fit the data) is checked later, in `inputs`, and still before anything is
started.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fedpilot.fabric.strict_yaml.schema_problems import Conflict

from .data import Data
from .learning import Evaluation, FederationConfig, Hierarchy, Model, Run, Training
from .rules import BETWEEN, hierarchy_conflicts, late_conflicts, share_conflicts
from .running import (
    SITES_IN_WORDS,
    Outputs,
    Participation,
    ResourcesConfig,
    Robustness,
    SitesConfig,
    Traffic,
)
from .values import Section

__all__ = [
    "Data",
    "Evaluation",
    "FederationConfig",
    "Hierarchy",
    "Model",
    "Outputs",
    "Participation",
    "ResourcesConfig",
    "Robustness",
    "Run",
    "RunConfig",
    "SitesConfig",
    "Traffic",
    "Training",
]


class RunConfig(Section):
    """One run, as a config file says it."""

    run: Run = Run()
    federation: FederationConfig = FederationConfig()
    hierarchy: Hierarchy | None = None
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

    def broken_rules(self) -> Iterator[Conflict]:
        for sections, conflicts in BETWEEN.items():
            yield from conflicts(*(getattr(self, name) for name in sections))
        yield from hierarchy_conflicts(self)
        yield from late_conflicts(self)
        if self.sites.count is not None:
            yield from share_conflicts(self.robustness, self.sites.count)
