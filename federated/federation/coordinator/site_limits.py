"""SiteLimits: what each site added to a run's rounds, and which sites were refused or stand out.

An impossible answer excludes its site from the run. An answer above the config's limits is left out
of its round; a refusal in a second round excludes the site too. The journal has every refusal
before the round's sum is used, so a restarted coordinator knows which sites were refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...config.schema import Robustness
from ...core.population.federated_data.declarations import Exactness
from ...core.sums.amounts import leaves_range
from ...core.sums.contributions import (
    Contribution,
    ContributionLimits,
    contributions,
    moved_most,
    norm_of,
    norm_problem,
    outliers,
    reach_of,
    too_much,
)
from ...core.sums.partial import Partial
from ...core.sums.partial_check import LimitExceeded
from ..events import Emit
from ..run_folder.folder import whole_lines

FORMAT = 1
FILE = "refusals.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAnswer:
    """A site's answer that did not count."""

    round_number: int
    site: str
    reason: str
    quarantined: bool
    """Whether the site is excluded from the run."""

    def to_json(self) -> dict[str, Any]:
        """As in the journal and the event."""
        return {
            "round": self.round_number,
            "site": self.site,
            "reason": self.reason,
            "quarantined": self.quarantined,
        }


def read_refusals(journal: Path) -> list[RefusedAnswer]:
    """A run's refusals, in order; an incomplete last line is ignored."""
    told = map(json.loads, whole_lines(journal / FILE))
    return [
        RefusedAnswer(
            round_number=each["round"],
            site=each["site"],
            reason=each["reason"],
            quarantined=each["quarantined"],
        )
        for each in told
    ]


def out_for_good(refusals: Sequence[RefusedAnswer]) -> dict[str, str]:
    """Sites that stay excluded when a run resumes, and why: those that were refused again.

    A site whose only refusal is an impossible answer gets one more chance: its admin may have
    repaired it. If it is refused in another round, or once more after that chance, it stays out.
    """
    out: dict[str, str] = {}
    for number, each in enumerate(refusals):
        before = [earlier for earlier in refusals[:number] if earlier.site == each.site]
        again = any(e.quarantined or e.round_number != each.round_number for e in before)
        if each.quarantined and again:
            rounds = sorted({e.round_number for e in (*before, each)})
            out[each.site] = (
                f"its answers were refused in {_rounds(rounds)} of this run, at last since "
                f"{each.reason}"
            )
    return out


def _rounds(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"round {numbers[0]} twice"
    return f"rounds {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


class SiteLimits:
    """The limits of one run and its refusals."""

    def __init__(
        self,
        robustness: Robustness,
        journal: Path,
        emit: Emit,
        told: Callable[[str], Exactness],
    ) -> None:
        """`told` gives how exactly a site's share of the samples may be shown."""
        self._limits = ContributionLimits(
            share=robustness.max_site_share, norm=robustness.max_update_norm
        )
        self._journal = journal
        self._emit = emit
        self._told = told
        self.refusals = read_refusals(journal)
        self._named: set[tuple[str, str]] = set()
        """Sites already reported to stand out, and by which measure."""
        self._judged = (0, 0)
        """The last attempt (round, grid) whose shares were checked."""
        self._last: Sequence[Contribution] = ()

    # -- limits -----------------------------------------------------------------------------------

    def check(self, partial: Partial) -> None:
        """Raise LimitExceeded for an answer that would move the model further than a site may."""
        if self._limits.norm is None or partial.overflowed:
            return
        if problem := norm_problem(norm_of(partial), self._limits):
            raise LimitExceeded(problem)

    def exceeded(
        self, attempt: tuple[int, int], answers: Sequence[tuple[str, Partial]]
    ) -> dict[str, Exception]:
        """Sites that add too much to a round, by all its answers, which stay unchanged.

        Shares are compared with the limit once per attempt at a round: leaving a site out raises
        the shares of all others. A sum outside its range has no norm, so the limit on norms then
        applies to how far a site's clients moved, by the bounds of its sums.
        """
        if leaves_range(partial for _, partial in answers):
            found = {site: norm_problem(reach_of(each), self._limits) for site, each in answers}
            problems = {site: problem for site, problem in found.items() if problem}
        elif self._limits.share is not None and self._judged != attempt:
            self._judged = attempt
            problems = too_much(contributions(answers), self._limits)
        else:
            problems = {}
        return {site: LimitExceeded(problem) for site, problem in problems.items()}

    # -- refusals ---------------------------------------------------------------------------------

    def refused(self, site: str, error: Exception, round_number: int) -> bool:
        """Record a refused answer; return whether its site is excluded from the run."""
        again = any(
            each.site == site and each.round_number != round_number for each in self.refusals
        )
        refusal = RefusedAnswer(
            round_number=round_number,
            site=site,
            reason=str(error),
            quarantined=again or not isinstance(error, LimitExceeded),
        )
        self.refusals.append(refusal)
        fields = refusal.to_json()
        self._journal.mkdir(parents=True, exist_ok=True)
        with (self._journal / FILE).open("a") as file:
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            file.write(json.dumps({"format": FORMAT, "time": time, **fields}) + "\n")
        self._emit("site_refused", **fields)
        return refusal.quarantined

    # -- what is shown ----------------------------------------------------------------------------

    def measure(
        self, round_number: int, answers: Iterable[tuple[str, Partial]]
    ) -> Mapping[str, Any]:
        """Measure what each site added, for the round's row; report each outlier once."""
        self._last = contributions(answers)
        for each in outliers(self._last, self._limits):
            if (each.site, each.by) not in self._named:
                self._named.add((each.site, each.by))
                self._emit(
                    "site_stands_out", round=round_number, site=each.site, reason=each.reason
                )
        row: dict[str, Any] = {
            "sites": {each.site: each.shown(self._told(each.site)) for each in self._last}
        }
        left_out = {
            each.site: each.reason for each in self.refusals if each.round_number == round_number
        }
        return {**row, "left_out": left_out} if left_out else row

    def blamed(self) -> str:
        """Name the site whose part in the last round moved the model most."""
        most = moved_most(self._last)
        if most is None:
            return "no site has moved it"
        others = [each for each in self._last if each.site != most.site]
        norms = ", ".join(f"{each.site} {each.norm:.4g}" for each in others)
        beside = f" (the others': {norms})" if others else ""
        return f"site {most.site}'s part moved it most, by a norm of {most.norm:.4g}{beside}"
