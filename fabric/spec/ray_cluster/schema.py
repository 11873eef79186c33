"""The keys of the document `RayCluster`: those of KubeRay (`ray.io/v1`), and sections `fedpilot`.

A key means what it means in KubeRay. Keys that only Kubernetes can do need the provider `kuberay`;
with another provider they are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from fedpilot.common.strict_yaml.records import Strict
from fedpilot.common.strict_yaml.wording import Words

MOST_REPLICAS = 2**31 - 1
"""KubeRay's default of `maxReplicas`."""
DOTS = "..."
"""How figure 7 of the paper prints a pod template; it stands for an empty one."""

ClusterProvider = Literal["local", "ssh", "existing", "kuberay", "fake"]
Count = Annotated[int, Field(ge=0, le=MOST_REPLICAS)]
IdleOrDrain = Annotated[float, Field(ge=0, le=10**9)]
WholeSeconds = Annotated[int, Field(ge=0, le=MOST_REPLICAS)]
FilledText = Annotated[str, Field(min_length=1), Words("text that is not empty")]
Labels = dict[str, str]
Kubernetes = Annotated[dict[str, object], Words("a section as Kubernetes defines it")]
"""A section that fedpilot hands on to KubeRay unread."""
Template = Annotated[dict[str, object] | Literal["..."], Words("a pod template")]
Quantity = Annotated[str | int | float, Words("a quantity, such as 2, 500m or 4Gi")]


def _as_text(value: object) -> object:
    """A number or a truth value as `ray start` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, int | float) else value


Parameter = Annotated[str, BeforeValidator(_as_text), Words("text, or a number")]


class RayClusterPart(Strict):
    """A section of the document. Keys are spelled as in Kubernetes."""

    model_config = ConfigDict(alias_generator=to_camel, defer_build=True)


class ClusterMetadata(RayClusterPart):
    """How the cluster is called."""

    name: str | None = None
    """A DNS label: at most 63 lower-case letters, digits and `-`. A name that the caller gives
    replaces it; without either, a file's own name counts, without its ending."""
    namespace: FilledText | None = None
    """The namespace in Kubernetes; for `kuberay`."""
    labels: Labels | None = None
    """Labels of the resource in Kubernetes; for `kuberay`."""
    annotations: Labels | None = None
    """Annotations of the resource in Kubernetes; for `kuberay`."""


class FedpilotOfCluster(RayClusterPart):
    """What fedpilot adds for the whole cluster; KubeRay never sees it."""

    provider: ClusterProvider = "local"
    """Where its machines come from: this computer, hosts over SSH, a Ray that runs already,
    KubeRay, or a fake for tests."""
    hosts: list[FilledText] | None = None
    """The hosts, as `host` or `user@host`, of groups that name none; for `ssh`."""
    python: str | None = None
    """The absolute path of the hosts' Python, which has the site's versions of fedpilot and Ray;
    by default the path of the site's own; for `ssh`."""
    ssh_config: str | None = None
    """The absolute path of a file that configures OpenSSH's client (`ssh -F`); by default that of
    the user who serves the site; for `ssh`."""
    host_timeout_seconds: Annotated[float, Field(ge=2, le=3600)] | None = None
    """How long a host may say nothing before its machines are lost, and start on other hosts; by
    default 10; for `ssh`."""
    address: str | None = None
    """The `host:port` of a Ray cluster that runs already, or `auto`; for `existing`."""
    token_file: str | None = None
    """The absolute path of a file with that Ray's token; by default it asks for none; for
    `existing`."""
    kube_context: FilledText | None = None
    """The context of the kubeconfig that names the API server, the account and the namespace; by
    default its current one; for `kuberay`."""
    idle_seconds: IdleOrDrain | None = None
    """How long a machine must be idle before an autoscaler may take it; by default 60."""
    drain_seconds: IdleOrDrain | None = None
    """How long the work on a machine has to leave before the machine does; by default 30."""
    max_unavailable: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] | None = None
    """How many workers of a group an upgrade may take away at a time; by default 1."""
    redis_password_file: str | None = None
    """The absolute path of a file with the password of `gcsFaultToleranceOptions`' Redis."""


