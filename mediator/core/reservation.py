"""Reserves one gang over several sites in two phases, and decides which sites it needs later.

A site's part has vnodes of one class or more: each class has one size, and its own numbers.

All sites are asked at once to prepare their parts. If enough promise, those commit; otherwise all
promises are released. A commit fails if the promise has lapsed or the site is gone. `reserve` is a
generator: it yields `SiteStep`s to send together, and its caller sends it the answers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from .links import LinkSpeed

MOST_VNODES = 16
"""Of a class, unless a request says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VNodeClass:
    """The vnodes of one size in a site's part of a gang."""

    name: str = ""
    """Empty if it is the only class."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Of one vnode, by Ray's names."""
    workers: int | None = None
    """Vnodes; None for as many as fit, up to `at_most`."""
    at_least: int | None = None
    """Of a class whose vnodes above that number come and leave one by one, up to `at_most`."""
    at_most: int = MOST_VNODES
    labels: Mapping[str, str] = field(default_factory=dict)
    """Conditions on the labels of the machines that carry them."""

    @property
    def least(self) -> int:
        """The fewest vnodes with which the site can take part."""
        return self.workers or self.at_least or 1

    @property
    def most(self) -> int:
        """The most vnodes that the site may have."""
        return self.workers or self.at_most

    @property
    def problem(self) -> str:
        """Why it cannot be asked for; empty if it can."""
        given = (self.workers, self.at_least)
        counts = (self.at_most, *(count for count in given if count is not None))
        if any(type(count) is not int or count < 1 for count in counts):
            return "it is not for one vnode or more"
        if (self.at_least or 1) > self.at_most:
            return "its least number of vnodes is above its most"
        if None not in given:
            return "it is both for a number of vnodes and for a range"
        for name, amount in self.resources.items():
            if not is_number(amount) or not 0 <= amount < math.inf:
                return f"{amount!r:.40} of {name!r:.40} is no amount"
        texts = (self.name, *self.labels, *self.labels.values())
        if not all(isinstance(text, str) for text in texts):
            return "its name, or one of its labels, is no text"
        return ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Read one; TypeError or ValueError for none, also for a later version's."""
        if not isinstance(values, Mapping):
            raise TypeError(f"{values!r:.80} is no class of vnodes")
        return cls(**values)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Verb(StrEnum):
    PREPARE = "prepare"
    COMMIT = "commit"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class SiteStep:
    """One question to one site."""

    verb: Verb
    site: str


@dataclass(frozen=True, slots=True)
class Promise:
    """A site holds its part of the gang."""

    site: str
    vnodes: int
    link: LinkSpeed = field(default_factory=LinkSpeed)
    """As measured, or as the site declares it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A site refuses, and why."""

    site: str
    reason: str
    unreachable: bool = False
    """Whether its Ray cannot be used at all, so a retry may not help."""
    full: bool = False
    """Whether it may promise later: others hold what it has, or it did not answer in time."""


Answer = Promise | Refusal | None


@dataclass(frozen=True, slots=True)
class ReservationOutcome:
    """The sites' parts of the gang; none unless `granted`."""

    granted: bool
    promises: Mapping[str, Promise]
    refusals: Mapping[str, str]
    unreachable: bool = False
    """Whether the only reason for the refusal is Ray clusters that cannot be used."""
    full: bool = False
    """Whether the gang would stand if the sites that are full for now had promised."""


def reserve(
    sites: Sequence[str], *, min_sites: int, required: Collection[str] = ()
) -> Generator[tuple[SiteStep, ...], Mapping[str, Answer], ReservationOutcome]:
    """Prepare at all sites, then commit at those that promise, or release their promises.

    PREPARE needs a promise, and no answer counts as a refusal. COMMIT fails only by a refusal.
    """
    refusals = {site: "no such site" for site in required if site not in sites}
    if len(sites) < min_sites:
        refusals["all"] = f"{min_sites} sites are needed and there are {len(sites)}"
    if refusals:
        return ReservationOutcome(False, {}, refusals)

    def enough(promises: Collection[str]) -> bool:
        return len(promises) >= min_sites and set(required) <= set(promises)

    answers = yield tuple(SiteStep(Verb.PREPARE, site) for site in sites)
    promises: dict[str, Promise] = {}
    unreachable: set[str] = set()
    full: set[str] = set()
    for site in sites:
        answer = answers.get(site) or Refusal(site, "no answer")
        if isinstance(answer, Promise):
            promises[site] = answer
        else:
            refusals[site] = answer.reason
            if answer.unreachable:
                unreachable.add(site)
            if answer.full:
                full.add(site)
    held = tuple(promises)
    if enough(promises):
        answers = yield tuple(SiteStep(Verb.COMMIT, site) for site in held)
        for site in held:
            refused = answers.get(site)
            if isinstance(refused, Refusal):
                refusals[site] = refused.reason
                del promises[site]
    if enough(promises):
        lapsed = tuple(SiteStep(Verb.RELEASE, site) for site in held if site not in promises)
        if lapsed:
            yield lapsed
        return ReservationOutcome(True, promises, refusals)
    if held:
        yield tuple(SiteStep(Verb.RELEASE, site) for site in held)
    return ReservationOutcome(
        False,
        {},
        refusals,
        unreachable=unreachable == refusals.keys(),
        full=bool(full) and enough({*promises, *full}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteQuorum:
    """How many sites a gang needs, and which ones are required."""

    to_begin: int
    to_go_on: int = 1
    required: frozenset[str] = frozenset()

    def lacking(
        self, there: Collection[str], *, known: Collection[str], gone: Mapping[str, str]
    ) -> str | None:
        """Say what a gang with the sites `there` lacks; `gone` has the reasons of other sites."""
        if missing := sorted(self.required - set(there)):
            why = gone.get(missing[0], "")
            return f"site {missing[0]} is required and not there{f': {why}' if why else ''}"
        if len(there) < self.to_go_on:
            whys = "".join(f"; site {site} is gone: {why}" for site, why in gone.items())
            return (
                f"at least {self.to_go_on} of {len(known)} sites are needed, "
                f"{len(there)} are there{whys}"
            )
        return None

    def hopeless(self, known: Collection[str], excluded: Collection[str]) -> bool:
        """Whether the known sites cannot form a gang without the excluded ones."""
        left = [site for site in known if site not in excluded]
        return len(left) < self.to_go_on or not self.required.isdisjoint(excluded)
