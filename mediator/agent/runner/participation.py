"""RunParticipation: a run's part at one site, from its promise to its release, driven by verbs.

A repeated verb changes nothing, so a restarted driver finds its gang and workers unchanged. A verb
that the state forbids is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from enum import StrEnum
from typing import Any, NamedTuple

from fedpilot.fabric import FabricError

from ...core.reservation import Promise, Refusal
from ...federation.futures import done, failed
from ...federation.site import GangRequest, Site, refusal
from ...workload import Notify, Payload
from .errors import OutOfOrder, ReservationLapsed


class ParticipationState(StrEnum):
    """The stage of a site's part of a run."""

    FREE = "free"
    PROMISED = "promised"
    COMMITTED = "committed"
    CHECKED = "checked"
    STARTED = "started"


ALLOWED: Mapping[ParticipationState, frozenset[str]] = {
    ParticipationState.FREE: frozenset({"attach", "prepare", "release"}),
    ParticipationState.PROMISED: frozenset({"attach", "prepare", "commit", "release"}),
    ParticipationState.COMMITTED: frozenset({"attach", "prepare", "commit", "check", "release"}),
    ParticipationState.CHECKED: frozenset(
        {"attach", "prepare", "commit", "check", "start", "release"}
    ),
    ParticipationState.STARTED: frozenset(
        {"attach", "prepare", "commit", "check", "start", "work", "release"}
    ),
}
VERBS = ALLOWED[ParticipationState.STARTED]


class WorkloadCheck(NamedTuple):
    """The input of a workload's check; equal inputs mean the same work."""

    workload: str
    header_json: str
    digest: str


class RunParticipation:
    """What one runner holds; for one thread."""

    def __init__(self, name: str, attach: Callable[[], Site], notify: Notify) -> None:
        self._name = name
        self._attach = attach
        self._notify = notify
        self._site: Site | None = None
        self._request: GangRequest | None = None
        self._promise: Promise | None = None
        self._asked: WorkloadCheck | None = None
        self._lapsed_s = 0.0
        self._said: list[Payload] = []
        """The workload's events during its start."""
        self.state = ParticipationState.FREE

    @property
    def promise_s(self) -> float | None:
        """The lease of a promise that waits for its commit; None without one."""
        if self.state is not ParticipationState.PROMISED or self._request is None:
            return None
        return self._request.lease_s

    def act(self, verb: str, payload: Payload, asked: WorkloadCheck) -> Future[Payload]:
        """Execute a verb; `asked` identifies repeated checks."""
        if verb == "commit" and self.state is ParticipationState.FREE:
            return failed(ReservationLapsed(self._name, self._lapsed_s))
        if verb not in ALLOWED[self.state]:
            return failed(OutOfOrder(self._name, verb, self.state))
        match verb:
            case "work":
                return self._at_hand.deliver(payload, "", "")
            case "prepare":
                return done(lambda: self._prepare(GangRequest.from_json(payload.header)))
            case "check":
                return done(self._check, payload, asked)
            case "attach":
                return done(self._reached)
            case _:
                return done({"commit": self._commit, "start": self._start}.get(verb, self.release))

    def lapse(self) -> None:
        """Release a promise whose lease has ended, unless it was committed meanwhile."""
        if (lease_s := self.promise_s) is not None:
            self.release()
            self._lapsed_s = lease_s

    def release(self) -> Payload:
        """Release what is held; may be called twice."""
        self._request = self._promise = self._asked = None
        self.state = ParticipationState.FREE
        if self._site is not None:
            self._site.release().result()
        return Payload(kind="done")

    @property
    def _at_hand(self) -> Site:
        if self._site is None:
            self._site = self._attach()
        return self._site

    def _reached(self) -> Payload:
        return Payload(kind="done", header={"site": self._at_hand.name})

    def _prepare(self, request: GangRequest) -> Payload:
        if self._request is None or _size(request) != _size(self._request):
            if self._request is not None:
                self.release()
            try:
                answer = self._at_hand.prepare(request).result()
            except FabricError as error:
                answer = refusal(self._name, error)
            if not isinstance(answer, Promise):
                refused = answer or Refusal(self._name, "it gave no answer")
                told = {
                    "reason": refused.reason,
                    "unreachable": refused.unreachable,
                    "full": refused.full,
                }
                return Payload(kind="refused", header=told)
            self._request, self._promise = request, answer
            self._lapsed_s, self.state = 0.0, ParticipationState.PROMISED
        vnodes = 0 if self._promise is None else self._promise.vnodes
        return Payload(kind="promised", header={"vnodes": vnodes})

    def _commit(self) -> Payload:
        if self.state is ParticipationState.PROMISED:
            self._at_hand.commit().result()
            self.state = ParticipationState.COMMITTED
        return Payload(kind="done")

    def _check(self, payload: Payload, asked: WorkloadCheck) -> Payload:
        if asked == self._asked:
            return Payload(kind="done")
        if self.state in (ParticipationState.CHECKED, ParticipationState.STARTED):
            self._begin_anew()
        self._at_hand.check(payload.kind, payload).result()
        self._asked, self.state = asked, ParticipationState.CHECKED
        return Payload(kind="done")

    def _begin_anew(self) -> None:
        """Reserve the gang again for another spec."""
        request = self._request
        self.release()
        if request is None or self._prepare(request).kind != "promised":
            raise OutOfOrder(self._name, "check", "without its gang, which was not had again")
        self._commit()

    def _start(self) -> Payload:
        if self.state is ParticipationState.CHECKED:
            self._said = []
            try:
                self._at_hand.start(self._tell).result()
            except BaseException:
                self._asked = None
                raise
            self.state = ParticipationState.STARTED
        else:  # a later driver missed these events
            for said in self._said:
                self._notify(said)
        return Payload(kind="done")

    def _tell(self, happened: Payload) -> None:
        if self.state is not ParticipationState.STARTED:
            self._said.append(happened)
        self._notify(happened)


def _size(request: GangRequest) -> dict[str, Any]:
    """The fields that must match in two requests for the same gang."""
    return {
        name: value
        for name, value in asdict(request).items()
        if name not in ("name", "timeout_s", "lease_s")
    }
