"""A request is executed once and answered once, whatever is lost, repeated or restarted.

The conversations are those of a federation: a coordinator asks the mediator, that the agent of a
site, and that the runner which executes. Each of the four may die, and each of the three
connections break, at any moment; what was under way is lost with it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import product
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.mediator.core.exchange import (
    REMEMBERED,
    REQUESTING,
    RESPONDING,
    Effect,
    Phase,
    Requester,
    Responder,
    Trigger,
)

REQUESTERS = (Phase.QUEUED, Phase.SENT, Phase.ANSWERED, Phase.ADOPTED, Phase.KEPT)
RESPONDERS = (Phase.AT_WORK, Phase.WITHDRAWN, Phase.REPLIED)
ROOM = 10_000


def always(key: str) -> bool:
    return True


def never(key: str) -> bool:
    return False


# -- the tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", REQUESTERS)
def test_a_requester_knows_what_to_do_in_every_phase(phase: Phase) -> None:
    known = {event for at, event in REQUESTING if at is phase}
    assert known == set(Trigger) - ({Trigger.SENT} if phase is not Phase.QUEUED else set())


@pytest.mark.parametrize("phase", [Phase.ABSENT, *RESPONDERS])
def test_a_responder_knows_what_to_do_in_every_phase(phase: Phase) -> None:
    known = {event for at, event in RESPONDING if at is phase}
    assert known == {Trigger.ASKED, Trigger.HELD, Trigger.REPLIED, Trigger.RELEASED, Trigger.LOST}


def test_every_phase_can_be_left_for_good() -> None:
    for table, phases in ((REQUESTING, REQUESTERS), (RESPONDING, RESPONDERS)):
        for phase in phases:
            reached, seen = {phase}, set[Phase]()
            while reached - seen:
                seen |= reached
                reached = {table[at][0] for at in product(seen, Trigger) if at in table}
            assert Phase.ABSENT in seen


def test_a_released_key_is_acknowledged_whenever_the_responder_speaks_of_it() -> None:
    requester = Requester[str, str, str]()
    requester.ask("a", "order")
    requester.sent("a")
    assert requester.release("a")[0] is Effect.ACKNOWLEDGE
    assert requester.connected(["a"], always, ROOM).released == ["a"]
    assert requester.replied("a", "late")[0] is Effect.ACKNOWLEDGE
    assert not requester.open


def test_released_keys_are_remembered_within_a_bound() -> None:
    requester = Requester[str, str, str]()
    for number in range(REMEMBERED + 10):
        requester.release(str(number))
    assert requester.connected(["0", str(REMEMBERED)], always, ROOM).released == [str(REMEMBERED)]
    assert list(requester.open) == ["0"]


def test_what_a_responder_claims_is_adopted_within_a_bound() -> None:
    requester = Requester[str, str, str]()
    requester.connected([f"made/up/{number}" for number in range(1_000)], always, 10)
    assert len(requester.open) == 10
    requester.connected([*requester.open, "one/more"], always, 10)
    assert "one/more" not in requester.open


def test_what_nobody_wants_is_released_and_not_adopted() -> None:
    requester = Requester[str, str, str]()
    assert requester.connected(["a"], never, ROOM).released == ["a"]
    assert not requester.open


def test_a_responder_that_ends_fails_what_it_had_not_answered_and_nothing_else() -> None:
    requester = Requester[str, str, str]()
    for key in ("answered", "sent", "queued"):
        requester.ask(key, "order")
    requester.sent("sent")
    requester.replied("answered", "reply")
    assert [each.key for each in requester.lost()] == ["sent", "queued"]
    assert requester.ask("answered", "order")[0] is Effect.DELIVER
    assert requester.ask("sent", "order")[0] is Effect.SEND


def test_a_withdrawn_execution_that_is_asked_for_again_is_not_begun_again() -> None:
    responder = Responder[str, str]()
    assert responder.asked("a") is Effect.EXECUTE
    assert responder.released("a") is Effect.STOP
    assert responder.at_work() == []
    assert responder.asked("a") is Effect.NOTHING
    assert responder.replied("a", "reply") is Effect.REPLY


def test_the_reply_of_a_withdrawn_execution_is_not_kept() -> None:
    responder = Responder[str, str]()
    responder.asked("a")
    responder.released("a")
    assert responder.replied("a", "reply") is Effect.FORGET
    assert len(responder) == 0


# -- the conversations ----------------------------------------------------------------------------


class Said(NamedTuple):
    """A message: `hello` and `reply` go up, the others down."""

    what: str
    key: str = ""
    held: tuple[str, ...] = ()


class Pipe:
    """What is under way on one connection; `up` and `down` each keep their order."""

    def __init__(self) -> None:
        self.open = False
        self.greeted = False
        """Whether the hello was read: nothing is sent down before."""
        self.up: deque[Said] = deque()
        self.down: deque[Said] = deque()

    def begin(self) -> None:
        self.open = True

    def end(self) -> None:
        self.open = self.greeted = False
        self.up.clear()
        self.down.clear()

    def say_up(self, said: Said) -> None:
        if self.open:
            self.up.append(said)

    def say_down(self, said: Said) -> None:
        if self.open:
            self.down.append(said)


def free_to_go(under_way: deque[Said]) -> list[int]:
    """The places of messages that may come next: a key's come in order, and all after a hello."""
    found: list[int] = []
    before: set[str] = set()
    for place, said in enumerate(under_way):
        if said.what == "hello":
            return found or [place]
        if said.key not in before:
            found.append(place)
        before.add(said.key)
    return found


