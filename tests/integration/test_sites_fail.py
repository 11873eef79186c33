"""Every fault strikes a federation of three sites once; `tests/soak` has the counts of ten.

One run goes through all that is to be ridden out, one fault after the other; another loses two of
its three sites. Both end in the model of a run that one process does by itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import faults
from faults import SITES, happens, in_the_middle
from fleet import Fleet, fleet
from real_ray import Command, fedpilot

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS = 10


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The same run in one process, while everything starts."""
    folder: Path = tmp_path_factory.mktemp("alone")
    (folder / "config.yaml").write_text(faults.config(ROUNDS))
    with fedpilot(["run", "config.yaml", "--json"], folder) as run:
        yield run


@pytest.fixture(scope="module")
def three(alone: Command) -> Iterator[Fleet]:
    with fleet(*SITES) as made:
        for site in SITES:
            made.join(site)
        made.until(dict.fromkeys(SITES, "ready"), 120)
        yield made


def digest_of(alone: Command) -> str:
    """The model that one process makes, once it has."""
    assert alone.finish(240) == 0, alone.error()
    digest: str = alone.last("run_finished")["digest"]
    return digest


@pytest.mark.soak
def test_what_passes_and_what_an_admin_does_change_no_model(three: Fleet, alone: Command) -> None:
    dice = random.Random(5)
    run = "passing"
    three.submit(faults.config(ROUNDS), run)
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
    faults.check_finished(three, run, digest_of(alone))
    told = [e["site"] for e in three.events(run) if e["event"] == "site_drained"]
    assert told == [drained]
    faults.check_in_order(three)


@pytest.mark.soak
def test_a_run_that_finds_no_room_is_told_who_holds_what(three: Fleet) -> None:
    three.submit(faults.config(1_000), "holder")
    three.wait_for("holder", "round_started", 180)
    hasty = faults.config(1).replace("workers: 1", "workers: 1, reserve_timeout: 1")
    three.submit(hasty, "second")
    last = three.finished("second", 240)
    assert last["status"] == "failed"
    for site in SITES:
        assert f"site {site}: " in last["failure"]
    assert last["failure"].count("held are 1 CPU by holder-ada-") == len(SITES)
    three.run("runs", "stop", "holder")
    three.finished("holder")
    faults.check_in_order(three)


def test_runners_are_killed_and_the_next_one_joins_in(three: Fleet, alone: Command) -> None:
    dice = random.Random(3)
    run, (first, second) = "runners", dice.sample(SITES, 2)
    three.submit(faults.config(ROUNDS), run)
    three.wait_for(run, "round_started", 180)
    for site in (first, second):
        in_the_middle(three, run, dice)
        happens(faults.RUNNER, three, site, run)
        lost = three.wait_for(run, "site_lost", site=site)
        assert "killed by SIGKILL" in lost["reason"]
        if site == first:
            three.wait_for(run, "site_returned", site=site)
    faults.check_finished(three, run, digest_of(alone))
    faults.check_in_order(three)


@pytest.mark.soak
def test_two_of_three_sites_are_lost_and_come_back(three: Fleet, alone: Command) -> None:
    dice = random.Random(7)
    run, (dead, cut) = "losing", dice.sample(SITES, 2)
    three.submit(faults.config(ROUNDS), run)
    three.wait_for(run, "round_started", 180)
    in_the_middle(three, run, dice)
    mended_at = time.monotonic() + faults.LONG_CUT.lasts_s
    faults.LONG_CUT.strike(three, cut, run)
    three.wait_for(run, "site_lost", site=cut)
    in_the_middle(three, run, dice)
    happens(faults.RAY, three, dead, run)
    time.sleep(max(0.0, mended_at - time.monotonic()))
    faults.LONG_CUT.mend(three, cut, run)
    faults.check_finished(three, run, digest_of(alone))
    assert {dead, cut} <= faults.lost_sites(three, run)
    faults.check_in_order(three)
    faults.check_rays_are_empty(three)


def test_a_site_whose_disk_is_full_is_lost_until_it_has_room(three: Fleet, alone: Command) -> None:
    dice = random.Random(11)
    run, full = "full", dice.choice(SITES)
    three.submit(faults.config(ROUNDS), run)
    three.wait_for(run, "round_started", 180)
    in_the_middle(three, run, dice)
    faults.DISK.strike(three, full, run)
    lost = three.wait_for(run, "site_lost", site=full)
    assert "disk" in lost["reason"], lost
    three.until({full: "lost"})
    (told,) = [each for each in three.ask("site", "list")["sites"] if each["name"] == full]
    assert "the disk of its home is full" in told["reason"]
    faults.DISK.mend(three, full, run)
    faults.check_finished(three, run, digest_of(alone))
    faults.check_in_order(three)
