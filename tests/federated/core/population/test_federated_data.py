"""Who the clients of a union are: their places, their names and their random keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.federated_data import (
    BadDeclaration,
    Declared,
    Elsewhere,
    Held,
    NotHere,
    Place,
    Union,
    UnionError,
    described,
    united,
)
from fedpilot.federated.core.population.partition import UnknownClient, natural
from fedpilot.federated.core.randomness import client_key

SCHEMA = {"input_shape": [1, 28, 28], "dtype": "float32", "num_classes": 10}
PATTERN = "client_{index}"


def told(clients: int = 3, **more: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, "residency": "pinned", "clients": clients, **more}


def declared(site: str, **more: Any) -> Declared:
    return Declared.from_json(site, "scans", told(**more))


def union_of(**sites: dict[str, Any]) -> Union:
    known = {name: Declared.from_json(name, "scans", told(**more)) for name, more in sites.items()}
    return united("scans", known, pattern=PATTERN)


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


def held(place: Place) -> Held:
    own = natural(np.array(["c", "a", "a", "b"]))
    return Held(place.first, place.population, own)


def test_a_site_knows_its_own_clients_and_no_others() -> None:
    union = union_of(east={"clients": 2}, west={"ids": ["a", "b", "c"]}, north={"clients": 5})
    place = union.place_of("west")
    part = held(place)
    assert list(place.here) == [7, 8, 9] == list(part.here)
    assert part.number_of_clients == 10
    assert [part.client_id(index) for index in part.here] == ["a", "b", "c"]
    assert part.index_of("b") == 8
    assert part.sizes([9, 7]).tolist() == [1, 2] == [part.size(9), part.size(7)]
    assert part.indices(7).tolist() == [1, 2]
    rows, counts = part.rows([8, 7])
    assert (rows.tolist(), counts.tolist()) == ([3, 1, 2], [1, 2])
    assert part.keys([9]).tolist() == [client_key("c")]
    for ask in (part.client_id, part.size, part.indices):
        with pytest.raises(NotHere, match="number 6"):
            ask(6)
    with pytest.raises(NotHere, match="number 10"):
        part.rows([7, 10])
    with pytest.raises(UnknownClient):
        part.index_of("east/client_0")


def test_the_key_of_a_numbered_client_is_that_of_its_name() -> None:
    union = union_of(paris={"clients": 3}, lyon={"clients": 2})
    part = union.parts[1]
    assert part.sites == ("paris",)
    assert part.ids.keys([2]).tolist() == [client_key("paris/client_2")]


def test_whoever_holds_no_samples_is_told_whose_they_are() -> None:
    union = union_of(paris={"clients": 3})
    everybody = Elsewhere(union)
    for ask in (everybody.indices, everybody.size):
        with pytest.raises(NotHere, match="paris/client_1"):
            ask(1)
    for ask_some in (everybody.rows, everybody.sizes, everybody.keys):
        with pytest.raises(NotHere, match="paris/client_2"):
            ask_some([2, 1])
    with pytest.raises(UnknownClient, match="paris/client_0 to paris/client_2"):
        everybody.index_of("lyon/client_0")


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


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([], id="no section"),
        pytest.param(told(clients=0), id="no clients"),
        pytest.param(told(clients=1 << 50), id="too many clients"),
        pytest.param(told(clients=True), id="a truth value"),
        pytest.param(told(residency="here"), id="another residency"),
        pytest.param(told(ids=["a", "b"]), id="too few ids"),
        pytest.param(told(ids=["b", "a", "c"]), id="ids out of order"),
        pytest.param(told(ids=["a", "a", "b"]), id="an id twice"),
        pytest.param(told(ids=["a", "b", 3]), id="an id that is a number"),
        pytest.param(told(ids=["a", "b", "c\n"]), id="an id with a line end"),
        pytest.param(told(ids=["a", "b", "c" * 300]), id="a long id"),
        pytest.param(told(counts=[1, 2]), id="too few counts"),
        pytest.param(told(counts=[1, 2, -3]), id="a negative count"),
        pytest.param(told(schema=None), id="no schema"),
        pytest.param(told(schema={**SCHEMA, "input_shape": [1 << 20, 1 << 20]}), id="a huge one"),
        pytest.param(told(schema={**SCHEMA, "input_shape": []}), id="no dimensions"),
        pytest.param(told(schema={**SCHEMA, "input_shape": [-1]}), id="a negative length"),
        pytest.param(told(schema={**SCHEMA, "dtype": "object"}), id="objects"),
        pytest.param(told(schema={**SCHEMA, "num_classes": None}), id="no classes"),
    ],
)
def test_what_a_site_cannot_mean_is_refused(values: Any) -> None:
    with pytest.raises(BadDeclaration, match="site paris declares data set scans"):
        Declared.from_json("paris", "scans", values)


def test_a_site_without_a_right_name_is_refused() -> None:
    with pytest.raises(BadDeclaration, match="its own name is none"):
        declared("../paris")


def test_a_place_comes_back_from_json() -> None:
    place = union_of(east={}, west={"ids": ["a", "b", "c"]}).place_of("west")
    assert Place.from_json(place.to_json()) == place


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"first": 4}, id="beyond the population"),
        pytest.param({"clients": -1}, id="negative"),
        pytest.param({"more": 1}, id="a key too many"),
        pytest.param({"pattern": None}, id="no pattern"),
    ],
)
def test_a_wrong_place_is_refused(change: dict[str, Any]) -> None:
    values = union_of(east={}, west={}).place_of("west").to_json()
    with pytest.raises(UnionError, match="wanted"):
        Place.from_json({**values, **change})


def test_a_site_that_declared_nothing_has_no_place() -> None:
    with pytest.raises(UnionError, match="site oslo did not declare data set scans before"):
        union_of(paris={}).place_of("oslo")


def test_the_digest_is_of_what_is_disclosed() -> None:
    first = union_of(paris={}, lyon={}).digest
    assert first == union_of(lyon={}, paris={}).digest
    others = [
        union_of(paris={}, lyon={"clients": 4}),
        union_of(paris={}, lyon={"ids": list("abc")}),
    ]
    assert len({first, *(other.digest for other in others)}) == 3


def test_samples_are_known_if_all_sites_tell() -> None:
    assert described(union_of(east={}, west={"counts": [1, 2, 3]})).samples_min is None
    found = described(union_of(east={"counts": [9, 5, 7]}, west={"counts": [1, 2, 3]}))
    assert (found.samples_min, found.samples_median, found.samples_max) == (1, 4.0, 9)
