"""What the end of a task costs the manager does not depend on how many others wait."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
FEW, MANY = 200, 10_000
ENDS, BLOCKS = 20, 5
AT_MOST = 3.0
"""Times the cost with few: the benchmark measures it closer; to go through them all is 50 times."""


def costs(desks: list[Callable[[], None]]) -> list[float]:
    """CPU seconds of so many ends at each desk, by turns; the quietest turn counts."""
    found: list[list[float]] = [[] for _ in desks]
    for _, (end, times) in itertools.product(range(BLOCKS), zip(desks, found, strict=True)):
        started = time.thread_time()
        for _ in range(ENDS):
            end()
        times.append(time.thread_time() - started)
    return [min(times) for times in found]


@pytest.mark.parametrize("kinds", [1, 1_000])
def test_an_end_costs_the_same_with_few_and_with_many_waiting(
    kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    desk = importlib.import_module("clusters.tasks").desk
    few, many = costs([desk(FEW, kinds=kinds), desk(MANY, kinds=kinds)])
    assert many < AT_MOST * few
