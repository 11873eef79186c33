"""Philox4x64-10 for many counters at once, as NumPy's `Philox` draws (Salmon et al. 2011).

Compiled by Numba on the first call: NumPy takes longer to set a counter than to draw from it, and
array arithmetic needs a few hundred passes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .kernel import as_written

UInt64s = npt.NDArray[np.uint64]


def words(
    seed: int, stream: int, start: tuple[int, int, int], keys: UInt64s, count: int
) -> UInt64s:
    """The first `count` words of every key, equal to `np.random.Philox(...).random_raw(count)`.

    Philox's key is (`seed`, `stream`), its counter (start[0], start[1], key, start[2]). `keys` has
    the shape (k,), the result (k, count).
    """
    drawn = np.empty((len(keys), count), dtype=np.uint64)
    counter = np.array(start, dtype=np.uint64)
    _compiled()(np.uint64(seed), np.uint64(stream), counter, keys, drawn)
    return drawn


@cache
def _compiled() -> Callable[..., Any]:
    return as_written(_fill)


def _fill(seed, stream, start, keys, drawn):  # type: ignore[no-untyped-def]
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    f0, f1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
    g0, g1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
    for k in range(len(keys)):
        for block in range((drawn.shape[1] + 3) // 4):
            # NumPy increments the counter before it draws, so the first block has counter 1.
            c0, c1, c2, c3 = start[0] + np.uint64(block + 1), start[1], keys[k], start[2]
            k0, k1 = seed, stream
            for _ in range(10):
                a, b, c, d = f0 >> half, f0 & low, c0 >> half, c0 & low
                middle = a * d + (b * d >> half)
                high0 = a * c + (middle >> half) + ((b * c + (middle & low)) >> half)
                a, b, c, d = f1 >> half, f1 & low, c2 >> half, c2 & low
                middle = a * d + (b * d >> half)
                high1 = a * c + (middle >> half) + ((b * c + (middle & low)) >> half)
                c0, c1, c2, c3 = high1 ^ c1 ^ k0, f1 * c2, high0 ^ c3 ^ k1, f0 * c0
                k0 += g0
                k1 += g1
            at = 4 * block
            for i, word in enumerate((c0, c1, c2, c3)):
                if at + i < drawn.shape[1]:
                    drawn[k, at + i] = word
