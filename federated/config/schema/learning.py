"""The sections that say what is learned and how: they decide the bits of a run's result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field

from fedpilot.fabric.strict_yaml.schema_problems import Conflict
from fedpilot.fabric.strict_yaml.wording import Words

from .values import Fraction, NonNegativeFloat, Options, Positive, PositiveFloat, Section


class Run(Section):
    """The name, seed and reproducibility of a run."""

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
    reproducible: Literal["warn", "strict"] = "warn"
    """Workers that differ in what bits depend on (PyTorch, processor, threads, device): say so, or
    refuse to train with them (`strict`)."""


class FederationConfig(Section):
    """The clients, how many train at a time, and how their updates become one model."""

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
        yield from self.not_both("clients_per_round", "client_sampling_rate")
        yield from self.only_with("trim", "aggregation_strategy", "trimmed_mean")
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
        yield from self.only_with("column", "by", "column")
        yield from self.only_with("count", "by", "blocks")


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
        yield from self.not_both("clients_per_round", "client_sampling_rate")


class Model(Section):
    """What is trained."""

    model_type: str
    """A built-in (`cnn`, `lenet`, `logistic_regression`, `mlp`, `resnet18`, `transformer`) or your
    own as `module:Class`."""
    options: Options = Field(default={})
    """Keyword arguments of the model, such as `hidden: [128]` for `mlp`."""
    buffers: Literal["average", "keep"] = "average"
    """Floating-point buffers (BatchNorm statistics): averaged by samples (combined as the other
    numbers by `median` and `trimmed_mean`), or kept as they were at the start. Integer counters
    become the largest seen, either way."""


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
    that is made for chains of dense layers on a CPU (`compiled`). `auto` is decided by a cost
    model, from the model's structure and this config alone, and written into the run's
    `config.yaml`."""
    chunk_size: Positive | Literal["auto"] = Field(default="auto", examples=[64])
    """Clients of a chunk; `auto` comes from the same cost model."""
    execution_model: Literal[1] | None = Field(default=None, examples=[1])
    """Number of the cost model that decides what `auto` means; left out: the newest. A run writes
    down which one it was. A cost model is never changed: a better one gets the next number."""
    execution_reason: str | None = Field(default=None, examples=["about 17x as fast as one by one"])
    """Why `auto` meant this, as a run writes it down. It changes nothing."""

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
    """With `where: sites`: the round's cohort, a random share of the population, or all clients."""
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
        yield from self.only_with("fraction", "clients", "fraction")
