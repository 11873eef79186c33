"""A site joins with a token that is its own, is good now, and was never used."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.identity import Credentials, Role, Token, new_request
from fedpilot.mediator.identity.tls import joining_credentials
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.messages import PROTOCOL
from fedpilot.mediator.wire.rpc import JOIN, Stub
from mediators import Here, mediating, refused, run

Code = grpc.StatusCode


async def join(token: Token, site: str, **changes: Any) -> Credentials:
    key, request = new_request(site)
    asked = pb.JoinRequest(
        **{
            "protocol": PROTOCOL,
            "site": site,
            "token": token.secret,
            "certificate_request": request,
            **changes,
        }
    )
    credentials = joining_credentials(token.authority)
    async with grpc.aio.secure_channel(token.address, credentials) as channel:
        reply = await Stub(channel, JOIN).join(asked)
    return Credentials.checked(reply.authority, reply.certificate, key)


async def token(here: Here, site: str, valid_s: float = 60.0) -> Token:
    reply = await here.admin.make_token(pb.MakeTokenRequest(site=site, valid_s=valid_s))
    return Token.parse(reply.token)


def test_a_site_joins_with_a_token_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            invitation = await token(here, "paris")
            assert invitation.site == "paris"
            credentials = await join(invitation, "paris")
            assert (credentials.identity.name, credentials.identity.role) == ("paris", Role.SITE)
            async with here.agent("paris", credentials=credentials):
                await here.state("paris", "ready")
            code, text = await refused(join(invitation, "paris"))
            assert code is Code.PERMISSION_DENIED
            assert "used already" in text

    run(test())


def test_a_token_is_good_for_its_site_in_its_time_and_for_a_right_request(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            invitation = await token(here, "paris")
            assert (await refused(join(invitation, "rome")))[0] is Code.PERMISSION_DENIED
            code, text = await refused(join(invitation, "paris", certificate_request="x"))
            assert code is Code.INVALID_ARGUMENT
            code, text = await refused(join(invitation, "paris", protocol=99))
            assert code is Code.FAILED_PRECONDITION
            assert "speaks 99" in text
            assert (await join(invitation, "paris")).identity.name == "paris"  # it is not used up
            late = await token(here, "late", valid_s=1.0)
            await asyncio.sleep(1.1)
            code, text = await refused(join(late, "late"))
            assert (code, "ended" in text) == (Code.PERMISSION_DENIED, True)

    run(test())


@pytest.mark.parametrize(
    "how",
    ["removed", "removed once all was revoked", "revoked", "revoked without the mediator"],
)
def test_a_token_of_before_a_site_was_shut_out_lets_nobody_in(tmp_path: Path, how: str) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            before = await token(here, "paris")
            await join(await token(here, "paris"), "paris")
            async with here.agent("paris"):
                await here.state("paris", "ready")
                match how:
                    case "removed" | "removed once all was revoked":
                        if how != "removed":
                            here.keys.authority.revoke("paris", now=time.time())
                            before = await token(here, "paris")
                        request = pb.ChangeSiteRequest(site="paris", change="remove")
                        await here.admin.change_site(request)
                    case "revoked":
                        await here.admin.revoke_certificate(pb.RevokeRequest(which="paris"))
                    case _:
                        here.keys.authority.revoke("paris", now=time.time())
            code, text = await refused(join(before, "paris"))
            assert code is Code.PERMISSION_DENIED
            assert "`fedpilot site token` makes a new one" in text
            assert (await join(await token(here, "paris"), "paris")).identity.name == "paris"

    run(test())
