"""What is written behind the rounds: in order, nothing lost, errors told."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from fedpilot.federated.write_behind import LAG, WriteBehind


def test_writes_happen_in_order_and_flush_waits_for_them() -> None:
    done: list[int] = []
    with closing(WriteBehind()) as writes:
        for number in range(10):
            writes.put(lambda n=number: done.append(n), instead_of="file")  # type: ignore[misc]
        writes.flush()
        assert done == list(range(10))


def test_closing_writes_what_waits() -> None:
    done: list[str] = []
    gate = threading.Event()
    writes = WriteBehind()
    writes.put(lambda: gate.wait(10) and None)
    writes.put(lambda: done.append("last"))
    gate.set()
    writes.close()
    writes.close()
    assert done == ["last"]


def test_a_slow_disk_gets_newer_versions_only_and_every_other_write() -> None:
    done: list[str] = []
    gate = threading.Event()
    begun = threading.Event()

    def slow() -> None:
        begun.set()
        gate.wait(10)

    with closing(WriteBehind()) as writes:
        writes.put(slow)
        assert begun.wait(10)
        for number in range(LAG):
            writes.put(lambda n=number: done.append(f"row {n}"))  # type: ignore[misc]
        for number in range(5):
            writes.put(lambda n=number: done.append(f"model {n}"), instead_of="model")  # type: ignore[misc]
        gate.set()
        writes.flush()
    assert done == [*(f"row {n}" for n in range(LAG)), "model 4"]


def test_an_error_is_raised_by_the_next_call_and_nothing_more_is_written() -> None:
    done: list[str] = []

    def full() -> None:
        raise OSError("no space left on device")

    writes = WriteBehind()
    writes.put(full)
    with pytest.raises(OSError, match="no space"):
        writes.flush()
    with pytest.raises(OSError, match="no space"):
        writes.put(lambda: done.append("more"))
    writes.close()
    assert done == []
