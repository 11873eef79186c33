"""When replicas are due, and how a run goes on without a site."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.federated.core.rounds.replicas import Copy, Replica, WayBack, is_due, way_back
from fedpilot.federated.errors import RunRefused

A, B, C = (range(0, 4),), (range(4, 8),), (range(8, 10),)
SHARES = {"a": A, "b": B, "c": C}
COPIES = [
    Copy(site="a", clients=A, holder="b"),
    Copy(site="b", clients=B, holder="c"),
    Copy(site="c", clients=C, holder=""),
]
LAST = Replica(round_number=4, copies=COPIES)


@pytest.mark.parametrize(
    ("last", "number", "shares", "due"),
    [
        pytest.param(None, 0, SHARES, False, id="not before the first round"),
        pytest.param(None, 1, SHARES, False, id="not before it is the time"),
        pytest.param(None, 2, SHARES, True, id="when it is the time"),
        pytest.param(None, 3, SHARES, True, id="again if the first one failed"),
        pytest.param(LAST, 4, SHARES, False, id="once for a round"),
        pytest.param(LAST, 5, SHARES, False, id="not before it is the time again"),
        pytest.param(LAST, 6, SHARES, True, id="when it is the time again"),
        pytest.param(LAST, 9, SHARES, True, id="again if a later one failed"),
        pytest.param(LAST, 10, SHARES, False, id="not after the last round"),
        pytest.param(LAST, 4, {"a": (range(0, 8),), "c": C}, True, id="anew if clients moved"),
        pytest.param(LAST, 4, {"a": A, "c": C}, False, id="not for sites without clients"),
    ],
)
def test_a_replica_is_due(
    last: Replica | None, number: int, shares: dict[str, Any], due: bool
) -> None:
    assert is_due(last, 2, number, 10, shares) == due


@pytest.mark.parametrize(
    ("last", "lost", "found"),
    [
        pytest.param(LAST, {"a": A}, {"a": "b"}, id="a lost site's clients go on at its holder"),
        pytest.param(None, {"a": A}, "no replica was made yet of the clients of site a", id="none"),
        pytest.param(
            LAST,
            {"a": A, "b": B},
            "the replica of site a after round 4 is at site b, which is not there either",
            id="nor is its holder there",
        ),
        pytest.param(
            LAST, {"c": C}, "no other site has a replica of the clients of site c", id="no room"
        ),
        pytest.param(
            LAST,
            {"b": (range(0, 8),)},
            "no other site has a replica of the clients of site b",
            id="a replica is of no use if clients came since",
        ),
    ],
)
def test_the_way_back(last: Replica | None, lost: dict[str, Any], found: Any) -> None:
    there = sorted(SHARES.keys() - lost.keys())
    wanted = found if isinstance(found, str) else WayBack(round_number=4, holders=found)
    assert way_back(last, lost, there) == wanted


def test_a_lost_site_has_neither_clients_nor_copies() -> None:
    assert LAST.without(["b"]).copies == COPIES[2:]
    assert LAST.without(["c"]).copies == COPIES[:1]


def test_a_replica_without_what_an_earlier_one_has_does_not_take_its_place() -> None:
    empty = [Copy(site=each.site, clients=each.clients, holder="") for each in COPIES]
    assert Replica(round_number=6, copies=empty).lacking(LAST) == ["a", "b"]
    assert Replica(round_number=4, copies=empty).lacking(LAST) == [], "of the same round"
    moved = [Copy(site="a", clients=(range(0, 8),), holder="")]
    assert Replica(round_number=6, copies=moved).lacking(LAST) == [], "of no use any more"
    assert LAST.lacking(Replica(round_number=2, copies=empty)) == []


def test_a_record_reads_back_the_same() -> None:
    assert Replica.from_json(LAST.to_json(), "it") == LAST


@pytest.mark.parametrize(
    "values", [None, [], {}, {"format": 2}, {"format": 1, "round": 3, "copies": [{}]}, "text"]
)
def test_a_spoilt_record_is_refused_by_name(values: Any) -> None:
    with pytest.raises(RunRefused, match=r"replicas\.json"):
        Replica.from_json(values, "journal/replicas.json")
