"""A real Ray that runs already, as a site sees it: it goes, comes back, and asks for a token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from existing_site import existing
from fedpilot.fabric.ray.control_plane.ray_nodes import RayNodes
from fedpilot.fabric.ray_clusters.existing.existing_cluster import ExistingRayCluster, ExistingTimes
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from real_ray import free_port, ray_head, ray_machine

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PATIENCE_S = 120.0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.05)


def test_it_is_seen_lost_seen_again_and_let_in_by_its_token(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "token"
    file.write_text("0123456789abcdef" * 4)
    file.chmod(0o600)
    address = f"127.0.0.1:{port}"
    cluster = ExistingRayCluster(
        document=ray_cluster_of(existing(address)),
        nodes_at=RayNodes,
        times=ExistingTimes(look_s=0.2, silent_s=0.5),
    )

    def said(words: str) -> Callable[[], bool]:
        return lambda: words in (trouble.reason if (trouble := cluster.view().reading) else "")

    def seen(count: int) -> Callable[[], bool]:
        return lambda: len(cluster.machines({}, 0, time.time())[0]) == count

    async def told() -> None:
        following = asyncio.create_task(cluster.follow())
        with ExitStack() as rays:
            rays.enter_context(ray_head(2, port))
            rays.enter_context(ray_machine(address, 3))
            await until(seen(2))  # both have the address of this computer as their name
            machines = [*cluster.machines({}, 0, time.time())[0].values()]
            assert [(m.group, m.offers["CPU"]) for m in machines] == [
                ("headgroup", 2.0),
                ("workers", 3.0),
            ]
            assert all(machine.host and machine.labels for machine in machines)
        await until(seen(0))
        await until(said(f"the Ray at {address} does not answer"))
        with ray_head(1, port, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(file)):
            await until(said("refuses a call without a token"))
            cluster.declare(ray_cluster_of(existing(address, tokenFile=str(file))), deleted=False)
            await until(seen(1))
            assert cluster.view().reading is None
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await cluster.close()

    asyncio.run(told())
