"""The sections that say where a run is computed, which sites take part, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import Field

from fedpilot.common.strict_yaml.schema_problems import Conflict
from fedpilot.common.strict_yaml.wording import Words

from .values import Bytes, Fraction, NonNegativeFloat, Positive, PositiveFloat, Section
from .vnode_classes import (
    VNodeClassConfig,
    WorkersRange,
    class_conflicts,
    device_of,
    size_conflicts,
    threads_of,
)

ALONE = "local"
"""What the one site of a run is called that has no others."""
SITES_IN_WORDS = Words(
    "a whole number of at least 1, or a section with: count, min_sites, required, site_files"
)


class RayConfig(Section):
    """Which Ray the run uses."""

    address: str | None = Field(default=None, examples=["auto"])
    """`host:port` of a running cluster, or `auto`. Without this and `cluster` the run starts a
    private Ray and ends it."""
    cluster: str | None = Field(default=None, examples=["cluster.yaml"])
    """A file that declares a Ray cluster, which the run starts and ends; one of the provider
    `existing` runs already, and goes on."""
    auth_mode: Literal["token", "disabled"] | None = Field(default=None, examples=["token"])
    """Authentication of the running cluster; left out: RAY_AUTH_MODE, or `disabled`."""
    num_cpus: Positive | None = Field(default=None, examples=[4])
    """CPUs of a private Ray; left out: all CPUs of the machine."""
    num_gpus: Annotated[int, Ge(0)] | None = Field(default=None, examples=[1])
    """GPUs of a private Ray; left out: all GPUs of the machine."""

    @property
    def is_private(self) -> bool:
        """Whether the run starts a Ray inside its own process."""
        return self.address is None and self.cluster is None

    def broken_rules(self) -> Iterator[Conflict]:
        sized = self.num_cpus is not None or self.num_gpus is not None
        if self.address is not None and sized:
            yield Conflict(
                key="address",
                found="`address` together with `num_cpus` or `num_gpus`",
                allowed="`num_cpus` and `num_gpus` only for a private Ray (no `address`)",
            )
        if self.cluster is not None and (
            sized or self.address is not None or self.auth_mode is not None
        ):
            yield Conflict(
                key="cluster",
                found="`cluster` together with another key of `resources.ray`",
                allowed="`cluster` alone: the file says what the Ray cluster has",
            )


class ResourcesConfig(Section):
    """The gang: fixed-size vnodes that the run reserves together before anything trains."""

    workers: Positive | Literal["auto"] | WorkersRange = "auto"
    """Vnodes of the gang, with one warm worker each; `auto`: as many as fit, at most 16. With
    `{min: 2, max: 8}` the run begins with 2 at each site. On a Ray cluster that teams share, more
    come while they are free, and leave when others need their places; a private Ray has as many as
    fit. The model is the same."""
    cpus_per_worker: Annotated[float, Ge(0.0)] = 1.0
    """CPUs of a vnode. PyTorch uses that many threads, rounded down, but at least 1."""
    gpus_per_worker: Annotated[float, Ge(0.0)] = 0.0
    """GPUs of a vnode."""
    memory_per_worker: Bytes | None = Field(default=None, examples=["2GB"])
    """Memory of a vnode, in Ray's accounting; at least 1 MB."""
    groups: Annotated[list[VNodeClassConfig], MinLen(1)] | None = Field(
        default=None,
        examples=[
            [
                {"name": "large", "workers": 1, "clients": {"share": 0.2}},
                {"name": "small", "workers": 4},
            ]
        ],
    )
    """Vnode classes, in the place of `workers`, `cpus_per_worker`, `gpus_per_worker` and
    `memory_per_worker`: the gang has vnodes of each, and a client trains on those of its class
    only. If the classes differ in threads, or in having GPUs, they decide bits, and the first one
    evaluates the coordinator's test set. Left out: one class."""
    store_bytes: Bytes | None = Field(default=None, examples=["1GB"])
    """Memory for the models that a site keeps; more lie in files. Left out: 1 GiB for global models
    and what single clients publish, and for clients' models on a graph 30 % of the machine's
    memory, which the sites of a machine share."""
    placement_group_strategy: Literal["SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK"] = "SPREAD"
    """How Ray places the vnodes on machines."""
    reserve_timeout: PositiveFloat = 60.0
    """Seconds to wait for free resources, if the cluster is large enough for the gang."""
    start_timeout: PositiveFloat = 300.0
    """Seconds that Ray may take to start, or to answer; then the workers have the same time."""
    worker_timeout: PositiveFloat = 1800.0
    """Seconds without an answer after which the run treats a worker as dead."""
    worker_restarts: Annotated[int, Ge(0)] = 3
    """How often the same clients may lose their worker before the run fails."""
    node_idle_timeout: PositiveFloat = 300.0
    """Idle seconds after which the run releases a VirtualNode that was materialized outside a
    round."""
    project: str | None = Field(default=None, examples=["vision"])
    """The project whose queue the gang waits in, on a Ray cluster that teams share; left out:
    `default`. A private Ray has no queues."""
    pool: str | None = Field(default=None, examples=["gpus"])
    """The node pool there; left out: the first one that could hold the gang."""
    priority_class: str | None = Field(default=None, examples=["train"])
    """Its priority class there; left out: `train`, which others may stop: then the run waits until
    it has its places again."""
    ray: RayConfig = RayConfig()
    """Which Ray the run uses."""

    @property
    def classes(self) -> tuple[ResourcesConfig | VNodeClassConfig, ...]:
        """The sizes of its vnodes: those of `groups`, or the one of this section."""
        return (self,) if self.groups is None else tuple(self.groups)

    @property
    def alike(self) -> bool:
        """Whether a client gets the same bits on each of its vnodes."""
        return len({(threads_of(each), device_of(each)) for each in self.classes}) == 1

    def broken_rules(self) -> Iterator[Conflict]:
        if self.groups is None:
            yield from size_conflicts(self)
            return
        for key in ("workers", "cpus_per_worker", "gpus_per_worker", "memory_per_worker"):
            if getattr(self, key) != type(self).model_fields[key].default:
                yield Conflict(
                    key=key,
                    found=f"`{key}` together with `groups`",
                    allowed=f"leave it out: each of `groups` has its own `{key}`",
                )
        yield from class_conflicts(self.groups)


