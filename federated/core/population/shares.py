"""Shares of the population, the clients of a cohort in a share, and clients as a bitmap.

A share is a few ranges of client indices. An order lists them as [start, stop, step]; they are
checked here before any use.
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

from ...errors import FederatedError
from .sampling import Indices

Share = tuple[range, ...]
Mask = npt.NDArray[np.bool_]


def told(share: Iterable[range]) -> list[list[int]]:
    """A share as JSON values."""
    return [[each.start, each.stop, each.step] for each in share]


def taken(values: Any) -> Share:
    """The inverse of `told`; raises FederatedError for anything else."""
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


def part_name(share: Sequence[range], counted: str = "") -> str:
    """A short name for the clients of an order; equal clients have equal names."""
    text = json.dumps([told(share), counted], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def held(clients: Indices, share: Iterable[range]) -> Mask:
    inside = np.zeros(len(clients), dtype=bool)
    for each in share:
        low, high = np.searchsorted(clients, (each.start, each.stop))
        if each.step == 1:
            inside[low:high] = True
        else:
            inside[low:high] |= (clients[low:high] - each.start) % each.step == 0
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
