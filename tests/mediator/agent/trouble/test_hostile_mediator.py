"""A mediator that says what none may say starts nothing at a site, and ends nothing there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from agent_labs import GANG, RUN, Lab, played, until
from fedpilot.mediator.proto import federation_pb2 as pb
from site_agents import running


def hostile() -> dict[str, pb.ToSite]:
    """What no mediator says."""

    def order(run: str, key: str = "work/1", verb: str = "prepare", **more: Any) -> pb.ToSite:
        header = json.dumps(GANG.header)
        id = pb.OrderId(run=run, key=key)
        return pb.ToSite(order=pb.Order(id=id, verb=verb, header_json=header, **more))

    return {
        "a path in a run's name": order("../../etc"),
        "an absolute path as a run": order("/tmp/run"),
        "a hidden run": order(".ssh"),
        "a run's name with a NUL": order("run\0x"),
        "a run without a name": order(""),
        "a key with a line break": order(RUN, key="work\n1"),
        "a verb that there is not": order(RUN, verb="explode"),
        "a command in a run's name": order(RUN, verb="command"),
        "a digest that is a path": order(RUN, blob=pb.Blob(digest="../" * 21 + "x", size=3)),
        "a header that is no JSON": pb.ToSite(
            order=pb.Order(id=pb.OrderId(run=RUN, key="k"), verb="prepare", header_json="{")
        ),
        "a gang of nonsense": pb.ToSite(
            order=pb.Order(
                id=pb.OrderId(run=RUN, key="k"),
                verb="prepare",
                header_json=json.dumps({**GANG.header, "policy": "x", "workers": "y"}),
            )
        ),
        "a gang of fewer than none": pb.ToSite(
            order=pb.Order(
                id=pb.OrderId(run=RUN, key="k"),
                verb="prepare",
                header_json=json.dumps({**GANG.header, "workers": -3}),
            )
        ),
        "the answer of an order that was never given": pb.ToSite(
            answer_taken=pb.AnswerTaken(id=pb.OrderId(run="../x", key="y"))
        ),
        "leases of runs that are not here": pb.ToSite(renewal=pb.Renewal(runs=["../x", "y"])),
    }


def test_hostile_messages_start_nothing_and_end_nothing(tmp_path: Path) -> None:
    async def play(lab: Lab) -> None:
        async with running(lab.agent()):
            session = await lab.mediator.next_session()
            for name, message in hostile().items():
                await session.send(message)
                await session.wait_for("heartbeat")
                await session.wait_for("heartbeat")
                assert list(lab.home.runs.iterdir()) == [], name
                assert [p.name for p in lab.home.blobs.iterdir()] == [], name
            await lab.prepared(session)

    played(tmp_path, play)


@pytest.mark.parametrize("lease_s", [0.0, 3_601.0, math.inf, math.nan])
def test_a_lease_without_an_end_is_none(tmp_path: Path, lease_s: float) -> None:
    async def play(lab: Lab) -> None:
        lab.mediator.lease_s = lease_s
        async with running(lab.agent()):
            await until(lambda: lab.last() == "disconnected", "the session is broken off")
            assert "a lease of" in lab.said[-1][1]["reason"]

    played(tmp_path, play)
