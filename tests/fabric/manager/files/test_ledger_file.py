"""The ledger's file survives its process, and is refused when it is not what it should be."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedpilot.fabric import Bundle, ClusterId, FabricError, Resources, SchedulingPolicy
from fedpilot.fabric.core.cluster_state import ClusterState, Entry, JobId
from fedpilot.fabric.core.ledger import Ledger
from fedpilot.fabric.core.places.groups import GroupId, groups_for
from fedpilot.fabric.core.places.nomination import Admit, apply, place
from fedpilot.fabric.core.places.request import Request
from fedpilot.fabric.core.records import BundleGroup
from fedpilot.fabric.core.selectors import DoesNotExist, In
from fedpilot.fabric.manager.files.ledger_file import OWN_POLL_S, LedgerFile, own
from fedpilot.fabric.testing.fake_cluster import fake_machine

ONE = Request(
    id=ClusterId("one"),
    groups=(
        BundleGroup(
            bundles=(
                Bundle(
                    resources=Resources.of({"CPU": 0.5, "memory": 1 << 40}),
                    selector={"zone": In("a", "b"), "old": DoesNotExist()},
                ),
            ),
            policy=SchedulingPolicy.STRICT_SPREAD,
        ),
    ),
    labels=({"rank": "0"},),
    least=Resources.of({"CPU": 1}),
    limits={"CPU": 20_000},
    priority=3,
    deadline=1234.5,
)


TWO = replace(ONE, id=ClusterId("two"))
ENTRIES = (
    Entry(request=ONE, spec={"flex_resource_min": {"CPU": 1}}, owner=JobId("01"), waiting=False),
    Entry(request=TWO, asked_at=12.5, user="alice"),
)


def filled() -> ClusterState:
    machine = fake_machine("m", CPU=8, memory=1 << 41, labels={"zone": "a"})
    state = ClusterState(Ledger([machine]))
    found = place(state.ledger, ONE)
    assert isinstance(found, Admit)
    apply(state.ledger, found, 0.0)
    for entry in ENTRIES:
        state.add(entry)
    for group in groups_for(found, lambda _: GroupId("g")):
        state.groups.put(group)
    return state


def test_what_was_saved_is_there_for_the_next_process(tmp_path: Path) -> None:
    state, path = filled(), tmp_path / "ledger.sqlite"
    file = LedgerFile(path)
    name = file.name
    file.save(state)
    file.close()
    file.close()
    again = LedgerFile(path)
    assert again.name == name
    found = again.load()
    assert (found.ledger.vnodes, found.ledger.clusters, found.ledger.machines) == (
        state.ledger.vnodes,
        state.ledger.clusters,
        state.ledger.machines,
    )
    assert tuple(found.entries.values()) == ENTRIES
    assert found.index.waiting == {"two"}
    assert list(found.groups) == list(state.groups)
    found.ledger.end(ClusterId("one"))
    found.remove(ClusterId("one"))
    found.groups.drop(GroupId("g"))
    again.save(found)
    empty = LedgerFile(path).load()
    assert empty.ledger.vnodes == {}
    assert list(empty.entries) == [ClusterId("two")]
    assert len(empty.groups) == 0
    again.close()


def test_a_ledger_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It holds the same as `filled`, and was written by commit 11fbf80."""
    path = tmp_path / "ledger.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.executescript(Path(__file__).with_name("ledger-of-0.1.sql").read_text())
    found, state = LedgerFile(path).load(), filled()
    assert (found.ledger.vnodes, found.ledger.clusters, found.ledger.machines) == (
        state.ledger.vnodes,
        state.ledger.clusters,
        state.ledger.machines,
    )
    assert tuple(found.entries.values()) == ENTRIES
    assert list(found.groups) == list(state.groups)


