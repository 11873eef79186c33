"""A mediator for tests: in this process or as one of its own, with quick clocks and all keys."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fake_agents import FakeAgent
from fedpilot.mediator.core.health import HealthSettings
from fedpilot.mediator.core.restarts import RestartSettings
from fedpilot.mediator.identity import Authority, Credentials, Role
from fedpilot.mediator.identity.tls import client_credentials
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server import Mediator, ServerSettings
from fedpilot.mediator.wire.messages import PROTOCOL
from fedpilot.mediator.wire.rpc import MESSAGE_OPTIONS, USER, Stub

ENDED = ("finished", "failed", "stopped", "interrupted")
HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"
PATHS = (SOURCE, HERE, HERE.parent / "sites")
COORDINATOR = (sys.executable, str(HERE / "fake_coordinator.py"))
QUICK = HealthSettings(heartbeat_s=0.1, silent_after_s=0.5, grace_s=0.7, stabilization_s=0.5)
SOON_S = 60.0
"""Within this everything happens, or a test fails."""


def settings_of(folder: Path, **changes: Any) -> ServerSettings:
    """Quick ones."""
    given: dict[str, Any] = {
        "folder": folder,
        "health": QUICK,
        "restarts": RestartSettings(first_pause_s=0.1, longest_pause_s=0.2),
        "hello_s": 2.0,
        "end_s": 5.0,
        "ask_s": 10.0,
        "coordinator": COORDINATOR,
    }
    return ServerSettings(**{**given, **changes})


async def eventually(
    condition: Callable[[], Any], what: str = "it", within_s: float = SOON_S
) -> Any:
    """What the condition gives once that is true."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {within_s:g} s"
        await asyncio.sleep(0.02)
    return found


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in an event loop of its own."""
    asyncio.run(asyncio.wait_for(test, SOON_S))


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    """How a call is refused."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), str(error.details())
    raise AssertionError("the call was not refused")


class Keys:
    """Certificates of a mediator's authority."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.open(folder / "certs")

    def __call__(self, name: str, role: Role = Role.SITE, **valid: float) -> Credentials:
        now = valid.pop("now", time.time())
        return self.authority.issue(name, role, now=now, **valid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A mediator that is reached, with an admin's stub."""

    address: str
    join_address: str
    folder: Path
    keys: Keys
    admin: Stub

    def agent(self, name: str, **options: Any) -> FakeAgent:
        """A site that has its certificate."""
        credentials = options.pop("credentials", None) or self.keys(name)
        return FakeAgent(self.address, credentials, self.folder.parent / f"site-{name}", **options)

    @asynccontextmanager
    async def user(self, name: str, role: Role) -> AsyncIterator[Stub]:
        """The stub of somebody with a certificate of a role."""
        async with channel_to(self.address, self.keys(name, role)) as channel:
            yield Stub(channel, USER)

    async def submit(
        self,
        run: str,
        orders: Any = None,
        *,
        shared: bool = False,
        priority_class: str = "",
        ask: Any = None,
        **config: Any,
    ) -> Any:
        """Submit a run of the fake coordinator."""
        asked = {"orders": orders or [], **config}
        request = pb.SubmitRequest(
            protocol=PROTOCOL,
            run=run,
            config_yaml=json.dumps(asked),
            name="test",
            shared=shared,
            priority_class=priority_class,
            ask_json="" if ask is None else json.dumps(ask),
        )
        return json.loads((await self.admin.submit(request)).run_json)

    async def ask(
        self, run: str, kind: str, header: Any, tensors: bytes = b"", *, announced: bytes = b""
    ) -> tuple[pb.AskRunReply, bytes]:
        """Ask a run; the first message of its answer, and its tensors' bytes."""
        first = pb.AskRunRequest(run=run, kind=kind, header_json=json.dumps(header))
        if named := announced or tensors:
            digest = hashlib.sha256(named).hexdigest()
            first.blob.CopyFrom(pb.Blob(digest=digest, size=len(named)))
        pieces = [tensors[at : at + 100_000] for at in range(0, len(tensors), 100_000)]
        messages = [first, *(pb.AskRunRequest(tensors=piece) for piece in pieces)]
        replies = [each async for each in self.admin.ask_run(iter(messages))]
        return replies[0], b"".join(each.tensors for each in replies)

    async def run(self, run: str) -> Any:
        """What is known of a run."""
        return json.loads((await self.admin.show_run(pb.RunRequest(run=run))).run_json)

    async def ended(self, run: str, within_s: float = SOON_S) -> Any:
        """A run, once it has ended."""
        deadline = time.monotonic() + within_s
        while (found := await self.run(run))["status"] not in ENDED:
            log = self.folder / "runs" / run / "coordinator.log"
            said = log.read_text()[-2000:] if log.exists() else "no log"
            assert time.monotonic() < deadline, f"{run} goes on and on: {found}\n{said}"
            await asyncio.sleep(0.1)
        return found

    async def sites(self) -> dict[str, Any]:
        """All sites, by name."""
        reply = await self.admin.list_sites(pb.ListSitesRequest())
        return {each["name"]: each for each in map(json.loads, reply.site_json)}

    async def state(self, name: str, *wanted: str, within_s: float = SOON_S) -> Any:
        """A site, once it has one of these states."""
        deadline = time.monotonic() + within_s
        while (found := (await self.sites()).get(name, {})).get("state") not in wanted:
            assert time.monotonic() < deadline, f"{name} is {found}, not {wanted}"
            await asyncio.sleep(0.05)
        return found

    async def events(self, run: str = "") -> list[Any]:
        """What happened."""
        request = pb.FollowRequest(run=run)
        stream = self.admin.follow_run(request) if run else self.admin.follow_events(request)
        return [json.loads(each.event_json) async for each in stream]

    def seen(self, run: str) -> list[Any]:
        """What the fake coordinators of a run wrote down, one after the other."""
        path = self.folder / "runs" / run / "seen.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]


