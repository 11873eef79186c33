"""A process writes what another one reads, as long as that one lives, and no longer."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpilot.federated.core.population.sampling import Indices
from fedpilot.federated.site.states import shared_memory
from fedpilot.federated.site.states.layouts import Layout
from fedpilot.federated.site.states.shared_memory import Borrowed, Lent, SharedStack, Spill

LAYOUT = Layout.of({"w": np.zeros((2, 3), np.float32), "n": np.zeros((), np.int64)})

DOUBLES = """
import pickle, sys
from fedpilot.federated.site.states.shared_memory import Borrowed
lent = pickle.load(sys.stdin.buffer)
stack = Borrowed().stack(lent)
stack.columns["w"][...] *= 2
stack.columns["n"][...] = 7
"""

LENDS = """
import pickle, sys, time
import numpy as np
from fedpilot.federated.site.states.layouts import Layout
from fedpilot.federated.site.states.shared_memory import SharedStack
stack = SharedStack(Layout.of({"w": np.zeros(4)}), 2)
stack.stack.columns["w"][...] = [[1.0], [2.0]]
sys.stdout.buffer.write(pickle.dumps(stack.lend(slice(1, 2))))
sys.stdout.buffer.flush()
time.sleep(600)
"""


def own_pages(path: str) -> int:
    """Bytes of the files in a folder that this process maps and has used."""
    counted, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if " " in key:
            here = path in line
        elif here and key == "Rss":
            counted += 1024 * int(rest.split()[0])
    return counted


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_another_process_writes_into_the_part_that_it_was_lent() -> None:
    shared = SharedStack(LAYOUT, 4)
    shared.stack.columns["w"][...] = np.arange(4, dtype=np.float32)[:, None, None]
    lent = pickle.dumps(shared.lend(slice(1, 3)))
    subprocess.run([sys.executable, "-c", DOUBLES], input=lent, check=True)
    assert shared.stack.columns["w"][:, 0, 0].tolist() == [0.0, 2.0, 4.0, 3.0]
    assert shared.stack.columns["n"].tolist() == [0, 7, 7, 0]


@pytest.mark.parametrize("places", [slice(0, 16), np.arange(16)], ids=["a slice", "places"])
def test_spilled_states_stay_in_memory_no_longer_than_they_are_used(
    places: slice | Indices, tmp_path: Path
) -> None:
    layout = Layout.of({"w": np.zeros(1 << 14, np.float32)})
    spilled, borrowed = SharedStack(layout, 16, Spill(tmp_path, 4 * layout.length)), Borrowed()
    for number, some in enumerate(spilled.blocks(places)):
        spilled.stack.rows[some] = number
        assert 0 < own_pages(str(tmp_path)) <= 4 * layout.length
    assert own_pages(str(tmp_path)) == 0
    lent = borrowed.stack(spilled.lend(slice(0, 16)))
    assert lent.rows[:, 0].tolist() == [number for number in range(4) for _ in range(4)]
    borrowed.let_go()
    assert own_pages(str(tmp_path)) == 0
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_lent_stays_with_whoever_opened_it() -> None:
    with subprocess.Popen([sys.executable, "-c", LENDS], stdout=subprocess.PIPE) as lender:
        assert lender.stdout is not None
        try:
            lent = pickle.load(lender.stdout)
            opened = Borrowed()
            assert opened.stack(lent).columns["w"].tolist() == [[2.0] * 4]
        finally:
            lender.kill()
    assert opened.stack(lent).columns["w"].tolist() == [[2.0] * 4]
    with pytest.raises(FileNotFoundError):
        Borrowed().stack(lent)


def test_another_memory_under_the_same_number_is_not_taken_for_it() -> None:
    first = SharedStack(LAYOUT, 1)
    lent = first.lend(slice(0, 1))
    del first
    gc.collect()
    second = SharedStack(LAYOUT, 1)
    with pytest.raises(FileNotFoundError):
        Borrowed().stack(lent)
    Borrowed().stack(second.lend(slice(0, 1)))


def test_it_takes_no_more_files_however_many_memories_there_were() -> None:
    opened, before = Borrowed(), files()
    for _ in range(50):
        shared = SharedStack(LAYOUT, 1)
        opened.stack(shared.lend(slice(0, 1)))
        del shared
    assert files() <= before + 2 * shared_memory.MOST_OPEN


def test_without_such_memory_it_is_a_processes_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "sharers", lambda: "")
    shared = SharedStack(LAYOUT, 2)
    shared.stack.columns["w"][...] = 1.0
    assert shared.stack.columns["w"].sum() == 12.0


def test_lent_states_are_named_by_few_bytes() -> None:
    shared = SharedStack(LAYOUT, 100_000)
    assert len(pickle.dumps(shared.lend(slice(0, 100_000)))) < 1000
    assert isinstance(pickle.loads(pickle.dumps(shared.lend(slice(0, 1)))), Lent)
