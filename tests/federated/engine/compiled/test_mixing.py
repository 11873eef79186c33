"""A mixture is the exact sum of its terms, rounded once at the end, in any order."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.federated.core.state import Array
from fedpilot.federated.core.topology.edges import Edges
from fedpilot.federated.core.topology.graphs import GraphOptions, TopologyName, topology
from fedpilot.federated.core.topology.mixing import (
    PUSH_SUM_UNIT,
    UNIT,
    Mixing,
    metropolis,
    uniform,
)
from fedpilot.federated.engine.compiled.mixing import bound, largest, mix
from mixings import columns, row


def mixed(rows: Array, mixing: Mixing, exponent: int = 32, reference: Array | None = None) -> Array:
    into, reference = np.full_like(rows, np.nan), around(rows, reference)
    most = bound(largest(rows, reference), mixing, exponent)
    mix(rows, reference, mixing, exponent, most, into)
    return into


def around(rows: Array, reference: Array | None = None) -> Array:
    """What moves are measured from: 0 unless given."""
    return np.zeros(rows.shape[1], rows.dtype) if reference is None else reference


def exactly(rows: Array, mixing: Mixing, exponent: int, reference: Array) -> Array:
    """The same by fractions of whole numbers, a number at a time."""
    found = np.empty_like(rows)
    for node in range(mixing.nodes):
        for at in range(rows.shape[1]):
            units = sum(
                weight * round(Fraction(float(rows[source, at] - reference[at])) * 2**exponent)
                for source, weight in row(mixing, node).items()
            )
            found[node, at] = float(reference[at]) + float(units) * 2.0**-exponent / UNIT
    return found


@settings(max_examples=settings().max_examples // 3)
@given(
    st.integers(1, 8),
    st.integers(0, 30),
    st.integers(-20, 30),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 1000),
)
def test_it_is_the_exact_sum(nodes: int, width: int, size: int, kind: type, seed: int) -> None:
    """Within float64's integers and beyond them: numbers of any size up to int64's range."""
    random = np.random.default_rng(seed)
    ends = random.integers(0, nodes, size=(2 * nodes, 2))
    mixing = metropolis(Edges.undirected(nodes, ends))
    rows = (random.normal(size=(nodes, width)) * 2.0**size).astype(kind)
    reference = (random.normal(size=width) * 2.0**size).astype(kind)
    exponent = 10 if size > 10 else 32
    found = mixed(rows, mixing, exponent, reference)
    assert found.tobytes() == exactly(rows, mixing, exponent, reference).tobytes()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [32, -40])
def test_what_has_not_moved_stays_as_it_is_on_any_grid(kind: type, exponent: int) -> None:
    reference = np.random.default_rng(1).normal(size=2500).astype(kind) * kind(1e-12)
    rows = np.tile(reference, (7, 1))
    mixing = metropolis(topology(TopologyName.RING, 7, GraphOptions(), 0).of_round(1))
    assert mixed(rows, mixing, exponent, reference).tobytes() == rows.tobytes()


def test_the_mean_stays_to_the_rounding_of_the_type() -> None:
    rows = np.random.default_rng(1).normal(size=(9, 5000))
    mixing = metropolis(topology(TopologyName.COMPLETE, 9, GraphOptions(), 0).of_round(1))
    assert mixed(rows, mixing).mean(axis=0) == pytest.approx(rows.mean(axis=0), abs=2.0**-32)


def test_rows_of_a_larger_array_can_be_mixed_where_they_lie() -> None:
    wide = np.random.default_rng(1).normal(size=(5, 3000)).astype(np.float32)
    mixing = metropolis(topology(TopologyName.RING, 5, GraphOptions(), 0).of_round(1))
    part = np.ascontiguousarray(wide[:, 700:2700])
    assert mixed(wide[:, 700:2700], mixing).tobytes() == mixed(part, mixing).tobytes()


def test_what_leaves_the_range_is_known_before() -> None:
    mixing = metropolis(topology(TopologyName.RING, 3, GraphOptions(), 0).of_round(1))
    rows = np.full((3, 2), 2.0**15)
    most = bound(largest(rows, around(rows)), mixing, 32)
    assert most == 1 << (15 + 32 + 16)
    with pytest.raises(OverflowError):
        mix(rows, around(rows), mixing, 32, most, np.empty_like(rows))
    assert mixed(rows, mixing, 24).tolist() == rows.tolist()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_state_that_is_not_finite_is_seen(odd: float) -> None:
    rows = np.ones((3, 4), dtype=np.float32)
    rows[1, 2] = odd
    assert np.isfinite(largest(rows, around(rows))).tolist() == [True, False, True]


def test_nobody_takes_from_a_node_that_is_absent() -> None:
    mixing = metropolis(topology(TopologyName.RING, 5, GraphOptions(), 0).of_round(1))
    left = mixing.without(np.array([2]))
    assert row(left, 2) == {2: UNIT}
    assert list(row(left, 1)) == [0, 1]
    assert row(left, 1)[1] == row(mixing, 1)[1] + row(mixing, 1)[2]
    assert row(left, 4) == row(mixing, 4)
    assert columns(left) == [UNIT] * 5


@given(st.integers(1, 3000), st.sampled_from([np.float32, np.float64]), st.integers(0, 99))
def test_the_largest_move_is_found_wherever_it_is(width: int, kind: type, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, reference = (random.normal(size=shape).astype(kind) for shape in ((3, width), width))
    assert largest(rows, reference).tolist() == np.abs(rows - reference).max(axis=1).tolist()


def test_whether_a_sum_leaves_its_range_does_not_depend_on_the_sites() -> None:
    """A hub of 12 has weight 4.5, and at the end of a tail of 6 a node moves far."""
    tail = [(0, 13), *((node, node + 1) for node in range(13, 18))]
    edges = Edges.undirected(19, [*((0, leaf) for leaf in range(1, 13)), *tail])
    shares, weights = uniform(edges), np.full(19, PUSH_SUM_UNIT)
    for _ in range(5):
        weights = shares.split(weights).totals
    split, sizes = shares.split(weights), np.full(19, 0.05)
    sizes[17] = 0.8
    whole = bound(sizes, split, 36)
    parts = []
    for nodes in (np.arange(13), np.arange(13, 19)):
        mixing, others = split.among(nodes)
        parts.append(bound(sizes[np.concatenate([nodes, others])], mixing, 36))
    assert max(parts) == whole
