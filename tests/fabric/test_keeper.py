"""The keeper makes Ray agree with its books, whatever happens to either, and whenever it dies."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from fedpilot.fabric import Bundle, Machine, Resources, SchedulingPolicy, VNodeId, making
from fedpilot.fabric.core.admission import QueuePolicy, Request
from fedpilot.fabric.core.books import Books, Entry, JobId
from fedpilot.fabric.core.groups import GroupId
from fedpilot.fabric.core.records import ROOT, BundleGroup, ClusterId
from fedpilot.fabric.core.resources import UNIT
from fedpilot.fabric.core.selectors import In
from fedpilot.fabric.errors import NameTaken, NeverFits, NoSuchCluster, NotInTime
from fedpilot.fabric.fake_ray import FakeRay
from fedpilot.fabric.keeper import DEFAULT, Keeper, KeeperSettings
from fedpilot.fabric.ledger_file import LedgerFile
from fedpilot.fabric.testing import ManualClock, fake_machine

PACK, STRICT_SPREAD = SchedulingPolicy.PACK, SchedulingPolicy.STRICT_SPREAD
P = ParamSpec("P")
Answer = TypeVar("Answer")


@pytest.fixture(scope="module", autouse=True)
def no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "ROOM_POLL_S", 0.0)
        yield


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is told in the keeper's own loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@dataclass
class World:
    """A keeper with its file, its Ray and its clock."""

    path: Path
    settings: KeeperSettings = field(default_factory=KeeperSettings)
    clock: ManualClock = field(default_factory=lambda: ManualClock(1000.0))
    told: list[tuple[str, str, str]] = field(default_factory=list)
    """What keepers that are dead have told."""

    def __post_init__(self) -> None:
        self.ray = FakeRay(self.clock)
        self.ids = itertools.count(1)
        self.rises()

    def rises(self) -> None:
        """A keeper begins, and knows what is in the file."""
        self.file = LedgerFile(self.path)
        self.keeper = Keeper(
            self.ray,
            self.file,
            clock=self.clock,
            new_id=lambda: GroupId(f"g{next(self.ids)}"),
            settings=self.settings,
        )

    async def begins(self, *machines: Machine) -> None:
        self.ray.machine_up(*machines)
        await self.do(self.keeper.start())

    async def dies(self) -> None:
        """The keeper's process ends where it is, without a word."""
        self.told += self.events()
        self.file.close()
        lost = asyncio.all_tasks() - {asyncio.current_task()}
        for task in lost:
            task.cancel()
        await asyncio.gather(*lost, return_exceptions=True)

    async def again(self) -> None:
        """The keeper's process ends, and another begins."""
        await self.dies()
        self.rises()
        await self.do(self.keeper.start())

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
        return [await self.do(self.keeper.create(each)) for each in entries]

    async def delete(self, name: str) -> tuple[str, ...]:
        return await self.do(self.keeper.delete(ClusterId(name)))

    async def passes(self, seconds: float = 0.25, turn_s: float = 0.25) -> None:
        """Time passes, and the keeper looks at Ray again and again."""
        until = self.clock() + seconds
        while self.clock() < until:
            self.clock.advance(turn_s)
            await self.do(self.keeper.turn())
            await steps(40)

    @property
    def books(self) -> Books:
        return self.keeper.books

    def state(self, name: str) -> str:
        return self.keeper.state(ClusterId(name))

    def states(self) -> dict[str, str]:
        return {str(id): self.keeper.state(id) for id in self.books.entries}

    def reason(self, name: str) -> str:
        return self.keeper.reason(ClusterId(name))

    def hosts(self, name: str) -> dict[str, str]:
        """The machine of each vnode of a virtual cluster."""
        return {str(each.id): str(each.machine) for each in self.books.ledger.of(ClusterId(name))}

    def groups(self, name: str) -> list[GroupId]:
        return [group.id for group in self.books.groups.of_cluster(ClusterId(name))]

    def ours(self) -> set[GroupId]:
        return self.ray.ids(f"fedpilot:{self.file.name}:")

    def events(self) -> list[tuple[str, str, str]]:
        return [(e["cluster"], e["event"], e["reason"]) for e in self.keeper.history()]

    def wrong(self) -> list[str]:
        """Where the books, their file and Ray do not agree; nothing while all is well."""
        ledger, groups = self.books.ledger, self.books.groups
        found = [*ledger.broken()]
        self.ray.free()  # raises if a machine carries more than it has
        known = {group.id for group in groups}
        found += [f"{id} is in Ray only" for id in sorted(self.ours() - known)]
        found += [f"{id} is in the books only" for id in sorted(known - self.ours())]
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
        held = {id for id, entry in self.books.entries.items() if not entry.waiting}
        if held != ledger.clusters.keys() - {DEFAULT}:
            found.append(f"{sorted(held)} hold places, not {sorted(ledger.clusters)}")
        file = LedgerFile(self.path)
        saved = file.load()
        file.close()
        if (saved.entries, {g.id: g for g in saved.groups}) != (
            self.books.entries,
            {g.id: g for g in groups},
        ) or (saved.ledger.vnodes, saved.ledger.machines) != (ledger.vnodes, ledger.machines):
            found.append("the file says something else")
        return found


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "ledger.sqlite")
    yield world
    world.file.close()


