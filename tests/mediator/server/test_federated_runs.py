"""A federation's real coordinator at a real mediator; its sites are fake clusters behind gRPC."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fake_agents import FakeAgent
from fedpilot.fabric import VirtualClusterManager
from fedpilot.fabric.testing import FakeCluster, fake_machine
from fedpilot.federated import Federation, parse_config
from fedpilot.federated.importing import ArchiveFinder
from fedpilot.federated.report.wording import summary
from fedpilot.federated.user_code import UserCode, code_to_send
from fedpilot.federated.verify.reading import reading
from fedpilot.federated.verify.stage import federation_of
from fedpilot.mediator import GangRequest, InProcessSite, Payload, Promise, Site, SiteContext
from fedpilot.mediator.identity import Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.runner.policed import PolicedSite
from fedpilot.mediator.wire import PROTOCOL
from mediators import Here, eventually, mediating

COORDINATOR = (
    sys.executable,
    "-c",
    "import sys; from pathlib import Path\n"
    "from fedpilot.federated.coordinator_process import main\n"
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

    def __post_init__(self) -> None:
        self.gate.set()
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
                return Payload(kind="refused", header={"reason": answer.reason})
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
                    if self.rounds[-1] == self.shut_at:
                        self.gate.clear()
                        self.shut_at = None
                    await self.gate.wait()
                answered: Payload = await done(self.site.deliver, payload, "", "")
                return answered
        return Payload(kind="done")

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
    agent = here.agent(name, work=cluster.work)
    cluster.agent = agent
    return cluster, agent


async def submit(
    here: Here, run: str, config_yaml: str, interactive: bool = False, code: bytes = b""
) -> None:
    async with here.user("otto", Role.OPERATOR) as user:
        request = pb.SubmitRequest(
            protocol=PROTOCOL,
            run=run,
            config_yaml=config_yaml,
            name="n",
            interactive=interactive,
            code=code,
        )
        await user.submit(request)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the same run in one process."""
    folder = str(tmp_path_factory.mktemp("alone"))
    values = {**CONFIG, "outputs": {"curves": False, "folder": folder}}
    cluster = FakeCluster([fake_machine("a", CPU=8)])
    with Federation(values, cluster=cluster) as federation:
        return federation.run().digest


def finished(found: Any) -> str:
    assert found["status"] == "finished", found
    return str(found["digest"])


def test_a_run_over_two_sites_gives_the_same_model(tmp_path: Path, alone: str) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            (_, paris), (_, rome) = agent_of(here, "paris"), agent_of(here, "rome")
            async with paris, rome:
                await here.state("paris", "ready")
                await here.state("rome", "ready")
                await submit(here, "run", config())
                found = await here.ended("run", 120)
                assert finished(found) == alone
                assert (found["rounds"], found["owner"]) == (4, "otto")
                events = [each["event"] for each in await here.events("run")]
                assert events[0] == "run_started"
                assert events.count("round_finished") == 4
                assert events.count("worker_ready") == 2
                assert events[-1] == "run_finished"
                await eventually(lambda: not paris.held and not rome.held)

    asyncio.run(test())


def test_a_killed_coordinator_resumes_and_gives_the_same_model(tmp_path: Path, alone: str) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            cluster, paris = agent_of(here, "paris")
            async with paris:
                await here.state("paris", "ready")
                cluster.shut_at = 2  # or the run may be over before it is killed
                await submit(here, "run", config())
                await eventually(lambda: 2 in cluster.rounds, within_s=60)
                os.kill(coordinator_of(here), signal.SIGKILL)
                cluster.gate.set()
                found = await here.ended("run", 120)
                assert (finished(found), found["restarts"]) == (alone, 1)

    asyncio.run(test())


def coordinator_of(here: Here) -> int:
    """The process of the one coordinator there is."""
    wanted = str(here.folder.resolve()).encode()
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        words = each.read_bytes().split(b"\0")
        if wanted in words and b"run" in words:
            return int(each.parent.name)
    raise AssertionError("no coordinator")


