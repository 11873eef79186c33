"""Random numbers are named, and the numbers behind a name never change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.randomness import (
    SEED_LIMIT,
    Purpose,
    client_key,
    client_keys,
    one,
    one_per_key,
    stream,
    torch_seed,
)

words = st.integers(0, 2**64 - 1)
seeds = st.integers(0, SEED_LIMIT - 1)
purposes = st.sampled_from(Purpose)

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
    assert one(7, Purpose.BOOTSTRAP_SIZE, 1000, key=11) == GOLDEN_ONE
    assert client_key("client_0") == GOLDEN_KEY


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


@given(seeds, purposes, st.lists(words, max_size=20), words, st.integers(1, 2**32))
def test_drawing_for_many_keys_is_drawing_for_each(
    seed: int, purpose: Purpose, keys: list[int], round: int, bound: int
) -> None:
    together = one_per_key(seed, purpose, np.array(keys, dtype=np.uint64), bound, round=round)
    assert together.dtype == np.int64
    assert together.tolist() == [one(seed, purpose, bound, round=round, key=key) for key in keys]
    assert all(0 <= value < bound for value in together.tolist())


def test_single_draws_are_spread_evenly() -> None:
    drawn = one_per_key(3, Purpose.BOOTSTRAP_SIZE, np.arange(30_000, dtype=np.uint64), 3)
    assert np.bincount(drawn).tolist() == pytest.approx([10_000] * 3, rel=0.03)


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
    with pytest.raises(ValueError, match=r"a bound is between 1 and 2\*\*32"):
        one(0, Purpose.COHORT, bound)
