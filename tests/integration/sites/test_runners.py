"""Runners at a Ray cluster that is not theirs: what they hold goes when its lease or they do."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedpilot.mediator import GangRequest, LinkedSite, Promise
from fedpilot.mediator.agent.runner.errors import ReservationLapsed
from fedpilot.mediator.agent.runner.link import OrderTensors, RunnerLink
from fedpilot.mediator.agent.runner.process import RayChoice, RunnerProcess, RunnerSettings
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.references import Keeping
from real_ray import eventually, ray_head

pytestmark = pytest.mark.ray

SOON_S = 60.0
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(sys.path), "RAY_AUTH_MODE": "disabled"}


@contextmanager
def runner_at(address: str, folder: Path) -> Iterator[tuple[LinkedSite, RunnerProcess]]:
    settings = RunnerSettings(
        run=folder.name, site="paris", ray=RayChoice(address=address), blobs=folder / "blobs"
    )
    process = RunnerProcess.start(folder, settings, environment=ENVIRONMENT)
    link = RunnerLink(
        process, OrderTensors(Keeping(BlobStore(settings.blobs, 1 << 30), discard=True))
    )
    try:
        yield LinkedSite("paris", link), process
    finally:
        link.close()
        process.end(SOON_S)


def all_of_it(name: str, lease_s: float = 60.0) -> GangRequest:
    """A gang that takes the whole cluster."""
    return GangRequest(
        name=name, resources={"CPU": 1.0}, workers=2, timeout_s=60.0, lease_s=lease_s
    )


def test_what_is_held_goes_with_its_lease_and_with_its_runner(tmp_path: Path) -> None:
    with ray_head(num_cpus=2) as address, runner_at(address, tmp_path / "a") as (site, process):
        assert site.prepare(all_of_it("a", lease_s=0.5)).result(SOON_S) == Promise("paris", 2)
        with runner_at(address, tmp_path / "b") as (other, _):
            assert other.prepare(all_of_it("b")).result(SOON_S) == Promise("paris", 2)
            assert isinstance(site.commit().exception(SOON_S), ReservationLapsed)
            other.release().result(SOON_S)
        assert site.prepare(all_of_it("a")).result(SOON_S) == Promise("paris", 2)
        site.commit().result(SOON_S)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: not process.alive(), SOON_S, "it is dead")
        with runner_at(address, tmp_path / "c") as (successor, _):
            assert successor.prepare(all_of_it("c")).result(SOON_S) == Promise("paris", 2)
