"""What crosses between two sites serves every edge, and has the fewest bytes."""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.topology import covers
from fedpilot.federated.core.topology.covers import (
    Cover,
    CrossingSizes,
    cheapest_cover,
    remembering,
)

Pairs = list[tuple[int, int]]


def cover_of(pairs: Pairs, sizes: CrossingSizes) -> Cover:
    """The cheapest cover of edges (source, target)."""
    return cheapest_cover(*np.array(pairs, dtype=np.int64).reshape(-1, 2).T, sizes)


def least_bytes(pairs: Pairs, sizes: CrossingSizes) -> int:
    """By trying all sets of targets."""
    targets = sorted({target for _, target in pairs})
    tries = []
    for count in range(len(targets) + 1):
        for summed in combinations(targets, count):
            states = {source for source, target in pairs if target not in summed}
            tries.append(len(states) * sizes.state + count * sizes.partial)
    return min(tries)


def check(pairs: Pairs, found: Cover, sizes: CrossingSizes) -> None:
    """Every edge is served once, no sum is empty, and states alone are no smaller."""
    states, sums = found.states.tolist(), found.sums.tolist()
    assert states == sorted(set(states))
    assert sums == sorted(set(sums))
    left = {target for source, target in pairs if source not in states}
    assert left == set(sums)
    assert found.alone == len({source for source, _ in pairs})
    assert found.nbytes(sizes) <= found.alone * sizes.state


edges = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 7)), max_size=60, unique=True)
sizes_ = st.builds(CrossingSizes, st.integers(1, 12), st.integers(1, 30))


@given(edges, sizes_, st.randoms())
def test_it_is_the_cheapest_whatever_the_order_of_the_edges(
    pairs: Pairs, sizes: CrossingSizes, random: Random
) -> None:
    found = cover_of(pairs, sizes)
    check(pairs, found, sizes)
    assert found.nbytes(sizes) == least_bytes(pairs, sizes)
    random.shuffle(pairs)
    again = cover_of(pairs, sizes)
    assert again.states.tolist() == found.states.tolist()
    assert again.sums.tolist() == found.sums.tolist()


@given(edges, sizes_)
def test_without_a_minimum_cut_it_serves_all_edges_and_costs_no_more_than_states(
    pairs: Pairs, sizes: CrossingSizes
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(covers, "FLOW_EDGES", 0)
        check(pairs, cover_of(pairs, sizes), sizes)


@given(edges, edges, sizes_)
def test_edges_that_do_not_hang_together_are_decided_alone(
    one: Pairs, other: Pairs, sizes: CrossingSizes
) -> None:
    apart = [(source + 10, target + 8) for source, target in other]
    both = cover_of(one + apart, sizes)
    first, second = cover_of(one, sizes), cover_of(apart, sizes)
    assert both.states.tolist() == [*first.states, *second.states]
    assert both.sums.tolist() == [*first.sums, *second.sums]


@pytest.mark.parametrize(
    ("sources", "targets", "sums"),
    [
        pytest.param(300, 300, 0, id="as many targets as sources get states"),
        pytest.param(300, 149, 149, id="few targets get sums"),
        pytest.param(300, 151, 0, id="more targets than half of the sources get states"),
        pytest.param(2, 1, 0, id="a sum of two is no smaller"),
        pytest.param(3, 1, 1, id="a sum of three is"),
    ],
)
def test_all_with_all_are_decided_without_a_cut(
    sources: int, targets: int, sums: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covers, "_minimum_cut", None)
    monkeypatch.setattr(covers, "_hubs_first", None)
    sizes = CrossingSizes(state=100, partial=200)
    found = cover_of([(a, b) for a in range(sources) for b in range(targets)], sizes)
    assert len(found.sums) == sums
    assert len(found.states) == (0 if sums else sources)


def test_of_covers_with_equal_bytes_the_one_with_fewer_sums_is_taken() -> None:
    pairs = [(a, b) for a in range(20) for b in range(10)]
    assert len(cover_of(pairs, CrossingSizes(state=100, partial=200)).sums) == 0


def test_a_hub_gets_a_sum_and_its_neighbors_get_its_state() -> None:
    """Sources 0 to 8 give to hub 0, and source 9 to targets 1 to 9."""
    pairs = [(source, 0) for source in range(9)] + [(9, target) for target in range(1, 10)]
    found = cover_of(pairs, CrossingSizes(state=100, partial=208))
    assert (found.states.tolist(), found.sums.tolist()) == ([9], [0])
    assert "1 states and 1 sums instead of 10 states" in found.reason


def test_a_source_whose_state_crosses_anyway_is_in_no_sum() -> None:
    """Source 0 gives to ten targets, and nine others give to target 0 alone."""
    pairs = [(0, target) for target in range(10)] + [(source, 0) for source in range(1, 10)]
    found = cover_of(pairs, CrossingSizes(state=100, partial=208))
    assert (found.states.tolist(), found.sums.tolist()) == ([0], [0])


def test_large_parts_get_sums_for_the_targets_with_the_most_sources() -> None:
    random = np.random.default_rng(2)
    hubs = [(source, int(hub)) for source in range(2000) for hub in random.choice(10, 2, False)]
    rest = [(source, int(random.integers(10, 900))) for source in range(2000, 2900)]
    held = [(int(random.integers(0, 2000)), target) for target in range(10, 900) for _ in range(3)]
    pairs, sizes = sorted({*hubs, *rest, *held}), CrossingSizes(100, 208)
    found = cover_of(pairs, sizes)
    check(pairs, found, sizes)
    assert set(range(10)) <= set(found.sums.tolist())
    assert found.nbytes(sizes) < 0.8 * found.alone * sizes.state
    assert "the most sources" in found.reason


def test_covers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, pairs = CrossingSizes(1, 2), np.array([[0, 1, 2, 3], [9, 9, 9, 9]])
    found = remembering(sizes)
    first = found(*pairs)
    monkeypatch.setattr(covers, "REMEMBERED", 1)
    assert found(*pairs) is first
    assert found(*pairs[::-1]).states.tolist() == [9]
    assert found(*pairs) is not first
    assert found(*pairs).sums.tolist() == [9]
