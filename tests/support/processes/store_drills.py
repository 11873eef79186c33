"""What a mediator writes to goes away in the middle of a run: its database, or its disk.

The run ends in the model of a run that nothing happened to, under the coordinator that it had or a
later one, and says meanwhile what it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from coordinated import CONFIG, COORDINATOR, agent_of, config, finished, submit
from fake_agents import FakeAgent
from mediators import Here, eventually, mediating
from postgres import Server, database
from small_disks import small_disk

PATIENCE_S = 240.0
"""For the end of a run once the cause is gone."""
ROUNDS = 8
DISK_MB = 32


def drill_config() -> str:
    """Enough rounds that one is under way whatever happens."""
    return config(federation={**CONFIG["federation"], "rounds": ROUNDS})


async def told(here: Here) -> str:
    """What whoever asks about the run is told of its trouble; empty if it is in none."""
    try:
        return str((await here.run("run"))["reason"])
    except grpc.aio.AioRpcError as error:
        return str(error.details())


async def until_told(here: Here, words: str) -> None:
    """Wait until whoever asks is told so."""
    async with asyncio.timeout(PATIENCE_S):
        while words not in await told(here):
            await asyncio.sleep(0.1)


async def end_of(here: Here) -> dict[str, Any]:
    """The run once it has ended, and that is written."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(grpc.aio.AioRpcError):
                found = dict(await here.run("run"))
                if found["status"] not in ("submitted", "running", "stopping"):
                    return found
            await asyncio.sleep(0.1)


async def _in_mid_run(
    here: Here, at_round: int, strike: Callable[[], None]
) -> tuple[FakeAgent, FakeAgent]:
    """Begin a run over two sites, and strike while they are at work on a round."""
    (cluster, paris), (_, rome) = agent_of(here, "paris"), agent_of(here, "rome")
    await paris.start()
    await rome.start()
    await here.state("paris", "ready", within_s=60)
    await here.state("rome", "ready", within_s=60)
    cluster.shut_at = at_round
    await submit(here, "run", drill_config())
    await eventually(lambda: at_round in cluster.rounds, within_s=PATIENCE_S)
    strike()
    cluster.gate.set()
    return paris, rome


async def database_away(folder: Path, server: Server, seconds: float, at_round: int) -> str:
    """The model of a run whose database is away for so long."""
    with database(server.url) as url:
        try:
            async with mediating(folder, store=url, coordinator=COORDINATOR) as here:
                agents = await _in_mid_run(here, at_round, server.stop)
                try:
                    await until_told(here, "its database has been away for")
                    await asyncio.sleep(seconds)
                    server.start()
                    found = await end_of(here)
                    assert found["restarts"] == 0, "its coordinator has stayed"
                    return finished(found)
                finally:
                    for agent in agents:
                        await agent.close()
        finally:
            server.start_if_stopped()


async def mediator_full(folder: Path, seconds: float, at_round: int) -> str:
    """The model of a run whose mediator's disk is full for so long."""
    with small_disk(folder, DISK_MB) as disk:
        async with mediating(folder, coordinator=COORDINATOR) as here:
            agents = await _in_mid_run(here, at_round, disk.fill)
            try:
                await until_told(here, "disk")
                await asyncio.sleep(seconds)
                disk.free()
                return finished(await end_of(here))
            finally:
                for agent in agents:
                    await agent.close()
