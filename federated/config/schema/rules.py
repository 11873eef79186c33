"""Rules between the sections of a configuration; their keys count from the top."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from fedpilot.common.strict_yaml.schema_problems import Conflict

from .data import Data
from .learning import WEIGHTED_MEANS, Evaluation, FederationConfig, Graph
from .running import ResourcesConfig, Robustness, SitesConfig
from .values import any_of

if TYPE_CHECKING:
    from . import RunConfig

_ROUNDING = 1e-9
"""Three times 0.3333333333 is 1."""


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
    if hierarchy is None or federation.topology != "hierarchical":
        return
    topology = "`topology: hierarchical`"
    for key in ("clients_per_round", "client_sampling_rate"):
        if getattr(federation, key) is not None:
            yield Conflict(
                key=f"federation.{key}",
                found=f"`{key}` with {topology}, where every group trains in every round",
                allowed=f"`hierarchy.{key}`, which applies to each group",
            )
    if federation.aggregation_strategy not in WEIGHTED_MEANS:
        yield Conflict(
            key="federation.aggregation_strategy",
            found=f"`{federation.aggregation_strategy}` with {topology}, whose groups hand up sums",
            allowed=any_of(WEIGHTED_MEANS),
        )
    if config.training.client_update is not None:
        yield Conflict(
            key="training.client_update",
            found=f"a `client_update` with {topology}, where a client trains several times a round "
            "and cannot keep state",
            allowed="leave it out, or `topology: star`",
        )
    if config.participation.over_sampling:
        yield Conflict(
            key="participation.over_sampling",
            found=f"`over_sampling` with {topology}, where every group trains in every round",
            allowed="0",
        )
    if config.outputs.client_digests:
        yield Conflict(
            key="outputs.client_digests",
            found=f"true with {topology}, where a client has several results in a round",
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


def class_conflicts_of_run(config: RunConfig) -> Iterator[Conflict]:
    """The rules about what vnode classes cannot be combined with; keys from the top."""
    if config.resources.groups is None:
        return
    if config.federation.topology == "hierarchical":
        yield Conflict(
            key="resources.groups",
            found="`groups` with `topology: hierarchical`, where one worker trains a whole group, "
            "whose clients may be of several vnode classes",
            allowed="leave it out, or `topology: star`",
        )


GRAPH_STRATEGIES = ("dpsgd", "gossip", "push_sum")
GRAPH_OPTIONS: Mapping[str, frozenset[str]] = {
    "degree": frozenset({"k_connected", "random_regular", "small_world"}),
    "probability": frozenset({"erdos_renyi", "small_world"}),
    "rows": frozenset({"torus"}),
    "branching": frozenset({"tree"}),
    "file": frozenset({"custom"}),
}
"""The parameters of graphs, and the topologies that have them."""
_NEEDED = ("degree", "probability", "file")


def graph_conflicts(config: RunConfig) -> Iterator[Conflict]:
    """The rules about graphs, and what they cannot be combined with; keys from the top."""
    federation, graph = config.federation, config.graph or Graph()
    on_a_graph, mixes = federation.is_graph, federation.aggregation_strategy in GRAPH_STRATEGIES
    topology = f"`topology: {federation.topology}`"
    if on_a_graph != mixes:
        yield Conflict(
            key="federation.aggregation_strategy",
            found=f"`{federation.aggregation_strategy}` with {topology}",
            allowed=f"{any_of(GRAPH_STRATEGIES)}, one of which each graph needs"
            if on_a_graph
            else f"another one; {any_of(GRAPH_STRATEGIES)} is for graphs, such as `topology: ring`",
        )
    for option, topologies in GRAPH_OPTIONS.items():
        set_, takes = getattr(graph, option) is not None, federation.topology in topologies
        if set_ != takes and (set_ or option in _NEEDED):
            yield Conflict(
                key=f"graph.{option}",
                found=f"{topology} {'with' if set_ else 'without'} `{option}`",
                allowed=f"`{option}` with {any_of(sorted(topologies))}"
                if set_
                else "a value: this topology has no default",
            )
    pushes, usual = federation.pushes, "uniform" if federation.pushes else "metropolis"
    if graph.weights == "own" and not federation.may_have_weights:
        yield Conflict(
            key="graph.weights",
            found=f"`own` with {topology}",
            allowed=f"`{usual}` or `lazy`, or `topology: custom` or your own function",
        )
    if graph.weights == ("metropolis" if pushes else "uniform"):
        yield Conflict(
            key="graph.weights",
            found=f"`{graph.weights}` with `{federation.aggregation_strategy}`",
            allowed=f"`{usual}`, `lazy`, or `own` with `topology: custom`",
        )
    if federation.topology == "exponential" and mixes and not pushes:
        yield Conflict(
            key="federation.aggregation_strategy",
            found=f"`{federation.aggregation_strategy}` with {topology}, which is directed",
            allowed="`push_sum`",
        )
    if not on_a_graph:
        if config.graph is not None:
            yield Conflict(key="graph", found=f"`graph` with {topology}", allowed="leave it out")
        if config.evaluation.nodes is not None:
            yield Conflict(
                key="evaluation.nodes",
                found=f"`{config.evaluation.nodes}` with {topology}, where clients share a model",
                allowed="leave it out",
            )
        return
    if graph.adapt is not None and federation.topology in ("matching", "exponential"):
        yield Conflict(
            key="graph.adapt",
            found=f"`{graph.adapt}` with {topology}, which is another graph in each round anyway",
            allowed="leave it out, or another topology",
        )
    limits = [name for name, most in config.traffic if most is not None]
    if graph.adapt is not None and limits:
        yield Conflict(
            key=f"traffic.{limits[0]}",
            found="a limit with `graph.adapt`: the bytes of its later graphs are not known before",
            allowed="leave one of them out",
        )
    if federation.topology == "exponential" and config.participation.quorum < 1:
        yield Conflict(
            key="participation.quorum",
            found=f"{config.participation.quorum:g} with {topology}, where a client that receives "
            "from an absent one only would lose all its weight",
            allowed="1, or another topology",
        )
    everybody = f"with {topology}, where all clients take part in every round"
    for key in ("clients_per_round", "client_sampling_rate"):
        if getattr(federation, key) is not None:
            yield Conflict(
                key=f"federation.{key}", found=f"`{key}` {everybody}", allowed="leave it out"
            )
    if (most := config.robustness.max_client_norm) is not None:
        yield Conflict(
            key="robustness.max_client_norm",
            found=f"{most:g} with {topology}, where clients exchange models, not updates",
            allowed="leave it out, or `topology: star`",
        )
    if federation.server_learning_rate != 1.0:
        yield Conflict(
            key="federation.server_learning_rate",
            found=f"{federation.server_learning_rate:g} with {topology}, which has no server",
            allowed="1",
        )
    if config.training.client_update is not None:
        yield Conflict(
            key="training.client_update",
            found=f"a `client_update` with {topology}, where clients keep models in the place of "
            "what such code keeps",
            allowed="leave it out, or `topology: star`",
        )
    participation = config.participation
    for key, whole in {"over_sampling": 0.0, "deadline_s": None}.items():
        if getattr(participation, key) != whole:
            yield Conflict(
                key=f"participation.{key}", found=f"`{key}` {everybody}", allowed="leave it out"
            )


def replica_conflicts(config: RunConfig) -> Iterator[Conflict]:
    """The rules about replicas of clients' states; keys from the top."""
    every, federation = config.participation.replicate_every, config.federation
    if every is None:
        return

    def about(found: str, allowed: str = "leave one of them out", key: str = "") -> Conflict:
        what = f"`replicate_every` {found}"
        return Conflict(key=key or "participation.replicate_every", found=what, allowed=allowed)

    if not federation.is_graph:
        keep = (
            "what a `client_update` keeps stays at its site"
            if config.training.client_update is not None
            else "clients keep nothing between rounds"
        )
        yield about(
            f"with `topology: {federation.topology}`, where {keep}",
            "leave it out, or a graph, such as `topology: ring`",
        )
    if config.data.from_ is not None:
        yield about("with `data.from: sites`: a client cannot go on without its data")
    if config.sites.count == 1:
        yield about("with one site, which has no other one for a replica", "2 sites or more")
    if every >= federation.rounds:
        yield about(
            f"of {every}, and the run has {federation.rounds} rounds: none is made before the last",
            f"less than {federation.rounds}",
        )
    if config.participation.quorum < 1:
        yield about(
            f"with a quorum of {config.participation.quorum:g}, by which the clients of a lost "
            "site sit out"
        )
    if not config.participation.replacement:
        yield about("with `replacement: false`, by which clients wait for their site")
    for name, most in config.traffic:
        if most is not None:
            found = "together with it: a run that goes back moves the bytes of rounds again"
            yield about(found, key=f"traffic.{name}")


