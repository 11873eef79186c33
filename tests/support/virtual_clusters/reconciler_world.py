"""A reconciler with its file, a Ray on paper and a clock: the world of its tests."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fedpilot.fabric import Bundle, Machine, Resources, SchedulingPolicy, VNodeId
from fedpilot.fabric.core.cluster_state import ClusterState, Entry, JobId
from fedpilot.fabric.core.invariants import broken
from fedpilot.fabric.core.places.groups import GroupId
from fedpilot.fabric.core.places.request import Request
from fedpilot.fabric.core.records import DEFAULT, ROOT, BundleGroup, ClusterId, ProcessId, WorkId
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.core.routing.work import Work
from fedpilot.fabric.core.scheduling.records import SchedulingPlan
from fedpilot.fabric.core.selectors import In
from fedpilot.fabric.manager.files.ledger_file import LedgerFile
from fedpilot.fabric.manager.reconciler import Reconciler
from fedpilot.fabric.manager.routing.messages import Ask
from fedpilot.fabric.manager.settings import KeeperSettings
from fedpilot.fabric.testing.fake_cluster import ManualClock, fake_machine
from fedpilot.fabric.testing.fake_gcs import FakeRay

GRACE_S = 10.0
TWO_TEAMS: Mapping[str, Any] = {
    "projects": [
        {"name": "vision", "quota": {"default": {"CPU": 4}}},
        {"name": "speech", "quota": {"default": {"CPU": 4}}},
    ],
    "settings": {"grace_s": GRACE_S, "stale_gang_grace_s": 5.0},
}
"""A file of queues for a Ray of two machines with 4 CPUs each."""
PACK, STRICT_SPREAD = SchedulingPolicy.PACK, SchedulingPolicy.STRICT_SPREAD
P = ParamSpec("P")
Answer = TypeVar("Answer")


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is told in the reconciler's own loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@dataclass
class World:
    """A reconciler with its file, its Ray and its clock."""

    path: Path
    settings: KeeperSettings = field(default_factory=KeeperSettings)
    clock: ManualClock = field(default_factory=lambda: ManualClock(1000.0))
    plan_steps: int = 0
    told: list[tuple[str, str, str]] = field(default_factory=list)
    """What reconcilers that are dead have told."""

    def __post_init__(self) -> None:
        self.ray = FakeRay(self.clock)
        self.ids = itertools.count(1)
        self.rises()

    def rises(self) -> None:
        """A reconciler begins, and knows what is in the file."""
        self.file = LedgerFile(self.path)
        self.reconciler = Reconciler(
            self.ray,
            self.file,
            clock=self.clock,
            new_id=lambda _: GroupId(f"g{next(self.ids)}"),
            settings=self.settings,
            aside=self.aside,
        )

    async def aside(self, plan: Callable[[], SchedulingPlan]) -> SchedulingPlan:
        """A plan is made in as many steps of the loop as `plan_steps` says."""
        found = plan()
        await steps(self.plan_steps)
        return found

    async def begins(self, *machines: Machine) -> None:
        self.ray.machine_up(*machines)
        await self.do(self.reconciler.start())

    async def dies(self) -> None:
        """The reconciler's process ends where it is, without a word."""
        self.told += self.events()
        self.file.close()
        lost = asyncio.all_tasks() - {asyncio.current_task()}
        for task in lost:
            task.cancel()
        await asyncio.gather(*lost, return_exceptions=True)

    async def again(self) -> None:
        """The reconciler's process ends, and another begins."""
        await self.dies()
        self.rises()
        await self.do(self.reconciler.start())

    async def do(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """An answer; time goes on only when nothing else does."""
        task = asyncio.ensure_future(work)
        for step in itertools.count(1):
            if task.done():
                break
            await asyncio.sleep(0)
            if step % 40 == 0:
                self.clock.advance(0.1)
        return task.result()

    async def create(self, *entries: Entry) -> list[str]:
        return [await self.do(self.reconciler.create(each)) for each in entries]

    async def delete(self, name: str) -> tuple[str, ...]:
        return await self.do(self.reconciler.delete(ClusterId(name)))

    async def passes(self, seconds: float = 0.25, turn_s: float = 0.25) -> None:
        """Time passes, and the reconciler looks at Ray again and again."""
        until = self.clock() + seconds
        while self.clock() < until:
            self.clock.advance(turn_s)
            await self.do(self.reconciler.turn())
            await steps(40)

    @property
    def cluster_state(self) -> ClusterState:
        return self.reconciler.state

    def state(self, name: str) -> str:
        return self.reconciler.statuses.state(ClusterId(name))

    def states(self) -> dict[str, str]:
        return {str(id): self.reconciler.statuses.state(id) for id in self.cluster_state.entries}

    def reason(self, name: str) -> str:
        return self.reconciler.statuses.reason(ClusterId(name))

    def hosts(self, name: str) -> dict[str, str]:
        """The machine of each vnode of a virtual cluster."""
        return {
            str(each.id): str(each.machine)
            for each in self.cluster_state.ledger.of(ClusterId(name))
        }

    def machine_of(self, work: Work) -> str:
        """Where work was placed."""
        assert work.vnode is not None
        return str(self.cluster_state.ledger.machine_of(work.vnode))

    def groups(self, name: str) -> list[GroupId]:
        return [group.id for group in self.cluster_state.groups.of_cluster(ClusterId(name))]

    def ours(self) -> set[GroupId]:
        return self.ray.ids(f"fedpilot:{self.file.name}:")

    def events(self) -> list[tuple[str, str, str]]:
        return [(e["cluster"], e["event"], e["reason"]) for e in self.reconciler.statuses.history()]

    def wrong(self) -> list[str]:
        """Where the cluster state, their file and Ray do not agree; nothing while all is well."""
        ledger, groups = self.cluster_state.ledger, self.cluster_state.groups
        found = broken(ledger)
        self.ray.free()  # raises if a machine carries more than it has
        known = {group.id for group in groups}
        found += [f"{id} is in Ray only" for id in sorted(self.ours() - known)]
        found += [f"{id} is in the cluster state only" for id in sorted(known - self.ours())]
        carried: dict[VNodeId, Resources] = {}
        for group in groups:
            hosts = self.ray.seen(group.id).hosts if group.id in self.ours() else ()
            for piece, host in zip(group.pieces, hosts, strict=False):
                vnode = None if piece.vnode is None else ledger.vnodes.get(piece.vnode)
                if vnode is not None and host not in (None, vnode.machine):
                    found.append(f"{vnode.id} is on {host}, not on {vnode.machine}")
                if vnode is not None:
                    carried[vnode.id] = carried.get(vnode.id, Resources()) + piece.resources
        for id, each in ledger.vnodes.items():
            if each.cluster != DEFAULT and carried.get(id, Resources()) != ledger.own(id):
                found.append(f"{carried.get(id)} carries {id}, which has {ledger.own(id)}")
        held = {id for id, entry in self.cluster_state.entries.items() if not entry.waiting}
        if held != ledger.clusters.keys() - {DEFAULT}:
            found.append(f"{sorted(held)} hold places, not {sorted(ledger.clusters)}")
        file = LedgerFile(self.path)
        saved = file.load()
        file.close()
        if (_but_begun(saved.entries), {g.id: g for g in saved.groups}) != (
            _but_begun(self.cluster_state.entries),
            {g.id: g for g in groups},
        ) or (saved.ledger.vnodes, saved.ledger.machines) != (ledger.vnodes, ledger.machines):
            found.append("the file says something else")
        anew = ClusterState(entries=self.cluster_state.entries.values())
        if vars(self.cluster_state.index) != vars(anew.index):
            found.append("the index of the entries says something else")
        if saved.order != self.cluster_state.order:
            found.append("the file has another order of the requests")
        return found


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def two() -> tuple[Machine, Machine]:
    return fake_machine("a", CPU=4), fake_machine("b", CPU=4)


def nodes(*amounts: float, policy: SchedulingPolicy = PACK, **selector: str) -> BundleGroup:
    asked = {label: In(value) for label, value in selector.items()}
    bundles = tuple(
        Bundle(resources=Resources.of({"CPU": amount}), selector=asked) for amount in amounts
    )
    return BundleGroup(bundles=bundles, policy=policy)


def up_to(most: int, group: BundleGroup) -> BundleGroup:
    """A group that may have so many nodes."""
    return replace(group, most=most)


def asks(
    name: str,
    *groups: BundleGroup,
    least: float = 0,
    most: float | None = None,
    inside: str = ROOT,
    owner: str | None = None,
    process: str | None = None,
    group: str | None = None,
    **more: Any,
) -> Entry:
    request = Request(
        id=ClusterId(name),
        parent=ClusterId(inside),
        groups=groups,
        least=Resources.of({"CPU": least}),
        limits={} if most is None else {"CPU": round(most * UNIT)},
        flexible=bool(least or most is not None or not groups),
        **more,
    )
    job = None if owner is None else JobId(owner)
    return Entry(
        request=request,
        spec={"of": repr(request)},
        owner=job,
        process=None if process is None else ProcessId(process),
        group=None if group is None else GroupId(group),
        asked_at=1000.0,
    )


def submits(
    world: World,
    cluster: str,
    id: str,
    cpus: float,
    owner: str = "",
    inside: tuple[GroupId, int] | None = None,
) -> Work:
    """Work that was sent somewhere."""
    ask = Ask(
        id=WorkId(id),
        cluster=ClusterId(cluster),
        demand=Resources.of({"CPU": cpus}),
        selector={},
        owner=ProcessId(owner),
        inside=inside,
    )
    found = world.reconciler.router.place(ask)
    world.reconciler.admission.commit()
    assert found is not None
    return found


async def answer_of(task: asyncio.Future[Answer]) -> Answer:
    return await task


def applies(
    world: World, document: Mapping[str, Any], revision: int | None = None
) -> Mapping[str, Any]:
    """What the manager answers to a file of queues."""
    admission = world.reconciler.admission
    return admission.apply_queues(document, revision, "ann", dry_run=False)


def entry(world: World, name: str) -> Entry:
    return world.cluster_state.entries[ClusterId(name)]


def said(world: World, name: str) -> list[str]:
    """The events of a virtual cluster, oldest first."""
    return [event for id, event, _ in world.events() if id == name]


def _but_begun(entries: Mapping[ClusterId, Entry]) -> dict[ClusterId, Entry]:
    """Entries, but for whether they have begun, which the file learns of a little later."""
    return {id: replace(entry, begun=False) for id, entry in entries.items()}
