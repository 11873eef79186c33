"""A round whose transfers fill a site's link for longer than the site may be silent."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"

pytestmark = [pytest.mark.soak, pytest.mark.ray, pytest.mark.timeout(400)]


def test_a_site_behind_a_saturated_link_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    link_bytes: Any = importlib.import_module("mediation.link_bytes")
    run = link_bytes.rounds_over(1, rounds=1, width=620, sites=("oslo",))  # 25 s up
    assert run["same"], "another model than over a fast link"
    assert not run["given_up"]
    (first, *_) = run["slow_links"]
    assert first["site"] == "oslo"
    assert first["seconds"] > 10
    assert link_bytes.over_bandwidth(run) <= 1.6, run