def reassignment_conflicts(config: RunConfig) -> Iterator[Conflict]:
    """The rules about clients that move to other sites; keys from the top."""
    every, federation = config.participation.reassign_every, config.federation
    if every is None:
        return

    def about(found: str, allowed: str = "leave one of them out", key: str = "") -> Conflict:
        what = f"`reassign_every` {found}"
        return Conflict(key=key or "participation.reassign_every", found=what, allowed=allowed)

    if not federation.is_graph:
        keep = (
            "what a `client_update` keeps stays at its site"
            if config.training.client_update is not None
            else "no client has a model of its own, and where it is costs no transfer"
        )
        yield about(
            f"with `topology: {federation.topology}`, where {keep}",
            "leave it out, or a graph, such as `topology: ring`",
        )
        return
    if federation.topology in ("matching", "exponential"):
        yield about(
            f"with `topology: {federation.topology}`, another graph in each round: no site is "
            "better for a client than others",
            "leave it out, or another topology",
        )
    if federation.assigned_by != "locality":
        yield about(
            f"with `assignment: {federation.assigned_by}`, which does not make rounds short",
            "leave one of them out, or `assignment: locality`",
        )
    if config.graph is not None and config.graph.adapt is not None:
        yield about("with `graph.adapt`: how long later graphs stay the best is not known")
    if config.sites.count == 1:
        yield about("with one site, which has no other one for a client", "2 sites or more")
    if every >= federation.rounds:
        yield about(
            f"of {every}, and the run has {federation.rounds} rounds: nothing is decided before "
            "the last",
            f"less than {federation.rounds}",
        )
    if config.participation.quorum < 1:
        yield about(
            f"with a quorum of {config.participation.quorum:g}, by which clients sit out, so that "
            "their models are of unequal rounds"
        )
    for name, most in config.traffic:
        if most is not None:
            found = "together with it: the bytes of moves are not known before"
            yield about(found, key=f"traffic.{name}")


