"""The sections that say where a run is computed, which sites take part, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import Field

from fedpilot.fabric.core.text.amounts import counted, in_bytes
from fedpilot.fabric.strict_yaml.schema_problems import Conflict
from fedpilot.fabric.strict_yaml.wording import Words

from .values import Bytes, Fraction, NonNegativeFloat, Positive, PositiveFloat, Section

SMALLEST_MEMORY = 1_000_000
"""Bytes; less is a size without its unit, since a worker with PyTorch takes over 200 MB."""
ALONE = "local"
"""What the one site of a run is called that has no others."""
SITES_IN_WORDS = Words(
    "a whole number of at least 1, or a section with: count, min_sites, required, site_files"
)


class RayConfig(Section):
    """Which Ray the run uses."""

    address: str | None = Field(default=None, examples=["auto"])
    """`host:port` or `auto` of a running cluster; left out: a private one is started and ended."""
    auth_mode: Literal["token", "disabled"] | None = Field(default=None, examples=["token"])
    """Ray's authentication when connecting; left out: RAY_AUTH_MODE, or `disabled`."""
    num_cpus: Positive | None = Field(default=None, examples=[4])
    """CPUs that a private Ray believes it has; left out: the machine's."""
    num_gpus: Annotated[int, Ge(0)] | None = Field(default=None, examples=[1])
    """GPUs likewise."""

    def broken_rules(self) -> Iterator[Conflict]:
        if self.address is not None and (self.num_cpus is not None or self.num_gpus is not None):
            yield Conflict(
                key="address",
                found="`address` together with `num_cpus` or `num_gpus`",
                allowed="sizes only for a private Ray (no `address`)",
            )


class ResourcesConfig(Section):
    """The gang: the fixed-size vnodes that are reserved together before anything trains."""

    workers: Positive | Literal["auto"] = "auto"
    """Vnodes of the gang, one warm worker on each; `auto`: as many as fit, at most 16."""
    cpus_per_worker: Annotated[float, Ge(0.0)] = 1.0
    """CPUs of a vnode; its whole part, and at least 1, is the number of PyTorch threads."""
    gpus_per_worker: Annotated[float, Ge(0.0)] = 0.0
    """GPUs of a vnode."""
    memory_per_worker: Bytes | None = Field(default=None, examples=["2GB"])
    """Memory of a vnode, as Ray accounts it; at least 1 MB."""
    placement_group_strategy: Literal["SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK"] = "SPREAD"
    """How the vnodes lie on the machines."""
    reserve_timeout: PositiveFloat = 60.0
    """Seconds to wait for a gang that fits the cluster but not at this moment."""
    start_timeout: PositiveFloat = 300.0
    """Seconds that Ray may take to start, or to answer if it runs already, and then the workers."""
    worker_timeout: PositiveFloat = 1800.0
    """Seconds after which a worker that does not answer is taken for dead."""
    worker_restarts: Annotated[int, Ge(0)] = 3
    """Times that the same clients may lose their worker before the run gives up."""
    node_idle_timeout: PositiveFloat = 300.0
    """Seconds after which a VirtualNode that was materialized by itself gives its place back."""
    ray: RayConfig = RayConfig()
    """Which Ray the run uses."""

    @property
    def threads_per_worker(self) -> int:
        return max(1, int(self.cpus_per_worker))

    def broken_rules(self) -> Iterator[Conflict]:
        if not (self.cpus_per_worker or self.gpus_per_worker):
            yield Conflict(
                key="cpus_per_worker",
                found="a vnode without CPUs and GPUs",
                allowed="one of the two above 0",
            )
        memory = self.memory_per_worker
        if memory is not None and memory < SMALLEST_MEMORY:
            yield Conflict(
                key="memory_per_worker",
                found=f"{counted(memory, 'byte')}, less than any worker needs",
                allowed=f"at least {in_bytes(SMALLEST_MEMORY)}, with its unit, such as 2GB",
            )


class SitesConfig(Section):
    """The Ray clusters that take part. `sites: 3` is short for `count: 3`, which starts three on
    this machine, called `site_1` to `site_3`, and ends them with the run. They share its CPUs and
    GPUs out evenly, unless `resources.ray` says what each has; `resources.workers` is of each."""

    count: Positive | None = Field(default=None, examples=[3])
    """So many sites; left out: one, in the process of the run itself."""
    min_sites: Positive | None = Field(default=None, examples=[2])
    """Sites that must have reserved their part of the gang; left out: all."""
    required: list[str] = Field(default=[], examples=[["site_1"]])
    """Names of sites without which the run does not begin."""
    site_files: list[str] = Field(default=[], examples=[["east.yaml", "west.yaml"]])
    """With `data.from: sites`, one for each of `count`: what the sites of this machine declare,
    as a site's admin would write it (`site.yaml`). No policy is asked: the data is yours."""

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
                allowed=f"names among: {', '.join(some)}",
            )


