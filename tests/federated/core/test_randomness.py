"""Random numbers are named, and the numbers behind a name never change."""

from __future__ import annotations

from collections.abc import Iterable
from math import factorial

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from fedpilot.federated.core.randomness import (
    SEED_LIMIT,
    Purpose,
    UInt64s,
    below,
    client_key,
    client_keys,
    one_per_key,
    permutations,
    stream,
    torch_seed,
    words_per_key,
)

words = st.integers(0, 2**64 - 1)
seeds = st.integers(0, SEED_LIMIT - 1)
purposes = st.sampled_from(Purpose)
blocks = st.integers(0, 2**32 - 1)
key_lists = st.lists(words, max_size=12)
clients = st.lists(st.tuples(words, st.integers(0, 300)), max_size=8)

GOLDEN_WORDS = [
    2919416668822030327,
    2962975639691867443,
    13294458506293031671,
    15272456338057288096,
]
GOLDEN_PERMUTATION = [6, 1, 7, 3, 2, 5, 4, 0]
GOLDEN_INTEGERS = [118, 931, 497, 30]
GOLDEN_NORMAL = -0.7440191742693708
GOLDEN_DIRICHLET = [0.41260733716607434, 0.5701341463939413, 0.01725851643998426]
GOLDEN_TORCH_SEED = 95292607717201367
GOLDEN_ONE = 563
GOLDEN_KEY = 15727411009938791503
GOLDEN_BLOCK = [
    3315269727034813328,
    8272577077605493026,
    10029433061058696251,
    548598503769469356,
    16789565411989366625,
]
GOLDEN_SHUFFLE = [3, 7, 5, 2, 4, 0, 1, 6]


def keys_of(values: Iterable[int]) -> UInt64s:
    return np.array(list(values), dtype=np.uint64)


def one(seed: int, purpose: Purpose, bound: int, *, round: int = 0, key: int = 0) -> int:
    """What `one_per_key` has to draw for a key, by NumPy's own generator."""
    names = {"key": [seed, purpose], "counter": [0, round, key, 2]}
    raw = np.random.Philox(**{k: np.array(v, dtype=np.uint64) for k, v in names.items()})
    return int(raw.random_raw()) * bound >> 64


def test_the_first_words_of_a_stream_are_pinned() -> None:
    rng = stream(7, Purpose.TRAIN, round=3, key=11)
    assert rng.bit_generator.random_raw(4).tolist() == GOLDEN_WORDS


def test_what_numpy_makes_of_the_words_is_pinned() -> None:
    assert stream(0, Purpose.SPLIT).permutation(8).tolist() == GOLDEN_PERMUTATION
    assert stream(0, Purpose.COHORT, round=1).integers(1000, size=4).tolist() == GOLDEN_INTEGERS
    assert stream(0, Purpose.INIT).standard_normal() == GOLDEN_NORMAL
    dirichlet = stream(0, Purpose.PARTITION).dirichlet([0.5, 0.5, 0.5])
    assert dirichlet.tolist() == pytest.approx(GOLDEN_DIRICHLET, rel=1e-14)


def test_seeds_single_draws_and_client_keys_are_pinned() -> None:
    assert torch_seed(7, Purpose.TRAIN, round=3, key=11) == GOLDEN_TORCH_SEED
    drawn = one_per_key(7, Purpose.BOOTSTRAP_SIZE, keys_of([11]), 1000)
    assert drawn.tolist() == [GOLDEN_ONE]
    assert client_key("client_0") == GOLDEN_KEY


def test_words_and_permutations_are_pinned() -> None:
    # They decide what bootstrap clients hold and in which order clients train: a change here is a
    # change of every result.
    drawn = words_per_key(7, Purpose.BOOTSTRAP, keys_of([11]), 5, round=3, block=2)
    assert drawn.tolist() == [GOLDEN_BLOCK]
    shuffled = permutations(7, keys_of([11]), [8], round=3, epoch=2)
    assert shuffled.tolist() == [GOLDEN_SHUFFLE]


def test_purposes_keep_their_numbers() -> None:
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "INIT": 1,
        "SPLIT": 2,
        "PARTITION": 3,
        "COHORT": 4,
        "TRAIN": 5,
        "BOOTSTRAP": 6,
        "BOOTSTRAP_SIZE": 7,
        "EVALUATION": 8,
        "SYNTHETIC": 9,
        "GROUP_COHORT": 10,
        "TOPOLOGY": 11,
        "VNODE_CLASS": 12,
    }


@given(seeds, purposes, words, words)
def test_a_stream_is_a_function_of_its_name(
    seed: int, purpose: Purpose, round: int, key: int
) -> None:
    first = stream(seed, purpose, round=round, key=key)
    other = stream(seed, purpose, round=round, key=key ^ 1)
    again = stream(seed, purpose, round=round, key=key)
    drawn = first.random(3).tolist()
    assert other.random(3).tolist() != drawn
    assert again.random(3).tolist() == drawn


