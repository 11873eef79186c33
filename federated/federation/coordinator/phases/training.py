"""TrainingPhase: has the sites train a round, on a coarser grid until the sum of updates fits.

If a clock decides which clients count, the phase journals them before use, for a repeated round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpilot.mediator import Payload

from ....core.population.federated_data.declarations import Exactness
from ....core.population.shares import packed, unpacked
from ....core.rounds.participation import Rules, least
from ....core.sums.partial import COARSER_STEP, COARSEST, Partial
from ....core.sums.staleness import Late, with_late
from ....errors import FederatedError, NoUsableUpdate
from ...run_folder.folder import CHECKPOINTS_KEPT
from ...setup.global_model import GlobalModel
from ...setup.loaded_config import execution_of
from ..gather import Answered, Answers, gather, mask_of
from ..participation_record import as_counted
from ..run_context import RunContext
from ..site_orders import TRAINING
from .graph_rounds import GraphRounds
from .training_query import TrainingQuery, partial_of


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
    squares: int
    """On a graph: the sum of the models' squared distances to the mean before the round, exact
    (`consensus_distance`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPhase:
    """Trains a run's rounds."""

    run: RunContext
    graph_rounds: GraphRounds | None
    """None if clients share one model."""

    def train(self, model: GlobalModel) -> RoundTraining:
        """Train the round after this model, on a coarser grid whenever the sum overflows.

        Raises NoUsableUpdate if no client trained, FederatedError for a sum beyond all grids.
        """
        run, number = self.run, model.round_number + 1
        rules = self._rules(number)
        counted = run.counted.read("counted", number, model.digest)
        late = run.counted.late(counted)
        for coarser in range(0, COARSEST + 1, COARSER_STEP):
            query, waits_for = self._query(model, coarser), rules
            if counted is not None:
                query = query.with_header(counted=counted.counted)
                waits_for = as_counted(counted, rules)
            elif rules.by_clock and self.graph_rounds is None:
                query = query.with_header(tells_covered=True, late_for=run.late.rounds)
            answers = self._answers(query, waits_for)
            if counted is None and rules.by_clock:
                late = run.late.take(number)
                run.late.expect(answers.late)
                covered = self._covered(answers, run.asked)
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
            squares=sum(header.get("squares", 0) for header in headers),
        )

    def _answers(self, query: TrainingQuery, rules: Rules) -> Answers:
        if self.graph_rounds is not None:
            return self.graph_rounds.answers(query, rules)
        run, clock = self.run, time.perf_counter
        return gather(query, run.mediator, rules, emit=run.emit, clock=clock)

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

    def _rules(self, number: int) -> Rules:
        run, participation = self.run, self.run.config.participation
        # With `gossip` no later round trains: a client that sits this one out never would.
        only_once = number == 1 and run.config.federation.aggregation_strategy == "gossip"
        return Rules(
            whole=run.asked,
            enough=run.enough,
            least=run.enough if only_once else least(run.enough, participation.quorum),
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

    def _covered(self, answers: Answers, whole: int) -> str:
        """The clients of all answers, as one bitmap of the cohort."""
        if self.graph_rounds is not None:
            mask = mask_of([each.part for each in answers.all], whole)
        else:
            covered = [unpacked(each.payload.header["covered"], whole) for each in answers.all]
            mask = np.any(covered, axis=0)
        return packed(np.flatnonzero(mask), whole)

    def _by_site(self, number: int, answers: Sequence[Answered]) -> Mapping[str, Any]:
        parts = [(each.part.site, partial_of(each.payload)) for each in answers]
        if any(partial.overflowed for _, partial in parts):
            return {}
        row, paces = self.run.limits.measure(number, parts), paces_of(answers)
        for site, shown in row["sites"].items():
            # With the pace and the round's seconds, a reader could work out a site's samples.
            exact = self.run.told(site) is Exactness.EXACT
            shown["seconds_per_sample"] = paces.get(site) if exact else None
        return row


def paces_of(answers: Sequence[Answered]) -> dict[str, float]:
    """By site, the seconds that a vnode trained for a sample; without sites that did not train."""
    seconds, samples = Counter[str](), Counter[str]()
    for each in answers:
        seconds[each.part.site] += each.payload.header["training_seconds"]
        samples[each.part.site] += partial_of(each.payload).tally.samples
    return {
        site: float(f"{seconds[site] / count:.4g}")
        for site, count in samples.items()
        if count and seconds[site]
    }


def _merged(answers: Sequence[Payload]) -> Partial:
    total, *others = map(partial_of, answers)
    for other in others:
        total.merge(other)
    return total
