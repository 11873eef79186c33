"""Why a job failed, on one line."""

from __future__ import annotations

import pytest

from fedpilot.fabric.cli.spec_options import QUEUE
from fedpilot.fabric.jobs import confine
from fedpilot.fabric.jobs.job_log import READY
from fedpilot.fabric.jobs.jobs import options_of, reason_in
from fedpilot.fabric.spec import QueueOptions

TAIL = "Job entrypoint command failed with exit code 3, last available logs"

TAIL += " (truncated to 20,000 chars):"

REASONS = [
    pytest.param(None, "", id="nothing"),
    pytest.param("Job finished successfully.", "Job finished successfully.", id="one line"),
    pytest.param(
        f"{TAIL}\none\nZeroDivisionError: division by zero\n",
        "Job entrypoint command failed with exit code 3",
        id="the command's own last words stay in the log",
    ),
    pytest.param(
        f"{TAIL}\none\nfedpilot: virtual cluster 'a' did not get its places in 1.0 s: no\n",
        "virtual cluster 'a' did not get its places in 1.0 s: no",
        id="what was said of it last",
    ),
    pytest.param(
        f"{TAIL}\nfedpilot: virtual cluster a is active; {READY}\n",
        "Job entrypoint command failed with exit code 3",
        id="a command that began and printed nothing",
    ),
]


@pytest.mark.parametrize(("message", "reason"), REASONS)
def test_why_a_job_failed_is_one_line(message: str | None, reason: str) -> None:
    assert reason_in(message) == reason


QUEUES: list[QueueOptions] = [
    {},
    {"priority": -2},
    {"project": "vision", "pool": "gpus", "priority_class": "build"},
    {"preemptible": False},
    {"preemptible": True, "priority": 7},
]


@pytest.mark.parametrize("queue", QUEUES, ids=str)
def test_a_place_in_line_reaches_the_process_that_asks_for_it(queue: QueueOptions) -> None:
    given, _ = confine.parsed(["--name", "a", *options_of(queue), "--", "true"])
    asked = {name: value for name, value in vars(given).items() if name in QUEUE and value}
    if given.preemptible is not None:
        asked["preemptible"] = given.preemptible
    assert asked == queue


def test_what_is_not_asked_for_is_not_said_to_versions_that_do_not_know_it() -> None:
    assert options_of({"project": "", "preemptible": None, "priority": 0}) == []


PIP_FAILS = """runtime_env setup failed: Failed to set up runtime environment.
Could not create the actor because its associated runtime env failed to be created.
ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[7] failed.
Command '['/venv/bin/python', '-m', 'pip', 'install', '-r', 'x.txt']' returned status 1.
Last 50 lines of stdout:
    Collecting einops==99
    ERROR: Could not find a version that satisfies the requirement einops==99 (from versions: 0.8)
    ERROR: No matching distribution found for einops==99
"""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            PIP_FAILS,
            "runtime_env setup failed: Failed to set up runtime environment: "
            "No matching distribution found for einops==99",
        ),
        (
            PIP_FAILS.replace("ERROR: No", "    error: No"),
            "runtime_env setup failed: Failed to set up runtime environment: "
            "No matching distribution found for einops==99",
        ),
        (
            "Job failed due to an application error\nERROR: of the script",
            "Job failed due to an application error",
        ),
    ],
)
def test_a_runtime_environment_that_fails_names_what_pip_said_last(
    message: str, reason: str
) -> None:
    assert reason_in(message) == reason
