"""What can go wrong under a federation of several sites, done to a real one while a run goes on.

Whatever goes wrong, and whenever, the run ends, with the model of a run that nothing happened to;
every site is ready again in the end, and nothing of the run is left anywhere.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from fleet import Fleet
from real_ray import eventually

SITES = ("oslo", "paris", "tokyo")
ROUND_S = 1.5
"""About as long as a round takes, at least."""

Do = Callable[[Fleet, str, str], None]
"""Does something to a site of a fleet, or to a run."""


def config(rounds: int) -> str:
    """Rounds of some seconds, on a core for each site."""
    return f"""
federation: {{number_of_clients: 60, clients_per_round: 30, rounds: {rounds}}}
model: {{model_type: mlp}}
data: {{dataset_type: digits}}
training: {{execution: sequential, number_of_epochs: 300}}
resources: {{workers: 1}}
"""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that goes wrong, and how it is put right."""

    what: str
    strike: Do
    mend: Do
    lasts_s: float = 0.0
    """How long it goes on before it is put right."""
    loses: bool | None = False
    """Whether the site is given up meanwhile; None where that is up to the machine's speed."""

    def __str__(self) -> str:
        return self.what


def _cut(lasts_s: float, *, loses: bool) -> Fault:
    return Fault(
        what=f"a link is cut for {lasts_s:g} s",
        strike=lambda fleet, site, run: fleet.sites[site].cut(),
        mend=lambda fleet, site, run: fleet.sites[site].mend(),
        lasts_s=lasts_s,
        loses=loses,
    )


AGENT = Fault(
    what="an agent is killed",
    strike=lambda fleet, site, run: fleet.kill(f"agent {site}"),
    mend=lambda fleet, site, run: fleet.start_agent(site),
    loses=None,
)
RAY = Fault(
    what="a whole Ray cluster is killed",
    strike=lambda fleet, site, run: fleet.kill(f"ray {site}"),
    mend=lambda fleet, site, run: fleet.start_ray(site),
    lasts_s=5.0,
    loses=True,
)
MEDIATOR = Fault(
    what="the mediator is killed",
    strike=lambda fleet, site, run: fleet.kill("mediator"),
    mend=lambda fleet, site, run: fleet.start_mediator(),
    loses=None,
)
COORDINATOR = Fault(
    what="a coordinator is killed",
    strike=lambda fleet, site, run: fleet.kill_coordinator(run),
    mend=lambda fleet, site, run: None,  # the mediator starts the next
)
SHORT_CUT, LONG_CUT = _cut(5.0, loses=False), _cut(60.0, loses=True)
FAULTS = (AGENT, RAY, MEDIATOR, COORDINATOR, SHORT_CUT, LONG_CUT)


@dataclass(frozen=True)
class Calm:
    """A run that nothing happened to."""

    events: list[dict[str, Any]]

    def digest(self, number: int) -> str:
        """Of the model after a round."""
        done = [event for event in self.events if event["event"] == "round_finished"]
        return next(event["model"] for event in done if event["round"] == number)


def calm(fleet: Fleet, rounds: int) -> Calm:
    """Have a run in peace."""
    fleet.submit(config(rounds), "calm")
    check_finished(fleet, "calm")
    check_nothing_left(fleet)
    return Calm(fleet.events("calm"))


def in_the_middle(fleet: Fleet, run: str, dice: random.Random) -> None:
    """Wait for a moment in the next round, which the dice choose."""
    fleet.next_round(run)
    time.sleep(dice.uniform(0, ROUND_S))


def happens(fault: Fault, fleet: Fleet, site: str, run: str) -> None:
    """Let something go wrong, for as long as it lasts."""
    until = time.monotonic() + fault.lasts_s
    fault.strike(fleet, site, run)
    time.sleep(max(0.0, until - time.monotonic()))
    fault.mend(fleet, site, run)


def suffer(
    fleet: Fleet, fault: Fault, peace: Calm, dice: random.Random, run: str, rounds: int
) -> None:
    """Have a run go through a fault in its second round, and check that it left no trace."""
    site = dice.choice(SITES)
    fleet.submit(config(rounds), run)
    fleet.wait_for(run, "round_started", 180)
    in_the_middle(fleet, run, dice)
    happens(fault, fleet, site, run)
    check_finished(fleet, run, peace.digest(rounds))
    if fault.loses is not None:
        assert lost_sites(fleet, run) == ({site} if fault.loses else set()), fleet.logs()
    if not fault.loses:
        check_same_workers(fleet, run)
    check_in_order(fleet)
    print(f"{fault} ({site}): {delay_s(fleet, run):.1f} s", flush=True)


def check_finished(fleet: Fleet, run: str, digest: str | None = None) -> None:
    """The run ends well, with that model."""
    last = fleet.finished(run, 240)
    assert last["status"] == "finished", f"{last}\n{fleet.logs()}"
    assert digest in (None, last["digest"]), f"{run}\n{fleet.logs()}"


def check_same_workers(fleet: Fleet, run: str) -> None:
    """What works at the sites has not been begun anew."""
    ready = [event for event in fleet.events(run) if event["event"] == "worker_ready"]
    assert len({(event["site"], event["pid"]) for event in ready}) == len(SITES), ready


def check_in_order(fleet: Fleet, sites: Collection[str] = SITES) -> None:
    """All sites are ready, and nothing is left anywhere."""
    fleet.until(dict.fromkeys(sites, "ready"), 90)
    check_nothing_left(fleet)


def check_nothing_left(fleet: Fleet) -> None:
    """Nothing of any run is left, neither at the sites nor at the mediator."""
    for site in fleet.sites:
        eventually(lambda site=site: fleet.left_at(site) == [], 60, f"nothing is left at {site}")
    eventually(lambda: not any(fleet.held().values()), 60, "no site's Ray holds anything")
    eventually(lambda: fleet.left_at_hub() == [], 30, "nothing is left at the mediator")


def lost_sites(fleet: Fleet, run: str) -> set[str]:
    """The sites that a run has given up."""
    return {event["site"] for event in fleet.events(run) if event["event"] == "site_lost"}


def delay_s(fleet: Fleet, run: str) -> float:
    """Seconds that the longest round of a run took beyond its median round."""
    begun = next(event for event in fleet.events(run) if event["event"] == "round_started")
    ends = [event for event in fleet.events(run) if event["event"] == "round_finished"]
    times = [_at(event) for event in (begun, *ends)]
    took = [after - before for before, after in pairwise(times)]
    return max(took) - median(took)


def _at(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()
