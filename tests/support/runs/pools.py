"""A pool of workers on a fake cluster, workers that say what they were told, and work for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from fedpilot.fabric import (
    FixedSizeNode,
    FixedSizeNodes,
    Gang,
    VirtualCluster,
    VirtualClusterManager,
)
from fedpilot.fabric.testing.fake_cluster import FakeCluster, ManualClock, fake_machine
from fedpilot.federated.site.states.shared_memory import sharers
from fedpilot.federated.site.workers.pool import WorkerCall, WorkerPool

SOON_S = 60.0


class Node:
    """A worker that says what it was told."""

    def __init__(self, gate: threading.Event | None = None, fault: str = "") -> None:
        self.gate = gate
        self.models: dict[str, Any] = {}
        if fault:
            raise RuntimeError(fault)

    def hello(self) -> dict[str, Any]:
        return {"pid": 1, "sharers": sharers()}

    def double(self, value: int) -> int:
        return 2 * value

    def wait(self) -> str:
        assert self.gate is not None
        assert self.gate.wait(SOON_S)
        return "waited"

    def fail(self, error: Exception) -> None:
        raise error

    def model(self, key: str, state: Any) -> tuple[bool, Any]:
        """Whether the model came along, and what it is."""
        if state is not None:
            self.models[key] = state
            while len(self.models) > 2:
                self.models.pop(next(iter(self.models)))
        self.models[key] = self.models.pop(key)
        return state is not None, self.models[key]


class Setting:
    """A pool on a fake cluster, with what it said."""

    def __init__(self, undo: ExitStack) -> None:
        self.cluster = FakeCluster([fake_machine("a", CPU=8)])
        self.events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.clock = ManualClock()
        self._undo = undo
        self.manager = undo.enter_context(VirtualClusterManager(self.cluster))

    def gang(self, workers: int) -> Gang:
        nodes = (FixedSizeNode(resources={"CPU": 1.0}),) * workers
        return self.manager.reserve(
            VirtualCluster(fixed_size_nodes=(FixedSizeNodes(nodes=nodes),)), name="g"
        )

    def pool(
        self,
        workers: int = 2,
        *args: Any,
        of: type[Node] = Node,
        restarts: int = 3,
        timeout_s: float = 1e9,
        gang: Gang | None = None,
        on_notice: Callable[[], None] = lambda: None,
    ) -> WorkerPool:
        pool = WorkerPool(
            gang or self.gang(workers),
            of,
            args,
            restarts=restarts,
            timeout_s=timeout_s,
            on_event=lambda kind, details: self.events.put((kind, details)),
            on_notice=on_notice,
            clock=self.clock,
        )
        self._undo.callback(pool.close)
        pool.start()
        return pool

    def kill(self, number: int, generation: int) -> None:
        self.cluster.kill_worker(f"g/{number}/{generation}")

    def next_event(self, kind: str) -> dict[str, Any]:
        while True:
            found, details = self.events.get(timeout=SOON_S)
            if found == kind:
                return details


def piece(method: str = "double", *args: Any, **fields: Any) -> WorkerCall:
    return WorkerCall(method=method, args=args, what=f"doing {method}", **fields)


def answers(pieces: list[WorkerCall]) -> list[Any]:
    return [each.answer.result(SOON_S) for each in pieces]