def two() -> tuple[Machine, Machine]:
    return fake_machine("a", CPU=4), fake_machine("b", CPU=4)


def nodes(*amounts: float, policy: SchedulingPolicy = PACK, **selector: str) -> BundleGroup:
    asked = {label: In(value) for label, value in selector.items()}
    bundles = tuple(
        Bundle(resources=Resources.of({"CPU": amount}), selector=asked) for amount in amounts
    )
    return BundleGroup(bundles=bundles, policy=policy)


def asks(
    name: str,
    *groups: BundleGroup,
    least: float = 0,
    most: float | None = None,
    inside: str = ROOT,
    owner: str | None = None,
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
    return Entry(request=request, spec={"of": repr(request)}, owner=job, asked_at=1000.0)


class TestCreate:
    @story
    async def test_it_gets_its_places_and_is_active_once_ray_has_made_them(
        self, world: World
    ) -> None:
        await world.begins(*two())
        asked = asks("job", nodes(2, 2, policy=STRICT_SPREAD), least=1)
        assert await world.do(world.keeper.create(asked, wait_s=60)) == "active"
        assert {*world.hosts("job").values()} == {"a", "b"}
        assert world.reason("job") == ""
        assert world.keeper.position(ClusterId("job")) is None
        await world.passes(1)
        assert not world.wrong()

    @story
    async def test_one_that_does_not_want_to_wait_is_told_that_it_starts(
        self, world: World
    ) -> None:
        await world.begins(*two())
        assert await world.create(asks("job", nodes(2))) == ["starting"]
        assert world.reason("job") == "Ray is making its placement groups"
        await world.passes()
        assert world.state("job") == "active"

    @story
    async def test_what_needs_nothing_is_active_at_once(self, world: World) -> None:
        await world.begins(*two())
        assert await world.create(asks("job")) == ["active"]

    @story
    async def test_asking_again_is_answered_alike(self, world: World) -> None:
        await world.begins(*two())
        asked = asks("job", nodes(2))
        first = await world.do(world.keeper.create(asked, wait_s=60))
        before = world.groups("job")
        assert await world.do(world.keeper.create(asked, wait_s=60)) == first == "active"
        assert world.groups("job") == before
        assert await world.create(asks("big", nodes(4, 4))) == ["waiting"]
        assert await world.create(asks("big", nodes(4, 4))) == ["waiting"]
        assert not world.wrong()

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(asks("job", nodes(1)), id="another spec"),
            pytest.param(asks("job", nodes(2), owner="j1"), id="another job"),
            pytest.param(asks("job", nodes(2), inside="up"), id="another parent"),
        ],
    )
    @story
    async def test_a_name_is_taken_by_whoever_asked_first(self, world: World, other: Entry) -> None:
        await world.begins(*two())
        world.ray.job_up("j1")
        await world.create(asks("up", least=2), asks("job", nodes(2)))
        with pytest.raises(NameTaken):
            await world.create(other)

    @pytest.mark.parametrize("name", [ROOT, DEFAULT])
    @story
    async def test_the_names_of_what_is_always_there_are_taken(
        self, world: World, name: str
    ) -> None:
        await world.begins(*two())
        with pytest.raises(NameTaken):
            await world.create(asks(name, nodes(2)))

    @pytest.mark.parametrize(
        ("asked", "why"),
        [
            pytest.param(asks("job", nodes(5)), "one node needs 5 CPU", id="more than a machine"),
            pytest.param(asks("job", nodes(1, zone="z")), "labels", id="labels that none has"),
            pytest.param(asks("job", least=9), "there is room for", id="more than all machines"),
            pytest.param(
                asks("job", least=3, inside="up"), "there is room for", id="more than its parent"
            ),
        ],
    )
    @story
    async def test_what_can_never_be_is_refused_at_once(
        self, world: World, asked: Entry, why: str
    ) -> None:
        await world.begins(*two())
        await world.create(asks("up", least=2, most=2))
        with pytest.raises(NeverFits, match=why):
            await world.create(asked)
        assert "job" not in world.books.entries

    @pytest.mark.parametrize("parent", ["nobody", "waits"])
    @story
    async def test_a_parent_has_to_be_there(self, world: World, parent: str) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)), asks("waits", nodes(1)))
        with pytest.raises(NoSuchCluster, match=parent):
            await world.create(asks("job", nodes(1), inside=parent))


