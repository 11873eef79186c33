"""The mediator reserves on all sites or none, assigns, carries orders, and gives all back."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedpilot.fabric import SchedulingPolicy, VirtualClusterManager
from fedpilot.fabric.testing.fake_cluster import FakeCluster, ManualClock, fake_machine
from fedpilot.mediator import (
    Change,
    ChangeKind,
    FederationMediator,
    GangRequest,
    InProcessSite,
    MediatorError,
    Notify,
    Payload,
    Promise,
    Refusal,
    ReservationRefused,
    RunnerDied,
    RunnersSpent,
    Site,
    SiteContext,
    SiteLost,
    SiteUnreachable,
    UnknownWorkload,
    load_workload,
)
from fedpilot.mediator.core.reservation import Answer
from fedpilot.mediator.core.traffic import Direction, Flow
from fedpilot.mediator.errors import AnswerUnreadable
from fedpilot.mediator.site import done, promised

REQUEST = GangRequest(name="g", resources={"CPU": 1.0}, workers=2)


class FakeSite:
    """A site that does what it is told, and remembers it."""

    def __init__(self, name: str, answer: Answer | Exception = None, vnodes: int = 1) -> None:
        self.name = name
        self.log: list[str] = []
        self.orders: list[Payload] = []
        self.keys: list[str] = []
        self.held = False
        self.fail_on: dict[str, Exception] = {}
        self.make_answer: Callable[[Payload], Future[Payload]] = self._echo
        self._answer = answer or Promise(name, vnodes)

    def _do(self, verb: str) -> None:
        self.log.append(verb)
        if verb in self.fail_on:
            raise self.fail_on[verb]

    def prepare(self, request: GangRequest) -> Future[Answer]:
        return done(self._prepare)

    def _prepare(self) -> Answer:
        self._do("prepare")
        if isinstance(self._answer, Exception):
            raise self._answer
        self.held = isinstance(self._answer, Promise)
        return self._answer

    def commit(self) -> Future[None]:
        return done(self._do, "commit")

    def release(self) -> Future[None]:
        return done(self._release)

    def _release(self) -> None:
        self._do("release")
        self.held = False

    def check(self, workload: str, spec: Payload) -> Future[None]:
        return done(self._do, f"check {workload}")

    def start(self, notify: Notify) -> Future[None]:
        self.notify = notify
        notify(Payload(kind="hello", header={"site": self.name}))
        return done(self._do, "start")

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        self._do("deliver")
        self.orders.append(order)
        self.keys.append(key)
        return self.make_answer(order)

    @staticmethod
    def _echo(order: Payload) -> Future[Payload]:
        answer: Future[Payload] = Future()
        answer.set_result(Payload(kind="echo", tensors={"x": np.zeros(3)}))
        return answer


def mediator_of(*sites: Site, **options: str) -> FederationMediator:
    return FederationMediator(sites, **options)


# -- reserving --------------------------------------------------------------------------------


def test_all_sites_promise_and_commit() -> None:
    a, b = FakeSite("a", vnodes=3), FakeSite("b", vnodes=1)
    mediator = mediator_of(a, b)
    assert mediator.sites == ("a", "b")
    assert dict(mediator.reserve(REQUEST)) == {"a": Promise("a", 3), "b": Promise("b", 1)}
    assert a.log == b.log == ["prepare", "commit"]
    assert mediator.promises == {"a": Promise("a", 3), "b": Promise("b", 1)}


def test_a_refusal_releases_all_and_says_why() -> None:
    a, b = FakeSite("a"), FakeSite("b", Refusal("b", "all CPUs are taken"))
    with pytest.raises(ReservationRefused, match="site b: all CPUs are taken"):
        mediator_of(a, b).reserve(REQUEST)
    assert not a.held
    assert "commit" not in a.log


def test_enough_sites_go_on_without_the_others() -> None:
    a, b, c = FakeSite("a"), FakeSite("b", Refusal("b", "no")), FakeSite("c")
    mediator = mediator_of(a, b, c)
    mediator.reserve(REQUEST, min_sites=2)
    assert mediator.sites == ("a", "c")
    assert mediator.assign(10).shares == {"a": (range(5),), "c": (range(5, 10),)}


def test_a_required_sites_refusal_is_final() -> None:
    a, b = FakeSite("a"), FakeSite("b", Refusal("b", "no"))
    with pytest.raises(ReservationRefused):
        mediator_of(a, b).reserve(REQUEST, min_sites=1, required={"b"})
    assert not a.held


@pytest.mark.parametrize("verb", ["prepare", "commit", "release"])
@pytest.mark.parametrize("error", [SiteUnreachable("b", "gone"), KeyboardInterrupt()])
def test_whatever_breaks_in_between_nothing_stays_reserved(verb: str, error: BaseException) -> None:
    a, b, c = FakeSite("a"), FakeSite("b"), FakeSite("c", Refusal("c", "no"))
    b.fail_on[verb] = error  # type: ignore[assignment]
    min_sites = 3 if verb == "release" else 2
    with pytest.raises((MediatorError, KeyboardInterrupt)):
        mediator_of(a, b, c).reserve(REQUEST, min_sites=min_sites)
    assert not a.held
    assert not c.held


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        pytest.param(SiteUnreachable("a", "gone"), False, id="out of reach: its lease ends it"),
        pytest.param(RuntimeError("a bug"), True, id="anything else is told"),
    ],
)
def test_one_site_that_cannot_be_released_does_not_keep_the_others(
    error: Exception, fails: bool
) -> None:
    a, b, c = FakeSite("a"), FakeSite("b"), FakeSite("c")
    mediator = mediator_of(a, b, c)
    mediator.reserve(REQUEST)
    a.fail_on["release"] = error
    with pytest.raises(type(error)) if fails else nullcontext():
        mediator.close()
    assert not b.held
    assert not c.held


def test_closing_releases_everything_and_may_be_done_twice() -> None:
    a = FakeSite("a")
    with mediator_of(a) as mediator:
        mediator.reserve(REQUEST)
        assert a.held
    assert not a.held
    mediator.close()
    assert mediator.sites == ("a",)
    assert mediator.promises == {}


def test_after_a_refusal_it_can_be_asked_again() -> None:
    a = FakeSite("a", Refusal("a", "busy"))
    mediator = mediator_of(a)
    with pytest.raises(ReservationRefused):
        mediator.reserve(REQUEST)
    a._answer = Promise("a", 1)
    assert set(mediator.reserve(REQUEST)) == {"a"}


# -- working ----------------------------------------------------------------------------------


def test_clients_are_assigned_by_the_strategy_that_was_asked_for() -> None:
    mediator = mediator_of(FakeSite("b", vnodes=3), FakeSite("a"), assignment="round_robin")
    with pytest.raises(RuntimeError, match="reserved"):
        _ = mediator.assignment
    mediator.reserve(REQUEST)
    assert mediator.assign(4).shares == {"a": (range(0, 4, 2),), "b": (range(1, 4, 2),)}
    assert mediator.assignment.site_of(3) == "b"


def test_every_site_checks_before_any_starts() -> None:
    log: list[str] = []
    sites = [FakeSite(name) for name in "ab"]
    for site in sites:
        site.log = log
    mediator = mediator_of(*sites)
    mediator.reserve(REQUEST)
    log.clear()
    notes: list[Payload] = []
    mediator.start("w", {site: Payload(kind="spec") for site in "ab"}, notes.append)
    assert log == ["check w", "check w", "start", "start"]
    assert [note.header["site"] for note in notes] == ["a", "b"]


def test_a_site_that_finds_the_spec_wrong_keeps_all_from_starting() -> None:
    a, b = FakeSite("a"), FakeSite("b")
    b.fail_on["check w"] = ValueError("no such data")
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST)
    with pytest.raises(ValueError, match="no such data"):
        mediator.start("w", {"a": Payload(kind="s"), "b": Payload(kind="s")}, lambda _: None)
    assert "start" not in a.log + b.log


def test_an_order_and_its_answer_are_carried_and_booked() -> None:
    a, b = FakeSite("a"), FakeSite("b")
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST)
    order = Payload(kind="round", tensors={"w": np.zeros((2, 5), dtype=np.float32)})
    answer = mediator.deliver("b", order, round_number=3, purpose="training")
    assert answer.result(60).kind == "echo"
    assert b.orders == [order]
    assert a.orders == []
    assert mediator.drain_traffic() == [
        (Flow(3, "b", Direction.FROM_SITE, "training"), 24),
        (Flow(3, "b", Direction.TO_SITE, "training"), 40),
    ]


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_an_answer_that_does_not_come_is_not_booked(how: str) -> None:
    a = FakeSite("a")
    pending: Future[Payload] = Future()
    a.make_answer = lambda _: pending
    mediator = mediator_of(a)
    mediator.reserve(REQUEST)
    answer = mediator.deliver("a", Payload(kind="round"), purpose="training")
    if how == "fails":
        pending.set_exception(SiteUnreachable("a", "gone"))
    else:
        pending.cancel()
        pending.set_running_or_notify_cancel()
    with pytest.raises((SiteUnreachable, CancelledError)):
        answer.result(1)
    assert [flow.direction for flow, _ in mediator.drain_traffic()] == [Direction.TO_SITE]


def test_an_order_has_a_key_by_which_it_is_the_same_order() -> None:
    a = FakeSite("a")
    mediator = mediator_of(a)
    mediator.reserve(REQUEST)
    for key in ("round/3", "round/3", None, None):
        mediator.deliver("a", Payload(kind="round"), purpose="training", key=key)
    assert a.keys[:2] == ["round/3", "round/3"]
    assert len(set(a.keys)) == 3


def test_sites_prepare_side_by_side() -> None:
    """Each site promises once the other has been asked."""
    sites = {name: FakeSite(name) for name in "ab"}
    asked = {name: threading.Event() for name in "ab"}

    def slowly(name: str, other: str) -> Future[Answer]:
        asked[name].set()
        answer: Future[Answer] = Future()
        threading.Thread(
            target=lambda: asked[other].wait(60) and answer.set_result(Promise(name, 1))
        ).start()
        return answer

    for name, other in ("ab", "ba"):
        sites[name].prepare = partial(lambda n, o, _: slowly(n, o), name, other)  # type: ignore[method-assign]
    assert set(mediator_of(*sites.values()).reserve(REQUEST)) == {"a", "b"}


def test_an_answer_is_booked_by_the_time_it_is_there() -> None:
    """Whoever waits for an answer may drain the ledger next; its bytes belong to this round."""
    a = FakeSite("a")
    pending: Future[Payload] = Future()
    waiter_may_go = threading.Event()
    pending.add_done_callback(lambda _: waiter_may_go.wait(2))  # a slow thread, before any booking
    a.make_answer = lambda _: pending
    mediator = mediator_of(a)
    mediator.reserve(REQUEST)
    answer = mediator.deliver("a", Payload(kind="round"), round_number=1, purpose="training")
    thread = threading.Thread(
        target=pending.set_result, args=(Payload(kind="x", tensors={"x": np.zeros(1)}),)
    )
    thread.start()
    threading.Timer(0.2, waiter_may_go.set).start()
    answer.result(60)
    drained = dict(mediator.drain_traffic())
    waiter_may_go.set()
    thread.join(60)
    assert Flow(1, "a", Direction.FROM_SITE, "training") in drained


def test_payloads_weigh_what_their_tensors_weigh() -> None:
    assert Payload(kind="x", header={"a": "long text" * 100}).nbytes == 0
    assert Payload(kind="x", tensors={"a": np.zeros(3), "b": np.array(1, "i4")}).nbytes == 28


# -- sites that go and come back --------------------------------------------------------------


def started(
    *names: str, min_sites: int | None = 1, **options: Any
) -> tuple[FederationMediator, dict[str, FakeSite]]:
    sites = {name: FakeSite(name) for name in names}
    mediator = FederationMediator(sites.values(), **options)
    mediator.reserve(REQUEST, min_sites=min_sites)
    mediator.assign(12)
    mediator.start("w", {name: Payload(kind="spec") for name in names}, lambda _: None)
    return mediator, sites


def sizes(mediator: FederationMediator) -> dict[str, int]:
    return {site: sum(map(len, share)) for site, share in mediator.assignment.shares.items()}


def test_a_lost_site_counts_no_more_and_its_clients_belong_to_others() -> None:
    mediator, _ = started(*"abc")
    heard: list[tuple[str, Payload | None]] = []
    with mediator.heard_by(lambda site, payload: heard.append((site, payload))):
        mediator.lose("c", "a storm", round_number=4)
        mediator.lose("c", "told twice", round_number=5)
    mediator.lose("b", "nobody listens")
    assert mediator.sites == ("a",)
    assert sizes(mediator) == {"a": 12, "b": 0, "c": 0}
    assert heard == [("c", None)]
    assert mediator.drain_changes() == [
        Change(site="c", kind=ChangeKind.LOST, reason="a storm", clients=4),
        Change(site="b", kind=ChangeKind.LOST, reason="nobody listens", clients=6),
    ]
    assert mediator.drain_changes() == []
    assert "round 4, which was lost: a storm" in mediator.assignment.explain(11)


def test_without_replacement_a_lost_sites_clients_stay_its_own() -> None:
    mediator, _ = started(*"ab", replacement=False)
    mediator.lose("b", "a storm")
    assert sizes(mediator) == {"a": 6, "b": 6}


@pytest.mark.parametrize(
    ("min_sites", "required", "lost", "words"),
    [
        pytest.param(None, (), "c", None, id="others remain"),
        pytest.param(2, (), "c", None, id="as many as are needed"),
        pytest.param(3, (), "c", "at least 3 of 3 sites are needed, 2 are there", id="too few"),
        pytest.param(1, ("c",), "c", "site c is required", id="a required one"),
        pytest.param(None, (), "abc", "at least 1 of 3", id="none remains"),
    ],
)
def test_what_a_gang_lacks(
    min_sites: int | None, required: tuple[str, ...], lost: str, words: str | None
) -> None:
    mediator = mediator_of(*map(FakeSite, "abc"))
    assert mediator.lacking() is None
    mediator.reserve(REQUEST, min_sites=min_sites, required=required)
    for site in lost:
        mediator.lose(site, "a storm")
    found = mediator.lacking()
    assert found is None if words is None else words in str(found)


def test_a_site_that_comes_back_is_started_anew_and_given_work_bit_by_bit() -> None:
    mediator, sites = started(*"ab")
    mediator.lose("b", "a storm", round_number=1)
    mediator.drain_changes()
    sites["b"].log.clear()
    assert mediator.readmit("b").result(60) == Promise("b", 1)
    assert sites["b"].log == ["prepare", "commit", "check w", "start"]
    assert mediator.sites == ("a", "b")
    assert [change.kind for change in mediator.drain_changes()] == [ChangeKind.RETURNED]
    found = []
    for number in range(2, 6):
        mediator.rebalance(0.25, round_number=number)
        found.append(sizes(mediator)["b"])
    assert found == [3, 6, 6, 6]


def test_whoever_is_there_is_not_started_again() -> None:
    mediator, sites = started(*"ab")
    sites["b"].log.clear()
    assert mediator.readmit("b").result(60) == Promise("b", 1)
    assert sites["b"].log == []


@pytest.mark.parametrize("verb", ["prepare", "commit", "check w", "start"])
def test_a_site_that_cannot_come_back_holds_nothing(verb: str) -> None:
    mediator, sites = started(*"ab")
    mediator.lose("b", "a storm")
    sites["b"].fail_on[verb] = SiteUnreachable("b", "still a storm")
    with pytest.raises(SiteUnreachable):
        mediator.readmit("b").result(60)
    assert mediator.sites == ("a",)
    assert not sites["b"].held


def test_a_site_that_refuses_to_come_back_says_why() -> None:
    mediator, sites = started(*"ab")
    mediator.lose("b", "a storm")
    sites["b"]._answer = Refusal("b", "all CPUs are taken")
    with pytest.raises(ReservationRefused, match="all CPUs are taken"):
        mediator.readmit("b").result(60)


def test_a_site_that_is_back_after_the_end_gives_all_back() -> None:
    mediator, sites = started(*"ab")
    mediator.lose("b", "a storm")
    slow: Future[None] = Future()
    sites["b"].start = lambda notify: slow  # type: ignore[method-assign]
    back = mediator.readmit("b")
    mediator.close()
    sites["b"].held = True
    slow.set_result(None)
    with pytest.raises(MediatorError, match="ended meanwhile"):
        back.result(60)
    assert not sites["b"].held


def test_a_site_that_joins_later_is_given_work() -> None:
    mediator, _ = started("a")
    new = FakeSite("new")
    mediator.add(new, Payload(kind="spec"))
    mediator.readmit("new").result(60)
    mediator.rebalance(1.0)
    assert new.log == ["prepare", "commit", "check w", "start"]
    assert sizes(mediator) == {"a": 6, "new": 6}


@pytest.mark.parametrize("verb", ["check w", "start"])
@pytest.mark.parametrize(("min_sites", "fails"), [(1, False), (2, True), (None, True)])
def test_a_site_that_is_lost_at_the_start_is_done_without_if_it_may(
    verb: str, min_sites: int | None, fails: bool
) -> None:
    a, b = FakeSite("a"), FakeSite("b")
    b.fail_on[verb] = SiteUnreachable("b", "a storm")
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST, min_sites=min_sites)
    mediator.assign(12)
    with pytest.raises(SiteUnreachable) if fails else nullcontext():
        mediator.start("w", dict.fromkeys("ab", Payload(kind="s")), lambda _: None)
    if not fails:
        assert sizes(mediator) == {"a": 12, "b": 0}


def dies(site: FakeSite, verb: str, times: int, last: Exception | None = None) -> None:
    """Have a site's runner die so often when it is asked for this."""
    do, left = site._do, itertools.count(times, -1)

    def dying(asked: str) -> None:
        do(asked)
        if asked == verb and (rest := next(left)) > 0:
            raise last if last is not None and rest == 1 else RunnerDied(site.name, "killed")

    site._do = dying  # type: ignore[method-assign]


