"""Decides whom a round waits for, when it is closed, and whether enough clients trained.

By default every client of the cohort counts, so no clock decides anything. With a deadline, a
quorum or over-sampling a clock decides who counts. The coordinator then records these clients
(`Counted`) before it uses their sum, and a repeated round counts the recorded ones.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from ...errors import FederatedError, RunRefused

FORMAT = 2
"""1 knew no late updates; it is read too."""
_ROUNDING = 1e-9
"""1.1 x 10 clients are 11 despite floating point."""


class TooFewSites(FederatedError):
    """The sites that a round needs were not there in time; the run can be resumed."""

    def __init__(self, what: str, lacking: str, waited_s: float | None) -> None:
        """`waited_s` is None where no site was left to wait for."""
        super().__init__(what, lacking, waited_s)
        self.what, self.lacking, self.waited_s = what, lacking, waited_s

    def __str__(self) -> str:
        if self.waited_s is None:
            return (
                f"{self.what}: {self.lacking}. No site may return to this run; resuming it asks "
                "all of them again"
            )
        return (
            f"{self.what}: {self.lacking}; waited {self.waited_s:g} s for a return "
            "(`participation.wait_for_sites_s`). Resume the run once the site is back"
        )


class SiteRefused(FederatedError):
    """Clients that a round needs are at a site whose answer does not count."""

    def __init__(self, what: str, lacking: str) -> None:
        super().__init__(what, lacking)
        self.what, self.lacking = what, lacking

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.lacking}; all clients that are asked have to count "
            "(a smaller `participation.quorum` lets rounds do without that site's)"
        )


class BelowQuorum(FederatedError):
    """A round was closed with fewer clients than it needs; the run can be resumed."""

    def __init__(self, what: str, clients: int, least: int, reason: str) -> None:
        super().__init__(what, clients, least, reason)
        self.what, self.clients, self.least, self.reason = what, clients, least, reason

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.clients} clients count and at least {self.least} are needed "
            f"(`participation.quorum`), {self.reason}. Resuming the run repeats the round"
        )


def asked(cohort: int, over_sampling: float, population: int) -> int:
    """How many clients are asked so that `cohort` of them are done soon."""
    return min(population, cohort + math.ceil(cohort * over_sampling - _ROUNDING))


def least(cohort: int, quorum: float) -> int:
    """How many clients of a cohort have to count."""
    return max(1, math.ceil(cohort * quorum - _ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What one question about clients may do without."""

    whole: int
    """Clients that are asked."""
    enough: int
    """As soon as so many are done, the round is closed."""
    least: int
    """Fewer do not count."""
    deadline_s: float | None = None
    """From the start; None waits for all."""
    wait_s: float = 60.0
    """How long clients wait for a site that has to return."""
    closing_s: float = 30.0
    """How long sites have to hand up what is done."""

    @property
    def by_clock(self) -> bool:
        """Whether a clock decides which clients count."""
        return self.deadline_s is not None or min(self.enough, self.least) < self.whole


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherStatus:
    """Where a question stands. Times are seconds of one clock, which `now` is of too."""

    started: float
    open: int
    """Orders that sites are at work on."""
    covered: int
    """Clients in the answers that are there."""
    reported: int
    """Clients that open orders are said to have done."""
    lacking: str | None = None
    """Why some clients can be asked nowhere at the moment."""
    vital: bool = False
    """Whether no round may do without what is lacking."""
    hopeless: bool = False
    """Whether no site that may return could make up for it."""
    lacking_since: float = 0.0
    some_never: bool = False
    """Whether some of it are clients of sites whose answers do not count: they never come."""
    all_never: bool = False
    """Whether all of it are."""
    closed: float | None = None
    """When the open orders were asked for what they have."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Until something happens, or so many seconds have passed."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Close:
    """Ask for what is done; no further client is trained."""

    reason: str


@dataclass(frozen=True, slots=True)
class Forgo:
    """Do without the clients that can be asked nowhere."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """What is there is what there will be."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The sites that it needs have not come back in time, or do not count."""

    lacking: str
    never: bool = False
    """Whether these are clients of a site that is asked nothing more."""
    waited_s: float | None = None
    """None where no site was left to wait for."""


Step = Wait | Close | Forgo | Done | Fail


def step(standing: GatherStatus, now: float, rules: Rules) -> Step:
    if standing.closed is not None:
        left = standing.closed + rules.closing_s - now
        return Wait(left) if standing.open and left > 0 else Done()
    if standing.open or standing.lacking:
        if rules.enough < rules.whole and standing.covered + standing.reported >= rules.enough:
            return Close(f"{rules.enough} clients are done")
        if rules.deadline_s is not None and now >= standing.started + rules.deadline_s:
            return Close(f"the deadline of {rules.deadline_s:g} s has passed")
    if standing.lacking:
        fewer_do = rules.least < rules.whole and not standing.vital
        if standing.some_never and not standing.vital and not fewer_do:
            return Fail(standing.lacking, never=True)
        enough = standing.covered >= rules.least or standing.all_never
        if fewer_do and not standing.open and enough:
            return Forgo(standing.lacking)
        if standing.hopeless or now >= standing.lacking_since + rules.wait_s:
            if fewer_do and (standing.open or standing.covered):
                return Forgo(standing.lacking)
            waited_s = None if standing.hopeless else rules.wait_s
            return Fail(standing.lacking, waited_s=waited_s)
    elif not standing.open:
        return Done()
    ends = [standing.lacking_since + rules.wait_s] if standing.lacking else []
    if rules.deadline_s is not None:
        ends.append(standing.started + rules.deadline_s)
    return Wait(min(ends) - now if ends else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Who counted in a round."""

    round_number: int
    model: str
    """Digest of the model that the round started from."""
    whole: int
    """Clients that were asked."""
    clients: int
    """Clients that counted; those refused for not being finite are among them."""
    counted: Any
    """As an order names them: a bitmap of the cohort, or a share of the population."""
    sites: Mapping[str, int]
    """How many of them answered from where."""
    reason: str
    """Why the others did not."""
    late: Sequence[Mapping[str, Any]] = ()
    """What came of earlier rounds and counted in this one, as `Late.to_json` says it."""

    def to_json(self) -> dict[str, Any]:
        """JSON values, with a digest of them all."""
        values = {"format": FORMAT, **asdict(self), "sites": dict(self.sites)}
        values["late"] = [dict(each) for each in self.late]
        return {**values, "digest": _digest(values)}

    @classmethod
    def from_json(cls, values: Any, where: str) -> Self:
        """The inverse of `to_json`; RunRefused if it is spoilt or of another format."""
        values = dict(values) if isinstance(values, dict) else {}
        known = values.get("format") in (1, FORMAT)
        if not known or values.pop("digest", None) != _digest(values):
            raise RunRefused(
                f"{where} says who counted in a round, and is spoilt or of another format than "
                f"{FORMAT}: without it the round cannot be run again as it was"
            )
        del values["format"]
        values["late"] = tuple(values.get("late", ()))
        return cls(**values)


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
