"""Compares runs: in what their configs differ, and how far their results spread over seeds.

Runs whose configs differ in the seed alone are one point. Names, folders and how a run was computed
make no difference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

SEED = "run.random_seed"
IGNORED = ("run", "outputs", "sweep")
"""Sections in which configs may differ."""
BOOKKEEPING = {
    *("best", "best_round", "clients", "clients_per_second", "learning_rate", "refused", "samples"),
    *("seconds", "training_seconds"),
}
"""Numbers of a round that say nothing of the model."""
QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
"""By degrees of freedom, from 1: Student's t, of which 2.5 % lie above."""
NORMAL = 1.9600


@dataclass(frozen=True, slots=True, eq=False)
class RunFacts:
    """What a run folder says of a run."""

    run_id: str
    folder: str
    status: str
    config: Mapping[str, Any]
    """By dotted key: all values but those of `IGNORED`."""
    seed: int
    rows: Sequence[Mapping[str, Any]]
    """Its rounds' metrics."""
    seconds: float | None
    """How long it took, once it has ended."""

    @property
    def rounds(self) -> int:
        return int(self.rows[-1]["round"]) if self.rows else 0

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """Rounds with this metric, and its values."""
        pairs = [(row["round"], row[metric]) for row in self.rows if is_number(row.get(metric))]
        return [number for number, _ in pairs], [value for _, value in pairs]

    def last(self, metric: str) -> float | None:
        """The metric's last value; None if no round has one."""
        values = self.series(metric)[1]
        return values[-1] if values else None

    def best(self, metric: str) -> float | None:
        """The metric's best value: the least of a loss, else the largest."""
        finite = [value for value in self.series(metric)[1] if math.isfinite(value)]
        return (min if is_loss(metric) else max)(finite, default=None)


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """Values of one point over its seeds."""

    mean: float
    half_width: float | None
    """Of the 95 % interval of the mean (Student's t); None for one value, or if one is not finite.
    """
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class ComparedPoint:
    """Runs that differ in their seeds at most."""

    values: Mapping[str, Any]
    """By config key that differs between points: the value here; None where it is not given."""
    runs: Sequence[RunFacts]

    @property
    def one_per_seed(self) -> list[RunFacts]:
        """The last run of each seed: the same seed again would say nothing new."""
        return list({run.seed: run for run in self.runs}.values())

    def label(self, names: Mapping[str, str]) -> str:
        """The point in a few words; `names` are short ones of keys."""
        told = (f"{names[key]} {shown(value)}" for key, value in self.values.items())
        return ", ".join(told) or "all runs"

    def spread(self, metric: str, *, best: bool = False) -> SeedSpread | None:
        """The last or the best values of a metric; None if no run has any."""
        found = [run.best(metric) if best else run.last(metric) for run in self.one_per_seed]
        return spread_of([value for value in found if value is not None])

    def band(self, metric: str) -> list[tuple[int, SeedSpread]]:
        """By round in which every run has the metric: its spread."""
        series = [run.series(metric) for run in self.one_per_seed]
        by_run = [dict(zip(*each, strict=True)) for each in series if each[0]]
        shared = set.intersection(*map(set, by_run)) if by_run else set()
        found = (
            (number, spread_of([each[number] for each in by_run])) for number in sorted(shared)
        )
        return [(number, each) for number, each in found if each is not None]


def points_of(runs: Sequence[RunFacts]) -> list[ComparedPoint]:
    """The points of some runs, in the order of their first runs."""
    keys = differing([run.config for run in runs])
    grouped: dict[str, list[RunFacts]] = {}
    for run in runs:
        name = json.dumps([run.config.get(key) for key in keys], sort_keys=True)
        grouped.setdefault(name, []).append(run)
    return [
        ComparedPoint({key: some[0].config.get(key) for key in keys}, some)
        for some in grouped.values()
    ]


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values differ, in the order of the configs."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if any(each.get(key) != configs[0].get(key) for each in configs)]


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config's values by dotted key, without those of `IGNORED`."""
    kept = {name: section for name, section in config.items() if name not in IGNORED}
    return dict(_flat(kept, ""))


def _flat(section: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """By key: its last part, or as many parts as tell it from the others."""
    keys = list(keys)
    names = {}
    for key in keys:
        parts = key.split(".")
        for length in range(1, len(parts) + 1):
            name = ".".join(parts[-length:])
            if sum(f".{other}".endswith(f".{name}") for other in keys) == 1:
                break
        names[key] = name
    return names


def shown(value: Any) -> str:
    """A config's value in a table or a label."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def spread_of(values: Sequence[float]) -> SeedSpread | None:
    """Mean and 95 % interval of values; None without any."""
    if not values:
        return None
    count = len(values)
    if count == 1 or not all(map(math.isfinite, values)):
        return SeedSpread(sum(values) / count, None, count)
    freedom = count - 1
    quantile = QUANTILES[freedom - 1] if freedom <= len(QUANTILES) else NORMAL
    return SeedSpread(fmean(values), quantile * stdev(values) / math.sqrt(count), count)


def is_number(value: Any) -> bool:
    """Whether a metric's value is one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_loss(metric: str) -> bool:
    """Whether less is better."""
    return metric.endswith("loss")


def metrics_of(runs: Iterable[RunFacts]) -> list[str]:
    """The names of all numbers in the rows of some runs, but the round's."""
    found = (name for run in runs for row in run.rows for name in row if is_number(row[name]))
    return [name for name in dict.fromkeys(found) if name != "round"]


def records_of(points: Sequence[ComparedPoint]) -> list[dict[str, Any]]:
    """A flat record for each run: its id, its point, and its last and best value of each metric."""
    found = metrics_of(run for point in points for run in point.runs)
    metrics = [name for name in found if name not in BOOKKEEPING]
    return [
        {
            "run_id": run.run_id,
            "status": run.status,
            "seed": run.seed,
            **point.values,
            "rounds": run.rounds,
            **{name: run.last(name) for name in metrics},
            **{f"best_{name}": run.best(name) for name in metrics},
            "seconds": run.seconds,
        }
        for point in points
        for run in point.runs
    ]


def document_of(points: Sequence[ComparedPoint], metric: str = "accuracy") -> dict[str, Any]:
    """The points as JSON, each with its runs and the spread of a metric."""
    return {
        "metric": metric,
        "points": [
            {
                "point": dict(point.values),
                "runs": [_run(run, metric) for run in point.runs],
                metric: _spread(point.spread(metric)),
                f"best_{metric}": _spread(point.spread(metric, best=True)),
            }
            for point in points
        ],
    }


def _run(run: RunFacts, metric: str) -> Mapping[str, Any]:
    return {
        "run_id": run.run_id,
        "folder": run.folder,
        "status": run.status,
        "seed": run.seed,
        "rounds": run.rounds,
        metric: _finite(run.last(metric)),
        f"best_{metric}": run.best(metric),
        "seconds": run.seconds,
    }


def _spread(spread: SeedSpread | None) -> Mapping[str, Any] | None:
    if spread is None:
        return None
    return {
        "mean": _finite(spread.mean),
        "half_width": spread.half_width,
        "count": spread.count,
    }


def _finite(value: float | None) -> float | None:
    """None for what JSON cannot say."""
    return value if value is None or math.isfinite(value) else None
