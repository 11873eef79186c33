"""Processes are found by a mark that they inherit, and signalled without a mistake."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fedpilot.common.host.marked_processes import (
    MarkedProcess,
    handle,
    has_ended,
    marked_processes,
    signal_all,
)

MARK = "TEST_OF_MARKS"
SLEEPS = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]


@pytest.fixture
def mark() -> Iterator[str]:
    drawn = secrets.token_hex(4)
    yield drawn
    signal_all(marked_processes(MARK, drawn), signal.SIGKILL)


def start(mark: str, command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process with a mark; it runs once it has printed."""
    process = subprocess.Popen(
        command, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_process_and_what_it_starts_in_another_session_are_found(mark: str) -> None:
    code = f"import subprocess; subprocess.Popen({SLEEPS!r}, start_new_session=True).wait()"
    parent = start(f"{mark}/a", [sys.executable, "-c", code])
    other = start(f"{mark}/b", SLEEPS)
    found = marked_processes(MARK, f"{mark}/")
    assert {each.mark for each in found} == {f"{mark}/a", f"{mark}/b"}
    assert {parent.pid, other.pid} < {each.pid for each in found}
    assert len(found) == 3
    assert all(each.program.startswith("python") for each in found)
    assert [each.pid for each in marked_processes(MARK, f"{mark}/b")] == [other.pid]


def test_a_mark_is_the_beginning_of_its_own_variable_alone(mark: str) -> None:
    with subprocess.Popen(
        SLEEPS, env={**os.environ, f"NOT_{MARK}": mark, "X": f"{MARK}={mark}"}
    ) as process:
        assert marked_processes(MARK, mark) == []
        process.kill()


def test_a_signal_hits_the_process_that_is_meant_and_no_later_one_of_its_pid(mark: str) -> None:
    process = start(mark, SLEEPS)
    (found,) = marked_processes(MARK, mark)
    earlier = replace(found, began=found.began - 1)
    signal_all([earlier], signal.SIGKILL)
    assert handle(earlier) is None
    assert process.poll() is None
    signal_all([found], signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    signal_all([found], signal.SIGKILL)  # it has ended, which is no error


def test_a_handle_tells_the_end_of_a_process(mark: str) -> None:
    process = start(mark, SLEEPS)
    (found,) = marked_processes(MARK, mark)
    descriptor = handle(found)
    assert descriptor is not None
    try:
        assert not has_ended(descriptor)
        process.kill()
        assert select.select([descriptor], [], [], 60)[0]
        assert has_ended(descriptor)
    finally:
        os.close(descriptor)


def test_the_program_is_the_file_that_runs() -> None:
    process = MarkedProcess(pid=1, began=1, mark="", arguments=("/usr/lib/raylet", "--x"))
    assert process.program == "raylet"
    assert replace(process, arguments=()).program == ""
