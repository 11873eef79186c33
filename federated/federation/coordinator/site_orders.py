"""OrderSender: sends a run's orders to its sites, each with the model that it is about.

A model goes to a site once: later orders name it by its digest. Every order is booked under its
purpose. While a run goes on, the traffic budget must allow each order first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fedpilot.mediator import ChangeKind, FederationMediator, Payload, Share
from fedpilot.mediator.core.assignment import size
from fedpilot.mediator.core.traffic import Volume

from ...core.population.sampling import Indices
from ...core.population.shares import part_name, told
from ...core.rounds.exchange_costs import ExchangeCosts
from ...core.rounds.round_costs import Judges
from ...core.state import State
from ..events import Emit
from ..run_folder.folder import RunFolder
from ..setup.global_model import GlobalModel
from .traffic_budget import TrafficBudget

TRAINING, EVALUATION, NODES = "round", "evaluate", "evaluate_nodes"
GIVING, TAKING, MIXING = "give_states", "take_states", "mix"
"""On a graph, after the training."""
ROOM, COPYING, HOLDING, DROPPING = "replica_room", "give_replica", "take_replica", "drop_replicas"
"""About copies of clients' states, between rounds; each such order says its purpose."""
PURPOSES = {
    TRAINING: "training",
    EVALUATION: "evaluation",
    NODES: "evaluation",
    GIVING: "exchange",
    TAKING: "exchange",
    MIXING: "training",
}
"""Purposes under which the bytes of orders are booked, by their kind."""


@dataclass(frozen=True, kw_only=True)
class OrderForm:
    """What the orders of one query share; they differ in their clients."""

    kind: str
    model: GlobalModel
    round_number: int
    header: Mapping[str, Any]
    variant: str
    """Distinguishes queries about one model."""
    purpose: str = ""
    """Of its bytes, if the kind does not say it."""

    def order(self, share: Share, prefix: str = "") -> Payload:
        """The order about these clients, without the model's tensors."""
        about = {"round": self.round_number, "model": self.model.digest, "share": told(share)}
        return Payload(kind=prefix + self.kind, header={**about, **self.header})

    def bytes_of_counts(self, share: Share) -> int:
        """Bytes of the answer about these clients that are no sum."""
        return 0

    def key(self, share: Share) -> str:
        """The order's key, under which a restarted coordinator finds it again."""
        part = part_name(share, str(self.header.get("counted", "")))
        return f"{self.kind}/{self.round_number}/{self.model.digest}/{self.variant}/{part}"


class SentGraph(Protocol):
    """A graph that goes to a site once."""

    @property
    def digest(self) -> str: ...

    @property
    def tensors(self) -> State: ...


