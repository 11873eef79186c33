"""What clients keep comes back as of the round that asks, whatever died in between."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import ItemsView
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fedpilot.federated.core.state import State, digest
from fedpilot.federated.errors import RunRefused
from fedpilot.federated.site.states.client_states import ClientStates, rows_of


def state(client: int, round_number: int, floats: int = 4) -> dict[str, np.ndarray]:
    return {
        "of": np.array([client, round_number]),
        "w": np.full(floats, client + round_number / 7, dtype=np.float32),
    }


def rounds(found: dict[int, State]) -> dict[int, int]:
    """Which round's state each client came back with; it must be that client's own."""
    for client, held in found.items():
        assert int(held["of"][0]) == client
        assert digest(held) == digest(state(client, int(held["of"][1]), held["w"].size))
    return {client: int(held["of"][1]) for client, held in found.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clients.sqlite"


def test_a_round_gets_what_the_rounds_before_it_left(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        states.save(1, {3: state(3, 1), 5: state(5, 1)})
        states.save(4, {3: state(3, 4)})
        assert rounds(states.load([3, 5, 8], 1)) == {}
        assert rounds(states.load([3, 5, 8], 4)) == {3: 1, 5: 1}
        assert rounds(states.load([3, 5, 8], 5)) == {3: 4, 5: 1}
        assert rounds(states.load(np.array([5, 8]), 5)) == {5: 1}
    with closing(ClientStates(path)) as again:
        assert rounds(again.load([3, 5, 8], 9)) == {3: 4, 5: 1}


def test_closing_waits_for_what_is_being_saved(path: Path) -> None:
    begun, gate = threading.Event(), threading.Event()

    class Slow(dict[int, State]):
        def items(self) -> ItemsView[int, State]:
            begun.set()
            assert gate.wait(60)
            return super().items()

    states = ClientStates(path)
    with ThreadPoolExecutor(2) as pool:
        saving = pool.submit(states.save, 1, Slow({3: state(3, 1)}))
        assert begun.wait(60)
        closed = pool.submit(states.close)
        early = wait([closed], timeout=0.2).done
        gate.set()
        assert not early
        saving.result(60)
        closed.result(60)
    with closing(ClientStates(path)) as again:
        assert rounds(again.load([3], 2)) == {3: 1}


def test_a_round_that_is_repeated_replaces_what_it_left(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        states.save(2, {1: state(1, 9), 2: state(2, 2)})
        states.save(2, {1: state(1, 2)})
        assert rounds(states.load([1, 2], 3)) == {1: 2, 2: 2}


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        for number in range(1, 5):
            states.save(number, {1: state(1, number), number + 10: state(number + 10, number)})
        states.forget_after(2)
        assert rounds(states.load([1, *range(10, 16)], 99)) == {1: 2, 11: 1, 12: 2}


def test_what_no_resume_needs_is_dropped_and_is_not_given_wrongly(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        for number in range(1, 7):
            states.save(number, {1: state(1, number)})
        states.save(2, {2: state(2, 2)})
        states.commit(4)
        states.commit(3)
        assert rounds(states.load([1, 2], 5)) == {1: 4, 2: 2}
        assert rounds(states.load([1, 2], 7)) == {1: 6, 2: 2}
    assert count(path) == 4
    with closing(ClientStates(path)) as again:
        with pytest.raises(RunRefused, match=r"after round 3 .* up to round 4 were dropped"):
            again.load([1], 4)
        with pytest.raises(RunRefused, match=r"after round 3 .* up to round 4 were dropped"):
            again.forget_after(3)
        again.forget_after(4)
        assert rounds(again.load([1, 2], 7)) == {1: 4, 2: 2}


def test_rounds_between_those_that_are_kept_are_dropped(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        for number in range(1, 8):
            states.save(number, {1: state(1, number)})
        states.save(3, {2: state(2, 3)})
        states.forget_rounds_but([2, 6])
        for before, found in [(3, 2), (6, 2), (7, 6), (8, 7)]:
            assert rounds(states.load([1], before)) == {1: found}
        assert rounds(states.load([2], 8)) == {2: 3}, "which has no newer one"
        states.forget_rounds_but([])
    assert count(path) == 4


def test_what_is_held_for_others_is_dropped(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        for number in (2, 4):
            states.save(number, {client: state(client, number) for client in range(4)})
        states.forget_others(np.array([1, 3]), before=4)
        states.forget_others(np.array([1, 3]), before=4)
        assert rounds(states.load(range(4), 4)) == {1: 2, 3: 2}
        assert rounds(states.load(range(4), 5)) == dict.fromkeys(range(4), 4)
        states.forget_others(np.arange(0), before=5)
        assert not states.load(range(4), 5)
        states.save(6, {client: state(client, 6) for client in range(8)})
    assert rows_of(path).stat().st_size == 8 * 128, "their places are used again"


def count(path: Path) -> int:
    file = sqlite3.connect(path)
    (found,) = file.execute("SELECT count(*) FROM places").fetchone()
    file.close()
    return int(found)


def test_a_save_is_whole_or_not_at_all(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        states.save(1, {1: state(1, 1)})
        unsavable = {"w": np.array([object()])}
        with pytest.raises(Exception, match=r".+"):
            states.save(2, {1: state(1, 2), 2: unsavable})
        assert rounds(states.load([1, 2], 3)) == {1: 1}
        states.save(2, {1: state(1, 2)})
        assert rounds(states.load([1, 2], 3)) == {1: 2}


def test_what_a_failed_save_began_is_forgotten(path: Path) -> None:
    """Its new layout and its places are not used as if they had been saved."""
    with closing(ClientStates(path)) as states:
        states.save(1, {1: state(1, 1)})
        wide = {"of": np.array([2, 2]), "w": np.full(9, 2 + 2 / 7, dtype=np.float32)}
        for _ in range(5):
            with pytest.raises(OverflowError):
                states.save(2, {2: wide, 2**70: state(3, 2)})
        states.save(2, {2: wide})
        states.save(3, {3: state(3, 3)})
        assert rounds(states.load([1, 2, 3], 4)) == {1: 1, 2: 2, 3: 3}
    assert rows_of(path).stat().st_size == 3 * 128, "nor its rows"
    with closing(ClientStates(path)) as again:
        assert rounds(again.load([1, 2, 3], 4)) == {1: 1, 2: 2, 3: 3}


def test_layouts_that_no_state_has_any_more_are_forgotten(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        for number in range(1, 5):
            kept = {client: state(client, number, 1000 * number + client) for client in range(200)}
            states.save(number, kept)
            states.commit(number - 1)
        assert rounds(states.load(range(200), 5)) == dict.fromkeys(range(200), 4)
    file = sqlite3.connect(path)
    assert file.execute("SELECT count(*) FROM layouts").fetchone()[0] <= 2 * 200
    file.close()
    with closing(ClientStates(path)) as again:
        again.save(5, {7: state(7, 5)})
        assert rounds(again.load([7, 8], 6)) == {7: 5, 8: 4}


def test_without_a_path_it_lasts_as_long_as_the_object() -> None:
    with closing(ClientStates(None)) as states:
        states.save(1, {1: state(1, 1)})
        assert rounds(states.load([1], 2)) == {1: 1}


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({}, id="no tensors"),
        pytest.param({"count": np.array(7)}, id="a 0-d tensor"),
        pytest.param({"turned": np.arange(6.0).reshape(2, 3).T}, id="another memory order"),
        pytest.param({"mask": np.array([True, False])}, id="bools"),
        pytest.param({"half": np.zeros((0, 3), dtype=np.float16)}, id="an empty tensor"),
        pytest.param({"big": np.arange(3, dtype=">f4")}, id="big-endian"),
    ],
)
def test_every_kind_of_tensor_comes_back(odd: State, path: Path) -> None:
    with closing(ClientStates(path)) as states:
        states.save(1, {1: odd})
        back = states.load([1], 2)[1]
        assert digest(back) == digest(odd)
        for array in back.values():
            array[...] = 0  # a client goes on from its state


def test_the_file_does_not_grow_with_the_rounds(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        for number in range(60):
            cohort = np.random.default_rng(number).choice(40, 10, replace=False)
            states.save(number, {int(client): state(client, number, 1000) for client in cohort})
            states.commit(number - 2)
        assert rounds(states.load(range(40), 60)).keys() == set(range(40))
    row = 64 + 4032
    assert rows_of(path).stat().st_size <= (40 + 3 * 10) * row


def test_a_copy_has_everything(path: Path, tmp_path: Path) -> None:
    with closing(ClientStates(path)) as states:
        states.save(1, {1: state(1, 1), 2: state(2, 1)})
        states.save(2, {1: state(1, 2)})
        states.copy(tmp_path / "copy.sqlite")
        states.save(3, {1: state(1, 3)})
    with closing(ClientStates(tmp_path / "copy.sqlite")) as copied:
        copied.forget_after(1)
        assert rounds(copied.load([1, 2], 9)) == {1: 1, 2: 1}
    with closing(ClientStates(path)) as states:
        assert rounds(states.load([1, 2], 9)) == {1: 3, 2: 1}


def test_states_of_the_format_before_are_read_and_kept(path: Path) -> None:
    """The file is of version 0.1: rounds 1 to 3 of three clients, committed up to round 1."""
    shutil.copy(Path(__file__).with_name("client-states-of-0.1.sqlite"), path)
    for _ in range(2):
        with closing(ClientStates(path)) as states:
            assert rounds(states.load([1, 2, 3], 9)) == {1: 3, 2: 2, 3: 1}
            assert rounds(states.load([1, 2, 3], 3)) == {1: 2, 2: 2, 3: 1}
            with pytest.raises(RunRefused, match=r"up to round 1 were dropped"):
                states.load([1], 1)
    with closing(ClientStates(path)) as states:
        states.forget_after(2)
        states.save(3, {3: state(3, 3)})
        assert rounds(states.load([1, 2, 3], 9)) == {1: 2, 2: 2, 3: 3}


def test_a_spoilt_state_of_the_format_before_is_refused_by_name(path: Path) -> None:
    shutil.copy(Path(__file__).with_name("client-states-of-0.1.sqlite"), path)
    file = sqlite3.connect(path)
    file.execute("UPDATE states SET checksum = 0 WHERE client = 2 AND round = 2")
    file.commit()
    file.close()
    for _ in range(2):
        with pytest.raises(RunRefused, match=r"client 2 was left with by round 2 is spoilt"):
            ClientStates(path)


# -- properties -------------------------------------------------------------------------------

CLIENTS = st.sampled_from([0, 1, 2, 7, 999_999])


class AgainstADict(RuleBasedStateMachine):
    """It does what a dictionary by (client, round) would do, also when it is opened again."""

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.states = ClientStates(self.folder / "clients.sqlite", cache_bytes=1 << 15)
        self.model: dict[tuple[int, int], int] = {}
        self.round = 0
        self.committed = -1
        self.version = 0

    @rule(clients=st.sets(CLIENTS))
    def save(self, clients: set[int]) -> None:
        self.version += 1
        self.states.save(
            self.round, {client: {"v": np.array([client, self.version])} for client in clients}
        )
        self.model.update({(client, self.round): self.version for client in clients})

    @rule()
    def next_round(self) -> None:
        self.round += 1

    @rule(clients=st.sets(CLIENTS), ago=st.integers(0, 4))
    def load(self, clients: set[int], ago: int) -> None:
        number = max(self.round + 1 - ago, 0)
        if number - 1 < self.committed:
            with pytest.raises(RunRefused):
                self.states.load(clients, number)
            return
        found = {c: held["v"].tolist() for c, held in self.states.load(clients, number).items()}
        expected = {}
        for client in clients:
            before = [r for c, r in self.model if c == client and r < number]
            if before:
                expected[client] = [client, self.model[client, max(before)]]
        assert found == expected

    @rule(ago=st.integers(0, 3))
    def forget(self, ago: int) -> None:
        number = self.round - ago
        if number < self.committed:
            with pytest.raises(RunRefused):
                self.states.forget_after(number)
            return
        self.states.forget_after(number)
        self.model = {(c, r): v for (c, r), v in self.model.items() if r <= number}
        self.round = max(number, 0) + 1

    @precondition(lambda self: self.round > 0)
    @rule(ago=st.integers(1, 3))
    def commit(self, ago: int) -> None:
        self.states.commit(self.round - ago)
        self.committed = max(self.committed, self.round - ago)
        kept = {}
        for client, number in self.model:
            later = [r for c, r in self.model if c == client and number < r <= self.committed]
            if not later:
                kept[client, number] = self.model[client, number]
        self.model = kept
        assert count(self.folder / "clients.sqlite") == len(kept)

    @rule()
    def reopen(self) -> None:
        self.states.close()
        self.states = ClientStates(self.folder / "clients.sqlite", cache_bytes=1 << 15)

    def teardown(self) -> None:
        if hasattr(self, "states"):
            self.states.close()
            shutil.rmtree(self.folder)


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(stateful_step_count=25)


# -- faults -----------------------------------------------------------------------------------

SAVING = """
import sys
import tempfile
from pathlib import Path
import numpy as np
from fedpilot.federated.site.states.client_states import ClientStates

