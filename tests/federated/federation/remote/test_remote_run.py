"""`fedpilot run` at a mediator sends the config and the code, and ends as a local run does."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import grpc
import pytest

from fedpilot.federated import load_config
from fedpilot.federated.core.user_code.code_archive import unpacked
from fedpilot.federated.federation.remote.remote_run import exit_code_of_failure
from fedpilot.mediator.core.run_queue import RunAsk
from scripted_runs import CONFIG, events_of, invoke, trains
from user_service import Served


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


@pytest.mark.parametrize("options", [(), ("--share",)], ids=["not shared", "shared"])
def test_a_run_is_shared_if_that_is_asked_for(options: tuple[str, ...], served: Served) -> None:
    result = invoke("run", "digits.yaml", "--run-id", "base", "-d", *options, *served.options)
    assert result.exit_code == 0, result.stderr
    (submission,) = served.service.submissions
    assert submission.shared is bool(options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("digits.yaml",), "--share needs a run at a mediator", id="a run here"),
        pytest.param(("--resume", "base"), "leave out --share", id="a run that goes on"),
    ],
)
def test_what_cannot_be_shared_is_bad_usage(
    arguments: tuple[str, ...], said: str, served: Served
) -> None:
    result = invoke("run", *arguments, "--share")
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_run_says_its_class_and_what_it_asks_for(served: Served) -> None:
    sizes = ("--set", "sites.count=2", "--set", "resources.workers=3")
    queue = ("--set", "resources.project=vision", "--set", "resources.priority_class=nightly")
    options = (
        "--run-id",
        "base",
        "-d",
        "--priority-class",
        "build",
        *sizes,
        *queue,
        *served.options,
    )
    result = invoke("run", "digits.yaml", *options)
    assert result.exit_code == 0, result.stderr
    (submission,) = served.service.submissions
    assert submission.priority_class == "build"
    ask = RunAsk.from_json(json.loads(submission.ask_json))
    assert ask == RunAsk(
        vnode={"CPU": 1.0}, workers=3, count=2, project="vision", priority_class="nightly"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(
            ("digits.yaml", "--priority-class", "build"),
            "--priority-class needs a run at a mediator",
            id="a run here",
        ),
        pytest.param(
            ("--resume", "base", "--priority-class", "build"),
            "leave out --priority-class",
            id="a run that goes on",
        ),
    ],
)
def test_a_class_that_says_nothing_is_bad_usage(
    arguments: tuple[str, ...], said: str, served: Served
) -> None:
    result = invoke("run", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


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
