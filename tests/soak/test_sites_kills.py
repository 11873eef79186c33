"""Every fault of a federation of three sites, ten times each, at moments and sites of dice."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator

import pytest

import faults
from faults import FAULTS, LONG_CUT, RAY, SITES, Calm, Fault
from fleet import Fleet, fleet

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(7200)]

TIMES = 10
LATE = "bergen"
ROUNDS, LONG = 4, 24
"""After a long cut the site comes back while the run goes on."""


@pytest.fixture(scope="module")
def three() -> Iterator[Fleet]:
    with fleet(*SITES, LATE) as made:
        for site in SITES:
            made.join(site)
        made.until(dict.fromkeys(SITES, "ready"))
        yield made


@pytest.fixture(scope="module")
def peace(three: Fleet) -> Calm:
    return faults.calm(three, LONG)


@pytest.mark.parametrize("seed", range(TIMES))
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_leaves_no_trace(three: Fleet, peace: Calm, fault: Fault, seed: int) -> None:
    dice = random.Random(f"{fault} {seed}")
    rounds = LONG if fault is LONG_CUT else ROUNDS
    run = f"fault-{FAULTS.index(fault)}-{seed}"
    faults.suffer(three, fault, peace, dice, run, rounds)


def test_a_site_that_joins_while_a_run_goes_on_gets_work(three: Fleet, peace: Calm) -> None:
    three.submit(faults.config(LONG), "late")
    three.wait_for("late", "round_started")
    three.join(LATE)
    three.wait_for("late", "worker_ready", site=LATE)
    joined = three.wait_for("late", "site_returned", site=LATE)
    faults.check_finished(three, "late", peace.digest(LONG))
    begun = [event for event in three.events("late") if event["event"] == "round_started"]
    first = next(event["round"] for event in begun if event["time"] > joined["time"])
    with (three.folder / "hub" / "runs" / "late" / "traffic.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["site"] == LATE]
    rounds = {int(row["round"]) for row in rows if row["purpose"] == "training"}
    assert first in rounds
    faults.check_nothing_left(three)
    three.run("site", "cordon", LATE)


@pytest.mark.parametrize("seed", range(TIMES))
def test_a_quorum_does_without_clients_that_wait_for_their_site(three: Fleet, seed: int) -> None:
    dice = random.Random(f"quorum {seed}")
    site, run = dice.choice(SITES), f"quorum-{seed}"
    rules = "participation: {quorum: 0.3, replacement: false, wait_for_sites_s: 5}\n"
    three.submit(faults.config(ROUNDS) + rules, run)
    three.wait_for(run, "round_started", round=2)
    RAY.strike(three, site, run)
    faults.check_finished(three, run)
    RAY.mend(three, site, run)
    assert faults.lost_sites(three, run) == {site}
    without = [event for event in three.events(run) if event["event"] == "round_quorum"]
    assert [event["round"] for event in without] in ([2, 3, 4], [3, 4])
    assert all(9 <= event["clients"] < 30 for event in without)
    assert all(site in event["reason"] for event in without)
    faults.check_in_order(three)


@pytest.mark.parametrize("seed", range(TIMES))
def test_without_a_quorum_they_wait_and_the_run_can_be_resumed(
    three: Fleet, peace: Calm, seed: int
) -> None:
    dice = random.Random(f"wait {seed}")
    site, run = dice.choice(SITES), f"wait-{seed}"
    rules = "participation: {replacement: false, wait_for_sites_s: 5}\n"
    three.submit(faults.config(ROUNDS) + rules, run)
    three.wait_for(run, "round_started", round=2)
    RAY.strike(three, site, run)
    last = three.finished(run)
    assert last["status"] == "failed"
    assert "TooFewSites" in last["failure"]
    RAY.mend(three, site, run)
    faults.check_in_order(three)
    three.run("runs", "resume", run, timeout_s=240)
    assert three.ask("runs", "show", run)["digest"] == peace.digest(ROUNDS)
    faults.check_in_order(three)