def late_conflicts(config: RunConfig) -> Iterator[Conflict]:
    """The rules about what can be added up late; keys from the top."""
    if config.participation.late_updates == "discard":
        return
    strategy = config.federation.aggregation_strategy
    if strategy not in WEIGHTED_MEANS:
        means = any_of(WEIGHTED_MEANS)
        yield Conflict(
            key="participation.late_updates",
            found=f"`carry` with `aggregation_strategy: {strategy}`, which is no weighted mean",
            allowed="`discard`" if config.federation.is_graph else f"`discard`, or {means}",
        )
    if config.training.client_update is not None:
        yield Conflict(
            key="participation.late_updates",
            found="`carry` with a `client_update`, whose clients keep state: a late client would "
            "keep the state of a closed round",
            allowed="`discard`",
        )


def share_conflicts(robustness: Robustness, sites: int) -> Iterator[Conflict]:
    """The rules about what each of so many sites may add; keys from the top."""
    most = robustness.max_site_share
    if most is not None and most * sites < 1.0 - _ROUNDING:
        yield Conflict(
            key="robustness.max_site_share",
            found=f"{most:g} of a round for each of {sites} sites, which is less than a round",
            allowed=f"at least 1 / sites ({1 / sites:.4g}), or no limit",
        )


def site_conflicts(sites: SitesConfig, resources: ResourcesConfig) -> Iterator[Conflict]:
    """The rules about where sites are; keys from the top."""
    count, ray = sites.count, resources.ray
    key = "address" if ray.address is not None else "cluster"
    if count is not None and count > 1 and (ray.address or ray.cluster) is not None:
        yield Conflict(
            key="sites.count",
            found=f"{count} sites together with `resources.ray.{key}`",
            allowed=f"1: one Ray cluster is one site; or leave `{key}` out",
        )


def site_data_conflicts(
    data: Data, evaluation: Evaluation, sites: SitesConfig
) -> Iterator[Conflict]:
    """The rules about data that lies at sites; keys from the top."""
    if data.from_ is None and sites.site_files:
        yield Conflict(
            key="sites.site_files",
            found="`site_files` without `data.from: sites`",
            allowed="leave it out, or train on the declared data with `data.from: sites`",
        )
    if data.from_ is not None and evaluation.where == "coordinator":
        yield Conflict(
            key="evaluation.where",
            found="`where: coordinator` with `data.from: sites`: the coordinator has no samples",
            allowed="`where: sites`",
        )


def population_conflicts(federation: FederationConfig, data: Data) -> Iterator[Conflict]:
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


BETWEEN: Mapping[tuple[str, ...], Callable[..., Iterator[Conflict]]] = {
    ("federation", "data"): population_conflicts,
    ("data", "evaluation", "sites"): site_data_conflicts,
    ("sites", "resources"): site_conflicts,
}
"""Rules by the sections that they need: they are checked though other sections are broken."""
