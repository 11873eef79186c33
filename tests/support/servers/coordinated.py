"""Real coordinators at a mediator of a test; their sites are fake clusters behind gRPC."""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_agents import FakeAgent
from fedpilot.fabric import VirtualClusterManager
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation
from fedpilot.mediator import GangRequest, InProcessSite, Payload, Promise, Site, SiteContext
from fedpilot.mediator.agent.runner.policy_filter import PolicedSite
from fedpilot.mediator.identity import Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.messages import PROTOCOL
from mediators import Here

COORDINATOR = (
    sys.executable,
    "-c",
    "import sys; from pathlib import Path\n"
    "from fedpilot.federated.federation.remote.coordinator_process import main\n"
    "sys.exit(main(Path(sys.argv[1]), sys.argv[2]))",
)
CONFIG: dict[str, Any] = {
    "run": {"random_seed": 3},
    "data": {"dataset_type": "digits"},
    "federation": {"number_of_clients": 12, "rounds": 4, "clients_per_round": 6},
    "model": {"model_type": "mlp", "options": {"hidden": [8]}},
    "training": {"execution": "sequential", "chunk_size": 2},
    "resources": {"workers": 1},
    "outputs": {"curves": False},
}


def config(**changes: Any) -> str:
    return json.dumps({**CONFIG, **changes})


@dataclass
class Cluster:
    """What a site's runner would do, in threads of the test."""

    name: str
    policy: Path | None = None
    """The file of its admin's policy; None where nothing is asked."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Rounds wait for it."""
    shut_at: int | None = None
    """The round before which the gate shuts by itself, once."""
    rounds: list[int] = field(default_factory=list)
    shares: list[str] = field(default_factory=list)
    """Whom its orders of rounds were about."""
    manager: VirtualClusterManager | None = None
    """Several runs of a site share one; the default is a site of 8 CPUs."""

    def __post_init__(self) -> None:
        self.gate.set()
        self.turn = asyncio.Lock()
        """Work reaches the site in the order in which its blobs arrived."""
        manager = self.manager
        if manager is None:
            manager = VirtualClusterManager(FakeCluster([fake_machine("a", CPU=8)]))
        self.site: Site = InProcessSite(self.name, manager)
        if self.policy is not None:
            self.site = PolicedSite(self.site, SiteContext(name=self.name), self.policy)
        self.agent: FakeAgent | None = None

    async def work(self, order: pb.Order, payload: Payload) -> Payload:
        header = payload.header
        match order.verb:
            case "prepare":
                answer = await done(self.site.prepare, GangRequest.from_json(header))
                if isinstance(answer, Promise):
                    return Payload(kind="promised", header={"vnodes": answer.vnodes})
                told = {"reason": answer.reason, "full": answer.full}
                return Payload(kind="refused", header=told)
            case "check":
                await done(self.site.check, payload.kind, payload)
            case "start":
                await done(self.site.start, self.tell(order.id.run))
            case "commit":
                await done(self.site.commit)
            case "release":
                await done(self.site.release)
            case "work":
                if payload.kind == "round":
                    self.rounds.append(int(header["round"]))
                    self.shares.append(json.dumps(header["share"]))
                    if self.rounds[-1] == self.shut_at:
                        self.gate.clear()
                        self.shut_at = None
                    await self.gate.wait()
                async with self.turn:
                    answering = await asyncio.to_thread(self.site.deliver, payload, "", "")
                return self.handed_up(await asyncio.wrap_future(answering))
        return Payload(kind="done")

    def handed_up(self, answer: Payload) -> Payload:
        """What it says of what was done."""
        return answer

    def tell(self, run: str) -> Any:
        loop = asyncio.get_running_loop()

        def notify(event: Payload) -> None:
            if self.agent is not None:
                loop.call_soon_threadsafe(self.agent.say, run, event.kind, dict(event.header))

        return notify


async def done(act: Any, *args: Any) -> Any:
    def begin() -> Future[Any]:
        future: Future[Any] = act(*args)
        return future

    return await asyncio.wrap_future(await asyncio.to_thread(begin))


def agent_of(here: Here, name: str, policy: Path | None = None) -> tuple[Cluster, FakeAgent]:
    cluster = Cluster(name, policy)
    return cluster, manned(here, cluster)


def manned(here: Here, cluster: Cluster) -> FakeAgent:
    """The agent of a site."""
    agent = cluster.agent = here.agent(cluster.name, work=cluster.work)
    return agent


async def submit(
    here: Here,
    run: str,
    config_yaml: str,
    interactive: bool = False,
    code: bytes = b"",
    *,
    user_name: str = "otto",
    **queue: str,
) -> None:
    """Submit a run; `queue` has its priority class and what it asks for, as JSON."""
    async with here.user(user_name, Role.OPERATOR) as user:
        request = pb.SubmitRequest(
            protocol=PROTOCOL,
            run=run,
            config_yaml=config_yaml,
            name="n",
            interactive=interactive,
            code=code,
            **queue,
        )
        await user.submit(request)


def in_one_process(folder: Path) -> Federation:
    """The same federation without any mediator."""
    values = {**CONFIG, "outputs": {"curves": False, "folder": str(folder)}}
    return Federation(values, cluster=FakeCluster([fake_machine("a", CPU=8)]))


def finished(found: Any) -> str:
    assert found["status"] == "finished", found
    return str(found["digest"])


def coordinator_of(here: Here) -> int:
    """The process of the one coordinator there is."""
    wanted = str(here.folder.resolve()).encode()
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        words = each.read_bytes().split(b"\0")
        if wanted in words and b"run" in words:
            return int(each.parent.name)
    raise AssertionError("no coordinator")
