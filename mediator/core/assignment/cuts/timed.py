"""A round whose seconds follow from who is where, and places that make it shorter.

`refined` moves clients to other sites, many in a pass. It counts exactly what each move changes in
the models that cross: a model crosses once to each site that has a receiver of it. A round waits
for its slowest site, so a single move rarely shortens it. So a norm of the sites' seconds counts in
place of the slowest site's. Gains are whole numbers, and every machine decides alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ..costs import Prices, SiteLoads, crossing_models, phases, seconds_of
from ..records import Exchange, RoundWork

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
PASSES = 16
WORTH = 0.002
"""A pass that shortens a round by less is the last one."""
NORM = 8
"""The norm of sites' seconds that counts in place of their maximum."""
UNITS = 1 << 20
"""The largest weight of a move, in units."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """For each client some others: those that give to it, or those that receive from it."""

    starts: Indices
    """(clients + 1,)"""
    others: Indices
    """(edges,)"""

    @classmethod
    def of(cls, clients: int, owners: Indices, others: Indices) -> Self:
        order = np.lexsort((others, owners))
        starts = np.searchsorted(owners[order], np.arange(clients + 1))
        return cls(starts.astype(np.int64), others[order])

    @property
    def owners(self) -> Indices:
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def reduced(self, values: Indices, by: Callable[..., Indices] = np.add.reduceat) -> Indices:
        """(clients,): the sum of values (edges,) over each client's others."""
        found = np.zeros(len(self.starts) - 1, dtype=np.int64)
        some = np.diff(self.starts) > 0
        if some.any():
            found[some] = by(values, self.starts[:-1][some])
        return found


@dataclass(frozen=True, slots=True, eq=False)
class TimedRound:
    """What is known of a round before clients have places."""

    exchange: Exchange
    """Between clients 0 to n - 1."""
    prices: Prices
    work: RoundWork
    receivers: Rows
    givers: Rows

    @classmethod
    def of(cls, clients: int, exchange: Exchange, prices: Prices, work: RoundWork) -> Self:
        one, other = (np.concatenate(ends) for ends in zip(*exchange.directions(), strict=True))
        receivers = Rows.of(clients, one, other)
        givers = Rows.of(clients, other, one) if exchange.is_directed else receivers
        return cls(exchange, prices, work, receivers, givers)

    @property
    def clients(self) -> int:
        return len(self.receivers.starts) - 1

    @property
    def sites(self) -> int:
        return len(self.prices.sample)

    @property
    def model_prices(self) -> npt.NDArray[np.float64]:
        """(sites,): the seconds for one model from the site, and one to it."""
        return (self.prices.byte_up + self.prices.byte_down) * self.work.given_bytes

    def load(self, places: Indices) -> SiteLoads:
        return SiteLoads.of(places, self.sites, self.work, self.exchange)

    def seconds(self, places: Indices) -> float:
        return seconds_of(self.load(places), self.prices, self.work)


def mapped(
    timed: TimedRound, places: Indices, free: Mask, least: Indices, most: Indices
) -> Indices:
    """Let sites change the parts that they have, `free` clients only, where that saves seconds.

    Sites keep their limits (sites,) on free clients. In each turn the site that holds up a phase
    takes the part of the best other site.
    """
    sites = timed.sites
    blocks = np.where(free, places, places + sites)
    among = crossing_models(blocks, 2 * sites, timed.exchange)
    samples = np.zeros(len(places)) if timed.work.samples is None else timed.work.samples
    counts = np.bincount(blocks, minlength=2 * sites)
    sizes = counts[:sites]
    amounts = np.bincount(blocks, weights=samples, minlength=2 * sites).astype(np.int64)

    def load(at: Indices) -> SiteLoads:
        here = np.zeros((2 * sites, sites), dtype=np.int64)
        here[np.arange(2 * sites), np.concatenate([at, np.arange(sites)])] = 1
        crossing = here.T @ among @ here
        np.fill_diagonal(crossing, 0)
        return SiteLoads(counts @ here, amounts @ here, crossing)

    at = np.arange(sites)
    """(sites,): the site of each part."""
    now = seconds_of(load(at), timed.prices, timed.work)
    while True:
        tries: list[tuple[float, list[int]]] = []
        for slow in _slowest(load(at), timed):
            part = int(np.flatnonzero(at == slow)[0])
            for other in range(sites):
                there = int(at[other])
                fits = least[there] <= sizes[part] <= most[there]
                if fits and least[slow] <= sizes[other] <= most[slow] and other != part:
                    turned = at.copy()
                    turned[[part, other]] = at[[other, part]]
                    seconds = seconds_of(load(turned), timed.prices, timed.work)
                    tries.append((seconds, turned.tolist()))
        if not tries or min(tries)[0] >= now:
            return np.where(free, at[places], places)
        now, best = min(tries)
        at = np.array(best)


