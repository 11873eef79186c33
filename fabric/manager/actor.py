"""The manager as Ray runs it: one detached actor per Ray cluster, on the head's machine.

The first process that needs it creates it; others find it by name. Ray restarts it, and callers
repeat their calls, so each method must tolerate being called twice. Its state is a file in the
folder of Ray's session.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import platform
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.cluster_state import Entry, JobId
from ..core.pickle_names import travels
from ..core.places.groups import GroupId, group_id
from ..core.places.request import Request
from ..core.ray_clusters.declaration import HEAD_FILE, LEDGER, LEDGER_FILE, MACHINES_COME
from ..core.records import ClusterId, ProcessId, WorkId
from ..errors import FabricError, NameTaken
from ..ray import private_ray
from ..ray.control_plane.autoscaler import Autoscaler
from ..ray.control_plane.demand_feed import DemandFeed
from ..ray.control_plane.manager_deaths import not_told
from .files.head_file import HeadFile, file_of, state_folder
from .files.ledger_file import LedgerFile, own
from .queue_calls import QueueCalls
from .reconciler import Reconciler
from .routing.messages import Ask, Placed
from .rpc import Address, Port
from .settings import KeeperSettings
from .snapshot import Snapshot

NAME, NAMESPACE = "virtual_cluster_manager", "fedpilot"
FED = 1_000
"""How many waiting virtual clusters an autoscaler is told of at most."""
ASK_S = 1.0
"""The pause between two looks at the request to Ray's autoscaler."""
RECORD_S = 5.0
"""How long an answer waits at most until the next head's record contains it."""
COLLECT_S = 600.0
"""How often all that the manager holds is searched for garbage. Python would do so whenever a plan
has made many objects, and every caller would wait for it."""
HEAD_S = 60.0
"""How long a Ray cluster may be without a head that is alive."""
HEAD_LOOK_S = 0.2
"""The pause between two looks for one."""
CALLS = 2000
"""How many callers may wait at the same time."""
log = logging.getLogger(__name__)