class Runner:
    """Executes; what it has executed dies with it."""

    def __init__(self, up: Pipe) -> None:
        self.up = up
        self.desk = Responder[str, str]()
        self.begun: Counter[str] = Counter()
        self.executing: list[str] = []

    def connected(self) -> None:
        self.up.say_up(Said("hello", held=(*self.desk.at_work(), *self.desk.replies())))
        for key in self.desk.replies():
            self.up.say_up(Said("reply", key))

    def take(self, said: Said) -> None:
        if said.what == "release":
            self.desk.released(said.key)
            return
        match self.desk.asked(said.key):
            case Effect.EXECUTE:
                self.begun[said.key] += 1
                self.executing.append(said.key)
            case Effect.REPLY:
                self.up.say_up(Said("reply", said.key))

    def finish(self, key: str) -> None:
        self.executing.remove(key)
        if self.desk.replied(key, "done") is Effect.REPLY:
            self.up.say_up(Said("reply", key))


class Agent:
    """Has the runner execute what the mediator asks for."""

    def __init__(self, up: Pipe, down: Pipe) -> None:
        self.up, self.down = up, down
        self.orders = Responder[str, str]()
        self.asked = Requester[str, str, str]()

    def connected(self) -> None:
        self.up.say_up(Said("hello", held=(*self.orders.at_work(), *self.orders.replies())))
        for key in self.orders.replies():
            self.up.say_up(Said("reply", key))

    def take(self, said: Said) -> None:
        if said.what == "release":
            if self.orders.released(said.key) is Effect.STOP:
                self.orders.stopped(said.key)
            if self.asked.release(said.key)[0] is Effect.ACKNOWLEDGE:
                self.down.say_down(Said("release", said.key))
            return
        match self.orders.asked(said.key):
            case Effect.EXECUTE:
                if self.asked.ask(said.key, "order")[0] is Effect.DELIVER:
                    self.answered(said.key)
                self.send()
            case Effect.REPLY:
                self.up.say_up(Said("reply", said.key))

    def send(self) -> None:
        for request in self.asked.unsent() if self.down.greeted else ():
            self.down.say_down(Said("order", request.key))
            self.asked.sent(request.key)

    def hear(self, said: Said) -> None:
        if said.what == "hello":
            self.down.greeted = True
            found = self.asked.connected(said.held, always, ROOM)
            for key in found.released:
                self.down.say_down(Said("release", key))
            for request in [each for each in self.asked.open.values() if each.adopted]:
                self.orders.adopt(request.key)
                self.asked.ask(request.key, None)
            self.send()
            return
        match self.asked.replied(said.key, "done")[0]:
            case Effect.DELIVER:
                self.answered(said.key)
            case Effect.ACKNOWLEDGE:
                self.down.say_down(Said("release", said.key))

    def answered(self, key: str) -> None:
        if self.orders.replied(key, "done") is Effect.REPLY:
            self.up.say_up(Said("reply", key))

    def runner_died(self) -> None:
        for request in self.asked.lost():
            if request.key in self.orders:
                self.answered(request.key)


