"""Reserving one gang over several sites, in two phases: a conversation without a wire.

Every site is asked to prepare its part; when enough have promised, those commit and nothing is
left behind elsewhere. Otherwise every promise is released. Whoever drives the generator does the
asking: `reserve` yields an `Ask` and is sent the site's `Answer`.
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
class Ask:
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


Answer = Promise | Refusal | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was reserved where; nothing at all unless `granted`."""

    granted: bool
    promises: Mapping[str, Promise]
    refusals: Mapping[str, str]


def reserve(
    sites: Sequence[str], *, min_sites: int, required: Collection[str] = ()
) -> Generator[Ask, Answer, Outcome]:
    """Prepare everywhere, then commit everywhere or release everywhere."""
    promises: dict[str, Promise] = {}
    refusals = {site: "no such site" for site in required if site not in sites}
    if len(sites) < min_sites:
        refusals["all"] = f"{min_sites} sites are needed and there are {len(sites)}"
    if refusals:
        return Outcome(False, {}, refusals)
    for site in sites:
        answer = yield Ask(Verb.PREPARE, site)
        if isinstance(answer, Promise):
            promises[site] = answer
            continue
        refusals[site] = answer.reason if isinstance(answer, Refusal) else "no answer"
        if site in required or len(sites) - len(refusals) < min_sites:
            break
    granted = len(promises) >= min_sites and not set(required) & set(refusals)
    for site in promises:
        yield Ask(Verb.COMMIT if granted else Verb.RELEASE, site)
    return Outcome(granted, promises if granted else {}, refusals)
