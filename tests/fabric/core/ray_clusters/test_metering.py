"""What is measured of a declared Ray cluster, from its events."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric.core.ray_clusters.metering import (
    BOUNDS_S,
    LONGEST_GAP_S,
    ClusterMeter,
    Durations,
    MeteredCluster,
    MeteredEvent,
    metered,
)

Told = tuple[float, str]
MADE = [(10.5, "machine_starting"), (10.5, "cluster_starting"), (14.0, "cluster_ready")]
DIED = [(50.0, "machine_stopping"), (50.0, "cluster_scaling"), (57.0, "cluster_ready")]


def look(
    *events: Told, revision: int = 1, written_s: float = 10.0, seen: int | None = 1, state: str = ""
) -> MeteredCluster:
    return MeteredCluster(
        revision=revision,
        written_s=written_s,
        seen_revision=seen,
        state=state or "ready",
        events=tuple(MeteredEvent(at_s=at, kind=kind) for at, kind in events),
    )


def after(*looks: MeteredCluster) -> ClusterMeter:
    """The meter after these looks, a second each."""
    meter = None
    for now, each in enumerate(looks):
        meter = metered(meter, each, float(now))
    assert meter is not None
    return meter


def sums(meter: ClusterMeter) -> tuple[list[float], ...]:
    """Count and sum of reaction, ready and heal."""
    return tuple([each.count, each.sum_s] for each in (meter.reaction, meter.ready, meter.heal))


NEW = look(seen=None, state="declared")
NONE = [0, 0.0]


@pytest.mark.parametrize(
    ("looks", "reaction", "ready", "heal"),
    [
        pytest.param([NEW, look(*MADE)], [1, 0.5], [1, 4.0], NONE, id="a new cluster"),
        pytest.param([look(*MADE)], NONE, NONE, NONE, id="history is not measured"),
        pytest.param(
            [NEW, *(look(each, state="starting") for each in MADE)],
            [1, 0.5],
            [1, 4.0],
            NONE,
            id="it does not matter how often one looks",
        ),
        pytest.param([look(), look(*DIED)], NONE, NONE, [1, 7.0], id="a machine dies"),
        pytest.param(
            [look(), look((50.0, "cluster_recovering"), state="recovering")],
            NONE,
            NONE,
            NONE,
            id="what has not healed is not measured",
        ),
        pytest.param(
            [look(), look(revision=2, written_s=20.0, seen=2)],
            NONE,
            NONE,
            NONE,
            id="a change that takes no machine",
        ),
        pytest.param(
            [
                look(),
                look(
                    (20.1, "group_scaled"),
                    (20.2, "machine_starting"),
                    (20.2, "cluster_scaling"),
                    (23.0, "cluster_ready"),
                    revision=2,
                    written_s=20.0,
                    seen=2,
                ),
            ],
            [1, pytest.approx(0.2)],
            [1, 3.0],
            NONE,
            id="a change is no damage, and the autoscaler's word no act",
        ),
        pytest.param(
            [look(), look(*DIED, revision=2, written_s=60.0, seen=1)],
            NONE,
            NONE,
            [1, 7.0],
            id="what healed before a change healed by itself",
        ),
        pytest.param(
            [look(), look((50.0, "cluster_scaling"), (51.0, "cluster_suspended"), *DIED[2:])],
            NONE,
            NONE,
            NONE,
            id="what is suspended does not heal",
        ),
    ],
)
def test_durations(
    looks: list[MeteredCluster], reaction: list[float], ready: list[float], heal: list[float]
) -> None:
    assert sums(after(*looks)) == (reaction, ready, heal)


def test_seconds_of_machines_are_those_of_which_idleness_is_known() -> None:
    seen = MeteredCluster(
        revision=1,
        written_s=0.0,
        seen_revision=1,
        state="ready",
        ready={"small": 3, "large": 1},
        idle={"small": 2},
    )
    meter = metered(metered(None, seen, 100.0), seen, 102.0)
    assert (meter.machine_s, meter.idle_s) == ({"small": 6.0}, {"small": 4.0})
    later = metered(meter, seen, 102.0 + LONGEST_GAP_S + 1)
    assert (later.machine_s, later.idle_s) == (meter.machine_s, meter.idle_s)
    assert metered(later, seen, 90.0).machine_s == meter.machine_s, "the clock was set back"


@given(st.lists(st.floats(-10, 2000)))
def test_each_duration_is_in_one_bucket_that_holds_it(seconds: list[float]) -> None:
    found = Durations()
    for each in seconds:
        found = found.with_one(each)
    for place, bound in enumerate(BOUNDS_S):
        assert sum(found.counts[: place + 1]) == sum(each <= bound for each in seconds)
    assert found.count == len(seconds)
    assert found.sum_s == pytest.approx(sum(max(0.0, each) for each in seconds))