class Mediator:
    """Passes on, and keeps what nobody asks for at the moment."""

    def __init__(self, up: Pipe, down: Pipe) -> None:
        self.up, self.down = up, down
        self.orders = Requester[str, str, str]()
        self.over = False

    def take(self, said: Said) -> None:
        if said.what == "release":
            self.release(said.key)
            return
        if self.orders.ask(said.key, "order")[0] is Effect.DELIVER:
            self.up.say_up(Said("reply", said.key))
        self.send()

    def release(self, key: str) -> None:
        if self.orders.release(key)[0] is Effect.ACKNOWLEDGE:
            self.down.say_down(Said("release", key))

    def send(self) -> None:
        for request in self.orders.unsent() if self.down.greeted else ():
            self.down.say_down(Said("order", request.key))
            self.orders.sent(request.key)

    def hear(self, said: Said) -> None:
        if said.what == "hello":
            self.down.greeted = True
            wanted = never if self.over else always
            for key in self.orders.connected(said.held, wanted, ROOM).released:
                self.down.say_down(Said("release", key))
            self.send()
            return
        match self.orders.replied(said.key, "done")[0]:
            case Effect.DELIVER:
                self.up.say_up(Said("reply", said.key))
            case Effect.ACKNOWLEDGE:
                self.down.say_down(Said("release", said.key))

    def coordinator_gone(self) -> None:
        self.orders.unask(list(self.orders.open))

    def run_over(self) -> None:
        self.over = True
        for key in list(self.orders.open):
            self.release(key)


class Coordinator:
    """Asks; a successor asks again for what it has no reply to, one after another."""

    def __init__(self, down: Pipe, wanted: set[str]) -> None:
        self.down = down
        self.asked = Requester[str, str, str]()
        self.delivered: list[str] = []
        self.to_ask = sorted(wanted)

    def ask(self, key: str) -> None:
        if self.asked.ask(key, "order")[0] is Effect.SEND:
            self.down.say_down(Said("order", key))
            self.asked.sent(key)

    def hear(self, said: Said) -> None:
        act, _ = self.asked.replied(said.key, "done")
        if act is Effect.DELIVER:
            self.delivered.append(said.key)
        if act in (Effect.DELIVER, Effect.ACKNOWLEDGE):
            self.release(said.key)

    def release(self, key: str) -> None:
        self.asked.release(key)
        self.down.say_down(Said("release", key))


LIFE = ("ask", "withdraw", "finish", "finish", *("deliver",) * 6)
FAULTS = ("join", "join", "cut", "runner", "agent", "mediator", *("coordinator",) * 3)
Choose = Callable[[Sequence[Any]], Any]


