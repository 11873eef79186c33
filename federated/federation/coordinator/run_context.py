"""RunContext: what a run's phases share; RoundQuery: what their queries have in common.

Training and evaluation ask the same sites, under the same limits, and write into the same journal.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fedpilot.mediator import FederationMediator, Payload, Share

from ...config.schema import RunConfig
from ...core.algorithm import Algorithm
from ...core.population.cohort_members import Membership
from ...core.population.federated_data.declarations import Exactness
from ...core.population.partitions.partition import Partition
from ...core.rounds.exchange_costs import ExchangeCosts
from ...core.state import Roles
from ...prepare.adapting import Adapting
from ..events import Emit
from ..run_folder.folder import RunFolder
from .late_orders import LateOrders
from .participation_record import CountedRounds
from .site_limits import SiteLimits
from .site_orders import OrderForm, OrderSender

if TYPE_CHECKING:
    from ...core.topology.graphs import Topology


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """One attempt at a run: its config and clients, its sites, its folder."""

    config: RunConfig
    roles: Roles
    algorithm: Algorithm
    mediator: FederationMediator
    folder: RunFolder
    emit: Emit
    asked: int
    """Clients in a round's orders."""
    enough: int
    """Clients that suffice to close a round."""
    membership: Membership
    """Derives the clients of a round's share."""
    partition: Partition
    graphs: Topology | None
    """Of the run's rounds; None if clients share one model."""
    test_samples: int
    told: Callable[[str], Exactness]
    """Site -> how exactly its samples may be shown."""
    exchange: ExchangeCosts | None = None
    """What clients exchange on a graph."""
    adapting: Adapting | None = None
    """How the clients' graph changes, if it does."""

    @cached_property
    def limits(self) -> SiteLimits:
        return SiteLimits(self.config.robustness, self.folder.journal, self.emit, self.told)

    @cached_property
    def late(self) -> LateOrders:
        return LateOrders(self.config.participation, self.mediator, self.emit)

    @cached_property
    def orders(self) -> OrderSender:
        return OrderSender(self.mediator, self.emit, self.folder, self.asked, self.exchange)

    @cached_property
    def counted(self) -> CountedRounds:
        return CountedRounds(self.folder.journal)


@dataclass(frozen=True, kw_only=True)
class RoundQuery(OrderForm):
    """A query to a run's sites, about clients or the coordinator's test set."""

    run: RunContext
    whole: int
    """Clients in the query; 1 for the test set."""

    def send(self, site: str, share: Share) -> Future[Payload]:
        return self.run.orders.send(self, site, share)

    def close(self, site: str, share: Share) -> None:
        self.run.orders.close(self, site, share)

    def refused(self, site: str, error: Exception) -> bool:
        return self.run.limits.refused(site, error, self.round_number)

    def site_changed(self) -> None:
        self.run.orders.tell_changes()