def _slowest(load: SiteLoads, timed: TimedRound) -> list[int]:
    """The sites that hold up a phase, ascending."""
    found = phases(load, timed.prices, timed.work).values()
    return sorted({site for phase in found for site in phase.slowest})


@dataclass(frozen=True, slots=True, eq=False)
class MoveLimits:
    """What else limits the moves of clients that have states at their places."""

    leaving: Indices
    """(sites,): how many clients may leave each site, in all passes together."""
    coming: Indices
    """(sites,): how many may come to it."""
    barred: Mask
    """(clients, sites): where a client may not go."""


def refined(
    timed: TimedRound,
    places: Indices,
    free: Mask,
    least: Indices,
    most: Indices,
    limits: MoveLimits | None = None,
) -> Indices:
    """Move `free` clients where that makes a round shorter; sites keep their limits on them."""
    here = _State.of(timed, places)
    rules = _Rules(free, least, most, places, limits)
    best, shortest = places, timed.seconds(places)
    part = 1.0
    for _ in range(PASSES):
        moved = _pass(timed, here, rules, part)
        if moved is None:
            break
        there = _State.of(timed, moved)
        if there.norm >= here.norm:
            part /= 4  # too many at once: they change each other's gains
            continue
        gained, here = 1 - there.norm / here.norm, there
        if (seconds := timed.seconds(moved)) < shortest:
            best, shortest = moved, seconds
        if gained < WORTH:
            break
    return best


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Places, and what follows from them."""

    places: Indices
    towards: npt.NDArray[np.int32]
    """(clients, sites): receivers of each client's model at each site."""
    norm: float
    crossing: Indices
    """(sites, sites): the weight of a model that crosses from the first to the second."""
    training: Indices
    """(sites,): the weight of a sample at the site."""

    @classmethod
    def of(cls, timed: TimedRound, places: Indices) -> Self:
        rows, sites = timed.receivers, timed.sites
        keys = rows.owners * sites + places[rows.others]
        towards = np.bincount(keys, minlength=len(places) * sites).reshape(-1, sites)
        crosses = towards > 0
        crosses[np.arange(len(places)), places] = False
        crossing = np.stack([crosses[places == site].sum(axis=0) for site in range(sites)])
        samples = np.zeros(len(places)) if timed.work.samples is None else timed.work.samples
        load = SiteLoads(
            np.bincount(places, minlength=sites),
            np.bincount(places, weights=samples, minlength=sites).astype(np.int64),
            crossing,
        )
        found = phases(load, timed.prices, timed.work)
        norms = {name: _norm(phase.ends) for name, phase in found.items()}
        prices, work, hops = timed.prices, timed.work, found["exchange"].hops
        assert hops is not None
        up, down = hops.priced(norms["exchange"][1])
        model = work.given_bytes * work.mixing_steps
        each = ((up * prices.byte_up)[:, None] + down * prices.byte_down) * model
        np.fill_diagonal(each, 0)
        weights = [each, norms["training"][1] * prices.sample * work.trained]
        unit = float(each.max(initial=0.0)) / UNITS or 1.0
        whole = [np.rint(weight / unit).astype(np.int64) for weight in weights]
        norm = sum(norm for norm, _ in norms.values())
        return cls(places, towards.astype(np.int32), norm, *whole)


