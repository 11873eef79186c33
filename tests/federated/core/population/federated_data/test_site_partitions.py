"""A site knows its own clients, the coordinator all ids, and neither makes samples up."""

from __future__ import annotations

import numpy as np
import pytest

from fedpilot.federated.core.population.federated_data.errors import NotHere
from fedpilot.federated.core.population.federated_data.place import Place
from fedpilot.federated.core.population.federated_data.site_partitions import Elsewhere, SiteClients
from fedpilot.federated.core.population.partitions.disjoint import natural
from fedpilot.federated.core.population.partitions.partition import UnknownClient
from fedpilot.federated.core.randomness import client_key
from unions import union_of


def held(place: Place) -> SiteClients:
    own = natural(np.array(["c", "a", "a", "b"]))
    return SiteClients(place.first, place.population, own)


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
