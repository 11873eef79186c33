"""A mediator admits certificates that count, each to what its role may do."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.identity import Credentials, Role, new_request
from fedpilot.mediator.identity.tls import joining_credentials
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.messages import PROTOCOL
from fedpilot.mediator.wire.rpc import SITE, USER, Stub
from mediators import Here, channel_to, eventually, mediating, refused, run
from site_conversations import conversation, hello

Code = grpc.StatusCode


def test_roles_are_kept_apart(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            for role in (Role.ADMIN, Role.OPERATOR, Role.VIEWER):
                async with channel_to(here.address, here.keys("paris", role)) as channel:
                    _, code, _ = await conversation(channel, hello())
                    assert code is Code.PERMISSION_DENIED, role
            submit = pb.SubmitRequest(protocol=PROTOCOL, run="r", config_yaml="{}", name="n")
            mint = pb.MakeTokenRequest(site="x", valid_s=60)
            async with here.user("vera", Role.VIEWER) as viewer:
                assert (await refused(viewer.submit(submit)))[0] is Code.PERMISSION_DENIED
                await viewer.list_sites(pb.ListSitesRequest())
            async with here.user("otto", Role.OPERATOR) as operator:
                code, text = await refused(operator.make_token(mint))
                assert code is Code.PERMISSION_DENIED
                assert "needs the role admin, and otto has the role operator" in text
            async with channel_to(here.address, here.keys("rome")) as channel:
                site = Stub(channel, USER)
                assert (await refused(site.list_sites(pb.ListSitesRequest())))[0] is (
                    Code.PERMISSION_DENIED
                )
            entries = (await here.admin.list_audit(pb.ListAuditRequest())).entry_json
            found = [json.loads(each) for each in entries]
            assert [(e["who"], e["act"], e["outcome"] == "done") for e in found] == [
                ("vera", "submit", False),
                ("otto", "make_token", False),
            ]

    run(test())


def test_only_certificates_that_count_are_admitted(tmp_path: Path) -> None:
    async def sites(address: str, credentials: Any) -> Any:
        async with channel_to(address, credentials) as channel:
            return await Stub(channel, USER).list_sites(pb.ListSitesRequest(), timeout=60)

    async def test() -> None:
        async with mediating(tmp_path / "m") as here, mediating(tmp_path / "n") as there:
            stranger = there.keys("admin", Role.ADMIN)
            assert (await refused(sites(here.address, stranger)))[0] is Code.UNAVAILABLE
            expired = here.keys("old", Role.ADMIN, now=time.time() - 200.0, valid_s=50.0)
            assert (await refused(sites(here.address, expired)))[0] is Code.UNAVAILABLE
            revoked = here.keys("gone", Role.ADMIN)
            await sites(here.address, revoked)
            here.keys.authority.revoke("gone", now=time.time())
            code, text = await refused(sites(here.address, revoked))
            assert (code, "was revoked" in text) == (Code.UNAUTHENTICATED, True)
            bare = joining_credentials(here.keys.authority.certificate)
            async with grpc.aio.secure_channel(here.address, bare) as channel:
                call = Stub(channel, USER).list_sites(pb.ListSitesRequest(), timeout=60)
                assert (await refused(call))[0] is Code.UNAVAILABLE

    run(test())


def test_revoking_a_sites_certificate_ends_its_session(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            here.agent("paris") as agent,
            here.agent("rome") as other,
        ):
            await here.state("paris", "ready")
            reply = await here.admin.revoke_certificate(pb.RevokeRequest(which="paris"))
            assert len(reply.serials) == 1
            await eventually(lambda: agent.farewells and agent.farewells[-1].final)
            await eventually(other.welcomed.is_set)
            here.keys.authority.revoke("rome", now=time.time())  # as `fedpilot certs` would
            await eventually(lambda: other.farewells and other.farewells[-1].final)

    run(test())


def test_a_site_renews_its_own_certificate_and_nobody_elses(tmp_path: Path) -> None:
    async def renew(here: Here, who: Credentials, request: str) -> str:
        asked = pb.RenewRequest(protocol=PROTOCOL, certificate_request=request)
        async with channel_to(here.address, who) as channel:
            return str((await Stub(channel, SITE).renew(asked, timeout=60)).certificate)

    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            old = here.keys("paris", now=time.time() - 700.0, valid_s=1_000.0)
            new = old.renewed(await renew(here, old, old.request()))
            assert new.identity.name == "paris"
            async with here.agent("paris", credentials=old):  # which is still good
                await here.state("paris", "ready")
            async with here.agent("paris", credentials=new):
                await here.state("paris", "ready")
            _, request = new_request("rome")  # what a request claims is not looked at
            made = await renew(here, new, request)
            serials = {each.serial: each.name for each in here.keys.authority.issued()}
            assert list(serials.values()).count("rome") == 0
            assert "BEGIN CERTIFICATE" in made
            code, text = await refused(renew(here, here.keys("a", Role.ADMIN), request))
            assert (code, "needs the role site" in text) == (Code.PERMISSION_DENIED, True)
            code, _ = await refused(renew(here, new, "no request"))
            assert code is Code.INVALID_ARGUMENT
            entries = (await here.admin.list_audit(pb.ListAuditRequest())).entry_json
            acts = [(each["who"], each["act"]) for each in map(json.loads, entries)]
            assert acts == [("paris", "renew"), ("paris", "renew"), ("a", "renew")]
            assert new.identity.serial in json.loads(entries[0])["what"]
            said = [each["event"] for each in await here.events() if "expires_at" in each]
            assert said == ["site_renewed", "site_renewed"]

    run(test())


def test_a_session_whose_certificate_ran_out_ends_but_not_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            hour = here.keys("paris", valid_s=3_600.0)
            async with here.agent("paris", credentials=hour) as agent:
                await here.state("paris", "ready")
                later = SimpleNamespace(time=lambda: time.time() + 3_600.0)
                for module in ("authorization", "sessions"):
                    monkeypatch.setattr(
                        f"fedpilot.mediator.server.connections.{module}.time", later
                    )
                await eventually(lambda: agent.farewells)
                farewell = agent.farewells[0]
                assert "ended on" in farewell.reason
                assert "fedpilot site token paris" in farewell.reason
                assert not farewell.final

    run(test())