class SitesConfig(Section):
    """The Ray clusters that take part. `sites: 3` is short for `count: 3`. Without a mediator, it
    starts `site_1` to `site_3` on this machine, and ends them with the run. They share its CPUs and
    GPUs evenly, unless `resources.ray` gives the size of each. `resources.workers` is per site."""

    count: Positive | None = Field(default=None, examples=[3])
    """Number of sites; left out: one, in the process of the run itself. At a mediator, the run
    takes this many of the ready sites; left out: all of them."""
    min_sites: Positive | None = Field(default=None, examples=[2])
    """Sites that must have reserved their part of the gang; left out: all sites of the run."""
    required: list[str] = Field(default=[], examples=[["site_1"]])
    """Names of sites without which the run does not begin."""
    site_files: list[str] = Field(default=[], examples=[["east.yaml", "west.yaml"]])
    """With `data.from: sites` and no mediator: a `site.yaml` for each of `count` sites. No policy
    applies, since the data is yours."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the sites of this machine are called."""
        count = self.count or 1
        return (ALONE,) if count == 1 else tuple(f"site_{i}" for i in range(1, count + 1))

    def broken_rules(self) -> Iterator[Conflict]:
        if self.site_files and len(self.site_files) != len(self.names):
            yield Conflict(
                key="site_files",
                found=f"{len(self.site_files)} files for {len(self.names)} sites",
                allowed="one for each site, or none",
            )
        if self.count is None:
            return
        if self.min_sites is not None and self.min_sites > self.count:
            yield Conflict(
                key="min_sites",
                found=f"at least {self.min_sites} sites out of {self.count}",
                allowed=f"at most `count` ({self.count})",
            )
        if unknown := [name for name in self.required if name not in self.names]:
            some = self.names if len(self.names) < 4 else (self.names[0], "...", self.names[-1])
            yield Conflict(
                key="required",
                found=f"no site of this run is called {', '.join(unknown)}",
                allowed=f"names of its sites: {', '.join(some)}",
            )


