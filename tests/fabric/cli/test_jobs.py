"""`fedpilot job`: errors before anything is submitted, the log alone on stdout, codes that tell."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from cluster_documents import NOW, Document, printed
from fedpilot.cli import main
from fedpilot.fabric import ClusterUnreachable, FabricError, VirtualCluster
from fedpilot.fabric.cli import jobs as job_cli
from fedpilot.fabric.core.records import ROOT
from fedpilot.fabric.errors import NeverFits, NoSuchCluster, NoSuchJob, SpecError
from fedpilot.fabric.inside.virtual_clusters import VirtualClusters
from fedpilot.fabric.jobs.confine import READY
from fedpilot.fabric.jobs.jobs import Job, Jobs, reason_in
from fedpilot.fabric.manager.snapshot import find
from fedpilot.fabric.views.tables import job_details, job_table

MACHINE = "a" * 56


def cluster(id: str, **changes: Any) -> Document:
    """A virtual cluster of one CPU."""
    node = {
        "id": f"{id}/0",
        "kind": "fixed",
        "parent": MACHINE,
        "machine": MACHINE,
        "hostname": "host-a",
        "total": {"CPU": 1.0},
        "available": {},
        "labels": {},
        "loans": [],
        "groups": [],
    }
    return {
        "id": id,
        "parent": ROOT,
        "state": "active",
        "reason": "",
        "position": None,
        "owner": "02000000",
        "asked_at": NOW - 100,
        "priority": 0,
        "deadline": None,
        "spec": {"flex_resource_min": {"CPU": 1.0}},
        "total": {"CPU": 1.0},
        "available": {},
        "borrowed": {},
        "work": {"placed": 1, "queued": 0, "held": 0},
        "escapes": [],
        "children": [],
        "nodes": [node],
        **changes,
    }


def waiting(id: str, position: int) -> Document:
    reason = "it needs 1 CPU, and there is room for none of it"
    return cluster(
        id, state="waiting", position=position, reason=reason, total={}, nodes=[], work={}
    )


def job(id: str, status: str = "RUNNING", **changes: Any) -> Job:
    known = Job(
        id=id,
        status=status,
        message="",
        entrypoint="python train.py",
        started=NOW - 90,
        ended=None,
        virtual_cluster=id,
        joined=False,
        cluster=cluster(id) if status == "RUNNING" else None,
    )
    return replace(known, **changes)


class FakeClusters(VirtualClusters):
    """A manager without Ray."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.events: list[Document] = []

    def snapshot(self) -> Mapping[str, Any]:
        have = {"id": MACHINE, "hostname": "host-a", "total": {"CPU": 4.0}, "available": {}}
        held = [dict(each.cluster) for each in self.jobs if each.cluster]
        return {"machines": [{**have, "labels": {}}], "clusters": held}

    def history(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.events)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, nobody says that a job waits."""
    monkeypatch.setattr(job_cli, "QUIET_S", 3600.0)


class FakeJobs(Jobs):
    """A job server without Ray: remembers what it was asked; a job ends as `ends` says."""

    def __init__(self, *known: Job, log: Sequence[str] = (), ends: str = "SUCCEEDED") -> None:
        self.known = {each.id: each for each in known}
        self.log, self.ends = log, ends
        self.submitted: list[Document] = []
        self.fails: FabricError | None = None
        self.message = ""

    @property
    def clusters(self) -> VirtualClusters:  # type: ignore[override]
        return FakeClusters(list(self.known.values()))

    def submit(
        self, command: Sequence[str], spec: VirtualCluster | None = None, **options: Any
    ) -> str:
        if self.fails is not None:
            raise self.fails
        id: str = options["id"]
        wanted = None if spec is None else spec.to_dict()
        self.submitted.append({"command": list(command), "spec": wanted, **options})
        self.known[id] = job(id, "PENDING")
        return id

    def list(self) -> list[Job]:
        return list(self.known.values())

    def show(self, id: str) -> Job:
        if id not in self.known:
            raise NoSuchJob(id)
        return self.known[id]

    def logs(self, id: str) -> str:
        self.show(id)
        return "".join(self.log)

    def follow(self, id: str) -> Iterator[str]:
        found = self.show(id)
        yield from self.log
        self.known[id] = replace(found, status=self.ends, message=self.message, cluster=None)

    def stop(self, id: str) -> bool:
        told = self.show(id).status not in ("SUCCEEDED", "FAILED", "STOPPED")
        if told:
            self.known[id] = replace(self.known[id], status="STOPPED")
        return told


def opening(jobs: Jobs) -> Callable[..., AbstractContextManager[Jobs]]:
    @contextmanager
    def opened(address: str, auth_mode: str | None, timeout_s: float) -> Iterator[Jobs]:
        yield jobs

    return opened


def invoke(jobs: Jobs | None, *arguments: str) -> Result:
    def refused(
        address: str, auth_mode: str | None, timeout_s: float
    ) -> AbstractContextManager[Jobs]:
        raise ClusterUnreachable(address, "nothing listens there")

    return CliRunner().invoke(
        main, ["job", *arguments], obj=refused if jobs is None else opening(jobs)
    )


# -- submit -----------------------------------------------------------------------------------

BEFORE = [
    "2026-01-01 00:00:00,000\tINFO job_manager.py:581 -- Runtime env is setting up.\nRunning ent",
    "rypoint for job speech: python -m fedpilot.fabric.confine\nfedpilot: virtual cluster spee",
    "ch is waiting (position 1): it needs 4 CPU, and there is room for 2 CPU only\n",
]
BEGINS = f"fedpilot: virtual cluster speech is active; {READY}\n"


def test_the_log_of_the_command_goes_to_stdout_and_why_it_waits_to_stderr() -> None:
    log = [*BEFORE, BEGINS + "epoch 1\nfedpilot: my own", " words\nno newline"]
    done = invoke(FakeJobs(log=log), "submit", "--id", "speech", "--min", "CPU=4", "--", "x")
    assert (done.exit_code, done.stdout) == (0, "epoch 1\nfedpilot: my own words\nno newline")
    assert done.stderr == (
        "fedpilot: job speech is submitted\n"
        "fedpilot: virtual cluster speech is waiting (position 1): it needs 4 CPU, and there is "
        "room for 2 CPU only\n"
    )


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_it_does_not_matter_how_ray_cuts_the_log(size: int) -> None:
    text = "".join(BEFORE) + BEGINS + "one\n\ntwo\nthree"
    log = [text[i : i + size] for i in range(0, len(text), size)]
    done = invoke(FakeJobs(log=log), "submit", "--id", "speech", "--", "x")
    assert (done.exit_code, done.stdout) == (0, "one\n\ntwo\nthree")
    assert done.stderr.count("is waiting (position 1)") == 1


def test_what_was_asked_for_is_what_is_submitted(tmp_path: Path) -> None:
    jobs = FakeJobs(log=[BEGINS])
    words = ["--node", "2xCPU=1", "--policy", "STRICT_SPREAD", "--id", "vision", "--priority", "3"]
    more = ["--deadline", "60", "--working-dir", str(tmp_path), "--runtime-env", '{"pip": ["x"]}']
    done = invoke(jobs, "submit", *words, *more, "--", "python", "a.py", "--min", "0", "-x")
    assert done.exit_code == 0, done.stderr
    node = {"resources": {"CPU": 1.0}}
    assert jobs.submitted == [
        {
            "command": ["python", "a.py", "--min", "0", "-x"],
            "spec": {
                "fixed_size_nodes": [{"nodes": [node, node], "scheduling_policy": "STRICT_SPREAD"}]
            },
            "join": None,
            "id": "vision",
            "priority": 3,
            "deadline_s": 60.0,
            "runtime_env": {"pip": ["x"], "working_dir": str(tmp_path)},
        }
    ]


def test_a_spec_may_be_json_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("flex_resource_min: {CPU: 2}\n")
    jobs = FakeJobs(log=[BEGINS])
    text = '{"flex_resource_min": {"CPU": 2}}'
    assert invoke(jobs, "submit", "--virtual-cluster", text, "--", "x").exit_code == 0
    assert invoke(jobs, "submit", "--spec", str(file), "--", "x").exit_code == 0
    assert [each["spec"] for each in jobs.submitted] == [{"flex_resource_min": {"CPU": 2.0}}] * 2


def test_a_job_may_join_a_virtual_cluster_that_is_there() -> None:
    jobs = FakeJobs(log=[BEGINS])
    assert invoke(jobs, "submit", "--in", "team", "--", "x").exit_code == 0
    assert (jobs.submitted[0]["join"], jobs.submitted[0]["spec"]) == ("team", None)


def test_without_waiting_its_id_is_all_that_is_printed() -> None:
    jobs = FakeJobs()
    done = invoke(jobs, "submit", "--no-wait", "--", "x")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == jobs.submitted[0]["id"] + "\n"
    bare = json.loads(invoke(jobs, "submit", "--no-wait", "--json", "--", "x").stdout)
    assert bare["status"] == "PENDING"


def test_json_is_alone_on_stdout() -> None:
    done = invoke(FakeJobs(log=[BEGINS, "epoch 1\n"]), "submit", "--json", "--id", "a", "--", "x")
    assert (done.exit_code, json.loads(done.stdout)["status"]) == (0, "SUCCEEDED")
    assert done.stderr.splitlines()[-1] == "epoch 1"


ENDINGS = [
    pytest.param([BEGINS], "FAILED", 1, "fedpilot: job a failed: exit code 1", id="it failed"),
    pytest.param([BEGINS], "STOPPED", 1, "fedpilot: job a was stopped", id="it was stopped"),
    pytest.param(BEFORE, "STOPPED", 1, "fedpilot: job a was stopped", id="stopped in the queue"),
    pytest.param(BEFORE, "FAILED", 3, "fedpilot: job a never began: exit code 1", id="it gave up"),
]


@pytest.mark.parametrize(("log", "ends", "code", "last"), ENDINGS)
def test_the_exit_code_tells_how_it_ended(
    log: Sequence[str], ends: str, code: int, last: str
) -> None:
    jobs = FakeJobs(log=log, ends=ends)
    jobs.message = "exit code 1"
    done = invoke(jobs, "submit", "--id", "a", "--", "x")
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1] == last


def test_what_ray_said_is_shown_if_it_could_not_start_the_job() -> None:
    jobs = FakeJobs(log=["Runtime env setup failed:\nno such package\n"], ends="FAILED")
    jobs.message = "Runtime env setup failed:"
    assert invoke(jobs, "submit", "--id", "a", "--", "x").stderr.splitlines() == [
        "fedpilot: job a is submitted",
        "Runtime env setup failed:",
        "no such package",
        "fedpilot: job a never began: Runtime env setup failed:",
    ]


def test_why_it_never_began_is_said_once() -> None:
    why = "virtual cluster 'speech' waited 1.1 s in vain: its deadline is over"
    jobs = FakeJobs(log=[*BEFORE, f"fedpilot: {why}\n"], ends="FAILED")
    jobs.message = why
    assert invoke(jobs, "submit", "--id", "speech", "--", "x").stderr.splitlines() == [
        "fedpilot: job speech is submitted",
        "fedpilot: virtual cluster speech is waiting (position 1): it needs 4 CPU, and there is "
        "room for 2 CPU only",
        f"fedpilot: {why}",
        "fedpilot: job speech never began",
    ]


BAD = [
    pytest.param([], "give the command to run", id="no command"),
    pytest.param(["--min", "CPU=x", "--", "x"], "wanted NAME=AMOUNT", id="no amount"),
    pytest.param(
        ["--virtual-cluster", "{", "--", "x"], "--virtual-cluster: wanted JSON", id="json"
    ),
    pytest.param(
        ["--virtual-cluster", '{"cpus": 1}', "--", "x"],
        "--virtual-cluster: a virtual cluster: unknown key",
        id="a key",
    ),
    pytest.param(
        ["--virtual-cluster", "{}", "--min", "CPU=1", "--", "x"], "--virtual-cluster JSON", id="two"
    ),
    pytest.param(["--spec", "/no/such.yaml", "--", "x"], "cannot be read", id="no file"),
    pytest.param(["--in", "a", "--min", "CPU=1", "--", "x"], "--in takes", id="a spec to join"),
    pytest.param(
        ["--in", "a", "--deadline", "5", "--", "x"], "--in takes", id="join with deadline"
    ),
    pytest.param(["--id", "a/b", "--", "x"], "name: ", id="an id that is no name"),
    pytest.param(["--runtime-env", "[]", "--", "x"], "wanted an object", id="runtime env"),
    pytest.param(
        ["--runtime-env", '{"env_vars": {"A": 1}}', "--", "x"], "wanted texts", id="a variable"
    ),
    pytest.param(["--working-dir", "/no/where", "--", "x"], "wanted a folder", id="no folder"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD)
def test_what_is_wrong_is_told_before_ray_is_touched(arguments: list[str], said: str) -> None:
    done = invoke(None, "submit", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


REFUSED = [
    pytest.param(NeverFits("a", "it needs 40 CPU", 0), 3, "it needs 40 CPU", id="never fits"),
    pytest.param(NoSuchCluster("team"), 2, "no virtual cluster 'team'", id="nobody to join"),
    pytest.param(SpecError("id: there was a job"), 2, "was a job", id="the id was used"),
    pytest.param(ClusterUnreachable("h:1", "runs none"), 4, "runs none", id="no dashboard"),
]


@pytest.mark.parametrize(("error", "code", "said"), REFUSED)
def test_a_refusal_has_its_code(error: FabricError, code: int, said: str) -> None:
    jobs = FakeJobs()
    jobs.fails = error
    done = invoke(jobs, "submit", "--", "x")
    assert (done.exit_code, done.stdout, jobs.submitted) == (code, "", [])
    assert said in done.stderr
    assert "is submitted" not in done.stderr


def test_a_job_that_ray_does_not_begin_is_spoken_of_until_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its runtime environment may take minutes, in which nothing else is printed."""
    monkeypatch.setattr(job_cli, "QUIET_S", 0.01)
    monkeypatch.setattr(job_cli, "REPEATED_S", 0.01)
    told = threading.Event()
    echo = click.echo

    def heard(message: object = None, **options: Any) -> None:
        echo(message, **options)
        if "runtime environment" in str(message):
            told.set()

    monkeypatch.setattr(click, "echo", heard)

    class Slow(FakeJobs):
        def follow(self, id: str) -> Iterator[str]:
            assert told.wait(60)
            yield from super().follow(id)

    done = invoke(Slow(log=["output\n"]), "submit", "--id", "a", "--", "x")
    assert "job a waits for 0 s now: Ray has not begun it" in done.stderr
    assert "runtime environment" not in done.stdout


