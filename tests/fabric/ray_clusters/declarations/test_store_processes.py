"""Processes that share a store: killed at any moment, they lose nothing that was answered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import MachineName, RayClusterName
from fedpilot.fabric.ray_clusters.declarations.records import UNDECLARED, RoleName
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore

TEAM = RayClusterName("team")
MANAGER = RoleName("manager")
BEGIN = """
import sys
from pathlib import Path
from fedpilot.fabric.errors import Conflict, Fenced
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore
store = RayClusterStore(Path(sys.argv[1]))
"""
STREAM = """
revision = 0
for number in range(100_000):
    written = store.apply("team", {"number": number}, saw=revision, by="writer", at=1.0)
    revision = written.revision
    print(number, revision, flush=True)
"""
RACE = """
print("ready", flush=True)
for number in map(int, sys.stdin):
    try:
        store.apply("team", {"by": sys.argv[2]}, saw=number, by=sys.argv[2], at=1.0)
        print("won", flush=True)
    except Conflict as refused:
        print(refused.found, flush=True)
"""
HOLD = """
lease = store.acquire("manager", "child")
store.remember(lease, store.find("team").uid, {}, {"m1": {"pid": 1}})
print(lease.fence, flush=True)
sys.stdin.read()
"""
STALE = """
lease = store.acquire("manager", "child")
print(lease.fence, flush=True)
sys.stdin.readline()
try:
    store.remember(lease, store.find("team").uid, {}, {"m1": {"pid": 1}})
except Fenced as refused:
    print("fenced by", refused.by, flush=True)
"""
SPAWN = """
import subprocess
lease = store.acquire("manager", "child")
program = subprocess.Popen(["sleep", "600"])
print(program.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def child(script: str, path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process with an open store, killed at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN + script, str(path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "declared.sqlite"


@pytest.mark.parametrize("answers", [1, 30])
def test_a_killed_writer_loses_nothing_that_was_answered(path: Path, answers: int) -> None:
    with child(STREAM, path) as writer:
        for _ in range(answers):
            last = line(writer)
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().splitlines() if writer.stdout else []
    number, revision = map(int, (rest or [last])[-1].split())
    with RayClusterStore(path) as store:
        found = store.find(TEAM)
        assert found is not None
        assert (found.document["number"], found.revision) in (
            (number, revision),
            (number + 1, revision + 1),  # committed, not answered yet
        )
        assert store.apply(TEAM, {}, saw=found.revision, by="next", at=2.0).uid == found.uid


def test_of_two_writers_at_the_same_revision_exactly_one_wins(path: Path) -> None:
    with (
        RayClusterStore(path) as store,
        child(RACE, path, "one") as one,
        child(RACE, path, "two") as two,
    ):
        racing = {"one": one, "two": two}
        assert {line(process) for process in racing.values()} == {"ready"}
        revision = int(UNDECLARED)
        for _ in range(20):
            for process in racing.values():
                say(process, str(revision))
            answers = {name: line(process) for name, process in racing.items()}
            (winner,) = [name for name, answer in answers.items() if answer == "won"]
            found = store.find(TEAM)
            assert found is not None
            assert found.by == winner
            assert str(found.revision) in answers.values()
            # An equal document would change nothing, so the next race begins from another one.
            revision = store.apply(TEAM, {}, saw=found.revision, by="us", at=1.0).revision


def test_a_second_manager_stands_aside_until_the_first_is_killed(path: Path) -> None:
    with RayClusterStore(path) as store:
        there = store.apply(TEAM, {}, saw=UNDECLARED, by="ann", at=1.0)
        with child(HOLD, path) as first:
            fence = int(line(first))
            assert store.acquire(MANAGER, "second") is None
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            second = store.acquire(MANAGER, "second")
        assert second is not None
        assert second.fence > fence
        assert store.machines(there.uid) == {MachineName("m1"): {"pid": 1}}


def test_a_manager_that_lost_its_lock_file_is_fenced(path: Path) -> None:
    with RayClusterStore(path) as store:
        there = store.apply(TEAM, {}, saw=UNDECLARED, by="ann", at=1.0)
        with child(STALE, path) as first:
            fence = int(line(first))
            path.with_name(f"{path.name}.manager.lock").unlink()
            second = store.acquire(MANAGER, "second")
            assert second is not None
            assert second.fence > fence
            say(first, "write")
            assert line(first) == "fenced by second"
        assert store.machines(there.uid) == {}
        store.remember(second, there.uid, {}, {MachineName("m1"): {"pid": 2}})


def test_a_killed_managers_programs_do_not_hold_its_role(path: Path) -> None:
    with RayClusterStore(path) as store, child(SPAWN, path) as first:
        program = int(line(first))
        try:
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            assert store.acquire(MANAGER, "second") is not None
        finally:
            os.kill(program, signal.SIGKILL)
