"""A federation's real coordinator at a real mediator; its sites are fake clusters behind gRPC."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinated import (
    CONFIG,
    COORDINATOR,
    agent_of,
    config,
    coordinator_of,
    finished,
    in_one_process,
    submit,
)
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation, NodeState, connect, parse_config
from fedpilot.federated.core.population.partitions.partition import UnknownClient
from fedpilot.federated.core.state import digest
from fedpilot.federated.federation.report.wording import summary
from fedpilot.federated.federation.verify.reading import reading
from fedpilot.federated.federation.verify.stage import federation_of
from fedpilot.federated.prepare.user_code.importing import ArchiveFinder
from fedpilot.federated.prepare.user_code.user_code import UserCode, code_to_send
from fedpilot.mediator.errors import QuestionFailed
from fedpilot.mediator.identity import Role
from fedpilot.mediator.proto import federation_pb2 as pb
from mediators import eventually, mediating


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the same run in one process."""
    with in_one_process(tmp_path_factory.mktemp("alone")) as federation:
        return federation.run().digest


def test_a_run_gives_the_same_model_though_a_site_is_cordoned_and_another_removed_amid_a_round(
    tmp_path: Path, alone: str
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            (first, paris), (second, rome), (third, oslo) = (
                agent_of(here, name) for name in ("paris", "rome", "oslo")
            )
            async with paris, rome, oslo:
                for name in ("paris", "rome", "oslo"):
                    await here.state(name, "ready")
                third.shut_at = 2
                await submit(here, "run", config())
                await eventually(lambda: 2 in third.rounds, within_s=60)
                await here.admin.change_site(pb.ChangeSiteRequest(site="rome", change="cordon"))
                assert (await here.sites())["oslo"]["orders"] == 1
                wish = pb.ChangeSiteRequest(site="oslo", change="remove")
                left = json.loads((await here.admin.change_site(wish)).site_json)
                assert (left["state"], left["orders"], left["runs"]) == ("left", 0, [])
                found = await here.ended("run", 120)
                assert finished(found) == alone
                assert (found["rounds"], found["owner"]) == (4, "otto")
                assert second.rounds == [1, 2, 3, 4], "one order to a round, about its own"
                assert first.rounds == [1, 2, 2, 3, 4], "and one about those of oslo"
                assert third.rounds == [1, 2]
                assert len(set(second.shares)) == 1
                assert (await here.sites())["rome"]["state"] == "cordoned"
                await eventually(lambda: oslo.farewells and oslo.farewells[-1].final)
                await eventually(lambda: not paris.held and not rome.held)
            told = await here.events("run")
            events = [e["event"] for e in told if e["event"] != "waiting"]  # on a busy machine
            assert events[0] == "run_started"
            assert events.count("round_finished") == 4
            assert events.count("worker_ready") == 3
            assert events[-1] == "run_finished"
            (lost,) = [each for each in told if each["event"] == "site_lost"]
            assert (lost["site"], lost["clients"]) == ("oslo", 4)
            assert "remove by admin" in lost["reason"]

    asyncio.run(test())


@pytest.mark.soak
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


@pytest.mark.slow
def test_whoever_follows_a_run_over_a_restart_of_the_mediator_is_told_that_it_waits(
    tmp_path: Path, alone: str
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            cluster, paris = agent_of(here, "paris")
            async with paris:
                await here.state("paris", "ready")
                cluster.shut_at = 2
                await submit(here, "run", config())
                await eventually(lambda: 2 in cluster.rounds, within_s=60)
        async with mediating(tmp_path / "m", coordinator=COORDINATOR) as here:
            _, paris = agent_of(here, "paris")
            async with paris:
                assert finished(await here.ended("run", 120)) == alone
            told = await here.events("run")
            names = [each["event"] for each in told]
            assert names.count("run_waiting") == 1
            assert names.count("run_finished") == 1, "and it is the last"
            assert names[-1] == "run_finished"
            (waiting,) = [each for each in told if each["event"] == "run_waiting"]
            assert waiting["run_id"] == "run"
            assert "as soon as the mediator is back" in waiting["reason"]

    asyncio.run(test())


@pytest.mark.soak
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
                    await eventually(lambda: late_cluster.rounds, within_s=60)
                found = await here.ended("run", 120)  # rome is gone, and given up
                assert finished(found) == alone

    asyncio.run(test())


@pytest.mark.slow
def test_users_work_with_virtual_nodes_as_if_they_were_here(tmp_path: Path) -> None:
    credentials = tmp_path / "otto"

    def work(address: str) -> str:
        with (
            in_one_process(tmp_path / "runs") as local,
            connect(mediator=address, credentials=str(credentials)) as connection,
            connection.federation(CONFIG) as federation,
        ):
            assert list(federation) == list(local)
            federation["client_0"].materialize()  # from here on it is known who is where
            listed = federation.list_nodes(site="rome", first=2, count=3)
            assert (listed["total"], len(listed["nodes"])) == (6, 3)
            assert {each["site"] for each in listed["nodes"]} == {"rome"}
            ids = ["client_0", listed["nodes"][0]["id"]]
            results = [federation[each].train() for each in ids]
            same = [local[each].train() for each in ids]
            assert [digest(each.state) for each in results] == [digest(one.state) for one in same]
            assert [each.loss for each in results] == [one.loss for one in same]
            node = federation[ids[1]]
            judged = node.evaluate(results[0].state)
            assert judged == local[ids[1]].evaluate(results[0].state)
            merged = node.aggregate(results)
            assert digest(merged) == digest(local[ids[1]].aggregate(same))
            assert node.state is NodeState.MATERIALIZED
            node.release()
            assert node.state is NodeState.RELEASED
            said = node.explain()
            assert said.startswith(f"{ids[1]}: released")
            assert "site: rome, since" in said
            assert "aggregate() was called" in said
            with pytest.raises(UnknownClient, match="there is no client 'nobody'"):
                federation["nobody"]
            with pytest.raises(QuestionFailed, match="not the state of the federation's model"):
                node.train({"w": np.zeros(3)})
            return federation.run_id

    async def test() -> None:
        async with mediating(tmp_path / "m", coordinator=COORDINATOR, ask_s=60.0) as here:
            here.keys("otto", Role.OPERATOR).write(credentials)
            (_, paris), (_, rome) = agent_of(here, "paris"), agent_of(here, "rome")
            async with paris, rome:
                await here.state("paris", "ready")
                await here.state("rome", "ready")
                run = await asyncio.to_thread(work, here.address)
                assert (await here.ended(run))["status"] == "stopped"

    asyncio.run(test())


@pytest.mark.soak
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


@pytest.mark.soak
def test_a_run_without_any_site_left_says_once_how_it_ended(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_code_reaches_sites_that_allow_it_early_and_late(
    tmp_path: Path, own_code: UserCode
) -> None:
    """Nobody has it installed: neither the coordinator, nor its successor, nor a site.

    Neither a killed coordinator, nor a site that joins late, nor its loss changes the model.
    """
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
                    await eventually(lambda: late.rounds, within_s=60)
                found = await here.ended("run", 120)  # rome is gone, and given up
                assert found["restarts"] == 1
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
            events = await here.events("run")
            (last,) = [each for each in events if each["event"] == "run_finished"]
            assert last == events[-1], "it is said once"
            assert (last["status"], last["rounds"]) == ("failed", 0)
            assert "PolicyRefused" in last["failure"]
            assert found["status"] == "failed"
            assert found["reason"] == (
                "PolicyRefused: the policy of site paris refuses it by the rule code_digests: "
                f"found code that came with the run, with the digest {own_code.digest}; allowed "
                f"is {'0' * 64}"
            )

    asyncio.run(test())
    assert nets_of(tmp_path) not in sys.modules
