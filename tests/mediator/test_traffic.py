"""Every byte is booked once, under its round, site, direction and purpose."""

from __future__ import annotations

from hypothesis import given, strategies as st

from fedpilot.mediator import TrafficLedger
from fedpilot.mediator.core.traffic import Direction, Flow

flows = st.builds(
    Flow,
    st.integers(0, 3),
    st.sampled_from("ab"),
    st.sampled_from(Direction),
    st.sampled_from(["training", "evaluation"]),
)


def test_bytes_of_the_same_flow_add_up() -> None:
    ledger = TrafficLedger()
    flow = Flow(1, "a", Direction.TO_SITE, "training")
    ledger.book(flow, 10)
    ledger.book(flow, 5)
    ledger.book(Flow(1, "a", Direction.FROM_SITE, "training"), 0)
    assert dict(ledger.rows())[flow] == 15
    assert len(ledger.rows()) == 2


@given(st.lists(st.tuples(flows, st.integers(0, 10**12)), max_size=50), st.integers(0, 50))
def test_no_byte_is_lost_or_told_twice_by_draining(booked: list[tuple[Flow, int]], at: int) -> None:
    ledger = TrafficLedger()
    told = []
    for number, (flow, nbytes) in enumerate(booked):
        if number == at:
            told += ledger.drain()
            assert ledger.rows() == []
        ledger.book(flow, nbytes)
    told += ledger.drain()
    assert sum(n for _, n in told) == sum(n for _, n in booked)
    assert {flow for flow, _ in told} == {flow for flow, _ in booked}
    assert ledger.drain() == []


@given(st.lists(st.tuples(flows, st.integers(0, 10**12)), max_size=50))
def test_rows_are_sorted_whatever_the_order_of_booking(booked: list[tuple[Flow, int]]) -> None:
    forwards, backwards = TrafficLedger(), TrafficLedger()
    for flow, nbytes in booked:
        forwards.book(flow, nbytes)
    for flow, nbytes in reversed(booked):
        backwards.book(flow, nbytes)
    assert forwards.rows() == backwards.rows() == sorted(forwards.rows())
