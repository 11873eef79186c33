"""The sections that say what is learned and how: they decide the bits of a run's result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import Field

from fedpilot.common.strict_yaml.schema_problems import Conflict
from fedpilot.common.strict_yaml.wording import Words

from .schedules import Schedule
from .values import (
    BelowOne,
    Fraction,
    NonNegativeFloat,
    Options,
    OwnFunction,
    Positive,
    PositiveFloat,
    Section,
)

ADAPT_EVERY = 10
"""Rounds between adaptations of a graph, unless the config says otherwise."""
ADAPTIVE = ("fedadam", "fedyogi", "fedadagrad")
WEIGHTED_MEANS = ("fedavg", "fedavgm", *ADAPTIVE)
"""Strategies that need the weighted mean of the updates only."""
KRUMS = ("krum", "multi_krum")
SERVER_MOMENTUM, SERVER_BETAS, SERVER_TAU = 0.9, (0.9, 0.99), 0.001
"""What server optimizers use if the config leaves it out."""
SERVER_OPTIONS = {
    "server_momentum": ("fedavgm",),
    "server_betas": ADAPTIVE,
    "server_tau": ADAPTIVE,
    "server_bias_correction": ("fedadam",),
}
"""The options of server optimizers, and the strategies that have them."""


def _usual_server_rate(given: dict[str, Any]) -> float:
    """By the strategy: an adaptive one moves each number by about the rate in a round."""
    return 0.1 if given.get("aggregation_strategy") in ADAPTIVE else 1.0


class Run(Section):
    """The name, seed and reproducibility of a run."""

    name: (
        Annotated[
            str,
            Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"),
            Words("text of at most 63 letters, digits, `.`, `_` and `-`; first a letter or digit"),
        ]
        | None
    ) = Field(default=None, examples=["first-try"])
    """Prefix of the run's id and folder; left out: the name of the config file."""
    random_seed: Annotated[int, Ge(0), Lt(2**63)] = 0
    """Seed of the initial model, the partition, the cohorts and the batches. The same seed gives
    the same bits."""
    reproducible: Literal["warn", "strict"] = "warn"
    """What to do if workers differ in PyTorch, processor, threads or device, which can change bits:
    warn, or refuse to train with them (`strict`)."""


