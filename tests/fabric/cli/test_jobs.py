"""`fedpilot job`: what list, show, logs, stop and explain print."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from cluster_documents import NOW, Document, printed
from fake_jobs import FakeJobs, cluster, invoke, job, waiting
from fedpilot.fabric.cli.terminal.tables import job_details, job_table
from fedpilot.fabric.jobs.jobs import Job
from fedpilot.fabric.manager.snapshot import find

ESCAPE = "task out of job 02000000 holds {CPU: 1} in no group"


def known() -> FakeJobs:
    late = waiting("late", 1)
    return FakeJobs(
        job("busy", cluster=cluster("busy", escapes=[ESCAPE])),
        job("late", "WAITING", cluster=late, message=late["reason"]),
        job("done", "FAILED", message="exit code 1", ended=NOW - 60),
        job("guest", virtual_cluster="team", joined=True, cluster=cluster("team")),
        job("free", "SUCCEEDED", virtual_cluster=None),
        log=["one\n", "two\n"],
    )


def test_the_list_says_who_runs_who_waits_and_what_is_outside() -> None:
    done = invoke(known(), "list")
    assert done.exit_code == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "RUNNING" in lines["busy"]
    assert "1 CPU" in lines["busy"]
    assert "WAITING, 1st" in lines["late"]
    assert "team" in lines["guest"]
    assert "outside all" in lines["free"]
    text = printed(job_table(known().list(), NOW), width=120)
    assert "room for none of it" in text
    assert "outside of it: task out of job 02000000" in text
    assert "no jobs" in invoke(FakeJobs(), "list").stdout


def test_one_job_is_shown_with_its_virtual_cluster() -> None:
    def shown(id: str, events: Sequence[Document] = ()) -> str:
        jobs = known()
        return printed(job_details(jobs.show(id), jobs.clusters.snapshot(), events, NOW), width=120)

    busy = shown("busy")
    assert busy.splitlines()[0] == "busy  RUNNING"
    assert f"outside of it: {ESCAPE}" in busy
    assert "busy/0" in busy
    assert busy.count("in no group") == 1
    assert "○ waiting, 1st" in shown("late")
    assert "team, which stays" in shown("guest")
    assert "outside all of them" in shown("free")
    end = {"cluster": "done", "event": "ended", "reason": "its job ended", "time": NOW}
    assert "done has ended: its job ended" in shown("done", [end])


def test_what_is_outside_is_red() -> None:
    console = Console(width=120, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        jobs = known()
        console.print(job_details(jobs.show("busy"), jobs.clusters.snapshot(), [], NOW))
    assert f"\x1b[31moutside of it: {ESCAPE}" in capture.get()


def test_logs_are_printed_as_they_are() -> None:
    assert invoke(known(), "logs", "busy").stdout == "one\ntwo\n"
    assert invoke(known(), "logs", "busy", "--follow").stdout == "one\ntwo\n"
    bare = json.loads(invoke(known(), "logs", "busy", "--json").stdout)
    assert bare == {"id": "busy", "log": "one\ntwo\n"}


def test_stopping_says_whether_there_was_something_to_stop() -> None:
    assert invoke(known(), "stop", "busy").stdout == "stopped busy\n"
    assert invoke(known(), "stop", "done").stdout == "done had ended already: FAILED\n"
    assert json.loads(invoke(known(), "stop", "done", "--json").stdout)["stopped"] is False


def test_documents_are_the_jobs() -> None:
    jobs = known()
    listed = json.loads(invoke(jobs, "list", "--json").stdout)["jobs"]
    assert listed == [each.to_dict() for each in jobs.list()]
    one = json.loads(invoke(jobs, "show", "late", "--json").stdout)
    assert (one["cluster"]["position"], one["joined"]) == (1, False)
    assert find(jobs.clusters.snapshot(), "late")["state"] == "waiting"


@pytest.mark.parametrize("command", ["show", "logs", "stop"])
def test_who_is_not_there_is_an_error(command: str) -> None:
    done = invoke(known(), command, "nobody")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "there is no job 'nobody'; see `fedpilot job list`" in done.stderr


def test_without_ray_it_cannot_be_reached() -> None:
    for command in (["list"], ["show", "a"], ["logs", "a"], ["stop", "a"], ["submit", "--", "x"]):
        assert invoke(None, *command).exit_code == 4


@pytest.mark.parametrize("command", ["submit", "list", "show", "logs", "stop"])
def test_help_has_examples(command: str) -> None:
    done = invoke(None, command, "--help")
    assert done.exit_code == 0
    assert f"fedpilot job {command}" in done.stdout.partition("Examples:")[2]


def explained(known: Job) -> list[str]:
    said: list[str] = json.loads(invoke(FakeJobs(known), "explain", known.id, "--json").stdout)[
        "sentences"
    ]
    return said


def test_explain_tells_of_a_job_and_of_its_virtual_cluster() -> None:
    said = explained(job("speech"))
    assert re.fullmatch(r"Job speech has been running for .+\.", said[0])
    assert said[1].startswith("speech is active")
    shown = invoke(FakeJobs(job("speech")), "explain", "speech")
    assert shown.exit_code == 0
    assert "speech is active" in shown.stdout


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"status": "SUCCEEDED", "ended": NOW - 10}, r"Job speech succeeded, .+\."),
        ({"status": "STOPPED", "ended": NOW - 10}, r"Job speech was stopped, .+\."),
        (
            {"status": "FAILED", "started": None, "message": "no such package"},
            r"Job speech never began: no such package\.",
        ),
        ({"status": "FAILED", "message": "exit code 3"}, r"Job speech failed, .+: exit code 3\."),
        ({"status": "PENDING"}, r"Ray has not started job speech yet: .+\."),
    ],
)
def test_explain_tells_how_a_job_ended(changes: dict[str, Any], told: str) -> None:
    assert re.fullmatch(told, explained(job("speech", **changes, cluster=None))[0])


def test_explain_of_no_job_says_so() -> None:
    done = invoke(FakeJobs(), "explain", "speech")
    assert done.exit_code == 2
    assert "there is no job 'speech'" in done.stderr
