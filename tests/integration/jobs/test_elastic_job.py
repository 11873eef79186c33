"""A job on a real Ray grows into what is free, gives nodes back to another one, and goes on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, VirtualCluster
from fedpilot.fabric.jobs.jobs import Jobs
from rays.jobs import clusters, ended, script, two_machines
from real_ray import eventually

pytestmark = [pytest.mark.ray, pytest.mark.own_process, pytest.mark.timeout(300)]

PATIENCE_S = 60.0
CPU = FixedSizeNode(resources={"CPU": 1})
SEARCH = """
import json, pathlib, sys, time
import ray
ray.init(logging_level="ERROR")
told, end = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])

@ray.remote(num_cpus=1)
def trial(n):
    while not end.exists():
        time.sleep(0.05)
    return n

todo = {trial.remote(n): n for n in range(4)}
found, lost = [], []
while todo:
    done, _ = ray.wait(list(todo), timeout=0.2)
    for each in done:
        n = todo.pop(each)
        try:
            found.append(ray.get(each))
        except ray.exceptions.RayError as error:
            lost.append(type(error).__name__)
            todo[trial.remote(n)] = n
    told.write_text(json.dumps({"found": sorted(found), "lost": lost}))
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with two_machines() as found:
        yield found


def test_a_job_grows_gives_nodes_back_and_goes_on(address: str, tmp_path: Path) -> None:
    jobs = Jobs()
    told, end = tmp_path / "told.json", tmp_path / "end"
    elastic = VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=(CPU,), max_nodes=4),))
    command = [*script(tmp_path, SEARCH), str(told), str(end)]
    jobs.submit(command, elastic, id="search")

    def works_on() -> tuple[int, int]:
        """How many nodes it has, and how many tasks run."""
        found = clusters(jobs).get("search")
        return (0, 0) if found is None else (len(found["nodes"]), found["work"]["placed"])

    eventually(lambda: works_on() == (4, 4), PATIENCE_S, "four nodes work")
    two = VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=(CPU, CPU)),))
    teams = {"projects": [{"name": "default", "quota": {"default": {"CPU": 4}}}]}
    document = {**teams, "settings": {"grace_s": 2}}
    jobs.clusters.apply_queues(document)
    asked = time.monotonic()
    jobs.submit([sys.executable, "-c", "print('mine')"], two, id="mine")
    mine = ended(jobs, "mine")
    assert mine.status == "SUCCEEDED", mine
    assert time.monotonic() - asked > 2
    end.touch()
    assert ended(jobs, "search").status == "SUCCEEDED"
    said = json.loads(told.read_text())
    assert said["found"] == [0, 1, 2, 3], said
