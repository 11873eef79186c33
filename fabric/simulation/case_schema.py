"""The keys of a case file, kind by kind (docs/reference/scheduler-cases.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from ..spec.queues import (
    Department,
    Deserved,
    Name,
    PriorityClass,
    Project,
    QueueSection,
    SchedulerSettings,
    Seconds,
)

Amount = Annotated[float, Field(ge=0, le=10**15)]
"""A petabyte at most, so that the sum over all machines can be counted."""
ByResource = dict[str, Amount]


class CaseSection(QueueSection):
    """A section of a case that a file of queues does not have."""


class Node(CaseSection):
    """A machine."""

    name: Name
    pool: Name = "default"
    capacity: ByResource
    labels: dict[str, str] = Field(default_factory=dict)


class Shape(CaseSection):
    """Schema 2: machines that are not there yet and may come."""

    pool: Name = "default"
    capacity: ByResource
    labels: dict[str, str] = Field(default_factory=dict)
    count: Annotated[int, Field(ge=1)] | None = None
    """How many; by default any number."""


class Used(CaseSection):
    """Schema 2: what a queue held for a while, before the case begins."""

    pool: Name = "default"
    from_s: float
    to_s: float
    amounts: ByResource


class CaseDepartment(Department):
    """A department, and what it held before."""

    usage: list[Used] = Field(default_factory=list)
    """Schema 2."""


class CaseProject(Project):
    """A project, and what it held before."""

    usage: list[Used] = Field(default_factory=list)
    """Schema 2."""


class MemberCounts(CaseSection):
    """How many members a workload has."""

    min: Annotated[int, Field(ge=0, le=100_000)]
    max: Annotated[int, Field(ge=1, le=100_000)]


Policy = Literal["pack", "spread", "strict_pack", "strict_spread"]


class CasePart(CaseSection):
    """Members of a workload that ask for the same."""

    request: ByResource
    """Of each member."""
    members: MemberCounts = MemberCounts(min=1, max=1)
    selector: dict[str, str] = Field(default_factory=dict)
    """A condition for each label, such as `in(a100,h100)`."""
    flexible: bool = False
    group: Annotated[int, Field(ge=0)] = 0
    """Which of the workload's `policies` places it."""
    borrowed: bool = False
    """Whether these members run on what a virtual cluster borrowed: they are surplus, and none is
    started. `members` says nothing then."""


class RunningMember(CaseSection):
    """A running member of a workload with parts."""

    part: Annotated[int, Field(ge=0)]
    """The place of its part in `parts`."""
    node: Name
    gpus: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """The GPUs that it holds, by number; by default the fullest with room."""


