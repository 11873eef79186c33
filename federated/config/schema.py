"""What a run's configuration may say: every key, its type, its default and what it means.

The sections follow the concerns of a run. Key names that the FedPilot documentation gives
(`dataset_type`, `data_distribution_kind`, `number_of_epochs`, `placement_group_strategy`, ...)
are kept. Unknown keys and wrong types are refused (strict, no coercion but int to float); rules
that span keys raise `ConflictingKeys`, which names the key to change. Whatever needs the data or
the model (more clients than samples, a model that does not fit the data) is checked later, in
`preflight`, and still before anything is started.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Positive = Annotated[int, Gt(0)]
Fraction = Annotated[float, Gt(0.0), Le(1.0)]
PositiveFloat = Annotated[float, Gt(0.0), Field(allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Ge(0.0), Field(allow_inf_nan=False)]

DistributionKind = Literal["iid", "dirichlet", "shards", "quantity", "natural", "fixed", "bootstrap"]

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


def conflict(key: str, found: str, allowed: str) -> PydanticCustomError:
    """A rule between keys is broken: `key` (relative to its section) is the one to change."""
    return PydanticCustomError(
        "conflicting_keys", "{found}", {"key": key, "found": found, "allowed": allowed}
    )


class Section(BaseModel):
    """What all sections share: strict, frozen, no unknown keys, docs under the fields."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )


class Run(Section):
    """Who this run is."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
    """Prefix of the run's id and folder; the config file's name when left out."""
    random_seed: Annotated[int, Ge(0), Lt(2**63)] = 0
    """The one seed: initial model, partition, cohorts, batches. Same seed, same bits."""


class Federation(Section):
    """Who takes part, how many at a time, and how their updates become one model."""

    number_of_clients: Positive | None = None
    """Size of the population. Left out for `natural` and `fixed`, where the data says it."""
    client_id_pattern: Annotated[str, Field(pattern=r"^[^{}]*\{index\}[^{}]*$")] = "client_{index}"
    """How clients are called; `{index}` counts from 0."""
    rounds: Positive = 10
    """Rounds of training, unless early stopping ends the run before."""
    clients_per_round: Positive | None = None
    """Clients sampled for each round, without replacement. All when neither key is given."""
    client_sampling_rate: Fraction | None = None
    """The same as a share of the population (at least one client); excludes `clients_per_round`."""
    aggregation_strategy: Literal["fedavg"] = "fedavg"
    """How updates are combined: FedAvg, weighted by samples (McMahan et al. 2017)."""
    server_learning_rate: PositiveFloat = 1.0
    """Step of the server along the mean update; 1 is plain FedAvg."""
    topology: Literal["star"] = "star"
    """Who exchanges with whom: every client with the coordinator."""
    assignment: Literal["capacity", "round_robin"] = "capacity"
    """Which site a client belongs to: in proportion to the sites' vnodes, or in turn."""

    @model_validator(mode="after")
    def _one_way_to_say_how_many(self) -> Self:
        if self.clients_per_round is not None and self.client_sampling_rate is not None:
            raise conflict(
                "client_sampling_rate",
                "both `clients_per_round` and `client_sampling_rate` are given",
                "one of the two",
            )
        population, cohort = self.number_of_clients, self.clients_per_round
        if population is not None and cohort is not None and cohort > population:
            raise conflict(
                "clients_per_round",
                f"{cohort} clients per round out of a population of {population}",
                f"at most `number_of_clients` ({population})",
            )
        return self


class Model(Section):
    """What is trained."""

    model_type: str
    """A built-in (`fedpilot check` lists them) or your own as `module:Class`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the model, such as `hidden: [128]` for `mlp`."""
    buffers: Literal["average", "keep"] = "average"
    """Floating-point buffers (BatchNorm statistics): averaged by samples, or kept as they were at
    the start. Integer counters become the largest seen, either way."""


