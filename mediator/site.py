"""A site as a federation sees it: in this very process, or behind a link to a runner elsewhere.

Whatever takes time answers with a future, so that sites work side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from fedpilot.fabric import (
    FabricError,
    FixedSizeNode,
    FixedSizeNodes,
    Gang,
    SchedulingPolicy,
    VirtualCluster,
    VirtualClusterManager,
)
from fedpilot.fabric.core.text.names import joined_name
from fedpilot.fabric.host.exit_codes import UNREACHABLE

from .core.reservation import Answer, Promise, Refusal
from .errors import SiteUnreachable
from .workload import Notify, Payload, SiteContext, SiteWorkload, load_workload

LONGEST_WHY = 2_000
"""Characters of a refusal that are passed on."""
Params = ParamSpec("Params")
Result = TypeVar("Result")
Told = TypeVar("Told")


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """A site's part of a gang: so many vnodes of one size."""

    name: str
    resources: Mapping[str, float]
    """Of one vnode, in Ray's words: `CPU`, `GPU`, `memory` (bytes), custom ones."""
    workers: int | None = None
    """Vnodes; None for as many as fit, up to `at_most`."""
    at_most: int = 16
    policy: SchedulingPolicy = SchedulingPolicy.SPREAD
    timeout_s: float = 60.0
    lease_s: float = 60.0
    """A promise that is not committed within so long ends by itself."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(**{**values, "policy": SchedulingPolicy(values["policy"])})


class Site(Protocol):
    """One Ray cluster that takes part: first reserved, then worked with."""

    @property
    def name(self) -> str: ...

    def prepare(self, request: GangRequest) -> Future[Answer]:
        """Reserve this site's part of a gang, or say why not."""

    def commit(self) -> Future[None]:
        """The whole gang stands: keep what was promised."""

    def release(self) -> Future[None]:
        """Give back what was promised or committed, with everything on it."""

    def check(self, workload: str, spec: Payload) -> Future[None]:
        """Load a workload and let it check its spec; fails with what is wrong with it."""

    def start(self, notify: Notify) -> Future[None]:
        """Start the checked workload on the committed vnodes."""

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        """Have the workload do something; asked again with the same key, it is done once."""


class InProcessSite:
    """A site in this very process: local mode's transport is a function call."""

    def __init__(
        self, name: str, manager: VirtualClusterManager, context: SiteContext | None = None
    ) -> None:
        self._name = name
        self._context = context or SiteContext(name=name)
        self._manager = manager
        self._gang: Gang | None = None
        self._workload: SiteWorkload | None = None

    @property
    def name(self) -> str:
        """How the site is called."""
        return self._name

    def prepare(self, request: GangRequest) -> Future[Answer]:
        """Reserve the vnodes as one virtual cluster of fixed size."""
        return done(self._reserve, request)

    def _reserve(self, request: GangRequest) -> Answer:
        node = FixedSizeNode(resources=request.resources)
        workers = request.workers
        if workers is None:
            workers = max(1, min(request.at_most, self._manager.most(node, request.policy)))
        group = FixedSizeNodes(nodes=(node,) * workers, scheduling_policy=request.policy)
        try:
            self._gang = self._manager.reserve(
                VirtualCluster(fixed_size_nodes=(group,)),
                name=joined_name(request.name, self._name),
                timeout_s=request.timeout_s,
            )
        except FabricError as error:
            return refusal(self._name, error)
        return Promise(self._name, len(self._gang.vnodes))

    def commit(self) -> Future[None]:
        """Nothing to do: in this process a promise cannot lapse."""
        return done(lambda: None)

    def release(self) -> Future[None]:
        """End the workload, then give the gang back."""
        return done(self._release)

    def _release(self) -> None:
        gang, self._gang = self._gang, None
        with ExitStack() as releasing:
            if gang is not None:
                releasing.callback(gang.release)
            if self._workload is not None:
                releasing.callback(self._workload.stop)

    def check(self, workload: str, spec: Payload) -> Future[None]:
        """Load the workload and let it check its spec."""
        return done(self._check, workload, spec)

    def _check(self, workload: str, spec: Payload) -> None:
        self._workload = load_workload(workload)
        self._workload.prepare(spec, self._context)

    def start(self, notify: Notify) -> Future[None]:
        """Start the workload on the gang."""
        return done(self._start, notify)

    def _start(self, notify: Notify) -> None:
        if self._workload is None or self._gang is None:
            raise RuntimeError("a site is checked and reserved before its workload starts")
        self._workload.start(self._gang, notify)

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        """Hand an order to the workload; in this process none is ever asked for twice."""
        if self._workload is None:
            raise RuntimeError("the site's workload has not been started")
        try:
            return self._workload.deliver(order)
        except SiteUnreachable as error:  # as if it had been far away
            lost: Future[Payload] = Future()
            lost.set_exception(error)
            return lost


