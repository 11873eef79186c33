"""What was saved of a round in flight comes back whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedpilot.fabric.testing.fake_cluster import ManualClock
from fedpilot.federated.core.rounds.journaling import LEAST_S, SHARE
from fedpilot.federated.core.state import TensorRole, digest
from fedpilot.federated.core.sums.partial import Partial, Reference, Tally
from fedpilot.federated.engine.journal import (
    ASSUMED_BYTES_PER_S,
    ASSUMED_WRITE_S,
    Journal,
    RoundKey,
)

ROLES = {"w": TensorRole.TRAINED, "b": TensorRole.STATISTIC, "n": TensorRole.COUNTER}
START = {
    "w": np.array([[0.5, 1.0]], dtype=np.float32),
    "b": np.array(0.25, dtype=np.float32).reshape(1),
    "n": np.array(0),
}
KEY = RoundKey(3, "abc", 0)
LONG_S = 1e6


def partial(clients: int = 2) -> Partial:
    reference = Reference.of(START, ROLES)
    made = Partial(reference.exponents)
    for client in range(clients):
        state = {**START, "w": START["w"] + np.float32(client + 1), "n": np.array(client + 4)}
        made.add(f"client_{client}", state, 3, Tally().add(3, 1, 0.5), reference)
    return made


def ids(*indices: int) -> np.ndarray:
    return np.array(indices, dtype=np.int64)


def test_what_was_saved_comes_back_to_a_successor(tmp_path: Path) -> None:
    Journal(str(tmp_path), "local").save(KEY, partial(), ids(5, 9))
    found = Journal(str(tmp_path), "local").recover(KEY)
    assert found is not None
    back, done = found
    assert done.tolist() == [5, 9]
    assert back.to_wire()[0] == partial().to_wire()[0]
    assert digest(back.mean()) == digest(partial().mean())
    assert digest(back.largest) == digest(partial().largest)
    merged = back.merge(partial(3))
    assert merged.clients == 5
    assert np.shape(merged.largest["n"]) == ()


def test_how_many_were_in_earlier_steps_comes_back_too(tmp_path: Path) -> None:
    """It decides whether the sum may leave, whoever finishes it."""
    saved = partial()
    saved.earlier = {7: 1, 8: 5}
    Journal(str(tmp_path), "local").save(KEY, saved, ids(5, 9))
    found = Journal(str(tmp_path), "local").recover(KEY)
    assert found is not None
    assert (found[0].earlier, found[0].fewest) == ({7: 1, 8: 5}, 1)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(RoundKey(4, "abc", 0), id="of another round"),
        pytest.param(RoundKey(3, "abd", 0), id="of another model"),
        pytest.param(RoundKey(3, "abc", 8), id="of another grid"),
    ],
)
def test_a_partial_of_another_attempt_is_not_taken(other: RoundKey, tmp_path: Path) -> None:
    Journal(str(tmp_path), "local").save(KEY, partial(), ids(5))
    assert Journal(str(tmp_path), "local").recover(other) is None


def test_sites_do_not_take_each_others(tmp_path: Path) -> None:
    Journal(str(tmp_path), "a").save(KEY, partial(), ids(5))
    assert Journal(str(tmp_path), "b").recover(KEY) is None


def test_the_latest_replaces_the_earlier_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), "local", ManualClock())
    journal.save(KEY, partial(1), ids(5))
    journal.save(KEY, partial(2), ids(5, 9))
    assert [path.name for path in tmp_path.iterdir()] == ["local.safetensors"]
    found = journal.recover(KEY)
    assert found is not None
    assert found[1].tolist() == [5, 9]


def test_a_write_is_worth_it_when_the_work_takes_fifty_times_as_long(tmp_path: Path) -> None:
    """Collecting the workers' sums costs about as much as the write, so both are counted."""
    journal = Journal(str(tmp_path), "local")
    large = partial()
    large.sums["w"] = np.zeros(10_000_000, dtype=np.int64)
    cost = 2 * (ASSUMED_WRITE_S + 80e6 / ASSUMED_BYTES_PER_S)
    assert not journal.worth(0.99 * cost / SHARE, large)
    assert journal.worth(1.01 * cost / SHARE, large)
    assert journal.worth(0.99 * cost / SHARE, partial()), "a smaller sum costs less"
    assert not journal.worth(0.99 * LEAST_S, partial())


class Ticking(ManualClock):
    """Every look at it takes a second."""

    def __call__(self) -> float:
        self.advance(1.0)
        return self.now


def test_what_a_write_took_decides_about_the_next(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), "local", Ticking())
    unsaved_s = 1.01 * 2 * 1.0 / SHARE
    assert journal.worth(unsaved_s / 10, partial()), "as is assumed before the first"
    journal.save(KEY, partial(), ids(5))  # takes a second
    assert not journal.worth(unsaved_s / 10, partial())
    assert journal.worth(unsaved_s, partial())


def test_without_a_folder_it_keeps_nothing() -> None:
    journal = Journal(None, "local")
    assert not journal.worth(LONG_S, partial())
    journal.save(KEY, partial(), ids(5))
    assert journal.recover(KEY) is None


def test_it_moves_with_the_run(tmp_path: Path) -> None:
    journal = Journal(None, "local")
    there = journal.at(str(tmp_path))
    assert there.at(str(tmp_path)) is there
    there.save(KEY, partial(), ids(5))
    assert there.at(str(tmp_path / "other")).recover(KEY) is None


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00" * 4096, id="zeros"),
        pytest.param(b"not safetensors at all", id="something else"),
    ],
)
def test_a_journal_that_a_power_cut_spoilt_is_as_good_as_none(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "local.safetensors").write_bytes(content)
    journal = Journal(str(tmp_path), "local")
    assert journal.recover(KEY) is None
    journal.save(KEY, partial(), ids(5))
    assert journal.recover(KEY) is not None


def test_a_journal_that_was_cut_short_is_as_good_as_none(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), "local")
    journal.save(KEY, partial(), ids(5))
    path = tmp_path / "local.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    assert journal.recover(KEY) is None
