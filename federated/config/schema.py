"""What a run's configuration may say: every key, its type, its default and what it means.

The sections follow the concerns of a run. Key names that the FedPilot documentation gives
(`dataset_type`, `data_distribution_kind`, `number_of_epochs`, `placement_group_strategy`, ...)
are kept. Unknown keys and wrong types are refused (strict, no coercion but int to float); rules
that span keys are told by `broken_rules`, which names the key to change. Whatever needs the data
or the model (more clients than samples, a model that does not fit the data) is checked later, in
`materials`, and still before anything is started.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Le, Len, Lt, MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fedpilot.fabric.core.sizes import SIZE_IN_WORDS, bytes_of


@dataclass(frozen=True, slots=True)
class Words:
    """What a type allows, in words, where its own rule (a pattern) would read badly."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A rule between keys that is broken."""

    key: str
    """The key to change, relative to its section."""
    found: str
    """What the config says."""
    allowed: str
    """What would hold."""


def conflicting(*conflicts: Conflict) -> PydanticCustomError:
    """All the rules that one section breaks, as the one error that pydantic lets it raise."""
    text = "; ".join(f"{each.found} (allowed: {each.allowed})" for each in conflicts)
    return PydanticCustomError("conflicting_keys", "{text}", {"text": text, "conflicts": conflicts})


def only_plain(options: dict[str, Any]) -> dict[str, Any]:
    """Refuse what a config file cannot hold, so that a run can always be written down."""
    if refused := tuple(_not_plain(options, "options")):
        raise conflicting(*refused)
    return options


def size(value: Any) -> Any:
    """Bytes from a text that says some; anything else is left to the type's own check."""
    found = bytes_of(value) if isinstance(value, str) else None
    return value if found is None else found


def number_in_words(number: float) -> str:
    """What a number is called, the ones that are not finite as YAML spells them."""
    spelled = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}
    return f"the number {spelled.get(str(number), number)}"


def _not_plain(value: object, key: str) -> Iterator[Conflict]:
    plain = "text, numbers, true, false, null, and lists and sections of those"
    match value:
        case None | bool() | int():
            return
        case float():
            if not math.isfinite(value):
                yield Conflict(key=key, found=number_in_words(value), allowed="a finite number")
        case str():
            if value != value.encode(errors="ignore").decode():
                yield Conflict(key=key, found="half of a surrogate pair", allowed="Unicode text")
        case list():
            for index, item in enumerate(value):
                yield from _not_plain(item, f"{key}[{index}]")
        case dict():
            for name, item in value.items():
                if isinstance(name, str):
                    yield from _not_plain(name, key)
                    yield from _not_plain(item, f"{key}.{name}")
                else:
                    yield Conflict(key=key, found=f"{name!r} as a key", allowed="text as a key")
        case _:
            yield Conflict(
                key=key, found=f"a value of type `{type(value).__name__}`", allowed=plain
            )


Positive = Annotated[int, Gt(0)]
Fraction = Annotated[float, Gt(0.0), Le(1.0)]
PositiveFloat = Annotated[float, Gt(0.0)]
NonNegativeFloat = Annotated[float, Ge(0.0)]
Options = Annotated[dict[str, Any], AfterValidator(only_plain)]
Bytes = Annotated[int, BeforeValidator(size), Gt(0), Lt(2**63), Words(SIZE_IN_WORDS)]
ALONE = "local"
"""What the one site of a run is called that has no others."""
SITES_IN_WORDS = Words(
    "a whole number of at least 1, or a section with: count, min_sites, required, site_files"
)

DistributionKind = Literal[
    "iid", "dirichlet", "shards", "quantity", "natural", "fixed", "bootstrap"
]

DISTRIBUTION_KEYS: dict[str, tuple[str, ...]] = {
    "iid": (),
    "dirichlet": ("dirichlet_beta",),
    "shards": ("labels_per_client",),
    "quantity": ("quantity_beta",),
    "natural": (),
    "fixed": ("distribution_matrix",),
    "bootstrap": ("samples_per_client", "dirichlet_beta"),
}
"""Which keys of `data` belong to which `data_distribution_kind`."""


