"""The bytes that a round moves between coordinator and sites: models out, sums back.

A model goes to a site once, for the evaluation of a round or for the training of the next. Answers
count at their largest size. Unforeseeable bytes are left out: rounds repeated on a coarser grid,
clients of a lost site that train elsewhere, and repeats over a broken link.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fedpilot.mediator.core.traffic import Budget, BudgetUse, Direction, Flow, Volume

from ..algorithm import Needs
from ..state import Roles, State, averaged, counters, nbytes
from ..sums.updates import bytes_of_one

HEADERS = 16 << 10
"""Bytes of an order and its answer beside the tensors, when counted on the wire."""
HEADERS_OF_A_TENSOR = 512
"""More of them per tensor: names, shapes, exponents and bounds."""


class Judges(StrEnum):
    """The sites that evaluate a round's model."""

    NOBODY = "nobody"
    ONE = "one"
    """The first site, on the coordinator's test set."""
    ALL = "all"
    """Every site, on its clients' samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Bytes of models and answers."""

    model: int
    answer: int
    """The most in a site's answer to a round, for any number of clients."""
    update: int = 0
    """Added to an answer per client, where an algorithm needs every update."""
    headers: int = 0
    """Of each order and its answer; 0 where only tensors are counted."""

    @classmethod
    def of(cls, model: State, roles: Roles, needs: Needs, *, on_the_wire: bool = False) -> Costs:
        """The costs of a model: its tensors alone, or with headers `on_the_wire`."""
        counted = nbytes(model[name] for name in counters(roles))
        sums = 8 * sum(model[name].size for name in averaged(roles))
        kept = needs is Needs.EVERY_UPDATE
        return cls(
            model=nbytes(model.values()),
            answer=counted if kept else counted + sums,
            update=bytes_of_one(model, roles) if kept else 0,
            headers=HEADERS + HEADERS_OF_A_TENSOR * len(model) if on_the_wire else 0,
        )

    def of_order(self, *, with_model: bool, clients: int | None) -> Volume:
        """An order and its answer: to train so many clients, or (None) to evaluate."""
        back = 0 if clients is None else self.answer + clients * self.update
        out = self.model if with_model else 0
        return Volume(to_site=out + self.headers, from_site=back + self.headers)

    def of_round(
        self, clients: Mapping[str, int], *, having: Collection[str], judges: Judges
    ) -> dict[str, Volume]:
        """What a round costs each site, given the most clients that it trains.

        `having` are the sites that already have the round's model.
        """
        costs = {
            site: self.of_order(with_model=site not in having, clients=count) if count else Volume()
            for site, count in clients.items()
        }
        judging = self.of_order(with_model=True, clients=None)
        for site in judges_among(list(clients), judges):
            costs[site] = costs[site] + judging
        return costs

    @property
    def at_least(self) -> int:
        """The least cost of any round: a model for one site, and the update of one client."""
        return self.of_order(with_model=True, clients=1).total

    @property
    def of_a_site(self) -> int:
        """Bytes that a round moves over one site's link, where updates are summed there."""
        return self.of_order(with_model=True, clients=0).total

    @property
    def late(self) -> Volume:
        """The most that an order of an earlier round can still bring."""
        return Volume(from_site=self.answer + self.headers)


def judges_among(sites: list[str], judges: Judges) -> list[str]:
    """The sites that evaluate a round's model and therefore hold it."""
    match judges:
        case Judges.NOBODY:
            return []
        case Judges.ONE:
            return sites[:1]
        case Judges.ALL:
            return sites


def fitting(
    costs: Costs,
    clients: Mapping[str, int],
    budget: Budget,
    rounds: int,
    judges: Callable[[int], Judges],
    exchange: Callable[[int], Mapping[str, Volume]] = lambda _: {},
) -> int:
    """How many of so many rounds the budget covers, if nothing is sent twice.

    `exchange`: what each site moves in a round beside the model and sums.
    """
    use = BudgetUse(budget)
    having: Collection[str] = ()
    for number in range(1, rounds + 1):
        asked = costs.of_round(clients, having=having, judges=judges(number))
        for site, each in exchange(number).items():
            asked[site] = asked.get(site, Volume()) + each
        if use.refuses(number, {site: each.total for site, each in asked.items()}) is not None:
            return number - 1
        use.book(
            (Flow(number, site, Direction.TO_SITE, "training"), each.total)
            for site, each in asked.items()
        )
        having = judges_among(list(clients), judges(number))
    return rounds