def test_who_comes_back_into_the_queue_stands_where_it_stood(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    file, state = LedgerFile(path), ClusterState()
    for entry in ENTRIES:
        state.add(entry)
    file.save(state)
    state.add(replace(state.entries[ClusterId("one")], waiting=True))
    file.save(state)
    found = LedgerFile(path).load()
    assert [each.request for each in found.in_order(found.index.waiting)] == [ONE, TWO]


def test_who_asks_after_a_restart_stands_behind_those_of_before(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    file, state = LedgerFile(path), ClusterState()
    for entry in ENTRIES:
        state.add(entry)
    file.save(state)
    file.close()
    file = LedgerFile(path)
    state = file.load()
    state.add(Entry(request=replace(ONE, id=ClusterId("three"))))
    file.save(state)
    state.admit(ClusterId("two"), 0.0)
    file.save(state)
    assert list(LedgerFile(path).load().entries) == ["one", "two", "three"]


def test_who_was_deleted_and_asks_again_stands_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    file, state = LedgerFile(path), ClusterState()
    for entry in ENTRIES:
        state.add(entry)
    file.save(state)
    state.remove(ClusterId("one"))
    file.save(state)
    state.add(ENTRIES[0])
    file.save(state)
    assert list(LedgerFile(path).load().entries) == ["two", "one"]


KILLED = """
import sys
from pathlib import Path
from fedpilot.fabric.core.cluster_state import ClusterState
from fedpilot.fabric.manager.files.ledger_file import OWN_POLL_S, LedgerFile, own
from fedpilot.fabric.testing.fake_cluster import fake_machine
file, state = LedgerFile(Path(sys.argv[1])), ClusterState()
for number in range(100_000):
    state.ledger.machine_up(fake_machine(f"m{number}", CPU=number + 1))
    file.save(state)
    print(number, flush=True)
"""


def test_a_killed_process_leaves_what_it_had_said(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(50):
            told = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
    found = LedgerFile(path).load().ledger
    assert {f"m{number}" for number in range(told + 1)} <= found.machines.keys()


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    LedgerFile(path).close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(FabricError, match=r"no ledger of format 1.* but of format 99"):
        LedgerFile(path)


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_text("this is no database, and never was one " * 100)
    with pytest.raises(FabricError, match="cannot be used as a ledger"):
        LedgerFile(path)


def test_a_ledger_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    file = LedgerFile(path)
    file.save(filled())
    file.close()
    other = sqlite3.connect(path)
    other.execute("DELETE FROM clusters")
    other.commit()
    other.close()
    with pytest.raises(FabricError, match=r"does not add up: one.* belongs to no cluster"):
        LedgerFile(path).load()


def test_a_ledger_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def successor(before: int) -> list[str]:
        told: list[str] = []
        begins = asyncio.ensure_future(own(path))
        done, _ = await asyncio.wait([begins], timeout=10 * OWN_POLL_S)
        told.append("owns" if done else "waits")
        os.close(before)  # as when the process ends
        os.close(await begins)
        return [*told, "owns"]

    assert asyncio.run(successor(asyncio.run(own(path)))) == ["waits", "owns"]


def test_a_ledger_that_outlives_its_session_keeps_its_notes_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    file = LedgerFile(path)
    assert not file.follow("session-1")  # the first one
    file.save(filled(), {"queues": {"projects": []}})
    name = file.name
    file.close()
    file = LedgerFile(path)
    assert not file.follow("session-1")  # another manager of the same session
    assert len(file.load().entries) == 2
    assert file.follow("session-2")
    assert file.follow("session-2")  # the first attempt died before it had restored anything
    file.restored()
    assert not file.follow("session-2")
    assert not file.load().entries
    assert not file.load().groups
    assert (file.note("queues"), file.name) == ({"projects": []}, name)
    file.close()


def test_a_ledger_from_before_sessions_were_noted_is_its_sessions(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "ledger.sqlite")
    file.save(filled())
    assert not file.follow("session-1")
    assert len(file.load().entries) == 2
    file.close()