@pytest.mark.parametrize("verb", ["check w", "start"])
def test_a_site_whose_runner_dies_at_the_start_begins_again(verb: str) -> None:
    a, b = FakeSite("a"), FakeSite("b")
    dies(b, verb, 2)
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST)
    mediator.assign(12)
    mediator.start("w", dict.fromkeys("ab", Payload(kind="s")), lambda _: None)
    assert mediator.sites == ("a", "b")
    assert b.held


def test_a_site_whose_runners_are_spent_at_the_start_is_the_reason_why_it_fails() -> None:
    a, b = FakeSite("a"), FakeSite("b")
    dies(b, "start", 3, last=RunnersSpent("b", "killed by SIGKILL"))
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST)
    mediator.assign(12)
    with pytest.raises(RunnersSpent, match="site b is lost: killed by SIGKILL"):
        mediator.start("w", dict.fromkeys("ab", Payload(kind="s")), lambda _: None)


def test_a_site_whose_runners_are_spent_is_not_asked_again() -> None:
    mediator, sites = started(*"ab")
    mediator.give_up("b", RunnersSpent("b", "killed by SIGKILL"))
    assert mediator.excluded == {"b": "killed by SIGKILL"}
    sites["b"].log.clear()
    with pytest.raises(ReservationRefused, match="killed by SIGKILL"):
        mediator.readmit("b").result(5)
    assert sites["b"].log == []
    assert not mediator.hopeless()
    mediator.give_up("a", RunnersSpent("a", "killed by SIGSEGV"))
    assert mediator.hopeless()
    assert "site a is gone: killed by SIGSEGV" in str(mediator.lacking())