class Link(Protocol):
    """The way to a site's part of a run that lives in another process, near or far."""

    def ask(
        self, verb: str, payload: Payload, *, key: str, round_number: int = 0, purpose: str = ""
    ) -> Future[Payload]:
        """Send it; the answer. The same key again is the same question, and is worked on once.

        Fails with SiteLost once the site is given up, with an error of the fabric, the mediator or
        the workload as it was raised there, or with WorkFailed where that has no class here.
        """

    def listen(self, notify: Notify) -> None:
        """Tell this one from now on what happens at the site."""


class LinkedSite:
    """A site behind a link: what it is asked travels as payloads."""

    def __init__(self, name: str, link: Link) -> None:
        self._name = name
        self._link = link

    @property
    def name(self) -> str:
        """How the site is called."""
        return self._name

    def prepare(self, request: GangRequest) -> Future[Answer]:
        """Reserve under a lease that ends by itself unless `commit` follows."""
        return then(
            self._ask("prepare", Payload(kind="gang", header=request.to_json())),
            lambda answer: promised(self._name, answer, request),
        )

    def commit(self) -> Future[None]:
        """Keep what was promised."""
        return then(self._ask("commit"), lambda _: None)

    def release(self) -> Future[None]:
        """Give everything back."""
        return then(self._ask("release"), lambda _: None)

    def check(self, workload: str, spec: Payload) -> Future[None]:
        """Load the workload there and let it check its spec."""
        return then(self._ask("check", replace(spec, kind=workload)), lambda _: None)

    def start(self, notify: Notify) -> Future[None]:
        """Start the checked workload on what was committed."""
        self._link.listen(notify)
        return then(self._ask("start"), lambda _: None)

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        """Have the workload do something."""
        number = int(order.header.get("round", 0))
        return self._link.ask(
            "work", order, key=f"work/{key}", round_number=number, purpose=purpose
        )

    def _ask(self, verb: str, payload: Payload | None = None) -> Future[Payload]:
        return self._link.ask(verb, payload or Payload(kind=verb), key=verb)


def promised(site: str, answer: Payload, request: GangRequest) -> Answer:
    """What a site has answered to a request; a promise that it cannot have made is a refusal."""
    most = request.at_most if request.workers is None else request.workers
    match answer.kind:
        case "promised":
            vnodes = answer.header.get("vnodes")
            if type(vnodes) is int and 1 <= vnodes <= most:
                return Promise(site, vnodes)
            return Refusal(site, f"it promised {vnodes!r:.60} vnodes of the {most} asked for")
        case "refused":
            reason = str(answer.header.get("reason", "it gave no reason"))[:LONGEST_WHY]
            return Refusal(site, reason, answer.header.get("unreachable") is True)
    return Refusal(site, f"it answered with {answer.kind!r:.60}, which is no promise")


def refusal(site: str, error: FabricError) -> Refusal:
    """What a site says that could not reserve its part."""
    return Refusal(site, str(error), unreachable=error.exits_with == UNREACHABLE)


def then(asked: Future[Told], made: Callable[[Told], Result]) -> Future[Result]:
    """The future of what is made of an answer; fails as the answer does."""
    future: Future[Result] = Future()

    def take(answered: Future[Told]) -> None:
        try:
            future.set_result(made(answered.result()))
        except BaseException as error:
            future.set_exception(error)

    asked.add_done_callback(take)
    return future


def done(
    act: Callable[Params, Result], *args: Params.args, **named: Params.kwargs
) -> Future[Result]:
    """Do something now; the future of what it gave or raised."""
    future: Future[Result] = Future()
    try:
        future.set_result(act(*args, **named))
    except Exception as error:
        future.set_exception(error)
    return future
