"""LateOrders: orders of rounds that were closed without them, until they are too late to count.

They are taken into the sum of the first round that is ready to be added up after they have come.
What counts is then a matter of the clock: it is written into the run's journal, the update itself
too, before that sum is used. Whoever runs the round again takes it from there. A coordinator that
dies forgets what was late and had not counted yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedpilot.mediator import FederationMediator, Payload, Share
from fedpilot.mediator.errors import AnswerUnreadable

from ...config.schema import Participation
from ...core.state import Array
from ...core.sums.partial import Partial
from ...core.sums.partial_check import AnswerRefused
from ...core.sums.staleness import Late, as_late
from ...engine.tensor_files import read_tensors, write_tensors
from ...errors import RunRefused
from ..events import Emit
from .gather import Unanswered

FORMAT = 1


class LateQuery(Protocol):
    """The query that an order belonged to."""

    @property
    def round_number(self) -> int: ...

    def check(self, share: Share, answer: Payload) -> None:
        """AnswerRefused for what cannot be an answer to the order about these clients."""

    def refused(self, site: str, error: Exception) -> bool:
        """Note that an answer of a site does not count; whether it takes no further part."""


@dataclass(frozen=True, slots=True)
class _Order:
    query: LateQuery
    order: Unanswered


class LateOrders:
    """The late orders of a run."""

    def __init__(
        self, participation: Participation, mediator: FederationMediator, emit: Emit
    ) -> None:
        self._carries = participation.late_updates == "carry"
        self._most = participation.most_rounds_late
        self._exponent = participation.staleness_exponent
        self._mediator = mediator
        self._emit = emit
        self._orders: list[_Order] = []

    @property
    def rounds(self) -> int:
        """How many rounds late an answer may be; 0 where all that is late is discarded."""
        return self._most if self._carries else 0

    def sites(self) -> list[str]:
        """Who may still hand up something, once for each order."""
        return [each.order.part.site for each in self._orders]

    def expect(self, query: LateQuery, orders: Iterable[Unanswered]) -> None:
        """These were not answered when their round was closed."""
        if self._carries:
            self._orders += [_Order(query, order) for order in orders]

    def take(self, round_number: int) -> list[Late]:
        """What has come by now of earlier rounds, one update for each; what is too old is gone."""
        sums: dict[int, list[tuple[str, Partial]]] = {}
        open_: list[_Order] = []
        for each in self._orders:
            of_round, site = each.query.round_number, each.order.part.site
            if round_number - of_round > self._most:
                self._discard(round_number, each, "it is too late")
            elif not each.order.answer.done():
                open_.append(each)
            elif (found := self._sum_of(round_number, each)) is not None:
                sums.setdefault(of_round, []).append((site, found))
        self._orders = open_
        return [
            late
            for of_round, found in sorted(sums.items())
            for late in self._as_updates(round_number, of_round, found)
        ]

    def _as_updates(
        self, round_number: int, of_round: int, found: Sequence[tuple[str, Partial]]
    ) -> list[Late]:
        """One update of all sites, or one for each grid if the round was repeated on another."""
        by_grid: dict[tuple[tuple[str, int], ...], tuple[Partial, set[str]]] = {}
        for site, partial in found:
            grid = tuple(sorted(partial.exponents.items()))
            total, sites = by_grid.setdefault(grid, (Partial(partial.exponents), set()))
            total.merge(partial)
            sites.add(site)
        made = []
        for grid in sorted(by_grid):
            total, sites = by_grid[grid]
            if total.overflowed:
                told = {"site": ", ".join(sorted(sites)), "reason": "their sum is out of range"}
                self._emit("late_discarded", round=round_number, of_round=of_round, **told)
                continue
            late = as_late(
                total,
                round_number=of_round,
                rounds_late=round_number - of_round,
                exponent=self._exponent,
                sites=sites,
            )
            self._emit(
                "late_counted",
                round=round_number,
                of_round=of_round,
                clients=late.clients,
                weight=late.weight,
                sites=list(late.sites),
            )
            made.append(late)
        return made

    def _sum_of(self, round_number: int, each: _Order) -> Partial | None:
        """The sum that an answer is; None if there is nothing in it, or it cannot be used."""
        site, of_round = each.order.part.site, each.query.round_number
        try:
            answer = each.order.answer.result()
            each.query.check(each.order.part.share, answer)
        except (AnswerRefused, AnswerUnreadable) as error:
            self._discard(round_number, each, str(error))
            if each.query.refused(site, error):
                self._mediator.membership.distrust(site, str(error), round_number=round_number)
            return None
        except CancelledError:
            self._discard(round_number, each, "its site gave it up")
            return None
        except Exception as error:
            self._discard(round_number, each, f"{type(error).__name__}: {error}")
            return None
        found = Partial.from_wire(answer.header["partial"], answer.tensors)
        for client_id in found.refused:
            self._emit("update_refused", round=of_round, client=client_id, reason="not finite")
        if found.overflowed:
            self._discard(round_number, each, f"its sum of {found.overflowed[0]} is out of range")
            return None
        return found if found.weight else None

    def _discard(self, round_number: int, each: _Order, reason: str) -> None:
        self._emit(
            "late_discarded",
            round=round_number,
            of_round=each.query.round_number,
            site=each.order.part.site,
            reason=reason,
        )


def write_late(path: Path, late: Sequence[Late]) -> list[dict[str, Any]]:
    """Keep late updates in a file; what the record of who counted says of them."""
    tensors = {
        f"{number}/{name}": array
        for number, each in enumerate(late)
        for name, array in each.tensors().items()
    }
    write_tensors(path, tensors, {"format": FORMAT})
    return [each.to_json() for each in late]


def read_late(path: Path, told: Sequence[Any]) -> list[Late]:
    """The late updates of which a record speaks; RunRefused if they are not those."""
    if not told:
        return []
    header, tensors = read_tensors(path)
    if header.get("format") != FORMAT:
        raise RunRefused(f"{path} is of another format than {FORMAT}")
    found = []
    for number, each in enumerate(told):
        under = f"{number}/"
        mine: dict[str, Array] = {
            name.removeprefix(under): array
            for name, array in tensors.items()
            if name.startswith(under)
        }
        found.append(Late.from_json(each, mine, str(path)))
    return found
