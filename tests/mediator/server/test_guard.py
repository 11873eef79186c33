"""What is asked of a mediator is in its audit log before whoever asked hears of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.errors import BadRequest
from fedpilot.mediator.identity import Authority, Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.rpc import USER
from fedpilot.mediator.server.database import Database
from fedpilot.mediator.server.guard import Guard, refuse
from fedpilot.mediator.store import Store

NOW = 1_800_000_000.0


class Call:
    """A call of somebody, which looks into the audit log when it is answered."""

    def __init__(self, certificate: str, database: Database) -> None:
        self._certificate, self._database = certificate, database
        self.audited: list[tuple[str, str, str]] = []

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._certificate.encode()]}

    def peer(self) -> str:
        return "test"

    async def look(self) -> None:
        entries = await self._database.ask(self._database.store.audit, 10)
        self.audited = [(each.who, each.act, each.outcome) for each in entries]

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        await self.look()
        raise grpc.aio.AbortError


@pytest.mark.parametrize(
    ("role", "outcome"),
    [
        pytest.param(Role.ADMIN, "done", id="what is done"),
        pytest.param(Role.OPERATOR, "make_token needs the role admin, ", id="what is refused"),
    ],
)
def test_an_act_is_audited_before_its_caller_hears_of_it(
    tmp_path: Path, role: Role, outcome: str
) -> None:
    async def make_token(request: Any, context: Call, peer: Any) -> pb.MakeTokenReply:
        return pb.MakeTokenReply(token="t")

    async def test() -> None:
        authority = Authority.create(tmp_path / "certs", now=NOW)
        shown = authority.issue("otto", role, now=NOW, valid_s=1e9)
        database = Database(Store(f"sqlite:///{tmp_path / 'db.sqlite'}"))
        call = Call(shown.certificate, database)
        guarded = Guard(authority, database).guarded(USER.methods_by_name["MakeToken"], make_token)
        asked = pb.MakeTokenRequest(site="paris", valid_s=60).SerializeToString()
        try:
            await guarded(asked, call)
            await call.look()
        except grpc.aio.AbortError:
            pass
        finally:
            database.close()
        ((who, act, found),) = call.audited
        assert (who, act) == ("otto", "make_token")
        assert found.startswith(outcome)

    asyncio.run(test())


def test_an_act_whose_caller_has_left_is_audited(tmp_path: Path) -> None:
    async def drain(request: Any, context: Call, peer: Any) -> pb.SiteReply:
        raise asyncio.CancelledError

    async def test() -> None:
        authority = Authority.create(tmp_path / "certs", now=NOW)
        shown = authority.issue("otto", Role.ADMIN, now=NOW, valid_s=1e9)
        database = Database(Store(f"sqlite:///{tmp_path / 'db.sqlite'}"))
        call = Call(shown.certificate, database)
        guarded = Guard(authority, database).guarded(USER.methods_by_name["ChangeSite"], drain)
        asked = pb.ChangeSiteRequest(site="paris", change="drain").SerializeToString()
        with pytest.raises(asyncio.CancelledError):
            await guarded(asked, call)
        await call.look()
        database.close()
        assert call.audited == [("otto", "hold_site", "the caller left meanwhile")]

    asyncio.run(test())


class LeftMeanwhile:
    """The context of a call whose caller leaves as it is refused."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise grpc.aio.InternalError(f"{code.name} could not be sent: {text}")


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(BadRequest("no name"), id="what was asked"),
        pytest.param(KeyError("k"), id="a defect"),
    ],
)
def test_a_refusal_that_nobody_hears_is_a_canceled_call(error: Exception) -> None:
    """Which gRPC says nothing about, where it would log every line of any other error."""
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(refuse(LeftMeanwhile(), "session", error, None))
