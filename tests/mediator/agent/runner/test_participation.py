"""A run's part at a site: every verb in every state, and what a restarted driver finds."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from fedpilot.fabric import ClusterUnreachable
from fedpilot.mediator import GangRequest, Notify, Payload, Promise, Refusal
from fedpilot.mediator.agent.runner.errors import OutOfOrder, ReservationLapsed
from fedpilot.mediator.agent.runner.participation import (
    ALLOWED,
    VERBS,
    ParticipationState,
    RunParticipation,
    WorkloadCheck,
)
from fedpilot.mediator.core.reservation import Answer
from fedpilot.mediator.federation.futures import done

REQUEST = GangRequest(name="g", resources={"CPU": 1.0}, workers=2, lease_s=7.0)
WAY = ("prepare", "commit", "check", "start")
READY = Payload(kind="worker_ready")
LEADS_TO = dict(zip(WAY, list(ParticipationState)[1:], strict=True))
"""What a verb leads to, unless it is so or more already."""


class FakeSite:
    """Does what it is told, and remembers it."""

    name = "s"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.answer: Answer = Promise("s", 2)
        self.fail_on: dict[str, Exception] = {}
        self.tell: Notify = lambda payload: None

    def _do(self, verb: str) -> None:
        self.log.append(verb)
        if verb in self.fail_on:
            raise self.fail_on.pop(verb)

    def prepare(self, request: GangRequest) -> Future[Answer]:
        self._do("prepare")
        return done(lambda: self.answer)

    def commit(self) -> Future[None]:
        return done(self._do, "commit")

    def release(self) -> Future[None]:
        return done(self._do, "release")

    def check(self, workload: str, spec: Payload) -> Future[None]:
        return done(self._do, f"check {workload}")

    def start(self, notify: Notify) -> Future[None]:
        self.tell = notify
        notify(READY)
        return done(self._do, "start")

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        self._do(f"work {order.kind}")
        return done(lambda: order)


class Lab:
    """A part, its site, and short ways to ask it."""

    def __init__(self) -> None:
        self.site = FakeSite()
        self.attached = 0
        self.told: list[Payload] = []
        self.part = RunParticipation("s", self._attach, self.told.append)

    def _attach(self) -> FakeSite:
        self.attached += 1
        return self.site

    def ask(self, verb: str, request: GangRequest = REQUEST, spec: str = "{}") -> Payload:
        header = request.to_json() if verb == "prepare" else {}
        payload = Payload(kind="w" if verb == "check" else verb, header=header)
        return self.part.act(verb, payload, WorkloadCheck("w", spec, "")).result()

    def come_to(self, state: ParticipationState) -> None:
        for verb in WAY[: list(ParticipationState).index(state)]:
            self.ask(verb)
        assert self.part.state is state


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.mark.parametrize("state", ParticipationState)
@pytest.mark.parametrize("verb", [*sorted(VERBS), "fly"])
def test_every_pair_is_decided(lab: Lab, state: ParticipationState, verb: str) -> None:
    lab.come_to(state)
    before = list(lab.site.log)
    if verb in ALLOWED[state]:
        lab.ask(verb)
        assert lab.part.state is (
            ParticipationState.FREE
            if verb == "release"
            else max(state, LEADS_TO.get(verb, state), key=list(ParticipationState).index)
        )
    else:
        with pytest.raises((OutOfOrder, ReservationLapsed)):
            lab.ask(verb)
        assert (lab.part.state, lab.site.log) == (state, before), "nothing was done"


def test_a_driver_that_begins_again_finds_everything_as_it_was(lab: Lab) -> None:
    lab.come_to(ParticipationState.STARTED)
    before = list(lab.site.log)
    again = GangRequest(name="another", resources={"CPU": 1.0}, workers=2)
    assert lab.ask("prepare", again).header == {"vnodes": 2}
    for verb in WAY[1:]:
        lab.ask(verb)
    assert lab.part.state is ParticipationState.STARTED
    assert lab.site.log == before
    assert lab.attached == 1


def test_who_begins_again_is_told_what_there_is_and_not_what_has_happened(lab: Lab) -> None:
    lab.come_to(ParticipationState.STARTED)
    lab.site.tell(Payload(kind="clients_done"))
    lab.told.clear()
    lab.ask("start")
    assert lab.told == [READY]
    lab.ask("check", spec='{"other": 1}')
    lab.ask("start")
    lab.told.clear()
    lab.ask("start")
    assert lab.told == [READY]


def test_a_gang_of_another_size_takes_the_place_of_the_old_one(lab: Lab) -> None:
    lab.come_to(ParticipationState.STARTED)
    lab.site.log.clear()
    lab.ask("prepare", GangRequest(name="g", resources={"CPU": 2.0}, workers=2))
    assert lab.site.log == ["release", "prepare"]
    assert lab.part.state is ParticipationState.PROMISED


def test_other_work_begins_with_a_fresh_gang(lab: Lab) -> None:
    lab.come_to(ParticipationState.STARTED)
    lab.site.log.clear()
    lab.ask("check", spec='{"other": 1}')
    assert lab.site.log == ["release", "prepare", "commit", "check w"]
    assert lab.part.state is ParticipationState.CHECKED


def test_a_start_that_failed_is_begun_anew(lab: Lab) -> None:
    lab.come_to(ParticipationState.CHECKED)
    lab.site.fail_on["start"] = RuntimeError("no")
    with pytest.raises(RuntimeError):
        lab.ask("start")
    lab.site.log.clear()
    lab.ask("check")
    lab.ask("start")
    assert lab.site.log == ["release", "prepare", "commit", "check w", "start"]


@pytest.mark.parametrize("full", [False, True])
def test_a_refusal_leaves_nothing(lab: Lab, full: bool) -> None:
    lab.site.answer = Refusal("s", "it is full", full=full)
    answer = lab.ask("prepare")
    assert (answer.kind, answer.header) == (
        "refused",
        {"reason": "it is full", "unreachable": False, "full": full},
    )
    assert lab.part.state is ParticipationState.FREE


def test_a_ray_that_cannot_be_reached_is_a_refusal() -> None:
    def attach() -> FakeSite:
        raise ClusterUnreachable("10.0.0.1:6379", "nobody listens")

    part = RunParticipation("s", attach, lambda payload: None)
    payload = Payload(kind="gang", header=REQUEST.to_json())
    answer = part.act("prepare", payload, WorkloadCheck("", "", "")).result()
    assert answer.kind == "refused"
    assert "nobody listens" in answer.header["reason"]


def test_a_promise_that_lapses_cannot_be_committed(lab: Lab) -> None:
    lab.ask("prepare")
    assert lab.part.promise_s == 7.0
    lab.part.lapse()
    assert lab.part.promise_s is None
    assert lab.site.log == ["prepare", "release"]
    with pytest.raises(ReservationLapsed, match="7 s"):
        lab.ask("commit")
    lab.ask("prepare")
    lab.ask("commit")
    assert lab.part.state is ParticipationState.COMMITTED


def test_what_is_committed_does_not_lapse(lab: Lab) -> None:
    lab.come_to(ParticipationState.COMMITTED)
    assert lab.part.promise_s is None
    before = list(lab.site.log)
    lab.part.lapse()
    assert (lab.part.state, lab.site.log) == (ParticipationState.COMMITTED, before)


def test_ray_is_attached_to_when_it_is_needed(lab: Lab) -> None:
    lab.ask("release")
    assert lab.attached == 0
    lab.ask("attach")
    lab.ask("prepare")
    assert lab.attached == 1