class TestTheQueue:
    @story
    async def test_who_asked_first_is_first_and_everybody_knows_why_they_wait(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(asks("one", nodes(3, 3)), asks("two", nodes(2)), asks("three", nodes(1)))
        assert [world.state(name) for name in ("two", "three")] == ["waiting", "waiting"]
        assert [world.keeper.position(ClusterId(n)) for n in ("one", "two", "three")] == [
            None,
            1,
            2,
        ]
        assert "2 CPU" in world.reason("two")
        assert world.reason("three") == "two is before it"
        assert await world.delete("two") == ("two",)
        await world.passes()
        assert world.state("three") == "active"
        assert not world.wrong()

    @story
    async def test_with_priorities_the_higher_goes_first(self, tmp_path: Path) -> None:
        world = World(tmp_path / "ledger", KeeperSettings(policy=QueuePolicy.PRIORITY))
        await world.begins(*two())
        await world.create(
            asks("all", nodes(4, 4)),
            asks("low", nodes(3, 3)),
            asks("high", nodes(3, 3), priority=1),
        )
        assert world.keeper.position(ClusterId("high")) == 1
        await world.delete("all")
        await world.passes()
        assert world.states() == {"low": "waiting", "high": "active"}
        world.file.close()

    @story
    async def test_a_deadline_ends_the_wait(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("most", nodes(3, 3)))
        asked = asks("late", nodes(2), deadline=world.clock() + 5)
        waits = asyncio.ensure_future(world.keeper.create(asked, wait_s=1e6))
        await world.passes(4)
        assert world.state("late") == "waiting"
        await world.passes(2)
        with pytest.raises(NotInTime, match="2 CPU"):
            await waits
        assert "late" not in world.books.entries
        assert not world.wrong()

    @story
    async def test_who_waits_is_told_when_it_gets_in(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)))
        waits = asyncio.ensure_future(world.keeper.create(asks("next", nodes(2)), wait_s=1e6))
        await world.passes(1)
        await world.delete("all")
        assert await world.do(_wait(waits)) == "active"

    @story
    async def test_who_waits_is_told_that_it_was_deleted(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)))
        waits = asyncio.ensure_future(world.keeper.create(asks("next", nodes(2)), wait_s=1e6))
        await world.passes(1)
        await world.delete("next")
        with pytest.raises(NotInTime, match="it was deleted"):
            await world.do(_wait(waits))


async def _wait(task: asyncio.Future[Answer]) -> Answer:
    return await task


