"""A site that asks for what admins may is in the audit log; what sites do all the time is not."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.message import Message

from fedpilot.mediator.identity import Authority, Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.connections.authorization import Guard
from fedpilot.mediator.server.settings import ServerSettings
from fedpilot.mediator.server.store import Store
from fedpilot.mediator.server.store.database import Database
from fedpilot.mediator.wire.rpc import SITE, USER


class Call:
    """A call of a site."""

    def __init__(self, certificate: str) -> None:
        self._certificate = certificate

    def add_done_callback(self, callback: Any) -> None: ...

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._certificate.encode()]}

    def peer(self) -> str:
        return "test"

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise grpc.aio.AbortError


REMOVE = pb.ChangeSiteRequest(site="rome", change="remove")


@pytest.mark.parametrize(
    ("service", "method", "asked", "audited"),
    [
        pytest.param(USER, "ChangeSite", REMOVE, ["change_site"], id="what admins may"),
        pytest.param(USER, "Submit", pb.SubmitRequest(run="a"), ["submit"], id="what users may"),
        pytest.param(USER, "ShowRun", pb.RunRequest(run="a"), [], id="what changes nothing"),
        pytest.param(USER, "ChangeSite", b"\xff", [], id="no request"),
        pytest.param(SITE, "Offer", pb.OfferRequest(), [], id="what sites may"),
    ],
)
def test_what_a_site_asks(
    tmp_path: Path, service: Any, method: str, asked: Message | bytes, audited: list[str]
) -> None:
    async def act(request: Any, peer: Any) -> Message:
        return pb.OfferReply()

    async def test() -> list[tuple[str, Role, str]]:
        authority = Authority.create(tmp_path / "certs", now=time.time())
        shown = authority.issue("paris", Role.SITE, now=time.time())
        database = Database(Store(f"sqlite:///{tmp_path / 'db.sqlite'}"))
        guard = Guard(authority, database, ServerSettings(folder=tmp_path))
        data = asked if isinstance(asked, bytes) else asked.SerializeToString()
        with suppress(grpc.aio.AbortError):
            await guard.guarded(service.methods_by_name[method], act)(data, Call(shown.certificate))
        entries = await database.ask(database.store.audit, 9)
        database.close()
        return [(each.who, each.role, each.act) for each in entries]

    assert asyncio.run(test()) == [("paris", Role.SITE, act) for act in audited]
