"""Shares in orders: as ranges or as a bitmap, and which clients they hold."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.shares import (
    LISTED,
    MOST_CLIENTS,
    held,
    part_name,
    taken,
    told,
)
from fedpilot.federated.errors import FederatedError
from fedpilot.mediator import Share, members, share_of

SHARES = st.one_of(
    st.sets(st.integers(0, 300)).map(lambda some: share_of(np.array(sorted(some), dtype=np.int64))),
    st.builds(lambda start, count, step: (range(start, start + count * step, step),),
              st.integers(0, 40), st.integers(0, 30), st.integers(1, 7)),
)  # fmt: skip


@given(SHARES, st.sets(st.integers(0, 400)))
def test_a_share_holds_its_members(share: Share, asked: set[int]) -> None:
    clients = np.array(sorted(asked), dtype=np.int64)
    assert clients[held(clients, share)].tolist() == sorted(asked & set(members(share).tolist()))


@given(SHARES)
def test_a_share_that_was_told_is_the_same(share: Share) -> None:
    again = taken(json.loads(json.dumps(told(share))))
    assert members(again).tolist() == members(share).tolist()
    assert part_name(again) == part_name(share)


def test_a_share_of_many_ranges_is_a_short_text() -> None:
    some = np.flatnonzero(np.random.default_rng(0).integers(0, 8, 100_000) == 0)
    share = share_of(some)
    assert len(share) > 10_000
    assert len(json.dumps(told(share))) < 20_000
    assert taken(told(share)) == share


def test_one_of_a_few_ranges_is_listed() -> None:
    share = tuple(range(each, each + 1) for each in range(0, 2 * LISTED, 2))
    assert told(share) == [[each.start, each.stop, 1] for each in share]
    assert isinstance(told((*share, range(1_000, 1_001))), dict)


def test_clients_beyond_a_bitmap_are_listed() -> None:
    share = tuple(range(each, each + 1) for each in range(MOST_CLIENTS, MOST_CLIENTS + 200, 2))
    assert taken(told(share)) == share


BITMAP = told(share_of(np.arange(0, 500, 2)))


@pytest.mark.parametrize(
    "values",
    [
        pytest.param("all", id="a text"),
        pytest.param([[0, 1]], id="a range of two numbers"),
        pytest.param([[0, 1, 0]], id="a step of 0"),
        pytest.param([[-1, 1, 1]], id="a negative client"),
        pytest.param({}, id="an empty bitmap"),
        pytest.param({**BITMAP, "of": True}, id="a truth value as a size"),
        pytest.param({**BITMAP, "of": 0}, id="a bitmap without clients"),
        pytest.param({**BITMAP, "of": MOST_CLIENTS + 1}, id="a bitmap that is too large"),
        pytest.param({**BITMAP, "of": 64}, id="a bitmap of another size"),
        pytest.param({**BITMAP, "clients": [1]}, id="clients that are no text"),
        pytest.param({**BITMAP, "clients": "??"}, id="a text that is no bitmap"),
    ],
)
def test_what_is_no_share_is_refused(values: object) -> None:
    with pytest.raises(FederatedError, match=r"share|bitmap"):
        taken(values)
