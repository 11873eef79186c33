"""Whatever happens, and whenever the reconciler dies, Ray agrees with its state in the end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings, strategies as st

from fedpilot.fabric import Resources
from fedpilot.fabric.core.cluster_state import Entry, JobId
from fedpilot.fabric.core.invariants import broken
from fedpilot.fabric.core.records import DEFAULT, ROOT, ClusterId, ProcessId, WorkId
from fedpilot.fabric.core.routing.work import Work, WorkState
from fedpilot.fabric.errors import NeverFits, NoSuchCluster, TooLarge
from fedpilot.fabric.manager.routing.messages import Ask
from fedpilot.fabric.manager.settings import KeeperSettings
from fedpilot.fabric.testing.fake_cluster import fake_machine
from reconciler_world import STRICT_SPREAD, World, answer_of, asks, nodes, steps

JOBS = ("j0", "j1")
PROCESSES = ("p0", "p1")
CALLS = ("create", "wait", "look", "remove")
SHAPES: tuple[Callable[[str, str], Entry], ...] = (
    lambda name, inside: asks(name, nodes(1), inside=inside),
    lambda name, inside: asks(name, nodes(2, 2, policy=STRICT_SPREAD), inside=inside),
    lambda name, inside: asks(name, least=2, inside=inside),
    lambda name, inside: asks(name, nodes(2, 1), least=1, inside=inside),
    lambda name, inside: asks(name, least=1, most=4, inside=inside),
    lambda name, inside: asks(name, inside=inside),
    lambda name, inside: asks(name, nodes(1, 2), inside=inside, owner=JOBS[0]),
    lambda name, inside: asks(name, least=1, inside=inside, owner=JOBS[1]),
    lambda name, inside: asks(name, nodes(1, 1), inside=inside, group=f"group of {name}"),
)
cuts = st.none() | st.integers(0, 30)
happenings = st.one_of(
    st.tuples(st.just("create"), st.integers(0, 9), st.integers(0, len(SHAPES) - 1), cuts),
    st.tuples(st.just("delete"), st.integers(0, 9), st.just(0), cuts),
    st.tuples(st.just("pass"), st.integers(1, 20), st.just(0), cuts),
    st.tuples(st.just("lose"), st.integers(0, 9), st.just(0), cuts),
    st.tuples(st.just("find"), st.integers(1, 4), st.just(0), cuts),
    st.tuples(st.just("use"), st.integers(0, 9), st.integers(1, 4), cuts),
    st.tuples(st.just("stop"), st.integers(0, 9), st.just(0), cuts),
    st.tuples(st.just("spoil"), st.integers(0, 9), st.just(0), cuts),
    st.tuples(st.just("work"), st.integers(0, 9), st.integers(0, 1), cuts),
    st.tuples(st.just("submit"), st.integers(0, 9), st.integers(0, 7), cuts),
    st.tuples(st.just("task ends"), st.integers(0, 9), st.just(0), cuts),
    st.tuples(st.just("process ends"), st.integers(0, 1), st.just(0), cuts),
    st.tuples(st.just("job ends"), st.integers(0, 1), st.just(0), cuts),
    st.tuples(st.just("no answer"), st.integers(0, 3), st.just(0), cuts),
)


class Chronicle:
    """A world to which things happen, and what its people were told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.numbers = itertools.count(1)
        self.parents: dict[str, str] = {}
        self.owners: dict[str, JobId | None] = {}
        self.there: set[str] = set()
        self.gone: set[str] = set()

    async def happens(self, what: str, one: int, two: int, cut: int | None) -> None:
        """Something happens; the reconciler dies so many steps of its loop later."""
        ray, doing = self.world.ray, self.world.passes()
        match what:
            case "create":
                doing.close()
                doing = self._create(one, two)
            case "delete" if self.parents:
                doing.close()
                doing = self._delete(sorted(self.parents)[one % len(self.parents)])
            case "pass":
                doing.close()
                doing = self.world.passes(one / 4)
            case "lose" if len(ray.machines) > 1:
                ray.machine_down(sorted(ray.machines)[one % len(ray.machines)])
            case "find":
                ray.machine_up(fake_machine(f"m{next(self.numbers)}", CPU=one))
            case "use":
                machine = sorted(ray.machines)[one % len(ray.machines)]
                if Resources.of({"CPU": two}).fits(ray.free()[machine]):
                    ray.use(f"use{next(self.numbers)}", machine, {"CPU": two})
            case "stop" if ray.used:
                ray.stop(ray.used[one % len(ray.used)])
            case "spoil" if ours := sorted(self.world.ours()):
                ray.group_down(ours[one % len(ours)])
            case "work" if ours := sorted(self.world.ours()):
                (ray.work_down if two else ray.work_up)(ours[one % len(ours)])
            case "submit" if inside := sorted(
                self.world.cluster_state.ledger.clusters.keys() - {DEFAULT}
            ):
                doing.close()
                doing = self._submit(inside[one % len(inside)], *divmod(two, 4))
            case "task ends" if works := sorted(work.id for work in self.world.cluster_state.works):
                doing.close()
                doing = self._done(works[one % len(works)])
            case "process ends":
                ray.process_down(PROCESSES[one])
            case "job ends":
                ray.job_down(JOBS[one])
                self._over({id for id, owner in self.owners.items() if owner == JOBS[one]})
            case "no answer":
                ray.fail(CALLS[one], OSError("no answer"))
        task = asyncio.ensure_future(doing)
        if cut is None:
            await self.world.do(answer_of(task))
            return
        await steps(cut)
        if task.done():
            task.result()
        else:
            task.cancel()
        await self.world.dies()
        self.world.rises()
        await self.world.do(self.world.reconciler.start())

    async def _create(self, where: int, shape: int) -> None:
        parents = [ROOT, *sorted(self.world.cluster_state.ledger.clusters.keys() - {DEFAULT})]
        parent = parents[where % len(parents)] if where > 4 else ROOT
        name = f"c{next(self.numbers)}"
        self.parents[name] = parent
        asked = SHAPES[shape](name, parent)
        self.owners[name] = asked.owner
        with contextlib.suppress(NeverFits):
            await self.world.reconciler.create(asked)
            if asked.owner in (None, *self.world.ray.jobs):
                self.there.add(name)

    async def _submit(self, cluster: ClusterId, process: int, cpus: int) -> None:
        ask = Ask(
            id=WorkId(f"w{next(self.numbers)}"),
            cluster=cluster,
            demand=Resources.of({"CPU": cpus}),
            selector={},
            owner=ProcessId(PROCESSES[process]),
        )
        with contextlib.suppress(TooLarge):
            self.world.reconciler.router.place(ask)
        self.world.reconciler.admission.commit()

    async def _done(self, work: WorkId) -> None:
        self.world.reconciler.router.done([work])
        self.world.reconciler.admission.commit()

    async def _delete(self, name: str) -> None:
        self.there -= self._below({name})
        with contextlib.suppress(NoSuchCluster):
            await self.world.reconciler.delete(ClusterId(name))
        self.gone |= self._below({name})

    def _over(self, names: set[str]) -> None:
        """These have to end with all inside them."""
        self.there -= self._below(names)
        self.gone |= self._below(names)

    def _below(self, names: set[str]) -> set[str]:
        """These and all that were asked for inside them."""
        found = set(names)
        while more := {id for id, up in self.parents.items() if up in found} - found:
            found |= more
        return found

    async def ends(self) -> None:
        """Nothing happens any more; then there is room for everybody."""
        world, state = self.world, self.world.cluster_state
        await world.passes(30, turn_s=0.5)
        assert not world.wrong()
        struck = {
            id
            for id, event, why in (*world.told, *world.events())
            if event == "ended" and why.endswith("lost its places")
        }
        known = {str(id) for id in state.entries}
        assert self.there - self._below(struck) <= known
        assert not self.gone & known
        assert "starting" not in world.states().values()
        for use in world.ray.used:
            world.ray.stop(use)
        for group in world.ray.ids():
            world.ray.work_down(group)
        world.ray.machine_up(*(fake_machine(f"new{n}", CPU=40) for n in range(2)))
        await world.passes(30, turn_s=0.5)
        assert not world.wrong()
        uppermost = {n: s for n, s in world.states().items() if self.parents[n] == ROOT}
        assert {*uppermost.values()} <= {"active"}, world.states()
        for work in world.cluster_state.works:
            self._goes_on(work)

    def _goes_on(self, work: Work) -> None:
        """Work runs where the cluster state says, or whoever can let it run is there."""
        world, known = self.world, self.world.cluster_state.groups.get(work.group)
        match work.state:
            case WorkState.PLACED:
                assert known is not None
                assert work.vnode is not None
                assert known.pieces[work.bundle].vnode == work.vnode
                host = world.ray.seen(known.id).hosts[work.bundle]
                assert host == world.cluster_state.ledger.machine_of(work.vnode)
            case WorkState.QUEUED if known is None:
                others = world.cluster_state.works.on(work.group)
                assert any(each.state is WorkState.HELD for each in others)
            case WorkState.HELD:
                assert known is None