@travels
class ManagerActor:
    """The actor: a reconciler in the event loop that answers its calls.

    Ray pickles this class with a reference to each method, and every driver that finds the actor
    loads it. A driver of a version that lacks one of the names cannot call the manager at all, so
    no method is added, removed or renamed, not even a private one.
    """

    def __init__(self, folder: str, settings: KeeperSettings) -> None:
        import ray

        self._folder = Path(folder)
        self._settings = replace(settings, machines_come=True) if _grows() else settings
        self._begun: asyncio.Future[Reconciler] | None = None
        self._address: Address | None = None
        self._head: HeadFile | None = None
        self._lock: int | None = None
        # The loop exists only after a first call, so the actor calls itself.
        ray.get_runtime_context().current_actor.begin.remote()

    async def begin(self) -> None:
        """Load the cluster state and maintain it from now on, unless that has begun."""
        await self._keeper()

    async def address(self) -> Address | None:
        """The address for calls that bypass Ray; None if there is none."""
        await self._keeper()
        return self._address

    async def create(self, entry: Entry, wait_s: float) -> Mapping[str, Any]:
        """Admit a virtual cluster or queue it; return its state after at most `wait_s`."""
        reconciler = await self._keeper()
        await reconciler.create(entry, wait_s=wait_s)
        if entry.owner is None:  # for others, the next turn's record is soon enough
            await self._record(reconciler)
        return Snapshot(reconciler).brief(entry.request.id)

    async def check(self, request: Request, user: str = "") -> None:
        """Refuse what could never be admitted, or not for this user."""
        reconciler = await self._keeper()
        if request.id in reconciler.state.entries:
            raise NameTaken(request.id)
        reconciler.admission.check(request, user)

    async def attach(self, cluster: ClusterId, job: JobId) -> None:
        """Record that a job of Ray works in a virtual cluster, and should work nowhere else."""
        (await self._keeper()).attach(cluster, job)

    async def delete(
        self, id: ClusterId, key: str, user: str = "", force: bool = False
    ) -> tuple[str, ...]:
        """End a virtual cluster and all inside it; a repeated key gets the first answer."""
        reconciler = await self._keeper()
        entry = reconciler.state.entries.get(id)
        ended = await reconciler.delete(id, key, user=user, force=force)
        if entry is not None and entry.owner is None:
            await self._record(reconciler)
        return ended

    async def restore(self, names: Sequence[str], user: str) -> Mapping[str, Any]:
        """Request virtual clusters of earlier heads again: these, or all detached ones."""
        reconciler = await self._keeper()
        if self._head is None:
            raise FabricError("what was on heads before cannot be read: its log says why")
        restored, refused = reconciler.restore(self._head.record, names, user)
        brief = Snapshot(reconciler).brief
        found = {"restored": [brief(name) for name in restored], "refused": refused}
        await self._record(reconciler)
        return found

    async def forget(self, names: Sequence[str]) -> tuple[str, ...]:
        """No longer list these, or all, as lost with a head; return those that were listed."""
        reconciler = await self._keeper()
        if self._head is None:
            return ()
        gone = [each.id for each in self._head.record.gone if each.id in names or not names]
        await self._head.keep(reconciler.state.entries, time.time(), drop=gone)
        return tuple(gone)

    async def show(self, id: ClusterId) -> Mapping[str, Any]:
        """One virtual cluster as a document."""
        return Snapshot(await self._keeper()).cluster(id)

    async def snapshot(self) -> Mapping[str, Any]:
        """Everything as a document."""
        reconciler = await self._keeper()
        document = Snapshot(reconciler).document()
        if self._head is None:
            return document
        return {**document, "head": self._head.document(reconciler.state.entries, time.time())}

    async def place(self, ask: Ask) -> Placed | None:
        """Say where a task or an actor runs; None if it may not wait and there is no room."""
        reconciler = await self._keeper()
        work = await reconciler.place(ask)
        return None if work is None else reconciler.router.placed(work)

    async def place_all(self, ask: Ask, more: Sequence[WorkId]) -> list[Placed]:
        """Say where a task runs, and promise places to as many of `more` like it as can wait."""
        reconciler = await self._keeper()
        return [reconciler.router.placed(work) for work in await reconciler.place_all(ask, more)]

    async def begun(self, id: WorkId, actor: str) -> None:
        """Record which actor the work is."""
        reconciler = await self._keeper()
        reconciler.router.begun(id, actor)
        reconciler.admission.commit()

    async def done(self, owner: ProcessId, ids: Sequence[WorkId]) -> None:
        """Record that a process is alive, and which of its work has ended."""
        reconciler = await self._keeper()
        reconciler.router.heard(owner)
        reconciler.router.done(ids)
        reconciler.admission.commit()

    async def unused(self, owner: ProcessId, ids: Sequence[WorkId]) -> None:
        """Take back places that were promised to a process."""
        reconciler = await self._keeper()
        reconciler.router.heard(owner)
        reconciler.router.done(ids, ran=False)
        reconciler.admission.commit()

    async def cluster_of(self, group: GroupId) -> tuple[str, str, bool] | None:
        """A group's virtual cluster, its parent, and whether it is a nested placement group."""
        state = (await self._keeper()).state
        if group not in state.groups:
            return None
        id = state.groups[group].cluster
        entry = state.entries.get(id)
        return None if entry is None else (id, entry.request.parent, entry.group is not None)

    async def history(self) -> tuple[Mapping[str, Any], ...]:
        """The latest events, oldest first."""
        return (await self._keeper()).statuses.history()

    async def python(self) -> str:
        """The path of this Ray cluster's Python on the head's machine."""
        return sys.executable

    async def pid(self) -> int:
        """The id of this process."""
        return os.getpid()

    async def _keeper(self) -> Reconciler:
        if self._begun is None or (self._begun.done() and self._begun.exception() is not None):
            self._begun = asyncio.ensure_future(self._begin())  # also after a failure
        return await asyncio.shield(self._begun)

    async def _begin(self) -> Reconciler:
        import ray

        private_ray.require(private_ray.MANAGER)
        from ..ray.control_plane.gcs import Gcs

        context = ray.get_runtime_context()
        job = JobId(context.get_job_id())
        path = ledger_path(self._folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = await own(path)
        address, session = context.gcs_address, self._folder.parent.name
        self._head = await HeadFile.open(head_path(address), session, time.time())
        file = LedgerFile(path)
        try:
            new_head = file.follow(session)
            reconciler = Reconciler(
                Gcs(address, job),
                file,
                clock=time.time,
                new_id=lambda cluster: group_id(cluster, secrets.token_hex(10), job),
                settings=self._settings,
            )
            await reconciler.start()
            if new_head and self._head is not None:
                _, refused = reconciler.restore(self._head.record, (), "the new head")
                for name, why in refused.items():
                    log.warning("%s is not restored: %s", name, why)
                file.restored()
        except BaseException:
            file.close()  # the next attempt opens it
            raise
        methods = dict(inspect.getmembers(self, inspect.iscoroutinefunction))
        asked = {name: each for name, each in methods.items() if not name.startswith("_")}
        calls = {**asked, **QueueCalls(reconciler).by_name}
        self._address = await Port(calls).open(context.worker.node_ip_address)
        requests = private_ray.AutoscalerRequests(address)
        autoscaler = Autoscaler(requests, file)
        feed = DemandFeed(requests.put_value) if LEDGER in os.environ else None
        self._turning = asyncio.create_task(self._turn(reconciler, autoscaler, feed))
        return reconciler

    async def _record(self, reconciler: Reconciler, wait_s: float = RECORD_S) -> None:
        if self._head is not None:
            await self._head.keep(reconciler.state.entries, time.time(), wait_s=wait_s)

    async def _turn(
        self, reconciler: Reconciler, autoscaler: Autoscaler, feed: DemandFeed | None
    ) -> None:
        asked, collected = 0.0, -COLLECT_S
        while True:
            await asyncio.sleep(self._settings.turn_s)
            if time.monotonic() > collected + COLLECT_S:
                collected = time.monotonic()
                collect()
            try:
                await reconciler.turn()
                await self._record(reconciler, wait_s=0.0)
                if time.monotonic() > asked + ASK_S:
                    asked = time.monotonic()
                    await autoscaler.ask(reconciler.admission.unplaced.with_all_held())
                    if feed is not None:
                        await feed.publish(reconciler.admission.unplaced.gangs(FED))
            except Exception:
                log.exception("a look at Ray failed; the next is in %s s", self._settings.turn_s)
            if reconciler.admission.lost:
                log.error("the ledger's file cannot be written any more: starting again from it")
                os._exit(1)


def _grows() -> bool:
    """Whether machines may come to this Ray cluster, as its declaration says."""
    return MACHINES_COME in os.environ


def ledger_path(folder: Path) -> Path:
    """The ledger's file: in this folder of Ray's session, or where a declaration has it."""
    return Path(os.environ.get(LEDGER) or folder) / LEDGER_FILE


def head_path(address: str) -> Path:
    """The record of a head at this address: in this user's folder of state, or beside the ledger
    that a declaration keeps."""
    if LEDGER in os.environ:
        return Path(os.environ[LEDGER]) / HEAD_FILE
    return file_of(state_folder(), platform.node(), address)


def collect() -> None:
    """Collect all garbage, and leave what is left out of later collections."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def find_or_create(settings: KeeperSettings | None = None) -> Any:
    """The manager of the Ray cluster that this process is connected to, created if missing."""
    private_ray.require(private_ray.MANAGER)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    try:
        manager = ray.get_actor(NAME, namespace=NAMESPACE)
    except ValueError:
        actor: Any = ray.remote(ManagerActor)
        manager = actor.options(
            name=NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,  # Ray reports each retry to drivers; callers retry themselves
            max_concurrency=CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(living_head(), soft=False),
        ).remote(str(Path(private_ray.session_folder()) / "fedpilot"), settings or KeeperSettings())
    not_told(manager)
    return manager


def living_head() -> str:
    """The id of the head's node. A new head joins a moment after its control plane.

    FabricError if there is none for a minute.
    """
    end_s = time.monotonic() + HEAD_S
    while True:
        for node in private_ray.node_table():
            if node["Alive"] and "node:__internal_head__" in node["Resources"]:
                return str(node["NodeID"])
        if time.monotonic() > end_s:
            raise FabricError("this Ray cluster has no head machine that is alive")
        time.sleep(HEAD_LOOK_S)