def test_a_site_that_spends_its_runners_while_it_comes_back_is_out() -> None:
    mediator, sites = started(*"ab")
    mediator.lose("b", "its runner was killed")
    sites["b"].fail_on["start"] = RunnersSpent("b", "killed by SIGKILL")
    with pytest.raises(RunnersSpent):
        mediator.readmit("b").result(5)
    assert list(mediator.excluded) == ["b"]


@pytest.mark.parametrize("what", ["drain", "lose"])
def test_a_site_that_has_gone_is_sent_no_order(what: str) -> None:
    """Whoever sends it has seen the site there a moment before."""
    mediator, sites = started(*"ab")
    getattr(mediator, what)("b", "its admin wants it empty")
    sites["b"].log.clear()
    answer = mediator.deliver("b", Payload(kind="train"), purpose="training")
    with pytest.raises(SiteLost, match="its admin wants it empty"):
        answer.result(5)
    assert "deliver" not in sites["b"].log
    assert mediator.drain_traffic() == []


def test_a_site_that_drains_takes_orders_while_it_is_at_work_and_is_released_after_them() -> None:
    mediator, sites = started(*"ab")
    first: Future[Payload] = Future()
    second: Future[Payload] = Future()
    sites["b"].make_answer = lambda order: first if order.kind == "train" else second
    mediator.deliver("b", Payload(kind="train"), purpose="training")
    drained = mediator.drain("b", "its admin wants it empty")
    mediator.deliver("b", Payload(kind="close"), purpose="training")
    first.set_result(Payload(kind="done"))
    assert sites["b"].held
    assert not drained.done()
    second.set_result(Payload(kind="done"))
    drained.result(5)
    assert not sites["b"].held
    with pytest.raises(SiteLost):
        mediator.deliver("b", Payload(kind="close"), purpose="training").result(5)


