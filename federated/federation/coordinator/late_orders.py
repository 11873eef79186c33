"""LateOrders: open orders of closed rounds, until they are too late to count.

Their answers count in the first round that is summed after they arrive. Since the clock decides
what counts, the journal gets that decision and the update itself before the sum is used, and a
repeated round reads them there. A dead coordinator loses late answers that have not counted yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from fedpilot.mediator import FederationMediator
from fedpilot.mediator.errors import AnswerUnreadable

from ...config.schema import Participation
from ...core.state import under
from ...core.sums.amounts import AnswerRefused
from ...core.sums.partial import Partial
from ...core.sums.staleness import Late, as_late
from ...engine.tensor_files import read_tensors, write_tensors
from ...errors import RunRefused
from ..events import Emit
from .gather import Unanswered

FORMAT = 1


class LateOrders:
    """The late orders of one run."""

    def __init__(
        self, participation: Participation, mediator: FederationMediator, emit: Emit
    ) -> None:
        self._carries = participation.late_updates == "carry"
        self._most = participation.most_rounds_late
        self._exponent = participation.staleness_exponent
        self._mediator = mediator
        self._emit = emit
        self._orders: list[Unanswered] = []

    @property
    def rounds(self) -> int:
        """How many rounds late an answer may be; 0 where late answers are discarded."""
        return self._most if self._carries else 0

    def sites(self) -> list[str]:
        """The sites that may still send a sum, one entry per order."""
        return [each.part.site for each in self._orders]

    def expect(self, orders: Iterable[Unanswered]) -> None:
        """Add orders that were unanswered when their round closed."""
        if self._carries:
            self._orders += orders

    def take(self, round_number: int) -> list[Late]:
        """Take the late answers that have arrived, as updates; discard orders that are too old."""
        sums: dict[int, list[tuple[str, Partial]]] = {}
        open_: list[Unanswered] = []
        for each in self._orders:
            of_round = each.query.round_number
            if round_number - of_round > self._most:
                self._discard(round_number, each, "it is too late")
            elif not each.answer.done():
                open_.append(each)
            elif (found := self._sum_of(round_number, each)) is not None:
                sums.setdefault(of_round, []).append((each.part.site, found))
        self._orders = open_
        return [
            late
            for of_round, found in sorted(sums.items())
            for late in self._as_updates(round_number, of_round, found)
        ]

    def _as_updates(
        self, round_number: int, of_round: int, found: Sequence[tuple[str, Partial]]
    ) -> list[Late]:
        """One update of all sites; one per grid if the round was repeated on another grid."""
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

    def _sum_of(self, round_number: int, each: Unanswered) -> Partial | None:
        """The sum in an answer; None if it is empty or unusable."""
        site = each.part.site
        try:
            answer = each.answer.result()
            each.query.check(each.part.share, answer)
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
            number = each.query.round_number
            self._emit("update_refused", round=number, client=client_id, reason="not finite")
        if found.overflowed:
            self._discard(round_number, each, f"its sum of {found.overflowed[0]} is out of range")
            return None
        return found if found.weight else None

    def _discard(self, round_number: int, each: Unanswered, reason: str) -> None:
        self._emit(
            "late_discarded",
            round=round_number,
            of_round=each.query.round_number,
            site=each.part.site,
            reason=reason,
        )


def write_late(path: Path, late: Sequence[Late]) -> list[dict[str, Any]]:
    """Write late updates to a file; return their entries for the participation record."""
    tensors = {
        f"{number}/{name}": array
        for number, each in enumerate(late)
        for name, array in each.tensors().items()
    }
    write_tensors(path, tensors, {"format": FORMAT})
    return [each.to_json() for each in late]


def read_late(path: Path, told: Sequence[Any]) -> list[Late]:
    """Read the late updates in a record; raises RunRefused if the file does not match."""
    if not told:
        return []
    header, tensors = read_tensors(path)
    if header.get("format") != FORMAT:
        raise RunRefused(f"{path} is of another format than {FORMAT}")
    return [
        Late.from_json(each, under(f"{number}/", tensors), str(path))
        for number, each in enumerate(told)
    ]
