"""What a site says by itself binds nobody: no other run, no disk, no memory without a bound."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from fedpilot.mediator.core.health import joined
from fedpilot.mediator.core.links import LinkSpeed
from fedpilot.mediator.core.traffic import Direction
from fedpilot.mediator.errors import AnswerUnreadable
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.connections.sessions import LARGEST_ANSWER, passable
from fedpilot.mediator.server.orders import site_table
from fedpilot.mediator.server.orders.coordinator_registry import CoordinatorRegistry
from fedpilot.mediator.server.orders.order_blobs import OrderBlobs
from fedpilot.mediator.server.orders.order_dispatcher import (
    LARGEST_HAPPENED,
    RELEASE,
    OrderDispatcher,
)
from fedpilot.mediator.server.orders.outbox import Outbox
from fedpilot.mediator.server.orders.site_table import SiteEntry, SiteTable
from fedpilot.mediator.server.orders.traffic_accounting import TrafficAccounting
from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.failures import error_of
from fedpilot.mediator.wire.messages import OrderId, RunId, SiteName, id_message

PARIS = SiteName("paris")
RUN, OTHER, PAST = RunId("run"), RunId("other"), RunId("past")
ID = OrderId(RUN, "round/1")
BLOB = Blob(hashlib.sha256(b"x").hexdigest(), 600)
BIG = Blob(hashlib.sha256(b"y").hexdigest(), 600)


class Line(Outbox[pb.ToCoordinator]):
    """What a coordinator is told."""

    def __init__(self, limit: int = 10) -> None:
        super().__init__(limit)

    def of(self, kind: str) -> list[Any]:
        return [getattr(m, kind) for m in self._waiting if m.WhichOneof("content") == kind]


class Session:
    """What a site is told."""

    serial, agent = "1", "a"

    def __init__(self) -> None:
        self.told: list[pb.ToSite] = []

    def send(self, message: pb.ToSite) -> None:
        self.told.append(message)

    def end(self, reason: str, *, final: bool) -> None:
        raise AssertionError(reason)

    def of(self, kind: str) -> list[Any]:
        return [getattr(m, kind) for m in self.told if m.WhichOneof("content") == kind]


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def told_of(world: World) -> pb.Bytes:
    """What the coordinator is told of bytes."""
    told = world.dispatcher._accounting.tell(RUN)
    return pb.Bytes() if told is None else told.bytes


class World:
    """One site, and two runs that go on with a coordinator each."""

    def __init__(self, folder: Path) -> None:
        self.blobs = BlobStore(folder / "blobs", 1 << 20)
        self.now = 0.0
        self.moved: list[str] = []
        self.attached = CoordinatorRegistry()
        self.lines = {run: Line() for run in (RUN, OTHER)}
        for run, line in self.lines.items():
            self.attached.begin(run)
            self.attached.attach(run, line)
        self.site = SiteEntry(name=PARIS, standing=joined(0.0), first_joined=0.0)
        self.session = self.site.session = Session()
        table = SiteTable()
        table.add(self.site)
        accounting = TrafficAccounting(None)  # type: ignore[arg-type]
        self.dispatcher = OrderDispatcher(
            table,
            self.attached,
            accounting,
            self.blobs,
            OrderBlobs(self.blobs, lambda: self.now),
            lambda entry: self.moved.append(entry.name),
            lambda: self.now,
        )

    def hello(self, *runs: RunId, held: tuple[OrderId, ...] = ()) -> None:
        self.dispatcher.reconnected(self.site, pb.Hello(runs=runs, held=map(id_message, held)))

    def ask(self, id: OrderId = ID, verb: str = "work") -> None:
        self.dispatcher.ask(PARIS, pb.Order(id=id_message(id), verb=verb, round=1), id)

    def over(self, run: RunId) -> None:
        self.attached.end(run)
        self.dispatcher.run_over(run)

    def say(self, run: RunId, header_json: str = "{}") -> None:
        happened = pb.Happened(run=run, kind="noise", header_json=header_json)
        self.dispatcher.happened(PARIS, happened, 10)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_run_hears_of_sites_only_that_it_has_asked(world: World) -> None:
    world.hello(RUN, OTHER)
    world.ask()
    for run in (RUN, OTHER):
        world.say(run)
    assert [each.site for each in world.lines[RUN].of("happened")] == [PARIS]
    assert world.lines[OTHER].of("happened") == []


def test_too_much_that_happens_at_once_is_left_out(world: World) -> None:
    world.ask()
    world.say(RUN, " " * (LARGEST_HAPPENED - 100))
    world.say(RUN, " " * LARGEST_HAPPENED)
    assert len(world.lines[RUN].of("happened")) == 1


def test_what_happens_is_left_out_while_much_else_is_to_be_told(world: World) -> None:
    world.ask()
    for _ in range(20):
        world.say(RUN)
    assert len(world.lines[RUN].of("happened")) == 5
    assert not world.lines[RUN].closed


def test_a_site_is_believed_of_unknown_runs_while_it_says_so(world: World) -> None:
    world.hello(RUN, OTHER, PAST)
    assert (set(world.site.holding), world.site.owed) == ({RUN, OTHER}, {PAST})
    world.ask()
    for number in range(3):
        world.hello(*(RunId(f"made-up-{number}-{each}") for each in range(100)))
    assert set(world.site.holding) == {RUN}  # which has asked for something
    assert len(world.site.owed) == 100


@pytest.mark.parametrize("verb", ["prepare", "release"])
def test_a_site_that_is_lost_while_it_is_asked_owes_what_it_may_hold(
    world: World, verb: str
) -> None:
    """The site may have carried the order out, and it may stay connected."""
    world.ask()
    world.ask(OrderId(RUN, verb), verb)
    world.dispatcher.lost(world.site)
    assert world.site.owed == {RUN}
    world.over(RUN)
    assert [each.id.key for each in world.session.of("order")][-1] == RELEASE


def test_what_is_owed_by_a_run_that_has_asked_is_not_forgotten(world: World) -> None:
    world.hello(RUN)
    world.ask()
    world.over(RUN)
    world.hello()
    assert world.site.owed == {RUN}


def test_what_a_restarted_mediator_was_told_of_is_collected_when_the_run_is_over(
    world: World,
) -> None:
    world.hello(RUN)
    world.over(RUN)
    assert [each.id.key for each in world.session.of("order")] == ["release"]
    world.hello()  # nothing is left there
    assert world.site.owed == world.site.claimed == set()


def test_a_coordinator_is_told_how_long_models_and_sums_take_over_a_link(world: World) -> None:
    model = world.blobs.adopt(written(world.blobs.folder / "model", b"m" * 300))
    order = pb.Order(id=id_message(ID), verb="work", round=3)
    order.blob.CopyFrom(pb.Blob(digest=model.digest, size=model.size))
    world.dispatcher.ask(PARIS, order, ID)
    for now in (2.0, 4.0):
        world.now = now
        world.dispatcher.book_blob(PARIS, Direction.TO_SITE, model.digest, 150)
    world.now = 5.0  # what the kernel had taken is there
    world.dispatcher.taken(PARIS, ID, 10)
    world.now = 100.0  # it has worked for long
    assert world.dispatcher.refuses_push(PARIS, ID, BLOB) == ""
    world.now = 107.0
    world.dispatcher.book_blob(PARIS, Direction.FROM_SITE, BLOB.digest, BLOB.size)
    (took,) = told_of(world).links
    assert (took.round, took.site, took.bytes, took.seconds) == (3, PARIS, 900, 12.0)
    assert world.moved == [PARIS] * 3
    assert not told_of(world).links, "it is told once"


@pytest.mark.parametrize("again", [False, True], ids=["at once", "over another session"])
def test_a_sites_link_is_measured_by_what_crosses_it(world: World, again: bool) -> None:
    large = 5 << 20
    model = world.blobs.adopt(written(world.blobs.folder / "model", b"m" * 300))
    order = pb.Order(id=id_message(ID), verb="work", round=3)
    order.blob.CopyFrom(pb.Blob(digest=model.digest, size=model.size))
    world.dispatcher.ask(PARIS, order, ID)
    world.now = 2.0
    world.dispatcher.book_blob(PARIS, Direction.TO_SITE, model.digest, large)
    if again:
        world.hello()
    world.now = 4.0
    world.dispatcher.taken(PARIS, ID, 10)
    assert world.dispatcher.refuses_push(PARIS, ID, BLOB) == ""
    world.now = 12.0
    world.dispatcher.book_blob(PARIS, Direction.FROM_SITE, BLOB.digest, large)
    world.dispatcher.withdraw(PARIS, ID)
    down = {} if again else {"down": large / 4, "down_measured_at": 4.0}
    found = LinkSpeed(up=large / 8, up_measured_at=12.0, **down)
    assert world.site.link.known(12.0) == found
    assert not world.site.link._meters[Direction.TO_SITE]._under_way


def test_blobs_of_orders_that_nobody_has_asked_for_are_let_go_with_them(world: World) -> None:
    world.hello(held=(ID,))
    assert world.dispatcher.refuses_push(PARIS, ID, BLOB) == ""
    world.hello()
    assert world.site.orders.open == {}
    with pytest.raises(ValueError, match="not pinned"):
        world.blobs.unpin(BLOB.digest)


def test_what_does_not_fit_before_anybody_asks_is_asked_for_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_table, "ADOPTED_BLOB_BYTES", 1_000)
    monkeypatch.setattr(site_table, "ADOPTED_ANSWER_BYTES", 1_000)
    other = OrderId(RUN, "round/2")
    large = pb.Answer(
        id=id_message(other), done=pb.Done(kind="done", header_json='"%s"' % ("x" * 1_000))
    )
    third = OrderId(RUN, "round/3")
    world.hello(held=(ID, other, third))
    assert world.dispatcher.refuses_push(PARIS, ID, BLOB) == ""
    assert "bring its blob later" in world.dispatcher.refuses_push(PARIS, third, BIG)
    assert "no coordinator has asked" in world.dispatcher.answered(PARIS, large, other, 1_000)
    assert world.session.of("answer_taken") == []  # the site keeps it
    world.ask(other)
    world.ask(third)
    assert [each.id.key for each in world.session.of("order")] == ["round/2", "round/3"]
    assert world.dispatcher.refuses_push(PARIS, third, BIG) == ""
    assert world.dispatcher.answered(PARIS, large, other, 1_000) == ""
    assert [each.answer for each in world.lines[RUN].of("answer")] == [large]


def test_an_answer_too_large_to_be_passed_on_has_failed() -> None:
    fits = pb.Answer(id=id_message(ID), done=pb.Done(kind="done", header_json="{}"))
    assert passable(PARIS, fits) is fits
    done = pb.Done(kind="done", header_json="x" * LARGEST_ANSWER)
    failed = passable(PARIS, pb.Answer(id=id_message(ID), done=done))
    assert failed.id == id_message(ID)
    error = error_of(PARIS, failed.failure)
    assert isinstance(error, AnswerUnreadable)
    assert "bytes beside its tensors" in str(error)


def test_a_command_that_nobody_answers_ends_with_its_time_and_leaves_nothing(world: World) -> None:
    world.hello()
    with pytest.raises(TimeoutError, match=r"site paris did not answer within 0\.05 s"):
        asyncio.run(world.dispatcher.command(PARIS, "cluster.list", "{}", timeout_s=0.05))
    (asked,) = world.session.of("order")
    assert (asked.verb, asked.kind) == ("command", "cluster.list")
    assert world.site.orders.open == {}
    assert world.site.holding == {}


def test_a_command_is_answered_once_its_site_has(world: World) -> None:
    world.hello()

    async def act() -> pb.Answer:
        asking = asyncio.create_task(
            world.dispatcher.command(PARIS, "cluster.list", "{}", timeout_s=60)
        )
        while not world.session.of("order"):
            await asyncio.sleep(0)
        (order,) = world.session.of("order")
        answer = pb.Answer(id=order.id, done=pb.Done(kind="listed"))
        id = OrderId(RunId(order.id.run), order.id.key)
        assert world.dispatcher.answered(PARIS, answer, id, 10) == ""
        return await asking

    assert asyncio.run(act()).done.kind == "listed"
    assert world.site.orders.open == {}
