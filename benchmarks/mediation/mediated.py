"""What benchmarks of a mediator share: its process, its coordinator's rounds, its users' run.

They import this before anything of `tests/support`, where hosts and sites without Ray are.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from measuring import HERE, command

for room in ("processes", "servers", "sites"):
    sys.path.insert(0, str(HERE.parent / "tests/support" / room))

RUN = "measured"
LOOPBACK = "127.0.0.1"


async def serve(benchmark: str, folder: str, *, host: str = LOOPBACK, **settings: Any) -> None:
    """A mediator whose coordinators a benchmark has; prints its addresses, and ends with its stdin.

    Anywhere but at the loopback interface it goes on until it is ended.
    """
    from fedpilot.mediator.server import Mediator, ServerSettings
    from fedpilot.mediator.wire.transfer import keep_freed_memory

    keep_freed_memory()
    coordinator = tuple(command(f"{benchmark}:coordinate"))
    made = ServerSettings(folder=Path(folder), host=host, coordinator=coordinator, **settings)
    async with Mediator(made) as mediator:
        print(mediator.ready.address, mediator.ready.join_address, flush=True)
        await (asyncio.to_thread(sys.stdin.read) if host == LOOPBACK else asyncio.Event().wait())


@contextmanager
def connected(folder: str, run: str) -> Iterator[Any]:
    """A coordinator's connection, in a process that ends with its stdin."""
    from fedpilot.mediator.coordinator.connection import MediatorConnection
    from fedpilot.mediator.coordinator.process import end_with_stdin

    end_with_stdin()
    with MediatorConnection(Path(folder), run) as connection:
        yield connection


def round_of(
    connection: Any, sites: Sequence[Any], number: int, parameters: int, patience_s: float
) -> float:
    """Seconds of a round: each site gets an order with the same model, and answers with its own."""
    import numpy as np

    from fedpilot.mediator import Payload

    started = time.perf_counter()
    payload = Payload(kind="round", tensors={"model": np.full(parameters, number, np.float32)})
    answers = [
        connection.link(site.name).ask(
            "work", payload, key=f"round/{number}", round_number=number, purpose="training"
        )
        for site in sites
    ]
    for answer in answers:
        assert answer.result(patience_s).tensors["model"][0] == number
    return time.perf_counter() - started


@asynccontextmanager
async def submitted(authority: Any, address: str, config: str = "{}") -> AsyncIterator[Any]:
    """Have the mediator start a coordinator, as an admin; gives the admin's calls."""
    from fedpilot.mediator.identity import Role
    from fedpilot.mediator.proto import federation_pb2 as pb
    from fedpilot.mediator.wire.messages import PROTOCOL
    from fedpilot.mediator.wire.rpc import USER, Stub
    from mediators import channel_to

    credentials = authority.issue("ada", Role.ADMIN, now=time.time())
    async with channel_to(address, credentials) as channel:
        admin = Stub(channel, USER)
        await admin.submit(
            pb.SubmitRequest(protocol=PROTOCOL, run=RUN, config_yaml=config, name=RUN)
        )
        yield admin