@settings(suppress_health_check=[HealthCheck.too_slow])
@example(story=[("create", 0, 0, None), ("find", 1, 0, None)], seed=77, lag=False)
@example(
    story=[
        ("lose", 0, 0, None),
        ("find", 2, 0, None),
        ("create", 0, 1, None),
        ("create", 0, 0, None),
        ("delete", 1, 0, None),
        ("lose", 0, 0, None),
        ("spoil", 0, 0, None),
    ],
    seed=0,
    lag=False,
)
@given(story=st.lists(happenings, max_size=14), seed=st.integers(0, 99), lag=st.booleans())
def test_ledger_and_ray_agree_whenever_the_reconciler_died(
    story: list[tuple[str, int, int, int | None]], seed: int, lag: bool
) -> None:
    async def tell(folder: str) -> None:
        world = World(Path(folder) / "ledger", KeeperSettings(lease_s=5.0))
        chance = random.Random(seed)
        world.ray.turns = lambda: chance.randint(0, 4)
        world.ray.lag_s = 0.3 if lag else 0.0
        if seed % 2:
            world.ray.prefers = lambda machine: machine[::-1]
        for job in JOBS:
            world.ray.job_up(job)
        for process in PROCESSES:
            world.ray.process_up(process)
        try:
            await world.begins(fake_machine("a", CPU=4), fake_machine("b", CPU=4))
            chronicle = Chronicle(world)
            for happening in story:
                await chronicle.happens(*happening)
                assert not broken(world.cluster_state.ledger)
            await chronicle.ends()
        finally:
            world.file.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(tell(folder))
