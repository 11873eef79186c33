"""Random bytes at every RPC: refused in one line each, the mediator alive, its memory flat."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
from hypothesis import settings

from attacks import attack, send
from fedpilot.mediator.identity.tls import joining_credentials
from fedpilot.mediator.wire.rpc import JOIN, SITE
from mediators import channel_to, eventually, mediating, process, reaching

Code = grpc.StatusCode
STRINGS = settings.default.max_examples // 2
"""Per RPC: 15 in `make test`, 25 in `.ci/run`; `make soak` sends 10,000."""
SLACK_BYTES = 16 << 20


def memory_of(pid: int) -> int:
    """Bytes of memory that are a process's own."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


def traceback_in(text: str) -> str:
    """The first traceback in a log, and some lines behind it."""
    _, found, rest = text.partition("Traceback")
    return found + "\n".join(rest.splitlines()[:40])


@pytest.mark.parametrize(
    "count", [pytest.param(STRINGS), pytest.param(10_000, marks=pytest.mark.soak)]
)
@pytest.mark.timeout(3_000)
def test_random_bytes_at_every_rpc_are_refused(tmp_path: Path, count: int) -> None:
    log = tmp_path / "mediator.log"

    async def test() -> None:
        with process(tmp_path / "m") as (mediator, (port, join_port)):
            addresses = f"localhost:{port}", f"localhost:{join_port}"
            async with reaching(tmp_path / "m", *addresses) as here, here.agent("paris") as agent:
                await here.state("paris", "ready")
                await attack(here, count)
                before, said = memory_of(mediator.pid), len(refusals(log))
                await attack(here, count)
                assert memory_of(mediator.pid) - before < SLACK_BYTES
                assert len(refusals(log)) - said > 20 * count / 3
                assert not (found := traceback_in(log.read_text())), found
                await here.state("paris", "ready")
                assert agent.welcomed.is_set()

    asyncio.run(test())


def refusals(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if "refused" in line or "site " in line]


def test_a_message_of_many_megabytes_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            async with channel_to(here.address, here.keys("mallory")) as channel:
                for service, name in ((SITE, "Offer"), (SITE, "Push"), (SITE, "Fetch")):
                    code = await send(channel, service, name, b"\x0a" + bytes(9 << 20))
                    assert code is Code.RESOURCE_EXHAUSTED, name
            bare = joining_credentials(here.keys.authority.certificate)
            async with grpc.aio.secure_channel(here.join_address, bare) as channel:
                code = await send(channel, JOIN, "Join", bytes(100 << 10))
                assert code is Code.RESOURCE_EXHAUSTED

    asyncio.run(test())


def test_a_site_that_floods_is_read_slowly_and_disturbs_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        limits = {"messages_per_s": 50.0, "messages_at_once": 100}
        async with (
            mediating(tmp_path / "m", **limits) as here,
            here.agent("flood") as flood,
            here.agent("paris") as paris,
        ):
            await eventually(lambda: flood.welcomed.is_set() and paris.welcomed.is_set())
            for number in range(5_000):
                flood.say("run", "noise", {"number": number})
            await here.state("paris", "ready")
            await eventually(lambda: paris.renewed == [])
            entry = (await here.sites())["flood"]
            assert entry["bytes"]["from_site"] < 5_000 * 40

    asyncio.run(test())
