"""RayGroup: a placement group of Ray that ends with this process, and the workers on it."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ...core.records import MachineId, VNode
from ...errors import FabricError, WorkerLost
from .. import private_ray
from ..failures import explained
from ..protocol import GroupState
from .serialization import packed, unpacked

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

KILLED = "it was killed"
UNDER_WAY = ("PENDING", "PREPARED", "RESCHEDULING")
POLL_S = 0.02


class RayGroup:
    """A placement group with driver lifetime, and the workers on it."""

    def __init__(
        self,
        made: PlacementGroup,
        as_actor: Callable[[Any], Any],
        forget: Callable[[RayGroup], None],
        *,
        adopted: bool = False,
    ) -> None:
        self._made = made
        self._ready = None if adopted else made.ready()  # that takes a process there
        self._adopted = adopted
        self._as_actor = as_actor
        self._forget = forget
        self._workers: set[RayWorker] = set()
        self._removed = False

    def state(self) -> GroupState:
        if self._removed:
            return GroupState.REMOVED
        table = self._table()
        match table.get("state", "REMOVED"):
            case "CREATED":
                return GroupState.READY
            case "REMOVED":
                return GroupState.REMOVED
            case _:
                infeasible = table["stats"]["scheduling_state"] == "INFEASIBLE"
                if infeasible or _is_too_large(table["bundles"].values()):
                    return GroupState.INFEASIBLE
                return GroupState.PENDING

    def wait(self, timeout_s: float) -> tuple[MachineId, ...] | None:
        import ray

        deadline = time.monotonic() + timeout_s
        ready, _ = ray.wait([self._ready or self._made.ready()], timeout=timeout_s)
        table = self._table()
        # Its first task may end before the GCS has noted that the group is created.
        while ready and table.get("state") in UNDER_WAY and time.monotonic() < deadline:
            time.sleep(POLL_S)
            table = self._table()
        if not ready or table.get("state") != "CREATED":
            return None
        hosts = table["bundles_to_node_id"]
        return tuple(MachineId(hosts[bundle]) for bundle in sorted(hosts))

    def start_worker(
        self, vnode: VNode, bundle: int, name: str, cls: type[Any], args: Sequence[Any]
    ) -> RayWorker:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        amounts = vnode.resources.to_ray()
        options = {
            "name": name,
            "num_cpus": amounts.pop("CPU", 0),
            "num_gpus": amounts.pop("GPU", 0),
            "memory": amounts.pop("memory", None),
            "resources": amounts,
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._made, placement_group_bundle_index=bundle
            ),
        }
        actor = self._as_actor(cls).options(**options).remote(*args)
        worker = RayWorker(name, vnode, actor, self._workers.discard)
        self._workers.add(worker)
        return worker

    def remove(self) -> None:
        import ray
        from ray.util import remove_placement_group

        if self._removed:
            return
        self._removed = True
        for worker in tuple(self._workers):
            worker.kill()
        if ray.is_initialized() and not self._adopted:
            remove_placement_group(self._made)
        self._forget(self)

    def _table(self) -> dict[str, Any]:
        from ray.util import placement_group_table

        table: dict[str, Any] = placement_group_table(self._made)
        return table


def is_taken(name: str) -> bool:
    """Whether a placement group already has this name."""
    from ray.util import get_placement_group

    try:
        get_placement_group(name)
    except ValueError:
        return False
    return True


def _is_too_large(bundles: Iterable[Mapping[str, float]]) -> bool:
    """Whether a bundle fits no machine, even an idle one: Ray 2.53 and older do not report it."""
    machines = [each["Resources"] for each in private_ray.node_table() if each["Alive"]]
    return any(
        all(any(amount > has.get(name, 0.0) for name, amount in bundle.items()) for has in machines)
        for bundle in bundles
    )


class RayWorker:
    """An actor and its unanswered calls."""

    def __init__(
        self, name: str, vnode: VNode, actor: Any, forget: Callable[[RayWorker], None]
    ) -> None:
        self.name, self.vnode = name, vnode
        self._actor = actor
        self._forget = forget
        self._open: set[Future[Any]] = set()
        self._killed = False
        self._lock = threading.Lock()

    def call(self, method: str, /, *args: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()
        with self._lock:
            killed = self._killed
            self._open.add(answer)
        if killed:
            self._settle(answer, error=WorkerLost(self.name, KILLED))
            return answer
        try:
            asked = self._actor.packed_call.remote(*packed(method, args)).future()
        except Exception as error:
            self._settle(answer, error=explained(self.name, method, error))
        else:
            asked.add_done_callback(functools.partial(self._on_answer, answer, method))
        return answer

    def kill(self) -> None:
        import ray

        with self._lock:
            if self._killed:
                return
            self._killed = True
            unanswered = tuple(self._open)
        if ray.is_initialized():
            ray.kill(self._actor)
        for answer in unanswered:
            self._settle(answer, error=WorkerLost(self.name, KILLED))
        self._forget(self)

    def _on_answer(self, answer: Future[Any], method: str, asked: Future[Any]) -> None:
        error = asked.exception()
        if error is None:
            self._settle(answer, result=unpacked(asked.result()))
        else:
            self._settle(answer, error=explained(self.name, method, error))

    def _settle(
        self, answer: Future[Any], *, result: Any = None, error: FabricError | None = None
    ) -> None:
        """Answer a call once: a kill and Ray may both report its end."""
        with self._lock:
            if answer not in self._open:
                return
            self._open.remove(answer)
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
