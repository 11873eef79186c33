"""A site that changes its mind all the time costs no more than one that speaks as it should."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedpilot.mediator.core.health import SiteEvent, SiteState
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.orders.coordinator_registry import CoordinatorRegistry
from fedpilot.mediator.server.orders.outbox import Outbox
from fedpilot.mediator.server.orders.sites import SiteRegistry
from fedpilot.mediator.server.orders.traffic_accounting import TrafficAccounting
from fedpilot.mediator.server.settings import ServerSettings
from fedpilot.mediator.server.store import SiteRecord
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.messages import PROTOCOL, Capacity, RunId, SiteName
from fedpilot.mediator.wire.rpc import SITE, TOO_MANY_CALLS, Stub
from mediators import SOON_S, channel_to, mediating

PARIS = SiteName("paris")
DATA = '{"scans": {}}'
SMALL, LARGE = (Capacity(total={"CPU": cpus}) for cpus in (1.0, 2.0))


class Written:
    """In the place of the database: what was written of sites, and whether with their data."""

    def __init__(self) -> None:
        self.store = self
        self.sites: list[tuple[SiteRecord, bool]] = []

    def put_site(self, record: SiteRecord, *, with_data: bool = True) -> None:
        self.sites.append((record, with_data))

    def write(self, act: Callable[..., None], *args: Any, **named: Any) -> None:
        act(*args, **named)

    async def ask(self, act: Callable[..., None], *args: Any) -> None:
        act(*args)


class Said:
    """In the place of the events."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def say(self, name: str, /, **fields: Any) -> None:
        self.names.append(name)


class Session:
    serial, agent = "1", "a"

    def send(self, message: pb.ToSite) -> None:
        pass

    def end(self, reason: str, *, final: bool) -> None:
        pass