def test_after_the_end_no_order_is_sent() -> None:
    mediator, sites = started(*"ab")
    mediator.close()
    with pytest.raises(SiteLost, match="has ended"):
        mediator.deliver("a", Payload(kind="train"), purpose="node").result(5)
    assert "deliver" not in sites["a"].log


def test_a_clients_order_follows_it_to_its_next_site() -> None:
    mediator, sites = started(*"ab")
    sites["b"].make_answer = lambda _: done(partial(refuse, "b"))
    answer = mediator.deliver_to_client(11, Payload(kind="train"), purpose="node")
    assert answer.result(60).kind == "echo"
    assert [order.kind for order in sites["a"].orders] == ["train"]
    assert mediator.sites == ("a",)


def refuse(site: str) -> Payload:
    raise SiteLost(site, "a storm")


def test_a_site_that_is_left_alone_keeps_what_it_has_and_gets_nothing_new() -> None:
    mediator, sites = started(*"abc")
    heard: list[str] = []
    with mediator.heard_by(lambda site, _: heard.append(site)):
        mediator.leave_alone(["b"])
        mediator.leave_alone(["b"])
    assert heard == ["b"]
    mediator.lose("c", "a storm")
    assert sizes(mediator) == {"a": 8, "b": 4, "c": 0}
    assert list(mediator.share_out((range(3),))) == ["a"]
    mediator.lose("a", "a storm")
    assert sizes(mediator) == {"a": 8, "b": 4, "c": 0}, "they wait for somebody"
    assert mediator.share_out((range(3),)) == {}
    mediator.leave_alone(())
    assert mediator.share_out((range(3),)) == {"b": (range(3),)}
    assert sites["b"].held