def test_an_interruption_leaves_the_job_and_says_how_to_go_on() -> None:
    class Interrupted(FakeJobs):
        def follow(self, id: str) -> Iterator[str]:
            yield BEGINS
            raise KeyboardInterrupt

    words = ["submit", "--id", "a", "--address", "h:1", "--", "x"]
    done = invoke(Interrupted(), *words)
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr.splitlines()[1:] == [
        "fedpilot: interrupted; job a goes on",
        "  its log: fedpilot job logs a --follow --address h:1",
        "  stop it: fedpilot job stop a --address h:1",
    ]


def test_an_interruption_before_ray_has_answered_does_not_say_that_the_job_goes_on() -> None:
    class Interrupted(FakeJobs):
        def submit(
            self, command: Sequence[str], spec: VirtualCluster | None = None, **options: Any
        ) -> str:
            raise KeyboardInterrupt

    done = invoke(Interrupted(), "submit", "--id", "a", "--", "x")
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr.splitlines() == [
        "fedpilot: interrupted; job a may be submitted, or not",
        "  see: fedpilot job show a",
        "  stop it: fedpilot job stop a",
    ]


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
        f"{TAIL}\none\nfedpilot: virtual cluster 'a' waited 1.0 s in vain: no\n",
        "virtual cluster 'a' waited 1.0 s in vain: no",
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


# -- list, show, logs, stop -------------------------------------------------------------------

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
    assert "outside of all" in lines["free"]
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
    assert "outside of them all" in shown("free")
    end = {"cluster": "done", "event": "ended", "reason": "its job ended", "time": NOW}
    assert "done is no more: its job ended" in shown("done", [end])


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


# -- explain ----------------------------------------------------------------------------------


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
        ({"status": "PENDING"}, r"Job speech has yet to be started by Ray, .+\."),
    ],
)
def test_explain_tells_how_a_job_ended(changes: dict[str, Any], told: str) -> None:
    assert re.fullmatch(told, explained(job("speech", **changes, cluster=None))[0])


def test_explain_of_no_job_says_so() -> None:
    done = invoke(FakeJobs(), "explain", "speech")
    assert done.exit_code == 2
    assert "there is no job 'speech'" in done.stderr


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
