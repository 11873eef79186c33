"""Clients with similar labels are at one site, within its part of the vnodes."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.mediator.core.assignment import (
    Assignment,
    AssignmentProblem,
    NotAssignable,
    SiteCapacity,
    assign,
)
from fedpilot.mediator.core.assignment.cuts.graph_cuts import in_order
from fedpilot.mediator.core.assignment.cuts.label_cells import (
    CLOSEST,
    NEAREST,
    Cells,
    Shares,
    label_shares,
    sums_of,
)
from fedpilot.mediator.core.assignment.cuts.label_sites import LabelSites
from fedpilot.mediator.core.assignment.proportions import proportional
from fedpilot.mediator.core.assignment.room import BALANCE, Room
from fedpilot.mediator.core.assignment.shares import members

Numbers = npt.NDArray[np.int64]
THREE = [SiteCapacity("a", 1), SiteCapacity("b", 2), SiteCapacity("c", 3)]
CELLS = "fedpilot.mediator.core.assignment.cuts.label_cells.MOST_CELLS"


def places(assignment: Assignment) -> Numbers:
    found = np.full(assignment.population, -1)
    for number, share in enumerate(assignment.shares.values()):
        found[members(share)] = number
    return found


def planted(goal: Numbers, classes: int = 10, seed: int = 3) -> tuple[Numbers, Numbers]:
    """Blocks of clients of these sizes, in a random order; the labels of each are its own."""
    random = np.random.default_rng(seed)
    blocks = random.permutation(in_order(goal))
    mixes = random.dirichlet(np.full(classes, 0.1), len(goal))
    return blocks, np.array([random.multinomial(40, mixes[block]) for block in blocks])


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[SiteCapacity], Numbers, dict[str, list[range]]]:
    clients, classes = draw(st.integers(1, 60)), draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))
    there = [SiteCapacity(name, draw(st.integers(0, 20))) for name in names]
    counts = st.lists(st.integers(0, 9), min_size=classes, max_size=classes)
    kinds = draw(st.lists(counts, min_size=1, max_size=8))
    which = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=clients, max_size=clients))
    cuts = sorted(draw(st.lists(st.integers(0, clients), max_size=4)))
    pinned: dict[str, list[range]] = {}
    for start, stop in zip(cuts[::2], cuts[1::2], strict=False):
        pinned.setdefault(draw(st.sampled_from([*names, "away"])), []).append(range(start, stop))
    return there, np.array(kinds, dtype=np.int64)[which], pinned


@settings(max_examples=settings().max_examples // 3)
@given(problems(), st.sampled_from([1, 4, 2048]))
def test_each_client_has_a_site_within_its_limit_and_stays_at_its_data(
    problem: tuple[list[SiteCapacity], Numbers, dict[str, list[range]]], cells: int
) -> None:
    there, labels, pinned = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CELLS, cells)
        assignment = assign("data_affinity", len(labels), there, pinned, labels=labels)
    everybody = np.concatenate([members(share) for share in assignment.shares.values()])
    assert sorted(everybody) == list(range(len(labels)))
    for site, ranges in pinned.items():
        assert set(members(ranges).tolist()) <= set(members(assignment.share(site)).tolist())
    free = assignment.movable
    room = Room.of(AssignmentProblem(clients=free_of(free), sites=there, pinned=assignment.pinned))
    for place, site in enumerate(room.sites):
        assert len(members(free[site.name])) <= room.most[place]
    vnodes = {site.name: site.vnodes for site in there}
    if not pinned and sum(vnodes.values()):
        for name, part in proportional(len(labels), vnodes).items():
            assert len(members(free[name])) <= max(part, math.floor(part * (1 + BALANCE)))


def free_of(shares: object) -> tuple[range, ...]:
    return tuple(each for share in shares.values() for each in share)  # type: ignore[attr-defined]


@settings(max_examples=settings().max_examples // 3)
@given(problems(), st.randoms())
def test_the_order_of_sites_does_not_matter(
    problem: tuple[list[SiteCapacity], Numbers, dict[str, list[range]]], random: object
) -> None:
    there, labels, pinned = problem
    one = assign("data_affinity", len(labels), there, pinned, labels=labels)
    shuffled = list(there)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert assign("data_affinity", len(labels), shuffled, pinned, labels=labels) == one


@pytest.mark.parametrize("cells", [16, 2048], ids=["in few cells", "each client a cell"])
def test_communities_of_labels_are_found(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CELLS, cells)
    blocks, labels = planted(np.array([100, 200, 300]))
    assignment = assign("data_affinity", 600, THREE, labels=labels)
    found = places(assignment)
    for place in range(3):
        assert len(set(blocks[found == place].tolist())) == 1
    assert ", similar labels together, leaves " in assignment.reason
    for way in ("their order", "k-way METIS", "recursive METIS", "what is around a client"):
        assert way in assignment.reason


def test_where_labels_follow_the_order_of_clients_the_order_is_taken() -> None:
    labels = np.repeat(np.eye(3, dtype=np.int64), [10, 20, 30], axis=0)
    assignment = assign("data_affinity", 60, THREE, labels=labels)
    assert assignment.shares == {
        "a": (range(10),),
        "b": (range(10, 30),),
        "c": (range(30, 60),),
    }
    assert "leaves 0.0% of the variation of labels within sites" in assignment.reason


def test_clients_go_to_the_site_whose_pinned_clients_have_their_labels() -> None:
    """Sites of equal size: nothing but what stays there tells them apart."""
    here = [SiteCapacity("a", 1), SiteCapacity("b", 1)]
    labels = np.array([[9, 0]] * 4 + [[0, 9]] * 4 + [[1, 8], [8, 1]] * 6)
    pinned = {"a": [range(4, 8)], "b": [range(4)]}
    assignment = assign("data_affinity", 20, here, pinned, labels=labels)
    assert members(assignment.movable["a"]).tolist() == list(range(8, 20, 2))
    assert members(assignment.movable["b"]).tolist() == list(range(9, 20, 2))


def test_how_often_clients_were_counted_does_not_matter() -> None:
    """A client is what its labels are, not how many samples it has."""
    labels = np.array([[1, 0], [0, 1]] * 10)
    labels[::3] *= 1_000
    here = [SiteCapacity("a", 1), SiteCapacity("b", 1)]
    assignment = assign("data_affinity", 20, here, labels=labels)
    kinds = {tuple((members(share) % 2).tolist()) for share in assignment.shares.values()}
    assert kinds == {(0,) * 10, (1,) * 10}


def test_without_labels_it_refuses_to_assign() -> None:
    with pytest.raises(NotAssignable, match="'data_affinity' wants the samples of each label"):
        assign("data_affinity", 10, THREE)


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(np.zeros((60, 3), dtype=np.int64), id="clients without samples"),
        pytest.param(np.ones((60, 1), dtype=np.int64), id="one label"),
        pytest.param(np.full((60, 3), 1 << 32), id="many samples, all alike"),
    ],
)
def test_clients_that_are_all_alike_are_divided_in_their_order(labels: Numbers) -> None:
    assignment = assign("data_affinity", 60, THREE, labels=labels)
    assert assignment.shares == assign("capacity", 60, THREE).shares


# -- cells and moves ------------------------------------------------------------------------------


def shares_of(clients: int, seed: int, classes: int = 5) -> Shares:
    random = np.random.default_rng(seed)
    mixes = random.dirichlet(np.full(classes, 0.3), clients)
    return label_shares((mixes * 100).astype(np.int64))


@given(st.integers(1, 200), st.integers(1, 12), st.integers(0, 99))
def test_cells_are_small_and_have_each_client_once(clients: int, most: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CELLS, most)
        cells = Cells.cut(shares_of(clients, seed))
    assert cells.sizes.sum() == clients == len(cells.of)
    assert (cells.sizes == np.bincount(cells.of)).all()
    assert cells.sizes.max() <= -(-clients // most)
    assert len(cells.sizes) <= 2 * most


def test_clients_of_one_cell_are_more_alike_than_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CELLS, 16)
    _, labels = planted(np.full(8, 40))
    shares = label_shares(labels)
    cells = Cells.cut(shares)
    sums, whole = sums_of(shares, cells.of, len(cells.sizes)), sums_of(shares, cells.of * 0, 1)
    squares = int((shares.astype(np.int64) ** 2).sum())
    within = squares - ((sums**2).sum(axis=1) / cells.sizes).sum()
    assert within < 0.2 * (squares - (whole**2).sum() / len(shares))


def test_heavy_edges_lead_to_similar_cells_and_light_ones_elsewhere() -> None:
    labels = np.repeat(np.eye(4, dtype=np.int64), 12, axis=0)
    cells = Cells.cut(label_shares(labels))
    graph, weights = cells.graph()
    kinds = cells.means.argmax(axis=1)
    alike = kinds[graph.owners] == kinds[graph.neighbors]
    assert (weights == np.where(alike, CLOSEST, 1)).all()
    assert (np.bincount(graph.owners[alike], minlength=48) >= NEAREST).all()
    assert (~alike).any()


def test_the_largest_site_gets_the_cells_around_one_first() -> None:
    goal = np.array([10, 30, 20])
    blocks, labels = planted(goal)
    cells = Cells.cut(label_shares(labels))
    assert (cells.grown(goal)[cells.of] == blocks).all()


@given(st.integers(2, 80), st.integers(0, 99))
def test_moves_never_make_the_clients_of_a_site_less_alike(clients: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    goal = np.array(list(proportional(clients, {"a": 1, "b": 2, "c": 3}).values()))
    pinned = [np.arange(0)] * 3
    labels = LabelSites.of(shares_of(clients, seed), np.arange(clients), pinned, goal)
    parts = random.permutation(in_order(goal))
    settled = labels.settled(parts)
    assert (np.bincount(settled, minlength=3) == goal).all()
    assert labels.variation(settled) <= labels.variation(parts) + 1e-3
