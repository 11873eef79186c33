"""Finds where two runs diverge: differences before they began, and the first round that differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .run_check import Record, environment_differences, exact_differences


class Verdict(StrEnum):
    """Results of comparing two runs."""

    SAME = "same"
    """Both have the same rounds, with the same models and metrics."""
    SAME_SO_FAR = "same_so_far"
    """One has more rounds; those that both have are the same."""
    OTHER_METRICS = "other_metrics"
    """The models are the same, their evaluations differ."""
    PARTED = "parted"
    """The models differ from some round on."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The differences between the records of two runs."""

    verdict: Verdict
    rounds: tuple[int, int]
    same_until: int
    """The last round up to which all models are the same; -1 if the initial models differ."""
    round_number: int | None = None
    """The first round whose model, evaluation or missing digest decides; 0 is the initial model."""
    metrics: Mapping[str, tuple[Any, Any]]
    """Fields that differ in that round, or in the first round with such a difference."""
    keys: tuple[str, ...]
    """Deciding config keys that differ, as `key: one -> other`."""
    code_differs: bool
    data_differs: bool
    same_identity: bool
    environment: Mapping[str, tuple[str, str]]

    @property
    def agree(self) -> bool:
        """Whether everything that both runs have is the same."""
        return self.verdict in (Verdict.SAME, Verdict.SAME_SO_FAR)

    @property
    def parted(self) -> bool:
        """Whether the models differ from some round on."""
        return self.verdict is Verdict.PARTED


def compare(first: Record, second: Record, keys: tuple[str, ...]) -> Comparison:
    """Compare round by round; `keys` are the deciding config keys that differ."""
    ours, theirs = first.digests(), second.digests()
    rounds = (first.rounds, second.rounds)
    verdict = Verdict.SAME if rounds[0] == rounds[1] else Verdict.SAME_SO_FAR
    same_until, where = -1, None
    metrics: dict[str, tuple[Any, Any]] = {}
    for number in range(min(rounds) + 1):
        if number not in ours or number not in theirs:
            if number == 0:
                continue  # a later round decides
            verdict, where = Verdict.UNKNOWN, number
            break
        found = exact_differences(first.row(number), second.row(number))
        if ours[number] != theirs[number]:
            verdict, where = Verdict.PARTED, number
            metrics = found or metrics
            break
        same_until = number
        if found and not metrics:
            verdict, where, metrics = Verdict.OTHER_METRICS, number, found
    a, b = first.manifest, second.manifest
    return Comparison(
        verdict=verdict,
        rounds=rounds,
        same_until=same_until,
        round_number=where,
        metrics=metrics,
        keys=keys,
        code_differs=a.get("code_digest") != b.get("code_digest"),
        data_differs=a.get("data_digest") != b.get("data_digest"),
        same_identity="identity" in a and a.get("identity") == b.get("identity"),
        environment=environment_differences(a.get("workers", ()), b.get("workers", ())),
    )
