"""A run's inputs: the data, the model of round 0, and the number of clients per round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedpilot.mediator.core.assignment import RoundWork

from ...algorithms import algorithm_of
from ...config.schema import Graph, RunConfig
from ...core.population.cohort_members import SamplesOf
from ...core.population.federated_data.declarations import Exactness
from ...core.population.federated_data.union import Union
from ...core.population.groups import ClientGroups
from ...core.population.partitions.partition import Int64s, Partition
from ...core.population.sampling import share
from ...core.population.vnode_classes import ClientClasses
from ...core.rounds.exchange_costs import crossing_sizes
from ...core.rounds.participation import asked, least
from ...core.rounds.round_costs import Costs
from ...core.state import Array, Roles
from ...core.sums.updates import bytes_of_one
from ...errors import ConfigError
from ..costs import check_aggregation, check_budget
from ..topology import check_graph, topology_of

if TYPE_CHECKING:
    from ...core.topology.graphs import Topology


@dataclass(frozen=True, slots=True)
class SiteData:
    """Data shared by a site's workers: samples, test set, partition and groups."""

    x: Array
    """(n, *input_shape), float32 or float64, or int64 (tokens)."""
    y: Array
    """(n,), int64."""
    test_x: Array
    test_y: Array
    num_classes: int
    partition: Partition
    groups: ClientGroups | None = None
    """Groups of the clients whose samples are here, if the config has groups."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]

    @property
    def nbytes(self) -> int:
        """Bytes of the samples."""
        return sum(a.nbytes for a in (self.x, self.y, self.test_x, self.test_y))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class RunInputs:
    """All inputs of a run."""

    data: SiteData
    roles: Roles
    initial: dict[str, Array]
    data_digest: str
    """Digest of the samples; at the coordinator of data at sites, of what the sites disclose."""
    cohort_size: int
    """Clients that a round asks."""
    enough: int
    """Clients that suffice to close a round: fewer than `cohort_size` with over-sampling."""
    here: range
    union: Union | None = None
    """The clients of each site; only at the coordinator of data at sites."""
    graphs: Topology | None = None
    """Who exchanges with whom, on a graph; at the coordinator only."""
    labels: Int64s | None = None
    """(clients, labels): each client's samples of each label, if the assignment asks for them; at
    the coordinator only."""
    classes: ClientClasses | None = None
    """The vnode class of each client; None for one class, and at the coordinator where classes go
    by columns of data at sites."""

    @property
    def population(self) -> int:
        """The number of clients."""
        return self.data.partition.number_of_clients

    @property
    def parameters(self) -> int:
        """The numbers in the model's state."""
        return sum(array.size for array in self.initial.values())

    @property
    def bytes_of_update(self) -> int:
        """Bytes of one client's update."""
        return bytes_of_one(self.initial, self.roles)

    def samples_of(self) -> SamplesOf | None:
        """Look up clients' exact numbers of samples; None if sites do not disclose them."""
        if self.union is None:
            return self.data.partition.sizes
        exact = self.union.exact_samples()
        return None if exact is None else exact.__getitem__

    def told_of(self, site: str) -> Exactness:
        """How exactly a site's sample counts may be shown; exactly in a simulation."""
        return Exactness.EXACT if self.union is None else self.union.told.get(site, Exactness.NONE)

    def costs(self, config: RunConfig) -> Costs:
        """The bytes that a round of the run moves, counted by its tensors."""
        return Costs.of(self.initial, self.roles, algorithm_of(config.federation).needs)

    def round_work(self, config: RunConfig, *, counted: bool = True) -> RoundWork:
        """What a round of the run computes and moves; with `gossip`, a round after the first.

        Counting the clients' samples takes seconds for a million of them: `counted=False` does not.
        """
        costs, union = self.costs(config), self.union
        gossips = config.federation.aggregation_strategy == "gossip"
        sizes = self.data.partition.sizes
        if not counted:
            samples = None
        else:
            samples = union.samples() if union is not None else sizes(np.arange(self.population))
        on_graph, pushes = config.federation.is_graph, config.federation.pushes
        crossing = crossing_sizes(self.initial, self.roles, pushes=pushes) if on_graph else None
        return RoundWork(
            samples=samples,
            trained=0.0 if gossips else self.cohort_size / self.population,
            model_bytes=costs.model,
            sum_bytes=costs.answer,
            update_bytes=costs.update,
            mixing_steps=(config.graph or Graph()).mixing_steps,
            state_bytes=None if crossing is None else crossing.state,
            partial_bytes=0 if crossing is None else crossing.partial,
        )


def inputs_of(
    config: RunConfig,
    data: SiteData,
    model: tuple[dict[str, Array], Roles],
    *,
    data_digest: str,
    here: range,
    union: Union | None = None,
    classes: ClientClasses | None = None,
) -> RunInputs:
    """Assemble a run's inputs; ConfigError for more clients per round than there are.

    `model`: the state of round 0, and the role of each of its tensors.
    """
    initial, roles = model
    population = data.partition.number_of_clients
    enough = _cohort_size(config, population)
    return RunInputs(
        data=data,
        roles=roles,
        initial=initial,
        data_digest=data_digest,
        cohort_size=asked(enough, config.participation.over_sampling, population),
        enough=enough,
        here=here,
        union=union,
        classes=classes,
    )


def affordable(config: RunConfig, inputs: RunInputs) -> RunInputs:
    """Check that memory and the traffic budget suffice for a round; ConfigError if not."""
    fewest = least(inputs.enough, config.participation.quorum)
    check_aggregation(config.federation, inputs.cohort_size, fewest, inputs.bytes_of_update)
    check_budget(config, inputs.costs(config))
    return inputs


def with_graphs(config: RunConfig, inputs: RunInputs) -> RunInputs:
    """The inputs with the graphs of a run, made once; ConfigError for none that can be used."""
    graphs = topology_of(config, inputs.data.partition)
    if graphs is None:
        return inputs
    check_graph(config, graphs, inputs.data.partition)
    return replace(inputs, graphs=graphs)


def _cohort_size(config: RunConfig, population: int) -> int:
    federation = config.federation
    if federation.client_sampling_rate is not None:
        return share(population, federation.client_sampling_rate)
    named = federation.clients_per_round
    if named is not None and named > population:
        found = f"{named} clients per round out of a population of {population}"
        raise ConfigError.about("federation.clients_per_round", found, f"at most {population}")
    return population if named is None else named
