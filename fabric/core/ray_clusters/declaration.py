"""What is declared of a Ray cluster, for all providers of machines: a head and groups of workers.

The names follow the RayCluster resource (`ray.io/v1`), which `fabric/spec/ray_cluster/` reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import NewType

from ..records import Machine, MachineId
from ..resources import Resources

RayClusterName = NewType("RayClusterName", str)
GroupName = NewType("GroupName", str)
MachineName = NewType("MachineName", str)
"""The name of a machine of a declared Ray cluster; no later machine gets it again."""

LEDGER = "FEDPILOT_LEDGER"
"""The variable of a declared Ray cluster's machines with the folder of its ledger of virtual
clusters, which outlives its heads."""
LEDGER_FILE, HEAD_FILE = "ledger.sqlite", "head.json"
"""What is in that folder: the ledger, and what a new head must know of the one before."""
MACHINES_COME = "FEDPILOT_MACHINES_COME"
"""The variable of machines whose Ray cluster may get more than it has now."""
HEAD = GroupName("headgroup")
"""The group of the head, as KubeRay labels it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTemplate:
    """How a machine of a group starts; a change of it takes another machine."""

    ray_version: str = ""
    """Empty: the version that its provider has."""
    parameters: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of `ray start`, without dashes; amounts and labels are in the fields below."""
    resources: Resources = field(default_factory=Resources)
    """What it offers; CPU, GPU and memory that are not given are those of its host."""
    zeros: tuple[str, ...] = ()
    """Of CPU, GPU and memory those of which it offers nothing: `resources` has no amounts of 0."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    pod: Mapping[str, object] = field(default_factory=dict, hash=False)
    """The pod template as it was declared, for Kubernetes alone."""

    @property
    def amounts(self) -> dict[str, float]:
        """What it offers by name, with the amounts of 0 that were declared."""
        return {**self.resources.to_ray(), **dict.fromkeys(self.zeros, 0.0)}

    @property
    def digest(self) -> str:
        """Equal for equal templates, in every process."""
        fields = (
            self.ray_version,
            dict(self.parameters),
            self.amounts,
            dict(self.labels),
            dict(self.environment),
            dict(self.pod),
        )
        return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


HOST_TIMEOUT_S = 10.0
SILENT_PART = 0.5
"""The part of `host_timeout_s` after which a host counts as silent, and gets nothing new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGroup:
    """Machines that are alike: the head, or a group of workers."""

    name: GroupName
    replicas: int = 1
    """How many are wanted, between `least` and `most`."""
    least: int = 0
    most: int = 1
    template: MachineTemplate = field(default_factory=MachineTemplate)
    hosts: tuple[str, ...] = ()
    """Where they may run; empty: where the provider runs."""
    leaving: tuple[MachineName, ...] = ()
    """The machines that must leave (`scaleStrategy.workersToDelete`)."""
    suspended: bool = False
    """Whether it has no machines for now."""
    hosts_per_replica: int = 1
    """Machines that come and leave together as one replica; more than 1 only in Kubernetes."""
    idle_s: float = 60.0
    """How long a machine must be idle before an autoscaler may take it."""
    drain_s: float = 30.0
    """How long the work on a machine has to leave before the machine does."""
    cost: float = 1.0
    """The price of a machine per hour, in any unit; an autoscaler prefers the cheaper group."""

    @property
    def wanted(self) -> int:
        """How many machines it should have now."""
        return 0 if self.suspended else max(self.least, min(self.replicas, self.most))


class UpgradeKind(StrEnum):
    """What a change of a template does to machines that run."""

    ROLLING = "Rolling"
    """They are replaced, a few at a time."""
    RECREATE = "Recreate"
    """All leave, then new ones start."""
    NONE = "None"
    """They stay as they are; only later machines start by the new template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTolerance:
    """Where Ray's control plane keeps its state, so that a new head goes on with it."""

    redis_address: str = ""
    """`host:port`, or a URL; empty only for Kubernetes."""
    username: str = ""
    password_file: str = ""
    namespace: str = ""
    """Empty: the cluster's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRayCluster:
    """A Ray cluster as it should be."""

    name: RayClusterName
    provider: str = "local"
    head: MachineGroup
    workers: tuple[MachineGroup, ...] = ()
    address: str = ""
    """Of a Ray cluster that exists already (provider `existing`)."""
    token_file: str = ""
    """The file with that Ray's token; empty: it asks for none."""
    python: str = ""
    """The Python of hosts that are reached over SSH; empty: by the path of the site's own."""
    ssh_config: str = ""
    """The file that OpenSSH's client is configured by; empty: the user's own."""
    host_timeout_s: float = HOST_TIMEOUT_S
    """How long a host may say nothing before its machines are lost; it is shown as silent after a
    part of that (`SILENT_PART`)."""
    kube_context: str = ""
    """The context of the kubeconfig; empty: its current one (provider `kuberay`)."""
    namespace: str = ""
    """Of Kubernetes; empty: the one of the context."""
    fault_tolerance: FaultTolerance | None = None
    suspended: bool = False
    in_tree_autoscaling: bool = False
    """Whether Ray's own autoscaler decides how many workers there are."""
    max_unavailable: int = 1
    """How many workers of a group an upgrade may take away at a time."""
    upgrade: UpgradeKind = UpgradeKind.ROLLING

    @property
    def may_grow(self) -> bool:
        """Whether a group may have more machines at some time than at another."""
        return any(each.least < each.most for each in self.workers)

    @property
    def groups(self) -> tuple[MachineGroup, ...]:
        """All groups, the head's first."""
        return self.head, *self.workers

    def largest(self, host: Machine) -> tuple[Machine, ...]:
        """Its machines if all groups are as large as they may be.

        What a group does not say of its machines is as on `host`.
        """
        return tuple(
            Machine(
                id=MachineId(f"{group.name}-{number}"),
                hostname=host.hostname,
                total=Resources.of({**host.total.to_ray(), **group.template.amounts}),
                labels=group.template.labels,
            )
            for group in self.groups
            for number in range(1 if group is self.head else group.most)
        )
