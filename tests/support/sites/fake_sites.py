"""Sites that do what a test tells them, and mediators over them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from fedpilot.mediator import (
    FederationMediator,
    GangRequest,
    Notify,
    Payload,
    Promise,
    RunnerDied,
    Site,
    SiteLost,
)
from fedpilot.mediator.core.reservation import Answer
from fedpilot.mediator.federation.futures import done

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


def started(
    *names: str, min_sites: int | None = 1, **options: Any
) -> tuple[FederationMediator, dict[str, FakeSite]]:
    sites = {name: FakeSite(name) for name in names}
    mediator = FederationMediator(sites.values(), **options)
    mediator.reserve(REQUEST, min_sites=min_sites)
    mediator.membership.assign(12)
    mediator.start("w", {name: Payload(kind="spec") for name in names}, lambda _: None)
    return mediator, sites


def sizes(mediator: FederationMediator) -> dict[str, int]:
    return {
        site: sum(map(len, share)) for site, share in mediator.membership.assignment.shares.items()
    }


def dies(site: FakeSite, verb: str, times: int, last: Exception | None = None) -> None:
    """Have a site's runner die so often when it is asked for this."""
    do, left = site._do, itertools.count(times, -1)

    def dying(asked: str) -> None:
        do(asked)
        if asked == verb and (rest := next(left)) > 0:
            raise last if last is not None and rest == 1 else RunnerDied(site.name, "killed")

    site._do = dying  # type: ignore[method-assign]


def refuse(site: str) -> Payload:
    raise SiteLost(site, "a storm")


def wrong_from(*sites: FakeSite) -> Callable[[Payload], str]:
    """These sites answer with what everybody can see is wrong."""
    for site in sites:
        site.make_answer = lambda _: done(lambda: Payload(kind="lie"))
    return lambda answer: "it is a lie" if answer.kind == "lie" else ""
