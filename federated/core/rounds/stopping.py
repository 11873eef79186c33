"""Decides from past evaluations which round is the best, and whether the run ends early."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The evaluations so far; `after` gives the next state."""

    metric: Literal["accuracy", "loss"]
    patience: int | None = None
    min_delta: float = 0.0
    target: float | None = None
    best: float = math.nan
    best_round: int = 0
    """0 before any evaluation."""
    significant: float = math.nan
    """The value that the next must beat by `min_delta` to reset the patience."""
    waited: int = 0
    """Evaluations since the last improvement of at least `min_delta`."""

    def after(self, round_number: int, value: float) -> Self:
        """Add one evaluation."""
        best, best_round = self.best, self.best_round
        if self._beats(value, best, 0.0):
            best, best_round = value, round_number
        if self._beats(value, self.significant, self.min_delta):
            return replace(self, best=best, best_round=best_round, significant=value, waited=0)
        return replace(self, best=best, best_round=best_round, waited=self.waited + 1)

    def _beats(self, value: float, other: float, by: float) -> bool:
        if math.isnan(value):
            return False
        if math.isnan(other):
            return True
        return value > other + by if self.metric == "accuracy" else value < other - by

    def stop_reason(self) -> str | None:
        """Why the run should end now; None to continue."""
        if self.target is not None and self.best_round and self._reached(self.target):
            return f"{self.metric} reached the target of {self.target:g}"
        if self.patience is not None and self.waited >= self.patience:
            return (
                f"{self.metric} did not improve in {self.waited} evaluations "
                f"(best {self.best:.4f} in round {self.best_round})"
            )
        return None

    def _reached(self, target: float) -> bool:
        return self.best >= target if self.metric == "accuracy" else self.best <= target
