"""A client's bootstrap sample is within bounds, keyed by its id, and pinned."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.partitions.bootstrap import bootstrap
from fedpilot.federated.core.population.partitions.partition import PartitionError
from fedpilot.federated.core.population.partitions.summary import describe
from partitions import TEN_LABELS, everything, seeds


@pytest.mark.parametrize("beta", [None, 0.3])
def test_a_bootstrap_clients_samples_do_not_depend_on_how_many_clients_there_are(
    beta: float | None,
) -> None:
    few = bootstrap(TEN_LABELS, 10, (3, 30), 5, dirichlet_beta=beta)
    many = bootstrap(TEN_LABELS, 1_000_000, (3, 30), 5, dirichlet_beta=beta)
    assert everything(few) == [many.indices(i).tolist() for i in range(10)]
    assert few.sizes(np.arange(10)).tolist() == [len(each) for each in everything(few)]
    assert many.size(999_999) == many.sizes([999_999])[0] == len(many.indices(999_999))


@given(seeds, st.integers(0, 10**9 - 1), st.integers(1, 50), st.integers(0, 50))
def test_bootstrap_sizes_are_within_bounds_and_alike_however_asked(
    seed: int, index: int, least: int, more: int
) -> None:
    partition = bootstrap(TEN_LABELS, 10**9, (least, least + more), seed)
    held = partition.indices(index)
    assert least <= len(held) <= least + more
    assert partition.size(index) == partition.sizes([index])[0] == len(held)
    assert 0 <= held.min() <= held.max() < len(TEN_LABELS)


def test_a_bootstrap_keeps_the_label_mix_of_the_data_over_all_clients() -> None:
    labels = np.repeat([0, 1, 3], [700, 200, 100])
    partition = bootstrap(labels, 2000, 20, 1, dirichlet_beta=0.2)
    drawn = np.concatenate([labels[partition.indices(i)] for i in range(2000)])
    shares = np.bincount(drawn, minlength=4) / len(drawn)
    assert shares.tolist() == pytest.approx([0.7, 0.2, 0.0, 0.1], abs=0.03)
    assert describe(partition, labels).labels_mean < 2.2


@pytest.mark.parametrize("asked", [0, -3, (5, 4), (0, 4), (1, 2, 3), ()])
def test_samples_per_client_that_mean_nothing_are_refused(asked: int | tuple[int, ...]) -> None:
    with pytest.raises(PartitionError, match="samples_per_client is a number above 0"):
        bootstrap(TEN_LABELS, 3, asked, 0)


def test_what_a_bootstrap_client_holds_is_pinned() -> None:
    # A change here changes the data of every bootstrap client, and so every result.
    partition = bootstrap(TEN_LABELS, 1_000_000, (4, 6), 5)
    rows, sizes = partition.rows([0, 999_999])
    assert (rows.tolist(), sizes.tolist()) == ([85, 836, 968, 539, 777, 503, 98, 891, 468], [5, 4])


def test_bootstrap_draws_every_sample_as_often() -> None:
    rows, _ = bootstrap(TEN_LABELS, 1_000_000, 100, 2).rows(np.arange(2000))
    counts = np.bincount(rows, minlength=len(TEN_LABELS))
    # A thousand samples, 200 times each in the mean: one seed in a thousand exceeds this.
    assert ((counts - 200) ** 2 / 200).sum() < 1143


def test_a_population_costs_nothing_until_it_is_asked() -> None:
    million = bootstrap(TEN_LABELS, 1_000_000, 10, 0)
    billion = bootstrap(TEN_LABELS, 1_000_000_000, 10, 0)
    assert len(pickle.dumps(billion)) - len(pickle.dumps(million)) < 16
