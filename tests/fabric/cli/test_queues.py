"""`fedpilot queue`: what its commands print, refuse and write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster_documents import event, shared
from fake_clusters import FakeClusters, run
from fedpilot.cli import main
from fedpilot.fabric.errors import CallUnavailable
from fedpilot.fabric.simulation.case_file import read_cases
from queue_documents import samples, two_teams

FILE = "projects:\n  - name: vision\n    quota: {default: {CPU: 2}}\n"


@pytest.fixture
def clusters() -> FakeClusters:
    found = FakeClusters(shared())
    found.queued, found.samples = two_teams(), samples()
    found.events = [event("train-3", "asked"), event("train-3", "notice"), event("asr", "asked")]
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "queues.yaml"
    found.write_text(FILE)
    return found


COMMANDS = [["list"], ["show", "speech"], ["explain", "asr"], ["history"], ["snapshot"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_ray_that_is_not_there_is_code_4(command: list[str]) -> None:
    done = run(None, "queue", *command)
    assert (done.exit_code, done.stdout) == (4, "")
    assert "nothing listens there" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_manager_without_queues_is_code_4(clusters: FakeClusters, command: list[str]) -> None:
    clusters.fails = CallUnavailable("queues", "its version is older")
    done = run(clusters, "queue", *command)
    assert (done.exit_code, done.stdout) == (4, "")
    assert "its version is older" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_one_document(clusters: FakeClusters, command: list[str]) -> None:
    done = run(clusters, "queue", *command, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert isinstance(json.loads(done.stdout), dict)


@pytest.mark.parametrize("command", COMMANDS)
def test_text_is_printed_for_people(clusters: FakeClusters, command: list[str]) -> None:
    done = run(clusters, "queue", *command)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout
    assert "\x1b" not in done.stdout, "no colours where there is no terminal"


def test_a_file_is_applied_as_it_is(clusters: FakeClusters, file: Path) -> None:
    done = run(clusters, "queue", "apply", str(file))
    assert (done.exit_code, done.stderr) == (0, "")
    document = {"projects": [{"name": "vision", "quota": {"default": {"CPU": 2}}}]}
    assert clusters.applied == [(document, None, False)]
    assert "revision 4 is applied" in done.stdout
    assert "stop for asr" in done.stdout


def test_a_dry_run_changes_nothing(clusters: FakeClusters, file: Path) -> None:
    done = run(clusters, "queue", "apply", str(file), "--dry-run", "--revision", "3", "--json")
    told = json.loads(done.stdout)
    assert [each[1:] for each in clusters.applied] == [(3, True)]
    assert (told["revision"], told["dry_run"]) == (3, True)
    assert told["would"]["starts"] == {"asr": "in-quota: 4 of 4 GPU"}


def test_a_bad_file_is_refused_before_ray_is_asked(clusters: FakeClusters, file: Path) -> None:
    file.write_text(FILE.replace("quota", "quotas"))
    done = run(clusters, "queue", "apply", str(file))
    assert (done.exit_code, done.stdout, clusters.applied) == (2, "", [])
    assert "queues.yaml:3: projects[0].quotas" in done.stderr
    assert "nearest: projects[0].quota" in done.stderr


def test_what_is_in_force_can_be_applied_again(clusters: FakeClusters, file: Path) -> None:
    told = json.loads(run(clusters, "queue", "list", "--json").stdout)
    assert "case" not in told
    file.write_text(json.dumps(told["declaration"]))
    assert run(clusters, "queue", "apply", str(file)).exit_code == 0
    assert clusters.applied[0][0] == told["declaration"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["show", "vison"], "there is no project or department 'vison'"),
        (["explain", "nope"], "there is no virtual cluster 'nope'"),
    ],
)
def test_a_name_that_does_not_exist_is_code_2(
    clusters: FakeClusters, command: list[str], told: str
) -> None:
    done = run(clusters, "queue", *command)
    assert done.exit_code == 2
    assert told in done.stderr


def test_explain_as_json_has_sentences_history_and_workload(clusters: FakeClusters) -> None:
    found = json.loads(run(clusters, "queue", "explain", "train-3", "--json").stdout)
    assert (found["id"], found["state"]) == ("train-3", "active")
    assert [each["event"] for each in found["history"]] == ["asked", "notice"]
    assert found["workload"]["leaves"]["claimant"] == "asr"
    assert found["sentences"]


def test_show_as_json_has_the_workloads_of_a_department(clusters: FakeClusters) -> None:
    found = json.loads(run(clusters, "queue", "show", "research", "--json").stdout)
    assert {each["name"] for each in found["queues"]} == {"research"}
    assert {each["project"] for each in found["workloads"]} == {"vision", "speech"}


def test_history_prints_the_latest_events(clusters: FakeClusters) -> None:
    told = json.loads(run(clusters, "queue", "history", "--last", "2", "--json").stdout)
    assert [each["event"] for each in told["events"]] == ["notice", "asked"]


def test_history_is_drawn(clusters: FakeClusters, tmp_path: Path) -> None:
    picture = tmp_path / "queues.png"
    done = run(clusters, "queue", "history", "--picture", str(picture))
    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_history_without_samples_is_not_drawn(clusters: FakeClusters, tmp_path: Path) -> None:
    clusters.samples = []
    picture = tmp_path / "queues.png"
    done = run(clusters, "queue", "history", "--picture", str(picture))
    assert done.exit_code == 2
    assert "no samples yet" in done.stderr
    assert not picture.exists()


def test_a_snapshot_is_a_case_for_simulate(clusters: FakeClusters, tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    done = run(clusters, "queue", "snapshot", "-o", str(file))
    assert done.exit_code == 0, done.output
    assert f"fedpilot simulate {file}" in done.stdout
    assert [case.id for case in read_cases(file)] == ["live"]
    printed = json.loads(run(clusters, "queue", "snapshot").stdout)
    assert printed == json.loads(file.read_text())


def test_every_command_says_what_it_does_with_examples() -> None:
    from click.testing import CliRunner

    for name in ("apply", "list", "show", "explain", "history", "snapshot"):
        told = CliRunner().invoke(main, ["queue", name, "--help"]).output
        assert "Examples:" in told
        assert f"fedpilot queue {name}" in told
