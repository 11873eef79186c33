"""DisclosureGate: what a site may send out about data that its admin declared.

* Sums, counts of clients, and names that the site has given may leave. Client ids and numbers of
  samples leave if the admin discloses them; refused clients are numbered otherwise.
* A sum over one client reveals its number of samples. If counts stay, a round with one client of
  the site is refused before it trains, if possible before the run begins; a round that closes with
  one client is answered as if there were none. Clients that may move are exempt, since a site may
  have to take over a single one.
* On a graph single clients' models go to the sites of their neighbors. How far a model has moved
  tells about how many samples its client has, so a site that keeps counts back refuses a graph.
* Errors, events and reasons leave without their texts, which code that has seen the data may have
  written. The site's own log has them.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from fedpilot.mediator import Notify, Payload
from fedpilot.mediator.core.rules.disclosure import Declaration, Disclosure, Residency
from fedpilot.mediator.errors import PolicyRefused, SiteLost
from fedpilot.mediator.wire.failures import machine_trouble

from ...core.lifecycle import NodeEvent
from ...errors import (
    ClientFailed,
    DataUnusable,
    ExecutionRefused,
    FederatedError,
    WorkerNotMade,
    WorkersExhausted,
    WorkersNotUp,
)
from ..orders import Answer, or_fail

log = logging.getLogger(__name__)

IN_THE_LOG = "the site's own log says why"
TOLD_BY_ERRORS = (NodeEvent.FAIL, NodeEvent.LOSE)
"""Events of VirtualNodes whose reasons are texts of errors."""
TELLS_SAMPLES = ("node.train", "node.evaluate", "evaluate_nodes")
"""Orders whose answers reveal the number of samples of single clients."""


class DisclosureGate:
    """The gate of one site for one declared data set."""

    def __init__(self, site: str, declaration: Declaration) -> None:
        self._site = site
        self.dataset = declaration.name
        self._ids = declaration.disclose.ids
        self._counts = declaration.disclose.counts is Disclosure.EXACT
        moves = declaration.residency is Residency.MOVABLE
        self.least = 1 if self._counts or moves else 2
        """The fewest clients that a sum may have, unless it has none."""

    def check_company(self, what: str, clients: int) -> None:
        """Raise PolicyRefused for a sum over so few clients that it reveals the samples of one."""
        if 0 < clients < self.least:
            raise self._refused(
                f"{what} with one client of this site, which tells how many samples it has",
                "`counts: exact`, or rounds with more clients of this site (a larger "
                "`federation.clients_per_round`)",
            )

    def check_updates(self) -> None:
        """Raise PolicyRefused for an algorithm that receives every update by itself."""
        if not self._counts:
            raise self._refused(
                "an algorithm that needs every client's update, which tells how many samples each "
                "has",
                "`counts: exact`, or an algorithm that needs their sum, such as `fedavg`",
            )

    def check_neighbors(self) -> None:
        """Raise PolicyRefused for a graph, on which other sites get single clients' models."""
        if not self._counts:
            raise self._refused(
                "a graph, on which each client's model goes to the sites of its neighbors, and "
                "how far it has moved tells about how many samples the client has",
                "`counts: exact`, or `topology: star`, in which only sums leave",
            )

    def check(self, order: Payload) -> None:
        """Raise PolicyRefused for an order whose answer must not leave."""
        if order.kind in TELLS_SAMPLES and not self._counts:
            raise self._refused(
                f"`{order.kind}` of a single client, which tells how many samples it has",
                "rounds, which tell the samples of all their clients together",
            )

    def _refused(self, found: str, allowed: str) -> PolicyRefused:
        rule = f"datasets.{self.dataset}.disclose.counts of site.yaml"
        return PolicyRefused(self._site, rule, found, allowed)

    def answered(self, answer: Answer) -> Answer:
        leaving: Answer = Future()

        def leave(done: Answer) -> None:
            if done.cancelled():
                leaving.cancel()
            elif (error := done.exception()) is not None:
                leaving.set_exception(self.error(error))
            else:
                leaving.set_result(self.payload(done.result()))

        answer.add_done_callback(lambda done: or_fail(leaving, lambda: leave(done)))
        return leaving

    def payload(self, answer: Payload) -> Payload:
        """An answer without what stays; raises PolicyRefused if it must not leave."""
        header = dict(answer.header)
        if answer.kind in ("partial", "tally"):
            self.check_company("an answer", told_of(answer))
        if answer.kind == "partial" and not self._ids:
            count = len(header["partial"]["refused"])
            unnamed = [
                f"client {number} of {count} that site {self._site} refused"
                for number in range(1, count + 1)
            ]
            header |= {"partial": {**header["partial"], "refused": unnamed}, "digests": {}}
        if answer.kind == "node":
            header = _without_texts(header)
        if "samples" in header and not self._counts:
            header["samples"] = None
        return replace(answer, header=header)

    def told_to(self, notify: Notify) -> Notify:
        """Pass events on through `event`."""

        def leave(event: Payload) -> None:
            if (leaving := self.event(event)) is not None:
                notify(leaving)

        return leave

    def event(self, event: Payload) -> Payload | None:
        """An event without what stays; None for output of code that saw the data."""
        if event.kind == "clients_printed":
            for client, text in zip(event.header["clients"], event.header["texts"], strict=True):
                log.info("round %s, %s printed: %s", event.header["round"], client, text)
            return None
        if "reason" not in event.header:
            return event
        log.warning("%s: %s", event.kind, event.header["reason"])
        return replace(event, header={**event.header, "reason": IN_THE_LOG})

    def error(self, error: BaseException) -> Exception:
        log.warning("an order failed: %s: %s", type(error).__name__, error)
        if trace := getattr(error, "trace", ""):
            log.warning("%s", trace)
        if isinstance(lost := machine_trouble(self._site, error), SiteLost):
            return lost
        match error:
            case PolicyRefused() | DataUnusable() | WorkersNotUp():
                return error
            case ExecutionRefused():
                return ExecutionRefused(error.execution, IN_THE_LOG)
            case ClientFailed():
                name = error.client_id if self._ids else f"a client of site {self._site}"
                return ClientFailed(name, error.doing, IN_THE_LOG)
            case WorkersExhausted():
                return WorkersExhausted(error.what, error.losses, IN_THE_LOG)
            case WorkerNotMade():
                return WorkerNotMade(error.worker, IN_THE_LOG)
        return FederatedError(f"site {self._site}: {kind_of(error)}; {IN_THE_LOG}")


def told_of(answer: Payload) -> int:
    """How many clients a round's sum, or a tally, is about.

    A sum over several steps of groups counts the clients of the step with the fewest. A tally that
    measured anything is about one client at least.
    """
    header = answer.header
    if answer.kind == "tally":
        clients = 0 if header.get("on") == "test" else int(header.get("clients", 1))
        measured = header.get("on") != "test" and any(header.get("tally", ()))
    else:
        clients = int(header.get("fewest", header["partial"]["clients"]))
        measured = any(header["partial"]["tally"])
    return max(clients, int(measured))


def _without_texts(node: Mapping[str, Any]) -> dict[str, Any]:
    """A VirtualNode's state without texts of errors."""
    trail = [
        [ago, what, IN_THE_LOG if what in TOLD_BY_ERRORS else why]
        for ago, what, why in node["trail"]
    ]
    return {**node, "trail": trail, "reason": trail[-1][2] if trail else node["reason"]}


def kind_of(error: BaseException) -> str:
    """The class of an error if it is Python's or ours; other names may contain anything."""
    kind = type(error)
    known = getattr(builtins, kind.__name__, None) is kind
    return kind.__name__ if known or kind.__module__.startswith("fedpilot.") else "an error"
