"""Nothing leaves a site of its data but what is declared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.mediator.core.rules.disclosure import (
    Declaration,
    Disclosed,
    Disclosure,
    Found,
    disclosed,
)

SECRET = b"\x01" * 32
SCANS = Declaration(
    name="scans",
    dataset_type="hospital.loaders:scans",
    options={"password": "hunter2"},
    path="/secret/folder",
    input_shape=(1, 28, 28),
    dtype="float32",
    num_classes=2,
    clients={"arise": "column", "column": "insurance_number"},
)
FOUND = Found(
    samples={"patient-b": 14, "patient-a": 5},
    labels={"ill": 3, "well": 16},
    client_labels={"patient-b": [3, 11], "patient-a": [0, 5]},
)
ALWAYS = {"schema", "residency", "clients"}


def told(**how: Any) -> dict[str, Any]:
    return disclosed(replace(SCANS, disclose=Disclosed(**how)), FOUND, SECRET)


def test_by_default_only_schema_residency_and_number_of_clients_leave() -> None:
    document = told()
    assert document == {
        "schema": {"input_shape": [1, 28, 28], "dtype": "float32", "num_classes": 2},
        "residency": "pinned",
        "clients": 2,
    }
    text = json.dumps(document)
    for secret in ("hunter2", "/secret", "patient", "insurance", "hospital"):
        assert secret not in text


@pytest.mark.parametrize(
    ("how", "more"),
    [
        pytest.param({"ids": True}, {"ids": ["patient-a", "patient-b"]}, id="ids"),
        pytest.param(
            {"counts": Disclosure.EXACT},
            {"counts": [5, 14], "counts_are": "exact"},
            id="exact counts",
        ),
        pytest.param(
            {"counts": Disclosure.ROUNDED},
            {"counts": [10, 10], "counts_are": "rounded"},
            id="rounded counts",
        ),
        pytest.param(
            {"label_histogram": Disclosure.EXACT},
            {"label_histogram": {"ill": 3, "well": 16}},
            id="an exact histogram",
        ),
        pytest.param(
            {"label_histogram": Disclosure.ROUNDED},
            {"label_histogram": {"ill": 0, "well": 20}},
            id="a rounded histogram",
        ),
        pytest.param(
            {"client_labels": Disclosure.EXACT},
            {"client_labels": [[0, 5], [3, 11]], "client_labels_are": "exact"},
            id="the labels of each client, in the order of their ids",
        ),
        pytest.param(
            {"client_labels": Disclosure.ROUNDED},
            {"client_labels": [[0, 10], [0, 10]], "client_labels_are": "rounded"},
            id="rounded labels of each client",
        ),
    ],
)
def test_what_is_declared_leaves_and_nothing_else(
    how: dict[str, Any], more: dict[str, Any]
) -> None:
    document = told(**how)
    assert {key: document[key] for key in document.keys() - ALWAYS} == more


def test_noise_stays_the_same_for_who_asks_again_and_differs_between_sites() -> None:
    many = Found(samples={f"c{i}": 1000 for i in range(200)})
    declared = replace(SCANS, disclose=Disclosed(counts=Disclosure.NOISED))
    first = disclosed(declared, many, SECRET)["counts"]
    assert disclosed(declared, many, SECRET)["counts"] == first
    assert disclosed(declared, many, b"\x02" * 32)["counts"] != first
    assert len(set(first)) > 5
    assert abs(sum(first) / len(first) - 1000) < 2, "it is not biased"


def test_noise_of_labels_is_drawn_for_each_client_and_label() -> None:
    """With the same numbers for all, only who they are about can tell them apart."""
    ids = [f"c{i}" for i in range(100)]
    alike = {id: [1000, 1000] for id in ids}
    many = Found(samples=dict.fromkeys(ids, 2000), client_labels=alike)
    declared = replace(SCANS, disclose=Disclosed(client_labels=Disclosure.NOISED))
    first = disclosed(declared, many, SECRET)["client_labels"]
    assert disclosed(declared, many, SECRET)["client_labels"] == first
    assert len({tuple(each) for each in first}) > 20
    assert any(one != other for one, other in first)
    some = Found(samples={"c7": 2000}, client_labels={"c7": [1000, 1000]})
    assert disclosed(declared, some, SECRET)["client_labels"] == [first[sorted(ids).index("c7")]]


@given(count=st.integers(0, 1_000_000), secret=st.binary(min_size=16, max_size=32))
def test_a_number_that_leaves_is_near_and_never_below_zero(count: int, secret: bytes) -> None:
    found = Found(samples={"a": count})
    for how, within in ((Disclosure.ROUNDED, 5), (Disclosure.NOISED, 100)):
        declared = replace(SCANS, disclose=Disclosed(counts=how))
        (number,) = disclosed(declared, found, secret)["counts"]
        assert number >= 0
        assert abs(number - count) <= within
        assert how is not Disclosure.ROUNDED or number % 10 == 0


def test_counts_that_nobody_knows_do_not_leave_as_zeros() -> None:
    declared = replace(SCANS, disclose=Disclosed(counts=Disclosure.EXACT))
    assert "counts" not in disclosed(declared, Found(samples={"a": None}), SECRET)
