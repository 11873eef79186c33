"""Every partition gives what its name says, to whoever asks, as often as they ask."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from fedpilot.federated.core.population import partition as p
from fedpilot.federated.core.population.partition import (
    Disjoint,
    Partition,
    PartitionError,
    PartitionKind,
    TooManyClients,
    UnknownClient,
)
from fedpilot.federated.core.randomness import client_key

Labels = NDArray[np.int64]

TEN_LABELS = np.arange(1000, dtype=np.int64) % 10
BALANCED = np.repeat(np.arange(10), 100)

DISJOINT: dict[str, Callable[[Labels, int, int], Disjoint]] = {
    "iid": lambda labels, clients, seed: p.iid(labels, clients, seed),
    "dirichlet": lambda labels, clients, seed: p.dirichlet(labels, clients, 0.1, seed),
    "shards": lambda labels, clients, seed: p.shards(labels, clients, len(np.unique(labels)), seed),
    "quantity": lambda labels, clients, seed: p.quantity(labels, clients, 0.3, seed),
}

label_lists = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(
    lambda values: np.array(values, dtype=np.int64)
)
seeds = st.integers(0, 2**63 - 1)


def everything(partition: Partition) -> list[list[int]]:
    return [partition.indices(i).tolist() for i in range(partition.number_of_clients)]


def labels_of(partition: Partition, labels: Labels) -> list[set[int]]:
    return [set(labels[held].tolist()) for held in everything(partition)]


@pytest.mark.parametrize("kind", DISJOINT)
@given(labels=label_lists, clients=st.integers(0, 119), seed=seeds)
@settings(deadline=None)
def test_every_sample_goes_to_one_client_and_none_is_empty(
    kind: str, labels: Labels, clients: int, seed: int
) -> None:
    clients = 1 + clients % len(labels)
    partition = DISJOINT[kind](labels, clients, seed)
    held = everything(partition)
    assert len(held) == clients
    assert sorted(sample for each in held for sample in each) == list(range(len(labels)))
    assert min(len(each) for each in held) >= 1
    assert partition.sizes(np.arange(clients)).tolist() == [len(each) for each in held]
    assert [partition.size(i) for i in range(clients)] == [len(each) for each in held]


@pytest.mark.parametrize("kind", DISJOINT)
@given(labels=label_lists, seed=seeds)
@settings(deadline=None, max_examples=25)
def test_the_same_seed_gives_the_same_partition(kind: str, labels: Labels, seed: int) -> None:
    clients = (len(labels) + 1) // 2
    first, again = (DISJOINT[kind](labels, clients, seed) for _ in range(2))
    assert everything(first) == everything(again)


@pytest.mark.parametrize("kind", DISJOINT)
def test_another_seed_gives_another_partition(kind: str) -> None:
    assert everything(DISJOINT[kind](TEN_LABELS, 20, 1)) != everything(
        DISJOINT[kind](TEN_LABELS, 20, 2)
    )


@pytest.mark.parametrize("kind", DISJOINT)
def test_more_clients_than_samples_are_refused_with_a_way_out(kind: str) -> None:
    with pytest.raises(TooManyClients) as caught:
        DISJOINT[kind](np.array([0, 0, 1]), 4, 0)
    text = str(caught.value)
    assert "4 clients cannot share 3 samples" in text
    assert "at most 3 clients" in text
    assert "data_distribution_kind: bootstrap" in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = p.iid(TEN_LABELS, 7, 3).sizes(np.arange(7))
    assert sizes.max() - sizes.min() == 1


@given(labels=label_lists, clients=st.integers(0, 119), more=st.integers(0, 5), seed=seeds)
@settings(deadline=None)
def test_shards_never_show_a_client_more_labels_than_asked_for(
    labels: Labels, clients: int, more: int, seed: int
) -> None:
    clients = 1 + clients % len(labels)
    most = -(-len(np.unique(labels)) // clients) + more
    partition = p.shards(labels, clients, most, seed)
    seen = labels_of(partition, labels)
    assert max(len(each) for each in seen) <= most
    assert set.union(*seen) == set(labels.tolist())


@pytest.mark.parametrize("clients", [5, 50, 333])
def test_shards_of_balanced_labels_are_all_distinct(clients: int) -> None:
    seen = labels_of(p.shards(BALANCED, clients, 2, 9), BALANCED)
    assert {len(each) for each in seen} == {2}


def test_shards_pair_labels_at_random() -> None:
    seen = labels_of(p.shards(BALANCED, 200, 2, 0), BALANCED)
    assert len({frozenset(each) for each in seen}) > 35  # of the 45 pairs


def test_shards_repeat_a_label_only_when_there_are_too_few_others() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    seen = labels_of(p.shards(labels, 10, 2, 0), labels)
    assert seen.count({0, 1}) == 2
    assert seen.count({0}) == 8


def test_too_few_shards_for_the_labels_are_refused_with_the_number_needed() -> None:
    with pytest.raises(PartitionError, match="set labels_per_client to 4 or more"):
        p.shards(TEN_LABELS, 3, 2, 0)


def test_a_small_beta_gives_few_labels_and_a_large_one_all() -> None:
    skewed = p.describe(p.dirichlet(TEN_LABELS, 20, 0.05, 0), TEN_LABELS)
    even = p.describe(p.dirichlet(TEN_LABELS, 20, 100.0, 0), TEN_LABELS)
    assert skewed.labels_mean < 4
    assert even.labels_mean > 9


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf")])
def test_a_beta_that_is_no_concentration_is_refused(beta: float) -> None:
    with pytest.raises(PartitionError, match="beta is a number above 0"):
        p.dirichlet(TEN_LABELS, 2, beta, 0)
    with pytest.raises(PartitionError, match="beta is a number above 0"):
        p.quantity(TEN_LABELS, 2, beta, 0)
    with pytest.raises(PartitionError, match="beta is a number above 0"):
        p.bootstrap(TEN_LABELS, 2, 3, 0, dirichlet_beta=beta)


@given(st.floats(1e-4, 1e4), seeds)
@settings(deadline=None)
def test_any_beta_gives_a_partition(beta: float, seed: int) -> None:
    for make in (p.dirichlet, p.quantity):
        assert make(TEN_LABELS, 30, beta, seed).sizes(np.arange(30)).sum() == len(TEN_LABELS)
    held = p.bootstrap(TEN_LABELS, 30, 5, seed, dirichlet_beta=beta).indices(0)
    assert len(held) == 5


def test_quantity_skews_sizes_and_leaves_labels_alone() -> None:
    labels = np.arange(20_000) % 10
    partition = p.quantity(labels, 10, 0.5, 1)
    sizes = partition.sizes(np.arange(10))
    assert sizes.max() > 5 * np.median(sizes)
    largest = np.bincount(labels[partition.indices(int(sizes.argmax()))]) / sizes.max()
    assert largest.tolist() == pytest.approx([0.1] * 10, abs=0.02)


def test_natural_clients_are_the_sorted_ids() -> None:
    partition = p.natural(np.array(["bob", "ann", "bob", "cy"]))
    assert [partition.client_id(i) for i in range(3)] == ["ann", "bob", "cy"]
    assert everything(partition) == [[1], [0, 2], [3]]
    assert [partition.index_of(name) for name in ("ann", "bob", "cy")] == [0, 1, 2]


@given(st.lists(st.text(alphabet="abcXYZ-09é", min_size=1), min_size=1))
def test_natural_ids_are_found_again(names: list[str]) -> None:
    partition = p.natural(np.array(names))
    ids = [partition.client_id(i) for i in range(partition.number_of_clients)]
    assert ids == sorted(set(names))
    assert [partition.index_of(each) for each in ids] == list(range(len(ids)))


def test_natural_needs_data_that_name_clients() -> None:
    with pytest.raises(PartitionError, match="which client a sample belongs to"):
        p.natural(None)


def test_fixed_gives_each_client_its_share_of_each_label() -> None:
    labels = np.repeat([0, 1], [10, 7])
    partition = p.fixed(labels, [[0.5, 0.0], [0.3, 0.5], [0.0, 0.5]], 4)
    counts = [np.bincount(labels[held], minlength=2).tolist() for held in everything(partition)]
    assert [row[0] for row in counts] == [5, 3, 0]
    assert sorted(row[1] for row in counts) == [0, 3, 4]
    assert counts[0][1] == 0


@given(
    counts=st.tuples(*[st.integers(60, 90)] * 3),
    weights=st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=1, max_size=6),
    seed=seeds,
)
def test_a_fixed_matrix_of_whole_columns_covers_everything(
    counts: tuple[int, ...], weights: list[tuple[int, ...]], seed: int
) -> None:
    labels = np.repeat(np.arange(3), counts)
    matrix = np.array(weights) / np.sum(weights, axis=0)
    partition = p.fixed(labels, matrix, seed)
    held = sorted(sample for each in everything(partition) for sample in each)
    assert held == list(range(len(labels)))


@pytest.mark.parametrize(
    ("matrix", "clients", "told"),
    [
        pytest.param([[0.5, 0.5]], 2, "1 rows for 2 clients", id="a row for each client"),
        pytest.param([[1.0]], 1, "1 columns for 2 labels", id="a column for each label"),
        pytest.param([[1.0, -0.1]], 1, "-0.1 in row 0, column 1", id="no negative share"),
        pytest.param([[1.0, float("nan")]], 1, "found nan", id="no share that is no number"),
        pytest.param([[0.6, 0.5]] * 2, 2, "column 0 .* gives out 1.2", id="no more than all"),
        pytest.param([[1, 1], [0, 0]], 2, "row 1 .* no sample", id="nobody with nothing"),
        pytest.param([[1.0, 1.0], [0.5]], 2, "equal rows", id="no ragged table"),
        pytest.param([1.0, 1.0], 2, "has shape", id="no flat list"),
    ],
)
def test_a_matrix_that_cannot_be_met_is_refused(
    matrix: list[object], clients: int, told: str
) -> None:
    with pytest.raises(PartitionError, match=told):
        p.fixed(
            np.array([0, 0, 1, 1]), np.array(matrix, dtype=object), 0, number_of_clients=clients
        )


@pytest.mark.parametrize("beta", [None, 0.3])
def test_a_bootstrap_clients_samples_do_not_depend_on_how_many_clients_there_are(
    beta: float | None,
) -> None:
    few = p.bootstrap(TEN_LABELS, 10, (3, 30), 5, dirichlet_beta=beta)
    many = p.bootstrap(TEN_LABELS, 1_000_000, (3, 30), 5, dirichlet_beta=beta)
    assert everything(few) == [many.indices(i).tolist() for i in range(10)]
    assert few.sizes(np.arange(10)).tolist() == [len(each) for each in everything(few)]
    assert many.size(999_999) == many.sizes([999_999])[0] == len(many.indices(999_999))


@given(seeds, st.integers(0, 10**9 - 1), st.integers(1, 50), st.integers(0, 50))
def test_bootstrap_sizes_are_within_bounds_and_alike_however_asked(
    seed: int, index: int, least: int, more: int
) -> None:
    partition = p.bootstrap(TEN_LABELS, 10**9, (least, least + more), seed)
    held = partition.indices(index)
    assert least <= len(held) <= least + more
    assert partition.size(index) == partition.sizes([index])[0] == len(held)
    assert 0 <= held.min() <= held.max() < len(TEN_LABELS)


def test_a_bootstrap_keeps_the_label_mix_of_the_data_over_all_clients() -> None:
    labels = np.repeat([0, 1, 3], [700, 200, 100])
    partition = p.bootstrap(labels, 2000, 20, 1, dirichlet_beta=0.2)
    drawn = np.concatenate([labels[partition.indices(i)] for i in range(2000)])
    shares = np.bincount(drawn, minlength=4) / len(drawn)
    assert shares.tolist() == pytest.approx([0.7, 0.2, 0.0, 0.1], abs=0.03)
    assert p.describe(partition, labels).labels_mean < 2.2


@pytest.mark.parametrize("asked", [0, -3, (5, 4), (0, 4), (1, 2, 3), ()])
def test_samples_per_client_that_mean_nothing_are_refused(asked: int | tuple[int, ...]) -> None:
    with pytest.raises(PartitionError, match="samples_per_client is a number above 0"):
        p.bootstrap(TEN_LABELS, 3, asked, 0)


def test_what_a_bootstrap_client_holds_is_pinned() -> None:
    # A change here changes the data of every bootstrap client, and so every result.
    partition = p.bootstrap(TEN_LABELS, 1_000_000, (4, 6), 5)
    rows, sizes = partition.rows([0, 999_999])
    assert (rows.tolist(), sizes.tolist()) == ([85, 836, 968, 539, 777, 503, 98, 891, 468], [5, 4])


def test_bootstrap_draws_every_sample_as_often() -> None:
    rows, _ = p.bootstrap(TEN_LABELS, 1_000_000, 100, 2).rows(np.arange(2000))
    counts = np.bincount(rows, minlength=len(TEN_LABELS))
    # A thousand samples, 200 times each in the mean: one seed in a thousand exceeds this.
    assert ((counts - 200) ** 2 / 200).sum() < 1143


def test_a_population_costs_nothing_until_it_is_asked() -> None:
    million = p.bootstrap(TEN_LABELS, 1_000_000, 10, 0)
    billion = p.bootstrap(TEN_LABELS, 1_000_000_000, 10, 0)
    assert len(pickle.dumps(billion)) - len(pickle.dumps(million)) < 16


MADE: dict[str, Partition] = {
    **{kind: make(TEN_LABELS, 12, 0) for kind, make in DISJOINT.items()},
    "fixed": p.fixed(TEN_LABELS, np.full((12, 10), 1 / 12), 0),
    "natural": p.natural(np.array([f"n{i % 12:02d}" for i in range(1000)])),
    "bootstrap": p.bootstrap(TEN_LABELS, 12, (1, 9), 0, dirichlet_beta=0.5),
}


@pytest.mark.parametrize("kind", PartitionKind)
def test_every_kind_survives_pickling_and_finds_its_clients(kind: PartitionKind) -> None:
    partition = MADE[kind]
    again: Partition = pickle.loads(pickle.dumps(partition))
    assert again.kind is partition.kind is kind
    assert everything(again) == everything(partition)
    ids = [again.client_id(i) for i in range(again.number_of_clients)]
    assert len(set(ids)) == 12
    assert [again.index_of(each) for each in ids] == list(range(12))
    assert partition.indices(0).dtype == np.int64


@pytest.mark.parametrize("name", [*MADE, "bootstrap without a mix", "bootstrap of one size"])
@given(asked=st.lists(st.integers(0, 11), max_size=20))
@settings(deadline=None, max_examples=25)
def test_many_clients_are_told_what_each_would_be_told_alone(name: str, asked: list[int]) -> None:
    partition = {
        **MADE,
        "bootstrap without a mix": p.bootstrap(TEN_LABELS, 12, (1, 9), 0),
        "bootstrap of one size": p.bootstrap(TEN_LABELS, 12, 7, 0),
    }[name]
    rows, sizes = partition.rows(asked)
    keys = partition.keys(asked)
    assert rows.tolist() == [row for i in asked for row in partition.indices(i).tolist()]
    assert sizes.tolist() == partition.sizes(asked).tolist() == [partition.size(i) for i in asked]
    assert keys.tolist() == [client_key(partition.client_id(i)) for i in asked]
    assert [each.dtype.name for each in (rows, sizes, keys)] == ["int64", "int64", "uint64"]


@pytest.mark.parametrize("kind", PartitionKind)
@pytest.mark.parametrize("index", [-1, 12])
def test_a_client_that_does_not_exist_is_refused_everywhere(
    kind: PartitionKind, index: int
) -> None:
    partition = MADE[kind]
    for ask in (partition.client_id, partition.indices, partition.size):
        with pytest.raises(IndexError, match=f"from 0 to 11, found {index}"):
            ask(index)
    for ask_many in (partition.sizes, partition.rows, partition.keys):
        with pytest.raises(IndexError, match=f"from 0 to 11, found {index}"):
            ask_many([0, index])
    assert partition.sizes([]).tolist() == []


@pytest.mark.parametrize(
    "unknown", ["client_12", "client_01", "client_", "client_-1", "nobody", "client_٣", ""]
)
def test_an_unknown_id_is_refused_with_what_ids_look_like(unknown: str) -> None:
    with pytest.raises(UnknownClient, match="the ids are client_0 to client_11") as caught:
        MADE["iid"].index_of(unknown)
    assert isinstance(caught.value, KeyError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(UnknownClient, match=r"the ids are n00, n01, n02, \.\.\."):
        MADE["natural"].index_of(unknown)


@given(st.text("ab1é"), st.text("ab1é"), st.integers(0, 10**9 - 1))
def test_ids_of_any_pattern_are_found_again(before: str, after: str, index: int) -> None:
    partition = p.bootstrap(TEN_LABELS, 10**9, 1, 0, id_pattern=f"{before}{{index}}{after}")
    client_id = partition.client_id(index)
    assert client_id == f"{before}{index}{after}"
    assert partition.index_of(client_id) == index


@pytest.mark.parametrize("pattern", ["client", "{i}", "{index}{index}", "{index:03d}", "{index}}"])
def test_a_pattern_that_makes_no_ids_is_refused(pattern: str) -> None:
    with pytest.raises(PartitionError, match="client ids are written with"):
        p.iid(TEN_LABELS, 3, 0, id_pattern=pattern)


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param([], id="no labels"),
        pytest.param([0.5], id="fractions"),
        pytest.param([[1], [2]], id="a table"),
        pytest.param([-1, 0], id="negative labels"),
    ],
)
def test_labels_that_are_none_are_refused(labels: list[object]) -> None:
    with pytest.raises(PartitionError, match="labels are a list of integers"):
        p.iid(np.array(labels), 1, 0)


@pytest.mark.parametrize("clients", [0, -1])
def test_a_partition_has_a_client(clients: int) -> None:
    with pytest.raises(PartitionError, match="1 client at least"):
        p.iid(TEN_LABELS, clients, 0)
    with pytest.raises(PartitionError, match="1 client at least"):
        p.bootstrap(TEN_LABELS, clients, 1, 0)


def test_describe_sums_up_sizes_and_labels() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    owners = np.array(["a", "a", "a", "b", "c", "c"])
    assert p.describe(p.natural(owners), labels) == p.PartitionSummary(
        kind=PartitionKind.NATURAL,
        number_of_clients=3,
        samples_min=1,
        samples_median=2.0,
        samples_max=3,
        labels_mean=4 / 3,
    )