class CaseWorkload(CaseSection):
    """A gang in a project."""

    id: Name
    project: Name
    pool: Name = "default"
    priority: int | None = None
    """Left out: the priority of its class."""
    preemptible: bool | None = None
    """By default what its class says, or whether its priority is below 100."""
    members: MemberCounts = MemberCounts(min=1, max=1)
    member_request: ByResource | None = None
    """Left out only if there are `parts`."""
    submit_order: float | None = None
    """By default its position in the list."""
    running_on: list[Name] = Field(default_factory=list)
    """A node for each running member."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    class_: Annotated[str | None, Field(alias="class")] = None
    """Schema 2: its priority class, a preset or one of `classes`; by default `train`."""
    flexible: bool | None = None
    """Schema 2: whether its members above the minimum may claim within the quota of the project; by
    default if its minimum is 0."""
    policy: Policy | None = None
    """Schema 2: how its members are placed among each other."""
    parts: list[CasePart] = Field(default_factory=list)
    """Schema 2: members that differ, in the place of `members`, `member_request`, `node_selector`,
    `flexible`, `policy` and `running_on`."""
    policies: list[Policy | None] = Field(default_factory=list)
    """Schema 2: how the members of each group are placed among each other."""
    running: list[RunningMember] = Field(default_factory=list)
    """Schema 2: the running members of a workload with parts."""
    surplus_yields: bool = False
    """Schema 2: whether members above its minimum give way to minimums of its project even if it is
    not preemptible."""
    movable: bool = True
    """Schema 2: whether consolidation may move it, if it is preemptible."""
    leaves_s: float | None = None
    """Schema 2: when it will have left its places, in a snapshot of a cluster that gave it notice.
    It is not there before: a case without virtual time ends with it waiting."""
    started_s: float | None = None
    """Schema 2: since when its minimum runs; by default since the case begins."""
    waits_since_s: float | None = None
    """Schema 2: since when its minimum does not run; by default since it is submitted."""
    arrives_s: Seconds | None = None
    """When it is submitted, in virtual time; by default at 0."""
    runs_s: Seconds | None = None
    """How long its minimum runs until it ends; by default for ever."""


class CaseSettings(SchedulerSettings):
    """What an admin chooses, and how a replay goes."""

    period_s: Annotated[float, Field(gt=0)] = 1.0
    """How often a replay in virtual time plays a round."""


class RunningTotal(CaseSection):
    """How many members some workloads have together."""

    workloads: list[Name]
    members: Annotated[int, Field(ge=0)]


Counts = dict[str, Annotated[int, Field(ge=0)]]


class SettleExpect(CaseSection):
    """What must be true once the case has settled."""

    running: Counts = Field(default_factory=dict)
    running_total: list[RunningTotal] = Field(default_factory=list)
    running_min: Counts = Field(default_factory=dict)
    any_of: list[Counts] = Field(default_factory=list)
    undisturbed: list[Name] = Field(default_factory=list)
    placement: dict[str, Counts] = Field(default_factory=dict)
    nodes_used: Counts | int | None = None
    stopped: Counts = Field(default_factory=dict)
    waiting: dict[str, str] = Field(default_factory=dict)
    """Schema 2: the rule by which a workload waits."""
    fairshare: dict[str, dict[str, ByResource]] = Field(default_factory=dict)
    """Schema 2: by project, pool and resource."""


class Case(CaseSection):
    """What all kinds have."""

    id: Name
    kind: str
    feature: str = ""
    confidence: str = ""
    summary: str = ""
    source: Any = None


class SchedulerCase(Case):
    """Machines, queues and workloads."""

    nodes: list[Node]
    may_come: list[Shape] = Field(default_factory=list)
    """Schema 2: a request that they could hold counts as possible."""
    classes: list[PriorityClass] = Field(default_factory=list)
    """Schema 2."""
    departments: list[CaseDepartment] = Field(default_factory=list)
    projects: list[CaseProject]
    workloads: list[CaseWorkload] = Field(default_factory=list)
    settings: CaseSettings = CaseSettings()

    @property
    def begins_s(self) -> float:
        """When its clock starts."""
        return 0.0

    @property
    def stops(self) -> bool:
        """Whether work is stopped for other work at all."""
        return True

    @property
    def pools(self) -> set[str]:
        """The pools of its machines, present and to come."""
        return {each.pool for each in self.nodes} | {each.pool for each in self.may_come}

    @property
    def capacities(self) -> list[ByResource]:
        """What each machine has, present or to come."""
        here = [each.capacity for each in self.nodes]
        return here + [each.capacity for each in self.may_come]


class SettleCase(SchedulerCase):
    """A situation that settles."""

    kind: Literal["settle"]
    expect: SettleExpect | None = None


class CaseEvent(CaseSection):
    """What happens at a step."""

    op: Literal["submit", "finish", "node_lost", "node_back"]
    workload: Name | None = None
    node: Name | None = None


class CaseStep(CaseSection):
    """What happens at a time, and what must be true once it has settled."""

    at_s: float
    do: list[CaseEvent] = Field(default_factory=list)
    expect: SettleExpect | None = None


class TimelineCase(SchedulerCase):
    """Situations one after another."""

    kind: Literal["timeline"]
    steps: list[CaseStep]

    @property
    def begins_s(self) -> float:
        return self.steps[0].at_s if self.steps else 0.0


class ShareOf(CaseSection):
    """A queue's claim on one resource."""

    name: Name
    quota: Deserved | None
    over_quota_weight: Deserved | None = None
    """By default the quota."""
    limit: Deserved | None = None
    priority: int = 0
    created_order: int = 0


