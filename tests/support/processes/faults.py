"""What can go wrong under a federation of several sites, done to a real one while a run goes on.

Whatever goes wrong, and whenever, the run goes on, and every round ends in the model of a run that
nothing happened to; every site is ready again in the end, and nothing of the run is left anywhere.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import site_data
from fedpilot.common.strict_yaml.reading import read
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation, parse_config
from fedpilot.federated.prepare.user_code.user_code import code_here
from fleet import ASK_S, Fleet
from real_ray import eventually

SITES = ("oslo", "paris", "tokyo")
ROUND_S = 1.5
"""About as long as a round takes, at least, where none is there to be asked."""

Do = Callable[[Fleet, str, str], None]
"""Does something to a site of a fleet, or to a run."""


def config(rounds: int, epochs: int) -> str:
    """Rounds that compute, on a core for each site."""
    return f"""
federation: {{number_of_clients: 60, clients_per_round: 30, rounds: {rounds}}}
model: {{model_type: mlp}}
data: {{dataset_type: digits}}
training: {{execution: sequential, number_of_epochs: {epochs}}}
resources: {{workers: 1}}
"""


def waiting(rounds: int, step_s: float = 0.15) -> str:
    """Rounds of ten steps at each site, which wait: to compute is not what is tried."""
    return f"""
federation: {{number_of_clients: 60, clients_per_round: 30, rounds: {rounds}}}
model: {{model_type: "waiting_nets:Waits", options: {{step_s: {step_s}}}}}
data: {{dataset_type: digits}}
training: {{execution: sequential}}
resources: {{workers: 1}}
"""


def ring(rounds: int, step_s: float = 0.075) -> str:
    """Rounds about as long, of clients on a ring: their models stay at their sites."""
    return f"""
federation: {{number_of_clients: 60, rounds: {rounds}, topology: ring, aggregation_strategy: dpsgd}}
model: {{model_type: "waiting_nets:Waits", options: {{step_s: {step_s}}}}}
data: {{dataset_type: digits}}
training: {{execution: sequential}}
participation: {{wait_for_sites_s: 300}}
resources: {{workers: 1}}
"""


def pinned(rounds: int, epochs: int) -> str:
    """Rounds about as long, on data that lies at the sites (`declare`)."""
    return f"""
federation: {{clients_per_round: 9, rounds: {rounds}}}
model: {{model_type: logistic_regression}}
data: {{from: sites, dataset: scans}}
training: {{batch_size: 8, execution: sequential, number_of_epochs: {epochs}}}
evaluation: {{where: sites, clients: all}}
resources: {{workers: 1}}
"""


def allowing(fleet: Fleet, config: str) -> tuple[str, str]:
    """The options of a site whose admin allows the code that a config names.

    The code lies beside the config, and is installed nowhere.
    """
    code = code_here(parse_config(read(config, str).value), [str(fleet.folder)])
    policy = fleet.folder / "policy.yaml"
    policy.write_text(f"code_digests: [{code.digest}]\n")
    return "--policy", str(policy)


def alone(config: str, folder: Path) -> dict[int, str]:
    """Digests of the models, by round, that this process makes of a config without any site."""
    values = read(config, str).value
    values.pop("sites", None)
    values["resources"].pop("ray", None)
    values["outputs"] = {"curves": False, "folder": str(folder)}
    with Federation(values, cluster=FakeCluster([fake_machine("a", CPU=8)])) as federation:
        return {row["round"]: row["model"] for row in federation.run().rows}


def declare(folder: Path, site: str) -> tuple[str, ...]:
    """Have three clients' data lie at a site; the options by which its agent is told."""
    clients = {f"{site}-{letter}": 40 for letter in "abc"}
    section = site_data.column(folder / f"data-{site}", clients)
    policy = folder / f"{site}.policy.yaml"
    policy.write_text("datasets: {scans: {users: ['role:admin']}}\n")
    file = site_data.site_file(folder / f"{site}.site.yaml", "scans", section)
    return "--site-file", file, "--policy", str(policy)


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


def _raise_ray(fleet: Fleet, site: str) -> None:
    fleet.start_ray(site)
    fleet.wait_for_ray(site)


