"""Decides how much of a list goes into one answer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

TOLD_TOGETHER_BYTES = 2 << 20
"""Bytes of an answer with a list, well below the limit of a message."""


def how_many_fit(texts: Iterable[str], most_bytes: int) -> int:
    """How many of the first texts fit into `most_bytes`; at least one, if there is any."""
    sizes = accumulate(len(text.encode()) for text in texts)
    return sum(size <= most_bytes or number == 0 for number, size in enumerate(sizes))