class Data(Section):
    """What the clients hold."""

    dataset_type: str
    """A built-in (`digits`, `synthetic`, `npz`, `idx`, `cifar10`, `cifar100`) or your own loader
    as `module:function`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the loader, such as `path: data/mnist`."""
    test_fraction: Annotated[float, Ge(0.0), Lt(1.0)] = 0.2
    """Share held out as the coordinator's test set when the data set has none of its own."""
    data_distribution_kind: DistributionKind = "iid"
    """How the samples are divided over the clients."""
    dirichlet_beta: PositiveFloat | None = None
    """Concentration for `dirichlet` (required) and `bootstrap` (label mix); small is skewed."""
    labels_per_client: Positive | None = None
    """Labels that a client sees at most, for `shards` (required)."""
    quantity_beta: PositiveFloat | None = None
    """Concentration of the clients' sizes, for `quantity` (required); small is skewed."""
    distribution_matrix: list[list[NonNegativeFloat]] | None = None
    """For `fixed` (required): one row per client, one column per label; entry [i][j] is the share
    of label j's samples that client i gets."""
    samples_per_client: Positive | Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = None
    """For `bootstrap` (required): samples drawn per client, or `[least, most]`."""

    @model_validator(mode="after")
    def _keys_of_the_kind(self) -> Self:
        kind = self.data_distribution_kind
        mine = DISTRIBUTION_KEYS[kind]
        if mine and getattr(self, mine[0]) is None:
            raise conflict(
                "data_distribution_kind",
                f"`{kind}` without `{mine[0]}`",
                f"add `data.{mine[0]}`, or another kind",
            )
        for key in sorted({key for keys in DISTRIBUTION_KEYS.values() for key in keys}):
            if getattr(self, key) is not None and key not in mine:
                kinds = [k for k, keys in DISTRIBUTION_KEYS.items() if key in keys]
                raise conflict(
                    key,
                    f"`{key}` has no effect with `data_distribution_kind: {kind}`",
                    f"leave it out, or choose {' or '.join(f'`{k}`' for k in kinds)}",
                )
        span = self.samples_per_client
        if isinstance(span, list) and span[0] > span[1]:
            raise conflict("samples_per_client", f"{span}", "[least, most] with least <= most")
        return self


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

    @model_validator(mode="after")
    def _momentum_is_for_sgd(self) -> Self:
        if self.momentum and self.optimizer != "sgd":
            raise conflict(
                "momentum",
                f"`momentum: {self.momentum:g}` with `optimizer: {self.optimizer}`",
                "`optimizer: sgd`, or no momentum",
            )
        return self


class EarlyStopping(Section):
    """When to end before the last round."""

    patience: Positive | None = None
    """Evaluations without improvement after which the run ends."""
    min_delta: NonNegativeFloat = 0.0
    """What counts as an improvement."""
    target: float | None = None
    """End as soon as the metric reaches this."""

    @model_validator(mode="after")
    def _some_reason_to_stop(self) -> Self:
        if self.patience is None and self.target is None:
            raise conflict("patience", "neither `patience` nor `target`", "at least one of the two")
        return self


class Evaluation(Section):
    """How the global model is judged."""

    every: Positive = 1
    """Rounds between evaluations; the last round is always evaluated."""
    where: Literal["coordinator", "sites"] = "coordinator"
    """On the coordinator's test set, or on the clients' own samples."""
    clients: Literal["sampled", "fraction", "all"] = "sampled"
    """With `where: sites`: the round's cohort, a random share of the population, or everybody."""
    fraction: Fraction | None = None
    """With `clients: fraction`: that share."""
    batch_size: Positive = 256
    """Samples per forward pass; part of the run's identity, since it can change the last bit."""
    metric: Literal["accuracy", "loss"] = "accuracy"
    """What decides which model is the best, and early stopping."""
    early_stopping: EarlyStopping | None = None
    """Left out: all rounds are run."""

    @model_validator(mode="after")
    def _fraction_when_asked(self) -> Self:
        if self.where == "coordinator" and self.clients != "sampled":
            raise conflict(
                "clients",
                f"`clients: {self.clients}` with `where: coordinator`",
                "`where: sites`, or leave `clients` out",
            )
        if (self.clients == "fraction") != (self.fraction is not None):
            raise conflict(
                "fraction",
                f"`clients: {self.clients}` {'with' if self.fraction else 'without'} `fraction`",
                "`clients: fraction` together with `fraction`",
            )
        return self


