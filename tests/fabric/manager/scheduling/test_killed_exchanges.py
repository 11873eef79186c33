"""A manager dies in the middle of an exchange, and its successor finishes what it began."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from fedpilot.fabric.core.cluster_state import ClusterState, Entry
from fedpilot.fabric.core.invariants import broken
from fedpilot.fabric.manager.settings import KeeperSettings
from fedpilot.fabric.testing.fake_cluster import fake_machine
from reconciler_world import GRACE_S, World, applies, asks, nodes, steps, submits, up_to

CLAIMANT = "claimant"
TURN_S = 0.25
AT_REST_S = GRACE_S + 5.0


class Moment(StrEnum):
    """When the manager dies."""

    BEFORE_SAVING = "it has decided who leaves, and not saved it"
    BEFORE_NOTICE = "it has saved who leaves, and done nothing yet"
    IN_GRACE = "the victims end their work"
    AFTER_LEAVING = "the victims have left, and the claimant has not begun"


class Killed(BaseException):
    """The manager's process ends here."""


def expects_kills(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say nothing of a task that was killed, as nothing awaits a plan made in a thread."""
    if not isinstance(context.get("exception"), Killed):
        loop.default_exception_handler(context)


@dataclass
class Situation:
    """Machines that one team fills, and a request of another team within its quota."""

    machines: list[int]
    """The CPUs of each."""
    filled: list[list[int]]
    """On each machine the CPUs of what runs there."""
    last: str
    """What came last: `plain`, `elastic` (with nodes above its minimum), or one with a `loan`."""
    quota: int
    """The claimant's, in CPUs; the others have the rest."""
    claims: list[int]
    """Nodes of one size, or one amount of flexible resources."""
    flexible: bool
    aside: int | None
    """In how many steps a plan is made in a thread; None: at once."""
    consolidates: bool = False
    """Whether what runs may move, and so lies on no machine by choice."""

    @property
    def file(self) -> Mapping[str, Any]:
        quotas = {"vision": sum(self.machines) - self.quota, "speech": self.quota}
        projects = [{"name": n, "quota": {"default": {"CPU": q}}} for n, q in quotas.items()]
        settings = {"grace_s": GRACE_S, "consolidation": self.consolidates}
        return {"projects": projects, "settings": settings}

    async def _block_others(self, world: World, at: int) -> list[str]:
        """All that is free on other machines is taken, until what follows has its places."""
        blocks = []
        for other, cpus in enumerate(self.machines):
            free = cpus - (sum(self.filled[other]) if other < at else 0)
            if other != at and free:
                blocks.append(f"block-{at}-{other}")
                await world.create(asks(blocks[-1], nodes(free, at=f"m{other}"), project="vision"))
        return blocks

    def claimant(self) -> Entry:
        if self.flexible:
            return asks(CLAIMANT, least=sum(self.claims), project="speech")
        return asks(CLAIMANT, nodes(*self.claims), project="speech")

    async def begin(self, folder: Path) -> World:
        """The world with all that runs."""
        inline = 2000 if self.aside is None else 0
        world = World(folder / "ledger", KeeperSettings(plan_inline=inline))
        world.plan_steps = self.aside or 0
        names = [f"m{at}" for at in range(len(self.machines))]
        sizes = zip(names, self.machines, strict=True)
        await world.begins(*(fake_machine(n, CPU=cpus, labels={"at": n}) for n, cpus in sizes))
        applies(world, self.file)
        for at, pieces in enumerate(self.filled):
            blocks = await self._block_others(world, at) if self.consolidates else []
            for number, cpus in enumerate(pieces):
                group = nodes(cpus) if self.consolidates else nodes(cpus, at=names[at])
                await world.create(asks(f"{names[at]}-{number}", group, project="vision"))
            for block in blocks:
                await world.delete(block)
        if self.last != "plain":
            await world.delete("m0-0")
            most = self.filled[0][0]
        if self.last == "loan":
            world.ray.process_up("p")
            await world.create(asks("loan", most=most, project="vision"))
            submits(world, "loan", "work", most, owner="p")
        if self.last == "elastic":
            await world.create(asks("grows", up_to(most, nodes(1, at="m0")), project="vision"))
        await world.passes(5)
        return world


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    machines = draw(st.lists(st.integers(2, 6), min_size=2, max_size=4))
    filled = []
    for cpus in machines:
        pieces = list[int]()
        while (left := cpus - sum(pieces)) > 0:
            pieces.append(draw(st.integers(1, left)))
        filled.append(pieces)
    quota = draw(st.integers(1, sum(machines)))
    size = draw(st.integers(1, min(quota, min(machines))))
    fits = sum(cpus // size for cpus in machines)
    count = draw(st.integers(1, min(quota // size, fits, 4)))
    return Situation(
        machines=machines,
        filled=filled,
        last=draw(st.sampled_from(["plain", "elastic", "loan"])),
        quota=quota,
        claims=[size] * count,
        flexible=draw(st.booleans()),
        aside=draw(st.none() | st.integers(0, 60)),
    )


@st.composite
def scattered(draw: st.DrawFn) -> Situation:
    """Machines that are half free, and a claimant for whom work on one must move."""
    half, count = draw(st.integers(1, 3)), draw(st.integers(2, 3))
    quota = draw(st.integers(half + 1, 2 * half))
    return Situation(
        machines=[2 * half] * count,
        filled=[draw(st.sampled_from([[half], [1] * half])) for _ in range(count)],
        last=draw(st.sampled_from(["plain", "elastic", "loan"])),
        quota=quota,
        claims=[draw(st.integers(half + 1, quota))],
        flexible=False,
        aside=draw(st.none() | st.integers(0, 60)),
        consolidates=True,
    )


@dataclass
class Course:
    """What a world's file says of an exchange, up to the moment at which the manager dies."""

    world: World
    moment: Moment | None = None
    notices: dict[str, float] = field(default_factory=dict)
    """When each victim or node leaves at the latest, as first saved."""
    movers: set[str] = field(default_factory=set)
    """Those that go on elsewhere."""
    dead: bool = False

    def follow(self) -> None:
        """See all that the present reconciler saves."""
        save = self.world.file.save

        def saves(state: ClusterState, notes: Mapping[str, Any] | None = None) -> None:
            noticed = any(entry.notices for entry in state.entries.values())
            self.dead = self.dead or (self.moment is Moment.BEFORE_SAVING and noticed)
            if not self.dead:
                save(state, notes)
                self._see(state)
                left = bool(self.notices) and not noticed
                self.dead = noticed if self.moment is Moment.BEFORE_NOTICE else left
                self.dead = self.dead and self.moment not in (None, Moment.IN_GRACE)
            if self.dead:
                raise Killed  # each time: a plan in a thread may have been the first to save

        self.world.file.save = saves  # type: ignore[method-assign]

    def _see(self, state: ClusterState) -> None:
        for id, entry in state.entries.items():
            for notice in entry.notices:
                first = self.notices.setdefault(f"{id} {notice.node}", notice.at)
                assert first == notice.at, "a grace began anew"
            if entry.relocates:
                self.movers.add(id)
            assert id not in self.movers or not entry.waiting, "it did not go on at once"

    async def asked(self, claimant: Entry, later: int) -> None:
        """The claimant asks, and time passes until the manager dies, or all is at rest."""
        await self.world.create(claimant)
        rest = self.world.clock() + AT_REST_S
        while self.world.clock() < rest:
            if self.moment is Moment.IN_GRACE and self.notices:
                await self.world.passes(later / 10)
                self.dead = True
            if self.dead:
                raise Killed
            await self.world.passes(TURN_S)

    async def again(self, claimant: Entry, later: int) -> None:
        """The manager is dead, perhaps a few steps later; another one begins."""
        await steps(later)
        await self.world.dies()
        self.world.rises()
        self.moment, self.dead = None, False
        self.follow()
        await self.world.do(self.world.reconciler.start())
        await self.world.create(claimant)  # callers ask again


async def exchange(folder: Path, given: Situation, moment: Moment | None, later: int) -> bool:
    """The claimant asks, and the manager dies at a moment; whether any work left for it."""
    asyncio.get_running_loop().set_exception_handler(expects_kills)
    world = await given.begin(folder)
    before, course = {*world.states()}, Course(world, moment)
    course.follow()
    try:
        try:
            await course.asked(given.claimant(), later)
            assert moment is None, "it did not die"
        except Killed:
            await course.again(given.claimant(), later)
        late = max(course.notices.values(), default=world.clock() + GRACE_S) + 2 * TURN_S
        while world.state(CLAIMANT) == "waiting" and world.clock() <= late:
            await world.passes(TURN_S)
            assert not broken(world.cluster_state.ledger)
            world.ray.free()  # raises if a machine carries more than it has
        if not course.notices:
            assert moment is None, "no work had to leave"
            return False
        assert world.state(CLAIMANT) in ("starting", "active"), "it did not run after the grace"
        await world.passes(5)
        assert world.state(CLAIMANT) == "active"
        assert {*world.states()} == before | {CLAIMANT}
        assert not world.wrong()
        await world.delete(CLAIMANT)
        await world.passes(AT_REST_S)
        assert world.states() == dict.fromkeys(before, "active")
        assert not world.wrong()
        return True
    finally:
        world.file.close()


@pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.name.lower())
@settings(max_examples=min(settings().max_examples // 3, 500), suppress_health_check=[*HealthCheck])
@given(given=situations() | scattered(), later=st.integers(0, 80))
def test_an_exchange_comes_to_its_end_whenever_the_manager_dies(
    given: Situation, later: int, moment: Moment
) -> None:
    with tempfile.TemporaryDirectory() as calm, tempfile.TemporaryDirectory() as killed:
        assume(asyncio.run(exchange(Path(calm), given, None, 0)))
        asyncio.run(exchange(Path(killed), given, moment, later))
