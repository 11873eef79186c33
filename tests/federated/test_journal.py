"""What was saved of a round in flight comes back whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedpilot.fabric.testing import ManualClock
from fedpilot.federated.core.partial import Partial, Reference, Tally
from fedpilot.federated.core.state import Role, digest
from fedpilot.federated.engine.journal import ASSUMED_WRITE_S, Journal, RoundKey

ROLES = {"w": Role.TRAINED, "b": Role.STATISTIC, "n": Role.COUNTER}
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
    assert Journal(str(tmp_path), "local").note(KEY, partial(), ids(5, 9), LONG_S)
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


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(RoundKey(4, "abc", 0), id="of another round"),
        pytest.param(RoundKey(3, "abd", 0), id="of another model"),
        pytest.param(RoundKey(3, "abc", 8), id="of another grid"),
    ],
)
def test_a_partial_of_another_attempt_is_not_taken(other: RoundKey, tmp_path: Path) -> None:
    Journal(str(tmp_path), "local").note(KEY, partial(), ids(5), LONG_S)
    assert Journal(str(tmp_path), "local").recover(other) is None


def test_sites_do_not_take_each_others(tmp_path: Path) -> None:
    Journal(str(tmp_path), "a").note(KEY, partial(), ids(5), LONG_S)
    assert Journal(str(tmp_path), "b").recover(KEY) is None


def test_the_latest_replaces_the_earlier_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), "local", ManualClock())
    journal.note(KEY, partial(1), ids(5), LONG_S)
    journal.note(KEY, partial(2), ids(5, 9), LONG_S)
    assert [path.name for path in tmp_path.iterdir()] == ["local.safetensors"]
    found = journal.recover(KEY)
    assert found is not None
    assert found[1].tolist() == [5, 9]


def test_nothing_is_saved_that_is_not_worth_it_but_it_adds_up(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), "local", ManualClock())
    each = ASSUMED_WRITE_S / 0.02 / 3
    saved = [journal.note(KEY, partial(), ids(5), each) for _ in range(4)]
    assert saved == [False, False, False, True] or saved == [False, False, True, True]
    assert journal.recover(KEY) is not None


def test_a_new_round_starts_with_nothing_unsaved(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), "local", ManualClock())
    almost = 0.9 * ASSUMED_WRITE_S / 0.02
    assert not journal.note(KEY, partial(), ids(5), almost)
    journal.close_round()
    assert not journal.note(KEY, partial(), ids(5), almost)


def test_without_a_folder_it_keeps_nothing() -> None:
    journal = Journal(None, "local")
    assert not journal.note(KEY, partial(), ids(5), LONG_S)
    assert journal.recover(KEY) is None


def test_it_moves_with_the_run(tmp_path: Path) -> None:
    journal = Journal(None, "local")
    there = journal.at(str(tmp_path))
    assert there.at(str(tmp_path)) is there
    there.note(KEY, partial(), ids(5), LONG_S)
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
    assert journal.note(KEY, partial(), ids(5), LONG_S)
    assert journal.recover(KEY) is not None


def test_a_journal_that_was_cut_short_is_as_good_as_none(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), "local")
    journal.note(KEY, partial(), ids(5), LONG_S)
    path = tmp_path / "local.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    assert journal.recover(KEY) is None
