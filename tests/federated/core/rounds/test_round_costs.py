"""What a round moves over the boundaries of sites is known before, and so is what fits a budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.algorithm import Needs
from fedpilot.federated.core.rounds.round_costs import Costs, Judges, fitting
from fedpilot.federated.core.state import Roles, State, TensorRole
from fedpilot.mediator.core.traffic import Budget, Volume

MODEL: State = {
    "weight": np.zeros((3, 4), dtype=np.float32),
    "half": np.zeros(5, dtype=np.float16),
    "mask": np.zeros(7, dtype=np.bool_),
    "steps": np.zeros((), dtype=np.int64),
}
ROLES: Roles = {
    "weight": TensorRole.TRAINED,
    "half": TensorRole.STATISTIC,
    "mask": TensorRole.CONSTANT,
    "steps": TensorRole.COUNTER,
}
BYTES = 3 * 4 * 4 + 5 * 2 + 7 + 8


def test_a_sum_has_eight_bytes_a_number_and_the_counters() -> None:
    costs = Costs.of(MODEL, ROLES, Needs.SUM)
    assert costs == Costs(model=BYTES, answer=8 * (12 + 5) + 8)
    assert costs.at_least == BYTES + 8 * 17 + 8


def test_an_algorithm_that_needs_every_update_costs_by_the_client() -> None:
    costs = Costs.of(MODEL, ROLES, Needs.EVERY_UPDATE)
    assert costs == Costs(model=BYTES, answer=8, update=4 * (12 + 5))
    order = costs.of_order(with_model=False, clients=9)
    assert order == Volume(to_site=0, from_site=8 + 9 * 68)


def test_headers_count_where_bytes_are_those_of_the_wire() -> None:
    wire, plain = (Costs.of(MODEL, ROLES, Needs.SUM, on_the_wire=w) for w in (True, False))
    assert wire.headers > plain.headers == 0
    assert wire.of_order(with_model=False, clients=None).total == 2 * wire.headers


COSTS = Costs(model=10, answer=20)
TWO = {"a": 5, "b": 5}


@pytest.mark.parametrize(
    ("having", "judges", "expected"),
    [
        pytest.param((), Judges.NOBODY, {"a": (10, 20), "b": (10, 20)}, id="a model to each"),
        pytest.param(("a",), Judges.NOBODY, {"a": (0, 20), "b": (10, 20)}, id="but who has it"),
        pytest.param((), Judges.ONE, {"a": (20, 20), "b": (10, 20)}, id="the next one to a judge"),
        pytest.param(("a",), Judges.ALL, {"a": (10, 20), "b": (20, 20)}, id="all judge"),
    ],
)
def test_what_a_round_costs(
    having: tuple[str, ...], judges: Judges, expected: dict[str, tuple[int, int]]
) -> None:
    found = COSTS.of_round(TWO, having=having, judges=judges)
    assert {site: (each.to_site, each.from_site) for site, each in found.items()} == expected


def test_a_site_without_clients_costs_what_it_judges() -> None:
    found = COSTS.of_round({"a": 0, "b": 3}, having=(), judges=Judges.ONE)
    assert found == {"a": Volume(to_site=10), "b": Volume(to_site=10, from_site=20)}


@pytest.mark.parametrize(
    ("budget", "fits"),
    [
        pytest.param(Budget(), 4, id="no limit"),
        pytest.param(Budget(round_bytes=69), 0, id="less than the first round, with its judging"),
        pytest.param(Budget(round_bytes=70), 4, id="later rounds cost less"),
        pytest.param(Budget(run_bytes=70 + 60 + 59), 2, id="all rounds together"),
        pytest.param(Budget(run_bytes=70 + 60 + 60), 3, id="to the byte"),
        pytest.param(Budget(site_bytes=40 + 30 + 29), 2, id="the site that judges is first"),
    ],
)
def test_how_many_rounds_fit(budget: Budget, fits: int) -> None:
    assert fitting(COSTS, TWO, budget, 4, lambda _: Judges.ONE) == fits


@given(
    st.integers(0, 2000),
    st.integers(1, 4),
    st.lists(st.sampled_from(Judges), min_size=6, max_size=6),
)
def test_as_many_rounds_fit_as_cost_no_more_than_the_budget(
    limit: int, sites: int, judges: list[Judges]
) -> None:
    clients = {f"site {number}": 1 for number in range(sites)}
    fits = fitting(COSTS, clients, Budget(run_bytes=limit), 6, lambda n: judges[n - 1])
    spent, having = 0, 0
    for number in range(1, fits + 2):
        judged = {Judges.NOBODY: 0, Judges.ONE: 1, Judges.ALL: sites}[judges[min(number, 6) - 1]]
        cost = (sites - having) * 10 + sites * 20 + judged * 10
        if number <= fits:
            spent, having = spent + cost, judged
    assert spent <= limit
    assert fits == 6 or spent + cost > limit