def wrong_from(*sites: FakeSite) -> Callable[[Payload], str]:
    """These sites answer with what everybody can see is wrong."""
    for site in sites:
        site.make_answer = lambda _: done(lambda: Payload(kind="lie"))
    return lambda answer: "it is a lie" if answer.kind == "lie" else ""


def test_an_answer_that_cannot_be_is_asked_of_the_next_site_and_its_site_done_without() -> None:
    mediator, sites = started(*"abc")
    problem_of = wrong_from(sites["a"], sites["c"])
    order = Payload(kind="try")
    for client in (0, 11):
        answer = mediator.deliver_to_client(client, order, purpose="node", problem_of=problem_of)
        assert answer.result(60).kind == "echo"
    assert list(mediator.distrusted) == ["a", "c"]
    assert mediator.sites == ("b",)


def test_where_nobody_else_may_be_asked_it_fails_with_what_is_wrong() -> None:
    mediator, sites = started(*"ab", replacement=False)
    problem_of = wrong_from(sites["b"])
    answer = mediator.deliver_to_client(
        11, Payload(kind="x"), purpose="node", problem_of=problem_of
    )
    with pytest.raises(AnswerUnreadable, match="it is a lie"):
        answer.result(60)


def test_a_site_that_cannot_be_read_at_the_start_is_done_without() -> None:
    a, b = FakeSite("a"), FakeSite("b")
    b.fail_on["start"] = AnswerUnreadable("b", "BadPayload", "no JSON")
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST, min_sites=1)
    mediator.assign(12)
    mediator.start("w", dict.fromkeys("ab", Payload(kind="s")), lambda _: None)
    assert sizes(mediator) == {"a": 12, "b": 0}
    assert list(mediator.distrusted) == ["b"]


