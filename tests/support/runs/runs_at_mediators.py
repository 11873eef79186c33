"""What tests of runs at a real mediator ask for, and what they look at."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from fake_agents import promise_and_echo
from fedpilot.mediator import Payload
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.messages import OrderId, RunId
from mediators import QUICK, Here

RUN = RunId("run")
ROUND = OrderId(RUN, "round/1")


def run(test: Any, within_s: float = 60) -> None:
    asyncio.run(asyncio.wait_for(test, within_s))


async def doubled(order: pb.Order, payload: Payload) -> Payload:
    """Work whose answer is another blob than the order's."""
    if order.verb != "work":
        return await promise_and_echo(order, payload)
    tensors = {name: np.asarray(tensor) * 2 for name, tensor in payload.tensors.items()}
    return Payload(kind="done", tensors=tensors)


def orders(*sites: str, numbers: int = 1000) -> list[dict[str, Any]]:
    return [{"site": site, "key": "round/1", "numbers": numbers} for site in sites]


def seen(here: Here, what: str) -> list[Any]:
    return [each for each in here.seen("run") if each["what"] == what]


def blobs(here: Here) -> list[str]:
    names = [each.name for each in (here.folder / "blobs").iterdir()]
    return [name for name in names if not name.startswith(".")]


async def failure_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


def quick(**changes: float) -> Any:
    return replace(QUICK, **changes)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