class FederationConfig(Section):
    """The clients, how many train per round, and how their updates become one model."""

    number_of_clients: Positive | None = Field(default=None, examples=[50])
    """Size of the population. Leave it out for `natural`, `fixed` and `data.from: sites`: the data
    determines it."""
    client_id_pattern: Annotated[
        str,
        Field(pattern=r"^[^{}]*\{index\}[^{}]*$"),
        Words("text with `{index}` in it once and no other braces"),
    ] = "client_{index}"
    """Pattern of client ids; `{index}` counts from 0. With `data.from: sites` the site's name and a
    slash precede it, unless the site discloses the clients' own ids."""
    rounds: Positive = 10
    """Number of rounds, unless early stopping ends the run before."""
    clients_per_round: Positive | None = Field(default=None, examples=[20])
    """Clients sampled for each round, without replacement. Without this key and
    `client_sampling_rate`, all clients train."""
    client_sampling_rate: Fraction | None = Field(default=None, examples=[0.4])
    """Share of the population sampled for each round, at least one client. Excludes
    `clients_per_round`."""
    aggregation_strategy: Literal[
        "fedavg",
        "fedavgm",
        "fedadam",
        "fedyogi",
        "fedadagrad",
        "median",
        "trimmed_mean",
        "krum",
        "multi_krum",
        "geometric_median",
        "dpsgd",
        "gossip",
        "push_sum",
    ] = "fedavg"
    """How updates are combined: `fedavg` is their mean, weighted by samples (McMahan et al. 2017).
    `fedavgm` (Hsu et al. 2019), `fedadam`, `fedyogi` and `fedadagrad` (Reddi et al. 2021) move the
    model along that mean by an optimizer at the server, with memory from round to round.
    `median` and `trimmed_mean` combine the clients' updates coordinate by coordinate (Yin et al.
    2018), `krum` and `multi_krum` choose among them (Blanchard et al. 2017), and `geometric_median`
    is the point nearest to them all (Pillutla et al. 2022); these five keep every update of a round
    in memory. The others are for graphs, where each client
    has a model of its own. `dpsgd` trains each, and then mixes it with those of the client's
    neighbors (Lian et al. 2017). `gossip` trains in the first round alone; later rounds only mix
    (Boyd et al. 2006). `push_sum` is `dpsgd` for directed graphs (Assran et al. 2019)."""
    trim: Annotated[float, Gt(0.0), Lt(0.5)] | None = Field(default=None, examples=[0.2])
    """For `trimmed_mean` (required): share of the clients to cut off at each end."""
    byzantine_clients: Positive | None = Field(default=None, examples=[2])
    """For `krum` and `multi_krum` (required): clients of a round, f, that may send anything. A
    round needs more than 2 f + 2 clients."""
    krum_keeps: Positive | None = Field(default=None, examples=[6])
    """For `multi_krum`: updates to average, at most all but `byzantine_clients`; left out, these
    all."""
    server_learning_rate: PositiveFloat = Field(default_factory=_usual_server_rate)
    """Step size of the server along the combined update; 1 is plain FedAvg. Left out with
    `fedadam`, `fedyogi` or `fedadagrad`: 0.1. There it is about how far a number of the model moves
    in a round, so it is worth a search, from 0.001 to 1."""
    server_momentum: BelowOne | None = Field(default=None, examples=[SERVER_MOMENTUM])
    """For `fedavgm`: the share of the last step that the next one repeats; left out, 0.9."""
    server_betas: Annotated[list[BelowOne], Len(2, 2)] | None = Field(
        default=None, examples=[list(SERVER_BETAS)]
    )
    """For `fedadam`, `fedyogi` and `fedadagrad`: decay of the mean of updates and of the mean of
    their squares, per round; left out, `[0.9, 0.99]`. `fedadagrad`, which adds squares up, uses the
    first one only."""
    server_tau: PositiveFloat | None = Field(default=None, examples=[SERVER_TAU])
    """For `fedadam`, `fedyogi` and `fedadagrad`: what is added to the root of the squares. A larger
    one adapts less; left out, 0.001."""
    server_bias_correction: bool | None = Field(default=None, examples=[True])
    """For `fedadam`: whether both means are corrected for their start at 0, as in PyTorch's Adam;
    left out, `false`: squares start at `server_tau` squared, as in the paper."""
    topology: (
        Literal[
            "star",
            "hierarchical",
            "ring",
            "torus",
            "k_connected",
            "complete",
            "random_regular",
            "erdos_renyi",
            "small_world",
            "tree",
            "matching",
            "exponential",
            "custom",
        ]
        | OwnFunction
    ) = "star"
    """`star`: every client exchanges with the coordinator. `hierarchical`: clients average within
    groups for some rounds, before the groups' sums go to the coordinator; the section `hierarchy`
    describes the groups. The others are graphs, in which a client exchanges with its neighbors; the
    section `graph` has their parameters. Or your own function `module:function` of (client ids,
    seed) that returns a networkx graph."""
    assignment: (
        Literal["capacity", "locality", "data_affinity", "round_robin"] | OwnFunction | None
    ) = Field(default=None, examples=["round_robin"])
    """How clients are assigned to sites: in proportion to the sites' vnodes (`capacity`), or so
    that neighbors on a graph (`locality`) or clients with similar labels (`data_affinity`) are at
    one site, at most 5 % above that proportion, or in turn (`round_robin`). Or your own function
    `module:function` of an `AssignmentProblem` that returns a `Division`. Left out: `locality` on a
    graph, otherwise `capacity`."""

    @property
    def momentum(self) -> float:
        """The momentum of the server, in [0, 1)."""
        return SERVER_MOMENTUM if self.server_momentum is None else self.server_momentum

    @property
    def betas(self) -> tuple[float, float]:
        """The decays of an adaptive server, in [0, 1)."""
        first, second = self.server_betas or SERVER_BETAS
        return first, second

    @property
    def tau(self) -> float:
        """What an adaptive server adds to the root of the squares."""
        return self.server_tau or SERVER_TAU

    @property
    def is_graph(self) -> bool:
        """Whether each client has a model of its own, which it mixes with its neighbors'."""
        return self.topology not in ("star", "hierarchical")

    @property
    def has_own_topology(self) -> bool:
        """Whether the graph comes from a function of the user's own."""
        return ":" in self.topology

    @property
    def may_have_weights(self) -> bool:
        """Whether the edges of the graph may have weights of their own."""
        return self.topology == "custom" or self.has_own_topology

    @property
    def assigned_by(self) -> str:
        """The strategy that assigns clients to sites."""
        return self.assignment or ("locality" if self.is_graph else "capacity")

    @property
    def has_own_assignment(self) -> bool:
        """Whether a function of the user's own assigns clients to sites."""
        return ":" in self.assigned_by

    @property
    def pushes(self) -> bool:
        """Whether each node of the graph splits what it has among those that receive from it."""
        return self.aggregation_strategy == "push_sum"

    def broken_rules(self) -> Iterator[Conflict]:
        yield from self.not_both("clients_per_round", "client_sampling_rate")
        yield from self.only_with("trim", "aggregation_strategy", "trimmed_mean")
        yield from self.only_with("byzantine_clients", "aggregation_strategy", *KRUMS)
        yield from self.only_with(
            "krum_keeps", "aggregation_strategy", "multi_krum", required=False
        )
        for key, strategies in SERVER_OPTIONS.items():
            yield from self.only_with(key, "aggregation_strategy", *strategies, required=False)
        population, cohort = self.number_of_clients, self.clients_per_round
        if population is not None and cohort is not None and cohort > population:
            yield Conflict(
                key="clients_per_round",
                found=f"{cohort} clients per round out of a population of {population}",
                allowed=f"at most `number_of_clients` ({population})",
            )


