"""Five runs at three Ray clusters of two CPUs behind firewalls wait for each other.

All finish, and three clusters train the model of one.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import faults
import waiting_nets
from fleet import Fleet, fleet
from real_ray import eventually

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(900)]

SITES = ("oslo", "paris", "tokyo")
CONFIG = """
federation: {{number_of_clients: 12, clients_per_round: 6, rounds: 2}}
model: {{model_type: "my_nets:net", options: {{gate: "{gate}"}}}}
data: {{dataset_type: digits}}
training: {{execution: sequential}}
resources: {{workers: 1, cpus_per_worker: 2}}
sites: {{count: {count}}}
"""
CODE = """
from waiting_nets import Waits

def net(input_shape, num_classes, gate=""):
    return Waits(input_shape, num_classes, gate=gate)
"""
"""It and what it imports lie beside the config, and are installed nowhere: the sites get both with
the run."""
RUNS = {
    "first": (3, "train"),
    "second": (2, "train"),
    "third": (2, "train"),
    "small": (1, "train"),
    "urgent": (3, "build"),
}
"""By sites and class, in the order in which they are submitted. The first trains once all are."""


@dataclass(frozen=True)
class Line:
    """What became of the runs."""

    queued: set[str]
    """Once all were submitted."""
    ended: dict[str, dict[str, Any]]
    """What each said last."""
    shown: dict[str, dict[str, Any]]
    """What the mediator knows of each."""


def lay_out(folder: Path) -> None:
    """Put the code into a folder."""
    (folder / "my_nets.py").write_text(CODE)
    shutil.copy(waiting_nets.__file__, folder)


def _has_said(three: Fleet, run: str) -> bool:
    return bool(three.events(run))


@pytest.fixture(scope="module")
def three() -> Iterator[Fleet]:
    with fleet(*SITES, cpus=2) as made:
        lay_out(made.folder)
        policy = faults.allowing(made, CONFIG.format(gate="", count=1))
        for site in SITES:
            made.join(site, *policy)
        made.until(dict.fromkeys(SITES, "ready"), 120)
        yield made


@pytest.fixture(scope="module")
def line(three: Fleet) -> Line:
    gate = three.folder / "gate"
    for run, (count, class_) in RUNS.items():
        config = CONFIG.format(gate=gate if run == "first" else "", count=count)
        three.submit(config, run, "--priority-class", class_)
        eventually(partial(_has_said, three, run), 60, f"{run} is submitted")
    three.wait_for("first", "round_started", 180)
    listed = three.ask("runs", "list")["runs"]
    gate.touch()
    ended = {run: three.finished(run, 600) for run in RUNS}
    shown = {each["run_id"]: each for each in three.ask("runs", "list")["runs"]}
    return Line({each["run_id"] for each in listed if each["queue"]}, ended, shown)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the model that one process makes of the first config."""
    folder: Path = tmp_path_factory.mktemp("alone")
    lay_out(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        models = faults.alone(CONFIG.format(gate="", count=1), folder)
    del sys.modules["my_nets"]
    return models[max(models)]


def test_three_sites_make_the_model_of_one(line: Line, three: Fleet, alone: str) -> None:
    assert line.ended["first"]["status"] == "finished", three.logs()
    assert line.ended["first"]["digest"] == alone


def test_five_runs_at_three_sites_of_two_cpus_all_finish(line: Line, three: Fleet) -> None:
    assert line.queued == RUNS.keys() - {"first"}
    assert {each["status"] for each in line.ended.values()} == {"finished"}, three.logs()
    assert {each["restarts"] for each in line.shown.values()} == {0}
    order = sorted(RUNS, key=lambda run: line.shown[run]["started_at"])
    # The class first. Then the second begins, and leaves one site: the third does not fit there,
    # and the small one begins at the same moment.
    assert order[:2] == ["first", "urgent"], line.shown
    assert sorted(order[2:4]) == ["second", "small"], line.shown


def test_nothing_of_the_runs_is_left_at_the_sites(line: Line, three: Fleet) -> None:
    for site in SITES:
        faults.check_none(partial(three.left_at, site), 60, f"at {site}")
