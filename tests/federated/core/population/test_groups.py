"""Who belongs to which group, and who trains when: each client once, whoever else is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.federated_data.site_partitions import SiteClients
from fedpilot.federated.core.population.groups import (
    ClientGroups,
    Steps,
    blocks,
    grouped,
    most_frequent,
    places,
)
from fedpilot.federated.core.population.partitions.bootstrap import bootstrap
from fedpilot.federated.core.population.partitions.disjoint import natural
from fedpilot.federated.core.population.partitions.partition import Partition

Kinds = st.lists(st.integers(0, 4), min_size=1, max_size=30)


def owning(*labels: list[int]) -> tuple[Partition, Any]:
    """Clients with samples of these labels."""
    ids = np.repeat([f"c{i:02}" for i in range(len(labels))], [len(each) for each in labels])
    return natural(ids), np.concatenate([np.array(each, dtype=np.int64) for each in labels])


def people(count: int) -> Partition:
    return natural(np.array([f"c{i:02}" for i in range(count)]))


def of(kinds: list[int]) -> ClientGroups:
    return grouped(np.array(kinds), [f"kind {k}" for k in range(5)], people(len(kinds)))


@given(Kinds)
def test_every_client_is_in_one_group_with_those_of_its_kind(kinds: list[int]) -> None:
    groups = of(kinds)
    assert sorted(groups.members.tolist()) == list(range(len(kinds)))
    assert groups.names == tuple(f"kind {kind}" for kind in sorted(set(kinds)))
    for number, kind in enumerate(sorted(set(kinds))):
        members = groups.of(number).tolist()
        assert members == [i for i, each in enumerate(kinds) if each == kind]
        assert groups.firsts[number] == members[0]
    assert groups.sizes.sum() == len(kinds)


@given(st.integers(1, 200), st.data())
def test_places_are_distinct_clients_spread_over_all(clients: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, clients))
    found = places(count, clients)
    assert len(found) == count
    assert (np.diff(found) > 0).all()
    assert found[0] == 0
    assert found[-1] < clients
    for parts in range(1, 4):  # as a share of the clients, so of the groups, nearly
        inside = np.bincount(found * parts // clients, minlength=parts)
        assert inside.max() - inside.min() <= 3


@pytest.mark.parametrize("sites", [2, 3, 4])
def test_clients_dealt_out_in_turn_take_groups_to_every_site(sites: int) -> None:
    assert set((places(12, 120) % sites).tolist()) == set(range(sites))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param([[1, 1, 2], [2, 0, 2]], [1, 2], id="what most samples are of"),
        pytest.param([[2, 1, 2, 1], [0, 3]], [1, 0], id="the smallest of several"),
        pytest.param([[3], [3]], [3, 3], id="a kind that all share"),
    ],
)
def test_a_client_is_of_the_kind_of_most_of_its_samples(
    labels: list[list[int]], expected: list[int]
) -> None:
    partition, y = owning(*labels)
    assert most_frequent(y, partition, range(len(labels))).tolist() == expected


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12))
def test_kinds_are_counted_client_by_client(labels: list[list[int]]) -> None:
    partition, y = owning(*labels)
    expected = [max(range(4), key=lambda kind: (each.count(kind), -kind)) for each in labels]
    assert most_frequent(y, partition, range(len(labels))).tolist() == expected


def test_clients_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.arange(50, dtype=np.int64) % 7
    partition = bootstrap(y, 40, 5, 1)
    at_once = most_frequent(y, partition, range(40))
    monkeypatch.setattr("fedpilot.federated.core.population.groups.CLIENTS_LOOKED_AT", 3)
    assert most_frequent(y, partition, range(40)).tolist() == at_once.tolist()


def test_a_site_groups_its_own_clients_in_their_places() -> None:
    own, y = owning([0], [1], [0], [1, 1])
    held = SiteClients(10, 30, own)  # type: ignore[arg-type]
    kinds = most_frequent(y, held, held.here)
    groups = grouped(kinds, ["a", "b"], held, first=10)
    assert [groups.of(number).tolist() for number in range(2)] == [[10, 12], [11, 13]]
    assert set(groups.places.tolist()) <= set(held.here)


@given(st.integers(1, 60), st.data())
def test_blocks_are_nearly_equal_and_in_order(clients: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, clients))
    found = blocks(clients, count)
    sizes = np.bincount(found, minlength=count)
    assert (np.diff(found) >= 0).all()
    assert sizes.max() - sizes.min() <= 1


# -- steps ----------------------------------------------------------------------------------------


def test_steps_count_through_the_run() -> None:
    steps = Steps(per_round=3, seed=1)
    assert [*steps.of_round(1), *steps.of_round(2)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        pytest.param({}, [1, 4, 10], id="all"),
        pytest.param({"clients": 4}, [1, 4, 4], id="some, or all of a smaller group"),
        pytest.param({"rate": 0.5}, [1, 2, 5], id="a share, one at least"),
    ],
)
def test_how_many_of_a_group_train(keys: dict[str, Any], sizes: list[int]) -> None:
    steps = Steps(per_round=2, seed=1, **keys)
    assert [steps.size(members) for members in (1, 4, 10)] == sizes
    groups = of([0, *[1] * 4, *[2] * 10])
    assert steps.clients_of_step(groups) == sum(sizes)
    assert steps.largest(groups) == max(sizes)
    for group, size in enumerate(sizes):
        cohort = steps.cohort(groups, group, 1).tolist()
        assert len(set(cohort)) == size
        assert set(cohort) <= set(groups.of(group).tolist())
        assert cohort == sorted(cohort)


def test_every_step_and_group_and_seed_draws_anew() -> None:
    groups = of([0, 1] * 15)
    steps, other = (Steps(per_round=2, seed=seed, clients=4) for seed in (1, 2))
    drawn = [
        (steps.cohort(groups, 0, 1) // 2).tolist(),
        (steps.cohort(groups, 0, 2) // 2).tolist(),
        (steps.cohort(groups, 1, 1) // 2).tolist(),
        (other.cohort(groups, 0, 1) // 2).tolist(),
    ]
    assert len(set(map(tuple, drawn))) == len(drawn)


def test_who_is_drawn_depends_on_the_group_alone() -> None:
    """The same clients as a group of a site of their own, and among others."""
    steps = Steps(per_round=1, seed=1, clients=3)
    alone = natural(np.array([f"b{i}" for i in range(9)]))
    together = natural(np.array([f"a{i}" for i in range(4)] + [f"b{i}" for i in range(9)]))
    one = grouped(np.zeros(9, dtype=np.int64), ["all"], alone)
    other = grouped(np.repeat([0, 1], [4, 9]), ["a", "b"], together)
    first = [alone.client_id(i) for i in steps.cohort(one, 0, 5).tolist()]
    second = [together.client_id(i) for i in steps.cohort(other, 1, 5).tolist()]
    assert first == second


def test_who_trains_in_a_round_is_whoever_trains_in_one_of_its_steps() -> None:
    groups = of([0, 1, 1] * 6)
    steps = Steps(per_round=3, seed=1, clients=2)
    expected = {
        client
        for group in range(2)
        for step in steps.of_round(2)
        for client in steps.cohort(groups, group, step).tolist()
    }
    assert set(steps.clients_of_round(groups, 2).tolist()) == expected


def test_a_group_costs_what_it_goes_through() -> None:
    partition, _ = owning(*([0] * count for count in (10, 1, 20, 2, 3, 4)))
    groups = grouped(np.array([0, 1, 0, 1, 1, 1]), ["a", "b"], partition)
    assert Steps(per_round=2, seed=1).costs(groups, partition).tolist() == [60, 20]
    assert Steps(per_round=3, seed=1, clients=2).costs(groups, partition).tolist() == [90, 15]


def test_what_a_large_group_costs_is_told_by_some_of_it() -> None:
    partition, _ = owning(*([0] * (1 + index % 2) for index in range(1000)))
    groups = grouped(np.zeros(1000, dtype=np.int64), ["all"], partition)
    (cost,) = Steps(per_round=2, seed=1).costs(groups, partition).tolist()
    assert 2000 <= cost <= 4000
