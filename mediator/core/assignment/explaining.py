"""Explains why a client is at its site, which one is the next best, and what would move it there.

Every figure is the cost model's (`costs.py`), for the assignment as it is and with this one client
elsewhere. A client's move changes who takes its own model, and whether its neighbors' models still
cross: so once the round's load is known, a move costs as much as the client has neighbors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedpilot.common.text.amounts import brief, counted, in_bytes, in_rate, listed

from .costs import Neighborhood, Prices, SiteLoads, places_of, seconds_of
from .records import (
    Assignment,
    AssignmentProblem,
    ClientMove,
    Exchange,
    RoundWork,
    SiteCapacity,
)
from .room import LEAST, limits
from .shares import Share, holds, joined, size
from .strategies import STRATEGIES

Indices = npt.NDArray[np.int64]
IN_ORDER = ("capacity", "round_robin")
"""Strategies that divide clients in their order, and not by the cost of a round."""
BY_SECONDS = "locality"
"""The one that divides them by what a round costs."""
LIMITED = ("data_affinity", BY_SECONDS)
"""Strategies that limit how many clients a site has."""
MOST_VNODES = 64
"""So many more vnodes are tried at a site."""
FASTEST = 1e6
"""Links are tried that are up to so many times as fast."""
CLOSE = 1.001
"""A speed that does is so near to one that does not."""
NOTHING = 1e-9
"""A smaller part of a round is no gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a round costs with one client at another site."""

    site: str
    seconds: float | None
    """More than now; None if no link is known."""
    nbytes: int
    """More than now that cross between sites."""
    full: int | None
    """The most clients that may move that the site has, if it has them; None if it has room."""
    keeps: int | None = None
    """The fewest that the client's own site keeps, if it has no more; None if it can spare one."""

    @property
    def amount(self) -> float:
        """What counts: seconds, or bytes where these are not known."""
        return self.nbytes if self.seconds is None else self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """With what a client's move would make a round cheaper, or its site be another one."""

    site: str
    what: str
    """`vnodes`, `link_up`, `link_down` or `link`."""
    amount: float
    """More vnodes; bytes per second; how many times as fast both ways of a link are."""

    def __str__(self) -> str:
        match self.what:
            case "vnodes":
                return f"{counted(self.amount, 'more vnode')} at {self.site}"
            case "link":
                return f"a link of {self.site} that is {self.amount:.3g} times as fast both ways"
        way = self.what.removeprefix("link_")
        return f"a link {way} of {in_rate(self.amount)} at {self.site}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteBalance:
    """A site's clients that may move, beside its vnodes."""

    site: str
    clients: int
    vnodes: int

    def __str__(self) -> str:
        vnodes = counted(self.vnodes, "vnode")
        return f"{self.site} has {counted(self.clients, 'client')} that may move on {vnodes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePace:
    """How fast a site is, as its own rounds have shown it."""

    site: str
    seconds_per_sample: float
    """Of one vnode."""

    def __str__(self) -> str:
        return f"{brief(self.seconds_per_sample)} at {self.site}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Why a client is at its site."""

    site: str
    why: str
    strategy: str
    pinned: bool
    """Whether its data may not move."""
    moves: tuple[ClientMove, ...]
    """Its latest ones, in their order."""
    neighbors: Mapping[str, int] | None = None
    """By site, sorted: the clients that it exchanges with; None in a star, or if they change."""
    seconds: float | None = None
    """Of a round now; None if no link is known."""
    next_best: Price | None = None
    """The cheapest other site, the first by name; None if no price is known."""
    pays: bool = False
    """Whether a round would be cheaper there."""
    paces: tuple[SitePace, ...] = ()
    """On a graph: those of its own site and the next best one that were measured."""
    balance: tuple[SiteBalance, ...] = ()
    """In a star: its own site, and the one with the fewest clients a vnode if it had this one."""
    needs: tuple[Need, ...] | None = None
    """Each alone would do; None if it was not asked."""
    unknown: tuple[str, ...] = ()
    """What is not known of the sites, and how it counts."""
    absent: tuple[str, ...] = ()
    """Sites with clients that are not there."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """All of it, for people."""
        return tuple(_sentences(self))

    def to_json(self) -> dict[str, Any]:
        found = {name: value for name, value in asdict(self).items() if name != "moves"}
        moves = [
            {"round": m.round_number, "from": m.origin, "to": m.to, "reason": m.reason}
            for m in self.moves
        ]
        return {**found, "moves": moves, "sentences": list(self.sentences)}


def explained(
    client: int,
    assignment: Assignment,
    sites: Sequence[SiteCapacity],
    work: RoundWork | None,
    exchange: Exchange | None,
) -> Explained:
    """Explain a client's site; `sites` are those that are there.

    `exchange` is None where clients exchange with the coordinator alone, or with others in each
    round, and `work` where costs are not known. IndexError outside the population.
    """
    site = assignment.site_of(client)
    pinned = holds(assignment.pinned.get(site, ()), client)
    owners = {owner for owner, share in assignment.shares.items() if share}
    found = Explained(
        site=site,
        why=assignment.why(client),
        strategy=assignment.strategy,
        pinned=pinned,
        moves=assignment.moves_of(client),
        absent=tuple(sorted(owners - {each.name for each in sites})),
    )
    if exchange is None or work is None:
        return found if pinned or found.absent else _balanced(client, found, assignment, sites)
    if found.absent:
        return found
    places = places_of(assignment.shares, sites, assignment.population)
    neighborhood = Neighborhood.of(client, places, len(sites), work, exchange)
    names = [each.name for each in sites]
    counts = sorted((names[at], count) for at, count in neighborhood.counts.items())
    found = replace(found, neighbors=dict(counts))
    return found if pinned else _priced(client, found, assignment, sites, neighborhood, work)


# -- in a star -----------------------------------------------------------------------------------


def _balanced(
    client: int, found: Explained, assignment: Assignment, sites: Sequence[SiteCapacity]
) -> Explained:
    loads = {
        each.name: SiteBalance(
            site=each.name, clients=size(assignment.movable.get(each.name, ())), vnodes=each.vnodes
        )
        for each in sites
    }
    others = [each for name, each in loads.items() if name != found.site and each.vnodes]
    if not others:
        return found
    least = min(others, key=lambda each: ((each.clients + 1) / each.vnodes, each.site))
    needs = None
    if assignment.strategy in IN_ORDER and not found.moves:
        needs = tuple(_vnodes_in_order(client, least.site, assignment, sites))
    return replace(found, balance=(loads[found.site], least), needs=needs)


def _vnodes_in_order(
    client: int, site: str, assignment: Assignment, sites: Sequence[SiteCapacity]
) -> Iterator[Need]:
    """The fewest more vnodes at a site with which the strategy would give it this client."""
    free = _free(assignment)
    for more in range(1, MOST_VNODES + 1):
        there = [_with_vnodes(each, more) if each.name == site else each for each in sites]
        problem = AssignmentProblem(clients=free, sites=there, pinned=assignment.pinned)
        if holds(STRATEGIES[assignment.strategy](problem).shares[site], client):
            yield Need(site=site, what="vnodes", amount=more)
            return


def _free(assignment: Assignment) -> Share:
    return joined(each for share in assignment.movable.values() for each in share)


def _with_vnodes(site: SiteCapacity, more: int) -> SiteCapacity:
    return replace(site, vnodes=site.vnodes + more)


# -- on a graph ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Move:
    """One client's move to a site."""

    now: SiteLoads
    then: SiteLoads
    work: RoundWork

    def seconds(self, sites: Sequence[SiteCapacity]) -> tuple[float, float]:
        """Of a round now, and how many more with the move."""
        prices = Prices.of(sites)
        now = seconds_of(self.now, prices, self.work)
        return now, seconds_of(self.then, prices, self.work) - now

    @property
    def nbytes(self) -> int:
        """That cross between sites in a round, more than now."""
        more = self.then.crossing_bytes(self.work).sum() - self.now.crossing_bytes(self.work).sum()
        return int(more) * self.work.mixing_steps

    def pays(self, sites: Sequence[SiteCapacity], *, timed: bool) -> bool:
        if not timed:
            return self.nbytes < 0
        now, more = self.seconds(sites)
        return more < -NOTHING * now


