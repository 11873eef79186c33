"""What a user asks of a mediator besides runs: commands at sites, events, the audit log."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.identity.acts import LocalAct, record
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.rpc import Stub
from mediators import eventually, mediating, refused, run

Code = grpc.StatusCode


def test_a_command_runs_beside_a_sites_agent(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.state("paris", "ready")
            request = pb.RunAtSiteRequest(site="paris", arguments=["cluster", "list", "--json"])
            reply = await here.admin.run_at_site(request)
            assert (reply.exit_code, reply.out) == (0, "cluster list --json")
            await eventually(lambda: agent.taken)
            assert agent.held == []
            unknown = pb.RunAtSiteRequest(site="oslo", arguments=["cluster", "list"])
            assert (await refused(here.admin.run_at_site(unknown)))[0] is Code.NOT_FOUND
            agent.silent = True
            await here.state("paris", "lost")
            code, text = await refused(here.admin.run_at_site(request))
            assert code is Code.UNAVAILABLE
            assert text.startswith("site paris ")

    run(test())


async def follow(stub: Stub, **request: Any) -> AsyncIterator[Any]:
    async for each in stub.follow_events(pb.FollowRequest(**request)):
        yield json.loads(each.event_json)


def test_events_are_followed_as_they_happen(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            stream = follow(here.admin, follow=True)
            async with here.agent("paris"):
                first = await asyncio.wait_for(anext(stream), 60)
                second = await asyncio.wait_for(anext(stream), 60)
            assert [first["event"], second["event"]] == ["site_joining", "site_ready"]

    run(test())


@pytest.mark.parametrize("after", [2**63 - 1, 2**63, 2**64 - 1])
def test_no_event_is_beyond_the_largest_number(after: int, tmp_path: Path) -> None:
    """A database's integers end before those of a message."""

    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris"):
            assert [each async for each in follow(here.admin, after=after)] == []

    run(test())


def test_what_was_done_by_hand_is_in_the_audit_log_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            cordon = pb.ChangeSiteRequest(site="nowhere", change="cordon")
            await refused(here.admin.change_site(cordon))
            act = {"what": "which=alice", "outcome": "done", "who": "root", "act": "certs revoke"}
            for at in (1.0, time.time()):
                record(here.folder / "certs", LocalAct(at=at, **act))
            reply = await here.admin.list_audit(pb.ListAuditRequest())
            told = [json.loads(each) for each in reply.entry_json]
            assert [each["act"] for each in told] == ["certs revoke", "hold_site", "certs revoke"]
            assert told[0] == {"at": 1.0, "role": "account", **act}
            (last,) = (await here.admin.list_audit(pb.ListAuditRequest(last=1))).entry_json
            assert json.loads(last)["who"] == "root"

    run(test())
