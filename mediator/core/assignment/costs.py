"""What a round costs: the seconds of each site and of the round, from who is where.

A site computes for `samples x pace / vnodes`. Its link carries the round's model to it and its sum
back. On a graph, in each mixing step, a client's model also crosses once to each other site that
has a receiver of it, unless the load says that sums over models take their place. Sites work side
by side, so a phase of a round takes as long as its slowest site:

* training: an order, the model to the site, the computation; in a star also the sum back;
* then, on a graph, for each mixing step: giving (models up), taking (models down), mixing;
* and the sums back.

What is not known costs nothing, except a pace: that counts as the median of those that are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

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
    resource: Resource
    """What that site spends most of these seconds on."""


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

    def given(self, work: RoundWork) -> tuple[Indices, Indices]:
        """(sites,) each: the bytes that sites give and take in a mixing step."""
        assert self.crossing is not None
        crossing = self.crossing * work.given_bytes
        if self.sums is not None:
            crossing = crossing + self.sums * work.partial_bytes
        return crossing.sum(axis=1), crossing.sum(axis=0)

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


def phases(load: SiteLoads, prices: Prices, work: RoundWork) -> dict[str, Parts]:
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
        return {"training": {**training, **back}}
    steps = work.mixing_steps
    given, taken = (steps * each for each in load.given(work))
    takes = load.crossing.any(axis=0)
    if load.sums is not None:
        takes |= load.sums.any(axis=0)
    return {
        "training": training,
        "giving": {
            Resource.ROUND_TRIPS: steps * trip * (part.sum() > 1),
            Resource.UP: given * prices.byte_up,
        },
        "taking": {
            Resource.ROUND_TRIPS: steps * trip * takes,
            Resource.DOWN: taken * prices.byte_down,
        },
        "mixing": {Resource.ROUND_TRIPS: steps * trip, **back},
    }


def seconds_of(load: SiteLoads, prices: Prices, work: RoundWork) -> float:
    """The seconds of a round."""
    return sum(
        float(sum(parts.values(), np.zeros(len(load.clients))).max(initial=0.0))
        for parts in phases(load, prices, work).values()
    )


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
    slowest = tuple(_slowest(name, parts, sites) for name, parts in found.items())
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


def elsewhere(
    client: int,
    places: Indices,
    sites: Sequence[SiteCapacity],
    work: RoundWork,
    exchange: Exchange | None,
) -> tuple[str, float] | None:
    """The best other site for a client, and the seconds that it adds to a round there.

    Of equal ones, the first by name. None without another site.
    """
    prices, here = Prices.of(sites), int(places[client])

    def seconds(place: int) -> float:
        moved = places.copy()
        moved[client] = place
        return seconds_of(SiteLoads.of(moved, len(sites), work, exchange), prices, work)

    now = seconds(here)
    others = [(seconds(at) - now, site.name) for at, site in enumerate(sites) if at != here]
    if not others:
        return None
    added, name = min(others)
    return name, added


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


def _slowest(name: str, parts: Parts, sites: Sequence[SiteCapacity]) -> RoundPhase:
    """The first site that takes longest, and what it spends most on."""
    whole = sum(parts.values(), np.zeros(len(sites)))
    at = int(whole.argmax())
    most = max(parts, key=lambda resource: float(parts[resource][at]))
    return RoundPhase(name=name, seconds=float(whole[at]), site=sites[at].name, resource=most)


def _of_site(
    at: int,
    site: SiteCapacity,
    load: SiteLoads,
    found: Mapping[str, Parts],
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
        up, down = (int(each[at]) * steps for each in load.given(work))
    answer = work.sum_bytes + round(work.update_bytes * work.trained * clients)
    seconds = dict.fromkeys(Resource, 0.0)
    for parts in found.values():
        for resource, each in parts.items():
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
