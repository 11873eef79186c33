"""The agent begins a broken session anew, works on meanwhile, and brings the answers later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from agent_labs import MODEL, RUN, Lab, played, until, work
from fake_mediator import wire
from fedpilot.mediator.agent.errors import SiteDismissed
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.messages import payload_of
from site_agents import QUICK, running


def test_answers_are_sent_in_every_session_until_they_are_taken(tmp_path: Path) -> None:
    """With their blobs offered again: it may be another mediator, which knows of none."""

    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            order = work("echo", **MODEL)
            await session.order(RUN, "work/1", "work", order, lab.mediator.store)
            first = await session.wait_for("answer", key="work/1")
            for offers in (2, 3):
                await session.end()
                session = await lab.mediator.next_session()
                assert [id.key for id in session.hello.held] == ["work/1"]
                assert await session.wait_for("answer", key="work/1") == first
                assert lab.mediator.gate.offered == ["work/1"] * offers
            await session.take(RUN, "work/1")
            await until(lambda: lab.forgot("work/1"), "the runner may forget it")
            await session.end()
            session = await lab.mediator.next_session()
            assert list(session.hello.held) == []

    played(tmp_path, play)


def test_work_goes_on_while_the_link_is_cut(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with wire(lab.mediator.address) as link, running(lab.agent(link.address)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            order = work("wait", **MODEL)
            await session.order(RUN, "work/1", "work", order, lab.mediator.store)
            await session.wait_for("taken", key="work/1")
            link.cut()
            await until(lambda: lab.last() == "disconnected", "the cut is noticed")
            (lab.run_folder / "go").touch()
            link.mend()
            session = await lab.mediator.next_session()
            assert [id.key for id in session.hello.held] == ["work/1"]
            answer = await session.wait_for("answer", key="work/1")
            found = payload_of(answer.done, lab.mediator.store)
            np.testing.assert_array_equal(found.tensors["w"], MODEL["w"])
            assert lab.worked().count("work/1") == 1

    played(tmp_path, play)


def test_a_link_that_swallows_everything_is_noticed_and_left(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        quick = replace(QUICK, silent_s=1.0)
        async with (
            wire(lab.mediator.address) as link,
            running(lab.agent(link.address, settings=quick)),
        ):
            await lab.mediator.next_session()
            await until(lambda: lab.last() == "connected", "it is connected")
            link.swallows = True
            await until(lambda: lab.last() == "disconnected", "the silence is noticed")
            assert "nothing was heard of the mediator for 1 s" in lab.said[-1][1]["reason"]
            link.cut()
            link.swallows = False
            link.mend()
            await lab.mediator.next_session()

    played(tmp_path, play)


def test_a_link_that_a_model_fills_is_not_silent(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        quick = replace(QUICK, silent_s=1.0)
        big = {"w": np.random.default_rng(1).random(200_000)}
        async with (
            wire(lab.mediator.address) as link,
            running(lab.agent(link.address, settings=quick)),
        ):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            link.bytes_per_s = 1_600_000 / 3
            await session.order(RUN, "work/1", "work", work("echo", **big), lab.mediator.store)
            await session.wait_for("taken", key="work/1")
            answer = await session.wait_for("answer", key="work/1")
            assert answer.WhichOneof("result") == "done"
            assert lab.told() == ["connected"], "the session ended meanwhile"
            assert link.connections == 2, "control and data have a connection each"

    played(tmp_path, play)


def test_a_download_goes_on_where_the_link_was_cut(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        big = {"w": np.random.default_rng(1).random(500_000)}
        async with wire(lab.mediator.address) as link, running(lab.agent(link.address)):
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            link.cut_after = link.bytes + 3_000_000
            await session.order(RUN, "work/1", "work", work("wait", **big), lab.mediator.store)
            await until(lambda: not link._whole, "the link is cut in the middle")
            link.mend()
            session = await lab.mediator.next_session()
            assert [id.key for id in session.hello.held] == ["work/1"]
            await session.wait_for("taken", key="work/1")
            assert lab.mediator.offsets[0] == 0
            assert lab.mediator.offsets[-1] > 0, "what had come was fetched again"

    played(tmp_path, play)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        pytest.param(1, pb.ToSite(renewal=pb.Renewal()), id="a message that is repeated"),
        pytest.param(99, pb.ToSite(renewal=pb.Renewal()), id="messages that are left out"),
        pytest.param(2, pb.ToSite(welcome=pb.Welcome()), id="a second welcome"),
        pytest.param(2, pb.ToSite(farewell=pb.Farewell(reason="x")), id="a farewell"),
    ],
)
def test_a_session_that_cannot_go_on_is_begun_anew(
    tmp_path: Path, number: int, message: pb.ToSite
) -> None:
    async def play(lab: Lab) -> None:
        agent = lab.agent()
        async with running(agent):
            session = await lab.mediator.next_session()
            await session.wait_for("heartbeat")
            number_ = session.number + 1 if number == 2 else number
            await session.send(message, number=number_)
            await lab.mediator.next_session()
            await until(lambda: [e for e, _ in lab.said].count("connected") == 2, "it is back")

    played(tmp_path, play)


def test_a_mediator_that_says_nothing_is_given_up_and_dialled_again(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        lab.mediator.greets = False
        async with running(lab.agent(settings=replace(QUICK, welcome_s=0.3))):
            for _ in range(3):
                await lab.mediator.next_session()
            assert [event for event, _ in lab.said] == ["disconnected"]

    played(tmp_path, play)


def test_a_site_that_is_dismissed_ends_its_runners_and_itself(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent(), release=False) as agent:
            session = await lab.mediator.next_session()
            await lab.prepared(session)
            pid = lab.pid()
            farewell = pb.Farewell(reason="it was removed", final=True)
            await session.send(pb.ToSite(farewell=farewell))
            with pytest.raises(SiteDismissed, match="it was removed"):
                await agent
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"

    played(tmp_path, play)
