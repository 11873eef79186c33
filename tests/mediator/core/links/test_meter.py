"""The blobs that cross a link show its speed, even if a few of them are delayed."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fedpilot.mediator.core.links.meter import FRESH_S, KEPT, LARGE, LEAST, SPAN_S, LinkMeter

MEGABYTE = 1_000_000


def crossed(meter: LinkMeter, began: float, nbytes: int, seconds: float) -> None:
    """One blob after the other crosses."""
    meter.set_out("blob", began)
    meter.moved(nbytes, began + seconds / 2)
    meter.arrived("blob", began + seconds)


@pytest.mark.parametrize(
    ("nbytes", "seconds", "speed"),
    [
        pytest.param(10 * MEGABYTE, 2.0, 5e6, id="many bytes in some seconds"),
        pytest.param(LARGE, 0.01, 100 * LARGE, id="many bytes in a moment"),
        pytest.param(LEAST, 2.0, LEAST / 2, id="a small model that takes seconds"),
        pytest.param(MEGABYTE, 0.2, None, id="few bytes in a moment tell of the machines"),
        pytest.param(LEAST - 1, 60.0, None, id="hardly any bytes tell of a site that is busy"),
        pytest.param(0, 60.0, None, id="a site that has the blob already"),
    ],
)
def test_a_blob_that_crosses(nbytes: int, seconds: float, speed: float | None) -> None:
    meter = LinkMeter()
    crossed(meter, 100.0, nbytes, seconds)
    found = meter.speed(200.0)
    assert found == (None if speed is None else (pytest.approx(speed), 100.0 + seconds))


def test_time_counts_once_for_blobs_that_share_the_link() -> None:
    meter = LinkMeter()
    meter.set_out("one", 0.0)
    meter.set_out("other", 1.0)
    meter.set_out("other", 3.0)  # it is sent again
    for now in (2.0, 4.0):
        meter.moved(4 * MEGABYTE, now)
    meter.arrived("one", 5.0)
    meter.moved(8 * MEGABYTE, 7.0)
    meter.arrived("other", 8.0)
    assert meter.speed(8.0) == (2 * MEGABYTE, 8.0)


def test_time_without_a_blob_does_not_count() -> None:
    meter = LinkMeter()
    crossed(meter, 0.0, 10 * MEGABYTE, 10.0)
    meter.moved(MEGABYTE, 50.0)  # of a blob that nobody waits for
    crossed(meter, 100.0, 10 * MEGABYTE, 10.0)
    assert meter.speed(110.0) == (MEGABYTE, 110.0)


def test_a_long_transfer_is_measured_while_it_goes_on() -> None:
    meter = LinkMeter()
    meter.set_out("blob", 0.0)
    for now in range(1, int(SPAN_S) + 1):
        meter.moved(MEGABYTE, float(now))
    assert meter.speed(SPAN_S) == (MEGABYTE, SPAN_S)


def test_a_cut_link_leaves_out_what_was_under_way() -> None:
    meter = LinkMeter()
    meter.set_out("blob", 0.0)
    meter.moved(10 * MEGABYTE, 1.0)
    meter.broken()
    meter.arrived("blob", 90.0)
    assert meter.speed(90.0) is None
    crossed(meter, 100.0, 10 * MEGABYTE, 1.0)
    assert meter.speed(101.0) == (10 * MEGABYTE, 101.0)


def test_old_spans_count_no_more() -> None:
    meter = LinkMeter()
    crossed(meter, 0.0, 10 * MEGABYTE, 1.0)
    assert meter.speed(1.0 + FRESH_S) == (10 * MEGABYTE, 1.0)
    assert meter.speed(2.0 + FRESH_S) is None
    crossed(meter, 2.0 + FRESH_S, 10 * MEGABYTE, 5.0)
    assert meter.speed(10.0 + FRESH_S) == (2 * MEGABYTE, 7.0 + FRESH_S)


def test_a_link_that_changes_is_found_so_before_long() -> None:
    meter = LinkMeter()
    for number in range(100):
        crossed(meter, 100.0 * number, 10 * MEGABYTE, 1.0)
    for number in range(KEPT // 2 + 1):
        crossed(meter, 10_000.0 + 100 * number, 10 * MEGABYTE, 10.0)
    found = meter.speed(20_000.0)
    assert found is not None
    assert found[0] == MEGABYTE


@given(delays=st.lists(st.floats(0, 100), min_size=KEPT, max_size=KEPT))
def test_delays_of_fewer_than_half_of_the_bytes_change_nothing(delays: list[float]) -> None:
    meter = LinkMeter()
    for number, delay in enumerate(delays):
        late = delay if number % 2 else 0.0
        crossed(meter, 1000.0 * number, 10 * MEGABYTE, 1.0 + late)
    found = meter.speed(20_000.0)
    assert found is not None
    assert found[0] == pytest.approx(10 * MEGABYTE)
