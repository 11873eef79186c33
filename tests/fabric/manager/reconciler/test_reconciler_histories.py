"""Whatever happens, and whenever the reconciler dies, Ray agrees with its state in the end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings, strategies as st

from fedpilot.fabric import Resources
from fedpilot.fabric.core.cluster_state import Entry, JobId
from fedpilot.fabric.core.invariants import broken
from fedpilot.fabric.core.records import (
    DEFAULT,
    ROOT,
    ClusterId,
    ProcessId,
    VNodeId,
    VNodeKind,
    WorkId,
    number_of,
)
from fedpilot.fabric.core.routing.work import Work, WorkState
from fedpilot.fabric.core.scheduling.plan import plan
from fedpilot.fabric.core.scheduling.records import SchedulingPlan
from fedpilot.fabric.errors import NeverFits, NoSuchCluster, QueueInUse, QueueRefused, TooLarge
from fedpilot.fabric.manager.routing.messages import Ask
from fedpilot.fabric.manager.scheduling.case_document import case_document
from fedpilot.fabric.manager.scheduling.live_facts import LiveFacts
from fedpilot.fabric.manager.settings import KeeperSettings
from fedpilot.fabric.simulation.case_file import read_cases
from fedpilot.fabric.simulation.case_schema import SettleCase
from fedpilot.fabric.simulation.settling import settle_case
from fedpilot.fabric.testing.fake_cluster import fake_machine
from reconciler_world import STRICT_SPREAD, World, answer_of, asks, nodes, steps, up_to

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
SHARED: tuple[Callable[[str, str], Entry], ...] = (
    lambda name, inside: asks(name, nodes(2), inside=inside, project="vision"),
    lambda name, inside: asks(name, nodes(2, 2), inside=inside, project="speech"),
    lambda name, inside: asks(name, least=3, inside=inside, project="speech"),
    lambda name, inside: asks(name, nodes(1), inside=inside, project="vision", preemptible=False),
    lambda name, inside: asks(
        name, nodes(2), inside=inside, project="vision", priority_class="build"
    ),
    lambda name, inside: asks(name, nodes(3, 1), least=1, inside=inside, project="speech"),
    lambda name, inside: asks(name, up_to(6, nodes(1)), inside=inside, project="vision"),
    lambda name, inside: asks(
        name, nodes(1), up_to(3, nodes(2, 2)), least=1, inside=inside, project="speech"
    ),
    lambda name, inside: asks(
        name,
        up_to(3, nodes(1, 1, policy=STRICT_SPREAD)),
        up_to(2, nodes(1)),
        inside=inside,
        project="speech",
        preemptible=False,
    ),
    lambda name, inside: asks(name, up_to(4, nodes(1, 1)), inside=inside),
    lambda name, inside: asks(name, least=1, most=6, inside=inside, project="vision"),
    lambda name, inside: asks(name, nodes(1), most=8, inside=inside, project="speech"),
    lambda name, inside: asks(name, nodes(4), inside=inside, project="speech"),
)
"""Those that wait in the queues of a file."""


def file_of(vision: float, speech: float, default: float = 0) -> dict[str, Any]:
    """A file of queues with these quotas."""
    quotas = {"vision": vision, "speech": speech, "default": default}
    projects = [{"name": n, "quota": {"default": {"CPU": q}}} for n, q in quotas.items()]
    return {"projects": projects, "settings": {"grace_s": 2.0, "stale_gang_grace_s": 3.0}}


def looking_back() -> dict[str, Any]:
    """A file of queues whose shares look back."""
    file = file_of(1, 1)
    weights: dict[str, Any] = {"over_quota_weight": {"default": {"CPU": 1.0}}}
    return {
        "projects": [{**each, **weights} for each in file["projects"]],
        "settings": {**file["settings"], "usage_effect": 1.0, "usage_half_life_s": 7.0},
    }


def consolidating(vision: float, speech: float, default: float) -> dict[str, Any]:
    """A file of queues that lets work move."""
    file = file_of(vision, speech, default)
    return {**file, "settings": {**file["settings"], "consolidation": True}}


FILES = (
    file_of(4, 4),
    file_of(0, 8),
    file_of(8, 0),
    file_of(2, 2, 4),
    looking_back(),
    consolidating(4, 4, 4),
    consolidating(9, 9, 9),
)
LAST = file_of(1000, 1000, 1000)
"""With room and quota for everybody."""
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
shared = st.one_of(
    happenings,
    st.tuples(st.just("share"), st.integers(0, 9), st.integers(0, len(SHARED) - 1), cuts),
    st.tuples(st.just("share"), st.integers(0, 4), st.integers(0, len(SHARED) - 1), cuts),
    st.tuples(st.just("apply"), st.integers(0, len(FILES) - 1), st.just(0), cuts),
    st.tuples(st.just("leave"), st.integers(0, 9), st.just(0), cuts),
    st.tuples(st.just("pass"), st.integers(1, 40), st.just(0), cuts),
)
"""What happens where teams share a Ray cluster."""


def assert_plans_as_if_anew(world: World) -> None:
    """Facts that are kept up to date lead to the same plan as facts made anew."""
    admission, now = world.reconciler.admission, world.clock()
    kept = admission.root.facts
    anew = LiveFacts(admission.state, admission.book.queues, admission.root.usage)
    resting = world.reconciler.statuses.resting
    stale, stuck = admission.root.stale_since, admission.root.stuck
    plans = []
    for facts in (kept, anew):
        facts.refresh(now, resting=resting, stale_since=stale, stuck=stuck)
        plans.append(plan(facts.snapshot(), now, facts.settings))
    assert plans[0] == plans[1]
    anew.refresh(now, stale_since=stale)
    document = case_document(admission.state, anew, now)
    written = json.loads(json.dumps({"schema_version": 2, **document}))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "case.json"
        file.write_text(json.dumps(written))
        (case,) = read_cases(file)
    assert isinstance(case, SettleCase)
    expected = plan(anew.snapshot(), now, anew.settings)
    simulated: list[SchedulingPlan] = []
    settle_case(case, lambda _, found: simulated.append(found))
    assert simulated[0].decisions == expected.decisions
    assert simulated[0].waits == expected.waits


def assert_nodes_within_bounds(world: World) -> None:
    """No group has more nodes than it may, and only nodes above a minimum leave alone."""
    for id, entry in world.cluster_state.entries.items():
        request = entry.request
        fixed = [v.id for v in world.cluster_state.ledger.of(id) if v.kind is VNodeKind.FIXED]
        counts = Counter(request.group_of(number_of(node)) for node in fixed)
        most = {at: len(each.bundles) + each.surplus for at, each in enumerate(request.groups)}
        assert all(count <= most[at] for at, count in counts.items()), (id, fixed)
        if request.parent != ROOT:
            assert not any(map(request.is_surplus, fixed))
        flexible = {v.id for v in world.cluster_state.ledger.of(id)} - {*fixed}
        leaving = {each.node for each in entry.nodes_leave}
        assert {node for node in leaving if node and "@" not in node} <= {*fixed}
        assert not any(map(request.is_surplus, flexible))


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
            case "share":
                doing.close()
                doing = self._create(one, two, SHARED)
            case "apply":
                doing.close()
                doing = self._apply(FILES[one])
            case "leave" if noticed := self._noticed():
                self.world.reconciler.admission.root.leave(*noticed[one % len(noticed)])
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

    def _noticed(self) -> list[tuple[ClusterId, VNodeId | None]]:
        """The virtual clusters under notice, or the single nodes of some."""
        entries = self.world.cluster_state.entries
        found = [(id, each.node) for id, entry in entries.items() for each in entry.notices]
        return sorted(found, key=lambda each: (each[0], each[1] or ""))

    async def _apply(self, file: dict[str, Any]) -> None:
        with contextlib.suppress(QueueInUse):
            self.world.reconciler.admission.apply_queues(file, None, "ann", dry_run=False)

    async def _create(
        self, where: int, shape: int, shapes: Sequence[Callable[[str, str], Entry]] = SHAPES
    ) -> None:
        parents = [ROOT, *sorted(self.world.cluster_state.ledger.clusters.keys() - {DEFAULT})]
        parent = parents[where % len(parents)] if where > 4 else ROOT
        name = f"c{next(self.numbers)}"
        self.parents[name] = parent
        asked = shapes[shape](name, parent)
        self.owners[name] = asked.owner
        with contextlib.suppress(NeverFits, QueueRefused):
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

    async def begins(self, how: str) -> None:
        """A claimant asks where free room is `scattered`, or where all is `lent`."""
        match how:
            case "scattered":
                for _ in range(3):
                    await self._create(0, 0, SHARED)
                await self._delete("c2")
            case "lent":
                await self._create(0, 10, SHARED)
                if "c1" in self.world.cluster_state.ledger.clusters:  # a limit may hold it up
                    for cpus in (3, 3):
                        await self._submit(ClusterId("c1"), 0, cpus)
        if how != "empty":
            await self._create(0, len(SHARED) - 1, SHARED)

    async def ends(self) -> None:
        """Nothing happens any more; then there is room for everybody."""
        world, state = self.world, self.world.cluster_state
        await world.passes(30, turn_s=0.5)
        turns = world.reconciler.admission.book.file.settings.usage_effect  # then none rests
        promised = [each for each in state.entries.values() if each.promised]
        assert turns or not (world.wrong() or self._noticed() or promised)
        struck = {
            id
            for id, event, why in (*world.told, *world.events())
            if event == "ended" and why.endswith(("lost its places", "which it was on, left"))
        }
        known = {str(id) for id in state.entries}
        assert self.there - self._below(struck) <= known
        assert not self.gone & known
        assert turns or "starting" not in world.states().values()
        for use in world.ray.used:
            world.ray.stop(use)
        for group in world.ray.ids():
            world.ray.work_down(group)
        world.ray.machine_up(*(fake_machine(f"new{n}", CPU=40) for n in range(2)))
        if world.reconciler.admission.book.revision:
            world.reconciler.admission.apply_queues(LAST, None, "ann", dry_run=False)
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
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(tell(Path(folder), story, seed, lag=lag))


@settings(suppress_health_check=[HealthCheck.too_slow])
@example(
    story=[
        ("create", 0, 4, None),
        ("submit", 0, 2, None),
        ("create", 0, 0, None),
        ("task ends", 0, 0, None),
        ("submit", 0, 0, None),
        ("create", 0, 1, None),
    ],
    file=file_of(4, 4),
    seed=0,
    lag=False,
    aside=None,
    begun="empty",
)
@example(
    story=[
        ("delete", 0, 0, 15),
        ("use", 1, 2, None),
        ("pass", 10, 0, None),
        ("create", 0, 8, None),
        ("lose", 3, 0, 7),
    ],
    file=file_of(4, 4),
    seed=51,
    lag=False,
    aside=None,
    begun="empty",
)
@example(story=[], file=file_of(4, 4), seed=0, lag=False, aside=0, begun="lent")
@given(
    story=st.lists(shared, max_size=20),
    file=st.sampled_from(FILES),
    seed=st.integers(0, 99),
    lag=st.booleans(),
    aside=st.none() | st.integers(0, 200),
    begun=st.sampled_from(("empty", "scattered", "lent")),
)
def test_queues_keep_their_word_whenever_the_reconciler_died(
    story: list[tuple[str, int, int, int | None]],
    file: dict[str, Any],
    seed: int,
    lag: bool,
    aside: int | None,
    begun: str,
) -> None:
    """Whether plans are made at once, or aside in so many steps while other things happen."""
    with tempfile.TemporaryDirectory() as folder:
        done = tell(Path(folder), story, seed, lag=lag, file=file, aside=aside, begun=begun)
        asyncio.run(done)


async def tell(
    folder: Path,
    story: list[tuple[str, int, int, int | None]],
    seed: int,
    *,
    lag: bool,
    file: dict[str, Any] | None = None,
    aside: int | None = None,
    begun: str = "empty",
) -> None:
    """Things happen in a new world; then all comes to rest."""
    world = World(
        folder / "ledger", KeeperSettings(lease_s=5.0, plan_inline=2000 if aside is None else 0)
    )
    world.plan_steps = aside or 0
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
        if file is not None:
            world.reconciler.admission.apply_queues(file, None, "ann", dry_run=False)
        chronicle = Chronicle(world)
        await world.do(chronicle.begins(begun))
        for happening in story:
            await chronicle.happens(*happening)
            assert not broken(world.cluster_state.ledger)
            assert_nodes_within_bounds(world)
            assert_plans_as_if_anew(world)
        await chronicle.ends()
    finally:
        world.file.close()
