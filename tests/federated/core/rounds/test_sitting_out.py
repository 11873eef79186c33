"""Which round left each client's model, by the records of the clients that counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.rounds.sitting_out import late_taken, late_told, left_by
from fedpilot.federated.errors import FederatedError

CLIENTS = 5
records = st.lists(
    st.none() | st.lists(st.booleans(), min_size=CLIENTS, max_size=CLIENTS), max_size=8
)


@given(records)
def test_each_client_continues_from_its_last_round_that_counted(
    rounds: list[list[bool] | None],
) -> None:
    masks = [None if each is None else np.array(each) for each in rounds]
    found = left_by(len(rounds) + 1, CLIENTS, lambda number: masks[number - 1])
    for client in range(CLIENTS):
        took_part = [n for n, mask in enumerate(masks, 1) if mask is None or mask[client]]
        assert found[client] == max(took_part, default=0)


@given(records, st.permutations(range(CLIENTS)))
def test_a_site_reads_in_its_orders_what_the_coordinator_knows(
    rounds: list[list[bool] | None], clients: list[int]
) -> None:
    masks = [None if each is None else np.array(each) for each in rounds]
    last = left_by(len(rounds) + 1, CLIENTS, lambda number: masks[number - 1])
    told = late_told(last, (range(CLIENTS),), len(rounds))
    assert late_taken(told, np.array(clients), len(rounds)).tolist() == last[clients].tolist()


def test_an_order_names_the_late_clients_of_its_own_share_alone() -> None:
    last = np.array([2, 0, 3, 0, 2])
    assert late_told(last, (range(3),), 3) == [[0, [[1, 2, 1]]], [2, [[0, 1, 1]]]]


@pytest.mark.parametrize(
    "values", [3, [3], [["1", []]], [[3, []]], [[-1, []]], [[0, "all"]]], ids=str
)
def test_any_other_list_is_refused(values: Any) -> None:
    with pytest.raises(FederatedError, match=r"sat out|share"):
        late_taken(values, np.arange(3), 3)