class GroupRule(Section):
    """The rule that assigns clients to groups, wherever they train. With `data.from: sites` a group
    lies within one site, unless the clients may move between all sites."""

    by: Literal["label", "column", "blocks"] = "label"
    """`label` or `column`: the label, or the value of a column of the data set, that most of a
    client's samples have (the first one in a tie). `blocks`: consecutive clients; in a simulation
    only."""
    column: str | None = Field(default=None, examples=["hospital"])
    """For `column` (required): name of a column that the data set is loaded with."""
    count: Positive | None = Field(default=None, examples=[10])
    """For `blocks` (required): number of groups."""

    def broken_rules(self) -> Iterator[Conflict]:
        yield from self.only_with("column", "by", "column")
        yield from self.only_with("count", "by", "blocks")


class Hierarchy(Section):
    """With `federation.topology: hierarchical` (required): groups of clients that average among
    themselves for some rounds before their sums go to the coordinator. One worker trains a group,
    so there should be at least as many groups as workers."""

    groups: GroupRule = GroupRule()
    """The rule that assigns clients to groups."""
    rounds_per_group: Annotated[int, Gt(0), Le(1_000_000)] = 2
    """Rounds inside each group per round of the federation; with 1, clients are summed as in a
    star."""
    clients_per_round: Positive | None = Field(default=None, examples=[5])
    """Clients of a group that train in each of its rounds, sampled without replacement. All clients
    train if the group has fewer, or without this key and `client_sampling_rate`."""
    client_sampling_rate: Fraction | None = Field(default=None, examples=[0.5])
    """Share of each group that trains, at least one client. Excludes `clients_per_round`."""

    def broken_rules(self) -> Iterator[Conflict]:
        yield from self.not_both("clients_per_round", "client_sampling_rate")


