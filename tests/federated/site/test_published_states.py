"""What clients publish is checked at each site, and given to others with its readers there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpilot.federated.core.state import Array, digest
from fedpilot.federated.core.sums.amounts import AnswerRefused
from fedpilot.federated.site.object_store import GlobalObjectStore
from fedpilot.federated.site.published_states import GIVEN, KEPT, LACKING, PublishedStates
from fedpilot.mediator import Payload

MODEL = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}
KEY = "run/client_7/round_1"


@pytest.fixture
def store(tmp_path: Path) -> GlobalObjectStore:
    return GlobalObjectStore(lambda value: value, limit_bytes=1000, folder=tmp_path)


@pytest.fixture
def published(store: GlobalObjectStore) -> PublishedStates:
    return PublishedStates(store, MODEL)


def ones(value: float = 1) -> dict[str, Array]:
    return {name: np.full_like(array, value) for name, array in MODEL.items()}


def keeping(state: dict[str, Array], key: str = KEY, of: int = 7, **header: Any) -> Payload:
    header = {"readers": [7, 8], "client": of, **header}
    told = {"key": key, "of": of, "digest": digest(state), **header}
    return Payload(kind="node.keep", header=told, tensors=state)


def giving(state: dict[str, Array], *readers: int) -> Payload:
    header = {"key": KEY, "digest": digest(state), "client": 7, "readers": list(readers)}
    return Payload(kind="node.give", header=header)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"w": ones()["w"]}, id="a tensor less"),
        pytest.param({**ones(), "c": np.zeros(1)}, id="a tensor more"),
        pytest.param({**ones(), "b": np.zeros(4, np.float32)}, id="another shape"),
        pytest.param({**ones(), "b": np.zeros(3)}, id="another type"),
    ],
)
def test_what_is_no_model_of_the_federation_is_not_kept(
    state: dict[str, Array], published: PublishedStates, store: GlobalObjectStore
) -> None:
    with pytest.raises(AnswerRefused):
        published.keep(keeping(state))
    assert (store.size(), store.memory_bytes) == (0, 0)


def test_it_is_given_with_those_of_the_readers_that_are_to_come(
    published: PublishedStates, store: GlobalObjectStore
) -> None:
    state = ones()
    assert published.keep(keeping(state, readers=[7, 8, 9])).result().kind == KEPT
    published.finish([(KEY, digest(state))], 8)
    given = published.give(giving(state, 8, 9)).result()
    assert (given.kind, given.header) == (GIVEN, {"readers": [9]})
    assert digest(given.tensors) == digest(state)
    assert store.size() == 1, "its own client has not read it"
    published.give(giving(state, 7))
    assert store.size() == 0
    gone = published.give(giving(state, 7)).result()
    assert (gone.kind, gone.header) == (LACKING, {"keys": [KEY]})


def test_an_earlier_state_of_the_same_key_is_not_the_one_that_is_wanted(
    published: PublishedStates,
) -> None:
    published.keep(keeping(ones(1)))
    assert published.lacking([(KEY, digest(ones(1)))]) == []
    assert published.lacking([(KEY, digest(ones(2)))]) == [KEY]
    assert published.give(giving(ones(2), 7)).result().kind == LACKING


def test_a_clients_next_state_replaces_its_last(
    published: PublishedStates, store: GlobalObjectStore
) -> None:
    published.keep(keeping(ones(1)))
    published.keep(keeping(ones(1), "run/client_8/round_1", of=8))
    published.keep(keeping(ones(2), "run/client_7/round_2"))
    assert store.keys() == ("run/client_8/round_1", "run/client_7/round_2")