class FedpilotOfGroup(RayClusterPart):
    """What fedpilot adds for a group; KubeRay never sees it."""

    hosts: list[FilledText] | None = None
    """The hosts that its machines may run on; by default those of the cluster; for `ssh`."""
    idle_seconds: IdleOrDrain | None = None
    """How long a machine must be idle before an autoscaler may take it; by default the
    cluster's."""
    drain_seconds: IdleOrDrain | None = None
    """How long the work on a machine has to leave; by default the cluster's."""
    cost: Annotated[float, Field(ge=0, le=10**18)] = 1.0
    """The price of a machine per hour, in any unit; an autoscaler prefers the cheaper group."""


class GroupOfMachines(RayClusterPart):
    """Machines that are alike."""

    ray_start_params: dict[str, Parameter] | None = None
    """Parameters of `ray start`, without dashes. `num-cpus`, `num-gpus`, `memory` (bytes),
    `resources` (JSON) and `labels` (`k=v,k2=v2`) say what a machine offers."""
    resources: dict[str, Quantity] | None = None
    """What a machine offers, as Kubernetes quantities by name: `CPU`, `GPU`, `memory`, or a custom
    one; instead of the amounts in `rayStartParams`."""
    labels: Labels | None = None
    """Its labels in Ray; instead of `labels` in `rayStartParams`."""
    template: Template | None = None
    """The pod template. The first container's `resources` say what a machine offers where neither
    `resources` nor `rayStartParams` does, and its `env` is the machine's environment; all else is
    for `kuberay`."""
    fedpilot: FedpilotOfGroup | None = None
    """What fedpilot adds for this group."""


class HeadGroup(GroupOfMachines):
    """The machine with Ray's control plane."""

    replicas: int | None = None
    """Must be 1, as early versions of KubeRay had it; it has no effect."""
    service_type: FilledText | None = None
    """The kind of the head's Kubernetes service; without effect except for `kuberay`."""
    head_service: Kubernetes | None = None
    """For `kuberay`."""
    enable_ingress: bool | None = None
    """For `kuberay`."""
    ingress_options: Kubernetes | None = None
    """For `kuberay`."""


class ScaleStrategy(RayClusterPart):
    """Which machines leave when a group shrinks."""

    workers_to_delete: list[FilledText] = Field(default_factory=list)
    """The machines that must leave, by name."""


class WorkerGroup(GroupOfMachines):
    """A group of workers."""

    group_name: str
    """Unique; letters, digits, `-`, `_` and `.`, 63 at most; not `headgroup`."""
    replicas: Count | None = None
    """How many machines are wanted, from `minReplicas` to `maxReplicas`; by default
    `minReplicas`."""
    min_replicas: Count | None = None
    """The fewest machines; by default 0."""
    max_replicas: Count | None = None
    """The most machines. By default a group never grows beyond its `replicas`; for `kuberay`,
    KubeRay's own default, 2147483647."""
    suspend: bool = False
    """Whether the group has no machines for now."""
    scale_strategy: ScaleStrategy | None = None
    """Which machines leave."""
    idle_timeout_seconds: WholeSeconds | None = None
    """KubeRay's spelling of `fedpilot.idleSeconds`."""
    num_of_hosts: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    """Machines per replica; more than 1 only for `kuberay`."""
    priority: int | None = None
    """Ray's autoscaler prefers groups of higher priority; for `kuberay`."""


class RedisCredential(RayClusterPart):
    """A name or a password."""

    value: str | None = None
    """The value itself; no password, except for `kuberay`."""
    value_from: Kubernetes | None = None
    """Where Kubernetes has it; for `kuberay`."""


