"""What an earlier run measured, from its rows and its traffic, and how that compares with a plan.

The first round is left out if there are others: workers compile in it, and wait for each other.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeGuard

from fedpilot.mediator.core.links import LinkSpeed

LARGEST = 1e18
"""No amount of bytes or seconds is as large."""
EXCHANGE = "exchange"
"""The purpose of clients' models for neighbors at other sites."""
EVALUATION = "evaluation"
SINGLE = "node"
"""The purpose of orders about single clients, which are no part of a round."""
REPLICA = "replica"
"""The purpose of replicas of clients' states, which are no part of a round either."""
MOVE = "move"
"""The same of states of clients that move to another site."""
TO_SITE, FROM_SITE = "to_site", "from_site"
PACE_ROUNDS = 5
"""The latest rounds that a site's pace is the median of."""
PACE_LEAST = 3
"""With so many of them one slow round alone is not believed."""
PACE_FRESH = timedelta(days=1)
"""A round counts for so long after its end."""
Traffic = Iterable[tuple[int, str, str, str, int]]
"""Rows of traffic.csv: round, site, direction, purpose, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run measured in a round."""

    run: str
    rounds: int
    """That were looked at."""
    seconds: float | None
    """The median."""
    seconds_per_sample: float | None
    """Of one worker, for one pass over the samples."""
    bytes_in: Mapping[str, float]
    """By site: to it, in a round."""
    bytes_out: Mapping[str, float]
    model_bytes: float | None
    """To a site, besides what clients exchange: the mean over the sites."""
    sum_bytes: float | None
    """From a site, besides what clients exchange."""
    links: Mapping[str, LinkSpeed] = field(default_factory=dict)
    like: str = ""
    """How the run's training differed from what is planned; empty if it did not."""


def measured(
    run: str,
    rows: Sequence[Mapping[str, Any]],
    traffic: Traffic,
    *,
    epochs: int,
    sites: Mapping[str, Any] | None = None,
    like: str = "",
) -> Measured:
    """What the rows of metrics.jsonl and of traffic.csv say; `sites` are those of its plan."""
    told = sites if isinstance(sites, Mapping) else {}
    looked_at = _after_the_first(rows)
    numbers = {row["round"] for row in looked_at}
    trained = [
        (row["training_seconds"], row["samples"])
        for row in looked_at
        if _is_amount(row.get("training_seconds")) and _is_amount(row.get("samples"))
    ]
    samples = sum(count for _, count in trained)
    spent = sum(seconds for seconds, count in trained if count)
    whole, base = _bytes_of(traffic, numbers)
    seconds = [row["seconds"] for row in looked_at if _is_amount(row.get("seconds"))]
    pace = spent / samples / epochs if samples and spent else None
    model, answer = ([n for (_, d), n in base.items() if d == way] for way in (TO_SITE, FROM_SITE))
    return Measured(
        run=run,
        rounds=len(looked_at),
        seconds=statistics.median(seconds) if seconds else None,
        seconds_per_sample=pace,
        bytes_in={site: each for (site, way), each in whole.items() if way == TO_SITE},
        bytes_out={site: each for (site, way), each in whole.items() if way == FROM_SITE},
        model_bytes=statistics.fmean(model) if model else None,
        sum_bytes=statistics.fmean(answer) if answer else None,
        links={site: link for site, each in told.items() if (link := link_of(each)) != LinkSpeed()},
        like=like,
    )


def link_of(document: Any) -> LinkSpeed:
    """The link in a site's document; nothing is known of what is missing there, or no amount."""
    return LinkSpeed.from_json(document.get("link") if isinstance(document, Mapping) else None)


def pace_of(document: Any) -> float | None:
    """The pace in a site's document, if it says one."""
    pace = document.get("seconds_per_sample") if isinstance(document, Mapping) else None
    return float(pace) if _is_amount(pace) else None


def site_paces(rows: Sequence[Mapping[str, Any]], now: datetime) -> dict[str, float]:
    """By site, the seconds of a vnode for a client's sample, as the latest rows show it.

    A site that too few of their rounds have measured is left out.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows[-PACE_ROUNDS:]:
        if now - datetime.fromisoformat(row["time"]) <= PACE_FRESH:
            for site, document in row.get("sites", {}).items():
                if pace := pace_of(document):
                    found[site].append(pace)
    return {
        site: statistics.median(paces)
        for site, paces in sorted(found.items())
        if len(paces) >= PACE_LEAST
    }


def compared(plan: Mapping[str, Any], found: Measured) -> dict[str, Any]:
    """A plan's document beside what a run measured, for its manifest."""
    sites = {site["name"]: site for site in plan["sites"]}
    names = sorted({*sites, *found.bytes_in, *found.bytes_out})
    return {
        "rounds": found.rounds,
        "seconds": {"planned": plan["round"]["seconds"], "measured": found.seconds},
        "sites": {
            name: {
                way: {"planned": sites.get(name, {}).get(way), "measured": amounts.get(name)}
                for way, amounts in (
                    ("bytes_in", found.bytes_in),
                    ("bytes_out", found.bytes_out),
                )
            }
            for name in names
        },
    }


def _after_the_first(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    whole = [row for row in rows if type(row.get("round")) is int]
    return [row for row in whole if row["round"] > 1] or whole


def _bytes_of(
    traffic: Traffic, rounds: set[int]
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """By site and direction: the bytes of a round, and those of them that are no exchange."""
    whole: dict[tuple[str, str], int] = defaultdict(int)
    base: dict[tuple[str, str], int] = defaultdict(int)
    for number, site, direction, purpose, nbytes in traffic:
        # A model that came for the evaluation of a round is the one that the next round trains.
        used = number + 1 if purpose == EVALUATION else number
        if used in rounds and purpose not in (SINGLE, REPLICA, MOVE):
            whole[site, direction] += nbytes
            base[site, direction] += nbytes if purpose != EXCHANGE else 0
    count = max(1, len(rounds))
    return (
        {key: total / count for key, total in sorted(whole.items())},
        {key: total / count for key, total in sorted(base.items())},
    )


def _is_amount(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LARGEST
