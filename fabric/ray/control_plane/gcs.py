"""Gcs: the manager's calls to Ray's control plane, as coroutines.

In its Python API, Ray chooses the id of a placement group, but here the manager must (decision 16).
So this module sends the messages of Ray's own API to the GCS. It imports Ray on import.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import grpc

from ...core.audit import NAMES, Running
from ...core.cluster_state import JobId
from ...core.places.groups import GroupId, PlacementGroupRecord
from ...core.records import NODE_LABEL, Machine, MachineId, ProcessId
from ...core.resources import Resources
from ...core.selectors import to_ray
from ...errors import FabricError
from .. import private_ray
from .protocol import Observed, Seen, clear, seen_on
from .resource_view import MachineView, held, offered, view_of, wanted

common = private_ray.generated("common_pb2")
tables = private_ray.generated("gcs_pb2")
messages = private_ray.generated("gcs_service_pb2")

RPC_TIMEOUT_S = 10.0
REFUSALS, KNOCK_TIMEOUT_S = 3, 0.5
PLACING_S, PLACING_POLL_S = 60.0, 0.002
"""How long Ray may take to place a group that is to be removed, and how often to check."""
TASKS = 10_000
"""How many tasks an audit checks at most."""

_STATES = {
    tables.PlacementGroupTableData.PENDING: "pending",
    tables.PlacementGroupTableData.PREPARED: "pending",
    tables.PlacementGroupTableData.CREATED: "created",
    tables.PlacementGroupTableData.RESCHEDULING: "rescheduling",
}
_PLACING = {tables.PlacementGroupStats.QUEUED, tables.PlacementGroupStats.SCHEDULING_STARTED}
log = logging.getLogger(__name__)


class Gcs:
    """The GCS of one Ray cluster, for a process inside it."""

    def __init__(self, address: str, job: JobId) -> None:
        self._job = bytes.fromhex(job)
        self._raylets: dict[MachineId, tuple[str, int]] = {}
        self._names: dict[GroupId, str] = {}
        """The names of placed groups outside `known`, so that each is requested only once."""
        self._channel = private_ray.channel(address)
        self._calls = private_ray.gcs_calls(self._channel)

    async def create(
        self,
        group: PlacementGroupRecord,
        name: str,
        labels: Iterable[Mapping[str, str]],
        timeout_s: float,
    ) -> bool:
        known = list(labels)
        id = bytes.fromhex(group.id)
        spec = common.PlacementGroupSpec(
            placement_group_id=id,
            name=name,
            strategy=common.PlacementStrategy.Value(group.policy.value),
            creator_job_id=self._job,
            creator_job_dead=True,
            creator_actor_dead=True,
            is_detached=True,
        )
        for index, piece in enumerate(group.pieces):
            bundle = spec.bundles.add()
            bundle.bundle_id.placement_group_id = id
            bundle.bundle_id.bundle_index = index
            bundle.unit_resources.update(piece.resources.to_ray())
            if piece.machine is not None:
                bundle.label_selector[NODE_LABEL] = piece.machine
            elif piece.selector:
                bundle.label_selector.update(to_ray(piece.selector, known))
        # Ray lets callers wait for an unknown group, so its answer is not needed first.
        placed = asyncio.ensure_future(self._wait(id, timeout_s))
        try:
            answer = await self._ask("CreatePlacementGroup", placement_group_spec=spec)
            if answer.status.code:
                raise FabricError(f"Ray refuses a placement group: {answer.status.message}")
        except BaseException:
            placed.cancel()
            raise
        return await placed

    async def _wait(self, id: bytes, timeout_s: float) -> bool:
        request = messages.WaitPlacementGroupUntilReadyRequest(placement_group_id=id)
        try:
            call = self._calls["WaitPlacementGroupUntilReady"]
            answer = await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return False
            raise _explained(error) from error
        return int(answer.status.code) == 0

    async def look(self, id: GroupId) -> Seen | None:
        answer = await self._ask("GetPlacementGroup", placement_group_id=bytes.fromhex(id))
        if not answer.HasField("placement_group_table_data"):
            return None
        return _seen(answer.placement_group_table_data)

    async def remove(self, id: GroupId) -> None:
        """Remove a group after Ray has ended a placement: else raylets keep CPUs (decision 43)."""
        until = time.monotonic() + PLACING_S
        while (seen := await self.look(id)) is not None and seen.being_placed:
            if time.monotonic() > until:
                log.warning("Ray has not placed the group %s for %g s", id, PLACING_S)
                break
            await asyncio.sleep(PLACING_POLL_S)
        await self._ask("RemovePlacementGroup", placement_group_id=bytes.fromhex(id))

    async def available(self) -> Mapping[MachineId, Resources]:
        answer = await self._ask("GetAllAvailableResources")
        return {
            MachineId(each.node_id.hex()): offered(each.resources_available)
            for each in answer.resources_list
        }

    async def dead(self, actors: Collection[str]) -> frozenset[str]:
        if not actors:
            return frozenset()
        answer = await self._ask("GetAllActorInfo")
        alive = {
            each.actor_id.hex()
            for each in answer.actor_table_data
            if each.state != tables.ActorTableData.DEAD
        }
        return frozenset({*actors} - alive)

    async def over(self, processes: Collection[ProcessId]) -> frozenset[ProcessId]:
        asked = tuple(processes)
        answers = await asyncio.gather(
            *(self._ask("GetWorkerInfo", worker_id=bytes.fromhex(id)) for id in asked)
        )
        workers = [answer.worker_table_data for answer in answers]
        return frozenset(
            id
            for id, worker in zip(asked, workers, strict=True)
            if not worker.is_alive or worker.worker_address.node_id.hex() not in self._raylets
        )

    async def running(self, jobs: Collection[JobId]) -> tuple[Running, ...]:
        filters = messages.GetTaskEventsRequest.Filters(exclude_driver=True)
        filters.state_filters.add(state="RUNNING", predicate=messages.FilterPredicate.EQUAL)
        actors, tasks = await asyncio.gather(
            self._ask("GetAllActorInfo"), self._ask("GetTaskEvents", limit=TASKS, filters=filters)
        )
        found = [
            _running(each, "actor", each.actor_id, each.class_name, each.required_resources)
            for each in actors.actor_table_data
            if each.state == tables.ActorTableData.ALIVE and each.job_id.hex() in jobs
        ]
        for each in tasks.events_by_task:
            task = each.task_info
            if task.type == common.TaskType.NORMAL_TASK and each.job_id.hex() in jobs:
                found.append(
                    _running(each, "task", each.task_id, task.name, task.required_resources)
                )
        return tuple(found)

    async def bury(self) -> tuple[MachineId, ...]:
        """Unregister raylets whose port refuses connections: Ray itself would wait for 15 s."""
        asked = list(self._raylets.items())
        gone = await asyncio.gather(*(_nobody_listens(*where) for _, where in asked))
        dead = [id for (id, _), nobody in zip(asked, gone, strict=True) if nobody]
        for id in dead:
            info = common.NodeDeathInfo(
                reason=common.NodeDeathInfo.UNEXPECTED_TERMINATION,
                reason_message="nothing listens at the port of its raylet any more",
            )
            await self._ask("UnregisterNode", node_id=bytes.fromhex(id), node_death_info=info)
            del self._raylets[id]
        return tuple(dead)

    async def observe(self, known: Mapping[GroupId, int], *, everything: bool = False) -> Observed:
        nodes, usage, jobs = await asyncio.gather(
            self._ask("GetAllNodeInfo"),
            self._ask("GetAllResourceUsage"),
            self._ask(
                "GetAllJobInfo",
                skip_submission_job_info_field=True,
                skip_is_running_tasks_field=True,
            ),
        )
        alive = [node for node in nodes.node_info_list if node.state == tables.GcsNodeInfo.ALIVE]
        self._raylets = {
            MachineId(node.node_id.hex()): (node.node_manager_address, node.node_manager_port)
            for node in alive
        }
        ids = {node.node_id for node in alive}
        running = {
            JobId(job.job_id.hex()): job.config.metadata
            for job in jobs.job_info_list
            if not job.is_dead
        }
        there = [view_of(m) for m in usage.resource_usage_data.batch if m.node_id in ids]
        return Observed(
            machines=tuple(
                Machine(
                    id=MachineId(node.node_id.hex()),
                    hostname=node.node_manager_hostname,
                    total=offered(node.resources_total),
                    labels=dict(node.labels),
                )
                for node in sorted(alive, key=lambda node: bytes(node.node_id))
            ),
            groups=await (self._all() if everything else self._groups_in(there, known)),
            available={view.machine: view.available for view in there},
            in_use=frozenset[GroupId]().union(*(view.in_use for view in there)),
            wanted=wanted(usage.resource_usage_data.resource_load_by_shape.resource_demands),
            jobs=frozenset(running),
            named={job: told[NAMES] for job, told in running.items() if NAMES in told},
        )

    async def _all(self) -> dict[GroupId, Seen]:
        """Every placement group. Ray's answer also contains all that were ever removed."""
        answer = await self._ask("GetAllPlacementGroup")
        found = map(_seen, answer.placement_group_table_data)
        return {seen.id: seen for seen in found if seen is not None}

    async def _groups_in(
        self, there: Iterable[MachineView], known: Mapping[GroupId, int]
    ) -> dict[GroupId, Seen]:
        """The known placement groups and all placed ones, with as few calls as possible."""
        shown: dict[GroupId, dict[int, tuple[MachineId, Resources]]] = {}
        for view in there:
            for (id, index), carried in view.bundles.items():
                shown.setdefault(id, {})[index] = (view.machine, carried)
        found = clear(shown, known)
        self._names = {id: name for id, name in self._names.items() if id in shown}
        found.update(
            (id, seen_on(id, shown[id], name))
            for id, name in self._names.items()
            if id not in known
        )
        unclear = [id for id in {**shown, **known} if id not in found]
        for seen in await asyncio.gather(*map(self.look, unclear)):
            if seen is not None:
                found[seen.id] = seen
                if seen.id not in known:
                    self._names[seen.id] = seen.name
        return found

    async def _ask(self, call: str, **fields: Any) -> Any:
        request = getattr(messages, f"{call}Request")(**fields)
        try:
            return await self._calls[call](request, timeout=RPC_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise _explained(error) from error

    async def close(self) -> None:
        await self._channel.close()


async def _nobody_listens(host: str, port: int) -> bool:
    """Whether a port refuses `REFUSALS` connections in a row."""
    for _ in range(REFUSALS):
        try:
            async with asyncio.timeout(KNOCK_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            await asyncio.sleep(KNOCK_TIMEOUT_S / REFUSALS)
            continue
        except OSError:  # unreachable, perhaps only for now; includes TimeoutError
            return False
        writer.close()
        return False
    return True


def _explained(error: grpc.aio.AioRpcError) -> FabricError:
    return FabricError(f"Ray does not answer: {error.code().name}: {error.details()}")


def _running(found: Any, kind: str, id: bytes, name: str, required: Mapping[str, float]) -> Running:
    resources, group = held(required)
    job = JobId(found.job_id.hex())
    return Running(job=job, kind=kind, id=id.hex(), name=name, group=group, resources=resources)


def _seen(table: Any) -> Seen | None:
    state = _STATES.get(table.state)
    if state is None:
        return None
    return Seen(
        id=GroupId(table.placement_group_id.hex()),
        name=table.name,
        state=state,
        hosts=tuple(
            MachineId(bundle.node_id.hex()) if bundle.node_id else None for bundle in table.bundles
        ),
        carries=tuple(Resources.of(dict(bundle.unit_resources)) for bundle in table.bundles),
        why=tables.PlacementGroupStats.SchedulingState.Name(table.stats.scheduling_state),
        being_placed=table.state == tables.PlacementGroupTableData.PREPARED
        or (state != "created" and table.stats.scheduling_state in _PLACING),
    )
