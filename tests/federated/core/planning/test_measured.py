"""What an earlier run measured in a round, and how a manifest sets it beside the plan."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.planning.measured import (
    compared,
    link_of,
    measured,
    pace_of,
    site_paces,
)
from fedpilot.mediator.core.links import LinkSpeed


def row(number: int, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"round": number, "seconds": seconds, "training_seconds": 0.5, "samples": 100, **more}


def test_a_pace_is_of_one_pass_of_one_worker_and_the_first_round_does_not_count() -> None:
    rows = [row(1, 90.0, training_seconds=60.0), row(2, 1.0), row(3, 2.0), row(4, 9.0)]
    found = measured("r", rows, (), epochs=2)
    assert found.seconds_per_sample == pytest.approx(1.5 / 300 / 2)
    assert (found.seconds, found.rounds) == (2.0, 3)
    assert measured("r", rows[:1], (), epochs=1).seconds == 90.0


TRAFFIC = [
    (number, site, direction, purpose, nbytes)
    for number in (1, 2, 3)
    for site in ("a", "b")
    for direction, purpose, nbytes in (
        ("to_site", "training", 40 if number == 1 else 0),
        ("to_site", "evaluation", 40),
        ("from_site", "training", 80),
        ("to_site", "exchange", 7 if site == "a" else 0),
        ("to_site", "node", 1000),
    )
]


def test_the_bytes_of_a_round_have_one_model_to_a_site_however_it_came() -> None:
    found = measured("r", [row(1), row(2), row(3)], TRAFFIC, epochs=1)
    assert found.bytes_in == {"a": 47, "b": 40}
    assert found.bytes_out == {"a": 80, "b": 80}
    assert (found.model_bytes, found.sum_bytes) == (40, 80)


def test_the_model_of_the_last_evaluation_trains_no_more() -> None:
    """So it is no part of what a round moves, however few rounds there were."""
    trained = [(number, "a", "to_site", "training", 40) for number in (1, 2, 3)]
    evaluated = [*trained, (3, "a", "to_site", "evaluation", 40)]
    rows = [row(1), row(2), row(3)]
    assert measured("r", rows, evaluated, epochs=1).bytes_in == {"a": 40}


def test_rounds_without_training_have_no_pace() -> None:
    rows = [row(1), row(2, training_seconds=0.0, samples=0)]
    found = measured("r", rows, (), epochs=1)
    assert found.seconds_per_sample is None
    assert found.model_bytes is None


def test_a_manifest_sets_what_was_beside_what_was_planned() -> None:
    plan = {
        "round": {"seconds": 0.5},
        "sites": [{"name": "a", "bytes_in": 47, "bytes_out": 81}, {"name": "gone", "bytes_in": 1}],
    }
    found = compared(plan, measured("r", [row(1), row(2), row(3)], TRAFFIC, epochs=1))
    assert found["seconds"] == {"planned": 0.5, "measured": 1.0}
    assert found["sites"]["a"] == {
        "bytes_in": {"planned": 47, "measured": 47},
        "bytes_out": {"planned": 81, "measured": 80},
    }
    assert found["sites"]["b"]["bytes_in"] == {"planned": None, "measured": 40}
    assert found["sites"]["gone"]["bytes_in"] == {"planned": 1, "measured": None}


@pytest.mark.parametrize(
    ("document", "link", "pace"),
    [
        pytest.param({"link": {"up": 5, "down": 2.5}}, LinkSpeed(up=5, down=2.5), None, id="some"),
        pytest.param({"link": {"up": 0, "down": "x"}}, LinkSpeed(), None, id="no amounts"),
        pytest.param({"link": [1]}, LinkSpeed(), None, id="no link"),
        pytest.param({"seconds_per_sample": 0.5}, LinkSpeed(), 0.5, id="a pace"),
        pytest.param({"seconds_per_sample": float("nan")}, LinkSpeed(), None, id="no number"),
        pytest.param(None, LinkSpeed(), None, id="nothing"),
    ],
)
def test_what_is_no_amount_is_not_known(document: Any, link: LinkSpeed, pace: float | None) -> None:
    assert link_of(document) == link
    assert pace_of(document) == pace


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(list(row(1))), anything)), anything)
def test_any_rows_are_read(rows: list[dict[str, Any]], sites: Any) -> None:
    assert measured("r", rows, (), epochs=1, sites=sites).rounds <= len(rows)


# -- sites' own paces ------------------------------------------------------------------------------

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def paced(paces: Mapping[str, Any], hours_ago: float = 0.0) -> dict[str, Any]:
    """A round's row with what it says of each site's pace."""
    sites = {site: {"clients": 3, "seconds_per_sample": pace} for site, pace in paces.items()}
    return {"time": (NOON - timedelta(hours=hours_ago)).isoformat(), "sites": sites}


@pytest.mark.parametrize(
    ("paces", "found"),
    [
        pytest.param([2.0, 2.0, 2.0], {"a": 2.0}, id="three rounds"),
        pytest.param([2.0, 2.0], {}, id="too few rounds"),
        pytest.param([2.0, 90.0, 2.0], {"a": 2.0}, id="a slow round among them"),
        pytest.param([90.0, 2.0, 2.0], {"a": 2.0}, id="a slow first round"),
        pytest.param([2.0, 2.0, 2.0, 9.0, 9.0], {"a": 2.0}, id="slow for less than half of them"),
        pytest.param([2.0, 2.0, 9.0, 9.0, 9.0], {"a": 9.0}, id="slow for more than half of them"),
        pytest.param([2.0] * 9 + [9.0] * 3, {"a": 9.0}, id="only the latest rounds count"),
        pytest.param([None, 2.0, None, 2.0], {}, id="rounds that did not measure it"),
        pytest.param([None, 2.0, 3.0, 2.5, None], {"a": 2.5}, id="some that did not"),
        pytest.param([0.0, -1.0, "x", True, float("nan")], {}, id="what is no pace"),
    ],
)
def test_a_site_s_pace_is_the_median_of_its_latest_rounds(
    paces: list[Any], found: dict[str, float]
) -> None:
    assert site_paces([paced({"a": pace}) for pace in paces], NOON) == found


def test_each_site_has_a_pace_of_its_own() -> None:
    rows = [paced({"b": 3.0, "a": 1.0}), *2 * [paced({"a": 1.0, "b": 3.0, "c": 2.0})]]
    assert site_paces(rows, NOON) == {"a": 1.0, "b": 3.0}


def test_a_pace_that_was_measured_long_ago_is_forgotten() -> None:
    rows = [paced({"a": 2.0}, hours) for hours in (23.0, 22.0, 21.0)]
    assert site_paces(rows, NOON) == {"a": 2.0}
    assert site_paces(rows, NOON + timedelta(hours=2)) == {}


def test_rows_that_say_nothing_of_sites_measure_nothing() -> None:
    assert site_paces([{"time": NOON.isoformat()}, *2 * [paced({"a": 2.0})]], NOON) == {}