def test_whatever_a_site_fails_with_when_it_is_asked_to_promise_is_its_refusal() -> None:
    a, b = FakeSite("a"), FakeSite("b", KeyError("vnodes"))
    mediator = mediator_of(a, b)
    assert list(mediator.reserve(REQUEST, min_sites=1)) == ["a"]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        pytest.param(
            Payload(kind="promised", header={"vnodes": 2}), Promise("s", 2), id="a promise"
        ),
        pytest.param(
            Payload(kind="refused", header={"reason": "busy"}), Refusal("s", "busy"), id="a refusal"
        ),
        pytest.param(
            Payload(kind="refused"), Refusal("s", "it gave no reason"), id="one without a reason"
        ),
        pytest.param(
            Payload(kind="refused", header={"reason": "no Ray", "unreachable": True}),
            Refusal("s", "no Ray", unreachable=True),
            id="a Ray that cannot be used",
        ),
        pytest.param(
            Payload(kind="refused", header={"reason": "busy", "unreachable": 1}),
            Refusal("s", "busy"),
            id="one that says so wrongly",
        ),
        pytest.param(Payload(kind="promised"), None, id="a promise of nothing"),
        pytest.param(Payload(kind="promised", header={"vnodes": 0}), None, id="of no vnodes"),
        pytest.param(Payload(kind="promised", header={"vnodes": 10**9}), None, id="of too many"),
        pytest.param(Payload(kind="promised", header={"vnodes": True}), None, id="of true vnodes"),
        pytest.param(Payload(kind="promised", header={"vnodes": "2"}), None, id="of a text"),
        pytest.param(Payload(kind="done", header={"vnodes": 2}), None, id="something else"),
    ],
)
def test_a_promise_is_of_what_was_asked_for(answer: Payload, found: Answer) -> None:
    told = promised("s", answer, REQUEST)
    assert told == found if found is not None else isinstance(told, Refusal)


