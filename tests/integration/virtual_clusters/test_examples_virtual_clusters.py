"""The examples of virtual clusters: each runs, says what it shows, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from real_ray import ENVIRONMENT, REPOSITORY, end_session, eventually, ray_head, session_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

FOLDER = REPOSITORY / "examples" / "virtual_clusters"
IN_CI = ("gang_of_actors", "tune_and_dataset")
"""The others take as long and show less; `make soak` runs them."""

SAYS = {
    "gang_of_actors": [
        "reserved together: 2 x 1 CPU",
        "virtual node 0",
        "virtual node 1",
        "machines: 2",
    ],
    "multi_datasets": [
        "training: 3000 rows on 3 CPUs, all inside: True",
        "validation: 1000 rows on 1 CPUs, all inside: True",
        "the job has its 4 CPUs back",
    ],
    "placement_groups_replaced": [
        "placement group: is a virtual cluster: True",
        "virtual cluster: the task ran in it: True",
        "bundle 0: the node of the actor has 2 CPU",
        "label 0: the node of the actor has 2 CPU",
        "free again: 3 CPU",
    ],
    "tune_and_dataset": [
        "data set: 100 rows",
        "sweep: 3 trials, each in a virtual cluster of the job: True",
        "best rate: ",
    ],
}


def run(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an example in a session of its own, which has ended when this returns."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [sys.executable, str(FOLDER / f"{name}.py")],
            cwd=folder,
            env={**ENVIRONMENT, "RAY_TMPDIR": folder, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said, error = process.communicate(timeout=200)
            assert process.returncode == 0, error
            eventually(lambda: not session_of(process.pid), 60, f"nothing of {name} runs")
            assert [each for each in os.listdir(folder) if each != "ray"] == []
            return subprocess.CompletedProcess(process.args, 0, said, error)
        finally:
            with contextlib.suppress(ProcessLookupError):
                end_session(process.pid)
            process.wait(60)


@pytest.mark.parametrize(
    "name", [n if n in IN_CI else pytest.param(n, marks=pytest.mark.soak) for n in SAYS]
)
def test_an_example_says_what_it_shows_and_leaves_nothing(name: str) -> None:
    said = run(name).stdout
    assert [line for line in SAYS[name] if line not in said] == [], said


@pytest.mark.soak
def test_an_example_gives_all_back_to_the_ray_that_it_was_given() -> None:
    with ray_head(num_cpus=4) as address:
        for _ in range(2):  # there is room for the second only if the first gave all back
            said = run("placement_groups_replaced", RAY_ADDRESS=address).stdout
            assert "free again: 3 CPU" in said


def test_there_is_an_example_for_each_of_the_proposal() -> None:
    found = {path.stem for path in Path(FOLDER).glob("*.py")}
    assert found == {*SAYS}
    assert all((FOLDER / f"{name}.py").read_text().startswith('"""') for name in found)
