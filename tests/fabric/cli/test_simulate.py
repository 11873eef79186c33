"""`fedpilot simulate`: its exit codes, its document, and that it imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedpilot.fabric.cli.simulate import simulate

CASE = """\
id: reclaim
kind: settle
nodes: [{name: n1, capacity: {gpu: 2}}]
projects: [{name: A, quota: {default: {gpu: 1}}}, {name: B, quota: {default: {gpu: 1}}}]
workloads:
- {id: w1, project: A, member_request: {gpu: 2}, running_on: [n1]}
- {id: w2, project: B, member_request: {gpu: 1}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "case.yaml"
    path.write_text(CASE)
    return path


def test_the_document_says_who_runs_and_why(file: Path) -> None:
    done = CliRunner().invoke(simulate, [str(file), "--json"])
    assert done.exit_code == 0
    (answer,) = json.loads(done.stdout)["cases"]
    assert answer["id"] == "reclaim"
    assert answer["running"] == {"w1": 0, "w2": 1}
    assert answer["placement"]["w2"] == {"n1": 1}
    assert answer["disturbed"] == ["w1"]
    assert answer["stopped"] == {"w1": 1, "w2": 0}
    assert answer["fairshare"]["B"] == {"default": {"gpu": 1}}
    stop, start = answer["decisions"]
    assert (stop["action"], stop["claimant"]) == ("stop", "w2")
    assert stop["reason"]["rule"] == "reclaim-fairshare"
    assert start["workload"] == "w2"


def test_the_text_names_the_rules(file: Path) -> None:
    done = CliRunner().invoke(simulate, [str(file)])
    assert done.exit_code == 0
    assert "stop w1 for w2" in done.stdout
    assert "reclaim-fairshare" in done.stdout


def test_a_case_that_expects_something_else_exits_with_1(file: Path) -> None:
    file.write_text(CASE + "expect: {running: {w1: 1}, undisturbed: [w1]}\n")
    done = CliRunner().invoke(simulate, [str(file), "--json"])
    assert done.exit_code == 1
    assert len(json.loads(done.stdout)["cases"][0]["failed"]) == 2
    assert "running members of w1: expected 1, found 0" in done.stderr


def test_a_bad_file_exits_with_2(file: Path) -> None:
    file.write_text(CASE.replace("project: B", "project: C"))
    done = CliRunner().invoke(simulate, [str(file)])
    assert done.exit_code == 2
    assert "case.yaml:7: workloads[1].project" in done.stderr


def test_a_replay_is_drawn(file: Path, tmp_path: Path) -> None:
    file.write_text(CASE.replace("running_on: [n1]", "runs_s: 5"))
    picture = tmp_path / "case.png"
    done = CliRunner().invoke(simulate, [str(file), "--picture", str(picture)])
    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "used of default" in done.stdout


def test_a_case_without_time_has_no_picture(file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "case.png"
    done = CliRunner().invoke(simulate, [str(file), "--picture", str(picture)])
    assert done.exit_code == 2
    assert not picture.exists()


def test_it_imports_nothing_heavy(file: Path) -> None:
    code = (
        "import sys\nfrom fedpilot.cli import main\n"
        f"try:\n    main(['simulate', {str(file)!r}, '--json'])\nexcept SystemExit:\n    pass\n"
        "assert not {'ray', 'torch', 'networkx', 'grpc', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
