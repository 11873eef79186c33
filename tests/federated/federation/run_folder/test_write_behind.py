"""What is written behind the rounds: in order, a batch at a time, nothing lost, errors told."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from fedpilot.federated.federation.run_folder import write_behind as write_behind_module
from fedpilot.federated.federation.run_folder.write_behind import MOST, PACE_S, WriteBehind

LONG_S = 60.0


class Disk:
    """What was written, in order, and when."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.at: list[float] = []

    def write(self, what: str) -> Callable[[], None]:
        def done() -> None:
            self.at.append(time.monotonic())
            self.written.append(what)

        return done

    def wait_for(self, count: int) -> None:
        ends = time.monotonic() + LONG_S
        while len(self.written) < count:
            assert time.monotonic() < ends, self.written
            time.sleep(0.005)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written by and by, once a first write has been."""
    monkeypatch.setattr(write_behind_module, "PACE_S", 1000.0)


@contextmanager
def held_up(writes: WriteBehind) -> Iterator[None]:
    """The disk takes nothing until the block ends."""
    begun, gate = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        gate.wait(LONG_S)

    writes.put(slow)
    assert begun.wait(LONG_S)
    try:
        yield
    finally:
        gate.set()


def test_writes_happen_in_order_and_flush_waits_for_them(disk: Disk) -> None:
    with closing(WriteBehind()) as writes:
        for number in range(10):
            writes.put(disk.write(f"row {number}"))
        writes.flush()
        assert disk.written == [f"row {number}" for number in range(10)]


def test_closing_writes_what_waits(disk: Disk) -> None:
    writes = WriteBehind()
    with held_up(writes):
        writes.put(disk.write("last"))
    writes.close()
    writes.close()
    assert disk.written == ["last"]


# -- by and by --------------------------------------------------------------------------------


def test_what_nobody_asks_for_is_written_all_the_same(disk: Disk) -> None:
    with closing(WriteBehind()) as writes:
        writes.put(disk.write("first"))
        disk.wait_for(1)
        writes.put(disk.write("second"))
        writes.put(disk.write("third"))
        disk.wait_for(3)
    assert disk.written == ["first", "second", "third"]


def test_many_short_rounds_are_written_in_a_few_batches(disk: Disk) -> None:
    with closing(WriteBehind()) as writes:
        began = time.monotonic()
        number = 0
        while time.monotonic() < began + 3 * PACE_S:
            writes.put(disk.write(f"row {number}"))
            number += 1
            time.sleep(0.002)
    took = time.monotonic() - began
    assert disk.written == [f"row {n}" for n in range(number)]
    pauses = sum(later - at > PACE_S / 2 for at, later in itertools.pairwise(disk.at))
    assert pauses <= took / PACE_S + 1
    assert number > 10 * (pauses + 2), "a batch is of many"


@pytest.mark.usefixtures("patient")
def test_the_first_write_does_not_wait_for_the_pace(disk: Disk) -> None:
    with closing(WriteBehind()) as writes:
        writes.put(disk.write("first"))
        disk.wait_for(1)


@pytest.mark.usefixtures("patient")
def test_flush_does_not_wait_for_the_pace(disk: Disk) -> None:
    with closing(WriteBehind()) as writes:
        for number in range(3):
            writes.put(disk.write(f"row {number}"))
            writes.flush()
            assert len(disk.written) == number + 1
        writes.put(disk.write("waits"))
        time.sleep(0.05)
        assert "waits" not in disk.written, "a flush hurries what it was called for only"


@pytest.mark.usefixtures("patient")
def test_closing_does_not_wait_for_the_pace_either(disk: Disk) -> None:
    writes = WriteBehind()
    writes.put(disk.write("first"))
    disk.wait_for(1)
    writes.put(disk.write("last"))
    writes.close()
    assert disk.written == ["first", "last"]


# -- versions ---------------------------------------------------------------------------------


def test_of_what_waits_only_the_newest_version_is_written_and_every_other_write(
    disk: Disk,
) -> None:
    """However few wait. A version comes where the newest was put, after what is before that."""
    with closing(WriteBehind()) as writes:
        with held_up(writes):
            for number in range(3):
                writes.put(disk.write(f"row {number}"))
                writes.put(disk.write(f"model {number}"), instead_of="model")
                writes.put(disk.write(f"best {number}"), instead_of="best")
        writes.flush()
    assert disk.written == ["row 0", "row 1", "row 2", "model 2", "best 2"]


@pytest.mark.usefixtures("patient")
def test_a_version_that_is_being_written_is_written_whole(disk: Disk) -> None:
    begun, gate = threading.Event(), threading.Event()

    def old() -> None:
        begun.set()
        assert gate.wait(LONG_S)
        disk.write("old")()

    with closing(WriteBehind()) as writes:
        writes.put(old, instead_of="model")
        assert begun.wait(LONG_S)
        writes.put(disk.write("new"), instead_of="model")
        gate.set()
        writes.flush()
    assert disk.written == ["old", "new"]


# -- bounds -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_who_writes_faster_than_the_disk_waits_once_the_queue_is_full(disk: Disk) -> None:
    writes = WriteBehind()
    go_on = threading.Event()

    def rounds() -> None:
        for number in range(MOST + 1):
            writes.put(disk.write(f"row {number}"))
        go_on.set()

    with closing(writes):
        with held_up(writes):
            thread = threading.Thread(target=rounds)
            thread.start()
            ends = time.monotonic() + LONG_S
            while len(writes._waiting) < MOST:
                assert time.monotonic() < ends
                time.sleep(0.005)
            assert not go_on.wait(0.1), "one more than there is room for"
            assert len(writes._waiting) == MOST
        assert go_on.wait(LONG_S), "it goes on when the disk does, though nobody flushes"
        thread.join()
        disk.wait_for(MOST)
        writes.flush()
    assert disk.written == [f"row {number}" for number in range(MOST + 1)]


def test_a_disk_that_takes_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind_module, "STALLED_S", 0.05)
    writes = WriteBehind()
    with held_up(writes):
        writes.put(lambda: None)
        with pytest.raises(TimeoutError, match="the run folder's disk took nothing"):
            writes.flush()
    monkeypatch.undo()
    writes.close()


# -- errors -----------------------------------------------------------------------------------


def full() -> None:
    raise OSError("no space left on device")


def test_an_error_is_raised_by_the_next_call_and_nothing_more_is_written(disk: Disk) -> None:
    writes = WriteBehind()
    writes.put(full)
    with pytest.raises(OSError, match="no space"):
        writes.flush()
    with pytest.raises(OSError, match="no space"):
        writes.put(disk.write("more"))
    writes.close()
    assert disk.written == []


def test_what_stands_behind_an_error_in_its_batch_is_not_written(disk: Disk) -> None:
    """A later file must not tell of an earlier one that is not there."""
    writes = WriteBehind()
    with held_up(writes):
        writes.put(disk.write("before"))
        writes.put(full)
        writes.put(disk.write("behind"))
    with pytest.raises(OSError, match="no space"):
        writes.flush()
    writes.close()
    assert disk.written == ["before"]