def test_every_part_of_the_name_counts() -> None:
    streams = [
        stream(1, Purpose.TRAIN),
        stream(2, Purpose.TRAIN),
        stream(1, Purpose.COHORT),
        stream(1, Purpose.TRAIN, round=1),
        stream(1, Purpose.TRAIN, key=1),
    ]
    seeds_for_torch = {
        torch_seed(1, Purpose.TRAIN),
        torch_seed(2, Purpose.TRAIN),
        torch_seed(1, Purpose.COHORT),
        torch_seed(1, Purpose.TRAIN, round=1),
        torch_seed(1, Purpose.TRAIN, key=1),
    }
    assert len({rng.random() for rng in streams}) == len(streams)
    assert len(seeds_for_torch) == len(streams)


@pytest.mark.parametrize("copies", [1, 50], ids=["few", "many"])
@given(seeds, purposes, st.lists(words, min_size=4, max_size=20), words, st.integers(1, 2**32))
def test_drawing_for_many_keys_is_drawing_for_each(
    copies: int, seed: int, purpose: Purpose, keys: list[int], round: int, bound: int
) -> None:
    together = one_per_key(seed, purpose, keys_of(keys * copies), bound, round=round)
    assert together.dtype == np.int64
    each = [one(seed, purpose, bound, round=round, key=key) for key in keys]
    assert together.tolist() == each * copies
    assert all(0 <= value < bound for value in together.tolist())


def test_single_draws_are_spread_evenly() -> None:
    drawn = one_per_key(3, Purpose.BOOTSTRAP_SIZE, np.arange(30_000, dtype=np.uint64), 3)
    assert np.bincount(drawn).tolist() == pytest.approx([10_000] * 3, rel=0.03)


@given(seeds, purposes, key_lists, st.integers(0, 40), words, blocks)
def test_words_are_those_of_philox_at_the_counter_of_their_name(
    seed: int, purpose: Purpose, keys: list[int], count: int, round: int, block: int
) -> None:
    drawn = words_per_key(seed, purpose, keys_of(keys), count, round=round, block=block)
    assert drawn.shape == (len(keys), count)
    assert drawn.dtype == np.uint64
    for key, row in zip(keys, drawn, strict=True):
        generator = np.random.Philox(
            key=keys_of([seed, purpose]), counter=keys_of([block << 32, round, key, 3])
        )
        assert row.tolist() == generator.random_raw(count).tolist()


@given(seeds, st.lists(words, min_size=1, max_size=12), st.integers(0, 9), st.integers(0, 9))
def test_a_keys_words_depend_neither_on_other_keys_nor_on_how_many_are_drawn(
    seed: int, keys: list[int], count: int, more: int
) -> None:
    together = words_per_key(seed, Purpose.BOOTSTRAP, keys_of(keys), count + more)
    alone = words_per_key(seed, Purpose.BOOTSTRAP, keys_of(keys[-1:]), count)
    assert together[-1, :count].tolist() == alone[0].tolist()


def test_every_part_of_the_name_gives_other_words() -> None:
    key = keys_of([5])
    drawn = [
        words_per_key(1, Purpose.TRAIN, key, 8),
        words_per_key(2, Purpose.TRAIN, key, 8),
        words_per_key(1, Purpose.COHORT, key, 8),
        words_per_key(1, Purpose.TRAIN, key, 8, round=1),
        words_per_key(1, Purpose.TRAIN, key, 8, block=1),
        words_per_key(1, Purpose.TRAIN, keys_of([6]), 8),
    ]
    others = [
        stream(1, Purpose.TRAIN, key=5).bit_generator.random_raw(8).tolist(),
        [torch_seed(1, Purpose.TRAIN, key=5) << 1, torch_seed(1, Purpose.TRAIN, key=5) << 1 | 1],
    ]
    seen = [word for words in drawn for word in words.ravel().tolist()]
    assert len({*seen, *others[0], *others[1]}) == 6 * 8 + 8 + 2


def test_words_are_spread_evenly_below_a_bound() -> None:
    drawn = words_per_key(3, Purpose.BOOTSTRAP, np.arange(500, dtype=np.uint64), 200)
    counts = np.bincount(below(drawn, 100).ravel(), minlength=100)
    assert chi_square(counts) < 149  # 99 degrees of freedom: exceeded by one seed in a thousand
    bits = (drawn[:, :, np.newaxis] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).mean((0, 1))
    assert np.abs(bits - 0.5).max() < 0.0064  # four standard deviations


@given(words, st.integers(1, 2**32))
def test_a_word_below_a_bound_is_its_share_of_the_bound(word: int, bound: int) -> None:
    assert below(keys_of([word]), bound).tolist() == [word * bound >> 64]


