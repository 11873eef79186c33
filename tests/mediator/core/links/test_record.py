"""What is known of a link is measured while that is fresh, and otherwise as declared."""

from __future__ import annotations

import pytest

from fedpilot.mediator.core.links import LinkRecord, LinkSpeed, RoundTrips, in_words
from fedpilot.mediator.core.links.meter import FRESH_S
from fedpilot.mediator.core.links.round_trips import BEATS, LONGEST_S
from fedpilot.mediator.core.traffic import Direction

UP, DOWN = Direction.FROM_SITE, Direction.TO_SITE


def crossed(record: LinkRecord, direction: Direction, began: float, seconds: float) -> None:
    """Ten megabytes."""
    record.set_out(direction, "blob", began)
    record.moved(direction, 10_000_000, began)
    record.arrived("blob", began + seconds)


def test_a_fresh_measurement_wins_over_the_declared_speed() -> None:
    record = LinkRecord(declared=LinkSpeed(up=7e6, down=8e6))
    assert record.known(0.0) == LinkSpeed(up=7e6, down=8e6)
    crossed(record, UP, 100.0, 5.0)
    assert record.known(200.0) == LinkSpeed(up=2e6, up_measured_at=105.0, down=8e6)
    crossed(record, DOWN, 300.0, 10.0)
    both = LinkSpeed(up=2e6, up_measured_at=105.0, down=1e6, down_measured_at=310.0)
    assert record.known(310.0) == both
    assert record.known(106.0 + FRESH_S) == LinkSpeed(up=7e6, down=1e6, down_measured_at=310.0)
    assert record.known(311.0 + FRESH_S) == record.declared


def test_what_crosses_one_way_does_not_delay_the_other() -> None:
    record = LinkRecord()
    record.set_out(DOWN, "order", 0.0)
    record.set_out(UP, "answer", 50.0)
    record.moved(UP, 10_000_000, 52.0)
    record.arrived("answer", 52.0)
    assert record.known(60.0) == LinkSpeed(up=5e6, up_measured_at=52.0)


def test_a_cut_link_is_measured_in_neither_direction() -> None:
    record = LinkRecord()
    for direction in Direction:
        record.set_out(direction, str(direction), 0.0)
        record.moved(direction, 10_000_000, 1.0)
    record.broken()
    for direction in Direction:
        record.arrived(str(direction), 60.0)
    assert record.known(60.0) == LinkSpeed()


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("nan"), float("inf"), LONGEST_S + 1])
def test_an_impossible_round_trip_counts_for_nothing(nonsense: float) -> None:
    record, trips = LinkRecord(), RoundTrips()
    record.round_trip(0.25)
    record.round_trip(nonsense)
    trips.add(nonsense)
    assert record.known(0.0) == LinkSpeed(round_trip_s=0.25)
    assert trips.shortest is None


def test_the_shortest_of_the_latest_round_trips_counts() -> None:
    trips = RoundTrips()
    trips.add(0.1)
    for _ in range(BEATS - 1):
        trips.add(5.0)  # behind a model
    assert trips.shortest == 0.1
    trips.add(4.0)
    assert trips.shortest == 4.0


@pytest.mark.parametrize(
    ("link", "words"),
    [
        pytest.param(
            LinkSpeed(up=12.5e6, down=1e6, down_measured_at=820.0, round_trip_s=0.012),
            "up 12.5 MB/s (declared), down 1 MB/s (measured 3 min ago), round trip 12 ms",
            id="all figures",
        ),
        pytest.param(LinkSpeed(down=1e6), "up –, down 1 MB/s (declared)", id="one direction"),
        pytest.param(LinkSpeed(round_trip_s=2.0), "round trip 2 s", id="no speed"),
        pytest.param(
            LinkSpeed(up=1e6, up_measured_at=2000.0, down=1e6, down_measured_at=999.7),
            "up 1 MB/s (measured 0 s ago), down 1 MB/s (measured 0 s ago)",
            id="by a clock that is ahead",
        ),
    ],
)
def test_a_link_says_where_its_figures_come_from(link: LinkSpeed, words: str) -> None:
    assert in_words(link, 1000.0) == words