class Graph(Section):
    """With a graph as `federation.topology`: its parameters, and how neighbors mix."""

    degree: Positive | None = Field(default=None, examples=[4])
    """Neighbors of a client: for `k_connected` and `small_world` (an even number), and for
    `random_regular`."""
    probability: Annotated[float, Ge(1e-9), Le(1.0)] | None = Field(default=None, examples=[0.1])
    """For `erdos_renyi`: the probability that two clients exchange. For `small_world`: that an edge
    of the ring leads elsewhere."""
    rows: Annotated[int, Ge(2)] | None = Field(default=None, examples=[5])
    """For `torus`: rows of equal length; left out, the torus is as square as possible."""
    branching: Positive | None = Field(default=None, examples=[3])
    """For `tree`: children of a client; left out, 2."""
    file: str | None = Field(default=None, examples=["graphs/hospitals.edges"])
    """For `custom`: the file with the edges, below the folder in which the run starts. An
    adjacency matrix if the name ends in `.csv`, GraphML if it ends in `.graphml`, otherwise a list
    with an edge in each line."""
    weights: Literal["metropolis", "uniform", "lazy", "own"] | None = Field(
        default=None, examples=["lazy"]
    )
    """What a client takes of each neighbor: 1 / (1 + the larger of both degrees) (`metropolis`).
    With `push_sum`, what it gives to each that receives from it: 1 / (1 + their number)
    (`uniform`). `lazy` halves either, so that a client keeps at least half of its own model. `own`:
    the weights of the edges in the file of a `custom` graph, or in the graph that your own function
    returns. Left out: `metropolis`, or `uniform`."""
    mixing_steps: Annotated[int, Gt(0), Le(1000)] = 1
    """How often neighbors mix in a round."""
    adapt: Literal["similar"] | OwnFunction | None = Field(default=None, examples=["similar"])
    """How the graph changes between rounds: `similar` connects clients whose labels are
    alike. Or your own function `module:function` of (graph, measures, round) that returns the graph
    of the round. Left out: the graph stays."""
    adapt_every: Positive | None = Field(default=None, examples=[5])
    """With `adapt`: rounds between changes; left out, 10."""

    def broken_rules(self) -> Iterator[Conflict]:
        if self.adapt_every is not None and self.adapt is None:
            yield Conflict(
                key="adapt_every",
                found="`adapt_every` without `adapt`",
                allowed="leave it out, or `adapt: similar`",
            )
        if self.adapt == "similar" and self.weights == "own":
            yield Conflict(
                key="adapt",
                found="`similar` with `weights: own`: its edges have no weights",
                allowed="your own function, or other weights",
            )


class Model(Section):
    """The model to train."""

    model_type: str
    """A built-in (`cnn`, `lenet`, `logistic_regression`, `mlp`, `resnet18`, `transformer`) or your
    own as `module:Class`."""
    options: Options = Field(default={})
    """Keyword arguments of the model, such as `hidden: [128]` for `mlp`."""
    buffers: Literal["average", "keep"] = "average"
    """Floating-point buffers (BatchNorm statistics): `average` combines them by
    `aggregation_strategy`, without the server's optimizer and its rate; `keep` keeps their initial
    values.
    Integer counters become the largest value seen, either way."""