class OrderSender:
    """Sends the orders of one run."""

    def __init__(
        self,
        mediator: FederationMediator,
        emit: Emit,
        folder: RunFolder,
        asked: int,
        exchange: ExchangeCosts | None = None,
    ) -> None:
        """`asked`: the clients in a round's orders; `exchange`: what they exchange on a graph."""
        self._folder = folder
        self._absent = folder.absent_sites()
        """Sites reported as lost or drained, by this or an earlier coordinator of the run."""
        self._exchange = exchange
        self._mediator = mediator
        self._emit = emit
        self._asked = asked
        self._models: dict[str, str] = {}
        """Site -> digest of the last model sent to it."""
        self._graphs: dict[str, str] = {}
        """The same of graphs."""
        self.budget: TrafficBudget | None = None
        """The traffic budget while a run that has one goes on."""

    def send(
        self, form: OrderForm, site: str, share: Share, graph: SentGraph | None = None
    ) -> Future[Payload]:
        """Send the order, with a model and graph unless the site has it; may raise TrafficSpent."""
        order, model = form.order(share), form.model
        new = self._models.get(site) != model.digest
        if self.budget is not None:
            clients = min(self._asked, size(share)) if form.kind == TRAINING else None
            number, counts = form.round_number, form.bytes_of_counts(share)
            self.budget.ask(number, site, with_model=new, clients=clients, counts=counts)
        if new:
            self._models[site] = model.digest
            order = replace(order, tensors=model.state)
        if graph is not None and self._graphs.get(site) != graph.digest:
            self._graphs[site] = graph.digest
            order = replace(order, tensors={**order.tensors, **graph.tensors})
        return self._deliver(form, site, order, form.key(share))

    def pass_on(self, form: OrderForm, site: str, share: Share, tensors: State) -> Future[Payload]:
        """Send an order with tensors of its own, to a site that has the model."""
        order = replace(form.order(share), tensors=tensors)
        return self._deliver(form, site, order, form.key(share))

    def reserve_exchange(
        self,
        round_number: int,
        shares: Mapping[str, Share],
        absent: Indices,
        older: Collection[str],
    ) -> None:
        """Reserve budget for the exchange before a mixing step; may raise TrafficSpent.

        Sites that are `older` know no partial sums.
        """
        if self.budget is not None and self._exchange is not None:
            headers = self.budget.headers
            wanted = self._exchange.of_step(round_number, shares, headers, absent, older)
            self.budget.exchange(round_number, wanted)

    def close(self, form: OrderForm, site: str, share: Share) -> None:
        """Have the site answer the order about these clients with its finished work."""
        self._deliver(form, site, form.order(share, "close_"), f"close/{form.key(share)}")

    def _deliver(self, form: OrderForm, site: str, order: Payload, key: str) -> Future[Payload]:
        purpose, number = form.purpose or PURPOSES[form.kind], form.round_number
        return self._mediator.orders.deliver(
            site, order, round_number=number, purpose=purpose, key=key
        )

    def tell_changes(self) -> None:
        """Report which sites went or came back; neither holds a model or a graph."""
        for change in self._mediator.membership.drain_changes():
            site = change.site
            self._models.pop(site, None)
            self._graphs.pop(site, None)
            went = {"site": site, "reason": change.reason, "clients": change.clients}
            match change.kind:
                case ChangeKind.LOST:
                    self._record_absent(self._absent | {site})
                    self._emit("site_lost", **went)
                case ChangeKind.DRAINED:
                    self._record_absent(self._absent | {site})
                    self._emit("site_drained", **went)
                case ChangeKind.RETURNED:
                    self._tell_returned(site)

    def tell_changes_since_resumed(self) -> None:
        """Report also the sites that an earlier coordinator reported as gone and that are back."""
        self.tell_changes()
        for site in sorted(self._absent.intersection(self._mediator.membership.sites)):
            self._tell_returned(site)

    def _tell_returned(self, site: str) -> None:
        self._emit("site_returned", site=site)
        self._record_absent(self._absent - {site})

    def _record_absent(self, sites: set[str]) -> None:
        """Record a site as gone before the report, and as there after the report.

        If the process dies in between, the next coordinator reports a return too many, not one too
        few.
        """
        if sites != self._absent:
            self._absent = sites
            self._folder.write_absent_sites(sites)

    def plan(
        self, budget: TrafficBudget, model: GlobalModel, judges: Judges, late: Iterable[str]
    ) -> None:
        """Reserve budget for all known costs of the round after this model.

        `late` are the sites that may still answer for earlier rounds. Raises TrafficSpent.
        """
        self.tell_changes()
        shares, number = self._mediator.membership.assignment.shares, model.round_number + 1
        exchange: Mapping[str, Volume] = {}
        if self._exchange is not None:
            exchange = self._exchange.of_round(number, shares, budget.headers)
        budget.plan(
            number,
            {
                site: min(self._asked, size(shares.get(site, ())))
                for site in self._mediator.membership.sites
            },
            having=[site for site, known in self._models.items() if known == model.digest],
            judges=judges,
            late=late,
            exchange=exchange,
        )
