"""A federation over two sites loses workers at both and grows again, and keeps its bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from fleet import RAY_PORT, Fleet, fleet
from real_ray import eventually

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(900)]

SITES = ("oslo", "rome")
CONFIG = """
federation: {{number_of_clients: 24, clients_per_round: 16, rounds: {rounds}}}
model: {{model_type: mlp}}
data: {{dataset_type: digits}}
training: {{execution: sequential, number_of_epochs: 20, batch_size: 5, chunk_size: 4}}
resources: {{workers: {workers}, worker_restarts: 0}}
sites: {{count: 2}}
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Fleet]:
    with fleet(*SITES, cpus=4) as made:
        for site in SITES:
            made.join(site)
        made.until(dict.fromkeys(SITES, "ready"), 120)
        yield made


def at_site(two: Fleet, site: str, *words: str) -> None:
    """Run a command at a site, on its Ray."""
    address = f"{two.sites[site].address}:{RAY_PORT}"
    command = (sys.executable, "-m", "fedpilot", *words, "--address", address)
    done = two.sites[site].run(
        (*command, "--auth-mode", "disabled"), env=two.env, cwd=two.folder, timeout_s=180
    )
    assert done.returncode == 0, done.stdout + done.stderr


def waits_for(two: Fleet, run: str, event: str, site: str, count: int) -> None:
    """Wait until a run has said something of a site so often."""

    def so_often() -> bool:
        told = [e for e in two.events(run) if (e["event"], e.get("site")) == (event, site)]
        return len(told) >= count

    eventually(so_often, 120, f"{run} says {event} of {site} {count} times")


def test_workers_come_and_leave_at_two_sites_with_the_same_bits(two: Fleet) -> None:
    """It is compared with a run of as many rounds on workers that stay."""
    two.submit(CONFIG.format(rounds=1000, workers="{min: 2, max: 4}"), "elastic")
    for site in SITES:
        waits_for(two, "elastic", "worker_ready", site, 4)
    two.wait_for("elastic", "clients_done")
    for site in SITES:
        at_site(two, site, "cluster", "create", "ours", "--node", "2xCPU=1", "--wait", "120")
        waits_for(two, "elastic", "worker_left", site, 2)
    for site in SITES:
        at_site(two, site, "cluster", "delete", "ours")
        waits_for(two, "elastic", "worker_ready", site, 6)
    two.next_round("elastic")
    two.run("runs", "stop", "elastic")
    elastic = two.finished("elastic")
    two.submit(CONFIG.format(rounds=elastic["rounds"], workers=2), "calm")
    assert elastic["digest"] == two.finished("calm", 400)["digest"]
    events = two.events("elastic")
    assert "worker_lost" not in {event["event"] for event in events}
    left = [event for event in events if event["event"] == "worker_left"]
    assert not any(event["held"] for event in left), "nothing was trained twice"
    for site in SITES:
        assert two.left_in_ray(site) == []