class Section(BaseModel):
    """What all sections share: strict, frozen, no unknown keys, docs under the fields."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        serialize_by_alias=True,
    )

    def broken_rules(self) -> Iterator[Conflict]:
        """The rules between this section's keys that do not hold."""
        yield from ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        if broken := tuple(self.broken_rules()):
            raise conflicting(*broken)
        return self


class Run(Section):
    """Who this run is."""

    name: (
        Annotated[
            str,
            Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"),
            Words(
                "text of at most 63 letters, digits, `.`, `_` and `-`, not beginning with a sign"
            ),
        ]
        | None
    ) = Field(default=None, examples=["first-try"])
    """Prefix of the run's id and folder; the config file's name when left out."""
    random_seed: Annotated[int, Ge(0), Lt(2**63)] = 0
    """The one seed: initial model, partition, cohorts, batches. Same seed, same bits."""


class Federation(Section):
    """Who takes part, how many at a time, and how their updates become one model."""

    number_of_clients: Positive | None = Field(default=None, examples=[50])
    """Size of the population. Left out for `natural`, `fixed` and `data.from: sites`, where the
    data says it."""
    client_id_pattern: Annotated[
        str,
        Field(pattern=r"^[^{}]*\{index\}[^{}]*$"),
        Words("text with `{index}` in it once and no other braces"),
    ] = "client_{index}"
    """How clients are called; `{index}` counts from 0. With `data.from: sites` the site's name and
    a slash go before it, unless the site discloses the clients' own ids."""
    rounds: Positive = 10
    """Rounds of training, unless early stopping ends the run before."""
    clients_per_round: Positive | None = Field(default=None, examples=[20])
    """Clients sampled for each round, without replacement. All when neither key is given."""
    client_sampling_rate: Fraction | None = Field(default=None, examples=[0.4])
    """The same as a share of the population (at least one client); excludes `clients_per_round`."""
    aggregation_strategy: Literal["fedavg", "median", "trimmed_mean"] = "fedavg"
    """How updates are combined: `fedavg`, weighted by samples (McMahan et al. 2017), or number by
    number the `median` or `trimmed_mean` of the clients (Yin et al. 2018). Those two keep every
    update of a round in memory."""
    trim: Annotated[float, Gt(0.0), Lt(0.5)] | None = Field(default=None, examples=[0.2])
    """For `trimmed_mean` (required): share of the clients that is cut off at either end."""
    server_learning_rate: PositiveFloat = 1.0
    """Step of the server along the mean update; 1 is plain FedAvg."""
    topology: Literal["star", "hierarchical"] = "star"
    """Who exchanges with whom: every client with the coordinator (`star`), or clients several times
    within groups, as the section `hierarchy` says, before the groups' sums go there
    (`hierarchical`)."""
    assignment: Literal["capacity", "round_robin"] = "capacity"
    """Which site a client belongs to: in proportion to the sites' vnodes, or in turn."""

    def broken_rules(self) -> Iterator[Conflict]:
        if self.clients_per_round is not None and self.client_sampling_rate is not None:
            yield Conflict(
                key="client_sampling_rate",
                found="both `clients_per_round` and `client_sampling_rate` are given",
                allowed="one of the two",
            )
        if (self.aggregation_strategy == "trimmed_mean") != (self.trim is not None):
            present = "without" if self.trim is None else "with"
            yield Conflict(
                key="trim",
                found=f"`aggregation_strategy: {self.aggregation_strategy}` {present} `trim`",
                allowed="`aggregation_strategy: trimmed_mean` together with `trim`",
            )
        population, cohort = self.number_of_clients, self.clients_per_round
        if population is not None and cohort is not None and cohort > population:
            yield Conflict(
                key="clients_per_round",
                found=f"{cohort} clients per round out of a population of {population}",
                allowed=f"at most `number_of_clients` ({population})",
            )