def test_a_site_that_joins_late_and_one_that_is_lost_do_not_change_the_model(
    tmp_path: Path, alone: str
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            (here_cluster, paris), (late_cluster, rome) = (
                agent_of(here, "paris"),
                agent_of(here, "rome"),
            )
            async with paris:
                await here.state("paris", "ready")
                here_cluster.gate.clear()
                await submit(here, "run", config())
                await eventually(lambda: here_cluster.rounds, within_s=60)
                async with rome:
                    await here.state("rome", "ready")
                    await eventually(
                        lambda: any(each.key == "start" for each in rome.worked), within_s=30
                    )
                    here_cluster.gate.set()
                    await eventually(lambda: late_cluster.rounds, within_s=30)
                found = await here.ended("run", 120)  # rome is gone, and given up
                assert finished(found) == alone

    asyncio.run(test())


def test_users_ask_about_virtual_nodes(tmp_path: Path) -> None:
    async def ask(here: Here, kind: str, **header: Any) -> Any:
        reply, tensors = await here.ask("run", kind, header)
        assert reply.WhichOneof("result") == "done", reply.failure
        return json.loads(reply.done.header_json), tensors

    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR, ask_s=60.0) as here:
            _, paris = agent_of(here, "paris")
            async with paris:
                await here.state("paris", "ready")
                await submit(here, "run", config(), interactive=True)
                log = here.folder / "runs" / "run" / "coordinator.log"
                await eventually(
                    lambda: any(each.key == "start" for each in paris.worked),
                    log.read_text() if log.exists() else "no log",
                    within_s=60,
                )
                listed, _ = await ask(here, "node.list", first=0, count=3)
                assert listed["total"] == 12
                client = listed["nodes"][0]["id"]
                trained, tensors = await ask(here, "node.train", client=client)
                assert "tally" in trained
                assert len(tensors) > 1_000
                shown, _ = await ask(here, "node.show", client=client)
                assert (shown["site"], shown["state"]) == ("paris", "materialized")
                reply, _ = await here.ask("run", "node.show", {"client": "nobody"})
                assert reply.failure.kind.endswith(":UnknownClient")
                await here.admin.stop_run(pb.RunRequest(run="run"))
                assert (await here.ended("run"))["status"] == "stopped"

    asyncio.run(test())


