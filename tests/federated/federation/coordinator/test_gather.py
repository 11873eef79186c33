"""Every client is in exactly one answer, whatever sites do while they are asked."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.shares import part_name
from fedpilot.federated.core.rounds.participation import (
    BelowQuorum,
    Rules,
    SiteRefused,
    TooFewSites,
)
from fedpilot.federated.core.sums.partial_check import AnswerRefused, LimitExceeded
from fedpilot.federated.core.user_code.user_errors import failure_of
from fedpilot.federated.federation.coordinator.gather import Answered, Gather, Part
from fedpilot.mediator import (
    FederationMediator,
    GangRequest,
    Notify,
    Payload,
    Promise,
    ReservationRefused,
    RunnersSpent,
    Share,
    SiteLost,
)
from fedpilot.mediator.core.reservation import Answer
from fedpilot.mediator.errors import AnswerUnreadable
from fedpilot.mediator.federation.futures import done

EVERYBODY = 40


class NamedSite:
    """A site that holds a gang and is never given any work."""

    def __init__(self, name: str, vnodes: int) -> None:
        self.name, self.vnodes = name, vnodes
        self.notify: Notify = lambda _: None

    def prepare(self, request: GangRequest) -> Future[Answer]:
        return done(lambda: Promise(self.name, self.vnodes))

    def commit(self) -> Future[None]:
        return done(lambda: None)

    def release(self) -> Future[None]:
        return done(lambda: None)

    def check(self, workload: str, spec: Payload) -> Future[None]:
        return done(lambda: None)

    def start(self, notify: Notify) -> Future[None]:
        self.notify = notify
        return done(lambda: None)

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        raise AssertionError("the query sends its orders itself")


class World:
    """Sites that answer, are lost and return one after another, and the clock that runs on."""

    name = "round 3"
    round_number = 3

    def __init__(
        self,
        names: str = "abc",
        pinned: dict[str, list[range]] | None = None,
        required: str = "",
    ) -> None:
        self.sites = {name: NamedSite(name, 1 + place) for place, name in enumerate(names)}
        self.mediator = FederationMediator(self.sites.values())
        request = GangRequest(name="g", resources={"CPU": 1.0})
        self.mediator.reserve(request, min_sites=1, required=required)
        self.mediator.assign(EVERYBODY, pinned)
        self.mediator.start("w", {name: Payload(kind="spec") for name in names}, lambda _: None)
        self.pending: list[tuple[Future[Payload], str, Share]] = []
        self.closing: list[tuple[str, Share]] = []
        self.sent: list[tuple[str, Share]] = []
        self.lost: list[str] = []
        self.refusals: list[tuple[str, str]] = []
        self.excessive: tuple[str, ...] = ()
        """Sites whose answers do not count beside the others."""
        self.now = 0.0
        self.changes = 0

    # the query

    def send(self, site: str, share: Share) -> Future[Payload]:
        assert site in self.mediator.sites
        answer: Future[Payload] = Future()
        self.pending.append((answer, site, share))
        self.sent.append((site, share))
        return answer

    def close(self, site: str, share: Share) -> None:
        self.closing.append((site, share))

    def check(self, share: Share, answer: Payload) -> None:
        if answer.kind == "lie":
            raise AnswerRefused("the sum", "a lie", "the truth")
        if answer.kind == "excess":
            raise LimitExceeded("it is too much")

    def review(self, answered: Sequence[Answered]) -> Mapping[str, Exception]:
        found, self.excessive = self.excessive, ()
        return {site: LimitExceeded("its share is too large") for site in found}

    def refused(self, site: str, error: Exception) -> bool:
        self.refusals.append((site, str(error)))
        return not isinstance(error, LimitExceeded)

    def covered(self, share: Share, answer: Payload) -> int:
        return int(answer.header["clients"])

    def most(self, share: Share) -> int:
        return sum(map(len, share))

    def site_changed(self) -> None:
        self.changes += 1

    # what happens

    def answer(self, place: int = 0, clients: int | None = None) -> None:
        future, _, share = self.pending.pop(place)
        count = sum(map(len, share)) if clients is None else clients
        future.set_result(Payload(kind="answer", header={"clients": count}))

    def lie(self, site: str, kind: str = "lie") -> None:
        place = next(i for i, (_, at, _) in enumerate(self.pending) if at == site)
        self.pending.pop(place)[0].set_result(Payload(kind=kind))

    def garble(self, site: str) -> None:
        place = next(i for i, (_, at, _) in enumerate(self.pending) if at == site)
        error = AnswerUnreadable(site, "BadPayload", "its header claims 10 TB")
        self.pending.pop(place)[0].set_exception(error)

    def lose(self, site: str) -> None:
        self.lost.append(site)
        there = [each for each in self.pending if each[1] == site]
        self.pending = [each for each in self.pending if each[1] != site]
        for future, _, _ in there:
            future.set_exception(SiteLost(site, "a storm"))

    def spend(self, site: str) -> None:
        """Its runner has died once too often."""
        there = [each for each in self.pending if each[1] == site]
        self.pending = [each for each in self.pending if each[1] != site]
        for future, _, _ in there:
            future.set_exception(RunnersSpent(site, "it was killed by SIGKILL"))

    def bring_back(self, site: str) -> None:
        self.lost.remove(site)
        self.mediator.returned(site, Promise(site, self.sites[site].vnodes))

    def parts(self) -> list[Part]:
        assignment = self.mediator.assignment
        return [
            Part(
                site=site,
                stays=assignment.pinned.get(site, ()),
                moves=assignment.movable.get(site, ()),
            )
            for site in assignment.shares
        ]


class Stepped(Gather):
    """Something happens whenever it waits."""

    def __init__(self, world: World, rules: Rules, script: Sequence[str] = ()) -> None:
        super().__init__(world, world.mediator, rules, lambda: world.now)
        self.world = world
        self.script = list(script)

    progress: Mapping[str, Any] = MappingProxyType({})
    """What sites say of how far they are, besides or in the place of what is so."""

    def happen(self, seconds: float | None) -> None:
        word, _, rest = self.script.pop(0).partition(" ")
        match word:
            case "answer":
                self.world.answer()
            case "lose":
                self.world.lose(rest)
            case "spend":
                self.world.spend(rest)
            case "lie":
                self.world.lie(rest)
            case "exceed":
                self.world.lie(rest, "excess")
            case "garble":
                self.world.garble(rest)
            case "open":
                self.world.mediator.leave_alone(())
            case "return":
                self.world.bring_back(rest)
            case "progress":
                site, count = rest.split()
                share = next(share for _, at, share in self.world.pending if at == site)
                told = {"round": 3, "part": part_name(share), "done": int(count), "of": 10**9}
                header = {**told, **self.progress}
                self.world.sites[site].notify(Payload(kind="clients_done", header=header))
            case "time":
                assert seconds is not None, "it would wait for ever"
                self.world.now += seconds

    def _wait(self, seconds: float | None) -> None:
        self.happen(seconds)
        super()._wait(0.0)


class Stormy(Stepped):
    """What happens is drawn by lot; it ends well."""

    def __init__(self, world: World, rules: Rules, seed: int) -> None:
        super().__init__(world, rules)
        self.lot = random.Random(seed)

    def happen(self, seconds: float | None) -> None:
        world, dice = self.world, self.lot.random()
        if world.lost and (dice < 0.2 or not world.pending):
            world.bring_back(self.lot.choice(world.lost))
        elif dice < 0.5 and world.pending:
            world.lose(self.lot.choice(world.pending)[1])
        elif world.pending:
            world.answer(self.lot.randrange(len(world.pending)))


WHOLE = Rules(whole=EVERYBODY, enough=EVERYBODY, least=EVERYBODY)


def test_a_site_that_answers_with_what_cannot_be_is_done_without_for_good() -> None:
    world = World("abc")
    asking = Stepped(world, WHOLE, ["lie b", *["answer"] * 4])
    found = asking.answers(world.parts())
    told = [i for each in found.all for part in each.part.share for i in part]
    assert sorted(told) == list(range(EVERYBODY))
    assert "b" not in {each.part.site for each in found.all}
    assert world.mediator.sites == ("a", "c")
    assert "a lie" in world.mediator.distrusted["b"]
    with pytest.raises(ReservationRefused, match="a lie"):
        world.mediator.readmit("b").result(1)


def test_where_every_site_has_spent_its_runners_nobody_is_waited_for() -> None:
    world = World("ab")
    asking = Stepped(world, WHOLE, ["spend a", "spend b"])
    with pytest.raises(TooFewSites, match=r"site b is gone: it was killed by SIGKILL.*resuming"):
        asking.answers(world.parts())
    assert world.now == 0.0


def test_clients_of_a_site_that_has_spent_its_runners_are_not_waited_for() -> None:
    world = World("abc", pinned={"b": [range(3)]})
    asking = Stepped(world, WHOLE, ["spend b", *["answer"] * 4])
    with pytest.raises(SiteRefused, match="site b: it was killed by SIGKILL"):
        asking.answers(world.parts())
    assert world.now == 0.0
    world = World("abc", pinned={"b": [range(3)]})
    rules = Rules(whole=EVERYBODY, enough=EVERYBODY, least=EVERYBODY // 2)
    found = Stepped(world, rules, ["spend b", *["answer"] * 4]).answers(world.parts())
    assert [part.site for part in found.missing] == ["b"]
    assert "killed by SIGKILL" in found.reason


def members(shares: Sequence[Share]) -> Counter[int]:
    return Counter(i for share in shares for indices in share for i in indices)


@given(
    seed=st.integers(0, 2**32),
    pinned=st.dictionaries(st.sampled_from("abc"), st.just(None), max_size=3),
)
def test_no_client_is_counted_twice_or_missing(seed: int, pinned: dict[str, None]) -> None:
    stays = {site: [range(5 * place, 5 * place + 4)] for place, site in enumerate(pinned)}
    world = World(pinned=stays)
    answers = Stormy(world, WHOLE, seed).answers(world.parts())
    counted = members([each.part.share for each in answers.all])
    assert counted == Counter(range(EVERYBODY))
    assert not answers.missing
    for each in answers.all:
        for site, ranges in stays.items():
            if each.part.site != site:
                assert not set(ranges[0]) & set(members([each.part.share]))


def ask(world: World, rules: Rules, *script: str) -> Counter[int]:
    answers = Stepped(world, rules, script).answers(world.parts())
    return members([each.part.share for each in answers.all])


def test_a_lost_sites_clients_go_to_the_others_by_their_size() -> None:
    world = World()
    ask(world, WHOLE, "lose c", "answer", "answer", "answer", "answer")
    assert [(site, sum(map(len, share))) for site, share in world.sent] == [
        ("a", 7), ("b", 13), ("c", 20), ("a", 7), ("b", 13)
    ]  # fmt: skip
    assert world.mediator.sites == ("a", "b")
    assert world.mediator.assignment.explain(39).endswith(
        "was at site c until round 3, which was lost: a storm"
    )
    assert world.changes


def test_a_site_without_clients_is_not_asked() -> None:
    world = World("ab")
    world.mediator.lose("b", "a storm")
    world.mediator.returned("b", Promise("b", 2))
    assert ask(world, WHOLE, "answer") == Counter(range(EVERYBODY))
    assert [site for site, _ in world.sent] == ["a"]


def test_clients_wait_while_the_only_site_left_is_to_get_nothing_new() -> None:
    world = World("ab")
    world.mediator.leave_alone(["b"])
    script = ["lose a", "answer", "open", "answer"]
    assert ask(world, WHOLE, *script) == Counter(range(EVERYBODY))
    assert [site for site, _ in world.sent] == ["a", "b", "b"]


def test_a_site_that_is_lost_during_the_redo_is_replaced_too() -> None:
    world = World()
    script = ["lose c", "lose b", *["answer"] * 4]
    assert ask(world, WHOLE, *script) == Counter(range(EVERYBODY))
    assert world.mediator.sites == ("a",)


def test_clients_that_may_not_move_wait_for_their_site() -> None:
    world = World("ab", {"b": [range(10)]})
    script = ["lose b", "answer", "answer", "return b", "answer"]
    assert ask(world, WHOLE, *script) == Counter(range(EVERYBODY))
    assert world.sent[-1] == ("b", (range(10),))


def test_without_replacement_everybody_waits() -> None:
    world = World("ab")
    parts = [Part(site=s, stays=share) for s, share in world.mediator.assignment.shares.items()]
    asking = Stepped(world, WHOLE, ["lose b", "answer", "return b", "answer"])
    assert members([each.part.share for each in asking.answers(parts).all]) == Counter(
        range(EVERYBODY)
    )
    assert world.sent[-1] == ("b", parts[1].share)


@pytest.mark.parametrize(
    ("pinned", "script", "words"),
    [
        pytest.param(None, ["lose a", "lose b", "time"], "at least 1 of 2 sites", id="all are"),
        pytest.param(
            {"b": [range(3)]}, ["lose b", "answer", "answer", "time"], "site b", id="its data is"
        ),
    ],
)
def test_a_site_that_does_not_return_in_time_ends_the_round(
    pinned: dict[str, list[range]] | None, script: list[str], words: str
) -> None:
    world = World("ab", pinned)
    with pytest.raises(TooFewSites, match=rf"round 3: .*{words}.* 60 s"):
        ask(world, WHOLE, *script)


def test_a_required_site_is_waited_for_even_if_others_could_do_its_work() -> None:
    world = World("ab", required="b")
    with pytest.raises(TooFewSites, match="site b is required"):
        ask(world, WHOLE, "lose b", "answer", "time")
    world = World("ab", required="b")
    script = ["lose b", "answer", "return b", "answer", "answer"]
    assert ask(world, WHOLE, *script) == Counter(range(EVERYBODY))


HALF = Rules(whole=EVERYBODY, enough=EVERYBODY, least=20)


@pytest.mark.parametrize(
    ("stays", "script", "counted"),
    [
        pytest.param(10, ["lose b", "answer", "answer"], 30, id="with enough it goes on at once"),
        pytest.param(30, ["lose b", "answer", "answer", "time"], 0, id="with too few it waits"),
        pytest.param(
            30, ["lose b", "answer", "answer", "return b", "answer"], 40, id="and may come back"
        ),
    ],
)
def test_a_quorum_does_without_some(stays: int, script: list[str], counted: int) -> None:
    world = World("ab", {"b": [range(stays)]})
    if counted:
        assert ask(world, HALF, *script).total() == counted
    else:
        with pytest.raises(BelowQuorum, match="10 clients count and at least 20"):
            ask(world, HALF, *script)


TIMED = Rules(whole=EVERYBODY, enough=EVERYBODY, least=10, deadline_s=9.0, closing_s=2.0)


def test_a_deadline_closes_the_orders_that_are_open() -> None:
    world = World("ab")
    asking = Stepped(world, TIMED, ["answer", "time", "answer"])
    answers = asking.answers(world.parts())
    assert world.now == 9.0
    assert world.closing == [("b", (range(13, 40),))]
    assert (len(answers.all), answers.missing) == (2, [])
    assert answers.reason == "the deadline of 9 s has passed"


def test_a_site_that_does_not_close_in_time_is_missing() -> None:
    world = World("ab")
    answers = Stepped(world, TIMED, ["answer", "time", "time"]).answers(world.parts())
    assert world.now == 11.0
    assert [part.site for part in answers.missing] == ["b"]
    (late,) = answers.late
    assert late.part == answers.missing[0]
    world.answer()
    assert late.answer.result(0).kind == "answer", "it may still come"


def test_a_site_that_is_lost_while_it_closes_is_not_replaced() -> None:
    world = World("ab")
    answers = Stepped(world, TIMED, ["answer", "time", "lose b"]).answers(world.parts())
    assert [part.site for part in answers.missing] == ["b"]
    assert len(world.sent) == 2


def test_enough_clients_close_the_round() -> None:
    world = World("ab")
    rules = Rules(whole=EVERYBODY, enough=30, least=30)
    script = ["answer", "progress b 16", "progress b 17", "answer"]
    answers = Stepped(world, rules, script).answers(world.parts())
    assert world.closing == [("b", (range(13, 40),))]
    assert answers.reason == "30 clients are done"


@pytest.mark.parametrize(
    ("done", "progress"),
    [
        pytest.param(10**9, {}, id="a liar's are its share at most"),
        pytest.param(30, {"done": "all"}, id="a word"),
        pytest.param(30, {"done": None}, id="nothing"),
        pytest.param(30, {"of": 3}, id="more than there are"),
        pytest.param(30, {"part": []}, id="a list for a part"),
        pytest.param(30, {"round": 4}, id="of another round"),
    ],
)
def test_whoever_says_too_much_of_its_progress_closes_nothing(
    done: int, progress: dict[str, Any]
) -> None:
    world = World("abc")  # a has 7 clients, b 13 and c 20
    rules = Rules(whole=EVERYBODY, enough=30, least=30)
    asking = Stepped(world, rules, ["answer", f"progress b {done}", "answer", "answer"])
    asking.progress = progress
    answers = asking.answers(world.parts())
    assert (answers.reason, world.closing) == ("", [])


@pytest.mark.parametrize("word", ["lie", "garble"])
def test_what_cannot_be_read_is_as_good_as_a_lie(word: str) -> None:
    world = World("abc")
    asking = Stepped(world, WHOLE, [f"{word} b", *["answer"] * 4])
    asking.answers(world.parts())
    assert world.mediator.sites == ("a", "c")
    assert list(world.mediator.distrusted) == ["b"]


def test_what_the_work_raised_is_raised() -> None:
    class Failing(Stepped):
        def happen(self, seconds: float | None) -> None:
            self.world.pending.pop(0)[0].set_exception(ValueError("no good"))

    world = World()
    with pytest.raises(ValueError, match="no good") as caught:
        Failing(world, WHOLE).answers(world.parts())
    assert failure_of(caught.value) == "ValueError: no good, at site a"


# -- answers that are too much --------------------------------------------------------------------

SOME = Rules(whole=EVERYBODY, enough=EVERYBODY, least=4)


@pytest.mark.parametrize("how", ["at once", "beside the others"])
def test_a_site_that_adds_too_much_is_left_out_and_stays(how: str) -> None:
    world = World("abc")
    script = ["exceed b", *["answer"] * 4]
    if how == "beside the others":
        world.excessive = ("b",)
        script = ["answer"] * 5
    found = Stepped(world, WHOLE, script).answers(world.parts())
    assert members([each.part.share for each in found.all]) == Counter(range(EVERYBODY))
    assert {each.part.site for each in found.all} == {"a", "c"}
    assert world.mediator.sites == ("a", "b", "c")
    assert [site for site, _ in world.refusals] == ["b"]
    assert not world.mediator.distrusted


def test_its_clients_that_may_not_move_are_missing_at_once() -> None:
    world = World("abc", {"b": [range(5)]})
    found = Stepped(world, SOME, ["exceed b", *["answer"] * 4]).answers(world.parts())
    assert members([part.share for part in found.missing]) == Counter(range(5))
    assert found.reason == "site b: it is too much"
    assert world.now == 0.0


@pytest.mark.parametrize("word", ["exceed", "lie", "garble"])
def test_where_they_have_to_count_nobody_waits_for_them(word: str) -> None:
    world = World("abc", {"b": [range(5)]})
    with pytest.raises(SiteRefused, match="round 3: site b: "):
        Stepped(world, WHOLE, [f"{word} b"]).answers(world.parts())
    assert world.now == 0.0


def test_who_was_not_believed_before_is_not_waited_for_either() -> None:
    world = World("abc", {"b": [range(5)]})
    world.mediator.distrust("b", "it lied in round 2")
    found = Stepped(world, SOME, ["answer"] * 2).answers(world.parts())
    assert found.reason == "site b: it lied in round 2"


def test_where_nobody_else_is_left_it_ends() -> None:
    world = World("a")
    with pytest.raises(SiteRefused, match="site a: it is too much"):
        Stepped(world, WHOLE, ["exceed a"]).answers(world.parts())
