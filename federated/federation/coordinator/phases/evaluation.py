"""EvaluationPhase: evaluates a model, on the coordinator's test set or on clients' samples.

If a clock decides which evaluations count, the phase journals them for a repeated round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpilot.mediator import Payload, Share
from fedpilot.mediator.core.assignment import joined, size

from ....core.population.sampling import Indices, share as share_of
from ....core.population.shares import told
from ....core.rounds.participation import Rules, least
from ....core.sums.partial import Tally
from ....core.sums.partial_check import checked_judged, checked_judges
from ...setup.global_model import GlobalModel
from ..gather import Answered, Answers, Part, gather
from ..participation_record import as_counted
from ..run_context import RoundQuery, RunContext
from ..site_orders import EVALUATION


@dataclass(frozen=True, kw_only=True)
class EvaluationQuery(RoundQuery):
    """Asks sites to evaluate a model on samples."""

    samples_of: Callable[[Share], Indices] | None
    """Share -> samples of its evaluating clients, -1 if unknown; None if all are unknown."""

    @property
    def name(self) -> str:
        return f"judging round {self.round_number}"

    def check(self, share: Share, answer: Payload) -> None:
        samples = None if self.samples_of is None else self.samples_of(share)
        checked_judged(answer.header.get("tally"), samples)

    def covered(self, share: Share, answer: Payload) -> int:
        return checked_judges(answer.header, self.most(share))

    def most(self, share: Share) -> int:
        return min(self.whole, size(share))

    def review(self, answered: Sequence[Answered]) -> Mapping[str, Exception]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPhase:
    """Evaluates a run's models."""

    run: RunContext

    def evaluate(self, model: GlobalModel) -> tuple[Tally, list[str]]:
        """The model's tally, and the sites whose samples gave a loss that is not finite."""
        at_sites = self.run.config.evaluation.where == "sites"
        answers = self._at_sites(model) if at_sites else self._on_test_set(model)
        total, not_finite_at = Tally(), []
        for answer in answers.all:
            tally = Tally.from_json(answer.payload.header["tally"])
            total.merge(tally)
            if tally.not_finite:
                not_finite_at.append(answer.part.site)
        return total, not_finite_at

    def _at_sites(self, model: GlobalModel) -> Answers:
        run, participation = self.run, self.run.config.participation
        number, judges, header = model.round_number, self._judges(), {"on": "clients"}
        rules = Rules(
            whole=judges,
            enough=judges,
            least=least(judges, participation.quorum),
            wait_s=participation.wait_for_sites_s,
        )
        counted = run.counted.read("judged", number, model.digest)
        if counted is not None:
            query = self._query(model, header | {"counted": counted.counted}, judges, None)
            return self._gathered(query, as_counted(counted, rules))
        kind, samples_of = run.config.evaluation.clients, run.membership.judged_samples
        query = self._query(
            model, header, judges, lambda share: samples_of(number, share, judges, kind)
        )
        answers = self._gathered(query, rules)
        if rules.by_clock:
            share = joined(each for answer in answers.all for each in answer.part.share)
            run.counted.write("judged", query, judges, answers, told(share))
        return answers

    def _on_test_set(self, model: GlobalModel) -> Answers:
        """Have any available site evaluate the whole test set."""
        samples = np.array([self.run.test_samples])
        query = self._query(model, {"on": "test"}, 1, lambda share: samples)
        wait_s = self.run.config.participation.wait_for_sites_s
        part = Part(site=next(iter(self.run.mediator.membership.sites), ""), moves=(range(1),))
        return self._gathered(query, Rules(whole=1, enough=1, least=1, wait_s=wait_s), [part])

    def _query(
        self,
        model: GlobalModel,
        header: Mapping[str, Any],
        whole: int,
        samples_of: Callable[[Share], Indices] | None,
    ) -> EvaluationQuery:
        return EvaluationQuery(
            kind=EVALUATION,
            model=model,
            round_number=model.round_number,
            header=header,
            variant=header["on"],
            run=self.run,
            whole=whole,
            samples_of=samples_of,
        )

    def _gathered(
        self, query: EvaluationQuery, rules: Rules, parts: Sequence[Part] | None = None
    ) -> Answers:
        run = self.run
        clock = time.perf_counter
        return gather(query, run.mediator, rules, emit=run.emit, clock=clock, parts=parts)

    def _judges(self) -> int:
        run, evaluation = self.run, self.run.config.evaluation
        population = run.mediator.membership.assignment.population
        match evaluation.clients:
            case "sampled":
                return run.asked
            case "fraction":
                return share_of(
                    run.mediator.membership.assignment.population, evaluation.fraction or 1.0
                )
            case "all":
                return population