def channel_to(address: str, credentials: Credentials) -> grpc.aio.Channel:
    """A channel of somebody; none is shared."""
    return grpc.aio.secure_channel(
        address,
        client_credentials(credentials),
        options=[*MESSAGE_OPTIONS, ("grpc.use_local_subchannel_pool", 1)],
    )


@asynccontextmanager
async def mediating(folder: Path, **changes: Any) -> AsyncIterator[Here]:
    """A mediator in this process."""
    async with Mediator(settings_of(folder, **changes)) as mediator:
        ready = mediator.ready
        async with reaching(folder, ready.address, ready.join_address) as here:
            yield here


@asynccontextmanager
async def reaching(folder: Path, address: str, join_address: str) -> AsyncIterator[Here]:
    """A mediator that is there."""
    keys = Keys(folder)
    async with channel_to(address, keys("admin", Role.ADMIN)) as channel:
        yield Here(
            address=address,
            join_address=join_address,
            folder=folder,
            keys=keys,
            admin=Stub(channel, USER),
        )


@contextmanager
def process(folder: Path, port: int = 0, join_port: int = 0) -> Iterator[tuple[Any, Any]]:
    """A mediator as a process of its own, and its ready line; killed at the end if it lives."""
    command = [
        sys.executable,
        str(HERE / "mediators.py"),
        str(folder),
        str(port),
        str(join_port),
    ]
    paths = os.pathsep.join(map(str, PATHS))
    with (folder.parent / "mediator.log").open("ab") as log:
        started = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
    assert started.stdout is not None
    try:
        yield started, json.loads(started.stdout.readline())
    finally:
        started.kill()
        started.wait()
        started.stdout.close()


async def _serve(folder: Path, port: int, join_port: int) -> None:
    async with Mediator(settings_of(folder, port=port, join_port=join_port)) as mediator:
        ready = mediator.ready
        addresses = (ready.address, ready.join_address)
        print(json.dumps([int(each.rpartition(":")[2]) for each in addresses]), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
