"""Own every random number: a stream is named by what it is for, never by who drew before it.

The rules it keeps:

* a stream is a pure function of (seed, purpose, round, key); no state is saved or passed on;
* streams of different names never overlap, so neither the order of use nor the number of workers
  changes what anybody draws;
* a client's key comes from its id alone, never from where it runs or how many clients there are.

The generator is Philox4x64-10, which turns a counter into random words without a state
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]

SEED_LIMIT = 1 << 63
"""Seeds are integers in [0, SEED_LIMIT)."""

_WORD = 1 << 64
_MASK = _WORD - 1
_STREAM, _SEEDING, _SINGLE = 0, 1, 2
"""The last word of the counter keeps streams, seeds for PyTorch and single draws apart."""


class Purpose(IntEnum):
    """What random numbers are for. The values are part of every result: add, never renumber."""

    INIT = 1
    """The first weights of a model."""
    SPLIT = 2
    """Which samples are held out for testing."""
    PARTITION = 3
    """Which client gets which samples, in a disjoint partition."""
    COHORT = 4
    """Which clients take part in a round."""
    TRAIN = 5
    """A client's own training: the order of its samples, its dropout."""
    BOOTSTRAP = 6
    """Which samples a client draws with replacement."""
    BOOTSTRAP_SIZE = 7
    """How many samples such a client has."""
    EVALUATION = 8
    """Which clients or samples an evaluation looks at."""
    SYNTHETIC = 9
    """Samples made out of nothing."""


def stream(seed: int, purpose: Purpose, *, round: int = 0, key: int = 0) -> np.random.Generator:
    """Give the random stream of this name, at its beginning.

    `seed` is in [0, 2**63), `round` and `key` in [0, 2**64); others raise `ValueError`.
    """
    return np.random.Generator(_philox(seed, purpose, round, key, _STREAM))


def torch_seed(seed: int, purpose: Purpose, *, round: int = 0, key: int = 0) -> int:
    """Give a seed for a `torch.Generator`, in [0, 2**63), from the name that a stream has.

    It has nothing in common with what `stream` draws under the same name. PyTorch's generator on
    the CPU looks at the low 32 bits only.
    """
    return int(_philox(seed, purpose, round, key, _SEEDING).random_raw()) >> 1


def one(seed: int, purpose: Purpose, bound: int, *, round: int = 0, key: int = 0) -> int:
    """Draw one integer in [0, bound), `bound` being in [1, 2**32]; the bias is below 2**-32.

    It has nothing in common with what `stream` draws under the same name.
    """
    _check_bound(bound)
    return int(_philox(seed, purpose, round, key, _SINGLE).random_raw()) * bound >> 64


def one_per_key(
    seed: int, purpose: Purpose, keys: UInt64s, bound: int, *, round: int = 0
) -> NDArray[np.int64]:
    """Draw what `one` draws, for many keys at once; `keys` and the answer have the shape (n,)."""
    _check_bound(bound)
    _check(seed, round, 0)
    words = _first_words(seed, purpose, round, np.asarray(keys, dtype=np.uint64), _SINGLE)
    return _high_half(words, bound).astype(np.int64)


def client_key(client_id: str) -> int:
    """Give the 64-bit random key of a client: the BLAKE2b hash of its id."""
    digest = hashlib.blake2b(client_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def client_keys(client_ids: Iterable[str]) -> UInt64s:
    """Give the keys of many clients as an array, in their order."""
    blake2b = hashlib.blake2b
    digests = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in client_ids)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _philox(seed: int, purpose: Purpose, round: int, key: int, lane: int) -> np.random.Philox:
    _check(seed, round, key)
    return np.random.Philox(
        key=np.array([seed, purpose], dtype=np.uint64),
        counter=np.array([0, round, key, lane], dtype=np.uint64),
    )


def _check(seed: int, round: int, key: int) -> None:
    if not 0 <= seed < SEED_LIMIT:
        raise ValueError(f"a seed is an integer in [0, 2**63), found {seed!r}")
    for what, value in (("round", round), ("key", key)):
        if not 0 <= value < _WORD:
            raise ValueError(f"a {what} is an integer in [0, 2**64), found {value!r}")


def _check_bound(bound: int) -> None:
    if not 1 <= bound <= 1 << 32:
        raise ValueError(f"a bound is between 1 and 2**32, found {bound}")


def _first_words(seed: int, purpose: Purpose, round: int, keys: UInt64s, lane: int) -> UInt64s:
    """Say what `_philox(seed, purpose, round, key, lane).random_raw()` says, for every key."""
    # NumPy steps the counter before it draws, so the first block is that of counter 1.
    counter = [np.full(keys.shape, word, np.uint64) for word in (1, round, 0, lane)]
    counter[2] = keys
    k0, k1 = seed, int(purpose)
    for _ in range(10):
        high0, low0 = _multiply(counter[0], 0xD2E7470EE14C6C93)
        high1, low1 = _multiply(counter[2], 0xCA5A826395121157)
        counter = [
            high1 ^ counter[1] ^ np.uint64(k0),
            low1,
            high0 ^ counter[3] ^ np.uint64(k1),
            low0,
        ]
        k0 = (k0 + 0x9E3779B97F4A7C15) & _MASK
        k1 = (k1 + 0xBB67AE8584CAA73B) & _MASK
    return counter[0]


def _multiply(words: UInt64s, factor: int) -> tuple[UInt64s, UInt64s]:
    """Give the high and the low halves of the 128-bit products."""
    return _high_half(words, factor), words * np.uint64(factor)


def _high_half(words: UInt64s, factor: int) -> UInt64s:
    half, low_mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a, b = words >> half, words & low_mask
    c, d = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    middle = a * d + (b * d >> half)
    carry = b * c + (middle & low_mask)
    high: UInt64s = a * c + (middle >> half) + (carry >> half)
    return high
