"""What crosses the sites' interfaces in a round, and how much of a slow link a model gets."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.fixture
def link_bytes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that measures, as it is when it is run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("link_bytes")


@pytest.mark.ray
@pytest.mark.parametrize(("clients", "rounds"), [(10, 5), (10_000, 2)])
def test_a_round_costs_a_model_down_and_a_partial_up(
    link_bytes: Any, clients: int, rounds: int
) -> None:
    run = link_bytes.bytes_of_rounds(clients, rounds)
    assert run["parameters"] * link_bytes.MODEL_BYTES > 10_000_000
    assert link_bytes.per_round(run) <= 1.15 * link_bytes.needed(run), run


def test_a_large_model_fills_a_slow_link(link_bytes: Any) -> None:
    """In one of three times at least: a machine that does other work slows the ends of the link."""
    best = dict.fromkeys(("to_site", "from_site"), 0.0)
    for _ in range(3):
        run = link_bytes.through_a_link(100, 200)
        best = {way: max(share, link_bytes.share(run, way)) for way, share in best.items()}
        if min(best.values()) >= 0.85:
            return
    raise AssertionError(best)