def _priced(
    client: int,
    found: Explained,
    assignment: Assignment,
    sites: Sequence[SiteCapacity],
    neighborhood: Neighborhood,
    work: RoundWork,
) -> Explained:
    timed = any(each.link.has_speed for each in sites)
    here, load = neighborhood.place, neighborhood.load
    moves = {at: _Move(load, neighborhood.at(at), work) for at in range(len(sites)) if at != here}
    room = _Room.of(assignment, timed=timed)
    prices = {
        at: Price(
            site=sites[at].name,
            seconds=move.seconds(sites)[1] if timed else None,
            nbytes=move.nbytes,
            full=room.full(sites, at),
            keeps=room.keeps(sites, here),
        )
        for at, move in moves.items()
    }
    if not prices:
        return found
    to = min(prices, key=lambda at: (prices[at].amount, prices[at].nbytes, prices[at].site))
    move = moves[to]
    return replace(
        found,
        seconds=move.seconds(sites)[0] if timed else None,
        next_best=prices[to],
        pays=move.pays(sites, timed=timed),
        paces=tuple(_paces([sites[here], sites[to]])),
        needs=tuple(_needs(client, move, (here, to), sites, assignment, room)),
        unknown=Prices.of(sites, samples_known=work.samples is not None).unknown if timed else (),
    )


