"""What is asked of a mediator is in its audit log before whoever asked hears of it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.errors import BadRequest
from fedpilot.mediator.identity import Authority, Role
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.connections.authorization import (
    LONGEST_REASON,
    Guard,
    TooManyCalls,
    code_of,
    refuse,
)
from fedpilot.mediator.server.settings import ServerSettings
from fedpilot.mediator.server.store import AuditEntry, Store, StoreError
from fedpilot.mediator.server.store.database import Database
from fedpilot.mediator.wire.rpc import USER

NOW = 1_800_000_000.0


def guard_of(authority: Authority, database: Database, **limits: int) -> Guard:
    return Guard(authority, database, ServerSettings(folder=Path(), **limits))  # type: ignore[arg-type]


class Call:
    """A call of somebody, which looks into the audit log when it is answered."""

    def __init__(self, certificate: str, database: Database) -> None:
        self._certificate, self._database = certificate, database
        self.audited: list[tuple[str, str, str]] = []
        self.refused: list[tuple[grpc.StatusCode, str]] = []
        self.over: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.over.append(callback)

    def end(self) -> None:
        for each in self.over:
            each(self)

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._certificate.encode()]}

    def peer(self) -> str:
        return "test"

    async def look(self) -> None:
        entries = await self._database.ask(self._database.store.audit, 10)
        self.audited = [(each.who, each.act, each.outcome) for each in entries]

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        await self.look()
        self.refused.append((code, text))
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
    async def make_token(request: Any, peer: Any) -> pb.MakeTokenReply:
        return pb.MakeTokenReply(token="t")

    async def test() -> None:
        authority = Authority.create(tmp_path / "certs", now=NOW)
        shown = authority.issue("otto", role, now=NOW, valid_s=1e9)
        database = Database(Store(f"sqlite:///{tmp_path / 'db.sqlite'}"))
        call = Call(shown.certificate, database)
        guarded = guard_of(authority, database).guarded(
            USER.methods_by_name["MakeToken"], make_token
        )
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
    async def drain(request: Any, peer: Any) -> pb.SiteReply:
        raise asyncio.CancelledError

    async def test() -> None:
        authority = Authority.create(tmp_path / "certs", now=NOW)
        shown = authority.issue("otto", Role.ADMIN, now=NOW, valid_s=1e9)
        database = Database(Store(f"sqlite:///{tmp_path / 'db.sqlite'}"))
        call = Call(shown.certificate, database)
        guarded = guard_of(authority, database).guarded(USER.methods_by_name["ChangeSite"], drain)
        asked = pb.ChangeSiteRequest(site="paris", change="drain").SerializeToString()
        with pytest.raises(asyncio.CancelledError):
            await guarded(asked, call)
        await call.look()
        database.close()
        assert call.audited == [("otto", "hold_site", "the caller left meanwhile")]

    asyncio.run(test())


def test_an_act_is_on_disk_before_its_caller_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, heard = threading.Event(), []

    async def make_token(request: Any, peer: Any) -> pb.MakeTokenReply:
        return pb.MakeTokenReply(token="t")

    def slowly(store: Store, entry: AuditEntry) -> None:
        assert may_write.wait(60)
        heard.append("written")

    async def test() -> None:
        authority = Authority.create(tmp_path / "certs", now=NOW)
        shown = authority.issue("otto", Role.ADMIN, now=NOW, valid_s=1e9)
        database = Database(Store(f"sqlite:///{tmp_path / 'db.sqlite'}"))
        monkeypatch.setattr(Store, "record_audit", slowly)
        guarded = guard_of(authority, database).guarded(
            USER.methods_by_name["MakeToken"], make_token
        )
        asked = pb.MakeTokenRequest(site="paris").SerializeToString()
        call = asyncio.create_task(guarded(asked, Call(shown.certificate, database)))
        call.add_done_callback(lambda _: heard.append("answered"))
        await asyncio.sleep(0.05)
        assert not call.done()
        may_write.set()
        await call
        database.close()

    asyncio.run(test())
    assert heard == ["written", "answered"]


def test_an_act_whose_caller_leaves_as_it_is_written_down_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, writing = threading.Event(), asyncio.Event()
    record = Database.ask

    async def make_token(request: Any, peer: Any) -> pb.MakeTokenReply:
        return pb.MakeTokenReply(token="t")

    async def slowly(database: Database, act: Any, *args: Any) -> Any:
        if act.__name__ == "record_audit":
            writing.set()
            await asyncio.to_thread(may_write.wait, 60)
        return await record(database, act, *args)

    async def test() -> None:
        authority = Authority.create(tmp_path / "certs", now=NOW)
        shown = authority.issue("otto", Role.ADMIN, now=NOW, valid_s=1e9)
        database = Database(Store(f"sqlite:///{tmp_path / 'db.sqlite'}"))
        monkeypatch.setattr(Database, "ask", slowly)
        call = Call(shown.certificate, database)
        guarded = guard_of(authority, database).guarded(
            USER.methods_by_name["MakeToken"], make_token
        )
        asked = pb.MakeTokenRequest(site="paris", valid_s=60).SerializeToString()
        calling = asyncio.create_task(guarded(asked, call))
        await writing.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        may_write.set()
        while not call.audited:
            await call.look()
        database.close()
        assert call.audited == [("otto", "make_token", "done")]

    asyncio.run(test())


def test_a_long_refusal_is_shortened_in_the_audit(tmp_path: Path) -> None:
    async def make_token(request: Any, peer: Any) -> pb.MakeTokenReply:
        raise BadRequest("x" * (2 * LONGEST_REASON))

    async def test() -> None:
        authority = Authority.create(tmp_path / "certs", now=NOW)
        shown = authority.issue("otto", Role.ADMIN, now=NOW, valid_s=1e9)
        database = Database(Store(f"sqlite:///{tmp_path / 'db.sqlite'}"))
        call = Call(shown.certificate, database)
        guarded = guard_of(authority, database).guarded(
            USER.methods_by_name["MakeToken"], make_token
        )
        with pytest.raises(grpc.aio.AbortError):
            await guarded(pb.MakeTokenRequest(site="paris").SerializeToString(), call)
        database.close()
        ((_, _, outcome),) = call.audited
        assert outcome == "x" * LONGEST_REASON

    asyncio.run(test())


def test_a_stream_ends_when_its_caller_is_revoked(tmp_path: Path) -> None:
    """Whoever has followed a run for a day is looked at again with every event."""

    async def follow(request: Any, peer: Any) -> AsyncIterator[int]:
        yield 1
        yield 2
        yield 3

    async def test() -> None:
        authority = Authority.create(tmp_path / "certs", now=NOW)
        shown = authority.issue("otto", Role.OPERATOR, now=NOW, valid_s=1e9)
        database = Database(Store(f"sqlite:///{tmp_path / 'db.sqlite'}"))
        call = Call(shown.certificate, database)
        guarded = guard_of(authority, database).guarded(USER.methods_by_name["FollowRun"], follow)
        seen = []
        with contextlib.suppress(grpc.aio.AbortError):
            async for each in guarded(pb.FollowRequest(run="r").SerializeToString(), call):
                seen.append(each)
                authority.revoke("otto", now=time.time())
        database.close()
        assert seen == [1]
        ((code, text),) = call.refused
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "revoked" in text

    asyncio.run(test())


def test_what_cannot_be_audited_is_not_said_to_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make_token(request: Any, peer: Any) -> pb.MakeTokenReply:
        return pb.MakeTokenReply(token="t")

    def fails(store: Store, entry: AuditEntry) -> None:
        raise StoreError("the disk is full")

    async def test() -> None:
        authority = Authority.create(tmp_path / "certs", now=NOW)
        shown = authority.issue("otto", Role.ADMIN, now=NOW, valid_s=1e9)
        database = Database(Store(f"sqlite:///{tmp_path / 'db.sqlite'}"))
        monkeypatch.setattr(Store, "record_audit", fails)
        guarded = guard_of(authority, database).guarded(
            USER.methods_by_name["MakeToken"], make_token
        )
        call = Call(shown.certificate, database)
        with pytest.raises(grpc.aio.AbortError):
            await guarded(pb.MakeTokenRequest(site="paris").SerializeToString(), call)
        database.close()
        assert call.refused == [(grpc.StatusCode.INTERNAL, "the disk is full")]

    asyncio.run(test())


def test_nobody_has_more_calls_open_than_one_may_have(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "certs", now=NOW)
    database = Database(Store(f"sqlite:///{tmp_path / 'db.sqlite'}"))
    guard = guard_of(authority, database, site_calls=2, user_calls=3)

    def call(name: str, role: Role) -> Call:
        made = Call(authority.issue(name, role, now=NOW, valid_s=1e9).certificate, database)
        guard.peer(made)
        return made

    first, _ = [call("paris", Role.SITE) for _ in range(2)]
    with pytest.raises(TooManyCalls, match="site paris has 2 open") as refused:
        call("paris", Role.SITE)  # whichever of its certificates it shows
    assert code_of(refused.value) is grpc.StatusCode.UNAVAILABLE
    call("rome", Role.SITE)
    assert [call("paris", Role.ADMIN) for _ in range(3)]
    first.end()
    call("paris", Role.SITE)
    database.close()


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
