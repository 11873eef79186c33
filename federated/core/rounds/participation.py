"""Decides which clients a round waits for, when it closes, and whether enough clients trained.

By default every client of the cohort counts, so no clock decides anything. With a deadline, a
quorum or over-sampling a clock decides which clients count. The coordinator then records them
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
"""Format 1 had no late updates; it can still be read."""
_ROUNDING = 1e-9
"""1.1 x 10 clients are 11 despite floating point."""


class TooFewSites(FederatedError):
    """The sites that a round needs did not return in time; the run can be resumed."""

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
    """A round needs clients of a site whose answer does not count."""

    def __init__(self, what: str, lacking: str, advice: str = "") -> None:
        """`advice` says what would help, if a smaller quorum would not."""
        super().__init__(what, lacking, advice)
        self.what, self.lacking, self.advice = what, lacking, advice

    def __str__(self) -> str:
        advice = self.advice or (
            "all clients that are asked have to count (a smaller `participation.quorum` lets "
            "rounds do without that site's)"
        )
        return f"{self.what}: {self.lacking}; {advice}"


class BelowQuorum(FederatedError):
    """A round closed with fewer clients than it needs; the run can be resumed."""

    def __init__(self, what: str, clients: int, least: int, reason: str) -> None:
        super().__init__(what, clients, least, reason)
        self.what, self.clients, self.least, self.reason = what, clients, least, reason

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.clients} clients count and at least {self.least} are needed "
            f"(`participation.quorum`), {self.reason}. Resuming the run repeats the round"
        )


def asked(cohort: int, over_sampling: float, population: int) -> int:
    """How many clients to ask so that `cohort` of them finish soon."""
    return min(population, cohort + math.ceil(cohort * over_sampling - _ROUNDING))


def least(cohort: int, quorum: float) -> int:
    """How many clients of a cohort must count."""
    return max(1, math.ceil(cohort * quorum - _ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which clients a query may do without, and how long it waits."""

    whole: int
    enough: int
    """The round closes once this many clients are done."""
    least: int
    """A round with fewer clients fails."""
    deadline_s: float | None = None
    """Seconds from the start; None waits for all."""
    wait_s: float = 60.0
    """Seconds that clients wait for a lost site to return."""
    closing_s: float = 30.0
    """Seconds in which sites must hand up finished work."""

    @property
    def by_clock(self) -> bool:
        """Whether a clock decides which clients count."""
        return self.deadline_s is not None or min(self.enough, self.least) < self.whole


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherStatus:
    """The state of a query. All times, `now` too, are seconds of one clock."""

    started: float
    open: int
    covered: int
    """Clients in the answers received."""
    reported: int
    """Clients that sites report as done in open orders."""
    lacking: str | None = None
    """Why no site can be asked about some clients at the moment."""
    vital: bool = False
    """Whether every round needs these clients."""
    hopeless: bool = False
    """Whether no returning site could make up for them."""
    lacking_since: float = 0.0
    some_never: bool = False
    """Whether some of them are at sites whose answers do not count, so they never come."""
    all_never: bool = False
    """Whether all of them are."""
    closed: float | None = None
    """When the open orders were closed."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for an event, or for so many seconds."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Close:
    """Ask for finished work; no further client is trained."""

    reason: str


@dataclass(frozen=True, slots=True)
class Forgo:
    """Do without the clients that no site can be asked about."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more will arrive."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Needed sites did not return in time, or their answers do not count."""

    lacking: str
    never: bool = False
    """Whether they are clients of a site that gets no further orders."""
    waited_s: float | None = None


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
    """The clients that counted in a round."""

    round_number: int
    model: str
    """Digest of the model that the round started from."""
    whole: int
    clients: int
    """Clients that counted, including those refused for not being finite."""
    counted: Any
    """As in an order: a bitmap of the cohort, or a share of the population."""
    sites: Mapping[str, int]
    """How many of them answered from each site."""
    reason: str
    """Why the others did not count."""
    late: Sequence[Mapping[str, Any]] = ()
    """Updates of earlier rounds that counted in this one, as from `Late.to_json`."""

    def to_json(self) -> dict[str, Any]:
        """JSON values, with a digest over all of them."""
        values = {"format": FORMAT, **asdict(self), "sites": dict(self.sites)}
        values["late"] = [dict(each) for each in self.late]
        return {**values, "digest": _digest(values)}

    @classmethod
    def from_json(cls, values: Any, where: str) -> Self:
        """The inverse of `to_json`; RunRefused for a corrupt record or another format."""
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