def test_a_run_without_enough_sites_fails_with_what_is_missing(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            waiting = {"participation": {"wait_for_sites_s": 0.5}}
            await submit(
                here, "run", config(sites={"min_sites": 2, "required": ["oslo"]}, **waiting)
            )
            found = await here.ended("run", 60)
            assert found["status"] == "failed"
            assert "oslo" in found["failure"] + found["reason"]

    asyncio.run(test())


def test_a_run_that_fails_says_once_how_it_ended(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            cluster, paris = agent_of(here, "paris")
            async with paris:
                await here.state("paris", "ready")
                await submit(here, "run", config(participation={"wait_for_sites_s": 0.1}))
                cluster.gate.clear()
                await eventually(lambda: cluster.rounds, within_s=60)
            assert (await here.ended("run", 60))["status"] == "failed"
            events = await here.events("run")
            (last,) = [each for each in events if each["event"] == "run_finished"]
            assert last == events[-1]
            assert (last["status"], last["rounds"]) == ("failed", 0)
            assert "TooFewSites" in last["failure"]

    asyncio.run(test())


def test_a_run_ends_before_its_bytes_on_the_wire_exceed_its_budget(tmp_path: Path) -> None:
    most = 160_000

    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            (_, paris), (_, rome) = agent_of(here, "paris"), agent_of(here, "rome")
            async with paris, rome:
                await here.state("paris", "ready")
                await here.state("rome", "ready")
                await submit(here, "run", config(traffic={"run_bytes": most}))
                found = await here.ended("run", 120)
            assert found["status"] == "failed"
            assert f"TrafficSpent: round {found['rounds'] + 1} is not begun" in found["failure"]
            assert "traffic.run_bytes" in found["failure"]

    asyncio.run(test())
    with (tmp_path / "m" / "runs" / "run" / "traffic.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    tensors = 2 * (2440 + 4880)  # of the first round, at two sites
    assert tensors < sum(int(row["bytes"]) for row in rows) <= most


def test_a_run_that_cannot_begin_says_so_to_whoever_follows_it(tmp_path: Path) -> None:
    wanted = config(
        data={"from": "sites", "dataset": "scans"},
        federation={"rounds": 4, "clients_per_round": 6},
        evaluation={"where": "sites"},
        participation={"wait_for_sites_s": 0.1},
    )

    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            _, paris = agent_of(here, "paris")
            async with paris:
                await here.state("paris", "ready")
                await submit(here, "run", wanted)
                assert (await here.ended("run", 60))["status"] == "failed"
            (told,) = await here.events("run")
            lines = summary(told)
            assert lines[0].startswith("run run failed after ")
            assert told["failure"] == (
                "ReservationRefused: 1 sites that declare data set scans are needed, found 0; "
                "site paris: it declares no data set scans"
            )

    asyncio.run(test())


# -- code of the user's own -----------------------------------------------------------------------

NETS = """
from torch import nn
from own_parts_for_sites import WIDTH

def net(input_shape, num_classes):
    first = nn.Linear(input_shape[0], WIDTH)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(WIDTH, num_classes))
"""


def own(folder: Path) -> dict[str, Any]:
    """A config's model that only this test has: one of another may still be on its way."""
    return {"model": {"model_type": f"{nets_of(folder)}:net"}}


def nets_of(folder: Path) -> str:
    """The module that it is in."""
    return f"nets_of_{folder.name}"


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserCode]:
    """What goes along with a run; its folder is one that nobody else looks into."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / f"{nets_of(tmp_path)}.py").write_text(NETS)
    (folder / "own_parts_for_sites.py").write_text("WIDTH = 5\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield code_to_send(parse_config({**CONFIG, **own(tmp_path)}), [str(folder)])
    withdraw()
    for name in (nets_of(tmp_path), "own_parts_for_sites"):
        sys.modules.pop(name, None)


def withdraw() -> None:
    """Have the sites of this process import no run's code any more."""
    for finder in [each for each in sys.meta_path if isinstance(each, ArchiveFinder)]:
        finder.withdraw()


def allowing(folder: Path, *digests: str) -> Path:
    """A policy's file."""
    path = folder / "policy.yaml"
    path.write_text(json.dumps({"code_digests": digests}))
    return path


def test_code_reaches_sites_that_allow_it_early_and_late(
    tmp_path: Path, own_code: UserCode
) -> None:
    """Nobody has it installed: neither the coordinator, nor its successor, nor a site."""
    policy = allowing(tmp_path, own_code.digest)

    async def test() -> str:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            first, paris = agent_of(here, "paris", policy)
            late, rome = agent_of(here, "rome", policy)
            async with paris:
                await here.state("paris", "ready")
                first.shut_at = 2
                await submit(here, "run", config(**own(tmp_path)), code=own_code.archive)
                await eventually(lambda: 2 in first.rounds, within_s=60)
                os.kill(coordinator_of(here), signal.SIGKILL)
                async with rome:
                    await here.state("rome", "ready")
                    await eventually(
                        lambda: any(each.key == "start" for each in rome.worked), within_s=60
                    )
                    first.gate.set()
                    found = await here.ended("run", 120)
                    assert found["restarts"] == 1
                    assert late.rounds
            folder = here.folder / "runs" / "run"
            manifest = json.loads((folder / "manifest.json").read_text())
            assert manifest["code_digest"] == own_code.digest
            return finished(found)

    digest = asyncio.run(test())
    assert nets_of(tmp_path) in sys.modules, "the sites of this test have imported it"
    withdraw()
    values = {
        **CONFIG,
        **own(tmp_path),
        "outputs": {"curves": False, "folder": str(tmp_path / "runs")},
    }
    cluster = FakeCluster([fake_machine("a", CPU=8)])
    with Federation(values, cluster=cluster, search=[str(tmp_path / "mine")]) as federation:
        assert federation.code_digest == own_code.digest, "as `fedpilot check` says it"
        assert federation.run().digest == digest
    run = tmp_path / "m" / "runs" / "run"
    with reading(run, "run") as found:
        _, standing = federation_of(
            found, lambda config, search: Federation(config, search=[str(tmp_path / "mine")])
        )
    assert standing.reproducible, standing.reasons


def test_a_site_that_does_not_allow_the_code_never_loads_it(
    tmp_path: Path, own_code: UserCode
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            _, paris = agent_of(here, "paris", allowing(tmp_path, "0" * 64))
            async with paris:
                await here.state("paris", "ready")
                await submit(here, "run", config(**own(tmp_path)), code=own_code.archive)
                found = await here.ended("run", 120)
            assert found["status"] == "failed"
            assert found["reason"] == (
                "PolicyRefused: the policy of site paris refuses it by the rule code_digests: "
                f"found code that came with the run, with the digest {own_code.digest}; allowed "
                f"is {'0' * 64}"
            )

    asyncio.run(test())
    assert nets_of(tmp_path) not in sys.modules
