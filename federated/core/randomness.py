"""Draws all random numbers: a stream is named by its purpose, never by earlier draws.

The rules:

* a stream is a pure function of (seed, purpose, round, key); no state is saved or passed on;
* streams of different names never overlap, so neither the order of use nor the number of workers
  changes what is drawn;
* a client's key comes from its id alone, never from where it runs or how many clients there are;
* a draw for many keys equals, key by key, the draws for one key.

The generator is Philox4x64-10, which turns a counter into random words without a state (Salmon et
al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .execution import philox

UInt64s = NDArray[np.uint64]

SEED_LIMIT = 1 << 63

_WORD = 1 << 64
_MASK = _WORD - 1
_STREAM, _SEEDING, _SINGLE, _WORDS = 0, 1, 2, 3
"""The counter's last word, which separates streams, seeds, single draws and words of one name."""

_BLOCK = 1 << 32
"""The counter's first word holds the block number above 32 bits that count within the block."""

_LOW_HALF = np.uint64(0xFFFFFFFF)
_SMALL_BITS = 7
"""Permutations of fewer than 2**7 are made together, larger ones by their number of bits."""


class Purpose(IntEnum):
    """Purposes of random numbers. The values are part of every result: add, never renumber."""

    INIT = 1
    SPLIT = 2
    """Samples held out for testing."""
    PARTITION = 3
    """Samples of each client in a disjoint partition."""
    COHORT = 4
    TRAIN = 5
    """A client's training: sample order, dropout."""
    BOOTSTRAP = 6
    """Samples that a client draws with replacement."""
    BOOTSTRAP_SIZE = 7
    """Number of samples of such a client."""
    EVALUATION = 8
    """Clients or samples of an evaluation."""
    SYNTHETIC = 9
    GROUP_COHORT = 10
    """Clients of a group in one of its steps."""
    TOPOLOGY = 11
    """Graphs that are drawn at random."""
    VNODE_CLASS = 12
    """The vnode class of a client, where classes take shares of the clients."""


def stream(seed: int, purpose: Purpose, *, round: int = 0, key: int = 0) -> np.random.Generator:
    """Return the random stream of this name, at its beginning.

    `seed` is in [0, 2**63), `round` and `key` in [0, 2**64); others raise `ValueError`.
    """
    return np.random.Generator(_philox(seed, purpose, round, key, _STREAM))


def torch_seed(seed: int, purpose: Purpose, *, round: int = 0, key: int = 0) -> int:
    """Return a seed for a `torch.Generator`, in [0, 2**63), from a stream's name.

    PyTorch's generator on the CPU uses the low 32 bits only.
    """
    return int(_philox(seed, purpose, round, key, _SEEDING).random_raw()) >> 1


def one_per_key(
    seed: int, purpose: Purpose, keys: UInt64s, bound: int, *, round: int = 0
) -> NDArray[np.int64]:
    """Draw one integer in [0, bound) per key: (keys,); `bound` in [1, 2**32], bias below 2**-32."""
    _check(seed, round, 0)
    keys = np.asarray(keys, dtype=np.uint64)
    return below(philox.words(seed, purpose, (0, round, _SINGLE), keys, 1)[:, 0], bound)


def words_per_key(
    seed: int, purpose: Purpose, keys: UInt64s, count: int, *, round: int = 0, block: int = 0
) -> UInt64s:
    """Draw the words 0 to `count - 1` of this block for every key: shape (keys, count).

    `keys` has the shape (keys,). A word is a function of (seed, purpose, round, key, block) and its
    place, so a smaller `count` gives a prefix. Blocks are in [0, 2**32) and never overlap. Raises
    `ValueError` for numbers out of range. `permutations` uses up the words of `Purpose.TRAIN`.
    """
    _check(seed, round, 0)
    _check_block(block, count)
    keys = np.asarray(keys, dtype=np.uint64)
    return philox.words(seed, purpose, (block * _BLOCK, round, _WORDS), keys, count)


def below(words: UInt64s, bound: int) -> NDArray[np.int64]:
    """Map random words to integers in [0, bound); `bound` is in [1, 2**32]."""
    _check_bound(bound)
    high, low = words >> np.uint64(32), words & _LOW_HALF
    times = np.uint64(bound)
    drawn: UInt64s = (high * times + (low * times >> np.uint64(32))) >> np.uint64(32)
    return drawn.astype(np.int64)


def permutations(
    seed: int, keys: UInt64s, sizes: ArrayLike, *, round: int, epoch: int
) -> NDArray[np.int64]:
    """Shuffle the samples of many clients for an epoch: shape (clients, max(sizes)).

    `keys` and `sizes`, below 2**32, have the shape (clients,). The first `sizes[k]` entries of row
    `k` are a permutation of `range(sizes[k])`, the others are 0. A row is a function of (seed,
    round, epoch, key, size), independent of the other rows. Two samples keep their order with a
    probability within 2**-32 of a half.

    The result is as wide as the largest client; work and other memory follow the sizes.
    """
    keys, sizes = np.asarray(keys, dtype=np.uint64), np.asarray(sizes, dtype=np.int64)
    order = np.zeros((len(sizes), sizes.max(initial=0)), dtype=np.int64)
    classes = np.maximum(np.frexp(sizes)[1], _SMALL_BITS)
    for each in np.unique(classes):
        alike = classes == each
        width = int(sizes[alike].max())
        words = words_per_key(seed, Purpose.TRAIN, keys[alike], width, round=round, block=epoch)
        order[alike, :width] = _rank(words, sizes[alike])
    return order


def client_key(client_id: str) -> int:
    """The 64-bit random key of a client: the BLAKE2b hash of its id."""
    digest = hashlib.blake2b(client_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def client_keys(client_ids: Iterable[str]) -> UInt64s:
    """The keys of many clients as an array, in their order."""
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


def _check_block(block: int, count: int) -> None:
    if not 0 <= block < _BLOCK:
        raise ValueError(f"a block is an integer in [0, 2**32), found {block!r}")
    if not 0 <= count <= 4 * (_BLOCK - 1):
        raise ValueError(f"a block has 2**34 - 4 words, found {count!r} asked for")


def _rank(words: UInt64s, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rank the first `sizes[k]` words of each row by their high halves."""
    places = np.arange(words.shape[1], dtype=np.uint64)
    outside = places >= sizes.astype(np.uint64)[:, np.newaxis]
    words &= ~_LOW_HALF
    words |= places
    words[outside] = _MASK
    words.sort(axis=1)
    words &= _LOW_HALF
    words[outside] = 0
    return words.view(np.int64)
