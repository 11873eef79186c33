"""Which connections to a mediator are closed, and the log lines about them.

A connection is a stranger's until a call on it is admitted. Strangers may hold a fixed number of
connections; the rest stay free for known sites and users. If there are too many strangers, the
address with the most loses its oldest first: an honest peer needs less than a second. Known
connections have a generous limit per address, since hospitals behind one firewall share one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import unquote

MOST_ADDRESSES = 1_000
"""Addresses that are counted separately between two log lines."""
MOST_SHOWN = 5
"""Addresses that a log line names."""


class PeerAddress(NamedTuple):
    """The remote end of a connection."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class OpenConnection:
    peer: PeerAddress
    since: float
    known: bool
    """Whether a call on the connection was admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on open connections."""

    strangers: int
    """Connections without an admitted call."""
    of_address: int
    """Connections with admitted calls from one address."""
    stranger_s: float
    """How long a connection may stay without an admitted call."""


class Why(StrEnum):
    """Why a connection ended without an admitted call, or was closed by the mediator."""

    LEFT = "ended without an admitted call"
    TOO_LONG = "closed, for long without an admitted call"
    STRANGERS = "closed, too many such at once"
    OF_ADDRESS = "closed, too many of one address"


def to_close(
    connections: Iterable[OpenConnection], now: float, limits: ConnectionLimits
) -> list[tuple[OpenConnection, Why]]:
    closed: list[tuple[OpenConnection, Why]] = []
    strangers: defaultdict[str, list[OpenConnection]] = defaultdict(list)
    known: defaultdict[str, list[OpenConnection]] = defaultdict(list)
    for each in sorted(connections, key=lambda c: (c.since, c.peer)):
        if each.known:
            known[each.peer.address].append(each)
        elif now - each.since >= limits.stranger_s:
            closed.append((each, Why.TOO_LONG))
        else:
            strangers[each.peer.address].append(each)
    for address in sorted(known):  # the newest ones: the others are at work
        closed += [(each, Why.OF_ADDRESS) for each in known[address][limits.of_address :]]
    too_many = sum(map(len, strangers.values())) - limits.strangers
    if too_many > 0:
        left = _levelled({address: len(each) for address, each in strangers.items()}, too_many)
        for address in sorted(strangers):
            going = strangers[address][: len(strangers[address]) - left[address]]
            closed += [(each, Why.STRANGERS) for each in going]
    return closed


def _levelled(counts: dict[str, int], too_many: int) -> dict[str, int]:
    """Reduce counts by `too_many` in total, always taking one from the largest."""
    low, high = 0, max(counts.values())
    while low < high:  # the lowest level that takes at most `too_many`
        level = (low + high) // 2
        if sum(max(0, count - level) for count in counts.values()) > too_many:
            low = level + 1
        else:
            high = level
    left = {name: min(count, low) for name, count in counts.items()}
    rest = too_many - sum(counts.values()) + sum(left.values())
    for name in sorted(name for name, count in left.items() if count == low)[:rest]:
        left[name] -= 1
    return left


class TurnedAway:
    """Counts connections that came to nothing since the last log line about them."""

    def __init__(self) -> None:
        self._ended: Counter[tuple[str, Why]] = Counter()

    def count(self, address: str, why: Why, times: int = 1) -> None:
        """Count ended connections; beyond MOST_ADDRESSES, new addresses are counted together."""
        named = (address, why) in self._ended or len(self._ended) < MOST_ADDRESSES
        self._ended[address if named else "", why] += times

    def line(self, since_s: float) -> str:
        """Return the counts of the last `since_s` seconds as a log line; reset them."""
        ended, self._ended = self._ended, Counter()
        if not ended:
            return ""
        of_address: Counter[str] = Counter()
        of_reason: Counter[Why] = Counter()
        for (address, why), times in ended.items():
            of_address[address] += times
            of_reason[why] += times
        total = sum(of_reason.values())
        reasons = ", ".join(f"{times} {why}" for why, times in sorted(of_reason.items()))
        shown = of_address.most_common(MOST_SHOWN)
        named = [f"{times} from {address or 'others'}" for address, times in shown]
        if rest := len(of_address) - len(shown):
            others = total - sum(times for _, times in shown)
            named.append(f"{others} from {rest} other addresses")
        since_s = max(since_s, 1.0)
        rate = 60.0 * total / since_s
        return (
            f"{total} connections came to nothing in {since_s:.0f} s ({rate:.0f} a minute), "
            f"{', '.join(named)}: {reasons}"
        )


def peer_named(text: str) -> PeerAddress | None:
    """Parse gRPC's text about the peer of a call; None without an IP address and port."""
    kind, _, where = text.partition(":")
    host, colon, port = unquote(where).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not colon or not port.isdecimal():
        return None
    try:
        return PeerAddress(plain_address(host.strip("[]")), int(port))
    except ValueError:
        return None


def plain_address(text: str) -> str:
    """Normalize an IP address; an IPv4-mapped IPv6 address turns into IPv4."""
    found = ip_address(text)
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or ip_address(text.partition("%")[0])
    return str(found)


@dataclass(frozen=True, slots=True)
class Places:
    """The connections for which a process has file descriptors."""

    connections: int
    strangers: int


OTHER_DESCRIPTORS = 256
"""Reserved for the database, blobs in transfer, coordinators and logs."""
FEWEST = 64


def fitting(descriptors: int, connections: int, strangers: int) -> Places:
    """Cap connections by the file descriptors; strangers get a quarter at most.

    The port for joining takes as many again as there may be strangers.
    """
    most = max(FEWEST, min(connections, (descriptors - OTHER_DESCRIPTORS) * 4 // 5))
    return Places(most, max(1, min(strangers, most // 4)))
