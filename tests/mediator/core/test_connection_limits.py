"""Strangers leave room for those who are known, and the log says where they came from, briefly."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from fedpilot.mediator.core.connection_limits import (
    MOST_ADDRESSES,
    ConnectionLimits,
    OpenConnection,
    PeerAddress,
    Places,
    TurnedAway,
    Why,
    fitting,
    peer_named,
    to_close,
)

LIMITS = ConnectionLimits(strangers=4, of_address=3, stranger_s=30)


def connections(*told: tuple[str, int, float, bool]) -> list[OpenConnection]:
    return [
        OpenConnection(PeerAddress(address, port), since, known)
        for address, port, since, known in told
    ]


def closed(*told: tuple[str, int, float, bool], now: float = 20.0) -> list[tuple[str, int, Why]]:
    found = to_close(connections(*told), now, LIMITS)
    return [(each.peer.address, each.peer.port, why) for each, why in found]


@pytest.mark.parametrize(
    ("told", "going"),
    [
        pytest.param([("a", port, 10, False) for port in range(4)], [], id="some strangers"),
        pytest.param(
            [("a", port, 10, True) for port in range(3)], [], id="some of one address, known"
        ),
        pytest.param(
            [("a", 1, 9, True), ("a", 2, -9, True), ("b", 3, -11, False)],
            [("b", 3, Why.TOO_LONG)],
            id="a stranger that stays; who is known may stay",
        ),
        pytest.param(
            [("a", 4, 13, True), ("a", 3, 12, True), ("a", 2, 11, True), ("a", 1, 10, True)],
            [("a", 4, Why.OF_ADDRESS)],
            id="of one address too many that are known: the last one",
        ),
        pytest.param(
            [("a", port, 19 - port, False) for port in range(5)] + [("b", 9, 1, False)],
            [("a", 4, Why.STRANGERS), ("a", 3, Why.STRANGERS)],
            id="too many strangers: the oldest of the address that has most",
        ),
        pytest.param(
            [("a", port, 19, True) for port in range(3)] + [("a", 9, 1, False)],
            [],
            id="who is known takes no room from strangers",
        ),
    ],
)
def test_what_is_closed(
    told: list[tuple[str, int, float, bool]], going: list[tuple[str, int, Why]]
) -> None:
    assert closed(*told) == going


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdef"), st.integers(1, 10**4), st.floats(0, 40), st.booleans()
        ),
        unique_by=lambda each: each[:2],
    )
)
def test_whoever_comes_limits_are_kept_and_nobody_goes_without_need(
    told: list[tuple[str, int, float, bool]],
) -> None:
    all_ = connections(*told)
    going = dict(to_close(all_, 40.0, LIMITS))
    staying = [each for each in all_ if each not in going]
    strangers = Counter(each.peer.address for each in staying if not each.known)
    assert strangers.total() <= LIMITS.strangers
    assert all(
        count <= LIMITS.of_address
        for count in Counter(each.peer.address for each in staying if each.known).values()
    )
    pushed = [each for each, why in going.items() if why is Why.STRANGERS]
    if pushed:
        assert strangers.total() == LIMITS.strangers
        fewest = max(strangers.values(), default=0) - 1
        assert all(strangers[each.peer.address] >= fewest for each in pushed)
    for each, why in going.items():
        assert each.known is (why is Why.OF_ADDRESS)


def test_what_came_to_nothing_is_one_line() -> None:
    turned = TurnedAway()
    turned.count("203.0.113.9", Why.LEFT, 580)
    turned.count("203.0.113.9", Why.STRANGERS, 10)
    for last in range(8):
        turned.count(f"198.51.100.{last}", Why.LEFT)
    line = turned.line(60)
    assert line.startswith("598 connections came to nothing in 60 s (598 a minute), 590 from 203.")
    assert "4 from 4 other addresses" in line
    assert line.endswith("10 closed, too many such at once, 588 ended without an admitted call")
    assert turned.line(60) == ""


def test_a_million_addresses_are_no_million_counts() -> None:
    turned = TurnedAway()
    for number in range(3 * MOST_ADDRESSES):
        turned.count(str(number), Why.LEFT)
    assert len(turned._ended) <= MOST_ADDRESSES + 1
    line = turned.line(60)
    assert line.startswith(f"{3 * MOST_ADDRESSES} connections")
    assert f"{2 * MOST_ADDRESSES} from others" in line
    assert len(line) < 500


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:127.0.0.1:4711", PeerAddress("127.0.0.1", 4711)),
        ("ipv6:%5B::1%5D:80", PeerAddress("::1", 80)),
        ("ipv6:[2001:db8:0::1]:80", PeerAddress("2001:db8::1", 80)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:80", PeerAddress("10.0.0.1", 80)),
        ("unix:/tmp/x", None),
        ("ipv4:nobody:80", None),
        ("ipv4:127.0.0.1", None),
        ("", None),
    ],
)
def test_a_peer_is_read_as_grpc_says_it(text: str, peer: PeerAddress | None) -> None:
    assert peer_named(text) == peer


@pytest.mark.parametrize(
    ("descriptors", "fits"),
    [
        pytest.param(65_536, Places(4_096, 512), id="as many as are wanted"),
        pytest.param(1_024, Places(614, 153), id="a quarter is the most for strangers"),
        pytest.param(100, Places(64, 16), id="never fewer than some"),
    ],
)
def test_connections_fit_into_what_the_system_allows(descriptors: int, fits: Places) -> None:
    assert fitting(descriptors, 4_096, 512) == fits