class World:
    """A site that speaks every two seconds, if it does as it should."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_000.0
        self.written, self.said = Written(), Said()
        self.line: Outbox[pb.ToCoordinator] = Outbox(1_000)
        attached, run = CoordinatorRegistry(), RunId("run")
        attached.begin(run)
        attached.attach(run, self.line)
        self.sites = SiteRegistry(
            ServerSettings(folder=folder),
            lambda: self.now,
            self.written,  # type: ignore[arg-type]
            self.said,  # type: ignore[arg-type]
            attached,
            TrafficAccounting(None),  # type: ignore[arg-type]
            BlobStore(folder / "blobs", 1 << 20),
        )

    def hello(self, data_json: str = DATA) -> None:
        said = pb.Hello(agent="a", data_json=data_json)
        self.sites.begin(PARIS, said, SMALL, Session())

    def beat(self, trouble: str = "", capacity: Capacity = SMALL, after_s: float = 2.0) -> None:
        self.now += after_s
        self.sites.heartbeat(PARIS, capacity, trouble)

    @property
    def state(self) -> SiteState:
        return self.sites.table.entry(PARIS).standing.state


def in_a_world(folder: Path, act: Callable[[World], Awaitable[None]]) -> None:
    async def go() -> None:
        world = World(folder)
        world.hello()
        await act(world)

    asyncio.run(go())


def test_a_site_that_flips_between_heartbeats_is_believed_once(tmp_path: Path) -> None:
    async def act(w: World) -> None:
        before = len(w.written.sites)
        for number in range(200):
            w.beat("" if number % 2 else "Ray is gone", after_s=0.005)
        assert (w.state, w.said.names[-1]) == (SiteState.LOST, "site_lost")
        assert len(w.written.sites) == before + 1
        w.beat()
        assert w.state is SiteState.JOINING

    in_a_world(tmp_path, act)


def test_a_site_that_speaks_as_it_should_is_believed_each_time(tmp_path: Path) -> None:
    async def act(w: World) -> None:
        for number in range(6):
            w.beat("Ray is gone" if number % 2 else "")
            assert w.state is (SiteState.LOST if number % 2 else SiteState.JOINING)

    in_a_world(tmp_path, act)


def test_a_site_that_speaks_at_once_of_trouble_is_believed_at_once(tmp_path: Path) -> None:
    async def act(w: World) -> None:
        w.beat()
        w.beat("Ray is gone", after_s=0.1)
        assert w.state is SiteState.LOST
        w.beat()
        w.beat(after_s=0.1)  # nothing new, and heard
        assert w.sites.table.entry(PARIS).standing.heard_at == w.now

    in_a_world(tmp_path, act)


def test_who_is_not_believed_yet_is_heard_all_the_same(tmp_path: Path) -> None:
    async def act(w: World) -> None:
        w.sites.tick()
        assert w.state is SiteState.READY
        for number in range(100):
            w.beat(capacity=LARGE if number % 2 else SMALL, after_s=0.5)
            w.sites.tick()
            assert w.state is SiteState.READY

    in_a_world(tmp_path, act)


def test_a_capacity_that_flips_is_told_once_and_at_last_as_it_is(tmp_path: Path) -> None:
    async def act(w: World) -> None:
        await asyncio.sleep(0.06)
        told = []
        for number in range(5):
            w.beat(capacity=SMALL if number % 2 else LARGE, after_s=0.001)
            await asyncio.sleep(0.06)  # for what is told together
        w.beat(capacity=SMALL)
        await asyncio.sleep(0.06)
        w.line.close()
        while (message := await w.line.take()) is not None:
            told += [dict(each.capacity.total) for each in message.sites.sites]
        assert told == [{"CPU": 1.0}, {"CPU": 2.0}, {"CPU": 1.0}]

    in_a_world(tmp_path, act)


def test_what_a_site_tells_of_its_data_is_written_when_it_is_new(tmp_path: Path) -> None:
    async def act(w: World) -> None:
        w.hello()
        w.beat("Ray is gone")
        w.beat()
        assert [with_data for _, with_data in w.written.sites].count(True) == 1
        w.hello('{"other": {}}')
        record, with_data = w.written.sites[-1]
        assert (record.data_json, with_data) == ('{"other": {}}', True)

    in_a_world(tmp_path, act)


def test_coordinators_are_not_told_what_data_a_site_had_that_has_left(tmp_path: Path) -> None:
    async def act(w: World) -> None:
        (there,) = w.sites.standings()
        assert there.sites.sites[0].data_json == DATA
        await w.sites.change(PARIS, SiteEvent.REMOVE, "by otto")
        (left,) = w.sites.standings()
        assert (left.sites.sites[0].state, left.sites.sites[0].data_json) == ("left", "")

    in_a_world(tmp_path, act)


# -- over the wire --------------------------------------------------------------------------------


def greeting(**changes: Any) -> pb.FromSite:
    said = {"protocol": PROTOCOL, "site": "paris", "agent": "a", **changes}
    return pb.FromSite(number=1, hello=pb.Hello(**said))


async def welcomed(channel: grpc.aio.Channel, hello: pb.FromSite, within_s: float) -> bool:
    """Whether a session begins so soon; it is ended then."""
    call = Stub(channel, SITE).session()
    try:
        await call.write(hello)
        async with asyncio.timeout(within_s):
            return bool((await call.read()).HasField("welcome"))
    except TimeoutError:
        return False
    finally:
        call.cancel()


def test_a_site_that_begins_too_many_sessions_waits(tmp_path: Path) -> None:
    async def test() -> None:
        slow = {"hellos_at_once": 2, "hellos_per_s": 0.1}
        async with mediating(tmp_path / "m", **slow) as here:
            async with channel_to(here.address, here.keys("paris")) as channel:
                for _ in range(5):  # what is refused disturbs nobody
                    assert not await welcomed(channel, greeting(site="rome"), 5.0)
                for _ in range(2):
                    assert await welcomed(channel, greeting(), 5.0)
            async with channel_to(here.address, here.keys("paris")) as channel:
                assert not await welcomed(channel, greeting(), 0.2)
            async with channel_to(here.address, here.keys("rome")) as channel:
                assert await welcomed(channel, greeting(site="rome"), 5.0)

    asyncio.run(test())


async def refusal(stub: Stub) -> grpc.StatusCode:
    """How an offer of no blob is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.offer(pb.OfferRequest(), timeout=60)
    code: grpc.StatusCode = refused.value.code()
    said = str(refused.value.details())
    assert said.startswith(TOO_MANY_CALLS) is (code is grpc.StatusCode.UNAVAILABLE)
    return code


def test_a_site_has_so_many_calls_open_and_others_theirs(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            asyncio.timeout(SOON_S),
            mediating(tmp_path / "m", site_calls=2, hello_s=SOON_S) as here,
            channel_to(here.address, here.keys("paris")) as channel,
            channel_to(here.address, here.keys("rome")) as other,
        ):
            stub = Stub(channel, SITE)
            calls = []
            while await refusal(stub) is not grpc.StatusCode.UNAVAILABLE:
                calls.append(stub.session())  # it may be that one itself that was too many
                await asyncio.sleep(0.02)
            assert len(calls) >= 2
            assert await refusal(Stub(other, SITE)) is grpc.StatusCode.INVALID_ARGUMENT
            for call in calls:
                call.cancel()
            while await refusal(stub) is not grpc.StatusCode.INVALID_ARGUMENT:
                await asyncio.sleep(0.02)

    asyncio.run(test())