class Training(Section):
    """The local training of a client in a round."""

    number_of_epochs: Positive = 1
    """Passes over the client's own samples."""
    batch_size: Positive = 32
    """Samples per local step; the last batch of an epoch may be smaller."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Local optimizer; it starts without state in every round."""
    learning_rate: PositiveFloat = 0.1
    """Local step size."""
    schedule: Schedule | None = Field(
        default=None, examples=[{"kind": "cosine", "decay_rounds": 40}]
    )
    """How the learning rate changes from round to round; left out: it does not."""
    momentum: Annotated[float, Ge(0.0), Lt(1.0)] = 0.0
    """Momentum of `sgd`."""
    nesterov: bool = False
    """Whether the momentum of `sgd` is Nesterov's."""
    weight_decay: NonNegativeFloat = 0.0
    """L2 penalty (decoupled for `adamw`)."""
    proximal_mu: NonNegativeFloat = 0.0
    """FedProx (Li et al. 2020): each step also pulls a client towards the model with which it began
    the round, by `proximal_mu` times the distance; 0 is plain training."""
    max_gradient_norm: PositiveFloat | None = Field(default=None, examples=[1.0])
    """A local step scales a gradient with a larger norm down to this one (Pascanu et al. 2013). The
    norm is over all tensors of a client's model together. Left out: no limit."""
    loss_function: str = "cross_entropy"
    """`cross_entropy`, or your own `module:function` of (outputs, labels) that returns a mean."""
    shuffle: bool = True
    """Shuffle the samples in every epoch."""
    client_update: str | None = Field(default=None, examples=["my_module:client_update"])
    """Your own function that trains a client, `module:function`; left out: epochs of local steps
    with the keys of this section."""
    execution: Literal["auto", "sequential", "folded", "mapped", "compiled"] = "auto"
    """How a worker trains the clients of a chunk: one after another (`sequential`), at once by
    folding them into the batch (`folded`) or by `torch.func.vmap` (`mapped`), or by machine code
    for chains of dense layers on a CPU (`compiled`). With `auto`, a cost model chooses from the
    model's structure and this config alone, and the run's `config.yaml` records the choice."""
    chunk_size: Positive | Literal["auto"] = Field(default="auto", examples=[64])
    """Clients per chunk; with `auto`, the same cost model chooses."""
    execution_model: Literal[1] | None = Field(default=None, examples=[1])
    """Version of the cost model behind `auto`; left out: the newest. A run records its version. A
    version never changes: a better cost model gets the next number."""
    execution_reason: str | None = Field(default=None, examples=["about 17x as fast as one by one"])
    """Why `auto` chose this execution, as recorded by a run. It has no effect."""

    def broken_rules(self) -> Iterator[Conflict]:
        if self.execution == "auto" and self.chunk_size != "auto":
            yield Conflict(
                key="chunk_size",
                found=f"`chunk_size: {self.chunk_size}` with `execution: auto`",
                allowed="`chunk_size: auto`, or a given `execution`",
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
                found=f"`execution: {self.execution}` with your own `loss_function`",
                allowed="`auto` or `sequential`: your loss sees one client's batch at a time",
            )
        for key in ("proximal_mu", "max_gradient_norm"):
            if self.client_update is not None and (value := getattr(self, key)):
                yield Conflict(
                    key=key,
                    found=f"`{key}: {value:g}` with `client_update`",
                    allowed="one of the two: your own code takes its own steps",
                )
        final = None if self.schedule is None else self.schedule.final_rate
        if final is not None and final > self.learning_rate:
            yield Conflict(
                key="schedule.final_rate",
                found=f"`final_rate: {final:g}` with `learning_rate: {self.learning_rate:g}`",
                allowed="at most the `learning_rate`",
            )
        if self.momentum and self.optimizer != "sgd":
            yield Conflict(
                key="momentum",
                found=f"`momentum: {self.momentum:g}` with `optimizer: {self.optimizer}`",
                allowed="`optimizer: sgd`, or no momentum",
            )
        if self.nesterov and not self.momentum:
            yield Conflict(
                key="nesterov",
                found="`nesterov: true` without `momentum`",
                allowed="a `momentum` above 0, with `optimizer: sgd`",
            )


class EarlyStopping(Section):
    """Conditions that end the run before its last round."""

    patience: Positive | None = Field(default=None, examples=[5])
    """The run ends after this many evaluations in a row without improvement."""
    min_delta: NonNegativeFloat = 0.0
    """The metric must improve by more than this to count as an improvement."""
    target: float | None = Field(default=None, examples=[0.95])
    """The run ends once the accuracy is at least this, or the loss at most this."""

    def broken_rules(self) -> Iterator[Conflict]:
        if self.patience is None and self.target is None:
            yield Conflict(
                key="patience",
                found="neither `patience` nor `target`",
                allowed="at least one of the two",
            )


class Evaluation(Section):
    """The evaluation of the global model."""

    every: Positive = 1
    """Rounds between evaluations; the last round is always evaluated."""
    where: Literal["coordinator", "sites"] = "coordinator"
    """Evaluate on the coordinator's test set, or on the clients' own samples (`sites`)."""
    clients: Literal["sampled", "fraction", "all"] = "sampled"
    """With `where: sites`, the clients that evaluate: the round's cohort (`sampled`), a random
    `fraction` of the population, or `all`."""
    fraction: Fraction | None = Field(default=None, examples=[0.1])
    """With `clients: fraction` (required): the share of the population."""
    nodes: Literal["none", "sampled", "all"] | None = Field(default=None, examples=["all"])
    """On a graph, the clients whose own models are evaluated besides their mean: 32 clients, the
    same ones in every round (`sampled`), `all` clients, or `none`. `sampled` takes at most 512
    samples of the coordinator's test set, `all` takes the whole of it. With `where: sites` each
    model is evaluated on its client's own samples. Left out: `sampled`."""
    batch_size: Positive = 256
    """Samples per forward pass. It can change the last bit, so it is part of the run's identity."""
    metric: Literal["accuracy", "loss"] = "accuracy"
    """Metric that selects the best model and decides early stopping."""
    early_stopping: EarlyStopping | None = Field(default=None, examples=[{"patience": 5}])
    """Conditions that end the run before its last round; left out: none."""

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
