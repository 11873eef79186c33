"""Declared Ray clusters that run already: seen, shown, and left as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from existing_site import ADDRESS, ExistingSite, FakeRay, existing, living
from fake_site import managed
from fedpilot.fabric.core.ray_clusters.metering import IDLE_S
from fedpilot.fabric.core.ray_clusters.operated import ResourceWrite
from fedpilot.fabric.errors import FabricError
from fedpilot.fabric.ray_clusters.declarations.documents import environment_of

Told = Callable[[ExistingSite], Awaitable[None]]
Tell = Callable[[Told], None]
OTHER = "10.0.0.9:6379"


@pytest.fixture
def tell(tmp_path: Path) -> Tell:
    """Tells a story of a site that is managed."""

    def story(told: Told) -> None:
        async def live() -> None:
            site = ExistingSite(tmp_path)
            try:
                async with managed(site.manager()) as task:
                    await told(site)
                    assert not task.done()
            finally:
                site.store.close()

        asyncio.run(live())

    return story


class TestSeen:
    def test_what_runs_there_is_shown_with_resources_and_labels(self, tell: Tell) -> None:
        async def told(site: ExistingSite) -> None:
            site.ray.nodes.append(living("g", **{"ray.io/node-group": "gpus", "zone": "z1"}))
            site.apply(existing())
            await site.ready()
            now = site.now
            assert site.machines() == ["h-hhhhhhhh ready", "g-gggggggg ready", "w-wwwwwwww ready"]
            groups = {name: (g["wanted"], g["ready"]) for name, g in now["groups"].items()}
            assert groups == {"headgroup": (1, 1), "gpus": (1, 1), "workers": (1, 1)}
            gpu = now["machines"][1]
            assert (gpu["host"], gpu["offers"], gpu["labels"]["zone"]) == (
                "host-g",
                {"CPU": 2},
                "z1",
            )
            assert environment_of(now) == {"RAY_ADDRESS": ADDRESS, "RAY_AUTH_MODE": "disabled"}

        tell(told)

    def test_machines_that_come_leave_and_drain_are_followed(self, tell: Tell) -> None:
        async def told(site: ExistingSite) -> None:
            site.apply(existing())
            await site.ready()
            head, worker = site.ray.nodes
            site.ray.nodes = [head, replace(worker, draining=True), living("w", "w2" * 8)]
            await site.until(lambda: len(site.machines()) == 3)
            assert site.machines()[1:] == ["w-wwwwwwww draining", "w-w2w2w2w2 ready"]
            site.ray.nodes = [head]
            await site.until(lambda: len(site.machines()) == 1)
            assert site.events("machine_gone") == [
                "it is not seen any more",
                "Ray gives it no new work",
            ]
            assert site.wait().reached, "no number of machines is declared"

        tell(told)

    def test_machines_without_work_are_counted(self, tell: Tell) -> None:
        async def told(site: ExistingSite) -> None:
            head, worker = site.ray.nodes
            idle, leaving = living("i"), replace(living("l"), draining=True)
            site.ray.nodes = [
                replace(head, idle_s=IDLE_S / 2),
                worker,
                *(replace(each, idle_s=2 * IDLE_S) for each in (idle, leaving)),
            ]
            site.apply(existing())
            await site.ready()
            counts = {name: group["idle"] for name, group in site.now["groups"].items()}
            assert counts == {"headgroup": 0, "workers": 1}

        tell(told)

    def test_an_address_that_is_found_here_is_found_anew_after_a_loss(self, tell: Tell) -> None:
        async def told(site: ExistingSite) -> None:
            site.apply(existing("auto"))
            await site.until(lambda: "no Ray was started" in site.now["reason"])
            assert site.now["address"] is None
            site.rays.here = ADDRESS
            await site.ready()
            assert site.now["address"] == ADDRESS
            site.rays.at = {OTHER: FakeRay()}
            site.rays.here = OTHER
            await site.until(lambda: site.now["address"] == OTHER)
            await site.ready()

        tell(told)

    def test_a_control_plane_without_a_head_does_not_serve(self, tell: Tell) -> None:
        async def told(site: ExistingSite) -> None:
            site.apply(existing())
            await site.ready()
            head, site.ray.nodes = site.ray.nodes[0], site.ray.nodes[1:]
            await site.until(lambda: site.now["state"] == "recovering")
            assert "has no head among its nodes" in site.now["reason"]
            site.ray.nodes.append(head)
            await site.ready()

        tell(told)


class TestAway:
    def test_the_reason_is_told_and_it_is_seen_again(self, tell: Tell) -> None:
        async def told(site: ExistingSite) -> None:
            site.apply(existing())
            await site.ready()
            site.ray.away = "connection refused"
            await site.until(lambda: site.now["state"] == "recovering")
            reason = f"the Ray at {ADDRESS} does not answer: connection refused"
            assert site.now["reason"] == reason
            assert site.events("cluster_recovering") == [reason]
            assert site.machines() == []
            assert site.now["groups"]["workers"]["wanted"] == 1, "one is missing"
            await asyncio.sleep(0.4)  # longer than one that was never seen may take
            assert (site.now["state"], site.wait().never) == ("recovering", "")
            site.ray.away = ""
            await site.ready()
            assert site.machines() == ["h-hhhhhhhh ready", "w-wwwwwwww ready"]

        tell(told)

    def test_one_that_is_silent_for_a_moment_stays_ready(self, tmp_path: Path) -> None:
        async def told() -> None:
            site = ExistingSite(tmp_path)
            stored = site.apply(existing())
            now = 100.0
            cluster = site.rays.cluster(stored, None)
            cluster.clock = lambda: now
            following = asyncio.create_task(cluster.follow())
            await site.until(lambda: cluster.address is not None)
            site.ray.away = "busy"
            await site.until(lambda: cluster.view().reading is not None)
            assert len(cluster.machines({}, 0, now)[0]) == 2
            now += 2 * cluster.times.silent_s
            assert cluster.machines({}, 0, now)[0] == {}
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            site.store.close()

        asyncio.run(told())

    def test_one_that_was_never_there_ends_a_wait(self, tell: Tell) -> None:
        async def told(site: ExistingSite) -> None:
            site.ray.away = "connection refused"
            site.apply(existing())
            assert "does not answer: connection refused" in await site.stuck()
            assert site.now["state"] == "failed"
            site.ray.away = ""
            await site.ready()

        tell(told)

    def test_a_successor_believes_what_was_seen_until_it_has_looked(self, tmp_path: Path) -> None:
        async def told() -> None:
            site = ExistingSite(tmp_path)
            async with managed(site.manager()):
                site.apply(existing())
                await site.ready()
            told = site.events()
            calls = site.ray.calls
            async with managed(site.manager()):
                await site.until(lambda: site.ray.calls > calls + 1)
                await site.ready()
            assert site.events() == told
            site.store.close()

        asyncio.run(told())


class TestDeclared:
    def test_another_address_is_another_ray(self, tell: Tell) -> None:
        async def told(site: ExistingSite) -> None:
            site.apply(existing())
            await site.ready()
            site.rays.at[OTHER] = FakeRay([living("a", head=True)], away="it starts")
            site.apply(existing(OTHER))
            await site.until(lambda: "it starts" in site.now["reason"])
            assert not site.wait().reached
            assert (site.machines(), site.now["address"]) == ([], None)
            site.rays.at[OTHER].away = ""
            await site.ready()
            assert (site.machines(), site.now["address"]) == (["a-aaaaaaaa ready"], OTHER)

        tell(told)

    @pytest.mark.parametrize("away", ["", "it hangs"], ids=["one that answers", "one that is away"])
    def test_it_is_forgotten_and_goes_on(self, tell: Tell, away: str) -> None:
        async def told(site: ExistingSite) -> None:
            site.apply(existing())
            await site.ready()
            site.ray.away = away
            site.delete()
            await site.gone()

        tell(told)

    def test_nothing_is_ever_asked_to_be_written(self, tmp_path: Path) -> None:
        async def told() -> None:
            site = ExistingSite(tmp_path)
            cluster = site.rays.cluster(site.apply(existing()), None)
            with pytest.raises(FabricError, match="is not ours to delete"):
                await cluster.write(ResourceWrite.DELETE)
            site.store.close()

        asyncio.run(told())


class TestToken:
    def test_a_token_comes_from_the_file_that_is_declared(self, tell: Tell, tmp_path: Path) -> None:
        file = tmp_path / "their-token"

        async def told(site: ExistingSite) -> None:
            site.ray.token = "a secret"
            site.apply(existing())
            assert "`spec.fedpilot.tokenFile` names the file" in await site.stuck()
            site.apply(existing(tokenFile=str(file)))
            await site.until(lambda: "cannot be read" in site.now["reason"])
            file.write_text("wrong")
            await site.until(lambda: "refuses the token" in site.now["reason"])
            assert "wrong" not in str(site.now)
            file.write_text("a secret\n")
            await site.ready()
            assert environment_of(site.now) == {
                "RAY_ADDRESS": ADDRESS,
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(file),
            }
            site.delete()
            await site.gone()
            assert file.exists()

        tell(told)

    def test_an_empty_file_has_no_token(self, tell: Tell, tmp_path: Path) -> None:
        (tmp_path / "their-token").touch()

        async def told(site: ExistingSite) -> None:
            site.apply(existing(tokenFile=str(tmp_path / "their-token")))
            assert "`spec.fedpilot.tokenFile` is empty" in await site.stuck()
            assert len(site.events("resource_refused")) == 1

        tell(told)
