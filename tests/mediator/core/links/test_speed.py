"""What a site says of its link is taken for what it can be."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.mediator.core.links import LinkSpeed


@pytest.mark.parametrize(
    "value", [10**400, 1e400, float("nan"), 0, -1, True, "fast", None, [1]], ids=repr
)
def test_nonsense_counts_as_not_known(value: Any) -> None:
    assert LinkSpeed.told({"up": value, "down": 5}) == LinkSpeed(down=5.0)


@pytest.mark.parametrize("values", [None, 3, [], "up"], ids=repr)
def test_what_is_no_link_is_not_known(values: Any) -> None:
    assert LinkSpeed.told(values) == LinkSpeed()


def test_what_a_site_says_is_declared_whatever_it_says_of_measurements() -> None:
    assert LinkSpeed.told({"up": 5, "up_measured_at": 7.0}) == LinkSpeed(up=5.0)


@pytest.mark.parametrize(
    "link",
    [
        pytest.param(LinkSpeed(), id="nothing"),
        pytest.param(LinkSpeed(up=1.5, round_trip_s=0.1), id="declared"),
        pytest.param(LinkSpeed(up=1.5, up_measured_at=7.0, down=2.0), id="measured one way"),
    ],
)
def test_a_document_has_all_that_is_known(link: LinkSpeed) -> None:
    assert LinkSpeed.from_json(link.to_json()) == link


def test_a_time_without_a_speed_is_not_known() -> None:
    told = {"up_measured_at": 7.0, "down": 3, "down_measured_at": "noon"}
    assert LinkSpeed.from_json(told) == LinkSpeed(down=3.0)


def test_a_figure_of_another_source_comes_with_its_time() -> None:
    measured = LinkSpeed(down=2.0, down_measured_at=7.0)
    declared = LinkSpeed(up=9.0, down=9.0, round_trip_s=1.0)
    either = LinkSpeed(up=9.0, down=2.0, down_measured_at=7.0, round_trip_s=1.0)
    assert measured.or_else(declared) == either
    assert declared.or_else(measured) == declared


def test_a_round_trip_alone_is_no_speed() -> None:
    assert not LinkSpeed(round_trip_s=1.0).has_speed
    assert LinkSpeed(up=1.0).has_speed
    assert LinkSpeed(down=1.0).has_speed


@pytest.mark.parametrize(
    ("now", "known", "is_news"),
    [
        pytest.param(LinkSpeed(), LinkSpeed(), False, id="nothing is known"),
        pytest.param(LinkSpeed(up=5.0), LinkSpeed(), True, id="a first measurement"),
        pytest.param(LinkSpeed(), LinkSpeed(down=5.0), True, id="it is not known any more"),
        pytest.param(LinkSpeed(up=109.0), LinkSpeed(up=100.0), False, id="a tenth more"),
        pytest.param(LinkSpeed(down=89.0), LinkSpeed(down=100.0), True, id="more than that less"),
        pytest.param(
            LinkSpeed(up=5.0, up_measured_at=9.0, round_trip_s=1.0),
            LinkSpeed(up=5.0, up_measured_at=7.0),
            False,
            id="the same speed later",
        ),
    ],
)
def test_a_speed_is_news_if_it_is_another_one(
    now: LinkSpeed, known: LinkSpeed, is_news: bool
) -> None:
    assert now.is_news_to(known) == is_news