class Participation(Section):
    """The clients that must take part in a round for it to count. By default these are all clients
    of the cohort, and the result's bits depend on no clock. `quorum`, `deadline_s` and
    `over_sampling` let a clock decide. The run then writes the clients that counted to its
    `journal/` before it uses their updates. A resumed or verified run reads them there."""

    quorum: Fraction = 1.0
    """Share of the cohort (before over-sampling) that must count. If a round closes with fewer
    clients, the run ends and can be resumed. On a graph, the clients of a lost site sit out as
    long as at least this share of the clients is left, and the graph among them is connected."""
    deadline_s: PositiveFloat | None = Field(default=None, examples=[120.0])
    """Seconds after which a round closes; the clients that are done by then count."""
    over_sampling: NonNegativeFloat = Field(default=0.0, examples=[0.25])
    """Extra clients to ask, as a share of the cohort. The round closes once as many clients are
    done as the cohort has."""
    replacement: bool = True
    """Whether other sites train the movable clients of a lost site; otherwise these wait for their
    site. With a `client_update`, and on a graph without `replicate_every`, clients always wait,
    since their state is at their site."""
    late_updates: Literal["discard", "carry"] = "discard"
    """What happens to updates that arrive after their round closed. `carry` adds them to a later
    round, with less weight the later they are. It needs `fedavg`, and a clock that closes
    rounds."""
    staleness_exponent: NonNegativeFloat = 0.5
    """With `carry`: an update that is s rounds late counts `(1 + s) ** -staleness_exponent` of its
    samples (Nguyen et al. 2022)."""
    most_rounds_late: Annotated[int, Gt(0), Le(100)] = 1
    """With `carry`: most rounds that an update may be late; the run discards later ones. It keeps
    as many earlier models."""
    replicate_every: Positive | None = Field(default=None, examples=[10])
    """On a graph over several sites: rounds between replicas, for which each site copies its
    clients' models to another site. If a site then stays away for `wait_for_sites_s`, the run goes
    back to the replica's round, and its clients go on at that other site, with the same bits. Left
    out: no replicas."""
    reassign_every: Positive | None = Field(default=None, examples=[20])
    """On a graph over several sites, with `assignment: locality`: rounds between decisions whether
    clients move to other sites, by the links as the mediator has measured them by then, and by the
    paces that the sites' rounds have shown. They move if that saves more time in the rounds left
    than it takes to move their models, at most a tenth of a site's clients at a time. Left out:
    clients stay where the run began with them."""
    wait_for_sites_s: NonNegativeFloat = 60.0
    """Seconds to wait for a site that must return. Then the run ends, unless the quorum allows a
    round without its clients, or there is a replica of what they have."""
    closing_s: PositiveFloat = 30.0
    """Seconds that sites have to send finished work after a round closes. Chunks that workers are
    training at that moment still count."""

    @property
    def copies_states(self) -> bool:
        """Whether sites copy what their clients keep to other sites."""
        return self.replicate_every is not None or self.reassign_every is not None

    def broken_rules(self) -> Iterator[Conflict]:
        if self.late_updates == "carry":
            if self.deadline_s is None and not self.over_sampling:
                yield Conflict(
                    key="late_updates",
                    found="`carry` without `deadline_s` and `over_sampling`: no update is late",
                    allowed="one of these keys, or `discard`",
                )
            return
        for key in ("staleness_exponent", "most_rounds_late"):
            if getattr(self, key) != type(self).model_fields[key].default:
                yield Conflict(
                    key=key,
                    found=f"`{key}` with `late_updates: discard`",
                    allowed="leave it out, or `late_updates: carry`",
                )


class Robustness(Section):
    """The most that one site, or one client, may add to a round. The run names a site that adds
    more, and leaves it out of the round, or out of the run if it does so again. A client's update
    is scaled down instead. Without limits, the run only names sites that stand out. It always
    refuses impossible answers."""

    max_site_share: Fraction | None = Field(default=None, examples=[0.5])
    """Share of a round's samples (of its clients, with a strategy that keeps every update) from one
    site; at least 1 / sites. The limit is not applied while there are too few sites to keep it; see
    `sites.min_sites`."""
    max_update_norm: PositiveFloat | None = Field(default=None, examples=[10.0])
    """Euclidean norm of a site's mean update, over all averaged tensors."""
    max_client_norm: PositiveFloat | None = Field(default=None, examples=[2.0])
    """Euclidean norm of a client's update, over all trained tensors. The worker that trains a
    client scales a larger update down to it (Sun et al. 2019)."""


class Traffic(Section):
    """The most bytes between a run and its sites, both directions together. The run ends before a
    round that would need more, and can be resumed with higher limits. With a mediator, the bytes on
    the wire count; without one, the bytes of tensors."""

    round_bytes: Bytes | None = Field(default=None, examples=["500MB"])
    """Limit for all sites in one round. A round repeated after an interruption counts from 0."""
    run_bytes: Bytes | None = Field(default=None, examples=["20GB"])
    """Limit for all sites in the whole run, including interrupted rounds."""
    site_bytes: Bytes | None = Field(default=None, examples=["5GiB"])
    """Limit for each site in the whole run."""


class Outputs(Section):
    """The files that the run keeps."""

    folder: str = "runs"
    """Folder for run folders."""
    checkpoint_every: Positive = 1
    """Rounds between checkpoints. The run keeps the last two, and the best model."""
    curves: bool = True
    """Draw `curves.png` at the end of the run."""
    client_digests: bool = False
    """Record a digest of every client's result in every round in `clients.jsonl`, so that
    `fedpilot runs verify` can name the client where two runs first differ."""
    tensorboard: bool = False
    """Also write TensorBoard event files (needs `pip install fedpilot[tensorboard]`)."""
