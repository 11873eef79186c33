"""Reserving one gang over several sites, in two phases: a conversation without a wire.

All sites are asked at once to prepare their part; when enough have promised, those commit and
nothing is left behind elsewhere. Otherwise every promise is released. A commit can fail too: its
promise has lapsed, or the site is gone. Whoever drives the generator does the asking: `reserve`
yields the `SiteStep`s that go out together and is sent the sites' answers.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    """What a site is asked."""

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


@dataclass(frozen=True, slots=True)
class Refusal:
    """A site cannot, and why."""

    site: str
    reason: str
    unreachable: bool = False
    """Whether its Ray cannot be used at all, so that another time may do no better."""


Answer = Promise | Refusal | None


@dataclass(frozen=True, slots=True)
class ReservationOutcome:
    """What was reserved where; nothing at all unless `granted`."""

    granted: bool
    promises: Mapping[str, Promise]
    refusals: Mapping[str, str]
    unreachable: bool = False
    """Whether nothing was granted for no other reason than Rays that cannot be used."""


def reserve(
    sites: Sequence[str], *, min_sites: int, required: Collection[str] = ()
) -> Generator[tuple[SiteStep, ...], Mapping[str, Answer], ReservationOutcome]:
    """Prepare everywhere, then commit where it was promised, or release that.

    A promise answers PREPARE; anything but a refusal answers COMMIT; no answer is a refusal.
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
    for site in sites:
        answer = answers.get(site)
        if isinstance(answer, Promise):
            promises[site] = answer
        else:
            refusals[site] = answer.reason if isinstance(answer, Refusal) else "no answer"
            if isinstance(answer, Refusal) and answer.unreachable:
                unreachable.add(site)
    held = tuple(promises)
    if enough(promises):
        answers = yield tuple(SiteStep(Verb.COMMIT, site) for site in held)
        for site in held:
            answer = answers.get(site)
            if isinstance(answer, Refusal):
                refusals[site] = answer.reason
                del promises[site]
    if enough(promises):
        lapsed = tuple(SiteStep(Verb.RELEASE, site) for site in held if site not in promises)
        if lapsed:
            yield lapsed
        return ReservationOutcome(True, promises, refusals)
    if held:
        yield tuple(SiteStep(Verb.RELEASE, site) for site in held)
    return ReservationOutcome(False, {}, refusals, unreachable=unreachable == refusals.keys())
