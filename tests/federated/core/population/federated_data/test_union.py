"""Who the clients of a union are: their places, their names and their samples."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.federated_data.errors import UnionError
from fedpilot.federated.core.population.federated_data.site_partitions import Elsewhere
from fedpilot.federated.core.population.federated_data.union import described
from fedpilot.federated.core.randomness import client_key
from unions import SCHEMA, union_of

sizes = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True), st.integers(1, 9), min_size=1, max_size=5
)


@given(sizes)
def test_sites_have_contiguous_parts_in_the_order_of_their_names(sites: dict[str, int]) -> None:
    union = union_of(**{name: {"clients": clients} for name, clients in sites.items()})
    ranges = [indices for name in sorted(sites) for indices in union.pinned[name]]
    assert [index for indices in ranges for index in indices] == list(range(union.population))
    assert {name: len(union.place_of(name).here) for name in sites} == sites


@given(sizes)
def test_ids_and_places_are_each_others_inverse(sites: dict[str, int]) -> None:
    union = union_of(**{name: {"clients": clients} for name, clients in sites.items()})
    everybody = Elsewhere(union)
    names = [everybody.client_id(index) for index in range(union.population)]
    assert [everybody.index_of(name) for name in names] == list(range(union.population))
    assert len(set(names)) == len(names)


@given(sizes, sizes)
def test_a_clients_name_and_key_depend_on_its_site_alone(
    some: dict[str, int], others: dict[str, int]
) -> None:
    union = union_of(**{name: {"clients": n} for name, n in {**others, **some}.items()})
    for site, clients in some.items():
        place = union.place_of(site)
        assert [Elsewhere(union).client_id(index) for index in place.here] == [
            f"{site}/client_{number}" for number in range(clients)
        ]


def test_the_key_of_a_numbered_client_is_that_of_its_name() -> None:
    union = union_of(paris={"clients": 3}, lyon={"clients": 2})
    part = union.parts[1]
    assert part.sites == ("paris",)
    assert part.ids.keys([2]).tolist() == [client_key("paris/client_2")]


SAME = {"ids": ["a", "b", "c"], "residency": "movable"}


@pytest.mark.parametrize(
    ("one", "two", "population"),
    [
        pytest.param(SAME, SAME, 3, id="movable and the same"),
        pytest.param(SAME, {"ids": ["x", "y", "z"], "residency": "movable"}, 6, id="others"),
        pytest.param({"residency": "movable"}, {"residency": "movable"}, 6, id="without ids"),
    ],
)
def test_clients_are_movable_where_all_sites_hold_them(
    one: dict[str, Any], two: dict[str, Any], population: int
) -> None:
    union = union_of(one=one, two=two)
    assert union.population == population
    assert (union.pinned == {}) == (population == 3)


@pytest.mark.parametrize(
    ("sites", "text"),
    [
        pytest.param({}, "no site declares data set scans", id="nobody"),
        pytest.param(
            {"one": SAME, "two": {**SAME, "residency": "pinned"}}, "'a' at site one and at site",
            id="the same clients, which may not move",
        ),
        pytest.param(
            {"one": SAME, "two": {"ids": ["c", "d", "e"], "residency": "movable"}},
            "'c' at site one and at site two", id="some of them the same",
        ),
        pytest.param(
            {"one": {"clients": 1, "ids": ["two/client_1"]}, "two": {}},
            "'two/client_1' at site two and at site one", id="an id like another's number",
        ),
        pytest.param(
            {"one": {}, "two": {"schema": {**SCHEMA, "dtype": "int64"}}},
            r"one: float32 of shape \[1, 28, 28\], 10 classes; two: int64", id="another type",
        ),
    ],
)  # fmt: skip
def test_sites_that_do_not_fit_are_refused(sites: dict[str, Any], text: str) -> None:
    with pytest.raises(UnionError, match=text):
        union_of(**sites)


def test_a_site_that_declared_nothing_has_no_place() -> None:
    with pytest.raises(UnionError, match="site oslo did not declare data set scans before"):
        union_of(paris={}).place_of("oslo")


def test_the_digest_is_of_what_is_disclosed() -> None:
    first = union_of(paris={}, lyon={}).digest
    assert first == union_of(lyon={}, paris={}).digest
    others = [
        union_of(paris={}, lyon={"clients": 4}),
        union_of(paris={}, lyon={"ids": list("abc")}),
        union_of(paris={}, lyon={"client_labels": [[1] * 10] * 3}),
    ]
    assert len({first, *(other.digest for other in others)}) == 4


def test_samples_are_known_if_all_sites_tell() -> None:
    assert described(union_of(east={}, west={"counts": [1, 2, 3]})).samples_min is None
    found = described(union_of(east={"counts": [9, 5, 7]}, west={"counts": [1, 2, 3]}))
    assert (found.samples_min, found.samples_median, found.samples_max) == (1, 4.0, 9)


def test_labels_are_known_if_all_sites_tell() -> None:
    east, west = [[1] * 10] * 3, [[2] * 10] * 3
    some = union_of(east={}, north={"client_labels": east}, west={})
    assert (some.labels(), some.without_labels) == (None, ("east", "west"))
    every = union_of(west={"client_labels": west}, east={"client_labels": east})
    found = every.labels()
    assert found is not None
    assert (found.tolist(), every.without_labels) == ([*east, *west], ())