path, first = sys.argv[1], int(sys.argv[2])
states = ClientStates(Path(path), cache_bytes=1 << 20)
states.forget_after(first - 1)
for number in range(first, 10**9):
    cohort = range(number % 7, 100, 7)
    left = {
        client: {
            "of": np.array([client, number]),
            "w": np.full(10_000, client + number / 7, dtype=np.float32),
        }
        for client in cohort
    }
    states.save(number, left)
    print(number, flush=True)
    states.commit(number - 2)
"""


@pytest.mark.parametrize(
    "kills",
    [(8, 30), pytest.param((1, 8, 23, 30), marks=pytest.mark.soak)],
    ids=["2 kills", "4 kills"],
)
def test_a_kill_at_any_moment_leaves_whole_rounds(kills: tuple[int, ...], path: Path) -> None:
    last = 0
    for kill_after in kills:
        child = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(path), str(last + 1)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
        )
        assert child.stdout is not None
        for _ in range(kill_after):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        told = child.stdout.read().split()
        child.wait()
        child.stdout.close()
        last = int(told[-1]) if told else last + kill_after
        with closing(ClientStates(path)) as states:
            for number in (last, last + 1):
                found = rounds(states.load(range(100), number + 1))
                # It may have died between saving a round and telling so.
                cohorts_of = (seen(last), seen(number))
                clients = [{c for c in range(100) if c % 7 in some} for some in cohorts_of]
                assert found.keys() in clients
                cohorts = {c % 7: at for c, at in found.items()}
                assert found == {c: cohorts[c % 7] for c in found}, "a round was saved in part"
                expected = {r % 7: r for r in range(max(1, last - 6), last + 1)}
                later = {r % 7: r for r in range(max(1, last - 5), last + 2)}
                assert cohorts in (expected, expected | later)
        assert count(path) <= (7 + 4) * 15


def seen(last: int) -> set[int]:
    return {number % 7 for number in range(max(1, last - 6), last + 1)}


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(b"not a database, but something else entirely " * 9, id="something else"),
        pytest.param(b"\x00" * 65536, id="zeros"),
    ],
)
def test_a_file_that_is_no_such_file_is_refused_by_name(spoilt: bytes, path: Path) -> None:
    path.write_bytes(spoilt)
    with pytest.raises(RunRefused, match=r"clients.sqlite cannot be used as client states"):
        ClientStates(path)


def test_a_state_that_was_spoilt_on_disk_is_refused_by_name(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        states.save(3, {17: state(17, 3, 1000), 18: state(18, 3, 1000)})
    content = rows_of(path).read_bytes()
    marked = state(17, 3, 1000)["w"].tobytes()
    assert marked in content
    rows_of(path).write_bytes(content.replace(marked, marked[:-1] + b"\x00"))
    with closing(ClientStates(path)) as states:
        assert rounds(states.load([18], 4)) == {18: 3}
        with pytest.raises(RunRefused, match=r"client 17 was left with by round 3 is spoilt"):
            states.load([17], 4)


@pytest.mark.parametrize("left", [0, 3 << 10])
def test_rows_that_a_power_cut_took_are_refused_by_name(left: int, path: Path) -> None:
    with closing(ClientStates(path)) as states:
        states.save(3, {17: state(17, 3, 1000)})
    os.truncate(rows_of(path), left)
    with (
        closing(ClientStates(path)) as states,
        pytest.raises(RunRefused, match=r"client 17 was left with by round 3 is spoilt"),
    ):
        states.load([17], 4)


def test_a_file_of_another_format_is_refused_by_number(path: Path) -> None:
    ClientStates(path).close()
    file = sqlite3.connect(path)
    file.execute("PRAGMA user_version = 77")
    file.close()
    with pytest.raises(RunRefused, match="of format 77; this version reads formats up to 2"):
        ClientStates(path)


# -- cost -------------------------------------------------------------------------------------

MEASURED = """
import resource, sys
from pathlib import Path
from contextlib import closing
import numpy as np
from fedpilot.federated.site.states.client_states import ClientStates

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

with closing(ClientStates(Path(sys.argv[1]), cache_bytes=4 << 20)) as states:
    for number in range(20):
        cohort = range(number * 25_000, number * 25_000 + 2500, 25)
        states.save(number, {client: {"w": np.ones(10_000, dtype="f4")} for client in cohort})
        states.load(cohort, number + 1)
        if number == 1:
            before = peak_bytes()
    print(peak_bytes() - before)
"""


def test_memory_is_bounded_by_the_cache_not_by_those_who_took_part(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert rows_of(path).stat().st_size >= 20 * 100 * 40_000
    assert int(done.stdout) < 20 << 20