AGENT = Fault(
    what="an agent is killed",
    strike=lambda fleet, site, run: fleet.kill(f"agent {site}"),
    mend=lambda fleet, site, run: fleet.start_agent(site),
    loses=None,
)
RAY = Fault(
    what="a whole Ray cluster is killed",
    strike=lambda fleet, site, run: fleet.kill(f"ray {site}"),
    mend=lambda fleet, site, run: _raise_ray(fleet, site),
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
RUNNER = Fault(
    what="a runner is killed",
    strike=lambda fleet, site, run: fleet.kill_runner(site, run),
    mend=lambda fleet, site, run: None,  # its agent starts the next
    loses=True,
)


def _fill(fleet: Fleet, site: str) -> None:
    """Fill a site's disk until its cache has given all up that it can."""
    fleet.disks[site].fill()
    for _ in range(3):
        time.sleep(1.0)
        fleet.disks[site].fill()


DISK = Fault(
    what="a site's disk is full",
    strike=lambda fleet, site, run: _fill(fleet, site),
    mend=lambda fleet, site, run: fleet.disks[site].free(),
    lasts_s=10.0,
    loses=True,
)
SHORT_CUT, LONG_CUT = _cut(5.0, loses=False), _cut(60.0, loses=True)
FAULTS = (AGENT, RAY, MEDIATOR, COORDINATOR, SHORT_CUT, LONG_CUT, RUNNER, DISK)


@dataclass(frozen=True)
class Calm:
    """A run that nothing happened to."""

    models: dict[int, str]
    """Digests, by round."""

    def digest(self, number: int) -> str:
        """Of the model after a round."""
        return self.models[number]


def calm(fleet: Fleet, config: str, run: str = "calm") -> Calm:
    """Have a run in peace."""
    fleet.submit(config, run)
    check_finished(fleet, run)
    check_nothing_left(fleet)
    return Calm(models(fleet, run))


def in_the_middle(fleet: Fleet, run: str, dice: random.Random) -> None:
    """Wait for a moment in the next round, which the dice choose: most take equally long."""
    fleet.next_round(run)
    done = [each["seconds"] for each in fleet.events(run) if each["event"] == "round_finished"]
    time.sleep(dice.random() * (median(done) if done else ROUND_S))


def happens(fault: Fault, fleet: Fleet, site: str, run: str) -> None:
    """Let something go wrong, for as long as it lasts."""
    until = time.monotonic() + fault.lasts_s
    fault.strike(fleet, site, run)
    time.sleep(max(0.0, until - time.monotonic()))
    fault.mend(fleet, site, run)


def suffer(fleet: Fleet, fault: Fault, peace: Calm, dice: random.Random, run: str) -> None:
    """Have a run that goes on go through a fault, and check that it left no trace."""
    site = dice.choice(SITES)
    before, lost_before = workers(fleet, run), len(losses(fleet, run))
    in_the_middle(fleet, run, dice)
    started = time.monotonic()
    happens(fault, fleet, site, run)
    check_goes_on(fleet, run)
    took = time.monotonic() - started
    found = models(fleet, run)
    assert found == {number: peace.digest(number) for number in found}, fleet.logs()
    lost = set(losses(fleet, run)[lost_before:])
    if fault.loses is not None:
        assert lost == ({site} if fault.loses else set()), fleet.logs()
    if not lost:
        assert workers(fleet, run) == before, "what works at the sites was not begun anew"
    print(f"{fault} ({site}), in order after {took:.1f} s", flush=True)


def check_goes_on(fleet: Fleet, run: str) -> None:
    """Two more rounds are finished, or all; then all sites are ready, and take part in the run.

    The second of them needed every site, or had done without it.
    """
    enough = rounds_done(fleet, run) + 2
    more = f"{run} finishes round {enough}"
    eventually(lambda: has_ended(fleet, run) or rounds_done(fleet, run) >= enough, 120, more)
    fleet.until(dict.fromkeys(SITES, "ready"), 90)
    back = f"every site that {run} lost is back"
    eventually(lambda: has_ended(fleet, run) or not away(fleet, run), 90, back)


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
        check_none(partial(fleet.left_at, site), 60, f"at {site}")
    held = "no site's Ray holds anything"
    eventually(lambda: not any(fleet.held().values()), 60, held, every_s=ASK_S)
    check_none(fleet.left_at_hub, 60.0, "beside the mediator")
    check_none(fleet.left_in_folders, 60.0, "in the folders")


def check_rays_are_empty(fleet: Fleet) -> None:
    """The sites' Rays themselves know of nothing that a run had there."""
    for site in fleet.sites:
        check_none(partial(fleet.left_in_ray, site), 120, f"in the Ray of {site}", every_s=ASK_S)


def check_none(
    look: Callable[[], list[str]], within_s: float, where: str, *, every_s: float = 0.25
) -> None:
    """Nothing is left somewhere, before long. To look takes a process."""
    found: list[str] = []

    def empty() -> bool:
        found[:] = look()
        return not found

    try:
        eventually(empty, within_s, f"nothing is left {where}", every_s=every_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; found {found}") from None


def has_ended(fleet: Fleet, run: str) -> bool:
    """Whether a run has said that it is over."""
    return any(event["event"] == "run_finished" for event in fleet.events(run))


def models(fleet: Fleet, run: str) -> dict[int, str]:
    """Digests of the models that a run's rounds ended in; one that ended twice ended the same."""
    found: dict[int, str] = {}
    for event in fleet.events(run):
        if event["event"] == "round_finished":
            assert found.setdefault(event["round"], event["model"]) == event["model"], event
    return found


def rounds_begun(fleet: Fleet, run: str) -> int:
    """The last round that a run has begun."""
    begun = [event["round"] for event in fleet.events(run) if event["event"] == "round_started"]
    return max(begun, default=0)


def rounds_done(fleet: Fleet, run: str) -> int:
    """The last round that a run has finished."""
    return max(models(fleet, run), default=0)


def workers(fleet: Fleet, run: str) -> dict[str, int]:
    """The process that works at each site for a run, or did last."""
    ready = [event for event in fleet.events(run) if event["event"] == "worker_ready"]
    return {event["site"]: event["pid"] for event in ready}


def losses(fleet: Fleet, run: str) -> list[str]:
    """The sites that a run has given up, one after the other."""
    return [event["site"] for event in fleet.events(run) if event["event"] == "site_lost"]


def away(fleet: Fleet, run: str) -> set[str]:
    """The sites that a run has given up and not taken back."""
    gone: set[str] = set()
    for event in fleet.events(run):
        if event["event"] == "site_lost":
            gone.add(event["site"])
        elif event["event"] == "site_returned":
            gone.discard(event["site"])
    return gone


def lost_sites(fleet: Fleet, run: str) -> set[str]:
    """The sites that a run has given up."""
    return set(losses(fleet, run))
