"""What an earlier run measured in a round, and how a manifest sets it beside the plan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.planning.measured import compared, link_of, measured, pace_of
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
