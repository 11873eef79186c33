"""A data set is what it says it is, is known by its digest, and is split without losing anybody."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.data import DataError, Dataset, split

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 0, 0, 1, 1, 1])


def dataset(**changed: Any) -> Dataset:
    return Dataset(**{"name": "mine", "x": X, "y": Y, "num_classes": 2, **changed})


def poisoned(value: float) -> np.ndarray[Any, Any]:
    x = X.copy()
    x[4, 1] = value
    return x


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        pytest.param({"x": X.tolist()}, "x is a NumPy array, found list", id="x is an array"),
        pytest.param({"x": X.astype(np.int32)}, "x is float32, .* found int32", id="x is real"),
        pytest.param(
            {"x": X.astype(np.int64) - 6}, "x is negative in sample 0", id="tokens are from 0"
        ),
        pytest.param(
            {"x": X.astype(np.int64), "test_x": X.astype(np.int64) - 3, "test_y": Y},
            "test_x is negative in sample 0",
            id="test tokens are from 0",
        ),
        pytest.param(
            {"x": X.astype(np.int64), "test_x": X, "test_y": Y},
            "test samples are float32 .* the others int64",
            id="test samples are tokens, too",
        ),
        pytest.param({"x": X[:, 0]}, r"found float32 of shape \(6,\)", id="x has features"),
        pytest.param({"x": X.astype(">f4")}, "x is float32, .* found >f4", id="x is native"),
        pytest.param({"x": poisoned(np.nan)}, "x is not finite in sample 4", id="x has no nan"),
        pytest.param({"x": poisoned(np.inf)}, "x is not finite in sample 4", id="x has no inf"),
        pytest.param({"x": X[:0], "y": Y[:0]}, "there are no samples", id="there are samples"),
        pytest.param({"y": Y[:5]}, r"y is int64 of shape \(6,\)", id="a label for each sample"),
        pytest.param({"y": Y.astype(np.int32)}, "found int32", id="labels have 64 bits"),
        pytest.param({"y": Y + 1}, "labels in y are 0 to 1, found 1 to 2", id="labels fit"),
        pytest.param({"y": Y - 1}, "labels in y are 0 to 1, found -1 to 0", id="labels from 0"),
        pytest.param({"num_classes": 0}, "num_classes is 1 at least", id="there is a class"),
        pytest.param({"client_ids": np.arange(6)}, "client_ids is text", id="ids are text"),
        pytest.param({"client_ids": np.array(["a"])}, "client_ids is text", id="an id for each"),
        pytest.param({"test_x": X}, "found only test_x", id="test samples have labels"),
        pytest.param({"test_y": Y}, "found only test_y", id="test labels have samples"),
        pytest.param(
            {"test_x": X[:, :1], "test_y": Y}, "test samples are", id="test samples are alike"
        ),
        pytest.param(
            {"test_x": X, "test_y": Y + 5}, "labels in test_y are 0 to 1", id="test labels fit"
        ),
    ],
)
def test_a_data_set_that_is_none_is_refused_by_name(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=told) as caught:
        dataset(**changed)
    assert str(caught.value).startswith("data set 'mine': ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_data_set_says_what_one_sample_looks_like() -> None:
    assert dataset(x=np.zeros((6, 1, 4, 5), dtype=np.float32)).input_shape == (1, 4, 5)
    assert dataset(x=X.astype(np.float64)).x.dtype == np.float64
    assert dataset(x=X.astype(np.int64)).input_shape == (2,)


def test_the_digest_is_pinned() -> None:
    assert dataset().digest == "0be000a760dfa96ceb9a8740261fb04370aa7abc73da50104988cdf2334c348a"


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"x": X + 1}, id="other samples"),
        pytest.param({"x": X.astype(np.float64)}, id="another type"),
        pytest.param({"x": X.astype(np.int64)}, id="tokens"),
        pytest.param({"x": X.reshape(6, 1, 2)}, id="another shape"),
        pytest.param({"y": Y[::-1].copy()}, id="other labels"),
        pytest.param({"num_classes": 3}, id="more classes"),
        pytest.param({"client_ids": np.array(list("aabbcc"))}, id="clients"),
        pytest.param({"test_x": X, "test_y": Y}, id="a test set"),
    ],
)
def test_the_digest_depends_on(changed: dict[str, Any]) -> None:
    assert dataset(**changed).digest != dataset().digest


def test_the_digest_does_not_depend_on_the_name_or_the_memory_layout() -> None:
    ids = np.array(list("aabbcc"))
    plain = dataset(client_ids=ids)
    twin = Dataset(
        name="other",
        x=np.asfortranarray(X),
        y=np.repeat(Y, 2)[::2],
        num_classes=2,
        client_ids=ids.astype("U20"),
    )
    assert twin.digest == plain.digest


def test_the_digest_of_many_blocks_is_that_of_the_bytes() -> None:
    x = np.random.default_rng(0).random((3000, 2000), dtype=np.float32)
    y = np.zeros(3000, dtype=np.int64)
    whole = Dataset(name="a", x=x, y=y, num_classes=1).digest
    x[-1, -1] += 1
    assert Dataset(name="a", x=x, y=y, num_classes=1).digest != whole


def test_a_test_set_that_comes_with_the_data_is_used_as_it_is() -> None:
    parts = split(dataset(test_x=X[:2], test_y=Y[:2]), 0.5, seed=1)
    assert parts.test_x.tolist() == X[:2].tolist()
    assert parts.test_y.tolist() == [0, 0]
    assert parts.train.test_x is None
    assert parts.train.digest == dataset().digest


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=80), st.floats(0, 0.99), st.integers(0, 2**60)
)
def test_a_split_parts_the_samples_and_keeps_every_label(
    labels: list[int], fraction: float, seed: int
) -> None:
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    y = np.array(labels)
    train, test_x, test_y = split(Dataset(name="a", x=x, y=y, num_classes=5), fraction, seed)
    samples = np.concatenate([train.x, test_x])[:, 0].astype(int)
    assert sorted(samples.tolist()) == list(range(len(labels)))
    assert y[samples].tolist() == [*train.y.tolist(), *test_y.tolist()]
    assert set(train.y.tolist()) == set(labels)
    if fraction:
        assert set(test_y.tolist()) == {each for each in labels if labels.count(each) > 1}
    else:
        assert not len(test_y)


def test_a_split_is_stratified_and_repeatable() -> None:
    y = np.repeat([0, 1, 2], [700, 250, 50])
    x = np.arange(1000, dtype=np.float32)[:, None]
    whole = Dataset(name="a", x=x, y=y, num_classes=3)
    first, again, other = split(whole, 0.2, 1), split(whole, 0.2, 1), split(whole, 0.2, 2)
    assert np.bincount(first.test_y).tolist() == [140, 50, 10]
    assert first.test_x.tolist() == again.test_x.tolist()
    assert first.test_x.tolist() != other.test_x.tolist()


def test_a_split_leaves_tokens_as_they_are() -> None:
    train, test_x, test_y = split(dataset(x=X.astype(np.int64)), 0.3, 0)
    assert (train.x.dtype, test_x.dtype) == (np.int64, np.int64)
    assert sorted([*train.x[:, 0].tolist(), *test_x[:, 0].tolist()]) == X[:, 0].tolist()
    assert test_y.tolist() == [0, 1]


@given(st.lists(st.sampled_from("abcde"), min_size=2, max_size=40), st.integers(0, 2**60))
def test_a_split_loses_no_client(ids: list[str], seed: int) -> None:
    x = np.arange(len(ids), dtype=np.float32)[:, None]
    y = np.zeros(len(ids), dtype=np.int64)
    whole = Dataset(name="a", x=x, y=y, num_classes=1, client_ids=np.array(ids))
    train, test_x, _ = split(whole, 0.9, seed)
    assert train.client_ids is not None
    assert set(train.client_ids.tolist()) == set(ids)
    assert [ids[int(i)] for i in train.x[:, 0]] == train.client_ids.tolist()
    assert len(train.x) + len(test_x) == len(ids)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_fraction_that_leaves_nothing_is_refused(fraction: float) -> None:
    with pytest.raises(DataError, match=r"test_fraction is in \[0, 1\)"):
        split(dataset(), fraction, 0)


def test_a_data_set_is_changed_by_replace() -> None:
    assert replace(dataset(), name="other").digest == dataset().digest


WARDS = np.array(["a", "b", "a", "b", "a", "b"])


def test_what_else_is_known_is_part_of_the_digest() -> None:
    columns: list[dict[str, Any]] = [
        {},
        {"ward": WARDS},
        {"ward": WARDS[::-1]},
        {"floor": WARDS},
        {"ward": WARDS, "floor": WARDS},
    ]
    assert len({dataset(columns=each).digest for each in columns}) == len(columns)
    assert dataset().digest == dataset(columns={}).digest


def test_what_else_is_known_goes_with_the_samples() -> None:
    found = dataset(columns={"ward": WARDS}, client_ids=np.array(list("uuuxxx")))
    some = found.rows(np.array([4, 1]))
    assert some.columns["ward"].tolist() == ["a", "b"]
    assert some.client_ids is not None
    assert some.client_ids.tolist() == ["x", "u"]
    train, _, _ = split(found, 0.4, seed=1)
    assert len(train.columns["ward"]) == len(train.y) < 6


@pytest.mark.parametrize("column", [np.arange(6), WARDS[:5]], ids=["numbers", "too few"])
def test_a_column_that_is_no_text_for_each_sample_is_refused(column: Any) -> None:
    with pytest.raises(DataError, match=r"ward is text of shape \(6,\)"):
        dataset(columns={"ward": column})
