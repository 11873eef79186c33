"""The mediator's view of a site: ready, suspect, lost, cordoned, removed, and what it has."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from fake_agents import FakeAgent
from fake_mediator import wire
from fedpilot.mediator.core.health import HealthSettings
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.store import SiteRecord, Store, StoreError
from fedpilot.mediator.wire.messages import Capacity
from fedpilot.mediator.wire.rpc import SITE, Stub
from fedpilot.mediator.workload import Payload
from mediators import QUICK, Here, eventually, mediating, refused, run

Code = grpc.StatusCode
TRIP = "round_trip_s"


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
                order = {"site": "paris", "key": "work/1", "numbers": 140_000}
                await here.submit("run", [order])
                assert (await here.ended("run", 60))["status"] == "finished"
            (answer,) = [each for each in here.seen("run") if each["what"] == "answer"]
            assert answer["sum"] == pytest.approx(sum(range(1, 140_001)))
            link = (await here.state("paris", "ready"))["link"]
            assert 0 < link["up"] <= 400_000, "as fast as the wire, or slower"
            assert "up_measured_at" in link
            states = [each["state"] for each in await here.events() if each.get("site")]
            assert "lost" not in states

    run(test())


def test_a_coordinator_learns_how_fast_a_link_is_while_its_run_goes_on(tmp_path: Path) -> None:
    async def another_model(order: pb.Order, payload: Payload) -> Payload:
        return Payload(kind="done", tensors={"x": payload.tensors["x"] + np.float32(1)})

    async def test() -> None:
        async with mediating(tmp_path / "m") as here, here.agent("paris", work=another_model):
            await here.state("paris", "ready")
            order = {"site": "paris", "key": "work/1", "numbers": 1_200_000}
            await here.submit("run", [order], then="wait")

            def told() -> bool:
                return any(each.get("up") for each in here.seen("run") if each["what"] == "site")

            await eventually(told, "that the coordinator learns of the link")
            states = [each["state"] for each in await here.events() if each.get("site")]
            assert states == ["joining", "ready"], "nothing else has changed"

    run(test())


@pytest.mark.parametrize(
    ("told", "link"),
    [
        pytest.param(
            pb.Link(up=1e6, down=2e6, up_measured_at=7.0),
            {"up": 1e6, "down": 2e6, TRIP: 0.25},
            id="as it declares it",
        ),
        pytest.param(pb.Link(up=-1.0, down=float("inf")), {TRIP: 0.25}, id="nonsense"),
        pytest.param(None, {TRIP: 0.25}, id="nothing"),
    ],
)
def test_a_sites_link_is_known_from_what_it_says(
    tmp_path: Path, told: pb.Link | None, link: dict[str, float]
) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            paris = here.agent("paris")
            paris.link, paris.round_trip_s = told, 0.25
            async with paris:
                while not (found := (await here.state("paris", "ready"))["link"]).get(TRIP):
                    await asyncio.sleep(0.02)  # until the first heartbeat
                assert found == link

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


async def _fetch(agent: FakeAgent) -> None:
    async with agent.connect() as channel:
        async for _ in Stub(channel, SITE).fetch(pb.FetchRequest(digest="0" * 64)):
            pass


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
