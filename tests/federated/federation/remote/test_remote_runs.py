"""`fedpilot runs` at a mediator lists, shows, stops, fetches and removes runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripted_runs import CONFIG, invoke
from user_service import Served, a_run


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
