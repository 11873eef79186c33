"""LinkedSite: a site in another process, local or remote, which gets orders as payloads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from ..core.links import LinkSpeed
from ..core.reservation import Answer, Promise, Refusal
from ..workload import Notify, Payload
from .futures import then
from .site import GangRequest

LONGEST_WHY = 2_000
"""Characters of a refusal to pass on."""


class Link(Protocol):
    """The connection to a site's part of a run in another process, local or remote."""

    def ask(
        self, verb: str, payload: Payload, *, key: str, round_number: int = 0, purpose: str = ""
    ) -> Future[Payload]:
        """Send an order, executed once per key; return the future of its answer.

        It fails with SiteLost once the site is given up, with the site's own error of the fabric,
        mediator or workload, or with WorkFailed if that error has no class here.
        """

    def listen(self, notify: Notify) -> None:
        """From now on, pass the site's events to this callback."""


class LinkedSite:
    """A site behind a link."""

    def __init__(self, name: str, link: Link, speed: Callable[[], LinkSpeed] = LinkSpeed) -> None:
        """`speed` returns what the mediator knows of the link."""
        self.name = name
        self._link, self._speed = link, speed

    def prepare(self, request: GangRequest) -> Future[Answer]:
        """Reserve under a lease that ends unless `commit` follows."""
        gang = Payload(kind="gang", header=request.to_json())
        return then(
            self._link.ask("prepare", gang, key="prepare"),
            lambda answer: promised(self.name, answer, request, self._speed()),
        )

    def commit(self) -> Future[None]:
        """Commit the promise."""
        return self._do("commit")

    def release(self) -> Future[None]:
        """Release everything."""
        return self._do("release")

    def check(self, workload: str, spec: Payload) -> Future[None]:
        """Have the site load the workload and check its spec."""
        return self._do("check", replace(spec, kind=workload))

    def start(self, notify: Notify) -> Future[None]:
        """Start the checked workload on the committed vnodes."""
        self._link.listen(notify)
        return self._do("start")

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        """Have the workload execute an order."""
        number = int(order.header.get("round", 0))
        return self._link.ask(
            "work", order, key=f"work/{key}", round_number=number, purpose=purpose
        )

    def _do(self, verb: str, payload: Payload | None = None) -> Future[None]:
        asked = self._link.ask(verb, payload or Payload(kind=verb), key=verb)
        return then(asked, lambda _: None)


def promised(
    site: str, answer: Payload, request: GangRequest, link: LinkSpeed | None = None
) -> Answer:
    """Parse a site's answer to a gang request; an impossible promise counts as a refusal.

    What the promise says of the site's link completes what is known of that.
    """
    counted = request.elastic or bool(request.groups)
    least, most = request.least if counted else 1, request.most
    match answer.kind:
        case "promised":
            vnodes = answer.header.get("vnodes")
            if type(vnodes) is int and least <= vnodes <= most:
                declared = LinkSpeed.told(answer.header.get("link"))
                return Promise(site, vnodes, (link or LinkSpeed()).or_else(declared))
            asked = f"{least} to {most}" if request.elastic else f"the {most}"
            return Refusal(site, f"it promised {vnodes!r:.60} vnodes of {asked} asked for")
        case "refused":
            reason = str(answer.header.get("reason", "it gave no reason"))[:LONGEST_WHY]
            unreachable = answer.header.get("unreachable") is True
            return Refusal(site, reason, unreachable, full=answer.header.get("full") is True)
    return Refusal(site, f"it answered with {answer.kind!r:.60}, which is no promise")