class Ray(Section):
    """Which Ray the run uses."""

    address: str | None = None
    """`host:port` or `auto` of a running cluster; left out: a private one is started and ended."""
    auth_mode: Literal["token", "disabled"] | None = None
    """Ray's authentication when connecting; left out: RAY_AUTH_MODE, or `disabled`."""
    num_cpus: Positive | None = None
    """CPUs that a private Ray believes it has; left out: the machine's."""
    num_gpus: Annotated[int, Ge(0)] | None = None
    """GPUs likewise."""

    @model_validator(mode="after")
    def _private_or_not(self) -> Self:
        if self.address is not None and (self.num_cpus is not None or self.num_gpus is not None):
            raise conflict(
                "address",
                "`address` together with `num_cpus` or `num_gpus`",
                "sizes only for a private Ray (no `address`)",
            )
        return self


class Resources(Section):
    """The gang: the fixed-size vnodes that are reserved together before anything trains."""

    workers: Positive | Literal["auto"] = "auto"
    """Vnodes of the gang, one warm worker on each; `auto`: as many as fit, at most 16."""
    cpus_per_worker: Annotated[float, Ge(0.0)] = 1.0
    """CPUs of a vnode; its whole part is the number of PyTorch threads."""
    gpus_per_worker: Annotated[float, Ge(0.0)] = 0.0
    """GPUs of a vnode."""
    memory_per_worker: Positive | None = None
    """Bytes of memory of a vnode, as Ray accounts them."""
    placement_group_strategy: Literal["SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK"] = "SPREAD"
    """How the vnodes lie on the machines."""
    reserve_timeout: PositiveFloat = 60.0
    """Seconds to wait for a gang that fits the cluster but not at this moment."""
    worker_timeout: PositiveFloat = 1800.0
    """Seconds after which a worker that does not answer is taken for dead."""
    worker_restarts: Annotated[int, Ge(0)] = 3
    """Times that the same clients may lose their worker before the run gives up."""
    ray: Ray = Ray()
    """Which Ray the run uses."""

    @model_validator(mode="after")
    def _vnodes_hold_something(self) -> Self:
        if not (self.cpus_per_worker or self.gpus_per_worker):
            raise conflict("cpus_per_worker", "a vnode without CPUs and GPUs", "one of the two above 0")
        return self


class Outputs(Section):
    """What is kept."""

    folder: str = "runs"
    """Where run folders are made."""
    checkpoint_every: Positive = 1
    """Rounds between checkpoints; the last two and the best are kept."""
    curves: bool = True
    """Draw `curves.png` at the end."""
    tensorboard: bool = False
    """Write TensorBoard event files too (needs `pip install fedpilot[tensorboard]`)."""


class RunConfig(Section):
    """One run, as a config file says it."""

    run: Run = Run()
    federation: Federation = Federation()
    model: Model
    data: Data
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    resources: Resources = Resources()
    outputs: Outputs = Outputs()

    @model_validator(mode="after")
    def _population_is_said_once(self) -> Self:
        kind, asked = self.data.data_distribution_kind, self.federation.number_of_clients
        if asked is None and kind not in ("natural", "fixed"):
            raise conflict(
                "federation.number_of_clients",
                f"no `number_of_clients` with `data_distribution_kind: {kind}`",
                "a number of clients",
            )
        matrix = self.data.distribution_matrix
        if matrix is not None and asked is not None and asked != len(matrix):
            raise conflict(
                "federation.number_of_clients",
                f"{asked} clients, but `data.distribution_matrix` has {len(matrix)} rows",
                "leave it out, or one row per client",
            )
        return self