class World:
    """The four processes; what happens to them is chosen from outside."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.pipes = [Pipe(), Pipe(), Pipe()]
        self.wanted: set[str] = set()
        self.got: Counter[str] = Counter()
        self.number = 0
        self.pipes[0].begin()
        self.coordinator = Coordinator(self.pipes[0], self.wanted)
        self.mediator = Mediator(self.pipes[0], self.pipes[1])
        self.agent = Agent(self.pipes[1], self.pipes[2])
        self.runner = Runner(self.pipes[2])
        self.join()
        self.attach()

    def live(self, what: str) -> None:
        """Something happens that is not a fault."""
        match what:
            case "ask" if self.coordinator.to_ask:
                self.coordinator.ask(self.coordinator.to_ask.pop())
            case "ask":
                self.number += 1
                key = f"round/{self.number}"
                self.wanted.add(key)
                self.coordinator.ask(key)
            case "withdraw" if self.wanted:
                key = self.choose(sorted(self.wanted))
                self.wanted.remove(key)
                self.coordinator.to_ask = [each for each in self.coordinator.to_ask if each != key]
                self.coordinator.release(key)
            case "finish" if self.runner.executing:
                self.runner.finish(self.choose(self.runner.executing))
            case "deliver":
                self.deliver()

    def deliver(self) -> None:
        """Messages about different keys may overtake each other, and one may come twice."""
        ways = [(at, up) for at in range(3) for up in (False, True) if self.way(at, up)]
        if not ways:
            return
        at, up = self.choose(ways)
        place = self.choose(free_to_go(self.way(at, up)))
        said = self.way(at, up)[place]
        del self.way(at, up)[place]
        self.arrive(at, up, said)
        if said.what != "hello" and self.choose(range(10)) == 9:
            self.arrive(at, up, said)

    def way(self, at: int, up: bool) -> deque[Said]:
        return self.pipes[at].up if up else self.pipes[at].down

    def arrive(self, at: int, up: bool, said: Said) -> None:
        down: list[Callable[[Said], None]] = [
            self.mediator.take,
            self.agent.take,
            self.runner.take,
        ]
        ups = [self.coordinator.hear, self.mediator.hear, self.agent.hear]
        (ups if up else down)[at](said)
        for key in self.coordinator.delivered:
            self.got[key] += 1
            self.wanted.discard(key)
        self.coordinator.delivered.clear()

    def fail(self, fault: str) -> None:
        """Something breaks or dies; `join` brings a broken connection back."""
        match fault:
            case "join":
                self.join()
            case "cut":
                self.pipes[1].end()
            case "runner":
                self.pipes[2].end()
                self.runner = Runner(self.pipes[2])
                self.agent.runner_died()
                self.attach()
            case "agent":  # a new one connects to the runner before it joins
                self.pipes[1].end()
                self.pipes[2].end()
                self.agent = Agent(self.pipes[1], self.pipes[2])
                self.attach()
                self.arrive(2, True, self.pipes[2].up.popleft())
            case "mediator":
                self.pipes[1].end()
                self.mediator = Mediator(self.pipes[0], self.pipes[1])
                self.restart_coordinator()
            case _:
                self.mediator.coordinator_gone()
                self.restart_coordinator()

    def join(self) -> None:
        if not self.pipes[1].open:
            self.pipes[1].begin()
            self.agent.connected()

    def attach(self) -> None:
        if not self.pipes[2].open:
            self.pipes[2].begin()
            self.runner.connected()

    def restart_coordinator(self) -> None:
        self.pipes[0].end()
        self.pipes[0].begin()
        self.coordinator = Coordinator(self.pipes[0], self.wanted)

    def check(self) -> None:
        """What holds at any moment."""
        assert all(times == 1 for times in self.runner.begun.values()), "begun twice"
        assert all(times == 1 for times in self.got.values()), "delivered twice"

    def settle(self) -> None:
        """Nothing goes wrong any more: all is delivered and executed."""
        self.join()
        self.attach()
        while self.coordinator.to_ask:
            self.live("ask")
        while any(pipe.up or pipe.down for pipe in self.pipes) or self.runner.executing:
            for at, up in product(range(3), (False, True)):
                while under_way := self.way(at, up):
                    self.arrive(at, up, under_way.popleft())
            for key in list(self.runner.executing):
                self.runner.finish(key)


@settings(max_examples=settings().max_examples // 3)
@given(seed=st.integers(0, 1 << 32), faults=st.sampled_from([0.0, 0.05, 0.1, 0.2]))
def test_a_request_survives_whatever_happens(seed: int, faults: float) -> None:
    """The histories are drawn here: draws of Hypothesis repeat themselves, and reach less."""
    for history in range(8):
        random = Random(f"{seed}/{history}")
        survives(World(random.choice), random, faults)


def survives(world: World, random: Random, faults: float) -> None:
    for _ in range(150):
        if random.random() < faults:
            world.fail(world.choose(FAULTS))
        else:
            world.live(world.choose(LIFE))
        world.check()
    world.settle()
    assert not world.wanted, "somebody waits for ever"
    world.mediator.run_over()
    world.settle()
    world.check()
    assert not world.coordinator.asked.open
    assert not world.mediator.orders.open
    assert len(world.agent.orders) == 0
    assert not world.agent.asked.open
    assert len(world.runner.desk) == 0
