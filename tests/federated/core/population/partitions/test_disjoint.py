"""Every disjoint partition gives what its name says, and the same again."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.federated.core.population.partitions import disjoint
from fedpilot.federated.core.population.partitions.partition import PartitionError, TooManyClients
from fedpilot.federated.core.population.partitions.summary import describe
from partitions import (
    BALANCED,
    DISJOINT,
    TEN_LABELS,
    Labels,
    everything,
    label_lists,
    labels_of,
    seeds,
)


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
@settings(deadline=None, max_examples=settings().max_examples // 5)
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
    sizes = disjoint.iid(TEN_LABELS, 7, 3).sizes(np.arange(7))
    assert sizes.max() - sizes.min() == 1


@given(labels=label_lists, clients=st.integers(0, 119), more=st.integers(0, 5), seed=seeds)
@settings(deadline=None)
def test_shards_never_show_a_client_more_labels_than_asked_for(
    labels: Labels, clients: int, more: int, seed: int
) -> None:
    clients = 1 + clients % len(labels)
    most = -(-len(np.unique(labels)) // clients) + more
    partition = disjoint.shards(labels, clients, most, seed)
    seen = labels_of(partition, labels)
    assert max(len(each) for each in seen) <= most
    assert set.union(*seen) == set(labels.tolist())


@pytest.mark.parametrize("clients", [5, 50, 333])
def test_shards_of_balanced_labels_are_all_distinct(clients: int) -> None:
    seen = labels_of(disjoint.shards(BALANCED, clients, 2, 9), BALANCED)
    assert {len(each) for each in seen} == {2}


def test_shards_pair_labels_at_random() -> None:
    seen = labels_of(disjoint.shards(BALANCED, 200, 2, 0), BALANCED)
    assert len({frozenset(each) for each in seen}) > 35  # of the 45 pairs


def test_shards_repeat_a_label_only_when_there_are_too_few_others() -> None:
    labels = np.array([0] * 90 + [1] * 10)
    seen = labels_of(disjoint.shards(labels, 10, 2, 0), labels)
    assert seen.count({0, 1}) == 2
    assert seen.count({0}) == 8


def test_too_few_shards_for_the_labels_are_refused_with_the_number_needed() -> None:
    with pytest.raises(PartitionError, match="set labels_per_client to 4 or more"):
        disjoint.shards(TEN_LABELS, 3, 2, 0)


def test_a_small_beta_gives_few_labels_and_a_large_one_all() -> None:
    skewed = describe(disjoint.dirichlet(TEN_LABELS, 20, 0.05, 0), TEN_LABELS)
    even = describe(disjoint.dirichlet(TEN_LABELS, 20, 100.0, 0), TEN_LABELS)
    assert skewed.labels_mean < 4
    assert even.labels_mean > 9


def test_quantity_skews_sizes_and_leaves_labels_alone() -> None:
    labels = np.arange(20_000) % 10
    partition = disjoint.quantity(labels, 10, 0.5, 1)
    sizes = partition.sizes(np.arange(10))
    assert sizes.max() > 5 * np.median(sizes)
    largest = np.bincount(labels[partition.indices(int(sizes.argmax()))]) / sizes.max()
    assert largest.tolist() == pytest.approx([0.1] * 10, abs=0.02)


def test_natural_clients_are_the_sorted_ids() -> None:
    partition = disjoint.natural(np.array(["bob", "ann", "bob", "cy"]))
    assert [partition.client_id(i) for i in range(3)] == ["ann", "bob", "cy"]
    assert everything(partition) == [[1], [0, 2], [3]]
    assert [partition.index_of(name) for name in ("ann", "bob", "cy")] == [0, 1, 2]


@given(st.lists(st.text(alphabet="abcXYZ-09é", min_size=1), min_size=1))
def test_natural_ids_are_found_again(names: list[str]) -> None:
    partition = disjoint.natural(np.array(names))
    ids = [partition.client_id(i) for i in range(partition.number_of_clients)]
    assert ids == sorted(set(names))
    assert [partition.index_of(each) for each in ids] == list(range(len(ids)))


def test_natural_needs_data_that_name_clients() -> None:
    with pytest.raises(PartitionError, match="which client a sample belongs to"):
        disjoint.natural(None)


def test_fixed_gives_each_client_its_share_of_each_label() -> None:
    labels = np.repeat([0, 1], [10, 7])
    partition = disjoint.fixed(labels, [[0.5, 0.0], [0.3, 0.5], [0.0, 0.5]], 4)
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
    partition = disjoint.fixed(labels, matrix, seed)
    held = sorted(sample for each in everything(partition) for sample in each)
    assert held == list(range(len(labels)))


@pytest.mark.parametrize(
    ("matrix", "told"),
    [
        pytest.param([[1.0]], "1 columns for 2 labels", id="a column for each label"),
        pytest.param([[1.0, -0.1]], "-0.1 in row 0, column 1", id="no negative share"),
        pytest.param([[1.0, float("nan")]], "found nan", id="no share that is no number"),
        pytest.param([[0.6, 0.5]] * 2, "column 0 .* gives out 1.2", id="no more than all"),
        pytest.param([[1, 1], [0, 0]], "row 1 .* no sample", id="nobody with nothing"),
        pytest.param([[1.0, 1.0], [0.5]], "equal rows", id="no ragged table"),
        pytest.param([1.0, 1.0], "has shape", id="no flat list"),
    ],
)
def test_a_matrix_that_cannot_be_met_is_refused(matrix: list[object], told: str) -> None:
    with pytest.raises(PartitionError, match=told):
        disjoint.fixed(np.array([0, 0, 1, 1]), np.array(matrix, dtype=object), 0)