class TestEnds:
    @story
    async def test_one_in_another_is_cut_out_of_it_and_given_back(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(4), least=2, most=2))
        await world.passes()
        await world.create(asks("in", nodes(3), inside="up"))
        await world.passes()
        assert world.states() == {"up": "active", "in": "active"}
        assert not world.wrong()
        assert await world.delete("in") == ("in",)
        await world.passes()
        assert world.states() == {"up": "active"}
        assert not world.wrong()

    @story
    async def test_what_ends_takes_along_all_that_is_or_waits_inside(self, world: World) -> None:
        await world.begins(*two())
        await world.create(
            asks("up", nodes(4)),
            asks("in", nodes(3), inside="up"),
            asks("deep", nodes(2), inside="in"),
            asks("waits", nodes(2), inside="up"),
        )
        await world.passes(1)
        assert world.states()["waits"] == "waiting"
        assert await world.delete("up") == ("deep", "in", "up")
        assert world.states() == {}
        assert world.ours() == set()
        assert ("waits", "ended", "up, which it is in, ended") in world.events()
        assert not world.wrong()

    @story
    async def test_nobody_of_that_name(self, world: World) -> None:
        await world.begins(*two())
        with pytest.raises(NoSuchCluster):
            await world.delete("nobody")

    @story
    async def test_a_job_takes_its_virtual_clusters_along(self, world: World) -> None:
        await world.begins(*two())
        world.ray.job_up("j1")
        await world.create(
            asks("mine", nodes(4, 4), owner="j1"),
            asks("waits", nodes(1), owner="j1"),
            asks("detached", nodes(1)),
        )
        await world.passes(1)
        assert world.states() == {"mine": "active", "waits": "waiting", "detached": "waiting"}
        world.ray.job_down("j1")
        await world.passes(0.5)
        assert world.states() == {"detached": "active"}
        assert not world.wrong()

    @story
    async def test_a_job_that_ended_while_nobody_looked(self, world: World) -> None:
        await world.begins(*two())
        world.ray.job_up("j1")
        await world.create(asks("mine", nodes(4), owner="j1"))
        await world.passes()
        world.ray.job_down("j1")
        await world.again()
        await world.passes()
        assert world.states() == {}
        assert not world.wrong()


class TestOthers:
    @story
    async def test_what_others_use_holds_up_until_it_is_free(self, world: World) -> None:
        await world.begins(*two())
        world.ray.use("task", "a", {"CPU": 3})
        await world.passes(2)
        assert world.books.ledger.flexible_total(DEFAULT) == Resources.of({"CPU": 3})
        assert await world.create(asks("job", nodes(2, 2, 2))) == ["waiting"]
        await world.passes(10)
        assert world.state("job") == "waiting"
        assert not world.wrong()
        world.ray.stop("task")
        await world.passes(2)
        assert world.state("job") == "active"
        assert not world.books.ledger.flexible_total(DEFAULT)
        assert not world.wrong()

    @story
    async def test_what_we_use_is_not_taken_for_that_of_others(self, world: World) -> None:
        world.ray.lag_s = 1.0
        await world.begins(*two())
        for name in ("one", "two", "three"):
            await world.create(asks(name, nodes(2, 2), least=1))
            for _ in range(12):
                await world.passes()
                assert not world.books.ledger.flexible_total(DEFAULT)
            await world.delete(name)
        await world.passes(3)
        assert not world.books.ledger.flexible_total(DEFAULT)

    @story
    async def test_a_group_of_ours_that_somebody_removed_is_made_again(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(2)))
        await world.passes()
        (group,) = world.groups("job")
        world.ray.group_down(group)
        await world.do(world.keeper.turn())
        assert world.state("job") == "recovering"
        assert world.reason("job") == "somebody removed one of its placement groups"
        await world.passes(1)
        assert world.state("job") == "active"
        assert world.ours() == {group}
        assert not world.wrong()

    @story
    async def test_a_group_of_our_name_that_is_in_no_book_is_removed(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(2)))
        world.ray.group_up("x1", f"fedpilot:{world.file.name}:old:x1", {"CPU": 2})
        world.ray.group_up("x2", "fedpilot:another:old:x2", {"CPU": 1})
        world.ray.group_up("x3", "theirs", {"CPU": 1})
        await world.passes(3)
        assert world.ray.ids() == {*world.groups("job"), "x2", "x3"}
        assert not {id for call, id in world.ray.calls if call == "remove"} & {"x2", "x3"}
        assert world.books.ledger.flexible_total(DEFAULT) == Resources.of({"CPU": 2})
        assert not world.wrong()

    @story
    async def test_who_finds_that_others_were_faster_waits_again_and_gets_in_later(
        self, world: World
    ) -> None:
        await world.begins(*two())
        world.ray.use("faster", "a", {"CPU": 4})
        assert await world.create(asks("job", nodes(3, 3))) == ["starting"]
        await world.create(asks("next", nodes(1)))
        await world.passes(2.5)
        assert world.state("job") == "starting"
        await world.passes(1)
        assert world.state("job") == "waiting"
        assert world.reason("job") == "others took what was free (no resources)"
        assert [str(id) for id in world.books.entries] == ["job", "next"]
        await world.passes(8)
        assert world.state("job") == "waiting"
        assert not world.wrong()
        world.ray.stop("faster")
        await world.passes(3)
        assert world.states() == {"job": "active", "next": "active"}
        assert not world.wrong()

    @story
    async def test_ray_chooses_other_machines_than_the_ledger(self, world: World) -> None:
        await world.begins(*two())
        world.ray.prefers = lambda machine: "ab"["ba".index(machine)]
        await world.create(asks("job", nodes(3)))
        assert world.hosts("job") == {"job/0": "a"}  # so the ledger chose
        await world.passes(1)
        assert world.hosts("job") == {"job/0": "b"}
        assert world.state("job") == "active"
        assert not world.wrong()

    @story
    async def test_what_ray_does_not_answer_is_asked_again(self, world: World) -> None:
        await world.begins(*two())
        for call in ("create", "wait", "look"):
            world.ray.fail(call, OSError("no answer"))
        await world.create(asks("job", nodes(2)))
        await world.passes(2)
        assert world.state("job") == "active"
        world.ray.fail("remove", OSError("no answer"))
        await world.delete("job")
        await world.passes(2)
        assert world.ours() == set()
        assert not world.wrong()