class Participation(Section):
    """The clients that must take part in a round for it to count. By default these are all clients
    of the cohort, and the result's bits depend on no clock. `quorum`, `deadline_s` and
    `over_sampling` let a clock decide. The run then first writes the clients that counted into its
    `journal/`, and a resumed or verified run takes them from there."""

    quorum: Fraction = 1.0
    """Share of the cohort (before over-sampling) that has to count. A round that is closed with
    fewer ends the run, which can be resumed."""
    deadline_s: PositiveFloat | None = Field(default=None, examples=[120.0])
    """Seconds after which a round is closed: what is done by then counts."""
    over_sampling: NonNegativeFloat = Field(default=0.0, examples=[0.25])
    """Clients that are asked beyond the cohort, as a share of it; a round is closed as soon as as
    many as the cohort has are done."""
    replacement: bool = True
    """Whether clients of a lost site that may move are trained at the others; otherwise they wait
    for their site. Clients of a `client_update` always do: what they remember is there."""
    late_updates: Literal["discard", "carry"] = "discard"
    """Updates that arrive after their round was closed. `carry` adds them to a later round, as one
    update per site that counts less the later it is; only for algorithms that take the weighted
    mean, and where a clock closes rounds."""
    staleness_exponent: NonNegativeFloat = 0.5
    """With `carry`: an update that is s rounds late counts `(1 + s) ** -staleness_exponent` of its
    samples (Nguyen et al. 2022)."""
    most_rounds_late: Annotated[int, Gt(0), Le(100)] = 1
    """With `carry`: updates later than so many rounds are discarded. As many models are kept."""
    wait_for_sites_s: NonNegativeFloat = 60.0
    """Seconds that clients wait for the return of a site that has to come back; then the run ends,
    unless the quorum does without them."""
    closing_s: PositiveFloat = 30.0
    """Seconds that sites have to hand up what is done when a round is closed; the chunks that
    workers are at still count."""

    def broken_rules(self) -> Iterator[Conflict]:
        if self.late_updates == "carry":
            if self.deadline_s is None and not self.over_sampling:
                yield Conflict(
                    key="late_updates",
                    found="`carry` without `deadline_s` and `over_sampling`: no update is late",
                    allowed="one of the two, or `discard`",
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
    """The most that one site may add to a round. A site that adds more is named and left out of the
    round, and of the run when it does so again. Without limits a site that stands out is named.
    Impossible answers are always refused."""

    max_site_share: Fraction | None = Field(default=None, examples=[0.5])
    """A site's part of the samples of a round (of the clients, where the algorithm looks at every
    update), at least 1 / sites. It is not applied while fewer sites than it needs are there; see
    `sites.min_sites`."""
    max_update_norm: PositiveFloat | None = Field(default=None, examples=[10.0])
    """The Euclidean norm of a site's mean update, over all tensors that are averaged."""


class Traffic(Section):
    """The most bytes that a run may send to its sites and get from them, both directions together.
    A round that would need more is not begun: the run ends, and can be resumed with other limits.
    Where a mediator carries the orders, bytes are those on the wire, otherwise those of tensors."""

    round_bytes: Bytes | None = Field(default=None, examples=["500MB"])
    """Of all sites in one round; a round that is run again after an interruption counts anew."""
    run_bytes: Bytes | None = Field(default=None, examples=["20GB"])
    """Of all sites in the whole run, interrupted rounds too."""
    site_bytes: Bytes | None = Field(default=None, examples=["5GiB"])
    """Of any one site in the whole run."""


class Outputs(Section):
    """What is kept."""

    folder: str = "runs"
    """Where run folders are made."""
    checkpoint_every: Positive = 1
    """Rounds between checkpoints; the last two and the best are kept."""
    curves: bool = True
    """Draw `curves.png` at the end."""
    client_digests: bool = False
    """Keep the digests of what every client of every round became in `clients.jsonl`, so that
    `fedpilot runs verify` can name the client at which two runs part."""
    tensorboard: bool = False
    """Write TensorBoard event files too (needs `pip install fedpilot[tensorboard]`)."""
