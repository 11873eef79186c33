"""The site's policy limits what orders may take: runs, the size of a gang, bytes, commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_labs import GANG, MODEL, RUN, Lab, played, until, work
from fedpilot.mediator.errors import PolicyRefused
from fedpilot.mediator.wire.failures import error_of
from fedpilot.mediator.workload import Payload
from site_agents import PARIS, QUICK, SetRay, running


@pytest.mark.parametrize(
    ("rules", "asked", "found"),
    [
        pytest.param("resources: {vnodes: 1}", {"workers": 2}, "resources.vnodes", id="too many"),
        pytest.param("resources: {cpus: 0.5}", {}, "resources.cpus", id="not even one"),
        pytest.param("resources: {cpu: 0.5}", {}, "own log says", id="a policy that is wrong"),
    ],
)
def test_the_policy_refuses_a_gang_before_a_runner_starts(
    tmp_path: Path, rules: str, asked: dict[str, Any], found: str
) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text(rules)
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            gang = Payload(kind="gang", header={**GANG.header, **asked})
            await session.order(RUN, "prepare", "prepare", gang, lab.mediator.store)
            answer = await session.wait_for("answer", key="prepare")
            assert answer.done.kind == "refused"
            assert found in answer.done.header_json
            assert str(tmp_path) not in answer.done.header_json
            assert not lab.run_folder.exists()

    played(tmp_path, play)


def test_a_site_has_a_part_in_so_many_runs_at_most(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(settings=replace(QUICK, most_runs=1))):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            await session.order("run-2", "prepare", "prepare", GANG, lab.mediator.store)
            answer = await session.wait_for("answer", key="prepare")
            assert answer.done.kind == "refused"
            assert "a part in 1 runs already" in answer.done.header_json
            assert not lab.home.run_folder("run-2").exists()

    played(tmp_path, play)


def test_a_gang_of_any_size_is_cut_down_to_what_the_policy_allows(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("resources: {cpus: 1}")
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            await session.order(RUN, "prepare", "prepare", GANG, lab.mediator.store)
            answer = await session.wait_for("answer", key="prepare")
            assert json.loads(answer.done.header_json) == {"vnodes": 1}

    played(tmp_path, play)


@pytest.mark.parametrize("way", ["to_site", "from_site"])
def test_bytes_beyond_the_policy_do_not_cross(tmp_path: Path, way: str) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text(f"bytes_per_round: {{{way}: 250000}}")
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            store = lab.mediator.store
            await session.order(RUN, "work/1", "work", work("echo", **MODEL), store)
            assert (await session.wait_for("answer", key="work/1")).done.blob.size
            other = {"w": MODEL["w"] + 1}
            await session.order(RUN, "work/2", "work", work("echo", **other), store)
            failure = (await session.wait_for("answer", key="work/2")).failure
            error = error_of(PARIS, failure)
            assert isinstance(error, PolicyRefused)
            assert error.rule == f"bytes_per_round.{way}"

    played(tmp_path, play)


def test_the_next_agent_books_an_answer_once_in_its_round(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("bytes_per_round: {to_site: 1MB, from_site: 1MB}")
        async with running(lab.agent(policy=policy), release=False):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            await session.order(RUN, "work/1", "work", work("wait", **MODEL), lab.mediator.store)
            await session.wait_for("taken", key="work/1")
        (lab.run_folder / "go").touch()
        for _ in range(2):
            async with running(lab.agent(policy=policy), release=False):
                session = await lab.mediator.next_session()
                answer = await session.wait_for("answer", key="work/1")
                size = answer.done.blob.size
        books = json.loads(lab.home.traffic.read_text())
        assert books["rounds"][f"{RUN}/3"]["from_site"] == size, "not twice"
        assert list(books["rounds"]) == [f"{RUN}/3"]
        async with running(lab.agent(policy=policy)):
            await lab.mediator.next_session()

    played(tmp_path, play)


def test_a_key_that_is_ordered_anew_is_booked_anew(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("bytes_per_round: {to_site: 450000}")
        agent = lab.agent(policy=policy)
        async with running(agent):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            for number in range(3):
                order = work("echo", w=MODEL["w"] + number)
                await session.order(RUN, "work/1", "work", order, lab.mediator.store)
                answer = await session.wait_for("answer", key="work/1")
                await session.take(RUN, "work/1")
            error = error_of(PARIS, answer.failure)
            assert isinstance(error, PolicyRefused)
            assert error.rule == "bytes_per_round.to_site"
            traffic = agent._work._transfers._traffic
            await until(lambda: not traffic._crossings, "nothing is on its way")

    played(tmp_path, play)


def test_an_answer_that_the_mediator_wants_again_and_again_is_booked_as_often(
    tmp_path: Path,
) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("bytes_per_day: {from_site: 450000}")
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            store = lab.mediator.store
            await session.order(RUN, "work/1", "work", work("echo", **MODEL), store)
            for _ in range(3):  # at first it is there: the answer is the order's own model
                answer = await session.wait_for("answer", key="work/1")
                assert store.remove(answer.done.blob.digest), "it is there"
                await session.end()
                session = await lab.mediator.next_session()
            answer = await session.wait_for("answer", key="work/1")
            error = error_of(PARIS, answer.failure)
            assert isinstance(error, PolicyRefused)
            assert error.rule == "bytes_per_day.from_site"

    played(tmp_path, play)


@pytest.mark.parametrize(
    ("rules", "arguments", "found"),
    [
        pytest.param("", ["cluster", "list"], "commands", id="none by default"),
        pytest.param(
            "commands: read", ["cluster", "delete", "x"], "only look", id="only those that look"
        ),
        pytest.param("commands: all", ["certs", "list"], "only `fedpilot cluster`", id="no other"),
        pytest.param(
            "commands: all", ["cluster", "list", "--address=x:1"], "leave out", id="no other Ray"
        ),
        pytest.param(
            "commands: all", ["cluster", "list"], "private", id="no Ray that could be asked"
        ),
    ],
)
def test_commands_are_refused(tmp_path: Path, rules: str, arguments: list[str], found: str) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text(rules or "{}")
        async with running(lab.agent(policy=policy)):
            session = await lab.mediator.next_session()
            order = Payload(kind="command", header={"arguments": arguments})
            await session.order("", "command/1", "command", order, lab.mediator.store)
            answer = await session.wait_for("answer", key="command/1")
            assert found in answer.failure.message

    played(tmp_path, play)


def test_a_command_runs_beside_the_agent(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("commands: read")
        async with running(lab.agent(policy=policy, watch=SetRay())):
            session = await lab.mediator.next_session()
            order = Payload(kind="command", header={"arguments": ["cluster", "list", "--help"]})
            await session.order("", "command/1", "command", order, lab.mediator.store)
            answer = await session.wait_for("answer", key="command/1")
            outcome = json.loads(answer.done.header_json)
            assert outcome["exit_code"] == 0
            assert "Usage" in outcome["out"]

    played(tmp_path, play)
