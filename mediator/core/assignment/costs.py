"""What a round costs: the seconds of each site and of the round, from who is where.

A site computes for `samples x pace / vnodes`. Its link carries the round's model to it and its sum
back. On a graph, in each mixing step, a client's model also crosses once to each other site that
has a receiver of it, unless the load says that sums over models take their place. Sites work side
by side, so a phase of a round takes as long as its slowest site:

* training: an order, the model to the site, the computation; in a star also the sum back;
* then, on a graph, for each mixing step: the exchange (models up and down), and mixing;
* and the sums back.

In the exchange models go up and down at once. A site's models share its link up, and leave it
together; each goes on to its receivers as soon as it is at the mediator. So a site is done once it
has taken what arrives last. The exchange takes as long as its slowest site.

What is not known costs nothing, except a pace: that counts as the median of those that are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import numpy as np
import numpy.typing as npt

from .records import Exchange, RoundWork, SiteCapacity
from .shares import Share, members

Indices = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]


class Resource(StrEnum):
    """What a site's time goes to."""

    COMPUTE = "computation"
    UP = "link up"
    DOWN = "link down"
    ROUND_TRIPS = "round trips"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCost:
    """A site's part of a round; seconds are without waiting for other sites."""

    site: str
    clients: int
    samples: float | None
    """Expected in a round."""
    models_up: int
    """Clients' models from the site in a round."""
    models_down: int
    sums_up: int
    """Partial sums that cross in the place of models."""
    sums_down: int
    bytes_up: int
    bytes_down: int
    seconds: Mapping[Resource, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPhase:
    """A part of a round that all sites begin together."""

    name: str
    seconds: float
    """Of its slowest site, and in all mixing steps."""
    site: str
    """In the exchange, perhaps the one that the slowest site waits for."""
    resource: Resource
    """What most of these seconds go to, at that site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """What a round costs."""

    seconds: float
    phases: tuple[RoundPhase, ...]
    sites: tuple[SiteCost, ...]
    crossing_models: int
    """Clients' models that cross between sites in a round."""
    crossing_sums: int
    """Partial sums that cross in the place of others."""
    unknown: tuple[str, ...]
    """What was not known, and how it counts."""

    @property
    def bound_by(self) -> RoundPhase:
        """The longest phase, the first of several."""
        return max(self.phases, key=lambda phase: phase.seconds)

    def __str__(self) -> str:
        longest = self.bound_by
        if not self.seconds:
            return "0 s, as far as is known"
        return f"{self.seconds:.3g} s, bound by the {longest.resource} of site {longest.site}"


@dataclass(frozen=True, slots=True, eq=False)
class SiteLoads:
    """How much of a round's work each site has."""

    clients: Indices
    """(sites,)"""
    samples: Indices | Seconds
    """(sites,): of all its clients, or as many as are expected; 0 if not known."""
    crossing: Indices | None
    """(sites, sites): the models that the first gives the second in a mixing step; None in a star,
    where clients have no models of their own."""
    sums: Indices | None = None
    """(sites, sites): the partial sums that cross beside them; None for none."""

    def crossing_bytes(self, work: RoundWork) -> Indices:
        """(sites, sites): what the first gives the second in a mixing step."""
        assert self.crossing is not None
        crossing = self.crossing * work.given_bytes
        return crossing if self.sums is None else crossing + self.sums * work.partial_bytes

    @classmethod
    def of(
        cls, places: Indices, sites: int, work: RoundWork, exchange: Exchange | None
    ) -> SiteLoads:
        """The load, with (clients,) the place of each client's site."""
        samples = np.zeros(len(places)) if work.samples is None else work.samples
        crossing = None if exchange is None else crossing_models(places, sites, exchange)
        return cls(
            np.bincount(places, minlength=sites),
            np.bincount(places, weights=samples, minlength=sites).astype(np.int64),
            crossing,
        )


def crossing_models(places: Indices, sites: int, exchange: Exchange) -> Indices:
    """(sites, sites): the models that clients of one site give to another site in a mixing step."""
    received = np.zeros((len(places), sites), dtype=bool)
    for givers, receivers in exchange.directions():
        received[givers, places[receivers]] = True
    received[np.arange(len(places)), places] = False
    givers, targets = np.nonzero(received)
    found = np.bincount(places[givers] * sites + targets, minlength=sites * sites)
    return found.reshape(sites, sites)


@dataclass(frozen=True, slots=True, eq=False)
class Neighborhood:
    """A client on a graph, and the load with this one client at another site.

    Its move changes who takes its own model, and whether its neighbors' models still cross. So it
    costs as much as the client has neighbors, once the load is known.
    """

    load: SiteLoads
    """With the client where it is."""
    place: int
    samples: int
    counts: Mapping[int, int]
    """By site, the clients that it exchanges with."""
    takes: npt.NDArray[np.bool_]
    """(sites,): the sites at which a neighbor takes its model."""
    givers: Indices
    """(givers,): the sites of those whose models it takes."""
    others: npt.NDArray[np.bool_]
    """(givers, sites): the sites at which another client takes these models."""

    @classmethod
    def of(
        cls, client: int, places: Indices, sites: int, work: RoundWork, exchange: Exchange
    ) -> Self:
        ends = exchange.ends
        both = ends[(ends == client).any(axis=1)]
        others = np.unique(both[both != client])
        receivers = np.concatenate([to[one == client] for one, to in exchange.directions()])
        givers = np.concatenate([one[to == client] for one, to in exchange.directions()])
        takes = np.zeros(sites, dtype=bool)
        takes[places[receivers]] = True
        number = np.full(len(places), -1)
        number[givers] = np.arange(len(givers))
        taken = np.zeros((len(givers), sites), dtype=bool)
        for one, to in exchange.directions():
            its = (number[one] >= 0) & (to != client)
            taken[number[one[its]], places[to[its]]] = True
        found = np.bincount(places[others], minlength=sites)
        return cls(
            SiteLoads.of(places, sites, work, exchange),
            int(places[client]),
            0 if work.samples is None else int(work.samples[client]),
            {int(at): int(found[at]) for at in np.flatnonzero(found)},
            takes,
            places[givers],
            taken,
        )

    def at(self, place: int) -> SiteLoads:
        """The load with the client at another place."""
        load, here = self.load, self.place
        assert load.crossing is not None
        clients, samples, crossing = load.clients.copy(), load.samples.copy(), load.crossing.copy()
        clients[[here, place]] += (-1, 1)
        samples[[here, place]] += (-self.samples, self.samples)
        for at, change in ((here, -1), (place, 1)):
            takes = self.takes.copy()
            takes[at] = False
            crossing[at, takes] += change
            alone = self.givers[~self.others[:, at] & (self.givers != at)]
            np.add.at(crossing[:, at], alone, change)
        return SiteLoads(clients, samples, crossing)


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """(sites,) each: the seconds that a site needs for one of something."""

    sample: Seconds
    byte_up: Seconds
    byte_down: Seconds
    round_trip: Seconds
    unknown: tuple[str, ...]

    @classmethod
    def of(cls, sites: Sequence[SiteCapacity], *, samples_known: bool = True) -> Prices:
        paces = [site.seconds_per_sample for site in sites]
        known = sorted(pace for pace in paces if pace is not None)
        usual = float(np.median(known)) if known else 0.0
        vnodes = np.array([max(1, site.vnodes) for site in sites])
        pace = np.array([usual if each is None else each for each in paces])
        up, down = ([getattr(site.link, end) for site in sites] for end in ("up", "down"))
        trips = [site.link.round_trip_s or 0.0 for site in sites]
        return cls(
            pace / vnodes,
            np.array([1 / each if each else 0.0 for each in up]),
            np.array([1 / each if each else 0.0 for each in down]),
            np.array(trips),
            tuple(_unknown(sites, samples_known)),
        )


def _unknown(sites: Sequence[SiteCapacity], samples_known: bool) -> Iterator[str]:
    if not samples_known:
        yield "clients' samples: training counts as free"
    without = [site.name for site in sites if site.seconds_per_sample is None]
    if without:
        counts = "as free" if len(without) == len(sites) else "as the median of the others"
        yield f"the pace of {_named(without, sites)}: counts {counts}"
    for end in ("up", "down"):
        if without := [site.name for site in sites if getattr(site.link, end) is None]:
            yield f"the link {end} of {_named(without, sites)}: counts as free"
    if without := [site.name for site in sites if site.link.round_trip_s is None]:
        yield f"the round trips of {_named(without, sites)}: count as free"


def _named(names: Sequence[str], sites: Sequence[SiteCapacity]) -> str:
    if len(names) == len(sites):
        return "all sites"
    return f"site{'s' * (len(names) > 1)} {', '.join(sorted(names))}"


Parts = Mapping[Resource, Seconds]
"""(sites,) each: the seconds that a phase takes a site, by what they are spent on."""


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """When sites are done with the exchange: what each gives goes up, and then down to others.

    In arrays (givers, ...), givers are in the order in which they are done with giving.
    """

    givers: Indices
    """(givers,): the number of each one's site."""
    up: Seconds
    """(givers,): seconds for what they give."""
    asked: Seconds
    """(givers,): seconds of round trips before."""
    down: Seconds
    """(givers, sites): seconds for what this giver and all later ones give to a site."""
    told: Seconds
    """(givers, sites): seconds of round trips before, if they give anything."""

    @classmethod
    def of(cls, up: Seconds, asked: Seconds, down: Seconds, told: Seconds) -> Hops:
        """`up` and `asked` are (sites,), `down` and `told` (sites, sites): from one to another."""
        givers = np.argsort(up + asked, kind="stable")
        latest = givers[::-1]
        later = np.cumsum(down[latest], axis=0)[::-1]
        some = np.maximum.accumulate(told[latest], axis=0)[::-1]
        return cls(givers, up[givers], asked[givers], later, some)

    @property
    def ends(self) -> Seconds:
        """(givers, sites): a site is not done before, by what this giver and later ones give."""
        ends: Seconds = (self.asked + self.up)[:, None] + self.told + self.down
        return ends

    @property
    def last(self) -> tuple[int, int]:
        """The giver, by its order, and the site that is done last; the first of several."""
        giver, site = np.unravel_index(int(self.ends.argmax()), self.down.shape)
        return int(giver), int(site)

    def priced(self, shares: Seconds) -> tuple[Seconds, Seconds]:
        """What one more second up, and one more down, adds to the sum of `shares x ends`.

        (sites,) by the site that gives, and (sites, sites) by that and the one that takes.
        """
        up, down = np.empty(len(self.givers)), np.empty(self.down.shape)
        up[self.givers] = shares.sum(axis=1)
        down[self.givers] = np.cumsum(shares, axis=0)
        return up, down


@dataclass(frozen=True, slots=True, eq=False)
class PhaseTimes:
    """A part of a round that all sites begin together."""

    parts: Parts
    """What each site spends in it, without waiting."""
    hops: Hops | None = None
    """In the exchange, where sites wait for each other."""

    @property
    def ends(self) -> Seconds:
        """The seconds until sites are done, of any shape; a phase takes as long as the largest."""
        return sum(self.parts.values(), np.zeros(1)) if self.hops is None else self.hops.ends

    @property
    def seconds(self) -> float:
        return float(self.ends.max(initial=0.0))

    @property
    def slowest(self) -> tuple[int, ...]:
        """The sites that hold it up; in the exchange a giver and the site that is done last."""
        if self.hops is None:
            return (int(self.ends.argmax()),)
        giver, site = self.hops.last
        return (int(self.hops.givers[giver]), site)

    @property
    def longest(self) -> tuple[int, Resource]:
        """The site and the resource that most of its seconds go to; the first of several."""
        if self.hops is None:
            (at,) = self.slowest
            return at, max(self.parts, key=lambda resource: float(self.parts[resource][at]))
        (giver, site), hops = self.hops.last, self.hops
        spent = {
            (int(hops.givers[giver]), Resource.UP): hops.up[giver],
            (site, Resource.DOWN): hops.down[giver, site],
            (int(hops.givers[giver]), Resource.ROUND_TRIPS): hops.asked[giver],
            (site, Resource.ROUND_TRIPS): hops.told[giver, site],
        }
        return max(spent, key=lambda each: float(spent[each]))


def phases(load: SiteLoads, prices: Prices, work: RoundWork) -> dict[str, PhaseTimes]:
    """The phases of a round, in all mixing steps; a site without clients takes no part."""
    part = load.clients > 0
    trip = prices.round_trip * part
    model = work.model_bytes * prices.byte_down * part
    answer = (work.sum_bytes + work.update_bytes * work.trained * load.clients) * part
    back = {Resource.UP: answer * prices.byte_up}
    training = {
        Resource.ROUND_TRIPS: trip,
        Resource.DOWN: model,
        Resource.COMPUTE: load.samples * work.trained * prices.sample,
    }
    if load.crossing is None:
        return {"training": PhaseTimes({**training, **back})}
    steps, crossing = work.mixing_steps, load.crossing_bytes(work)
    up = steps * crossing.sum(axis=1) * prices.byte_up
    down = steps * crossing * prices.byte_down
    crosses = load.crossing.astype(bool)
    if load.sums is not None:
        crosses |= load.sums.astype(bool)
    asked, told = steps * trip * (part.sum() > 1), steps * trip * crosses
    exchange = {
        Resource.ROUND_TRIPS: asked + told.max(axis=0, initial=0.0),
        Resource.UP: up,
        # Bytes first, which are whole: the order of sites must not decide how seconds round.
        Resource.DOWN: steps * crossing.sum(axis=0) * prices.byte_down,
    }
    return {
        "training": PhaseTimes(training),
        "exchange": PhaseTimes(exchange, Hops.of(up, asked, down, told)),
        "mixing": PhaseTimes({Resource.ROUND_TRIPS: steps * trip, **back}),
    }


def seconds_of(load: SiteLoads, prices: Prices, work: RoundWork) -> float:
    """The seconds of a round."""
    return sum(phase.seconds for phase in phases(load, prices, work).values())


def round_cost(
    places: Indices, sites: Sequence[SiteCapacity], work: RoundWork, exchange: Exchange | None
) -> RoundCost:
    """What a round costs, with (clients,) the place of each client's site among `sites`.

    `exchange` says who exchanges models with whom, if clients have models of their own.
    """
    load = SiteLoads.of(places, len(sites), work, exchange)
    return cost_of(load, sites, work, samples_known=work.samples is not None)


def cost_of(
    load: SiteLoads, sites: Sequence[SiteCapacity], work: RoundWork, *, samples_known: bool
) -> RoundCost:
    """What a round costs, with the load of each of `sites`; `load` may have expected samples."""
    prices = Prices.of(sites, samples_known=samples_known)
    found = phases(load, prices, work)
    slowest = tuple(_slowest(name, phase, sites) for name, phase in found.items())
    none = np.zeros((1, 1), dtype=np.int64)
    crossing = none if load.crossing is None else load.crossing
    sums = none if load.sums is None else load.sums
    return RoundCost(
        seconds=sum(phase.seconds for phase in slowest),
        phases=slowest,
        sites=tuple(
            _of_site(at, site, load, found, work, samples_known=samples_known)
            for at, site in enumerate(sites)
        ),
        crossing_models=int(crossing.sum()) * work.mixing_steps,
        crossing_sums=int(sums.sum()) * work.mixing_steps,
        unknown=prices.unknown,
    )


def places_of(
    shares: Mapping[str, Share], sites: Sequence[SiteCapacity], population: int
) -> Indices:
    """(clients,): the place of each client's site among `sites`; KeyError for another site."""
    numbers = {site.name: number for number, site in enumerate(sites)}
    places = np.zeros(population, dtype=np.int64)
    for site, share in shares.items():
        if share:
            places[members(share)] = numbers[site]
    return places


def _slowest(name: str, phase: PhaseTimes, sites: Sequence[SiteCapacity]) -> RoundPhase:
    at, resource = phase.longest
    return RoundPhase(name=name, seconds=phase.seconds, site=sites[at].name, resource=resource)


def _of_site(
    at: int,
    site: SiteCapacity,
    load: SiteLoads,
    found: Mapping[str, PhaseTimes],
    work: RoundWork,
    *,
    samples_known: bool,
) -> SiteCost:
    clients, steps = int(load.clients[at]), work.mixing_steps
    ways = {"models": load.crossing, "sums": load.sums}
    crossing = {
        f"{name}_{way}": 0 if each is None else int(each.sum(axis=axis)[at]) * steps
        for name, each in ways.items()
        for way, axis in (("up", 1), ("down", 0))
    }
    up = down = 0
    if load.crossing is not None:
        crossed = load.crossing_bytes(work)
        up, down = (int(crossed.sum(axis=axis)[at]) * steps for axis in (1, 0))
    answer = work.sum_bytes + round(work.update_bytes * work.trained * clients)
    seconds = dict.fromkeys(Resource, 0.0)
    for phase in found.values():
        for resource, each in phase.parts.items():
            seconds[resource] += float(each[at])
    return SiteCost(
        site=site.name,
        clients=clients,
        samples=float(load.samples[at]) * work.trained if samples_known else None,
        bytes_up=up + (answer if clients else 0),
        bytes_down=down + (work.model_bytes if clients else 0),
        seconds=seconds,
        **crossing,
    )
