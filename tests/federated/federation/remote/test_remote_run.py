"""`fedpilot run` and `fedpilot runs` at a mediator: as local ones look, and nothing is lost."""

from __future__ import annotations

import json
import os
import shlex
import signal
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from fedpilot.cli import main
from fedpilot.fabric.host.machine import Load
from fedpilot.federated import load_config
from fedpilot.federated.core.user_code.code_archive import unpacked
from fedpilot.federated.federation import step_watch
from fedpilot.federated.federation.remote.remote_run import exit_code_of_failure
from user_service import Served, a_run, serving

CONFIG = """
federation: {number_of_clients: 50, clients_per_round: 20, rounds: 2}
model: {model_type: mlp}
data: {dataset_type: digits}
"""
TIME = "2026-01-02T03:04:05.000+00:00"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("mediator")) as served:
        yield served


@pytest.fixture
def served(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    server.service.__init__()  # type: ignore[misc]
    monkeypatch.setenv("FEDPILOT_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.delenv("FEDPILOT_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("digits.yaml").write_text(CONFIG)
    return server


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, nobody says that he waits."""
    monkeypatch.setattr(step_watch, "QUIET_S", 3600.0)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="fedpilot")


def happened(name: str, **fields: Any) -> dict[str, Any]:
    return {"event": name, "time": TIME, **fields}


def started(run: str, *, resumed: bool = False) -> dict[str, Any]:
    return happened(
        "run_started",
        run_id=run,
        folder=f"/state/runs/{run}",
        resumed=resumed,
        rounds=2,
        clients=50,
        clients_per_round=20,
        samples_per_client=[1, 2, 3],
        labels_per_client=2.0,
        model="mlp",
        parameters=10,
        dataset="digits",
        distribution="iid",
    )


def a_round(number: int) -> dict[str, Any]:
    return happened(
        "round_finished",
        round=number,
        of=2,
        train_loss=0.5,
        clients_per_second=10.0,
        refused=0,
        accuracy=number / 10,
        loss=0.1,
    )


def finished(run: str, status: str = "finished", failure: str = "") -> dict[str, Any]:
    return happened(
        "run_finished",
        run_id=run,
        folder=f"/state/runs/{run}",
        status=status,
        failure=failure,
        reason=failure or "all rounds are done",
        rounds=2,
        digest="d" * 64,
        seconds=1.5,
    )


def trains(served: Served, status: str = "finished", failure: str = "") -> None:
    """Have the mediator train what is submitted, at once."""

    def train(run: str) -> None:
        service = served.service
        service.say(run, started(run), a_round(1), a_round(2), finished(run, status, failure))
        ended = "stopped" if status == "interrupted" else status
        service.end(run, ended, failure=failure)

    served.service.on_submit = train


# -- run ------------------------------------------------------------------------------------------


def test_a_run_is_submitted_and_shown_as_a_local_one(served: Served) -> None:
    trains(served)
    result = invoke("run", "digits.yaml", "--run-id", "base", *served.options)
    assert result.exit_code == 0, result.stderr
    for part in ("run base", "round 1/2", "round 2/2", "sha256 dddd", served.address):
        assert part in result.stdout
    assert "fedpilot runs fetch base --to base --mediator" in result.stderr
    (submission,) = served.service.submissions
    assert (submission.run, submission.name, submission.interactive) == ("base", "digits", False)
    Path("sent.yaml").write_text(submission.config_yaml)
    assert load_config("sent.yaml") == load_config("digits.yaml")
    assert not Path("runs").exists()


OWN = ("--set", "model.model_type=my_nets_to_send:Net")


def test_the_users_own_code_goes_with_a_run(served: Served) -> None:
    """From beside the config and out of the working folder; none of it is run here."""
    trains(served)
    Path("configs").mkdir()
    Path("configs", "digits.yaml").write_text(CONFIG)
    Path("configs", "my_nets_to_send.py").write_text("import my_parts_to_send\nraise SystemExit\n")
    Path("my_parts_to_send.py").write_text("x = 1\n")
    result = invoke("run", "configs/digits.yaml", *OWN, *served.options)
    assert result.exit_code == 0, result.stderr
    (submission,) = served.service.submissions
    assert sorted(unpacked(submission.code)) == ["my_nets_to_send.py", "my_parts_to_send.py"]
    assert "is not found here" not in result.stderr


def test_without_code_of_ones_own_none_is_sent(served: Served) -> None:
    trains(served)
    invoke("run", "digits.yaml", *served.options)
    assert served.service.submissions[0].code == b""


def test_a_module_that_is_not_here_is_told_of(served: Served) -> None:
    """It may be installed at the mediator and its sites, or the folder is the wrong one."""
    trains(served)
    result = invoke("run", "digits.yaml", *OWN, *served.options)
    assert result.exit_code == 0, result.stderr
    assert "my_nets_to_send is not found here, so it is not sent" in result.stderr


def test_code_that_cannot_travel_is_refused_with_its_line(served: Served) -> None:
    Path("my_nets_to_send.abi3.so").write_bytes(b"\x7fELF")
    Path("digits.yaml").write_text(CONFIG.replace("mlp", '"my_nets_to_send:Net"'))
    result = invoke("run", "digits.yaml", *served.options)
    assert result.exit_code == 2
    assert "digits.yaml:3: model.model_type" in result.stderr
    assert "code that needs my_nets_to_send.abi3.so, which is compiled" in result.stderr
    assert served.service.asked == []


def test_json_is_what_the_coordinator_told(served: Served) -> None:
    trains(served)
    result = invoke("run", "digits.yaml", "--run-id", "base", "--json", *served.options)
    submitted, *lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert submitted["event"] == "run_submitted"
    assert lines == served.service.events["base"]


def test_overrides_are_part_of_what_is_sent(served: Served) -> None:
    trains(served)
    invoke("run", "digits.yaml", "--set", "federation.rounds=7", *served.options)
    Path("sent.yaml").write_text(served.service.submissions[0].config_yaml)
    assert load_config("sent.yaml").federation.rounds == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(
            ("run", "digits.yaml", "--set", "federation.round=1"), "federation.rounds", id="a key"
        ),
        pytest.param(("run", "missing.yaml"), "missing.yaml", id="no such file"),
        pytest.param(("run", "digits.yaml", "--run-id", "../x"), "'../x'", id="a hostile id"),
        pytest.param(("run", "digits.yaml", "--folder", "x"), "--folder", id="a folder here"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_sent(
    served: Served, arguments: tuple[str, ...], said: str
) -> None:
    result = invoke(*arguments, *served.options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert served.service.asked == []


def test_a_lost_answer_to_the_submission_submits_once(served: Served) -> None:
    trains(served)
    served.service.fails = [("submit", grpc.StatusCode.UNAVAILABLE, "cut")]
    assert invoke("run", "digits.yaml", *served.options).exit_code == 0
    assert len(served.service.submissions) == 1


def test_a_detached_run_prints_its_id_only(served: Served) -> None:
    result = invoke("run", "digits.yaml", "--run-id", "base", "--detach", *served.options)
    assert (result.exit_code, result.stdout) == (0, "base\n")
    assert [name for name, _ in served.service.asked] == ["submit"]


def events_of(result: Any) -> list[dict[str, Any]]:
    """What was printed: events, each with its moment."""
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(datetime.fromisoformat(each["time"]).tzinfo for each in told)
    return told


@pytest.mark.parametrize("options", [(), ("--share",)], ids=["not shared", "shared"])
def test_a_run_is_shared_if_that_is_asked_for(options: tuple[str, ...], served: Served) -> None:
    result = invoke("run", "digits.yaml", "--run-id", "base", "-d", *options, *served.options)
    assert result.exit_code == 0, result.stderr
    (submission,) = served.service.submissions
    assert submission.shared is bool(options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("digits.yaml",), "--share is about a run at a mediator", id="a run here"),
        pytest.param(("--resume", "base"), "is shared as it was", id="a run that goes on"),
    ],
)
def test_what_cannot_be_shared_is_bad_usage(
    arguments: tuple[str, ...], said: str, served: Served
) -> None:
    result = invoke("run", *arguments, "--share")
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_run_that_waits_is_followed_to_its_end(served: Served) -> None:
    def train(run: str) -> None:
        waiting = happened("run_waiting", run_id=run, reason="the disk is full")
        served.service.say(run, started(run), a_round(1), waiting)
        served.service.say(run, started(run, resumed=True), a_round(2), finished(run))
        served.service.end(run, "finished")

    served.service.on_submit = train
    result = invoke("run", "digits.yaml", "--run-id", "base", *served.options)
    assert result.exit_code == 0, result.stderr
    assert "run base waits: the disk is full" in result.stdout
    assert "interrupted" not in result.stdout


def test_a_detached_run_tells_by_events_how_to_attach(served: Served) -> None:
    options = ["--detach", "--json", *served.options]
    result = invoke("run", "digits.yaml", "--run-id", "base", *options)
    assert result.exit_code == 0, result.stderr
    submitted, detached = events_of(result)
    del submitted["time"], detached["time"]
    assert submitted == {
        "event": "run_submitted",
        "run_id": "base",
        "status": "running",
        "mediator": served.address,
    }
    again = ["fedpilot", "runs", "attach", "base", *served.options]
    assert detached == {
        "event": "run_detached",
        "run_id": "base",
        "reason": "it was asked for",
        "attach": shlex.join(again),
    }


def test_ctrl_c_is_the_last_event(served: Served) -> None:
    service = served.service
    service.on_submit, service.cuts = lambda run: service.say(run, started(run)), [1, 0]
    service.on_cut = lambda: None if service.cuts else os.kill(os.getpid(), signal.SIGINT)
    result = invoke("run", "digits.yaml", "--run-id", "base", "--json", *served.options)
    assert result.exit_code == 130
    told = events_of(result)
    assert [each["event"] for each in told] == ["run_submitted", "run_started", "run_detached"]
    assert told[-1]["reason"] == "interrupted"
    assert told[-1]["attach"] in result.stderr


def test_detach_is_about_a_mediator(served: Served) -> None:
    result = invoke("run", "digits.yaml", "--detach")
    assert result.exit_code == 2
    assert "--mediator" in result.stderr


def test_a_default_profile_alone_sends_no_run_away(served: Served) -> None:
    invoke("profile", "add", "here", *served.options)
    # A gang that can never fit ends the local run before anything is started.
    result = invoke("run", "digits.yaml", "--set", "resources={workers: 3, ray: {num_cpus: 2}}")
    assert result.exit_code == 3
    assert served.service.asked == []


def test_the_variable_names_a_mediator_for_runs(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    trains(served)
    invoke("profile", "add", "here", *served.options)
    monkeypatch.setenv("FEDPILOT_PROFILE", "here")
    assert invoke("run", "digits.yaml").exit_code == 0
    assert len(served.service.submissions) == 1


@pytest.mark.parametrize(
    ("status", "failure", "code"),
    [
        pytest.param("failed", "ClientFailed: c7 raised", 1, id="a client that raised"),
        pytest.param("failed", "GangInfeasible: too large", 3, id="a gang that never fits"),
        pytest.param("failed", "SiteUnreachable: paris", 4, id="a site that does not answer"),
        pytest.param("failed", "SomethingNew: x", 1, id="an error that is not known here"),
        pytest.param("interrupted", "interrupted by the user", 130, id="stopped by somebody"),
    ],
)
def test_the_exit_code_is_what_a_local_run_would_have(
    served: Served, status: str, failure: str, code: int
) -> None:
    trains(served, status, failure)
    result = invoke("run", "digits.yaml", "--run-id", "base", *served.options)
    assert result.exit_code == code
    assert "fedpilot runs resume base --mediator" in result.stdout
    if code != 130:
        assert failure in result.stderr


def test_a_failure_that_names_no_error_of_ours_is_one(served: Served) -> None:
    assert exit_code_of_failure("") == 1
    assert exit_code_of_failure("annotations: x") == 1
    assert exit_code_of_failure("MediatorUnreachable: x") == 4


# -- following ------------------------------------------------------------------------------------


def test_events_are_shown_once_each_over_cut_links(served: Served) -> None:
    trains(served)
    served.service.cuts = [1, 1, 0, 1]
    result = invoke("run", "digits.yaml", "--run-id", "base", "--json", *served.options)
    assert result.exit_code == 0
    assert [json.loads(line)["event"] for line in result.stdout.splitlines()] == [
        "run_submitted",
        "run_started",
        "round_finished",
        "round_finished",
        "run_finished",
    ]
    assert "the connection is cut" in result.stderr


def test_who_follows_a_silent_run_is_told_that_it_waits(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = threading.Event()

    def busy() -> Load:
        spoken.set()
        return Load(16.2, 2)

    monkeypatch.setattr(step_watch, "QUIET_S", 0.05)
    monkeypatch.setattr(step_watch, "load", busy)
    trains(served)
    served.service.cuts = [1, 1]
    served.service.on_cut = lambda: spoken.wait(60)
    result = invoke("run", "digits.yaml", "--run-id", "base", *served.options)
    assert result.exit_code == 0
    waiting = "waiting  for what the mediator tells of the run"
    assert any(waiting in each and "load 16.2" in each for each in result.stdout.splitlines())


def test_ctrl_c_detaches_and_says_how_to_attach(served: Served) -> None:
    service = served.service

    def train(run: str) -> None:
        service.say(run, started(run), a_round(1))

    service.on_submit, service.cuts = train, [2, 0]
    service.on_cut = lambda: None if service.cuts else os.kill(os.getpid(), signal.SIGINT)
    result = invoke("run", "digits.yaml", "--run-id", "base", *served.options)
    assert result.exit_code == 130
    assert "round 1/2" in result.stdout
    assert f"fedpilot runs attach base --mediator {served.address}" in result.stderr
    assert service.runs["base"]["status"] == "running"


def test_a_coordinator_that_died_without_a_word_has_an_end_too(served: Served) -> None:
    service = served.service

    def die(run: str) -> None:
        service.say(run, started(run))
        service.end(run, "failed", reason="its coordinator died 5 times", ended_at=None)

    service.on_submit = die
    result = invoke("run", "digits.yaml", "--run-id", "base", "--json", *served.options)
    assert result.exit_code == 1
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["event"], last["status"]) == ("run_finished", "failed")
    assert "its coordinator died 5 times" in result.stderr


def test_a_run_that_was_resumed_after_it_had_ended_ends_when_that_does(served: Served) -> None:
    service = served.service
    service.runs["base"] = a_run("base", status="finished")
    service.say("base", started("base"), finished("base", "interrupted", "stopped"))
    service.say("base", started("base", resumed=True), finished("base"))
    assert invoke("runs", "attach", "base", *served.options).exit_code == 0


def test_a_resumed_run_is_followed_from_where_it_was(served: Served) -> None:
    service = served.service
    service.runs["base"] = a_run("base", status="stopped")
    service.say("base", started("base"), finished("base", "interrupted", "stopped"))

    def train(run: str) -> None:
        service.say(run, started(run, resumed=True), a_round(2), finished(run))
        service.end(run, "finished")

    service.on_submit = train
    for arguments in (("runs", "resume", "base"), ("run", "--resume", "base")):
        service.end("base", "stopped")
        result = invoke(*arguments, *served.options)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.count("run base (resumed)") == 1
        assert "interrupted" not in result.stdout


def test_attaching_to_an_unknown_run_ends_with_2(served: Served) -> None:
    result = invoke("runs", "attach", "nobody", *served.options)
    assert result.exit_code == 2
    assert "no run nobody" in result.stderr


def test_attaching_to_a_mediator_that_is_away_ends_with_4(served: Served) -> None:
    options = ["--mediator", "127.0.0.1:1", "--credentials", str(served.credentials)]
    result = invoke("runs", "attach", "base", *options)
    assert result.exit_code == 4
    assert "fedpilot runs attach base" in result.stderr


# -- runs -----------------------------------------------------------------------------------------


def test_the_mediators_runs_are_a_table_or_a_document(served: Served) -> None:
    served.service.runs["base"] = a_run("base", rounds=7, accuracy=0.91234)
    text = invoke("runs", "list", *served.options).stdout
    for part in ("base", "running", "alice", "7", "0.9123"):
        assert part in text
    printed = json.loads(invoke("runs", "list", "--json", *served.options).stdout)
    assert printed == {"runs": [served.service.runs["base"]], "more": 0}


def test_only_the_newest_runs_are_listed_unless_all_are_asked_for(served: Served) -> None:
    served.service.runs = {f"run-{n}": a_run(f"run-{n}") for n in range(4)}
    few = invoke("runs", "list", "--last", "3", *served.options)
    assert ("run-0" in few.stdout, "run-1" in few.stdout) == (False, True)
    assert "and 1 older; --all lists them" in few.stderr
    every = invoke("runs", "list", "--all", *served.options)
    assert ("run-0" in every.stdout, every.stderr) == (True, "")
    document = json.loads(invoke("runs", "list", "--last", "1", "--json", *served.options).stdout)
    assert ([run["run_id"] for run in document["runs"]], document["more"]) == (["run-3"], 3)


def test_runs_are_the_mediators_once_there_is_a_default_profile(served: Served) -> None:
    served.service.runs["base"] = a_run("base")
    assert "no runs in runs/" in invoke("runs", "list").stdout
    invoke("profile", "add", "here", *served.options)
    assert "base" in invoke("runs", "list").stdout
    assert "no runs in runs/" in invoke("runs", "list", "--folder", "runs").stdout


def test_runs_that_are_here_are_pointed_at_where_only_the_default_profile_is_asked(
    served: Served,
) -> None:
    added = ("profile", "add", "mine", "--mediator", served.address)
    assert invoke(*added, "--credentials", str(served.credentials)).exit_code == 0
    assert "--folder" not in invoke("runs", "show", "local").stderr, "no runs are here"
    Path("runs/local").mkdir(parents=True)
    Path("runs/local/config.yaml").write_text(CONFIG)
    here = f"the mediator {served.address} of the default profile; for the runs in runs/ here add"
    for command in ("show", "remove"):
        asked = invoke("runs", command, "local")
        assert asked.exit_code == 2
        assert f"{here} --folder runs" in asked.stderr
        assert "--folder" not in invoke("runs", command, "local", "--profile", "mine").stderr
    assert f"{here} --folder runs" in invoke("runs", "list").stderr
    assert "--folder" not in invoke("runs", "list", "--profile", "mine").stderr
    assert invoke("runs", "show", "local", "--folder", "runs").exit_code == 0


def test_a_folder_and_a_mediator_are_two_places(served: Served) -> None:
    result = invoke("runs", "list", "--folder", "runs", *served.options)
    assert result.exit_code == 2
    assert "--folder" in result.stderr


@pytest.mark.parametrize(
    ("status", "step"),
    [("running", "attach"), ("finished", "fetch"), ("stopped", "resume"), ("failed", "resume")],
)
def test_a_run_is_shown_with_what_can_be_done(served: Served, status: str, step: str) -> None:
    served.service.runs["base"] = a_run("base", status=status, restarts=2, reason="why")
    text = invoke("runs", "show", "base", *served.options).stdout
    for part in ("died 2 times", "why", f"fedpilot runs {step} base"):
        assert part in text
    printed = json.loads(invoke("runs", "show", "base", "--json", *served.options).stdout)
    assert printed == served.service.runs["base"]


@pytest.mark.parametrize(
    ("wait", "status"), [(["--wait"], "stopped"), ([], "stopped"), (["--no-wait"], "stopping")]
)
def test_a_stop_waits_until_the_run_can_be_resumed(
    served: Served, wait: list[str], status: str
) -> None:
    served.service.runs["base"] = a_run("base")
    served.service.stops_after = 3
    result = invoke("runs", "stop", "base", "--json", *wait, *served.options)
    assert json.loads(result.stdout)["status"] == status


def test_a_run_is_stopped_and_told_how_to_go_on(served: Served) -> None:
    served.service.runs["base"] = a_run("base")
    result = invoke("runs", "stop", "base", *served.options)
    assert "base is stopped" in result.stdout
    assert "fedpilot runs resume base" in result.stdout
    resumed = invoke("runs", "resume", "base", "--detach", "--json", *served.options)
    assert json.loads(resumed.stdout)["status"] == "running"


def test_a_refusal_to_resume_ends_with_3(served: Served) -> None:
    served.service.runs["base"] = a_run("base", status="finished")
    result = invoke("runs", "resume", "base", *served.options)
    assert result.exit_code == 3
    assert "nothing to resume" in result.stderr


def test_a_log_is_printed_without_what_a_terminal_would_obey(served: Served) -> None:
    served.service.runs["base"] = a_run("base", status="finished")
    served.service.logs["base"] = "one\n\x1b[2Jtwo\n"
    assert invoke("runs", "logs", "base", *served.options).stdout == "one\n?[2Jtwo\n"
    printed = json.loads(invoke("runs", "logs", "base", "-f", "--json", *served.options).stdout)
    assert printed == {"run_id": "base", "log": served.service.logs["base"]}


def test_the_files_of_a_run_are_brought_here(served: Served) -> None:
    served.service.runs["base"] = a_run("base", status="finished")
    served.service.files["base"] = {"config.yaml": CONFIG.encode(), "journal/a": b"x"}
    result = invoke("runs", "fetch", "base", "--to", "here", "--json", *served.options)
    assert json.loads(result.stdout)["files"] == ["config.yaml", "journal/a"]
    assert Path("here/journal/a").read_bytes() == b"x"
    again = invoke("runs", "fetch", "base", "--to", "here", *served.options)
    assert again.exit_code == 2


def test_a_hostile_mediator_does_not_get_out_of_the_folder(served: Served) -> None:
    served.service.runs["base"] = a_run("base", status="finished")
    served.service.files["base"] = {"../owned": b"x"}
    result = invoke("runs", "fetch", "base", "--to", "here", *served.options)
    assert result.exit_code == 1
    assert not Path("owned").exists()


def test_verify_fetches_the_mediators_run_and_looks_at_it_here(served: Served) -> None:
    served.service.runs["base"] = a_run("base", status="finished")
    served.service.files["base"] = {"config.yaml": CONFIG.encode(), "manifest.json": b"{}"}
    result = invoke("runs", "verify", "base", "--replay", "none", "--json", *served.options)
    printed = json.loads(result.stdout)
    assert printed["exit_code"] == result.exit_code
    assert "base" in result.stdout
    assert not Path("runs").exists()


def test_runs_of_a_mediator_are_removed_up_to_one_that_goes_on(served: Served) -> None:
    for name in ("a", "b", "d"):
        served.service.runs[name] = a_run(name, status="finished")
    served.service.runs["c"] = a_run("c", status="running")
    result = invoke("runs", "remove", "a", "b", "c", "d", *served.options)
    assert (result.exit_code, result.stdout) == (3, "removed a\nremoved b\n")
    assert "stop it first" in result.stderr
    assert sorted(served.service.runs) == ["c", "d"]
    printed = json.loads(invoke("runs", "remove", "d", "--json", *served.options).stdout)
    assert printed == {"removed": ["d"]}
