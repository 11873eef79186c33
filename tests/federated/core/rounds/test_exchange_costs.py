"""What clients exchange between sites: as each two sites derive it, for all sites at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.shares import Share
from fedpilot.federated.core.rounds.exchange_costs import ExchangeCosts, crossing_sizes
from fedpilot.federated.core.state import TensorRole
from fedpilot.federated.core.topology.covers import CrossingSizes, cheapest_cover, remembering
from fedpilot.federated.core.topology.edges import Edges
from fedpilot.mediator.core.assignment.shares import share_of

SIZES = CrossingSizes(state=100, partial=208)


def costs(edges: Edges) -> ExchangeCosts:
    return ExchangeCosts(
        graph=lambda _: edges,
        sizes=SIZES,
        cover=remembering(SIZES),
        steps=1,
        evaluated=lambda _: np.empty(0, np.int64),
    )


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Edges, list[Share]]:
    """Clients with a few hubs among them, some at sites and some nowhere."""
    nodes = draw(st.integers(2, 30))
    ends = st.tuples(st.integers(0, nodes - 1), st.integers(0, min(3, nodes - 1)))
    others = st.tuples(*[st.integers(0, nodes - 1)] * 2)
    pairs = draw(st.lists(st.one_of(ends, others), max_size=120))
    edges = Edges.of(nodes, *np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
    places = np.array(draw(st.lists(st.integers(0, 3), min_size=nodes, max_size=nodes)))
    return edges, [share_of(np.flatnonzero(places == place)) for place in range(3)]


@given(graphs(), st.data())
def test_it_is_what_each_two_sites_find_by_themselves(
    given_: tuple[Edges, list[Share]], data: st.DataObject
) -> None:
    edges, shares = given_
    absent = np.array(sorted(data.draw(st.sets(st.integers(0, edges.nodes - 1)))), dtype=np.int64)
    older = data.draw(st.sets(st.integers(0, 2)))
    found = costs(edges).crossings(
        1, dict(zip("abc", shares, strict=True)), absent, ["abc"[site] for site in older]
    )
    gone = np.isin(np.arange(edges.nodes), absent)
    for one in range(3):
        for other in set(range(3)) - {one}:
            of, to = (
                np.isin(ends, [client for part in shares[site] for client in part])
                for ends, site in ((edges.sources, one), (edges.receivers, other))
            )
            both = of & to
            if {one, other} & older:
                states = len(np.unique(edges.sources[both]))
                assert (found.states[one, other], found.sums[one, other]) == (states, 0)
                continue
            both &= ~gone[edges.sources] & ~gone[edges.receivers]
            cover = cheapest_cover(edges.sources[both], edges.receivers[both], SIZES)
            assert found.states[one, other] == len(cover.states)
            assert found.sums[one, other] == len(cover.sums)
    assert np.trace(found.states) == np.trace(found.sums) == 0


def test_a_step_moves_these_bytes_and_the_headers_of_its_orders() -> None:
    """Five clients give to one, who gives back."""
    edges = Edges.undirected(6, [(0, other) for other in range(1, 6)])
    shares = {"hub": (range(1),), "others": (range(1, 6),)}
    moved = costs(edges).of_step(1, shares, headers=7)
    around = 7 * 3
    assert (moved["hub"].to_site, moved["hub"].from_site) == (208 + around, 100 + around)
    assert (moved["others"].to_site, moved["others"].from_site) == (100 + around, 208 + around)
    moved = costs(edges).of_step(1, shares, absent=np.array([1, 2, 3]))
    assert (moved["hub"].to_site, moved["hub"].from_site) == (200, 100)
    moved = costs(edges).of_step(1, shares, absent=np.array([1, 2, 3]), older=["hub"])
    assert (moved["hub"].to_site, moved["hub"].from_site) == (500, 100)


def test_a_sum_has_eight_bytes_a_number_a_size_for_each_tensor_and_the_counters() -> None:
    initial = {
        "w": np.zeros((3, 4), np.float32),
        "b": np.zeros((), np.float16),
        "seen": np.zeros(2, np.int64),
        "mask": np.zeros(9, np.float32),
    }
    roles = {
        "w": TensorRole.TRAINED,
        "b": TensorRole.STATISTIC,
        "seen": TensorRole.COUNTER,
        "mask": TensorRole.CONSTANT,
    }
    assert crossing_sizes(initial, roles, pushes=False) == CrossingSizes(66, 8 * (13 + 2) + 16)
    assert crossing_sizes(initial, roles, pushes=True) == CrossingSizes(74, 8 * (13 + 2) + 24)