@pytest.mark.parametrize(
    ("replacement", "also_lost"),
    [pytest.param(False, (), id="it may not move"), pytest.param(True, "a", id="none is left")],
)
def test_a_clients_order_fails_where_it_can_go_nowhere(
    replacement: bool, also_lost: tuple[str, ...]
) -> None:
    mediator, sites = started(*"ab", replacement=replacement)
    for site in also_lost:
        mediator.lose(site, "a storm")
    sites["b"].make_answer = lambda _: done(partial(refuse, "b"))
    with pytest.raises(SiteLost):
        mediator.deliver_to_client(11, Payload(kind="train"), purpose="node").result(60)


def test_a_site_that_is_drained_finishes_its_work_and_is_released() -> None:
    mediator, sites = started(*"ab")
    pending: Future[Payload] = Future()
    sites["b"].make_answer = lambda _: pending
    answer = mediator.deliver("b", Payload(kind="round"), purpose="training")
    drained = mediator.drain("b", "it is drained")
    assert mediator.sites == ("a",)
    assert sizes(mediator) == {"a": 12, "b": 0}
    assert sites["b"].held
    pending.set_result(Payload(kind="late"))
    drained.result(60)
    assert answer.result(60).kind == "late"
    assert not sites["b"].held
    assert mediator.drain_changes() == [
        Change(site="b", kind=ChangeKind.DRAINED, reason="it is drained", clients=6)
    ]
    assert "which was drained: it is drained" in mediator.assignment.explain(11)
    assert mediator.drain("a", "so is this").done()


def test_whose_event_it_is_is_not_for_the_site_to_say() -> None:
    site, heard = FakeSite("a"), list[Payload]()
    mediator = FederationMediator([site])
    mediator.reserve(REQUEST)
    mediator.start("w", {"a": Payload(kind="spec")}, heard.append)
    for claimed in ({}, {"site": "b"}):
        site.notify(Payload(kind="clients_done", header={"round": 3, **claimed}))
    told = [each.header for each in heard if each.kind == "clients_done"]
    assert told == [{"site": "a", "round": 3}] * 2


# -- the site in this process -----------------------------------------------------------------