class QueueClaim(ShareOf):
    """A project's claim."""

    department: Name | None = None
    requested: Deserved


class FairshareExpect(CaseSection):
    """Shares that must come out; queues that are not listed are free."""

    fairshare: dict[str, Deserved] = Field(default_factory=dict)
    department_fairshare: dict[str, Deserved] = Field(default_factory=dict)
    unassigned: Deserved | None = None


class FairshareCase(Case):
    """One resource of one pool, divided."""

    kind: Literal["fairshare"]
    resource: Name
    total: Deserved
    departments: list[ShareOf] = Field(default_factory=list)
    queues: list[QueueClaim]
    settings: dict[str, Any] = Field(default_factory=dict)
    expect: FairshareExpect | None = None


class PhysicalNode(CaseSection):
    """A machine without a pool."""

    name: Name
    capacity: ByResource
    labels: dict[str, str] = Field(default_factory=dict)
    pool: str = "default"


class FixedNode(CaseSection):
    """A fixed-size node."""

    resources: ByResource
    parent_selector: dict[str, list[Name]] = Field(default_factory=dict)


class VirtualClusterSpec(CaseSection):
    """A virtual cluster to create."""

    id: Name
    parent: Name | None = None
    fixed_nodes: list[FixedNode] = Field(default_factory=list)
    fixed_policy: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    flex_min: ByResource = Field(default_factory=dict)
    flex_max: ByResource = Field(default_factory=dict)


class ClusterEvent(CaseSection):
    """What happens to virtual clusters at a step."""

    op: Literal["create_cluster", "end_cluster", "submit_task", "finish_task", "add_node"]
    cluster: Name | None = None
    task: Name | None = None
    resources: ByResource | None = None
    node: Name | None = None
    capacity: ByResource | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class ClusterExpect(CaseSection):
    """What must be true after a step; what is not listed is free."""

    cluster_state: dict[str, Literal["running", "queued"]] = Field(default_factory=dict)
    cluster_total: dict[str, ByResource] = Field(default_factory=dict)
    free: dict[str, ByResource] = Field(default_factory=dict)
    free_total: ByResource = Field(default_factory=dict)
    virtual_nodes: dict[str, dict[str, ByResource]] = Field(default_factory=dict)
    virtual_node_count: Counts = Field(default_factory=dict)
    tasks_running: Counts = Field(default_factory=dict)
    tasks_waiting: Counts = Field(default_factory=dict)
    running_clusters: int | None = None
    queued_clusters: int | None = None
    root_unmet_demand: ByResource | None = None


class ClusterStep(CaseSection):
    """What happens at a time."""

    at_s: float
    do: list[ClusterEvent] = Field(default_factory=list)
    expect: ClusterExpect | None = None


class ClusterSettings(CaseSection):
    """What holds for the whole case."""

    lease_s: Seconds | None = None
    """How long resources are borrowed; by default while they are used."""


class VirtualClusterCase(Case):
    """Virtual clusters on machines."""

    kind: Literal["virtual_cluster"]
    nodes: list[PhysicalNode]
    virtual_clusters: list[VirtualClusterSpec]
    steps: list[ClusterStep]
    settings: ClusterSettings = ClusterSettings()


KINDS: dict[str, type[Case]] = {
    "settle": SettleCase,
    "fairshare": FairshareCase,
    "timeline": TimelineCase,
    "virtual_cluster": VirtualClusterCase,
}


def parts_of(workload: CaseWorkload) -> Sequence[CasePart]:
    """The members that a workload asks for; equal ones are one part."""
    if workload.parts:
        return workload.parts
    flexible = workload.flexible
    return [
        CasePart(
            request=workload.member_request or {},
            members=workload.members,
            flexible=workload.members.min == 0 if flexible is None else flexible,
            selector=workload.node_selector,
        )
    ]
