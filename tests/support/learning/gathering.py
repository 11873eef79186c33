"""Sites that answer, are lost and return step by step, and a query that gathers their answers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from fedpilot.federated.core.population.shares import part_name
from fedpilot.federated.core.rounds.participation import (
    Rules,
)
from fedpilot.federated.core.sums.amounts import AnswerRefused
from fedpilot.federated.core.sums.partial_check import LimitExceeded
from fedpilot.federated.federation.coordinator.gather import Answered, Gather, Part
from fedpilot.mediator import (
    FederationMediator,
    GangRequest,
    Notify,
    Payload,
    Promise,
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
        self.mediator.membership.assign(EVERYBODY, pinned)
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
        assert site in self.mediator.membership.sites
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
        self.mediator.membership.restore(site, Promise(site, self.sites[site].vnodes))

    def parts(self) -> list[Part]:
        assignment = self.mediator.membership.assignment
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
                self.world.mediator.membership.leave_alone(())
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


def members(shares: Sequence[Share]) -> Counter[int]:
    return Counter(i for share in shares for indices in share for i in indices)