def in_process(
    *amounts: float, clock: ManualClock | None = None
) -> tuple[InProcessSite, FakeCluster]:
    machines = [fake_machine(f"m{i}", CPU=cpus) for i, cpus in enumerate(amounts)]
    cluster = FakeCluster(machines, clock)
    manager = (
        VirtualClusterManager(cluster) if clock is None else VirtualClusterManager(cluster, clock)
    )
    return InProcessSite("local", manager), cluster


@pytest.mark.parametrize(
    ("cpus", "request_", "vnodes"),
    [
        pytest.param(
            (4,), GangRequest(name="g", resources={"CPU": 1.0}, workers=3), 3, id="as asked"
        ),
        pytest.param((4,), GangRequest(name="g", resources={"CPU": 1.0}), 4, id="as many as fit"),
        pytest.param((64,), GangRequest(name="g", resources={"CPU": 1.0}), 16, id="at most 16"),
        pytest.param(
            (4, 4),
            GangRequest(name="g", resources={"CPU": 3.0}, policy=SchedulingPolicy.STRICT_SPREAD),
            2,
            id="by its policy",
        ),
    ],
)
def test_a_site_promises_vnodes(
    cpus: tuple[float, ...], request_: GangRequest, vnodes: int
) -> None:
    site, cluster = in_process(*cpus)
    assert site.prepare(request_).result(60) == Promise("local", vnodes)
    site.release()
    assert cluster.groups() == ()
    site.release()


@pytest.mark.parametrize("workers", [9, None])
def test_a_site_that_can_never_hold_it_refuses_at_once(workers: int | None) -> None:
    site, cluster = in_process(4)
    cpus = 1.0 if workers else 5.0
    answer = site.prepare(GangRequest(name="g", resources={"CPU": cpus}, workers=workers)).result(
        60
    )
    assert isinstance(answer, Refusal)
    assert "can never give" in answer.reason
    assert cluster.groups() == ()


def test_a_site_whose_resources_are_taken_refuses_after_the_time_given() -> None:
    clock = ManualClock()
    site, cluster = in_process(4, clock=clock)
    other = InProcessSite("other", VirtualClusterManager(cluster, clock))
    other.prepare(GangRequest(name="o", resources={"CPU": 3.0}, workers=1))
    answer = site.prepare(
        GangRequest(name="g", resources={"CPU": 2.0}, workers=1, timeout_s=7)
    ).result(60)
    assert isinstance(answer, Refusal)
    assert clock.now == 7
    other.release()
    retry = site.prepare(GangRequest(name="g", resources={"CPU": 2.0}, workers=1)).result(60)
    assert retry == Promise("local", 1)


def test_a_site_works_only_after_it_was_prepared_and_checked() -> None:
    site, _ = in_process(1)
    with pytest.raises(RuntimeError):
        site.start(lambda _: None).result(60)
    with pytest.raises(RuntimeError):
        site.deliver(Payload(kind="round"), "k", "training")


class Stubborn:
    """A workload that cannot be stopped."""

    def prepare(self, spec: Payload, site: SiteContext) -> None: ...

    def stop(self) -> None:
        raise RuntimeError("will not stop")


def test_a_workload_that_cannot_be_stopped_does_not_keep_the_vnodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedpilot.mediator.site.load_workload", lambda _name: Stubborn())
    site, cluster = in_process(1)
    site.prepare(GangRequest(name="g", resources={"CPU": 1.0}, workers=1))
    site.check("w", Payload(kind="spec"))
    with pytest.raises(RuntimeError, match="will not stop"):
        site.release().result(60)
    assert cluster.groups() == ()


# -- workloads and errors ---------------------------------------------------------------------


def test_a_workload_that_nobody_brings_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownWorkload, match=r"'baking'.*federated"):
        load_workload("baking")


def test_the_federated_workload_is_installed() -> None:
    assert type(load_workload("federated")).__name__ == "FederatedWorkload"


@pytest.mark.parametrize(
    "error",
    [
        ReservationRefused({"a": "full", "b": "gone"}),
        SiteUnreachable("a", "gone"),
        UnknownWorkload("x", ("federated",)),
    ],
    ids=lambda e: type(e).__name__,
)
def test_errors_survive_a_pickle(error: MediatorError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
