"""TrafficBudget: refuses a round that would exceed a run's budget, and accounts for the bytes.

The run folder's `traffic.csv` has the bytes that crossed. The journal has the most that a round may
cost, from before its first order until its rows are in the table; so a run that was killed in
between has spent that much when it resumes. A run without a limit has none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from fedpilot.mediator.core.traffic import Budget, BudgetUse, Direction, Flow, Volume, over_budget

from ...core.rounds.round_costs import Costs, Judges
from ...errors import TrafficSpent
from ..run_folder.folder import RunFolder

INTERRUPTED = "interrupted"
"""The purpose under which a killed round's maximal cost is booked."""


class TrafficBudget:
    """The traffic of one attempt at a run."""

    def __init__(self, budget: Budget, costs: Costs, folder: RunFolder) -> None:
        """Book earlier attempts' bytes, as recorded in the folder."""
        self._costs = costs
        self._folder = folder
        self._use = BudgetUse(budget)
        self._planned: dict[str, Volume] = {}
        """The recorded plan of the current round, by site."""
        self._asked: dict[str, Volume] = {}
        """What the round's orders were granted."""
        self._read_back()

    def _read_back(self) -> None:
        lost = self._folder.round_under_way()
        if lost is not None:
            number, sites = lost
            self._folder.append_traffic(
                (number, site, way, INTERRUPTED, nbytes)
                for site, ways in sorted(sites.items())
                for way, nbytes in sorted(ways.items())
            )
            self._folder.forget_round_under_way()
        rows = [
            (Flow(number, site, Direction(way), purpose), nbytes)
            for number, site, way, purpose, nbytes in self._folder.traffic()
        ]
        self._use.book(rows, earlier=True)

    def plan(
        self,
        round_number: int,
        clients: Mapping[str, int],
        *,
        having: Collection[str],
        judges: Judges,
        late: Iterable[str],
        exchange: Mapping[str, Volume] = MappingProxyType({}),
    ) -> None:
        """Reserve a whole round before it begins; raises TrafficSpent if too little is left.

        `clients`: the most that each site trains; `having` are the sites that have the model,
        `late` those that may still answer for earlier rounds, one entry per order. `exchange`: what
        each site moves for its clients' neighbors at other sites.
        """
        wanted = self._costs.of_round(clients, having=having, judges=judges)
        for site, each in exchange.items():
            wanted[site] = wanted.get(site, Volume()) + each
        overdue = [(site, self._costs.late) for site in late]
        for site, each in overdue:
            wanted[site] = wanted.get(site, Volume()) + each
        self._check(f"round {round_number} is not begun", round_number, wanted)
        self._planned, self._asked = wanted, {}
        self._write(round_number)
        for site, each in overdue:
            self._grant(round_number, site, each)

    def ask(
        self,
        round_number: int,
        site: str,
        *,
        with_model: bool,
        clients: int | None,
        counts: int = 0,
    ) -> None:
        """Reserve an order and its answer; raises TrafficSpent if too little is left.

        The order is to train so many `clients`, or (None) to evaluate. `counts` are bytes of its
        answer beside a sum.
        """
        order = self._costs.of_order(with_model=with_model, clients=clients)
        wanted = order + Volume(from_site=counts)
        self._check(f"nothing more of round {round_number} is sent", round_number, {site: wanted})
        self._grant(round_number, site, wanted)

    def exchange(self, round_number: int, wanted: Mapping[str, Volume]) -> None:
        """Reserve an exchange between sites; raises TrafficSpent if too little is left."""
        self._check(f"nothing more of round {round_number} is sent", round_number, wanted)
        for site, each in wanted.items():
            self._grant(round_number, site, each)

    @property
    def headers(self) -> int:
        """Bytes of an order or an answer beside its tensors."""
        return self._costs.headers

    def book(self, rows: Iterable[tuple[Flow, int]]) -> None:
        """Book what crossed in the round that just ended."""
        self._use.settle()
        self._use.book(rows)

    def written(self) -> None:
        """Note that the booked bytes are in the run folder's table."""
        self._folder.forget_round_under_way()

    def _check(self, what: str, round_number: int, wanted: Mapping[str, Volume]) -> None:
        totals = {site: each.total for site, each in wanted.items()}
        refused = self._use.refuses(round_number, totals)
        if refused is not None:
            raise TrafficSpent(what, over_budget(refused))

    def _grant(self, round_number: int, site: str, wanted: Volume) -> None:
        self._use.promise(site, wanted.total)
        asked = self._asked[site] = self._asked.get(site, Volume()) + wanted
        planned = self._planned.get(site, Volume())
        if asked | planned != planned:
            self._planned[site] = asked | planned
            self._write(round_number)

    def _write(self, round_number: int) -> None:
        ways = {
            site: {str(Direction.TO_SITE): each.to_site, str(Direction.FROM_SITE): each.from_site}
            for site, each in self._planned.items()
        }
        self._folder.write_round_under_way(round_number, ways)
