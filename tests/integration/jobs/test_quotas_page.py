"""The page about quotas on a real Ray: its commands, one after the other, do what it says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rays.jobs import two_machines
from real_ray import ENVIRONMENT, REPOSITORY, eventually

pytestmark = [pytest.mark.ray, pytest.mark.own_process, pytest.mark.timeout(400)]

PAGE = (REPOSITORY / "docs/how-to/share-a-ray-cluster-among-teams.md").read_text()
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A Ray with the four CPUs of the page."""
    with two_machines() as found:
        yield found


class Terminal:
    """Where a reader types the commands of the page."""

    def __init__(self, address: str, folder: Path) -> None:
        self._environment = {**ENVIRONMENT, "RAY_ADDRESS": address, "COLUMNS": "118"}
        self._folder = folder
        (folder / "examples").symlink_to(REPOSITORY / "examples")

    def __call__(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fedpilot", *words],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout

    def queues(self) -> dict[str, Any]:
        """The projects, by name."""
        document = json.loads(self("queue", "list", "--json"))
        return {each["name"]: each for each in document["queues"]}

    def states(self) -> dict[str, str]:
        """The states of the jobs' virtual clusters, by name."""
        document = json.loads(self("queue", "list", "--json"))
        return {each["id"]: each["state"] for each in document["workloads"]}


def section(title: str) -> str:
    """The text below a heading of the page."""
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def lines(title: str) -> list[list[str]]:
    """The fedpilot commands below a heading."""
    shell = "".join(re.findall(r"```sh\n(.*?)```", section(title), re.DOTALL))
    return [shlex.split(line)[1:] for line in shell.splitlines() if line.startswith("fedpilot ")]


def test_two_teams_share_and_one_claims_its_quota_back(address: str, tmp_path: Path) -> None:
    fedpilot = Terminal(address, tmp_path)
    checked, applied = [fedpilot(*line) for line in lines("Set two quotas")]
    assert "this was a dry run" in checked
    assert "revision 1 is applied" in applied

    *submitted, listed = lines("Submit")
    for line in submitted:
        fedpilot(*line)
    jobs = {f"train-{n}": "active" for n in (1, 2, 3, 4)}
    eventually(lambda: fedpilot.states() == jobs, PATIENCE_S, "all jobs hold a CPU")
    assert "██████████│█████████╎    4      2      4        –     4      0" in fedpilot(*listed)

    claim, asr, train, *shown = lines("Claim a quota back")
    fedpilot(*claim)
    eventually(lambda: fedpilot.states().get("asr") == "active", PATIENCE_S, "asr has its quota")
    winner, loser = fedpilot(*asr), fedpilot(*train)
    assert "2 workloads left for it: train-3 and train-4" in winner
    assert "train-4 waits in project vision, pool default, 2nd in line" in loser
    assert "a quota of 2 CPU and a fair share of 2 CPU now" in " ".join(loser.split())
    assert fedpilot.states() == {
        **jobs,
        **{f"train-{n}": "waiting" for n in (3, 4)},
        "asr": "active",
    }
    for line in shown:
        fedpilot(*line)
    assert (tmp_path / "queues.png").read_bytes().startswith(b"\x89PNG")

    now, simulate, other = lines("Try another quota")
    fedpilot(*now)
    case = json.loads((tmp_path / "now.json").read_text())
    same = json.loads(fedpilot(*simulate, "--json"))["cases"][0]
    assert same["decisions"] == [], "simulate decides what the manager has decided"
    for project in case["projects"]:
        project["quota"]["default"]["CPU"] = {"vision": 3, "speech": 1}.get(project["name"], 0)
    (tmp_path / "other.json").write_text(json.dumps(case))
    changed = json.loads(fedpilot(*other, "--json"))["cases"][0]
    assert changed["running"]["asr"] == 0

    fedpilot("job", "stop", "asr")
    eventually(
        lambda: fedpilot.states() == jobs, PATIENCE_S, "the jobs of vision run again by themselves"
    )
