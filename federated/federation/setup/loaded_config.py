"""LoadedConfig: a run's config with its user code, data and model.

It derives the clients, each round's cohort and each round's cost. All of it is checked before
anything starts. One thing changes later: the meaning of `execution: auto` is decided before the
first site starts, or taken over from an earlier run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpilot.mediator import Share
from fedpilot.mediator.core.assignment import SiteCapacity, assign

from ...algorithms import algorithm_of
from ...config import as_before, identity
from ...config.loading import Placing
from ...config.schema import Graph, RunConfig
from ...config.schema.rules import share_conflicts
from ...core.algorithm import Needs
from ...core.population.cohort_members import Membership
from ...core.population.federated_data.union import described
from ...core.population.partitions.summary import PartitionSummary, describe
from ...core.population.sampling import cohort
from ...core.rounds.exchange_costs import ExchangeCosts, crossing_sizes
from ...core.rounds.node_scores import NodesEvaluated, nodes_evaluated
from ...core.topology.covers import remembering
from ...errors import ConfigError, Problem
from ...prepare.assigning import strategy_of
from ...prepare.costs import Spilling, check_disk, rounds_within, spilling
from ...prepare.gang_request import uncollected
from ...prepare.grouping import steps_of
from ...prepare.topology import graph_digest, lasting_exchange_of
from ...prepare.user_code.user_code import UserCode
from ..events import Emit

if TYPE_CHECKING:
    from ...core.execution.facts import ModelFacts
    from ...prepare.inputs.run_inputs import RunInputs


@dataclass(slots=True, kw_only=True)
class LoadedConfig:
    """The inputs of a federation."""

    config: RunConfig
    code: UserCode
    """The user's own modules that the config names."""
    inputs: RunInputs
    paths: Sequence[str]
    """Folders searched for the user's own modules."""
    located: Placing
    model_facts: ModelFacts | None = None
    """What the choice of an execution found out about the model, if anything."""

    @property
    def identity(self) -> str:
        """One hash of everything that decides the bits of a run's result."""
        return self.identity_of(self.config)

    def identity_of(self, config: RunConfig) -> str:
        """The identity with another config over the same code, data and graph."""
        return identity(config, self.code.digest, self.inputs.data_digest + self.graph_digest)

    @property
    def graph_digest(self) -> str:
        """The digest of a graph that the config does not determine alone; empty for any other."""
        return graph_digest(self.config, self.inputs.graphs)

    def among(self, sites: Sequence[str]) -> tuple[str, ...]:
        """The sites that may have clients: all, or those with the run's data."""
        union = self.inputs.union
        return tuple(sites) if union is None else tuple(s for s in sites if s in union.sites)

    def check_shares(self, sites: int) -> None:
        """Raise ConfigError for limits on shares that so many sites cannot keep."""
        found = [
            Problem(key=each.key, found=each.found, allowed=each.allowed)
            for each in share_conflicts(self.config.robustness, sites)
        ]
        if found:
            raise ConfigError(found)

    def check_copies(self, sites: int) -> None:
        """Raise ConfigError for replicas, or moves of clients, where these have nowhere to go."""
        for key, what in {"replicate_every": "a replica", "reassign_every": "a client"}.items():
            if getattr(self.config.participation, key) is not None and sites < 2:
                error = ConfigError.about(
                    f"participation.{key}",
                    found=f"`{key}` in a run with one site, which has no other for {what}",
                    allowed="leave it out, or several sites, such as `sites: 3`",
                )
                raise self.located(error)
        union, every = self.inputs.union, self.config.participation.reassign_every
        if every is not None and union is not None and union.pinned:
            error = ConfigError.about(
                "participation.reassign_every",
                found="`reassign_every` in a run whose clients all stay at the sites of their data",
                allowed="leave it out, or data that may move (`residency: movable`)",
            )
            raise self.located(error)

    @property
    def spilling(self) -> Spilling | None:
        """The clients' models that sites with as many clients each keep in files, if any."""
        return spilling(self.config, self.inputs.population, self.inputs.bytes_of_update)

    def check_disk(self) -> None:
        """Raise ConfigError if this machine's disk has no room for those of a new run."""
        try:
            check_disk(self.config, self.inputs.population, self.inputs.bytes_of_update)
        except ConfigError as error:
            raise self.located(error) from error

    def settle_execution(self, emit: Emit) -> None:
        """Choose how a chunk is computed; raises ConfigError for what does not suit the model."""
        from ...prepare.execution.execution_choice import settled

        try:
            self.config, reason, self.model_facts = settled(self.config, self.inputs)
        except ConfigError as error:
            raise self.located(error) from error
        training = self.config.training
        emit(
            "execution_chosen",
            execution=training.execution,
            chunk_size=training.chunk_size,
            execution_model=training.execution_model,
            reason=reason,
        )

    def take_over_execution(self, earlier: RunConfig) -> None:
        """Take over an earlier run's choice for `auto`."""
        self.config = as_before(self.config, earlier)

    # -- clients ------------------------------------------------------------------------------

    def describe(self) -> PartitionSummary:
        """How the samples are divided over the clients, as far as known here."""
        if (union := self.inputs.union) is not None:
            return described(union)
        return describe(self.inputs.data.partition, self.inputs.data.y)

    def samples_of(self, index: int) -> int | None:
        """Samples of a client; None if its site does not disclose them."""
        if (union := self.inputs.union) is None:
            return self.inputs.data.partition.size(index)
        samples = union.samples()
        return None if samples is None else int(samples[index])

    # -- rounds -------------------------------------------------------------------------------

    @property
    def cohort_size(self) -> int:
        """Clients per round; with groups, in each round that a group trains by itself."""
        steps, groups = steps_of(self.config), self.inputs.data.groups
        if steps is None or groups is None:
            return self.inputs.cohort_size
        return steps.clients_of_step(groups)

    def cohort(self, round_number: int) -> list[str]:
        """Ids of the clients that train in a round; for groups at sites, all that may."""
        steps, groups = steps_of(self.config), self.inputs.data.groups
        if steps is not None and groups is not None:
            clients = steps.clients_of_round(groups, round_number)
        else:
            size, seed = self.inputs.cohort_size, self.config.run.random_seed
            clients = cohort(self.inputs.population, size, seed, round_number)
        return [self.inputs.data.partition.client_id(index) for index in clients.tolist()]

    def membership(self) -> Membership:
        """Derives the clients of a run's orders."""
        groups = self.inputs.data.groups
        return Membership(
            population=self.inputs.population,
            asked=self.inputs.cohort_size,
            seed=self.config.run.random_seed,
            index_of=self.inputs.data.partition.index_of,
            groups=groups,
            known=steps_of(self.config) is None or groups is not None,
            samples_of=self.inputs.samples_of(),
            equal=self.config.federation.is_graph,
        )

    # -- bytes --------------------------------------------------------------------------------

    @property
    def bytes_of_updates(self) -> int:
        """Bytes of a round's updates where the algorithm keeps each; 0 where it sums them."""
        if algorithm_of(self.config.federation).needs is Needs.SUM:
            return 0
        return self.cohort_size * self.inputs.bytes_of_update

    def rounds_within_budget(self, sites: Sequence[str]) -> int | None:
        """How many rounds `traffic` covers over these sites; None without limits."""
        costs = self.inputs.costs(self.config)
        clients = dict.fromkeys(sites, -(-self.cohort_size // len(sites)))
        if (exchange := self.exchange) is None or len(sites) < 2:
            return rounds_within(self.config, costs, clients)
        shares = self.shares_among(sites)
        return rounds_within(self.config, costs, clients, lambda n: exchange.of_round(n, shares))

    @property
    def exchange(self) -> ExchangeCosts | None:
        """What clients exchange on a graph; None if they share one model."""
        config, inputs = self.config, self.inputs
        graphs = inputs.graphs
        if graphs is None:
            return None
        evaluation, rounds = config.evaluation, config.federation.rounds
        which = NodesEvaluated(config.evaluated_nodes)
        nodes = nodes_evaluated(which, inputs.population, config.run.random_seed)
        pushes = config.federation.pushes
        sizes = crossing_sizes(inputs.initial, inputs.roles, pushes=pushes)
        return ExchangeCosts(
            graph=graphs.of_round,
            sizes=sizes,
            cover=remembering(sizes),
            steps=(config.graph or Graph()).mixing_steps,
            evaluated=lambda number: nodes if evaluation.is_due(number, rounds) else nodes[:0],
        )

    def shares_among(self, sites: Sequence[str]) -> Mapping[str, Share]:
        """Each site's clients on a graph, if all sites have as many workers."""
        alike = [SiteCapacity(site, 1) for site in sites]
        exchange = lasting_exchange_of(self.config, self.inputs.graphs)
        by, population, union = strategy_of(self.config), self.inputs.population, self.inputs.union
        pinned = {} if union is None else union.pinned
        labels = self.inputs.labels
        return assign(by, population, alike, pinned, exchange, labels=labels).shares


def inputs_of(config: RunConfig, declared: Mapping[str, Any] | None) -> RunInputs:
    """A config's inputs; raises ConfigError for impossible ones.

    `declared`: what each site discloses of its data; None where the data is loaded here.
    """
    from importlib.util import find_spec

    with uncollected():
        from ...prepare.adapting import adapting_of
        from ...prepare.inputs.data_at_sites import gather_declared
        from ...prepare.inputs.labels import with_labels
        from ...prepare.inputs.local_data import gather
        from ...prepare.inputs.run_inputs import with_graphs

    if config.outputs.tensorboard and find_spec("tensorboardX") is None:
        raise ConfigError.about(
            "outputs.tensorboard",
            found="true, but tensorboardX is not installed",
            allowed="false, or `pip install 'fedpilot[tensorboard]'`",
        )
    made = gather(config) if declared is None else gather_declared(config, declared)
    inputs = with_labels(config, with_graphs(config, made))
    adapting_of(config, inputs)  # it must be there before anything starts
    return inputs


def execution_of(config: RunConfig) -> list[Any]:
    """How to compute a chunk, as an order has it."""
    return [config.training.execution, config.training.chunk_size]