def _norm(seconds: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
    """The norm of seconds, and how much of a second of each counts in it."""
    if not (most := float(seconds.max(initial=0.0))):
        return 0.0, np.ones(seconds.shape)
    shares = seconds / most
    norm = float((shares**NORM).sum() ** (1 / NORM))
    return most * norm, (shares / norm) ** (NORM - 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Rules:
    """Which moves are allowed."""

    free: Mask
    least: Indices
    most: Indices
    first: Indices
    """(clients,): their places before all passes."""
    limits: MoveLimits | None

    def may_go(self, site: int) -> Mask | bool:
        """(clients,)"""
        return True if self.limits is None else ~self.limits.barred[:, site]


def _pass(timed: TimedRound, state: _State, rules: _Rules, part: float) -> Indices | None:
    """New places, of at most this part of those that gain by a move; None if there are none.

    No two clients that exchange move in one pass: their gains would not add up.
    """
    places, sites = state.places, timed.sites
    sizes = np.bincount(places[rules.free], minlength=sites)
    gains, to = _gains(timed, state, rules, sizes < rules.most)
    best = np.where(rules.free, gains.max(axis=0), 0)
    rivals = np.zeros(len(places), dtype=np.int64)
    for rows in {id(each): each for each in (timed.receivers, timed.givers)}.values():
        behind = rows.others < rows.owners  # of two that gain the same the first one moves
        rival = best[rows.others] + behind
        rivals = np.maximum(rivals, rows.reduced(rival, np.maximum.reduceat))
    moving = np.flatnonzero((best > 0) & (best >= rivals))
    moving = moving[np.argsort(-best[moving], kind="stable")]
    moving = moving[: max(1, int(len(moving) * part))]
    return _within(places, moving, gains[:, moving], to[:, moving], sizes, rules)


def _gains(
    timed: TimedRound, state: _State, rules: _Rules, has_room: Mask
) -> tuple[Indices, Indices]:
    """(2, clients) each: the gain of a client's best move, and of its best one with room; where to.

    A move changes to how many sites the client's own model goes, and whether its givers' models go
    to its old and to its new site.
    """
    places, towards, clients = state.places, state.towards, timed.clients
    samples = np.zeros(clients, np.int64) if timed.work.samples is None else timed.work.samples
    weights, givers, every = state.crossing, timed.givers, np.arange(clients)
    at = places[givers.owners]
    alone = towards[givers.others, at] == 1
    to_here = givers.reduced(np.where(alone, weights[places[givers.others], at], 0))
    receives = (towards > 0).astype(np.int64)
    own = receives @ weights.T
    now = own[every, places] + to_here + samples * state.training[places]
    gains = np.zeros((2, clients), dtype=np.int64)
    to = np.stack([places, places])
    for site in range(timed.sites):
        new = np.where(towards[:, site] == 0, weights[places, site], 0)
        then = own[:, site] + givers.reduced(new[givers.others]) + samples * state.training[site]
        gain = np.where((places != site) & rules.may_go(site), now - then, 0)
        for row in (0, 1) if has_room[site] else (0,):
            better = gain > gains[row]
            gains[row, better], to[row, better] = gain[better], site
    return gains, to


def _within(
    places: Indices, moving: Indices, gains: Indices, to: Indices, sizes: Indices, rules: _Rules
) -> Indices | None:
    """Move clients in this order as far as the rules allow."""
    count, low, high = sizes.tolist(), rules.least.tolist(), rules.most.tolist()
    flow = _Flow.of(places, rules)
    moved, sites = [], []
    for place, (client, here) in enumerate(
        zip(moving.tolist(), places[moving].tolist(), strict=True)
    ):
        for row in (0, 1):
            there = int(to[row, place])
            fits = count[there] < high[there] and count[here] > low[here]
            if gains[row, place] > 0 and fits and flow.takes(client, here, there):
                count[here] -= 1
                count[there] += 1
                moved.append(client)
                sites.append(there)
                break
    if not moved:
        return None
    found = places.copy()
    found[moved] = sites
    return found


@dataclass(slots=True)
class _Flow:
    """How many clients may still leave each site, and come to it; None without limits."""

    first: Indices
    leaving: list[int] | None
    coming: list[int] | None

    @classmethod
    def of(cls, places: Indices, rules: _Rules) -> Self:
        if (limits := rules.limits) is None:
            return cls(rules.first, None, None)
        gone, sites = places != rules.first, len(limits.leaving)
        left = limits.leaving - np.bincount(rules.first[gone], minlength=sites)
        come = limits.coming - np.bincount(places[gone], minlength=sites)
        return cls(rules.first, left.tolist(), come.tolist())

    def takes(self, client: int, here: int, there: int) -> bool:
        """Whether a client may move; counts its move if so."""
        if self.leaving is None or self.coming is None:
            return True
        home = int(self.first[client])
        stays = there == home
        if (here == home and not self.leaving[home]) or not (stays or self.coming[there]):
            return False
        self.leaving[home] += stays - (here == home)
        self.coming[there] -= not stays
        self.coming[here] += here != home
        return True
