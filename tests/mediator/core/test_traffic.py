"""Every byte is booked once, under its round, site, direction and purpose."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fedpilot.mediator import TrafficLedger
from fedpilot.mediator.core.traffic import Budget, BudgetUse, Direction, Flow, Limit, over_budget

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


# -- budgets --------------------------------------------------------------------------------------

TO_A = Flow(1, "a", Direction.TO_SITE, "training")
FROM_A = Flow(1, "a", Direction.FROM_SITE, "training")
TO_B = Flow(2, "b", Direction.TO_SITE, "training")


@pytest.mark.parametrize(
    ("budget", "asked", "limit"),
    [
        pytest.param(Budget(), {"a": 10**12}, None, id="no budget allows everything"),
        pytest.param(Budget(round_bytes=200), {"a": 50}, None, id="up to the limit is allowed"),
        pytest.param(Budget(round_bytes=200), {"a": 51}, "round_bytes", id="a byte is too many"),
        pytest.param(
            Budget(round_bytes=200),
            {"a": 30, "b": 30},
            "round_bytes",
            id="the sites of a round count together",
        ),
        pytest.param(Budget(run_bytes=250), {"c": 51}, "run_bytes", id="all rounds count"),
        pytest.param(Budget(site_bytes=150), {"a": 1}, "site_bytes", id="both directions count"),
        pytest.param(Budget(site_bytes=150), {"b": 100}, None, id="another site has its own"),
    ],
)
def test_a_budget_is_judged_before_anything_is_sent(
    budget: Budget, asked: dict[str, int], limit: str | None
) -> None:
    use = BudgetUse(budget)
    use.book([(TO_A, 100), (FROM_A, 50), (TO_B, 50)])
    found = use.refuses(1, asked)
    assert (found.name if found else None) == limit


def test_what_is_promised_counts_until_it_is_settled() -> None:
    use = BudgetUse(Budget(round_bytes=100, run_bytes=150, site_bytes=90))
    use.promise("a", 60)
    refused = use.refuses(1, {"a": 31})
    assert refused is not None
    assert (refused.name, refused.span, refused.spent) == ("site_bytes", "site a", 60)
    refused = use.refuses(1, {"b": 41})
    assert refused is not None
    assert refused.name == "round_bytes"
    use.settle()
    use.book([(TO_A, 20)])
    assert use.refuses(1, {"a": 70}) is None


def test_an_earlier_attempt_counts_for_the_run_and_the_site_and_for_no_round() -> None:
    use = BudgetUse(Budget(round_bytes=100, run_bytes=150, site_bytes=150))
    use.book([(TO_A, 100)], earlier=True)
    assert use.refuses(1, {"a": 50}) is None
    refused = use.refuses(1, {"b": 51})
    assert refused is not None
    assert refused.name == "run_bytes"


@pytest.mark.parametrize(
    ("limit", "where"),
    [
        pytest.param("round_bytes", "round 2", id="a round"),
        pytest.param("run_bytes", "the run", id="the run"),
        pytest.param("site_bytes", "site a", id="a site"),
    ],
)
def test_a_refusal_names_the_limit_what_is_spent_and_what_was_asked(limit: str, where: str) -> None:
    use = BudgetUse(Budget(**{limit: 100}))
    use.book([(Flow(2, "a", Direction.TO_SITE, "training"), 60)])
    refused = use.refuses(2, {"a": 41})
    assert refused is not None
    assert over_budget(refused) == (
        f"the traffic budget of {where} is 100 bytes: 60 are spent, and 41 more were wanted; raise "
        f"traffic.{limit}, or send less"
    )


@pytest.mark.parametrize(
    ("budget", "tightest"),
    [
        pytest.param(Budget(), None, id="none"),
        pytest.param(Budget(run_bytes=5), ("run_bytes", 5), id="the only one"),
        pytest.param(
            Budget(round_bytes=9, run_bytes=7, site_bytes=8), ("run_bytes", 7), id="the smallest"
        ),
    ],
)
def test_no_part_of_a_round_exceeds_the_smallest_limit(
    budget: Budget, tightest: tuple[str, int] | None
) -> None:
    assert budget.tightest == tightest
    assert budget.limits_anything == (tightest is not None)


amounts = st.dictionaries(st.sampled_from("ab"), st.integers(0, 100))


@given(
    st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.lists(amounts, max_size=10)
)
def test_who_asks_first_never_spends_more_than_the_budget(
    a_round: int, run: int, site: int, rounds: list[dict[str, int]]
) -> None:
    use = BudgetUse(Budget(round_bytes=a_round, run_bytes=run, site_bytes=site))
    sent: list[tuple[Flow, int]] = []
    for number, asked in enumerate(rounds):
        refused = use.refuses(number, asked)
        if refused is None:
            rows = [(Flow(number, s, Direction.TO_SITE, "training"), n) for s, n in asked.items()]
            use.book(rows)
            sent += rows
        else:
            assert isinstance(refused, Limit)
            assert refused.spent + refused.asked > (refused.allowed or 0)
    assert sum(n for _, n in sent) <= run
    for number in range(len(rounds)):
        assert sum(n for flow, n in sent if flow.round_number == number) <= a_round
    for name in "ab":
        assert sum(n for flow, n in sent if flow.site == name) <= site
