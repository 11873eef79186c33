"""How long fedpilot's rounds take: a + b x clients, and how much of b is not training.

The model and the data of w2 in a population of 100,000, two workers, journal and checkpoints on.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from measuring import Run, Spread, measured, parser, result_of, spread, steady, table
from run import w2

SECTION = "round_time"
COHORTS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
WORKERS, POPULATION = 2, 100_000


def fit(clients: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """(a, b) of a + b x clients by least squares of relative errors: all sizes count alike."""
    k, t = np.asarray(clients, dtype=float), np.asarray(seconds, dtype=float)
    (a, b), *_ = np.linalg.lstsq(np.stack([1 / t, k / t], axis=1), np.ones_like(t))
    return float(a), float(b)


def rounds(cohort: int) -> int:
    """As many as are over in some seconds."""
    return min(600, max(6, 60_000 // cohort))


def training(run: Run) -> float | None:
    """Seconds of training arithmetic per client, as they pass on the clock of a round."""
    spent = run.get("training_seconds")
    return steady(spent) / (WORKERS * run["cohort"]) if spent else None


@dataclass(frozen=True)
class Summary:
    """What the runs say, in seconds."""

    rounds: Mapping[int, Spread]
    """Cohort -> the median round."""
    training: Mapping[int, float]
    """Cohort -> training arithmetic per client; empty if the rows do not say it."""
    a: Spread
    b: Spread
    """Fitted to the medians over the turns; the ranges are those of fits to single turns."""

    @property
    def engine(self) -> float | None:
        """The part of b that is not training, which is measured in the largest cohort."""
        return self.b.median - self.training[max(self.training)] if self.training else None

    def expected(self, cohort: int) -> float:
        """The fit."""
        return self.a.median + self.b.median * cohort


def summary(runs: Mapping[str, list[Run]]) -> Summary:
    """Medians over the turns, and fits."""
    by_cohort = {each[0]["cohort"]: each for each in runs.values() if each}
    medians = {k: [steady(run["seconds"]) for run in by_cohort[k]] for k in sorted(by_cohort)}
    times = {k: spread(each) for k, each in medians.items()}
    turns = zip(*medians.values(), strict=False)
    fits = [fit(list(medians), turn) for turn in turns]
    middle = fit(list(times), [time.median for time in times.values()])
    a, b = (
        Spread(middle[i], min(each[i] for each in fits), max(each[i] for each in fits))
        for i in range(2)
    )
    spent = {
        k: statistics.median(found)
        for k, each in by_cohort.items()
        if (found := [t for run in each if (t := training(run)) is not None])
    }
    return Summary(times, spent, a, b)


def text(runs: Mapping[str, list[Run]]) -> str:
    """The fit in words, and a table."""
    found = summary(runs)
    share = "the rows of the runs have no `training_seconds`"
    if found.engine is not None:
        spent = found.training[max(found.training)]
        share = (
            f"{1e6 * spent:.1f} µs of b are training arithmetic (in the largest cohort), "
            f"{1e6 * found.engine:.1f} µs are fedpilot's"
        )
    rows = [
        [
            f"{cohort:,}",
            time.text(2, 1e3),
            f"{1e3 * found.expected(cohort):.2f}",
            f"{100 * (time.median / found.expected(cohort) - 1):+.1f} %",
            f"{cohort / time.median:,.0f}",
            f"{1e6 * found.training[cohort]:.1f}" if cohort in found.training else "",
        ]
        for cohort, time in found.rounds.items()
    ]
    return (
        f"A round takes a + b × clients, a = {found.a.text(2, 1e3)} ms and "
        f"b = {found.b.text(1, 1e6)} µs; {share}.\n\n"
        + table(["clients", "round, ms", "fit, ms", "off by", "clients/s", "training, µs"], rows)
    )


def main() -> None:
    options = parser(__doc__ or "", reps=5)
    options.add_argument("--cohorts", type=int, nargs="+", default=COHORTS)
    arguments = options.parse_args()
    sizes = {f"{cohort} clients": cohort for cohort in arguments.cohorts}

    def once(name: str, _turn: int) -> Run:
        cohort = sizes[name]
        size = {"population": POPULATION, "cohort": cohort, "rounds": rounds(cohort)}
        return result_of(w2(workers=WORKERS, **size))

    def say(run: Run) -> str:
        return f"{1e3 * steady(run['seconds']):>9,.2f} ms"

    print("\n" + text(measured(SECTION, sizes, once, say, arguments)))
