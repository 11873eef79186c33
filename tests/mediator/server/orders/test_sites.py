"""Sites at a real mediator: joining, health, identity, numbers. Mutual TLS on loopback."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from fake_agents import FakeAgent
from fake_mediator import wire
from fedpilot.mediator.core.health import HealthSettings
from fedpilot.mediator.identity import Credentials, Role, Token, new_request
from fedpilot.mediator.identity.acts import LocalAct, record
from fedpilot.mediator.identity.tls import joining_credentials
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.store import SiteRecord, Store, StoreError
from fedpilot.mediator.wire.messages import PROTOCOL, Capacity
from fedpilot.mediator.wire.rpc import JOIN, SITE, USER, Stub
from fedpilot.mediator.workload import Payload
from mediators import QUICK, Here, channel_to, eventually, mediating

Code = grpc.StatusCode


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a call is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


# -- joining --------------------------------------------------------------------------------------


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


# -- health ---------------------------------------------------------------------------------------


def test_a_site_falls_silent_is_lost_and_comes_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.state("paris", "ready")
            agent.silent = True
            await here.state("paris", "suspect")
            agent.silent = False
            await here.state("paris", "ready")
            agent.silent = True
            await here.state("paris", "lost")
            agent.silent = False
            await here.state("paris", "ready")
            states = [each["state"] for each in await here.events() if each.get("site")]
            assert states == [
                "joining",
                "ready",
                "suspect",
                "ready",
                "suspect",
                "lost",
                "joining",
                "ready",
            ]

    run(test())


def test_a_site_whose_link_its_answer_fills_is_there(tmp_path: Path) -> None:
    health = HealthSettings(heartbeat_s=0.2, silent_after_s=1.0, grace_s=1.0, stabilization_s=0.5)

    async def another_model(order: pb.Order, payload: Payload) -> Payload:
        return Payload(kind="done", tensors={"x": payload.tensors["x"] + np.float32(1)})

    async def test() -> None:
        async with (
            mediating(tmp_path / "m", health=health, piece_bytes=1 << 15) as here,
            wire(here.address) as link,
        ):
            paris = here.agent("paris", work=another_model)
            paris.address = link.address
            paris.blobs_only = True  # no heartbeat gets through while an answer is brought
            async with paris:
                await here.state("paris", "ready")
                link.bytes_per_s = 200_000
                order = {"site": "paris", "key": "work/1", "numbers": 200_000}
                await here.submit("run", [order])
                assert (await here.ended("run", 60))["status"] == "finished"
            (answer,) = [each for each in here.seen("run") if each["what"] == "answer"]
            assert answer["sum"] == pytest.approx(sum(range(1, 200_001)))
            states = [each["state"] for each in await here.events() if each.get("site")]
            assert "lost" not in states

    run(test())


def test_a_site_whose_ray_is_in_trouble_is_lost_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.state("paris", "ready")
            agent.trouble = "the head does not\nanswer \x1b[31m"
            found = await here.state("paris", "lost")
            assert found["reason"] == "the head does not answer ?[31m"
            agent.trouble = ""
            await here.state("paris", "ready")

    run(test())


def test_time_in_which_the_mediator_stood_still_is_nobodys_silence(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris"):
            await here.state("paris", "ready")
            time.sleep(QUICK.silent_after_s + QUICK.grace_s + 0.5)  # holds up the event loop
            await asyncio.sleep(QUICK.silent_after_s / 2)
            assert [each["state"] for each in await here.events()] == ["joining", "ready"]

    run(test())


def test_what_an_admin_wishes_outlives_silence_and_the_mediator(tmp_path: Path) -> None:
    async def change(here: Here, what: str) -> Any:
        request = pb.ChangeSiteRequest(site="paris", change=what)
        return json.loads((await here.admin.change_site(request)).site_json)

    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.state("paris", "ready")
            assert (await change(here, "cordon"))["state"] == "cordoned"
            agent.silent = True
            await here.state("paris", "lost")
            agent.silent = False
            await here.state("paris", "cordoned")
            assert agent.welcomed.is_set()
        async with mediating(tmp_path / "m") as here:
            await here.state("paris", "suspect")
            async with here.agent("paris"):
                found = await here.state("paris", "cordoned")
                assert found["wish"] == "cordoned"
                assert (await change(here, "uncordon"))["state"] == "ready"
                assert (await change(here, "drain"))["state"] in ("draining", "cordoned")
                await here.state("paris", "cordoned")
            code, _text = await refused(change(here, "explode"))
            assert code is Code.INVALID_ARGUMENT

    run(test())


@pytest.mark.parametrize("change", ["cordon", "drain", "remove"])
def test_what_an_admin_wishes_is_on_disk_before_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris"):
            await here.state("paris", "ready")

            def fails(store: Store, site: SiteRecord) -> None:
                raise StoreError("the disk is full")

            monkeypatch.setattr(Store, "put_site", fails)
            asked = pb.ChangeSiteRequest(site="paris", change=change)
            code, text = await refused(here.admin.change_site(asked))
            assert (code, text) == (Code.INTERNAL, "the disk is full")

    run(test())


def test_a_removed_site_must_join_anew(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as agent:
            await here.state("paris", "ready")
            await here.admin.change_site(pb.ChangeSiteRequest(site="paris", change="remove"))
            await eventually(lambda: agent.farewells and agent.farewells[-1].final)
            assert await here.sites() == {}
            code, text = await refused(_fetch(agent))
            assert code is Code.UNAUTHENTICATED
            assert "was revoked" in text
            async with here.agent("paris"):
                await here.state("paris", "ready")

    run(test())


def test_what_a_site_has_is_shown(tmp_path: Path) -> None:
    async def test() -> None:
        data = json.dumps({"digits": {"clients": 7}})
        async with mediating(tmp_path / "m") as here, here.agent("paris", data_json=data) as agent:
            agent.capacity = Capacity(total={"CPU": 8.0}, free={"CPU": 2.5}, machines=3)
            await here.state("paris", "ready")
            found = await _shown(here, lambda site: site["capacity"]["machines"] == 3)
            assert found["capacity"]["free"] == {"CPU": 2.5}
            assert "data" not in found
            reply = await here.admin.list_sites(pb.ListSitesRequest(site="paris"))
            (shown,) = map(json.loads, reply.site_json)
            assert shown["data"] == {"digits": {"clients": 7}}
            unknown = await here.admin.list_sites(pb.ListSitesRequest(site="rome"))
            assert list(unknown.site_json) == []
            assert found["bytes"]["from_site"] > 0

    run(test())


async def _shown(here: Here, right: Any) -> Any:
    deadline = time.monotonic() + 10
    while not right(found := (await here.sites())["paris"]):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.02)
    return found


# -- sessions -------------------------------------------------------------------------------------


def test_the_newest_session_of_a_site_ends_the_one_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris") as first:
            await eventually(first.welcomed.is_set)
            async with here.agent("paris") as second:
                await eventually(second.welcomed.is_set)
                await eventually(lambda: first.farewells)
                assert first.farewells[-1].final
                assert "another agent" in first.farewells[-1].reason
                await here.state("paris", "ready")

    run(test())


@pytest.mark.parametrize("protocol", [0, 99])
def test_another_protocol_is_refused_by_name(tmp_path: Path, protocol: int) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("p", protocol=protocol) as agent:
            farewell = await eventually(lambda: agent.farewells and agent.farewells[-1])
            assert farewell.final
            assert f"this mediator speaks protocol 1, site p speaks {protocol}" in farewell.reason

    run(test())


TOO_LATE = "Internal error from Core"
"""What gRPC says of a write that came after the end of its call, in the place of why that ended."""


async def conversation(
    channel: grpc.aio.Channel, *messages: pb.FromSite
) -> tuple[list[pb.ToSite], grpc.StatusCode, str]:
    """What a site hears that says these things, and how it ends."""
    while True:
        call = Stub(channel, SITE).session()
        heard = []
        try:
            for message in messages:
                await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # refused before all was said
        try:
            while (answer := await asyncio.wait_for(call.read(), 60)) is not grpc.aio.EOF:
                heard.append(answer)
        except grpc.aio.AioRpcError:
            pass
        if (details := str(await call.details())) != TOO_LATE:
            return heard, await call.code(), details


def hello(site: str = "paris", **changes: Any) -> pb.FromSite:
    return pb.FromSite(
        number=1, hello=pb.Hello(**{"protocol": PROTOCOL, "site": site, "agent": "a", **changes})
    )


def beat(number: int) -> pb.FromSite:
    return pb.FromSite(number=number, heartbeat=pb.Heartbeat())


BROKEN = {
    "a replayed number": ([hello(), beat(2), beat(2)], "repeats an earlier message"),
    "a number left out": ([hello(), beat(3)], "leaves messages out"),
    "no hello first": ([beat(1)], "begins with a hello"),
    "two hellos": ([hello(), pb.FromSite(number=2, hello=pb.Hello())], "one hello"),
    "another site's name": ([hello("rome")], "does not speak for site rome"),
    "a path for a name": ([hello("../x")], "a site's name is"),
    "data that is no JSON": ([hello(data_json="{")], "no JSON"),
    "data that is a list": ([hello(data_json="[]")], "no JSON object"),
    "an agent's id of many lines": ([hello(agent="a\nb")], "plain text"),
    "a capacity that is none": (
        [hello(capacity=pb.Capacity(total={"CPU": float("nan")}))],
        "is none",
    ),
    "held orders with impossible keys": (
        [hello(held=[pb.OrderId(run="r", key="../..\n")])],
        "an order's key",
    ),
    "an answer with an impossible blob": (
        [
            hello(),
            pb.FromSite(
                number=2,
                answer=pb.Answer(
                    id=pb.OrderId(run="r", key="k"), done=pb.Done(blob=pb.Blob(digest="/etc"))
                ),
            ),
        ],
        "a blob's digest",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_session_that_says_the_impossible_ends(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages, problem = BROKEN[case]

    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            async with channel_to(here.address, here.keys("paris")) as channel:
                heard, code, text = await conversation(channel, *messages)
                assert code is not Code.OK
                assert problem in text
                assert heard[-1].WhichOneof("content") == "farewell"
                assert problem in heard[-1].farewell.reason
            async with here.agent("rome"):
                await here.state("rome", "ready")

    run(test())
    assert sum(problem in record.getMessage() for record in caplog.records) >= 1


def test_fields_and_messages_of_a_newer_protocol_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            channel_to(here.address, here.keys("paris")) as channel,
        ):
            call = channel.stream_stream(
                f"/{SITE.full_name}/Session",
                request_serializer=lambda data: data,
                response_deserializer=pb.ToSite.FromString,
            )()
            await call.write(hello().SerializeToString() + b"\xf8\x02\x07")
            await call.write(b"\x08\x02\xf8\x02\x07")  # number 2, and a content of tomorrow
            await call.write(beat(3).SerializeToString())
            kinds = [(await call.read()).WhichOneof("content") for _ in range(2)]
            assert kinds == ["welcome", "renewal"]

    run(test())
    ignored = [each for each in caplog.messages if "FromSite.47" in each]
    assert len(ignored) == 1  # said once


def test_who_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m", hello_s=0.3) as here,
            channel_to(here.address, here.keys("paris")) as channel,
        ):
            _, code, text = await conversation(channel)
            assert code is Code.INVALID_ARGUMENT
            assert "no hello" in text

    run(test())


# -- who may --------------------------------------------------------------------------------------


async def _fetch(agent: FakeAgent) -> None:
    async with agent.connect() as channel:
        async for _ in Stub(channel, SITE).fetch(pb.FetchRequest(digest="0" * 64)):
            pass


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


# -- commands -------------------------------------------------------------------------------------


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


def test_held_orders_of_no_run_are_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            held = [pb.OrderId(run="gone", key="round/1")]
            async with channel_to(here.address, here.keys("paris")) as channel:
                call = Stub(channel, SITE).session()
                await call.write(hello(held=held))
                heard = [await call.read() for _ in range(2)]
                assert heard[1].answer_taken.id == held[0]

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
