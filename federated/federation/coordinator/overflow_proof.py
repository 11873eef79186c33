"""Has sites show the sums that leave a grid's range, before the round is repeated on a coarser one.

A site that says so makes everybody train the round again, on a grid that costs precision. So it
trains its own clients again first, alone, on coarser grids: what it says there has to be the same
size as what it said before. Whoever does not agree with itself, or leaves every range, is refused,
and the others' grid stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol, Self

from fedpilot.mediator import Payload, Share, SiteUnreachable
from fedpilot.mediator.errors import AnswerUnreadable

from ...core.sums.amounts import AnswerRefused, check_repeated
from ...core.sums.partial import COARSER_STEP, COARSEST, Partial
from ...core.sums.partial_check import LimitExceeded
from .gather import Answered


class Repeatable(Protocol):
    """A round's query, which can be asked on a coarser grid."""

    @property
    def coarser(self) -> int: ...

    def repeated(self, coarser: int, answer: Payload) -> Self:
        """The same on another grid, about the clients that an answer counts."""

    def send(self, site: str, share: Share) -> Future[Payload]: ...

    def check(self, share: Share, answer: Payload) -> None: ...


def partial_of(answer: Payload) -> Partial:
    """The sum that an answer is; it was checked before."""
    return Partial.from_wire(answer.header["partial"], answer.tensors)


def unproven(
    query: Repeatable, answered: Sequence[Answered], timeout_s: float | None
) -> dict[str, Exception]:
    """The sites whose sums have left the range of a grid and are not believed, and why.

    A site that is alone is believed: it spoils nobody's grid.
    """
    problems: dict[str, Exception] = {}
    if len({each.part.site for each in answered}) < 2:
        return problems
    open_ = [(each, partial_of(each.payload)) for each in answered]
    open_ = [(each, partial) for each, partial in open_ if partial.overflowed]
    for coarser in range(query.coarser + COARSER_STEP, COARSEST + 1, COARSER_STEP):
        asked = [
            (each, before, again, again.send(each.part.site, each.part.share))
            for each, before in open_
            for again in [query.repeated(coarser, each.payload)]
        ]
        open_ = []
        for each, before, again, future in asked:
            site = each.part.site
            try:
                answer = future.result(timeout_s)
                again.check(each.part.share, answer)
                check_repeated(before, after := partial_of(answer))
            except SiteUnreachable:
                continue  # the next who asks will see
            except TimeoutError:
                problems[site] = LimitExceeded("it did not show in time how large its sum is")
            except (AnswerRefused, AnswerUnreadable) as error:
                problems[site] = error
            else:
                if after.overflowed:
                    open_.append((each, after))
    for each, partial in open_:
        name = partial.overflowed[0]
        problems[each.part.site] = AnswerRefused(
            f"the sum of {name}",
            "out of any range",
            "that of a training that does not diverge (a smaller `training.learning_rate` "
            "usually helps)",
        )
    return problems
