"""TrainingPhase: has the sites train a round, on a coarser grid until the sum of updates fits.

If a clock decides which clients count, the phase journals them before use, for a repeated round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedpilot.mediator import Payload, Share, SiteUnreachable
from fedpilot.mediator.errors import AnswerUnreadable

from ...core.algorithm import Needs
from ...core.population.cohort_members import Members
from ...core.population.shares import packed, unpacked
from ...core.rounds.participation import Rules, least
from ...core.sums.amounts import AnswerRefused, check_repeated
from ...core.sums.partial import COARSER_STEP, COARSEST, Partial, grid
from ...core.sums.partial_check import LimitExceeded, checked_covered, checked_partial
from ...core.sums.staleness import Late, with_late
from ...errors import FederatedError, NoUsableUpdate
from ..run_folder.folder import CHECKPOINTS_KEPT
from ..setup.global_model import GlobalModel
from ..setup.loaded_config import execution_of
from .gather import Answered, Answers, gather
from .participation_record import as_counted
from .run_context import RoundQuery, RunContext
from .site_orders import TRAINING


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
            members=self._members(share),
            # Only an order that a clock may close is answered before all are done.
            all_of_them=not self.header.get("tells_covered", False),
            keeps_updates=self.run.algorithm.needs is Needs.EVERY_UPDATE,
        )
        self.run.limits.check(partial)

    def covered(self, share: Share, answer: Payload) -> int:
        return int(np.count_nonzero(checked_covered(answer.header, self._members(share))))

    def most(self, share: Share) -> int:
        return self._members(share).most

    def review(self, answered: Sequence[Answered]) -> Mapping[str, Exception]:
        if problems := _unproven(self, answered):
            return problems
        parts = [(each.part.site, _partial_of(each.payload)) for each in answered]
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

    def _members(self, share: Share) -> Members:
        members = self.run.membership.of(self.round_number, share)
        if counted := self.header.get("counted"):
            return members.among(unpacked(counted, len(members.mask)))
        return members


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTraining:
    """The result of training a round."""

    total: Partial
    """Over all sites. Late updates in it add their weight but no clients."""
    late: Sequence[Late]
    seconds: float
    """Time that all workers together spent in training arithmetic."""
    by_site: Mapping[str, Any]
    """What each site added, for the round's row; empty if a sum has left its range."""
    digests: dict[str, dict[str, str]]
    squares: float
    """On a graph: the sum of the models' squared distances to the mean before the round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPhase:
    """Trains a run's rounds."""

    run: RunContext

    def train(self, model: GlobalModel) -> RoundTraining:
        """Train the round after this model, on a coarser grid whenever the sum overflows.

        Raises NoUsableUpdate if no client trained, FederatedError for a sum beyond all grids.
        """
        run, number, rules = self.run, model.round_number + 1, self._rules()
        counted = run.counted.read("counted", number, model.digest)
        late = run.counted.late(counted)
        for coarser in range(0, COARSEST + 1, COARSER_STEP):
            query, waits_for = self._query(model, coarser), rules
            if counted is not None:
                query = query.with_header(counted=counted.counted)
                waits_for = as_counted(counted, rules)
            elif rules.by_clock:
                query = query.with_header(tells_covered=True, late_for=run.late.rounds)
            clock = time.perf_counter
            answers = gather(query, run.mediator, waits_for, emit=run.emit, clock=clock)
            if counted is None and rules.by_clock:
                late = run.late.take(number)
                run.late.expect(answers.late)
                covered = _covered(answers, run.asked)
                counted = run.counted.write("counted", query, run.asked, answers, covered, late)
            by_site = self._by_site(number, answers.all)
            total = _merged([each.payload for each in answers.all])
            trained = total.weight
            if not with_late(total, late).overflowed:
                break
            names = list(total.overflowed)
            run.emit("grid_coarsened", round=number, tensors=names, bits=COARSER_STEP)
        else:
            raise FederatedError(
                f"round {number}: the updates of {', '.join(total.overflowed)} are out of any "
                "range; the training diverged (a smaller `training.learning_rate` usually helps)"
            )
        for client_id in total.refused:
            run.emit("update_refused", round=number, client=client_id, reason="not finite")
        if not trained:
            raise NoUsableUpdate(number, total.refused)
        headers = [each.payload.header for each in answers.all]
        return RoundTraining(
            total=total,
            late=late,
            seconds=sum(header["training_seconds"] for header in headers),
            by_site=by_site,
            digests={k: v for header in headers for k, v in header["digests"].items()},
            squares=math.fsum(header.get("squares", 0.0) for header in headers),
        )

    def _query(self, model: GlobalModel, coarser: int) -> TrainingQuery:
        header = {
            "coarser": coarser,
            "journal": str(self.run.folder.journal),
            "execution": execution_of(self.run.config),
            **self._resumable(),
        }
        return TrainingQuery(
            kind=TRAINING,
            model=model,
            round_number=model.round_number + 1,
            header=header,
            variant=str(coarser),
            run=self.run,
            whole=self.run.asked,
        )

    def _rules(self) -> Rules:
        run, participation = self.run, self.run.config.participation
        return Rules(
            whole=run.asked,
            enough=run.enough,
            least=least(run.enough, participation.quorum),
            deadline_s=participation.deadline_s,
            wait_s=participation.wait_for_sites_s,
            closing_s=participation.closing_s,
        )

    def _resumable(self) -> Mapping[str, Any]:
        """The checkpoints to which a resume could go back, where clients keep states.

        While there is one at most, a resume could also begin anew: then the oldest is 0.
        """
        remembers = self.run.config.clients_keep_states
        checkpoints = self.run.folder.checkpoints() if remembers else []
        oldest = checkpoints[0] if len(checkpoints) >= CHECKPOINTS_KEPT else 0
        return {"oldest_checkpoint": oldest, "checkpoints": checkpoints}

    def _by_site(self, number: int, answers: Sequence[Answered]) -> Mapping[str, Any]:
        parts = [(each.part.site, _partial_of(each.payload)) for each in answers]
        if any(partial.overflowed for _, partial in parts):
            return {}
        return self.run.limits.measure(number, parts)


def _covered(answers: Answers, whole: int) -> str:
    """The clients of all answers, as one bitmap of the cohort."""
    masks = [unpacked(each.payload.header["covered"], whole) for each in answers.all]
    return packed(np.flatnonzero(np.any(masks, axis=0)), whole)


def _merged(answers: Sequence[Payload]) -> Partial:
    total, *others = map(_partial_of, answers)
    for other in others:
        total.merge(other)
    return total


def _partial_of(answer: Payload) -> Partial:
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
    open_ = [(each, _partial_of(each.payload)) for each in answered]
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
                check_repeated(before, after := _partial_of(answer))
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
