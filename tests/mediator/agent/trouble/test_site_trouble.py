"""A site whose disk is full, or whose Ray is gone, says so and takes no work until that is over."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from agent_labs import GANG, MODEL, RUN, Lab, played, until, work
from fedpilot.mediator.core.storage.disk import Space
from fedpilot.mediator.errors import SiteLost
from fedpilot.mediator.identity.files import write_text
from fedpilot.mediator.wire.failures import error_of
from fedpilot.mediator.wire.messages import Capacity
from site_agents import PARIS, SetRay, running


class Disk:
    """A disk of 1 GB, of which others leave so much to the site."""

    def __init__(self, blobs: Path, left: int) -> None:
        self.blobs, self.left = blobs, left

    def __call__(self, folder: Path) -> Space:
        mine = sum(each.stat().st_size for each in self.blobs.iterdir())
        return Space(total=1_000_000_000, free=self.left - mine)


def test_a_full_disk_is_the_sites_trouble_until_it_has_room(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        disk = Disk(lab.home.blobs, 60_000_000)
        async with running(lab.agent(space=disk)):
            session = await lab.mediator.next_session()
            assert not (await session.wait_for("heartbeat")).trouble
            disk.left = 10_000_000
            while not (found := (await session.wait_for("heartbeat")).trouble):
                pass
            said = "the disk of its home is full: 10 MB of 1 GB are free, and 50 MB have to be"
            assert found == said
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            refused = await session.wait_for("answer", key="prepare")
            assert said in refused.done.header_json
            await session.take(RUN, "prepare")
            disk.left = 60_000_000
            while (await session.wait_for("heartbeat")).trouble:
                pass
            await lab.prepared(session)
            assert lab.told().count("disk_in_trouble") == lab.told().count("disk_has_room") == 1

    played(tmp_path, play)


def test_models_that_nobody_needs_give_way_before_the_site_is_in_trouble(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        disk = Disk(lab.home.blobs, 90_000_000)
        old = lab.home.blobs / ("a" * 64)
        with old.open("wb") as file:
            file.truncate(30_000_000)
        async with running(lab.agent(space=disk)):
            session = await lab.mediator.next_session()
            await session.wait_for("heartbeat")
            assert old.exists()
            disk.left = 60_000_000
            await until(lambda: not old.exists(), "the model is removed")
            assert not (await session.wait_for("heartbeat")).trouble
            assert "disk_in_trouble" not in lab.told()

    played(tmp_path, play)


@pytest.mark.parametrize("way", ["to_site", "from_site"])
def test_an_order_is_answered_though_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def full(path: Path, text: str, mode: int) -> None:
        if f"{way}/" in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_text(path, text, mode)

    monkeypatch.setattr("fedpilot.mediator.agent.orders.traffic.write_text", full)

    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("bytes_per_day: {to_site: 1MB, from_site: 1MB}")
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            order = work("echo", **MODEL)
            await session.order(RUN, "work/1", "work", order, lab.mediator.store)
            answer = await session.wait_for("answer", key="work/1")
            assert isinstance(error_of(PARIS, answer.failure), SiteLost), "others may do it"
            assert "No space left on device" in answer.failure.message
            assert str(tmp_path) not in answer.failure.message, "its own log says more"

    played(tmp_path, play)


def test_runners_are_killed_when_their_ray_is_gone(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        ray = SetRay()
        async with running(lab.agent(watch=ray)):
            session = await lab.mediator.next_session()
            assert session.hello.capacity.total == {"CPU": 4.0}
            await lab.prepared(session)
            pid = lab.pid()
            await session.order(RUN, "work/1", "work", work("wait"), lab.mediator.store)
            await session.wait_for("taken", key="work/1")
            ray.trouble("the head does not answer")
            while not (await session.wait_for("heartbeat")).trouble:
                pass
            error = error_of(PARIS, (await session.wait_for("answer", key="work/1")).failure)
            assert isinstance(error, SiteLost)
            assert "the head does not answer" in str(error)
            await until(lambda: not psutil.pid_exists(pid), "the runner is gone")
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            refused = await session.wait_for("answer", key="prepare")
            assert "the head does not answer" in refused.done.header_json
            await session.take(RUN, "prepare")
            ray.trouble("")
            while (await session.wait_for("heartbeat")).trouble:
                pass
            await lab.prepared(session)

    played(tmp_path, play)


def test_machines_that_cannot_be_written_down_are_so_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(lab: Lab) -> None:
        ray = SetRay()
        async with running(lab.agent(watch=ray)):
            await lab.mediator.next_session()
            with monkeypatch.context() as patching:
                patching.setattr("fedpilot.mediator.agent.home.write_text", no_room)
                ray.set(replace(ray.look, machines=frozenset({"m1"})))
            assert lab.home.machines() == frozenset()
            ray.set(replace(ray.look, capacity=Capacity(machines=1)))
            assert lab.home.machines() == {"m1"}

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    played(tmp_path, play)
