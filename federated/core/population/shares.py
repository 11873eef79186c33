"""Shares of the population, the clients of a cohort in a share, and clients as a bitmap.

A share is a few ranges of client indices, or as many as a cut of a graph leaves. An order lists
them as [start, stop, step], or has a bitmap where that is shorter; both are checked here before
any use.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpilot.mediator.core.assignment.shares import Share as Share, members, share_of

from ...errors import FederatedError
from .sampling import Indices

Mask = npt.NDArray[np.bool_]


LISTED = 64
"""A share of at most so many ranges is listed, as every version understands."""
MOST_CLIENTS = 1 << 28
"""Larger indices are in no bitmap: to read one takes an eighth of this in bytes."""


def told(share: Iterable[range]) -> Any:
    """A share as JSON values."""
    ranges = tuple(share)
    end = max((each[-1] + 1 for each in ranges if each), default=0)
    if len(ranges) <= LISTED or end > MOST_CLIENTS:
        return [[each.start, each.stop, each.step] for each in ranges]
    return {"clients": packed(members(ranges), end), "of": end}


def taken(values: Any) -> Share:
    """The inverse of `told`; raises FederatedError for anything else."""
    if isinstance(values, dict):
        return _of_bitmap(values)
    if not isinstance(values, list):
        raise FederatedError(f"a share is a list of [start, stop, step], not {values!r:.60}")
    for each in values:
        if not (
            isinstance(each, list)
            and len(each) == 3
            and all(type(number) is int and 0 <= number < 2**63 for number in each)
            and each[2] > 0
        ):
            raise FederatedError(
                f"a share has ranges [start, stop, step] of clients, and step is at least 1; "
                f"found {each!r:.60}"
            )
    return tuple(range(*each) for each in values)


def _of_bitmap(values: dict[Any, Any]) -> Share:
    of, clients = values.get("of"), values.get("clients")
    if type(of) is not int or not 0 < of <= MOST_CLIENTS or not isinstance(clients, str):
        raise FederatedError(
            f"a share's bitmap has `clients`, a text, and `of`, from 1 to {MOST_CLIENTS}; "
            f"found {values!r:.60}"
        )
    return share_of(np.flatnonzero(unpacked(clients, of)))


def part_name(share: Sequence[range], counted: str = "") -> str:
    """A short name for the clients of an order; equal clients have equal names."""
    text = json.dumps([told(share), counted], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def held(clients: Indices, share: Iterable[range]) -> Mask:
    """(k,): which of some clients, ascending, are in a share."""
    ranges = tuple(share)
    plain = [each for each in ranges if each.step == 1]
    ends = np.array([(each.start, each.stop) for each in plain], dtype=np.int64).reshape(-1, 2)
    low, high = np.searchsorted(clients, ends).T
    begun = np.zeros(len(clients) + 1, dtype=np.int64)
    np.add.at(begun, low, 1)
    np.add.at(begun, np.maximum(low, high), -1)
    inside: Mask = np.cumsum(begun[:-1]) > 0
    for each in ranges:
        if each.step != 1:
            first, last = np.searchsorted(clients, (each.start, each.stop))
            inside[first:last] |= (clients[first:last] - each.start) % each.step == 0
    return inside


def packed(places: Indices, of: int) -> str:
    """Places of a cohort of size `of` as text, short where many are adjacent."""
    inside = np.zeros(of, dtype=bool)
    inside[places] = True
    bits = np.packbits(inside).tobytes()
    return base64.b64encode(zlib.compress(bits, 6)).decode()


def unpacked(text: str, of: int) -> Mask:
    """The inverse of `packed`: one flag per place; FederatedError if the size is not `of`."""
    size = -(-of // 8)
    try:
        opened = zlib.decompressobj()
        bits = opened.decompress(base64.b64decode(text, validate=True), size + 1)
    except (ValueError, zlib.error) as error:
        raise FederatedError(f"this is no bitmap of {of} clients: {error}") from error
    flags = np.unpackbits(np.frombuffer(bits, dtype=np.uint8)).astype(bool)
    if len(bits) != size or flags[of:].any():
        raise FederatedError(f"wanted a bitmap of {of} clients, found one of another size")
    return flags[:of]
