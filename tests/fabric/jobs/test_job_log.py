"""The command's output passes as it comes; what fedpilot says of the job is told apart from it."""

from __future__ import annotations

import pytest

from fedpilot.fabric.jobs.job_log import OVER, READY, TOLD, JobLog, LogSource

BEGINS = f"fedpilot: virtual cluster a is active; {READY}\n"
LEAVES = f"fedpilot: virtual cluster a has to leave its places to b in 10 s; {TOLD}\n"
ENDED = f"fedpilot: exit code 143: {OVER}\n"
WAITS = "fedpilot: virtual cluster a is waiting (position 1): no room\n"
AGAIN = f"fedpilot: virtual cluster a is active; attempt 2: {READY}\n"


def read(log: JobLog, *texts: str) -> dict[LogSource, str]:
    """The text of each source."""
    found: dict[LogSource, str] = {}
    for source, text in log.read(texts):
        end = "" if source is LogSource.COMMAND else "\n"
        found[source] = found.get(source, "") + text + end
    return found


@pytest.mark.parametrize("size", [1, 5, 10_000], ids=str)
def test_a_preempted_job_has_one_log_with_two_sources(size: int) -> None:
    output = ["epoch 1\n", "fedpilot: my own words\n", "saved\n", "epoch 1\nno newline"]
    text = f"Ray\n{BEGINS}{output[0]}{output[1]}{LEAVES}{output[2]}{ENDED}{WAITS}{AGAIN}{output[3]}"
    log = JobLog()
    assert read(log, *(text[i : i + size] for i in range(0, len(text), size))) == {
        LogSource.RAY: "Ray\n",
        LogSource.COMMAND: "".join(output),
        LogSource.FEDPILOT: f"{LEAVES}{ENDED}{WAITS}",
        LogSource.AGAIN: AGAIN,
    }
    assert (log.began, log.said, log.preempted) == (True, "", False)


def test_a_line_without_an_end_is_not_held_back() -> None:
    log = JobLog()
    pieces = log.read(iter([BEGINS, "10 %", " 20 %", "\r30 %"]))
    assert [next(pieces) for _ in range(2)] == [
        (LogSource.COMMAND, "10 %"),
        (LogSource.COMMAND, " 20 %"),
    ]


def test_an_end_of_output_in_the_middle_of_a_line_hides_one_of_the_two_lines_at_most() -> None:
    log = JobLog()
    found = read(log, f"{BEGINS}10 %{LEAVES}{ENDED}{WAITS}")
    assert found[LogSource.COMMAND] == f"10 %{LEAVES}"
    assert found[LogSource.FEDPILOT] == f"{ENDED}{WAITS}"


def test_the_last_line_of_one_that_does_not_run_again_says_so() -> None:
    log = JobLog()
    read(log, BEGINS, LEAVES, ENDED, "fedpilot: preempted by b: its project has less\n")
    assert (log.preempted, log.said) == (True, "preempted by b: its project has less")
    other = JobLog()
    read(other, BEGINS, "fedpilot: preempted by nobody\n")
    assert not other.preempted