@given(seeds, clients, words, blocks)
def test_a_row_is_a_permutation_and_then_zeros(
    seed: int, some: list[tuple[int, int]], round: int, epoch: int
) -> None:
    sizes = [size for _, size in some]
    rows = permutations(seed, keys_of(key for key, _ in some), sizes, round=round, epoch=epoch)
    assert rows.shape == (len(some), max(sizes, default=0))
    assert rows.dtype == np.int64
    for size, row in zip(sizes, rows.tolist(), strict=True):
        assert sorted(row[:size]) == list(range(size))
        assert not any(row[size:])


@given(seeds, st.lists(st.tuples(words, st.integers(0, 300)), min_size=1, max_size=8), blocks)
def test_a_row_depends_on_no_other_client(
    seed: int, some: list[tuple[int, int]], epoch: int
) -> None:
    keys, sizes = zip(*some, strict=True)
    rows = permutations(seed, keys_of(keys), sizes, round=1, epoch=epoch)
    for key, size, row in zip(keys, sizes, rows, strict=True):
        alone = permutations(seed, keys_of([key]), [size], round=1, epoch=epoch)
        assert row[:size].tolist() == alone[0].tolist()


def test_rounds_epochs_seeds_and_clients_shuffle_anew() -> None:
    rows = {
        tuple(permutations(seed, keys_of([key]), [30], round=round, epoch=epoch)[0].tolist())
        for seed in range(2)
        for round in range(2)
        for epoch in range(2)
        for key in range(2)
    }
    assert len(rows) == 16


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_permutations_are_equally_likely(size: int) -> None:
    keys = np.arange(24_000, dtype=np.uint64)
    rows = permutations(5, keys, np.full(len(keys), size), round=0, epoch=0)
    _, counts = np.unique(rows, axis=0, return_counts=True)
    assert len(counts) == factorial(size)
    # What one seed in a thousand exceeds, with 1, 5 and 23 degrees of freedom.
    assert chi_square(counts) < {2: 10.8, 3: 20.5, 4: 49.7}[size]


def test_every_sample_is_as_likely_in_every_place() -> None:
    keys = np.arange(20_000, dtype=np.uint64)
    rows = permutations(5, keys, np.full(len(keys), 20), round=0, epoch=0)
    counts = np.bincount((rows * 20 + np.arange(20)).ravel(), minlength=400)
    assert chi_square(counts) < 451  # 361 degrees of freedom


def test_a_large_client_among_small_ones_is_shuffled_as_if_it_were_alone() -> None:
    keys = np.arange(100, dtype=np.uint64)
    sizes = np.full(100, 28)
    sizes[40] = 60_000
    rows = permutations(5, keys, sizes, round=0, epoch=0)
    assert np.array_equal(np.sort(rows[40]), np.arange(60_000))
    assert np.array_equal(rows[40], permutations(5, keys[40:41], [60_000], round=0, epoch=0)[0])


@given(st.lists(st.text()))
def test_a_clients_key_depends_on_its_id_only(ids: list[str]) -> None:
    assert client_keys(ids).tolist() == [client_key(client_id) for client_id in ids]


@given(seeds, purposes, words, words)
def test_a_seed_for_torch_is_a_seed(seed: int, purpose: Purpose, round: int, key: int) -> None:
    assert 0 <= torch_seed(seed, purpose, round=round, key=key) < SEED_LIMIT


@pytest.mark.parametrize(
    ("seed", "round", "key", "told"),
    [
        pytest.param(-1, 0, 0, "a seed is an integer", id="a seed is not negative"),
        pytest.param(2**63, 0, 0, "a seed is an integer", id="a seed is below 2**63"),
        pytest.param(0, -1, 0, "a round is an integer", id="a round is not negative"),
        pytest.param(0, 0, 2**64, "a key is an integer", id="a key has 64 bits"),
    ],
)
def test_numbers_out_of_range_are_refused(seed: int, round: int, key: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        stream(seed, Purpose.TRAIN, round=round, key=key)
    with pytest.raises(ValueError, match=told):
        torch_seed(seed, Purpose.TRAIN, round=round, key=key)


@pytest.mark.parametrize("bound", [0, 2**32 + 1])
def test_a_bound_out_of_range_is_refused(bound: int) -> None:
    for ask in (
        lambda: one_per_key(0, Purpose.COHORT, keys_of([1]), bound),
        lambda: below(keys_of([1]), bound),
    ):
        with pytest.raises(ValueError, match=r"a bound is between 1 and 2\*\*32"):
            ask()


@pytest.mark.parametrize(
    ("count", "block", "told"),
    [
        pytest.param(1, -1, "a block is an integer", id="a block is not negative"),
        pytest.param(1, 2**32, "a block is an integer", id="a block is below 2**32"),
        pytest.param(-1, 0, "a block has 2", id="as many words as none"),
        pytest.param(2**34 - 3, 0, "a block has 2", id="no words of the next block"),
    ],
)
def test_words_out_of_range_are_refused(count: int, block: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        words_per_key(0, Purpose.BOOTSTRAP, keys_of([1]), count, block=block)


def chi_square(counts: NDArray[np.int64]) -> float:
    """How far counts are from being equal."""
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())
