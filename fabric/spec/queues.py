"""The keys of an admin's file of queues: pools, departments, projects, classes and settings.

A case for `fedpilot simulate` has the same sections for its queues (`simulation/case_schema.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from fedpilot.common.strict_yaml.records import Strict
from fedpilot.common.strict_yaml.wording import Words

Deserved = Annotated[float, Field(ge=0, le=10**18)]
"""Of a whole pool."""
Seconds = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(min_length=1), Words("text that is not empty")]
_OF_A_POOL = Words("the amounts of a pool, such as `default: {CPU: 8}`")
Quotas = dict[str, Annotated[dict[str, Deserved | None], _OF_A_POOL]]
"""By pool and resource; null is unlimited."""
Weights = dict[str, Annotated[dict[str, Deserved], _OF_A_POOL]]

DEFAULT_PROJECT = "default"
"""The project of requests that name none."""
DEFAULT_POOL = "default"
"""The pool of machines that match no other."""


class QueueSection(Strict):
    """Built when it is first used, since a file seldom has sections of all kinds."""

    model_config = ConfigDict(defer_build=True)


class Pool(QueueSection):
    """Machines with queues of their own. A machine belongs to the first pool that it matches, or to
    `default`."""

    name: Name
    """Unique, without `/`."""
    selector: dict[str, str]
    """A condition for each label, such as `gpu-type: in(a100,h100)`; a machine must meet all."""


class Department(QueueSection):
    """Projects with a common quota."""

    name: Name
    """Unique among departments and projects, without `/`."""
    quota: Quotas = Field(default_factory=dict)
    """What it deserves, by pool and resource; null is unlimited. If one queue of a pool names a
    resource, all must."""
    over_quota_weight: Weights = Field(default_factory=dict)
    """Its claim on what no quota uses, relative to its siblings', by pool and resource; by default
    its quota."""
    limit: Quotas = Field(default_factory=dict)
    """The most that it may ever hold, by pool and resource."""
    priority: int = 0
    """Queues of a higher priority are served first."""
    min_runtime_before_preempt_s: Seconds | None = None
    """How long its work runs before work of higher priority in the same project may stop it."""
    min_runtime_before_reclaim_s: Seconds | None = None
    """How long its work runs before another queue may take back what is above the quota."""


class Project(Department):
    """A queue for workloads, alone or in a department."""

    department: Name | None = None
    """The department that it belongs to."""
    reclaimable: bool = True
    """False protects the minimums of its workloads from other queues, not their surplus."""


class DeclaredProject(Project):
    """A queue for workloads, alone or in a department."""

    users: Annotated[list[Name], Field(min_length=1)] | None = None
    """Who may submit: the name in a certificate, a user account, or `role:` with a role; by default
    everybody."""
    classes: Annotated[list[Name], Field(min_length=1)] | None = None
    """The priority classes that its workloads may have; by default all."""


class PriorityClass(QueueSection):
    """A priority class beside the presets `inference` (125), `build` (100),
    `interactive-preemptible` (75) and `train` (50)."""

    name: Name
    """Unique, without `/`."""
    priority: int
    """Work of higher priority is served first."""
    preemptible: bool | None = None
    """Whether its work may be stopped for others; by default if its priority is below 100."""


class PlacementSettings(QueueSection):
    """A strategy for each kind of work."""

    gpu: Literal["binpack", "spread"] = "binpack"
    """For work that asks for GPUs."""
    cpu: Literal["binpack", "spread"] = "binpack"
    """For all other work."""


class SchedulerSettings(QueueSection):
    """What an admin chooses for the whole scheduler."""

    placement: PlacementSettings = PlacementSettings()
    """Whether work fills machines (`binpack`) or spreads over them."""
    pool_placement: dict[str, PlacementSettings] = Field(default_factory=dict)
    """Placement by pool, instead of `placement`."""
    consolidation: bool = False
    """Whether preemptible work may be moved to make one large room of several small ones."""
    stale_gang_grace_s: float = 60.0
    """How long a gang may run below its minimum before it is stopped; negative: for ever."""
    surplus_claims: Literal["in-quota", "none"] = "in-quota"
    """Whether flexible members claim within quota, or never."""
    usage_effect: Annotated[float, Field(ge=0)] = 0.0
    """How strongly past usage moves the weights; 0: not at all."""
    usage_half_life_s: Annotated[float, Field(gt=0)] | None = None
    """How old usage counts half; by default all counts the same."""
    starvation_s: Seconds | None = None
    """After how long a wait machines are kept free for a workload; by default never."""
    saturation_multiplier: Annotated[float, Field(ge=1)] = 1.0
    """How much fuller than a sibling a queue counts when it claims."""
    min_runtime_at_leaf: bool = False
    """Whether reclaim reads the minimum runtime of the victim's project first; by default it reads
    the one of the branch just below what claimant and victim have in common."""


class QueueSettings(SchedulerSettings):
    """What an admin chooses for the whole scheduler."""

    grace_s: Seconds = 10.0
    """How long work that must leave may take to end by itself."""


class QueuesSection(QueueSection):
    """A file of queues."""

    pools: list[Pool] = Field(default_factory=list)
    """Kinds of machines; those that match none are in the pool `default`."""
    departments: list[Department] = Field(default_factory=list)
    """Groups of projects with a common quota."""
    projects: list[DeclaredProject] = Field(default_factory=list)
    """The queues for workloads."""
    classes: list[PriorityClass] = Field(default_factory=list)
    """Priority classes beside the presets."""
    settings: QueueSettings = QueueSettings()
