"""A runner's server in this process, without Ray and without a runner behind it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from fedpilot.fabric.testing.fake_cluster import ManualClock
from fedpilot.mediator import Payload
from fedpilot.mediator.agent.runner.process import (
    LOCK,
    SETTINGS,
    RunnerSettings,
)
from fedpilot.mediator.agent.runner.server import RunnerServer
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.failures import told
from fedpilot.mediator.wire.messages import payload_of
from fedpilot.mediator.wire.references import Keeping

SOON_S = 60.0


class FakeRunner:
    """A server in this process, and a hand that works on what it is told to."""

    def __init__(self, folder: Path, lease_s: float = 0.0, orphan_s: float = 60.0) -> None:
        folder.mkdir(parents=True)
        blobs = folder / "blobs"
        settings = RunnerSettings(
            run="r", site="paris", blobs=blobs, lease_s=lease_s, orphan_s=orphan_s
        )
        (folder / SETTINGS).write_text(json.dumps(settings.to_json()))
        self.folder = folder
        self.clock = ManualClock(1000.0)
        self.keeping = Keeping(BlobStore(blobs, 1 << 30), discard=True)
        self.orders: list[pb.Order] = []
        self.ended: list[str] = []
        self.lapsed = 0
        self.make: Callable[[Payload], Payload] | None = lambda payload: payload
        """What an order is answered with; None to leave it at work."""
        self.lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.server = RunnerServer(folder, self, settings, self.clock)
        self.server.open()

    def work(self, order: pb.Order) -> None:
        self.orders.append(order)
        if self.make is None:
            return
        try:
            made = self.make(payload_of(order, self.keeping.store))
            done = self.keeping.keep(made)
        except Exception as error:
            self.server.answer(pb.Answer(id=order.id, failure=told(error)))
        else:
            self.server.answer(pb.Answer(id=order.id, done=done))

    def answer(self, key: str, kind: str = "late") -> None:
        done = pb.Done(kind=kind, header_json="{}")
        self.server.answer(pb.Answer(id=pb.OrderId(run="r", key=key), done=done))

    def taken(self, answer: pb.Answer) -> None:
        if answer.done.blob.digest:
            self.keeping.let_go(answer.done.blob.digest)

    def lapse(self) -> None:
        self.lapsed += 1

    def end(self, reason: str) -> None:
        self.ended.append(reason)

    def die(self) -> None:
        self.server.close("it dies")
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    @property
    def worked_on(self) -> list[str]:
        return [order.id.key for order in self.orders]


def order(key: str) -> pb.Order:
    return pb.Order(id=pb.OrderId(run="r", key=key), verb="work", kind="k", header_json="{}")


def ran(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story(), SOON_S)

    asyncio.run(bounded())
