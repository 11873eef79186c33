"""All kinds of partitions answer alike, to whoever asks, and refuse the same."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.federated.core.population.partitions import disjoint
from fedpilot.federated.core.population.partitions.bootstrap import bootstrap
from fedpilot.federated.core.population.partitions.partition import (
    Partition,
    PartitionError,
    PartitionKind,
    UnknownClient,
)
from fedpilot.federated.core.randomness import client_key
from partitions import DISJOINT, TEN_LABELS, everything, seeds


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf")])
def test_a_beta_that_is_no_concentration_is_refused(beta: float) -> None:
    with pytest.raises(PartitionError, match="beta is a number above 0"):
        disjoint.dirichlet(TEN_LABELS, 2, beta, 0)
    with pytest.raises(PartitionError, match="beta is a number above 0"):
        disjoint.quantity(TEN_LABELS, 2, beta, 0)
    with pytest.raises(PartitionError, match="beta is a number above 0"):
        bootstrap(TEN_LABELS, 2, 3, 0, dirichlet_beta=beta)


@given(st.floats(1e-4, 1e4), seeds)
@settings(deadline=None)
def test_any_beta_gives_a_partition(beta: float, seed: int) -> None:
    for make in (disjoint.dirichlet, disjoint.quantity):
        assert make(TEN_LABELS, 30, beta, seed).sizes(np.arange(30)).sum() == len(TEN_LABELS)
    held = bootstrap(TEN_LABELS, 30, 5, seed, dirichlet_beta=beta).indices(0)
    assert len(held) == 5


MADE: dict[str, Partition] = {
    **{kind: make(TEN_LABELS, 12, 0) for kind, make in DISJOINT.items()},
    "fixed": disjoint.fixed(TEN_LABELS, np.full((12, 10), 1 / 12), 0),
    "natural": disjoint.natural(np.array([f"n{i % 12:02d}" for i in range(1000)])),
    "bootstrap": bootstrap(TEN_LABELS, 12, (1, 9), 0, dirichlet_beta=0.5),
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
        "bootstrap without a mix": bootstrap(TEN_LABELS, 12, (1, 9), 0),
        "bootstrap of one size": bootstrap(TEN_LABELS, 12, 7, 0),
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
        disjoint.iid(np.array(labels), 1, 0)


@pytest.mark.parametrize("clients", [0, -1])
def test_a_partition_has_a_client(clients: int) -> None:
    with pytest.raises(PartitionError, match="1 client at least"):
        disjoint.iid(TEN_LABELS, clients, 0)
    with pytest.raises(PartitionError, match="1 client at least"):
        bootstrap(TEN_LABELS, clients, 1, 0)
