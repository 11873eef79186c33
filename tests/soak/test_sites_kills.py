"""Every fault of a federation of three sites, ten times each, at moments and sites of dice.

A run takes one fault after the other, each once the one before is ridden out, until its rounds are
used up; then the next run begins. To start a run takes longer than most faults do. Where something
went wrong the next fault gets a new federation.
"""

from __future__ import annotations

import csv
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import faults
from faults import FAULTS, LONG_CUT, RAY, SITES, Calm, Fault
from fleet import Fleet, fleet

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(900)]

TIMES, FEW = 10, 5
LATE = "bergen"
ROUNDS, PINNED_ROUNDS = 40, 8
LEAST_LEFT = 5
"""So many rounds are left to a run when a fault strikes, so that it does not end before."""
SHORT = 4
EPOCHS = 100


def moving(rounds: int) -> str:
    """A run whose clients may be trained at any site."""
    return faults.config(rounds, EPOCHS)


def pinned(rounds: int) -> str:
    """A run whose clients' data lies at the sites."""
    return faults.pinned(rounds, EPOCHS)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How clients come to stay with their site."""

    what: str
    config: Callable[[int], str]
    rounds: int
    """Of the run in peace that others are compared with."""
    rules: str
    """What it says of taking part."""

    def __str__(self) -> str:
        return self.what


WAYS = (
    Way(
        what="clients that are not replaced",
        config=moving,
        rounds=ROUNDS,
        rules="replacement: false",
    ),
    Way(
        what="clients whose data lies there",
        config=pinned,
        rounds=PINNED_ROUNDS,
        rules="replacement: true",
    ),
)


class Ground:
    """A federation that is made when it is needed, and the run that goes on there."""

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._fleet: Fleet | None = None
        self._run = ""
        self._numbers = itertools.count(1)
        self._calm: dict[str, Calm] = {}

    @contextmanager
    def fleet(self) -> Iterator[Fleet]:
        """The federation, all sites ready and no run there; given up if something goes wrong."""
        with self._watched() as here:
            self._finish(here)
            yield here

    @contextmanager
    def going(self) -> Iterator[tuple[Fleet, str]]:
        """The federation, and a run in its rounds with enough of them left."""
        with self._watched() as here:
            if self._run and self._left(here) < LEAST_LEFT:
                self._finish(here)
            if not self._run:
                self._run = f"run-{next(self._numbers)}"
                here.submit(moving(ROUNDS), self._run)
                here.wait_for(self._run, "round_started", 180)
            yield here, self._run

    def peace(self, config: str) -> Calm:
        """What the config comes to where nothing happens."""
        if config not in self._calm:
            with self.fleet() as here:
                self._calm[config] = faults.calm(here, config, f"calm-{len(self._calm)}")
        return self._calm[config]

    def close(self) -> None:
        """Have the last run end, and the federation with it."""
        if self._fleet is not None:
            with self.fleet():
                pass
        self._undo.close()

    @contextmanager
    def _watched(self) -> Iterator[Fleet]:
        try:
            if self._fleet is None:
                self._fleet = self._undo.enter_context(fleet(*SITES, LATE))
                self._join(self._fleet)
            yield self._fleet
        except BaseException:
            self._give_up()
            raise

    def _join(self, here: Fleet) -> None:
        for site in SITES:
            here.join(site, *faults.declare(here.folder, site))
        here.until(dict.fromkeys(SITES, "ready"), 120)

    def _give_up(self) -> None:
        """Keep its logs, and have the next one who needs a federation get another."""
        here, self._fleet, self._run = self._fleet, None, ""
        if here is not None:
            self._keep_logs(here)
        self._undo.close()

    def _left(self, here: Fleet) -> int:
        over = faults.has_ended(here, self._run)
        return 0 if over else ROUNDS - faults.rounds_begun(here, self._run)

    def _finish(self, here: Fleet) -> None:
        """Have the run that goes on end as it would have ended without faults."""
        if self._run:
            run, self._run = self._run, ""
            faults.check_finished(here, run, self._calm[moving(ROUNDS)].digest(ROUNDS))
            faults.check_in_order(here)
            faults.check_rays_are_empty(here)

    def _keep_logs(self, here: Fleet) -> None:
        """They stay when the tests are over, and all that the tests had in folders is removed."""
        logs = Path(tempfile.mkdtemp(prefix="fedpilot-soak-", dir=os.environ["TESTS_TMPDIR"]))
        print(f"the logs of what went wrong: {logs}", flush=True)
        for path in here.folder.rglob("*.log"):
            if not path.relative_to(here.folder).parts[0].startswith("r-"):
                kept = logs / path.relative_to(here.folder)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, kept)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    made = Ground()
    yield made
    made.close()


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("seed", range(TIMES))
def test_a_fault_leaves_no_trace(ground: Ground, fault: Fault, seed: int) -> None:
    dice = random.Random(f"{fault} {seed}")
    peace = ground.peace(moving(ROUNDS))
    with ground.going() as (three, run):
        faults.suffer(three, fault, peace, dice, run)


@pytest.mark.parametrize("fault", [RAY, LONG_CUT], ids=str)
@pytest.mark.parametrize("seed", range(FEW))
def test_clients_whose_data_lies_at_a_lost_site_wait_for_it(
    ground: Ground, fault: Fault, seed: int
) -> None:
    dice = random.Random(f"pinned {fault} {seed}")
    site, run = dice.choice(SITES), f"pinned-{FAULTS.index(fault)}-{seed}"
    peace = ground.peace(pinned(PINNED_ROUNDS))
    with ground.fleet() as three:
        rules = "participation: {wait_for_sites_s: 300}\n"
        three.submit(pinned(PINNED_ROUNDS) + rules, run)
        three.wait_for(run, "round_started", 180)
        faults.in_the_middle(three, run, dice)
        faults.happens(fault, three, site, run)
        faults.check_finished(three, run, peace.digest(PINNED_ROUNDS))
        assert faults.lost_sites(three, run) == {site}
        faults.check_in_order(three)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("seed", range(FEW))
def test_a_quorum_does_without_clients_that_wait_for_their_site(
    ground: Ground, way: Way, seed: int
) -> None:
    dice = random.Random(f"quorum {way} {seed}")
    site, run = dice.choice(SITES), f"quorum-{WAYS.index(way)}-{seed}"
    rules = f"participation: {{quorum: 0.3, {way.rules}, wait_for_sites_s: 5}}\n"
    with ground.fleet() as three:
        three.submit(way.config(SHORT) + rules, run)
        three.wait_for(run, "round_started", 180)
        faults.in_the_middle(three, run, dice)
        struck = faults.rounds_begun(three, run)
        RAY.strike(three, site, run)
        faults.check_finished(three, run)
        RAY.mend(three, site, run)
        assert faults.lost_sites(three, run) == {site}
        without = [event for event in three.events(run) if event["event"] == "round_quorum"]
        first = without[0]["round"]
        assert first in (struck, struck + 1)
        # Where clients judge the model at their sites, that is closed without them as well.
        assert sorted({event["round"] for event in without}) == list(range(first, SHORT + 1))
        assert all(0.3 * event["of"] <= event["clients"] < event["of"] for event in without)
        assert all(site in event["reason"] for event in without)
        faults.check_in_order(three)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("seed", range(FEW))
def test_without_a_quorum_the_run_ends_and_can_be_resumed(
    ground: Ground, way: Way, seed: int
) -> None:
    dice = random.Random(f"wait {way} {seed}")
    site, run = dice.choice(SITES), f"wait-{WAYS.index(way)}-{seed}"
    rules = f"participation: {{{way.rules}, wait_for_sites_s: 5}}\n"
    peace = ground.peace(way.config(way.rounds))
    with ground.fleet() as three:
        three.submit(way.config(SHORT) + rules, run)
        three.wait_for(run, "round_started", 180)
        faults.in_the_middle(three, run, dice)
        RAY.strike(three, site, run)
        last = three.finished(run)
        assert last["status"] == "failed"
        assert "TooFewSites" in last["failure"]
        RAY.mend(three, site, run)
        faults.check_in_order(three)
        three.run("runs", "resume", run, timeout_s=240)
        assert three.ask("runs", "show", run)["digest"] == peace.digest(SHORT)
        faults.check_in_order(three)


def test_a_site_that_joins_while_a_run_goes_on_gets_work(ground: Ground) -> None:
    peace = ground.peace(moving(ROUNDS))
    with ground.fleet() as three:
        three.submit(moving(ROUNDS), "late")
        three.wait_for("late", "round_started", 180)
        three.join(LATE)
        three.wait_for("late", "worker_ready", site=LATE)
        joined = three.wait_for("late", "site_returned", site=LATE)
        faults.check_finished(three, "late", peace.digest(ROUNDS))
        begun = [event for event in three.events("late") if event["event"] == "round_started"]
        first = next(event["round"] for event in begun if event["time"] > joined["time"])
        with (three.folder / "hub" / "runs" / "late" / "traffic.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["site"] == LATE]
        rounds = {int(row["round"]) for row in rows if row["purpose"] == "training"}
        assert first in rounds
        faults.check_nothing_left(three)