class GroupRule(Section):
    """Who belongs to which group; never a matter of where clients are. With `data.from: sites` a
    group lies within one site, unless the clients may move between all of them."""

    by: Literal["label", "column", "blocks"] = "label"
    """The label, or the value of a column of the data set, that most of a client's samples have
    (the first of several); or `blocks` of clients in their order, in a simulation."""
    column: str | None = Field(default=None, examples=["hospital"])
    """For `column` (required): its name; the data set has to be loaded with it."""
    count: Positive | None = Field(default=None, examples=[10])
    """For `blocks` (required): how many there are."""

    def broken_rules(self) -> Iterator[Conflict]:
        for key, by in (("column", "column"), ("count", "blocks")):
            if (self.by == by) != (getattr(self, key) is not None):
                present = "without" if getattr(self, key) is None else "with"
                yield Conflict(
                    key=key,
                    found=f"`by: {self.by}` {present} `{key}`",
                    allowed=f"`by: {by}` together with `{key}`",
                )


class Hierarchy(Section):
    """With `federation.topology: hierarchical` (required): groups of clients that average among
    themselves for some rounds before their sums cross to the others. A group is trained by one
    worker, so there should be at least as many groups as workers."""

    groups: GroupRule = GroupRule()
    """Who belongs to which group."""
    rounds_per_group: Annotated[int, Gt(0), Le(1_000_000)] = 2
    """Rounds inside a group in every round of the federation; with 1, each group's clients are
    added up as those of a star are."""
    clients_per_round: Positive | None = Field(default=None, examples=[5])
    """Clients of a group that train in each of its rounds, sampled without replacement; all where
    it has fewer, and when neither key is given."""
    client_sampling_rate: Fraction | None = Field(default=None, examples=[0.5])
    """The same as a share of the group (at least one client); excludes `clients_per_round`."""

    def broken_rules(self) -> Iterator[Conflict]:
        if self.clients_per_round is not None and self.client_sampling_rate is not None:
            yield Conflict(
                key="client_sampling_rate",
                found="both `clients_per_round` and `client_sampling_rate` are given",
                allowed="one of the two",
            )


class Model(Section):
    """What is trained."""

    model_type: str
    """A built-in (`cnn`, `lenet`, `logistic_regression`, `mlp`, `resnet18`, `transformer`) or your
    own as `module:Class`."""
    options: Options = {}
    """Keyword arguments of the model, such as `hidden: [128]` for `mlp`."""
    buffers: Literal["average", "keep"] = "average"
    """Floating-point buffers (BatchNorm statistics): averaged by samples (combined as the other
    numbers by `median` and `trimmed_mean`), or kept as they were at the start. Integer counters
    become the largest seen, either way."""


