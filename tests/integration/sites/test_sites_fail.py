"""Every fault strikes a federation of three sites once; `tests/soak` has the counts of ten.

One run goes through all that is to be ridden out, one fault after the other; another loses two of
its three sites. How many rounds a site misses is up to the machine, so that a run has more than it
needs and is stopped in the end. Every round ends in the model that one process makes.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import faults
import waiting_nets
from faults import SITES, happens, in_the_middle
from fleet import Fleet, fleet

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS = 1_000
"""More than a run has time for."""


@pytest.fixture(scope="module")
def three() -> Iterator[Fleet]:
    with fleet(*SITES) as made:
        shutil.copy(waiting_nets.__file__, made.folder)
        policy = faults.allowing(made, faults.waiting(1))
        for site in SITES:
            made.join(site, *policy)
        made.until(dict.fromkeys(SITES, "ready"), 120)
        yield made


def check_models(
    three: Fleet, run: str, folder: Path, config: Callable[[int, float], str] = faults.waiting
) -> None:
    """Two more rounds with all sites, and the run is stopped; one process makes the same models."""
    faults.check_goes_on(three, run)
    three.run("runs", "stop", run)
    assert three.finished(run)["status"] == "interrupted"
    found = faults.models(three, run)
    assert found == faults.alone(config(max(found), 0.0), folder), three.logs()


@pytest.mark.soak
def test_what_passes_and_what_an_admin_does_change_no_model(three: Fleet, tmp_path: Path) -> None:
    dice = random.Random(5)
    run = "passing"
    three.submit(faults.waiting(ROUNDS), run)
    three.wait_for(run, "round_started", 180)
    for fault in (faults.AGENT, faults.SHORT_CUT, faults.COORDINATOR, faults.MEDIATOR):
        in_the_middle(three, run, dice)
        happens(fault, three, dice.choice(SITES), run)
    in_the_middle(three, run, dice)
    faults.check_same_workers(three, run)
    drained = dice.choice(SITES)
    three.run("site", "drain", drained, "--timeout", "60", timeout_s=90)
    assert three.states()[drained] == "cordoned"
    assert three.left_at(drained) == []
    three.run("site", "uncordon", drained)
    check_models(three, run, tmp_path)
    told = [e["site"] for e in three.events(run) if e["event"] == "site_drained"]
    assert told == [drained]
    faults.check_in_order(three)


@pytest.mark.soak
def test_a_run_that_finds_no_room_is_told_who_holds_what(three: Fleet) -> None:
    three.submit(faults.waiting(ROUNDS), "holder")
    three.wait_for("holder", "round_started", 180)
    hasty = faults.waiting(1).replace("workers: 1", "workers: 1, reserve_timeout: 1")
    three.submit(hasty, "second")
    last = three.finished("second", 240)
    assert last["status"] == "failed"
    for site in SITES:
        assert f"site {site}: " in last["failure"]
    assert last["failure"].count("held are 1 CPU by holder-ada-") == len(SITES)
    three.run("runs", "stop", "holder")
    three.finished("holder")
    faults.check_in_order(three)


@pytest.mark.soak
def test_runners_are_killed_a_disk_is_full_and_the_run_goes_on(
    three: Fleet, tmp_path: Path
) -> None:
    dice = random.Random(3)
    run, (first, second, full) = "struck", dice.sample(SITES, 3)
    three.submit(faults.waiting(ROUNDS), run)
    three.wait_for(run, "round_started", 180)
    for site in (first, second):
        in_the_middle(three, run, dice)
        happens(faults.RUNNER, three, site, run)
        lost = three.wait_for(run, "site_lost", site=site)
        assert "killed by SIGKILL" in lost["reason"]
        three.wait_for(run, "site_returned", site=site)
    in_the_middle(three, run, dice)
    faults.DISK.strike(three, full, run)
    lost = three.wait_for(run, "site_lost", site=full)
    assert "disk" in lost["reason"], lost
    three.until({full: "lost"})
    (told,) = [each for each in three.ask("site", "list")["sites"] if each["name"] == full]
    assert "the disk of its home is full" in told["reason"]
    faults.DISK.mend(three, full, run)
    check_models(three, run, tmp_path)
    faults.check_in_order(three)


@pytest.mark.soak
def test_two_of_three_sites_are_lost_and_come_back(three: Fleet, tmp_path: Path) -> None:
    dice = random.Random(7)
    run, (dead, cut) = "losing", dice.sample(SITES, 2)
    three.submit(faults.waiting(ROUNDS), run)
    three.wait_for(run, "round_started", 180)
    in_the_middle(three, run, dice)
    mended_at = time.monotonic() + faults.LONG_CUT.lasts_s
    faults.LONG_CUT.strike(three, cut, run)
    three.wait_for(run, "site_lost", site=cut)
    in_the_middle(three, run, dice)
    happens(faults.RAY, three, dead, run)
    time.sleep(max(0.0, mended_at - time.monotonic()))
    faults.LONG_CUT.mend(three, cut, run)
    check_models(three, run, tmp_path)
    assert {dead, cut} <= faults.lost_sites(three, run)
    faults.check_in_order(three)
    faults.check_rays_are_empty(three)


FATAL = (faults.RUNNER, faults.COORDINATOR)
"""What costs clients on a graph the round in flight: their models are at their site alone."""
ALL = (*FATAL, faults.AGENT, faults.MEDIATOR, faults.SHORT_CUT, faults.LONG_CUT)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 11))]
)
def test_clients_on_a_ring_wait_for_their_site(three: Fleet, tmp_path: Path, seed: int) -> None:
    dice = random.Random(f"ring {seed}")
    run = f"ring-{seed}"
    three.submit(faults.ring(ROUNDS), run)
    three.wait_for(run, "round_started", 180)
    for fault in FATAL if seed == 0 else dice.sample(ALL, len(ALL)):
        in_the_middle(three, run, dice)
        happens(fault, three, dice.choice(SITES), run)
    check_models(three, run, tmp_path, faults.ring)
    faults.check_in_order(three)
