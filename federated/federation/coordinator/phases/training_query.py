"""TrainingQuery: asks the sites for the sum of a round's updates, and checks what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedpilot.mediator import Payload, Share, SiteUnreachable
from fedpilot.mediator.errors import AnswerUnreadable

from ....core.algorithm import Needs
from ....core.population.cohort_members import Members
from ....core.population.shares import unpacked
from ....core.sums.amounts import AnswerRefused, check_repeated
from ....core.sums.partial import COARSER_STEP, COARSEST, Partial, grid
from ....core.sums.partial_check import LimitExceeded, checked_covered, checked_partial
from ..gather import Answered
from ..run_context import RoundQuery


@dataclass(frozen=True, kw_only=True)
class TrainingQuery(RoundQuery):
    """Asks for the sum of a round's updates, on one grid."""

    @property
    def name(self) -> str:
        return f"round {self.round_number}"

    @property
    def coarser(self) -> int:
        return int(self.header["coarser"])

    def check(self, share: Share, answer: Payload) -> None:
        partial = checked_partial(
            answer.header,
            answer.tensors,
            exponents=self._grid,
            model=self.model.state,
            roles=self.run.roles,
            members=members_of(self, share),
            # Only an order that a clock may close is answered before all are done.
            all_of_them=not self.header.get("tells_covered", False),
            keeps_updates=self.run.algorithm.needs is Needs.EVERY_UPDATE,
        )
        self.run.limits.check(partial)

    def covered(self, share: Share, answer: Payload) -> int:
        return int(np.count_nonzero(checked_covered(answer.header, members_of(self, share))))

    def most(self, share: Share) -> int:
        return members_of(self, share).most

    def review(self, answered: Sequence[Answered]) -> Mapping[str, Exception]:
        on_a_graph = self.run.config.federation.is_graph  # what one site trained fits all others'
        if not on_a_graph and (problems := _unproven(self, answered)):
            return problems
        parts = [(each.part.site, partial_of(each.payload)) for each in answered]
        return self.run.limits.exceeded((self.round_number, self.coarser), parts)

    def with_header(self, **more: Any) -> TrainingQuery:
        """The same query with more header fields."""
        return replace(self, header={**self.header, **more})

    def repeated(self, coarser: int, answer: Payload) -> TrainingQuery:
        """The same query on a coarser grid, about the clients that an answer counts."""
        header = {**self.header, "coarser": coarser}
        if header.pop("tells_covered", False):
            header["counted"] = answer.header["covered"]
        return replace(self, header=header, variant=str(coarser))

    @cached_property
    def _grid(self) -> Mapping[str, int]:
        return grid(self.model.state, self.run.roles, self.coarser)


def members_of(query: RoundQuery, share: Share) -> Members:
    """The clients of an order: those of a share that counted, if a record says so."""
    members = query.run.membership.of(query.round_number, share)
    if counted := query.header.get("counted"):
        return members.among(unpacked(counted, len(members.mask)))
    return members


def partial_of(answer: Payload) -> Partial:
    """The Partial of a checked answer."""
    return Partial.from_wire(answer.header["partial"], answer.tensors)


def _unproven(query: TrainingQuery, answered: Sequence[Answered]) -> dict[str, Exception]:
    """Sites whose sums left the grid's range and were not confirmed, and why.

    Such a sum makes every site train the round again, on a grid that costs precision. So the site
    first trains its own clients again, alone, on coarser grids: the new sum must have the size of
    the old one. A site whose sums disagree, or leave every range, is refused, and the others keep
    their grid. The only site of a query needs no proof.
    """
    timeout_s = query.run.config.participation.deadline_s
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
                continue  # the next order reports it
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