class Data(Section):
    """What the clients hold."""

    dataset_type: str | None = Field(default=None, examples=["digits"])
    """Required without `from`: a built-in (`digits`, `synthetic`, `npz`, `idx`, `cifar10`,
    `cifar100`) or your own loader as `module:function`. Every site makes the same data of it."""
    options: Options = {}
    """Keyword arguments of the loader, such as `path: data/mnist`."""
    from_: Literal["sites"] | None = Field(default=None, alias="from", examples=["sites"])
    """`sites`: the data lies at the sites, whose admins have declared it, and stays there; the
    population is the union of the clients that they declare. All other keys of this section but
    `dataset` are left out then."""
    dataset: str | None = Field(default=None, examples=["scans"])
    """With `from: sites` (required): the name that the sites have declared the data set by. Those
    that have not take no part."""
    test_fraction: Annotated[float, Ge(0.0), Lt(1.0)] = 0.2
    """Share held out as the coordinator's test set when the data set has none of its own."""
    data_distribution_kind: DistributionKind = "iid"
    """How the samples are divided over the clients."""
    dirichlet_beta: PositiveFloat | None = Field(default=None, examples=[0.5])
    """Concentration for `dirichlet` (required) and `bootstrap` (label mix); small is skewed."""
    labels_per_client: Positive | None = Field(default=None, examples=[2])
    """Labels that a client sees at most, for `shards` (required)."""
    quantity_beta: PositiveFloat | None = Field(default=None, examples=[2.0])
    """Concentration of the clients' sizes, for `quantity` (required); small is skewed."""
    distribution_matrix: (
        Annotated[list[Annotated[list[NonNegativeFloat], MinLen(1)]], MinLen(1)] | None
    ) = Field(default=None, examples=[[[0.5, 0.9], [0.5, 0.1]]])
    """For `fixed` (required): one row per client, one column per label; entry [i][j] is the share
    of label j's samples that client i gets."""
    samples_per_client: Positive | Annotated[list[Positive], Len(2, 2)] | None = Field(
        default=None, examples=[[20, 200]]
    )
    """For `bootstrap` (required): samples drawn per client, or `[least, most]`."""

    @model_serializer(mode="wrap")
    def _only_what_counts(self, dumped: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Data at sites is divided by nobody: what would say how is no part of it."""
        values: dict[str, Any] = dumped(self)
        if self.from_ is None:
            return values
        return {name: value for name, value in values.items() if name in ("from", "dataset")}

    def _rules_of_site_data(self) -> Iterator[Conflict]:
        if self.dataset is None:
            yield Conflict(
                key="dataset",
                found="`from: sites` without `dataset`",
                allowed="the name of a data set that sites declare",
            )
        for name, field in type(self).model_fields.items():
            if name not in ("from_", "dataset") and getattr(self, name) != field.get_default():
                yield Conflict(
                    key=name,
                    found=f"`{name}` with `from: sites`",
                    allowed="leave it out: the sites say what their data is and whose",
                )

    def broken_rules(self) -> Iterator[Conflict]:
        if self.from_ is not None:
            yield from self._rules_of_site_data()
            return
        if self.dataset is not None:
            yield Conflict(
                key="dataset",
                found=f"`dataset: {self.dataset}` without `from: sites`",
                allowed="add `data.from: sites`, or say it as `dataset_type`",
            )
        if self.dataset_type is None:
            yield Conflict(
                key="dataset_type",
                found="neither `dataset_type` nor `from: sites`",
                allowed="one of the two",
            )
        kind = self.data_distribution_kind
        mine = DISTRIBUTION_KEYS[kind]
        if mine and getattr(self, mine[0]) is None:
            yield Conflict(
                key="data_distribution_kind",
                found=f"`{kind}` without `{mine[0]}`",
                allowed=f"add `data.{mine[0]}`, or another kind",
            )
        for key in sorted({key for keys in DISTRIBUTION_KEYS.values() for key in keys}):
            if getattr(self, key) is not None and key not in mine:
                kinds = [k for k, keys in DISTRIBUTION_KEYS.items() if key in keys]
                yield Conflict(
                    key=key,
                    found=f"`{key}` has no effect with `data_distribution_kind: {kind}`",
                    allowed=f"leave it out, or choose {' or '.join(f'`{k}`' for k in kinds)}",
                )
        widths = sorted({len(row) for row in self.distribution_matrix or ()})
        if len(widths) > 1:
            yield Conflict(
                key="distribution_matrix",
                found=f"rows of {widths[0]} to {widths[-1]} columns",
                allowed="rows of the same length, one column per label",
            )
        span = self.samples_per_client
        if isinstance(span, list) and span[0] > span[1]:
            yield Conflict(
                key="samples_per_client",
                found=f"{span}",
                allowed="[least, most] with least <= most",
            )


class Training(Section):
    """What a client does in a round."""

    number_of_epochs: Positive = 1
    """Passes over the client's own samples."""
    batch_size: Positive = 32
    """Samples per local step; the last batch of an epoch may be smaller."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Local optimizer; its state starts anew with every round."""
    learning_rate: PositiveFloat = 0.1
    """Local step size."""
    momentum: Annotated[float, Ge(0.0), Lt(1.0)] = 0.0
    """Momentum of `sgd`."""
    weight_decay: NonNegativeFloat = 0.0
    """L2 penalty (decoupled for `adamw`)."""
    loss_function: str = "cross_entropy"
    """`cross_entropy`, or your own `module:function` of (outputs, labels) giving a mean."""
    shuffle: bool = True
    """A fresh order of the samples in every epoch."""
    client_update: str | None = Field(default=None, examples=["my_module:client_update"])
    """Your own way of training a client, `module:function`; left out: epochs of local steps as this
    section says."""
    execution: Literal["auto", "sequential", "folded", "mapped", "compiled"] = "auto"
    """How the clients of a chunk are computed: one after another (`sequential`), at once, folded
    into the batch (`folded`) or by `torch.func.vmap` (`mapped`), or by one call of machine code
    that is made for chains of dense layers on a CPU (`compiled`). `auto` decides by a short trial
    and writes what it found into the run's `config.yaml`."""
    chunk_size: Positive | Literal["auto"] = Field(default="auto", examples=[64])
    """Clients of a chunk; `auto` comes from the same trial."""

    def broken_rules(self) -> Iterator[Conflict]:
        if self.execution == "auto" and self.chunk_size != "auto":
            yield Conflict(
                key="chunk_size",
                found=f"`chunk_size: {self.chunk_size}` with `execution: auto`",
                allowed="`chunk_size: auto`, or name the execution",
            )
        together = self.execution not in ("auto", "sequential")
        if self.client_update is not None and together:
            yield Conflict(
                key="execution",
                found=f"`execution: {self.execution}` with `client_update`",
                allowed="`auto` or `sequential`: your own code trains one client at a time",
            )
        if self.loss_function != "cross_entropy" and together:
            yield Conflict(
                key="execution",
                found=f"`execution: {self.execution}` with a `loss_function` of your own",
                allowed="`auto` or `sequential`: your loss sees one client's batch at a time",
            )
        if self.momentum and self.optimizer != "sgd":
            yield Conflict(
                key="momentum",
                found=f"`momentum: {self.momentum:g}` with `optimizer: {self.optimizer}`",
                allowed="`optimizer: sgd`, or no momentum",
            )


class EarlyStopping(Section):
    """When to end before the last round."""

    patience: Positive | None = Field(default=None, examples=[5])
    """Evaluations without improvement after which the run ends."""
    min_delta: NonNegativeFloat = 0.0
    """What counts as an improvement."""
    target: float | None = Field(default=None, examples=[0.95])
    """End as soon as the metric reaches this."""

    def broken_rules(self) -> Iterator[Conflict]:
        if self.patience is None and self.target is None:
            yield Conflict(
                key="patience",
                found="neither `patience` nor `target`",
                allowed="at least one of the two",
            )


class Evaluation(Section):
    """How the global model is judged."""

    every: Positive = 1
    """Rounds between evaluations; the last round is always evaluated."""
    where: Literal["coordinator", "sites"] = "coordinator"
    """On the coordinator's test set, or on the clients' own samples."""
    clients: Literal["sampled", "fraction", "all"] = "sampled"
    """With `where: sites`: the round's cohort, a random share of the population, or everybody."""
    fraction: Fraction | None = Field(default=None, examples=[0.1])
    """With `clients: fraction`: that share."""
    batch_size: Positive = 256
    """Samples per forward pass; part of the run's identity, since it can change the last bit."""
    metric: Literal["accuracy", "loss"] = "accuracy"
    """What decides which model is the best, and early stopping."""
    early_stopping: EarlyStopping | None = Field(default=None, examples=[{"patience": 5}])
    """Left out: all rounds are run."""

    def is_due(self, round_number: int, last: int) -> bool:
        """Whether a round of so many is judged."""
        return round_number % self.every == 0 or round_number == last

    def broken_rules(self) -> Iterator[Conflict]:
        if self.where == "coordinator" and self.clients != "sampled":
            yield Conflict(
                key="clients",
                found=f"`clients: {self.clients}` with `where: coordinator`",
                allowed="`where: sites`, or leave `clients` out",
            )
        if (self.clients == "fraction") != (self.fraction is not None):
            present = "without" if self.fraction is None else "with"
            yield Conflict(
                key="fraction",
                found=f"`clients: {self.clients}` {present} `fraction`",
                allowed="`clients: fraction` together with `fraction`",
            )


class Ray(Section):
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


class Resources(Section):
    """The gang: the fixed-size vnodes that are reserved together before anything trains."""

    workers: Positive | Literal["auto"] = "auto"
    """Vnodes of the gang, one warm worker on each; `auto`: as many as fit, at most 16."""
    cpus_per_worker: Annotated[float, Ge(0.0)] = 1.0
    """CPUs of a vnode; its whole part, and at least 1, is the number of PyTorch threads."""
    gpus_per_worker: Annotated[float, Ge(0.0)] = 0.0
    """GPUs of a vnode."""
    memory_per_worker: Positive | None = Field(default=None, examples=[2_000_000_000])
    """Bytes of memory of a vnode, as Ray accounts them."""
    placement_group_strategy: Literal["SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK"] = "SPREAD"
    """How the vnodes lie on the machines."""
    reserve_timeout: PositiveFloat = 60.0
    """Seconds to wait for a gang that fits the cluster but not at this moment."""
    worker_timeout: PositiveFloat = 1800.0
    """Seconds after which a worker that does not answer is taken for dead."""
    worker_restarts: Annotated[int, Ge(0)] = 3
    """Times that the same clients may lose their worker before the run gives up."""
    node_idle_timeout: PositiveFloat = 300.0
    """Seconds after which a VirtualNode that was materialized by itself gives its place back."""
    ray: Ray = Ray()
    """Which Ray the run uses."""

    @property
    def threads_per_worker(self) -> int:
        """PyTorch threads of a worker."""
        return max(1, int(self.cpus_per_worker))

    def broken_rules(self) -> Iterator[Conflict]:
        if not (self.cpus_per_worker or self.gpus_per_worker):
            yield Conflict(
                key="cpus_per_worker",
                found="a vnode without CPUs and GPUs",
                allowed="one of the two above 0",
            )


class Sites(Section):
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
    """Who has to take part in a round for it to count. By default everybody in the cohort, whatever
    happens to sites meanwhile, and the result's bits depend on no clock. `quorum`, `deadline_s` and
    `over_sampling` let a clock decide: the clients that counted are then written into the run's
    `journal/` first, and a resumed or verified run takes them from there."""

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
    """What becomes of updates that come after their round was closed. `carry` adds what a site
    hands up late to a later round, as one update that counts less the later it is; only for
    algorithms that take the weighted mean, and where rounds are closed by a clock."""
    staleness_exponent: NonNegativeFloat = 0.5
    """With `carry`: an update that is s rounds late counts `(1 + s) ** -staleness_exponent` of its
    samples (Nguyen et al. 2022)."""
    most_rounds_late: Annotated[int, Gt(0), Le(100)] = 1
    """With `carry`: what is later than so many rounds is discarded. As many models are kept."""
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
                    found="`carry` without `deadline_s` and `over_sampling`: nobody is late",
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


class RunConfig(Section):
    """One run, as a config file says it."""

    run: Run = Run()
    federation: Federation = Federation()
    hierarchy: Hierarchy | None = None
    model: Model
    data: Data
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    resources: Resources = Resources()
    sites: Annotated[Sites, SITES_IN_WORDS] = Sites()
    participation: Participation = Participation()
    traffic: Traffic = Traffic()
    outputs: Outputs = Outputs()

    def broken_rules(self) -> Iterator[Conflict]:
        yield from population_conflicts(self.federation, self.data)
        yield from hierarchy_conflicts(self)
        yield from late_conflicts(self)
        yield from site_data_conflicts(self.data, self.evaluation, self.sites)
        yield from site_conflicts(self.sites, self.resources)


def hierarchy_conflicts(config: RunConfig) -> Iterator[Conflict]:
    """The rules about groups, and what they cannot be combined with; keys from the top."""
    federation, hierarchy = config.federation, config.hierarchy
    if (federation.topology == "hierarchical") != (hierarchy is not None):
        present = "without" if hierarchy is None else "with"
        yield Conflict(
            key="federation.topology",
            found=f"`topology: {federation.topology}` {present} the section `hierarchy`",
            allowed="`topology: hierarchical` together with `hierarchy`",
        )
    if hierarchy is None or federation.topology == "star":
        return
    topology = "`topology: hierarchical`"
    for key in ("clients_per_round", "client_sampling_rate"):
        if getattr(federation, key) is not None:
            yield Conflict(
                key=f"federation.{key}",
                found=f"`{key}` with {topology}, where every group trains in every round",
                allowed=f"`hierarchy.{key}`, which is about each group",
            )
    if federation.aggregation_strategy != "fedavg":
        yield Conflict(
            key="federation.aggregation_strategy",
            found=f"`{federation.aggregation_strategy}` with {topology}, whose groups hand up sums",
            allowed="`fedavg`",
        )
    if config.training.client_update is not None:
        yield Conflict(
            key="training.client_update",
            found=f"a `client_update` with {topology}, where a client trains more than once a "
            "round and can remember nothing",
            allowed="leave it out, or `topology: star`",
        )
    if config.participation.over_sampling:
        yield Conflict(
            key="participation.over_sampling",
            found=f"`over_sampling` with {topology}, where all are asked anyway",
            allowed="0",
        )
    if config.outputs.client_digests:
        yield Conflict(
            key="outputs.client_digests",
            found=f"true with {topology}, where clients become several things in a round",
            allowed="false",
        )
    groups, population = hierarchy.groups, federation.number_of_clients
    if config.data.from_ is not None and groups.by == "blocks":
        yield Conflict(
            key="hierarchy.groups.by",
            found="`blocks` with `data.from: sites`, whose clients have no order of their own",
            allowed="`label` or `column`",
        )
    if None not in (groups.count, population) and (groups.count or 0) > (population or 0):
        yield Conflict(
            key="hierarchy.groups.count",
            found=f"{groups.count} groups of {population} clients",
            allowed=f"at most `federation.number_of_clients` ({population})",
        )


def late_conflicts(config: RunConfig) -> Iterator[Conflict]:
    """The rules about what can be added up late; keys from the top."""
    if config.participation.late_updates == "discard":
        return
    strategy = config.federation.aggregation_strategy
    if strategy != "fedavg":
        yield Conflict(
            key="participation.late_updates",
            found=f"`carry` with `aggregation_strategy: {strategy}`, which is no weighted mean",
            allowed="`discard`, or `fedavg`",
        )
    if config.training.client_update is not None:
        yield Conflict(
            key="participation.late_updates",
            found="`carry` with a `client_update`, whose clients remember: a late one would "
            "remember a round that is over",
            allowed="`discard`",
        )


def site_conflicts(sites: Sites, resources: Resources) -> Iterator[Conflict]:
    """The rules about where sites are; keys from the top."""
    count, address = sites.count, resources.ray.address
    if count is not None and count > 1 and address is not None:
        yield Conflict(
            key="sites.count",
            found=f"{count} sites together with `resources.ray.address`",
            allowed="1: one Ray cluster is one site; or leave the address out",
        )


def site_data_conflicts(data: Data, evaluation: Evaluation, sites: Sites) -> Iterator[Conflict]:
    """The rules about data that lies at sites; keys from the top."""
    if data.from_ is None and sites.site_files:
        yield Conflict(
            key="sites.site_files",
            found="`site_files` without `data.from: sites`",
            allowed="leave it out, or train on what the files declare",
        )
    if data.from_ is not None and evaluation.where == "coordinator":
        yield Conflict(
            key="evaluation.where",
            found="`where: coordinator` with `data.from: sites`: it has no samples to test on",
            allowed="`where: sites`",
        )


def population_conflicts(federation: Federation, data: Data) -> Iterator[Conflict]:
    """The rules about the size of the population, which is said once; keys from the top."""
    kind, asked = data.data_distribution_kind, federation.number_of_clients
    if data.from_ is not None:
        if asked is not None:
            yield Conflict(
                key="federation.number_of_clients",
                found=f"{asked} clients with `data.from: sites`",
                allowed="leave it out: the sites say how many clients they have",
            )
        return
    if asked is None and kind not in ("natural", "fixed"):
        yield Conflict(
            key="federation.number_of_clients",
            found=f"no `number_of_clients` with `data_distribution_kind: {kind}`",
            allowed="a whole number of at least 1",
        )
    matrix = data.distribution_matrix
    if matrix is not None and asked is not None and asked != len(matrix):
        yield Conflict(
            key="federation.number_of_clients",
            found=f"{asked} clients, but `data.distribution_matrix` has {len(matrix)} rows",
            allowed="leave it out, or one row per client",
        )