def _paces(sites: Sequence[SiteCapacity]) -> Iterator[SitePace]:
    for site in sites:
        if site.pace_measured and site.seconds_per_sample is not None:
            yield SitePace(site=site.name, seconds_per_sample=site.seconds_per_sample)


@dataclass(frozen=True, slots=True, eq=False)
class _Room:
    """How many clients that may move sites have, and may have."""

    assignment: Assignment
    free: int
    timed: bool

    @classmethod
    def of(cls, assignment: Assignment, *, timed: bool) -> Self:
        return cls(assignment, sum(map(size, assignment.movable.values())), timed)

    def _has(self, site: SiteCapacity) -> int:
        return size(self.assignment.movable.get(site.name, ()))

    def full(self, sites: Sequence[SiteCapacity], at: int) -> int | None:
        """The most that a site has, if it can take no more."""
        if self.assignment.strategy not in LIMITED:
            return None
        most = int(limits(sites, self.free, self.assignment.pinned)[1][at])
        return most if self._has(sites[at]) >= most else None

    def keeps(self, sites: Sequence[SiteCapacity], at: int) -> int | None:
        """The fewest that a site keeps, if it can spare none."""
        if self.assignment.strategy != BY_SECONDS or not self.timed:
            return None
        least = -(-int(limits(sites, self.free, self.assignment.pinned)[0][at]) // LEAST)
        return least if self._has(sites[at]) <= least else None


def _needs(
    client: int,
    move: _Move,
    ends: tuple[int, int],
    sites: Sequence[SiteCapacity],
    assignment: Assignment,
    room: _Room,
) -> Iterator[Need]:
    """What would do, each alone, for a move from the first place to the second."""
    here, to = ends
    timed = room.timed

    def does(there: Sequence[SiteCapacity]) -> bool:
        fits = room.full(there, to) is None and room.keeps(there, here) is None
        return fits and move.pays(there, timed=timed)

    if assignment.strategy in IN_ORDER and not assignment.moves_of(client):
        yield from _vnodes_in_order(client, sites[to].name, assignment, sites)
    if assignment.strategy != BY_SECONDS or does(sites):
        return
    for more in range(1, MOST_VNODES + 1):
        if does(_with(sites, to, _with_vnodes(sites[to], more))):
            yield Need(site=sites[to].name, what="vnodes", amount=more)
            break
    link = sites[to].link
    for what, ways in (("link_up", ("up",)), ("link_down", ("down",)), ("link", ("up", "down"))):
        speeds = {way: speed for way in ways if (speed := getattr(link, way)) is not None}
        if len(speeds) < len(ways):
            continue

        def faster(times: float, speeds: Mapping[str, float] = speeds) -> bool:
            its = replace(link, **{way: speed * times for way, speed in speeds.items()})
            return does(_with(sites, to, replace(sites[to], link=its)))

        if (times := _least(faster)) is not None:
            now = 1.0 if what == "link" else speeds[ways[0]]
            yield Need(site=sites[to].name, what=what, amount=_round_number(times, now, faster))
            return


def _with(sites: Sequence[SiteCapacity], at: int, site: SiteCapacity) -> list[SiteCapacity]:
    return [site if place == at else each for place, each in enumerate(sites)]


def _least(does: Callable[[float], bool]) -> float | None:
    """How many times as fast a link has to be: this does, and a little less does not."""
    low, high = 1.0, FASTEST
    if not does(high):
        return None
    while high > low * CLOSE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if does(middle) else (middle, high)
    return high


def _round_number(times: float, now: float, does: Callable[[float], bool]) -> float:
    """So many times as much as now, in three digits if that does as well."""
    amount = times * now
    digits = 2 - math.floor(math.log10(amount))
    rounded = math.ceil(amount * 10.0**digits) / 10.0**digits
    return rounded if does(rounded / now) else amount


# -- in words ------------------------------------------------------------------------------------


def _sentences(found: Explained) -> Iterator[str]:
    yield f"site: {found.site}, since {found.why}"
    yield from (f"moved: it {move}" for move in found.moves)
    if found.neighbors is not None:
        yield f"neighbors: {_neighbors(found.site, found.neighbors)}"
    if found.pinned:
        yield f"what would move it: nothing, its data is pinned to {found.site}"
    elif found.absent:
        away = f"{listed(found.absent)} {'are' if len(found.absent) > 1 else 'is'} away"
        yield f"next best site: not known while {away}"
    elif found.balance:
        yield from _in_a_star(found)
    elif found.next_best is not None:
        yield from _on_a_graph(found, found.next_best)
    else:
        yield "next best site: there is no other one"


def _neighbors(site: str, neighbors: Mapping[str, int]) -> str:
    if not (whole := sum(neighbors.values())):
        return "none"
    others = [f"{count} at {name}" for name, count in neighbors.items() if name != site]
    return ", ".join([f"{neighbors.get(site, 0)} of {whole} at {site}", *others])


def _in_a_star(found: Explained) -> Iterator[str]:
    own, least = found.balance
    yield f"balance: {own}; of the others, {least}, the fewest a vnode"
    if found.needs is not None:
        tried = f"up to {MOST_VNODES} more vnodes at {least.site} would not"
        yield f"what would move it: {_either(found.needs) or tried}"


def _on_a_graph(found: Explained, price: Price) -> Iterator[str]:
    yield f"next best site: {price.site}, {_price(found, price)}"
    if found.paces:
        yield f"pace: a sample takes a vnode {listed(list(map(str, found.paces)))}, as measured"
    if price.full is not None:
        yield f"room: {price.site} is full, with {counted(price.full, 'client')} that may move"
    if price.keeps is not None:
        yield f"room: {found.site} keeps at least {counted(price.keeps, 'client')} that may move"
    if found.strategy in IN_ORDER:
        by = f"{found.strategy} divides clients in their order, not by the cost of a round"
        found_needs = _either(found.needs or ())
        yield f"what would move it: {found_needs}; {by}" if found_needs else f"strategy: {by}"
    elif found.strategy != BY_SECONDS:
        yield f"strategy: {found.strategy} divides clients by other things than a round's costs"
    elif found.needs:
        yield f"what would make the move pay: {_either(found.needs)}"
    elif found.pays and price.full is None and price.keeps is None:
        yield f"room: {price.site} has room for it; `reassign_every` moves clients in mid-run"
    else:
        link = ", or a faster link," if found.seconds is not None else ""
        tried = f"up to {MOST_VNODES} more vnodes{link} at {price.site} would not"
        yield f"what would make the move pay: {tried}"
    for each in found.unknown:
        yield f"not known: {each}"


def _price(found: Explained, price: Price) -> str:
    if price.seconds is None or found.seconds is None:
        more = in_bytes(abs(price.nbytes))
        how = "more" if price.nbytes > 0 else "less"
        amount = f"{more} {how} cross between sites" if price.nbytes else "as many bytes cross"
        return f"where {amount} in a round; no site's link is known, so the seconds are not either"
    now, more_s = brief(found.seconds), price.seconds
    if abs(more_s) <= NOTHING * found.seconds:
        return f"where a round takes as long as now, {now}"
    how = "longer" if more_s > 0 else "less"
    return f"where a round takes {brief(abs(more_s))} {how} than now, {now}"


def _either(needs: Sequence[Need]) -> str:
    return listed([str(need) for need in needs], word="or")
