"""Five runs at three sites of two CPUs: real coordinators, fake clusters, and none fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coordinated import COORDINATOR, Cluster, config, submit
from fake_agents import FakeAgent
from fedpilot.fabric import VirtualClusterManager
from fedpilot.fabric.spec.queue_file import queue_file_of
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import parse_config
from fedpilot.federated.prepare.run_ask import run_ask
from fedpilot.mediator import Payload
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.messages import Capacity
from mediators import Here, mediating

SITES = ("oslo", "paris", "rome")
TWO = {"CPU": 2.0}


class SharedSite:
    """A site of two CPUs with a runner for each run, as a real one has."""

    def __init__(self, here: Here, name: str) -> None:
        self.name = name
        self.manager = VirtualClusterManager(FakeCluster([fake_machine("a", CPU=2)]))
        self.agent: FakeAgent = here.agent(name, work=self.work)
        self.agent.capacity = Capacity(total=TWO, free=TWO, machines=1)
        self.runners: dict[str, Cluster] = {}
        self.prepared: list[str] = []

    async def work(self, order: pb.Order, payload: Payload) -> Payload:
        run = order.id.run
        if run not in self.runners:
            self.runners[run] = Cluster(self.name, manager=self.manager)
            self.runners[run].agent = self.agent
        if order.verb == "prepare":
            self.prepared.append(run)
        return await self.runners[run].work(order, payload)


def asks(project: str | None = None, **sites: Any) -> tuple[str, str]:
    """The config of a run with two workers of one CPU per site, and its ask."""
    resources = {"workers": 2, "reserve_timeout": 5.0, "project": project}
    text = config(resources=resources, sites=sites, federation=ROUNDS)
    ask = run_ask(parse_config(json.loads(text)))
    return text, json.dumps(ask.to_json())


ROUNDS = {"number_of_clients": 12, "rounds": 1, "clients_per_round": 6}
QUEUES = {
    "projects": [
        {"name": "vision", "quota": {"default": {"CPU": 2}}, "users": ["ann"]},
        {"name": "speech", "quota": {"default": {"CPU": 4}}, "users": ["bob", "eve"]},
    ],
    "classes": [{"name": "urgent", "priority": 90}],
}
RUNS = {
    "ann-1": ("ann", "vision", "train", 3),
    "ann-2": ("ann", "vision", "train", 2),
    "ann-3": ("ann", "vision", "train", 1),
    "bob-1": ("bob", "speech", "train", 2),
    "eve-1": ("eve", "speech", "urgent", 3),
}
"""By owner, project, class and sites, in the order in which they are submitted."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_finish_in_the_order_that_shares_and_classes_say(tmp_path: Path) -> None:
    file = queue_file_of(QUEUES)

    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR, projects=file) as here:
            sites = [SharedSite(here, name) for name in SITES]
            for site in sites:
                await site.agent.start()
                await here.state(site.name, "ready")
            for run, (user, project, class_, count) in RUNS.items():
                text, ask = asks(project, count=count)
                await submit(here, run, text, user_name=user, priority_class=class_, ask_json=ask)
            ended = {run: await here.ended(run, 360) for run in RUNS}
            assert {each["status"] for each in ended.values()} == {"finished"}
            assert {each["restarts"] for each in ended.values()} == {0}
            order = sorted(RUNS, key=lambda run: ended[run]["started_at"])
            # Speech has the larger quota, and there the class decides. Then Bob's run is within
            # that quota. His two sites leave one: Ann's second does not fit there, and her third
            # begins at the same moment.
            assert order[:2] == ["ann-1", "eve-1"]
            assert sorted(order[2:4]) == ["ann-3", "bob-1"]
            for site in sites:
                assert len(site.prepared) == len(set(site.prepared)), "no attempt was in vain"
                await site.agent.close()

    asyncio.run(test())


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.soak
def test_a_run_whose_site_others_fill_behind_the_mediators_back_waits(tmp_path: Path) -> None:
    """The queue believes that the sites have room: their refusals send the run back in line."""

    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            site = SharedSite(here, "oslo")
            spec = json.loads(asks(count=1)[0])["resources"]
            await site.agent.start()
            await here.state("oslo", "ready")
            with _filled(site.manager):
                text = config(
                    resources={**spec, "reserve_timeout": 0.2},
                    sites={"count": 1},
                    federation=ROUNDS,
                )
                await submit(here, "run", text, ask_json=asks(count=1)[1])
                async with asyncio.timeout(120):
                    while (await here.run("run"))["status"] != "queued":
                        await asyncio.sleep(0.05)
                found = await here.run("run")
                assert "its sites were full when it asked" in found["reason"]
                waiting = [e for e in await here.events("run") if e["event"] == "run_waiting"]
                assert waiting[0]["reason"].startswith(
                    "its sites are full for now, and it holds nothing there: site oslo: "
                )
            assert (await here.ended("run", 120))["status"] == "finished"
            names = [each["event"] for each in await here.events("run")]
            assert names.count("run_finished") == 1
            await site.agent.close()

    asyncio.run(test())


def _filled(manager: VirtualClusterManager) -> Any:
    """Other work on all of a site's CPUs."""
    from fedpilot.fabric import FixedSizeNode, FixedSizeNodes, VirtualCluster

    nodes = FixedSizeNodes(nodes=(FixedSizeNode(resources=TWO),))
    return manager.reserve(VirtualCluster(fixed_size_nodes=(nodes,)), name="other")