class GcsFaultTolerance(RayClusterPart):
    """Where Ray's control plane keeps its state, so that a new head goes on with it."""

    backend: Literal["redis", "rocksdb"] | None = None
    """What keeps the state; `rocksdb` is for `kuberay`."""
    redis_address: str | None = None
    """`host:port`, `redis://host:port` or `rediss://host:port`; required, except for `kuberay`."""
    redis_username: RedisCredential | None = None
    """The user in Redis."""
    redis_password: RedisCredential | None = None
    """For `kuberay`; otherwise `spec.fedpilot.redisPasswordFile`."""
    external_storage_namespace: str | None = None
    """The prefix of its keys in Redis; by default the cluster's own."""
    storage: Kubernetes | None = None
    """The volume of `rocksdb`; for `kuberay`."""


class AutoscalerOptions(RayClusterPart):
    """How Ray's own autoscaler works."""

    idle_timeout_seconds: WholeSeconds | None = None
    """KubeRay's spelling of `spec.fedpilot.idleSeconds`."""
    upscaling_mode: Literal["Default", "Aggressive", "Conservative"] | None = None
    """For `kuberay`."""
    version: Literal["v1", "v2"] | None = None
    """For `kuberay`."""
    resources: Kubernetes | None = None
    """For `kuberay`."""
    image: str | None = None
    """For `kuberay`."""
    image_pull_policy: str | None = None
    """For `kuberay`."""
    security_context: Kubernetes | None = None
    """For `kuberay`."""
    env: list[Kubernetes] | None = None
    """For `kuberay`."""
    env_from: list[Kubernetes] | None = None
    """For `kuberay`."""
    volume_mounts: list[Kubernetes] | None = None
    """For `kuberay`."""
    command: list[str] | None = None
    """For `kuberay`."""
    args: list[str] | None = None
    """For `kuberay`."""


class UpgradeStrategy(RayClusterPart):
    """What a change of a template does to machines that run."""

    type: Literal["Recreate", "None"] | None = None
    """`Recreate` takes all of them first and starts new ones; `None` leaves them. By default
    fedpilot replaces a few at a time (`spec.fedpilot.maxUnavailable`), and KubeRay leaves them."""


class ClusterSpec(RayClusterPart):
    """What the cluster should be."""

    ray_version: str | None = None
    """The version of Ray; by default the one that the provider has."""
    head_group_spec: HeadGroup | None = None
    """The head. Required, except for `existing`."""
    worker_group_specs: list[WorkerGroup] = Field(default_factory=list)
    """The groups of workers."""
    gcs_fault_tolerance_options: GcsFaultTolerance | None = None
    """Makes Ray's control plane outlive its head."""
    suspend: bool = False
    """Whether the cluster has no machines for now."""
    enable_in_tree_autoscaling: bool = False
    """Whether Ray's own autoscaler decides how many workers there are."""
    autoscaler_options: AutoscalerOptions | None = None
    """Options of an autoscaler."""
    upgrade_strategy: UpgradeStrategy | None = None
    """What a change of a template does to machines that run."""
    fedpilot: FedpilotOfCluster = FedpilotOfCluster()
    """What fedpilot adds."""
    auth_options: Kubernetes | None = None
    """For `kuberay`."""
    managed_by: str | None = None
    """For `kuberay`."""
    head_service_annotations: Labels | None = None
    """For `kuberay`."""
    history_server_options: Kubernetes | None = None
    """For `kuberay`."""
    network_policy: Kubernetes | None = None
    """For `kuberay`."""
    tls_options: Kubernetes | None = None
    """For `kuberay`."""


class RayClusterSection(RayClusterPart):
    """A declared Ray cluster."""

    api_version: Literal["ray.io/v1"] | None = None
    """KubeRay's version of the resource."""
    kind: Literal["RayCluster"] | None = None
    """The kind of resource."""
    metadata: ClusterMetadata = ClusterMetadata()
    """How the cluster is called."""
    spec: ClusterSpec
    """What it should be."""
