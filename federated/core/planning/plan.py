"""Plan: which site has which clients, what a round costs each of them, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from fedpilot.mediator.core.assignment import (
    Assignment,
    ChosenStrategy,
    Exchange,
    Holder,
    Reassignment,
    ReassignmentProblem,
    ReplicaSite,
    Resource,
    RoundCost,
    RoundWork,
    Share,
    SiteCapacity,
    SiteLoads,
    assign,
    cost_of,
    holders,
    places_of,
    reassignment,
    size,
)
from fedpilot.mediator.core.links import LinkSpeed

from ..population.sampling import Indices
from ..rounds.exchange_costs import Crossings, crossings, states_alone
from ..topology.covers import CoverOf, CrossingSizes, cheapest_cover
from .class_parts import ClassPart, PlannedClass, as_slow_as, by_class, class_parts
from .measured import Measured
from .sites import PlannedSite

ROUND_ROBIN = "round_robin"
UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Known:
    """A figure, and where it comes from."""

    value: float | None
    source: str = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMemory:
    """What a site needs in memory."""

    chunk_bytes: int | None
    """Of the clients that a vnode trains at once: weights, gradients, activations."""
    chunk_clients: int
    store_bytes: int
    """Of a site's object store, where its workers find samples and models."""
    model_bytes_of_client: int
    """That a site keeps for each of its clients between rounds; 0 if it keeps none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """All that decides a plan, besides its sites."""

    name: str
    population: int
    clients_per_round: int
    rounds: int
    assignment: ChosenStrategy
    work: RoundWork
    mean_samples: float | None
    """Of a client, where `work` does not have the samples of each."""
    exchanges: Sequence[Exchange] = ()
    """Who exchanges in each of the first rounds; one if the graph does not change, none in a
    star."""
    lasting: bool = True
    """Whether that one is the graph of all rounds."""
    pinned: Mapping[str, Sequence[range]] = field(default_factory=dict)
    labels: Indices | None = None
    """(clients, labels): each client's samples of each label, if the assignment asks for them."""
    pace: Known
    """Seconds per sample of a vnode, where a site's own is not known."""
    memory: PlannedMemory
    bytes_source: str
    replicate_every: int | None = None
    """Rounds between replicas of clients' models; None without any."""
    reassign_every: int | None = None
    """Rounds between decisions on whether clients move; None without any."""
    state_bytes: int = 0
    """Of what replicas and moves carry of each client."""
    measured: Measured | None = None
    """What another run measured, if the plan follows it."""
    classes: Sequence[PlannedClass] = ()
    """The vnode classes, if there are several."""
    class_of: Indices | None = None
    """(clients,): the number of each client's class, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePlan:
    """A site's part of a round."""

    site: str
    clients: int
    pinned: int
    """Of these, those whose data may not move."""
    vnodes: int
    samples: float | None
    bytes_in: float
    """To the site."""
    bytes_out: float
    models_in: float
    models_out: float
    sums_in: float
    """Partial sums in the place of models."""
    sums_out: float
    compute_s: float | None
    """None if the pace is not known."""
    transfer_s: float | None
    """None if a link is not known that something crosses."""
    seconds_per_sample: float | None
    link: LinkSpeed
    kept_bytes: int
    """Of its clients' models."""
    from_: str
    classes: tuple[ClassPart, ...] = ()
    """Of each vnode class, if there are several."""

    @property
    def seconds(self) -> float | None:
        """As far as they are known."""
        known = [each for each in (self.compute_s, self.transfer_s) if each is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a round takes longest for."""

    site: str
    resource: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How an assignment cuts a graph."""

    strategy: str
    edges: float
    """Edges between sites, in a round."""
    models: float
    """Models that cross, in a round."""
    sums: float
    """Partial sums that cross in the place of others."""
    nbytes: float
    """Of both."""
    seconds: float | None
    """Of a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReplicas:
    """The replicas of clients' models; what rooms sites have is not known."""

    every: int
    """Rounds between them."""
    count: int
    """In the run, if it loses no site."""
    holders: Mapping[str, Holder]
    """By site, the one that holds its clients' models."""

    @property
    def nbytes(self) -> int:
        """Of one replica, to the sites as well as from them."""
        return sum(each.nbytes for each in self.holders.values() if each.site is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run before it starts."""

    inputs: PlanInputs
    sites: tuple[SitePlan, ...]
    seconds: float | None
    """Of a round; None if neither paces nor links are known."""
    bound: Bound | None
    unknown: tuple[str, ...]
    """What is not known, and how it counts."""
    assignment: Assignment
    edges: int | None
    """Of the graph in a round; None in a star."""
    cut: Cut | None
    """None in a star, and with one site."""
    round_robin: Cut | None
    replicas: PlannedReplicas | None
    """None if the run makes none."""
    reassignment: Reassignment | None
    """The first decision on moves, by the links that are known now; None without one."""

    @property
    def bytes_in(self) -> float:
        return sum(site.bytes_in for site in self.sites)

    @property
    def bytes_out(self) -> float:
        return sum(site.bytes_out for site in self.sites)

    @property
    def bytes_of_run(self) -> tuple[float, float]:
        """To the sites and from them in all rounds, with the replicas between them."""
        each = 0 if self.replicas is None else self.replicas.nbytes * self.replicas.count
        rounds = self.inputs.rounds
        return self.bytes_in * rounds + each, self.bytes_out * rounds + each


def assigned(
    inputs: PlanInputs, sites: Sequence[PlannedSite], vnodes: Mapping[str, int]
) -> Assignment:
    """The site of every client; raises NotAssignable."""
    lasting = inputs.exchanges[0] if inputs.exchanges and inputs.lasting else None
    cuts = inputs.assignment not in ("capacity", ROUND_ROBIN) and len(vnodes) > 1
    return assign(
        inputs.assignment,
        inputs.population,
        capacities(inputs, sites, vnodes),
        inputs.pinned,
        lasting if cuts else None,
        inputs.work if cuts else None,
        inputs.labels,
    )


def planned(
    inputs: PlanInputs,
    sites: Sequence[PlannedSite],
    vnodes: Mapping[str, int],
    assignment: Assignment | None = None,
) -> Plan:
    """The plan of a run whose sites hold so many vnodes; by the assignment, if there is one.

    Raises NotAssignable if the strategy leaves clients without a site.
    """
    assignment = assignment or assigned(inputs, sites, vnodes)
    # Clients whose data stays at a site that takes no part wait for it there.
    vnodes = {**dict.fromkeys(assignment.shares, 0), **vnodes}
    capacity = capacities(inputs, sites, vnodes)
    costs = _costs(inputs, capacity, assignment.shares)
    of_classes = _class_parts(inputs, capacity, assignment.shares)
    seconds = float(np.mean([cost.seconds for cost in costs]))
    timed = _is_timed(costs, capacity)
    known = {site.name: site for site in sites}
    parts = tuple(
        _site_plan(
            at,
            each,
            known.get(each.name),
            costs,
            inputs.memory,
            pinned=size(assignment.pinned.get(each.name, ())),
            classes=of_classes[at] if of_classes else (),
        )
        for at, each in enumerate(capacity)
    )
    cut = robin = None
    if inputs.exchanges and len(capacity) > 1:
        cut = _cut(inputs, capacity, assignment, costs)
        if assignment.strategy != ROUND_ROBIN:
            other = assign(ROUND_ROBIN, inputs.population, capacity, inputs.pinned)
            robin = _cut(inputs, capacity, other, _costs(inputs, capacity, other.shares))
        if not timed:
            cut = replace(cut, seconds=None)
            robin = robin and replace(robin, seconds=None)
    return Plan(
        inputs=inputs,
        sites=parts,
        seconds=seconds if timed else None,
        bound=_bound(costs) if timed else None,
        unknown=costs[0].unknown,
        assignment=assignment,
        edges=_edges(inputs),
        cut=cut,
        round_robin=robin,
        replicas=_replicas(inputs, capacity, parts),
        reassignment=_reassignment(inputs, capacity, assignment),
    )


def _replicas(
    inputs: PlanInputs, sites: Sequence[SiteCapacity], parts: Sequence[SitePlan]
) -> PlannedReplicas | None:
    if (every := inputs.replicate_every) is None:
        return None
    found = [
        ReplicaSite(capacity=site, nbytes=part.clients * inputs.state_bytes)
        for site, part in zip(sites, parts, strict=True)
    ]
    count = (inputs.rounds - 1) // every
    return PlannedReplicas(every=every, count=count, holders=holders(found))


def _reassignment(
    inputs: PlanInputs, sites: Sequence[SiteCapacity], assignment: Assignment
) -> Reassignment | None:
    every, left = inputs.reassign_every, inputs.rounds - (inputs.reassign_every or 0)
    if every is None or left <= 0 or not inputs.exchanges or len(sites) < 2:
        return None
    problem = ReassignmentProblem(
        assignment=assignment,
        sites=list(sites),
        exchange=inputs.exchanges[0],
        work=inputs.work,
        state_bytes=inputs.state_bytes,
        round_number=every + 1,
        rounds_left=left,
        window=every,
    )
    return reassignment(problem)


def capacities(
    inputs: PlanInputs, sites: Sequence[PlannedSite], vnodes: Mapping[str, int]
) -> tuple[SiteCapacity, ...]:
    """The sites that hold vnodes as an assignment sees them, by name."""
    known = {site.name: site for site in sites}
    links = {} if inputs.measured is None else inputs.measured.links
    usual = inputs.pace.value
    made = []
    for name, count in sorted(vnodes.items()):
        site = known.get(name, PlannedSite(name=name))
        pace = usual if site.seconds_per_sample is None else site.seconds_per_sample
        link = site.link.or_else(links.get(name, LinkSpeed()))
        made.append(SiteCapacity(name, count, pace, link))
    return tuple(made)


def _costs(
    inputs: PlanInputs, sites: Sequence[SiteCapacity], shares: Mapping[str, Share]
) -> list[RoundCost]:
    """What each of the first rounds costs; one, if all cost the same."""
    whole = _whole(inputs, sites, shares)
    if of_classes := _class_parts(inputs, sites, shares):
        each = zip(sites, of_classes, whole.samples * inputs.work.trained, strict=True)
        sites = [as_slow_as(site, parts, float(samples)) for site, parts, samples in each]
    if inputs.exchanges or inputs.work.samples is not None:
        placed = places_of(shares, sites, inputs.population)
        graphs: Sequence[Exchange | None] = inputs.exchanges or (None,)
        counted = inputs.work.samples is not None
        loads = [_load(inputs.work, placed, len(sites), graph) for graph in graphs]
        return [cost_of(load, sites, inputs.work, samples_known=counted) for load in loads]
    return [cost_of(whole, sites, inputs.work, samples_known=inputs.mean_samples is not None)]


def _whole(
    inputs: PlanInputs, sites: Sequence[SiteCapacity], shares: Mapping[str, Share]
) -> SiteLoads:
    """The clients of each site, and their samples, as far as they are known."""
    if inputs.work.samples is not None:
        placed = places_of(shares, sites, inputs.population)
        return SiteLoads.of(placed, len(sites), inputs.work, None)
    clients = np.array([size(shares.get(site.name, ())) for site in sites], dtype=np.int64)
    return SiteLoads(clients, (clients * (inputs.mean_samples or 0.0)).astype(np.float64), None)


def _class_parts(
    inputs: PlanInputs, sites: Sequence[SiteCapacity], shares: Mapping[str, Share]
) -> list[tuple[ClassPart, ...]]:
    """What each vnode class does in a round at each site; empty if there is one class only."""
    if not inputs.classes:
        return []
    whole, of, work = _whole(inputs, sites, shares), inputs.class_of, inputs.work
    placed = None if of is None else places_of(shares, sites, inputs.population)
    clients = by_class(placed, of, whole.clients, inputs.classes)
    samples = None
    if work.samples is not None:
        samples = by_class(placed, of, whole.samples, inputs.classes, work.samples)
    elif inputs.mean_samples is not None:
        samples = clients * inputs.mean_samples
    if samples is not None:
        samples = samples * work.trained
    return class_parts(sites, inputs.classes, clients, samples, inputs.pace.value)


def _load(work: RoundWork, placed: Indices, sites: int, exchange: Exchange | None) -> SiteLoads:
    load = SiteLoads.of(placed, sites, work, exchange)
    if exchange is None:
        return load
    crossing = crossing_between(work, placed, sites, exchange)
    return replace(load, crossing=crossing.states, sums=crossing.sums)


def crossing_between(work: RoundWork, placed: Indices, sites: int, exchange: Exchange) -> Crossings:
    """What crosses between sites in a mixing step."""
    givers, receivers = (np.concatenate(ends) for ends in zip(*exchange.directions(), strict=True))
    cover: CoverOf = states_alone
    if work.partial_bytes:
        sizes = CrossingSizes(work.given_bytes, work.partial_bytes)
        cover = partial(cheapest_cover, sizes=sizes)
    return crossings(givers, receivers, placed, sites, cover)


def _site_plan(
    at: int,
    capacity: SiteCapacity,
    site: PlannedSite | None,
    costs: Sequence[RoundCost],
    memory: PlannedMemory,
    *,
    pinned: int,
    classes: tuple[ClassPart, ...],
) -> SitePlan:
    parts = [cost.sites[at] for cost in costs]
    first, link = parts[0], capacity.link

    def mean(*values: float) -> float:
        return float(np.mean(values))

    seconds = {each: mean(*(part.seconds[each] for part in parts)) for each in Resource}
    bytes_in = mean(*(part.bytes_down for part in parts))
    bytes_out = mean(*(part.bytes_up for part in parts))
    crosses_unknown = (link.up is None and bytes_out) or (link.down is None and bytes_in)
    compute = None if capacity.seconds_per_sample is None else seconds[Resource.COMPUTE]
    transfer = seconds[Resource.UP] + seconds[Resource.DOWN] + seconds[Resource.ROUND_TRIPS]
    return SitePlan(
        site=capacity.name,
        clients=first.clients,
        pinned=pinned,
        vnodes=capacity.vnodes,
        samples=first.samples,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        models_in=mean(*(part.models_down for part in parts)),
        models_out=mean(*(part.models_up for part in parts)),
        sums_in=mean(*(part.sums_down for part in parts)),
        sums_out=mean(*(part.sums_up for part in parts)),
        compute_s=None if first.samples is None else compute,
        transfer_s=None if crosses_unknown else transfer,
        seconds_per_sample=capacity.seconds_per_sample,
        link=link,
        kept_bytes=first.clients * memory.model_bytes_of_client,
        from_="" if site is None else site.from_,
        classes=classes,
    )


def _is_timed(costs: Sequence[RoundCost], sites: Sequence[SiteCapacity]) -> bool:
    """Whether anything is known that takes time."""
    paced = any(site.seconds_per_sample is not None for site in sites)
    linked = any(site.link.has_speed for site in sites)
    counted = any(part.samples is not None for part in costs[0].sites)
    return (paced and counted) or linked


def _bound(costs: Sequence[RoundCost]) -> Bound | None:
    """The longest phase of the longest of these rounds."""
    longest = max(costs, key=lambda cost: cost.seconds)
    if not longest.seconds:
        return None
    phase = longest.bound_by
    return Bound(site=phase.site, resource=str(phase.resource), seconds=phase.seconds)


def _edges(inputs: PlanInputs) -> int | None:
    return len(inputs.exchanges[0].pairs.ends) if inputs.exchanges else None


def _cut(
    inputs: PlanInputs,
    sites: Sequence[SiteCapacity],
    assignment: Assignment,
    costs: Sequence[RoundCost],
) -> Cut:
    placed = places_of(assignment.shares, sites, inputs.population)
    models, sums = (
        float(np.mean(each))
        for each in zip(
            *((cost.crossing_models, cost.crossing_sums) for cost in costs), strict=True
        )
    )
    return Cut(
        strategy=assignment.strategy,
        edges=float(np.mean([crossing_edges(graph, placed) for graph in inputs.exchanges])),
        models=models,
        sums=sums,
        nbytes=models * inputs.work.given_bytes + sums * inputs.work.partial_bytes,
        seconds=float(np.mean([cost.seconds for cost in costs])),
    )


def crossing_edges(exchange: Exchange, placed: Indices) -> int:
    """How many pairs of clients exchange that are at different sites."""
    ends = exchange.pairs.ends
    return int(np.count_nonzero(placed[ends[:, 0]] != placed[ends[:, 1]]))