class TestMachines:
    @story
    async def test_ray_finds_another_place_for_a_fixed_node(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(3, 3, policy=STRICT_SPREAD)))
        await world.passes()
        (before,) = world.groups("job")
        world.ray.machine_down("a")
        await world.do(world.keeper.turn())
        assert world.state("job") == "recovering"
        assert world.reason("job") == "machine a (a) died with some of its nodes"
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(1)
        assert world.state("job") == "active"
        assert {*world.hosts("job").values()} == {"b", "c"}
        assert world.groups("job") == [before]
        assert not world.wrong()

    @story
    async def test_it_recovers_once_there_is_room(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(3, 3)), asks("flexible", least=1))
        await world.passes()
        world.ray.machine_down("a")
        await world.passes(10)
        assert world.state("job") == "recovering"
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(2)
        assert world.states() == {"job": "active", "flexible": "active"}
        assert not world.wrong()

    @story
    async def test_flexible_resources_are_found_elsewhere(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", least=3))
        await world.passes()
        (was,) = world.hosts("job").values()
        world.ray.machine_down(was)
        await world.passes(2)
        assert world.state("job") == "active"
        (now,) = world.hosts("job").values()
        assert now != was
        assert [event for id, event, _ in world.events() if id == "job"][-2:] == [
            "recovering",
            "recovered",
        ]
        assert not world.wrong()

    @story
    async def test_a_fixed_node_inside_another_is_found_a_place_there(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(3, 3, policy=STRICT_SPREAD)))
        await world.passes()
        await world.create(asks("in", nodes(1, 1, policy=STRICT_SPREAD), inside="up"))
        await world.passes()
        world.ray.machine_down("a")
        await world.passes(1)
        assert world.states() == {"up": "recovering", "in": "recovering"}
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(3)
        assert world.states() == {"up": "active", "in": "active"}
        assert {*world.hosts("in").values()} == {"b", "c"}
        assert not world.wrong()

    @story
    async def test_who_waits_gets_a_machine_that_comes(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)), asks("next", nodes(2)))
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(1)
        assert world.states() == {"all": "active", "next": "active"}


