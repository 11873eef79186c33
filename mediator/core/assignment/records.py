"""Assignments, their records, and the type of a strategy.

An `Assignment` holds two shares per site: pinned clients, whose data is there, and movable ones.
All shares together always cover the population: a lost site keeps its pinned clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..links import LinkSpeed
from .shares import Share, holds, joined, size


class NotAssignable(ValueError):
    """The strategy leaves clients without a site."""


@dataclass(frozen=True, slots=True)
class SiteCapacity:
    """A site as an assignment sees it."""

    name: str
    vnodes: int
    seconds_per_sample: float | None = None
    """The pace of one vnode; None if it is not known."""
    link: LinkSpeed = field(default_factory=LinkSpeed)
    pace_measured: bool = False
    """Whether the site's own rounds have shown its pace."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Which clients exchange what they become with each other."""

    ends: npt.NDArray[np.int64]
    """(m, 2): clients, sorted. Each pair once, ascending; if directed, the giver comes first."""
    is_directed: bool = False

    @classmethod
    def between(cls, one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> Exchange:
        """Pairs (m,) and (m,) in any order and direction, each of which gives to the other."""
        return cls(_sorted(np.minimum(one, other), np.maximum(one, other)))

    @classmethod
    def directed(cls, givers: npt.NDArray[np.int64], receivers: npt.NDArray[np.int64]) -> Exchange:
        """Each of `givers` (m,) gives to one of `receivers` (m,), in any order."""
        return cls(_sorted(givers, receivers), is_directed=True)

    def directions(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Givers and receivers."""
        one, other = self.ends[:, 0], self.ends[:, 1]
        yield one, other
        if not self.is_directed:
            yield other, one

    @property
    def pairs(self) -> Exchange:
        """The same pairs, each once, without directions."""
        return Exchange.between(self.ends[:, 0], self.ends[:, 1]) if self.is_directed else self


def _sorted(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(m, 2): the pairs of different clients, each once."""
    many = int(max(one.max(initial=0), other.max(initial=0))) + 1
    keys = np.unique(one[one != other] * many + other[one != other])
    return np.stack([keys // many, keys % many], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundWork:
    """What a round computes and moves, whichever client is where; 0 or None if not known."""

    samples: npt.NDArray[np.int64] | None = None
    """(clients,): of each client."""
    trained: float = 1.0
    """The part of all clients that a round trains."""
    model_bytes: int = 0
    """Of the model that each site gets."""
    sum_bytes: int = 0
    """Of a site's answer: eight for each parameter."""
    update_bytes: int = 0
    """Added to an answer for each client, where an algorithm needs every update."""
    mixing_steps: int = 1
    state_bytes: int | None = None
    """Of what a client gives on a graph, if these are not `model_bytes`."""
    partial_bytes: int = 0
    """Of a sum over such states, which can take their place."""

    @property
    def given_bytes(self) -> int:
        """Of a state that crosses between sites."""
        return self.model_bytes if self.state_bytes is None else self.state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentProblem:
    """What a strategy decides on."""

    clients: Share
    """Those that any site can train."""
    sites: Sequence[SiteCapacity]
    pinned: Mapping[str, Share] = field(default_factory=dict)
    """The others, whose data stays at a site; it may be absent."""
    exchange: Exchange | None = None
    """None if clients exchange with the coordinator alone."""
    work: RoundWork | None = None
    """None if a round's costs are not known."""
    labels: npt.NDArray[np.int64] | None = None
    """(clients, labels): each client's samples of each label, pinned ones too; None if not known,
    or not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """What a strategy decided."""

    shares: Mapping[str, Share]
    """The movable clients of each site; disjoint, and together all of them."""
    reason: str = ""
    """Why so, for people."""


AssignmentStrategy: TypeAlias = Callable[[AssignmentProblem], Division]


@dataclass(frozen=True, slots=True)
class OwnStrategy:
    """A strategy that is not one of those with a name here."""

    name: str
    divide: AssignmentStrategy
    """Its answer has been checked (`divisions.checked`)."""


ChosenStrategy: TypeAlias = str | OwnStrategy
"""The name of a strategy, or one of the user's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMove:
    """Clients that changed their site."""

    round_number: int
    """The first round at the new site."""
    origin: str
    to: str
    clients: Share
    reason: str
    """Such as `which was lost: nothing was heard of it`."""

    def __str__(self) -> str:
        return f"was at site {self.origin} until round {self.round_number}, {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The site of every client, and why it is there."""

    strategy: str
    movable: Mapping[str, Share]
    """Clients that any site can train."""
    pinned: Mapping[str, Share] = field(default_factory=dict)
    """Clients whose data stays at that site."""
    given: Mapping[str, int] = field(default_factory=dict)
    """How many movable clients the strategy gave each site at first."""
    reason: str = ""
    """Why the strategy decided so; empty if its name says it."""
    moves: tuple[ClientMove, ...] = ()
    """The latest, in their order."""

    @property
    def shares(self) -> dict[str, Share]:
        """All clients of each site; disjoint, and together `range(population)`."""
        return {site: self.share(site) for site in sorted({*self.pinned, *self.movable})}

    @property
    def population(self) -> int:
        return sum(size(s) for by_site in (self.pinned, self.movable) for s in by_site.values())

    def share(self, site: str) -> Share:
        return joined([*self.pinned.get(site, ()), *self.movable.get(site, ())])

    def site_of(self, index: int) -> str:
        """The site of a client; IndexError outside the population."""
        for by_site in (self.movable, self.pinned):
            for site, share in by_site.items():
                if holds(share, index):
                    return site
        raise IndexError(index)

    def why(self, index: int) -> str:
        """Why this client is where it is, or was before it moved."""
        site = self.site_of(index)
        if holds(self.pinned.get(site, ()), index):
            return f"its data is at site {site} and may not move"
        moves = self.moves_of(index)
        first = moves[0].origin if moves else site
        total = sum(self.given.values())
        given = (
            f"strategy {self.strategy!r} gave site {first} {self.given.get(first, 0)} of {total} "
            "clients, this one among them"
        )
        return "; ".join([given, *([self.reason] if self.reason else [])])

    def explain(self, index: int) -> str:
        """Why this client is where it is, and where it was before."""
        return "; ".join([self.why(index), *map(str, self.moves_of(index))])

    def moves_of(self, index: int) -> tuple[ClientMove, ...]:
        """The latest moves of this client, in their order."""
        return tuple(move for move in self.moves if holds(move.clients, index))
