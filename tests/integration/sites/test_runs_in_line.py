"""Five runs at three real sites of two CPUs wait for each other, and all finish."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fleet import Fleet, fleet
from real_ray import eventually

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

SITES = ("oslo", "paris", "tokyo")
CONFIG = """
federation: {{number_of_clients: 12, clients_per_round: 6, rounds: 2}}
model: {{model_type: mlp}}
data: {{dataset_type: digits}}
training: {{execution: sequential}}
resources: {{workers: 2}}
sites: {{count: {count}}}
"""
RUNS = {
    "first": (3, "train"),
    "second": (2, "train"),
    "third": (2, "train"),
    "small": (1, "train"),
    "urgent": (3, "build"),
}
"""By sites and class, in the order in which they are submitted."""


@pytest.fixture(scope="module")
def three() -> Iterator[Fleet]:
    with fleet(*SITES, cpus=2) as made:
        for site in SITES:
            made.join(site)
        made.until(dict.fromkeys(SITES, "ready"), 120)
        yield made


def test_five_runs_at_three_sites_of_two_cpus_all_finish(three: Fleet) -> None:
    for run, (count, class_) in RUNS.items():
        three.submit(CONFIG.format(count=count), run, "--priority-class", class_)
        eventually(lambda run=run: three.events(run), 60, f"{run} is submitted")
    listed = three.ask("runs", "list")["runs"]
    queued = [each["run_id"] for each in listed if each["queue"]]
    assert set(queued) <= RUNS.keys() - {"first"}
    ended = {run: three.finished(run, 600) for run in RUNS}
    assert {each["status"] for each in ended.values()} == {"finished"}, three.logs()
    found = {run: three.ask("runs", "show", run) for run in RUNS}
    assert {each["restarts"] for each in found.values()} == {0}
    order = sorted(RUNS, key=lambda run: found[run]["started_at"])
    # The class first. Then the second begins, and leaves one site: the third does not fit there,
    # and the small one begins at the same moment.
    assert order[:2] == ["first", "urgent"], json.dumps(found)
    assert sorted(order[2:4]) == ["second", "small"], json.dumps(found)
    for site in SITES:
        eventually(lambda site=site: three.left_at(site) == [], 60, f"nothing is left at {site}")