class TestLoans:
    @story
    async def test_what_a_parent_borrowed_for_a_child_goes_back_when_it_is_due(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(asks("up", least=1, most=3))
        await world.passes()
        await world.create(asks("in", nodes(3), inside="up"))
        await world.passes()
        assert world.books.ledger.flexible_total(ClusterId("up")) == Resources.of({"CPU": 3})
        await world.passes(61, turn_s=1)
        assert world.books.ledger.loans()
        await world.delete("in")
        await world.passes(1)
        assert not world.books.ledger.loans()
        assert world.books.ledger.flexible_total(ClusterId("up")) == Resources.of({"CPU": 1})
        assert not world.wrong()

    @story
    async def test_what_is_not_due_is_kept(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", least=1, most=3), asks("in", nodes(3), inside="up"))
        await world.passes()
        await world.delete("in")
        await world.passes(30, turn_s=1)
        assert world.books.ledger.flexible_total(ClusterId("up")) == Resources.of({"CPU": 3})
        assert not world.wrong()


class TestAnotherProcess:
    @story
    async def test_it_goes_on_where_the_last_one_died(self, world: World) -> None:
        await world.begins(*two())
        await world.create(
            asks("up", nodes(3, 3), least=1), asks("in", nodes(1), inside="up"), asks("w", nodes(2))
        )
        await world.passes(1)
        before = {name: {*world.groups(name)} for name in ("up", "in")}
        await world.again()
        await world.passes(1)
        assert world.states() == {"up": "active", "in": "active", "w": "waiting"}
        assert {name: {*world.groups(name)} for name in ("up", "in")} == before
        assert not world.wrong()

    @story
    async def test_what_was_written_and_not_done_is_done(self, world: World) -> None:
        await world.begins(*two())
        creating = asyncio.ensure_future(world.keeper.create(asks("job", nodes(2))))
        await steps(1)
        assert creating.done()
        assert world.ray.ids() == set()
        await world.again()
        await world.passes(1)
        assert world.states() == {"job": "active"}
        deleting = asyncio.ensure_future(world.keeper.delete(ClusterId("job")))
        await steps(1)
        assert not deleting.done()
        await world.again()
        await world.passes(1)
        assert world.states() == {}
        assert not world.wrong()


# -- defects that these tests have found -------------------------------------------------------


class TestFound:
    """Each of these failed when it was written."""

    @story
    async def test_a_full_cluster_is_not_said_to_have_no_machines(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)), asks("next", nodes(2)))
        assert "no machines" not in world.reason("next")

    @story
    async def test_a_borrowed_vnode_that_is_given_back_as_a_whole(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", least=3))
        await world.passes()
        await world.create(asks("in", nodes(3, 2), inside="up"))
        await world.passes(1)
        assert len(world.hosts("up")) == 2
        await world.delete("in")
        await world.passes(70, turn_s=1)
        assert not world.books.ledger.loans()
        assert len(world.hosts("up")) == 1
        assert not world.wrong()

    @story
    async def test_one_that_waits_inside_one_that_waits_again(self, world: World) -> None:
        await world.begins(*two())
        world.ray.use("faster", "a", {"CPU": 4})
        await world.create(asks("up", nodes(3, 3)), asks("in", nodes(1), inside="up"))
        await world.create(asks("waits", nodes(3, 3), inside="up"))
        assert world.state("waits") == "waiting"
        await world.passes(30)
        assert world.state("up") == "waiting"
        world.ray.stop("faster")
        await world.passes(5)
        assert world.state("up") == "active"
        assert not world.wrong()

    @story
    async def test_one_that_waits_inside_one_that_lost_its_places_with_its_parent(
        self, world: World
    ) -> None:
        await world.begins(*two())
        world.ray.use("faster", "a", {"CPU": 4})
        await world.create(
            asks("up", nodes(3, 3)),
            asks("in", nodes(2, 2), inside="up"),
            asks("taken", nodes(1), inside="in"),
            asks("waits", nodes(2, 2), inside="in"),
        )
        assert world.state("waits") == "waiting"
        await world.passes(30)
        assert world.states() == {"up": "waiting"}

    @story
    async def test_one_whose_placement_group_has_no_room_is_not_active(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(3, 3)))
        await world.passes()
        (group,) = world.groups("job")
        world.ray.group_down(group)
        world.ray.use("faster", "a", {"CPU": 4})
        await world.passes(5)
        assert world.state("job") == "recovering"
        world.ray.stop("faster")
        await world.passes(5)
        assert world.state("job") == "active"

    @story
    async def test_one_whose_new_piece_has_no_room_is_not_active(self, world: World) -> None:
        await world.begins(fake_machine("a", CPU=4))
        await world.create(asks("up", nodes(3)))
        await world.passes(2)
        world.ray.use("small", "a", {"CPU": 1})
        await world.passes(2)
        await world.create(asks("in", nodes(1), inside="up"))
        while world.ours():
            await steps(1)
        world.ray.use("faster", "a", {"CPU": 3})
        await world.passes(10)
        assert world.state("up") == "recovering"
        world.ray.stop("faster")
        await world.passes(10)
        assert world.states() == {"up": "active", "in": "active"}
        assert not world.wrong()

    @story
    async def test_what_is_given_up_while_it_is_made_is_not_left_behind(self, world: World) -> None:
        await world.begins(*two())
        slow = iter([20])
        world.ray.turns = lambda: next(slow, 0)
        await world.keeper.create(asks("job", nodes(2)))
        await steps(3)
        await world.delete("job")
        await steps(60)
        assert world.ours() == set()

    @story
    async def test_one_that_needs_nothing_is_active_after_a_restart(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job"))
        await world.again()
        await world.passes(1)
        assert world.state("job") == "active"

    @story
    async def test_one_that_its_children_hold_all_of_is_active_after_a_restart(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(2)))
        await world.passes()
        await world.create(asks("in", nodes(2), inside="up"))
        await world.passes()
        await world.again()
        await world.passes(1)
        assert world.states() == {"up": "active", "in": "active"}

    @story
    async def test_one_that_its_first_child_takes_all_of_while_it_starts(
        self, world: World
    ) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(2)), asks("in", nodes(2), inside="up"))
        await world.passes(6)
        assert world.states() == {"up": "active", "in": "active"}
        assert not world.wrong()

    @story
    async def test_a_machine_that_dies_while_one_starts_on_it(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", least=3))
        (where,) = world.hosts("job").values()
        world.ray.machine_down(where)
        await world.passes(10)
        assert world.state("job") == "active"
        assert not world.wrong()

    @story
    async def test_a_fixed_node_is_lost_before_anybody_saw_it(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", nodes(3, 3)))
        while not any(world.ray.state(id) == "created" for id in world.ours()):
            await steps(1)
        world.ray.machine_down("a")
        await world.passes(5)
        assert world.state("job") == "recovering"
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(2)
        assert world.state("job") == "active"
        assert not world.wrong()

    @story
    async def test_a_machine_that_died_while_nobody_looked(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("job", least=3))
        await world.passes()
        (where,) = world.hosts("job").values()
        world.ray.machine_down(where)
        await world.again()
        await world.passes(10)
        assert world.state("job") == "active"
        assert not world.wrong()

    @story
    async def test_flexible_resources_are_lost_beside_fixed_nodes(self, world: World) -> None:
        await world.begins(fake_machine("a", CPU=2), fake_machine("b", CPU=4))
        await world.create(asks("job", nodes(4), least=2))
        await world.passes()
        assert world.hosts("job") == {"job/0": "b", "job@a": "a"}
        world.ray.machine_down("a")
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(10)
        assert world.state("job") == "active"
        assert world.hosts("job") == {"job/0": "b", "job@c": "c"}
        assert not world.wrong()

    @story
    async def test_a_lost_node_inside_another_keeps_its_size(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(4, 4)))
        await world.passes()
        await world.create(asks("in", nodes(3, 2), inside="up"))
        await world.passes()
        lost = world.hosts("in")["in/1"]
        world.ray.machine_down(lost)
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(10)
        assert world.states() == {"up": "active", "in": "active"}
        assert not world.wrong()

    @story
    async def test_a_node_inside_another_dies_and_the_keeper_too(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("up", nodes(4, 4)))
        await world.passes()
        await world.create(asks("in", nodes(3, 2), inside="up"))
        await world.passes()
        world.ray.machine_down(world.hosts("in")["in/1"])
        await world.passes(1)
        await world.again()
        await world.passes(1)
        assert world.states() == {"up": "recovering", "in": "recovering"}
        world.ray.machine_up(fake_machine("c", CPU=4))
        await world.passes(10)
        assert world.states() == {"up": "active", "in": "active"}
        assert not world.wrong()

    @story
    async def test_room_is_made_before_it_is_asked_for(self, world: World) -> None:
        await world.begins(*two())
        await world.create(asks("all", nodes(4, 4)), asks("next", nodes(4, 4)))
        await world.passes()
        (old,) = world.groups("all")
        world.ray.calls.clear()
        slow = iter([5])
        world.ray.turns = lambda: next(slow, 0)
        await world.delete("all")
        (new,) = world.groups("next")
        assert world.ray.calls == [("remove", old), ("create", new)]

    @story
    async def test_nothing_can_be_inside_what_others_use(self, world: World) -> None:
        await world.begins(*two())
        world.ray.use("task", "a", {"CPU": 3})
        await world.passes(2)
        with pytest.raises(NoSuchCluster):
            await world.create(asks("in", nodes(2), inside=DEFAULT))

    @story
    async def test_a_job_that_begins_while_the_keeper_looks(self, world: World) -> None:
        await world.begins(*two())
        world.ray.turns = lambda: 5
        looks = asyncio.ensure_future(world.keeper.turn())
        await steps(7)
        world.ray.job_up("j1")
        await world.keeper.create(asks("job", nodes(2), owner="j1"))
        await world.do(_wait(looks))
        await world.passes(2)
        assert world.states() == {"job": "active"}

    @story
    async def test_a_group_that_is_made_while_the_keeper_looks_was_removed_by_nobody(
        self, world: World
    ) -> None:
        await world.begins(*two())
        looks = asyncio.ensure_future(world.keeper.turn())
        delays = iter([0, 60, 60, 60])
        world.ray.turns = lambda: next(delays, 0)
        await steps(3)
        await world.keeper.create(asks("job", nodes(2)))
        await world.do(_wait(looks))
        await world.passes(1)
        assert "recovering" not in [event for _, event, _ in world.events()]


# -- whatever happens, whenever it dies --------------------------------------------------------

JOBS = ("j0", "j1")
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
        """Something happens; the keeper dies so many steps of its loop later."""
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
            case "job ends":
                ray.job_down(JOBS[one])
                self._over({id for id, owner in self.owners.items() if owner == JOBS[one]})
            case "no answer":
                ray.fail(CALLS[one], OSError("no answer"))
        task = asyncio.ensure_future(doing)
        if cut is None:
            await self.world.do(_wait(task))
            return
        await steps(cut)
        if task.done():
            task.result()
        else:
            task.cancel()
        await self.world.dies()
        self.world.rises()
        await self.world.do(self.world.keeper.start())

    async def _create(self, where: int, shape: int) -> None:
        parents = [ROOT, *sorted(self.world.books.ledger.clusters.keys() - {DEFAULT})]
        parent = parents[where % len(parents)] if where > 4 else ROOT
        name = f"c{next(self.numbers)}"
        self.parents[name] = parent
        asked = SHAPES[shape](name, parent)
        self.owners[name] = asked.owner
        with contextlib.suppress(NeverFits):
            await self.world.keeper.create(asked)
            if asked.owner in (None, *self.world.ray.jobs):
                self.there.add(name)

    async def _delete(self, name: str) -> None:
        self.there -= self._below({name})
        with contextlib.suppress(NoSuchCluster):
            await self.world.keeper.delete(ClusterId(name))
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
        world, books = self.world, self.world.books
        await world.passes(30, turn_s=0.5)
        assert not world.wrong()
        struck = {
            id
            for id, event, why in (*world.told, *world.events())
            if event == "ended" and why.endswith("lost its places")
        }
        known = {str(id) for id in books.entries}
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


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(story=st.lists(happenings, max_size=14), seed=st.integers(0, 99), lag=st.booleans())
def test_the_books_and_ray_agree_whenever_the_keeper_died(
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
        try:
            await world.begins(fake_machine("a", CPU=4), fake_machine("b", CPU=4))
            chronicle = Chronicle(world)
            for happening in story:
                await chronicle.happens(*happening)
                assert not world.books.ledger.broken()
            await chronicle.ends()
        finally:
            world.file.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(tell(folder))
