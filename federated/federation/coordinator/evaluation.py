"""EvaluationPhase: has a model judged, on the coordinator's test set or on clients' samples.

Where a clock decides who has judged, the phase journals that, and reads it there when the round is
run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpilot.mediator import FederationMediator, Payload, Share
from fedpilot.mediator.core.assignment import size

from ...config.schema import RunConfig
from ...core.population.cohort_members import Membership
from ...core.population.sampling import Indices, share as share_of
from ...core.population.shares import told
from ...core.rounds.participation import Rules, least
from ...core.sums.partial import Tally
from ...core.sums.partial_check import checked_judged, checked_judges
from ..events import Emit
from ..setup.global_model import GlobalModel
from .gather import Answered, Answers, Part, gather
from .participation_record import CountedRounds, as_counted
from .site_limits import SiteLimits
from .site_orders import EVALUATION, OrderForm, OrderSender


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationQuery:
    """Asks how a model does on samples."""

    form: OrderForm
    whole: int
    """Clients that judge it; 1 on the test set."""
    orders: OrderSender
    limits: SiteLimits
    samples_of: Callable[[Share], Indices] | None
    """How many samples the judges in a share have, -1 if unknown; None where nobody says."""

    @property
    def name(self) -> str:
        return f"judging round {self.round_number}"

    @property
    def round_number(self) -> int:
        return self.form.round_number

    def send(self, site: str, share: Share) -> Future[Payload]:
        return self.orders.send(self.form, site, share)

    def close(self, site: str, share: Share) -> None:
        self.orders.close(self.form, site, share)

    def check(self, share: Share, answer: Payload) -> None:
        samples = None if self.samples_of is None else self.samples_of(share)
        checked_judged(answer.header.get("tally"), samples)

    def covered(self, share: Share, answer: Payload) -> int:
        return checked_judges(answer.header, self.most(share))

    def most(self, share: Share) -> int:
        return min(self.whole, size(share))

    def review(self, answered: Sequence[Answered]) -> Mapping[str, Exception]:
        return {}

    def refused(self, site: str, error: Exception) -> bool:
        return self.limits.refused(site, error, self.round_number)

    def site_changed(self) -> None:
        self.orders.tell_changes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """How a model did."""

    tally: Tally = field(default_factory=Tally)
    not_finite_at: list[str] = field(default_factory=list)
    """The sites on whose samples its loss is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPhase:
    """The evaluation of a run's models."""

    config: RunConfig
    asked: int
    """Clients that a round asks."""
    test_samples: int
    """Of the coordinator's own test set."""
    membership: Membership
    mediator: FederationMediator
    orders: OrderSender
    counted: CountedRounds
    limits: SiteLimits
    emit: Emit
    clock: Callable[[], float]

    def evaluate(self, model: GlobalModel) -> Evaluated:
        at_sites = self.config.evaluation.where == "sites"
        answers = self._at_sites(model) if at_sites else self._on_test_set(model)
        found = Evaluated()
        for answer in answers.all:
            tally = Tally.from_json(answer.payload.header["tally"])
            found.tally.merge(tally)
            if tally.not_finite:
                found.not_finite_at.append(answer.part.site)
        return found

    def _at_sites(self, model: GlobalModel) -> Answers:
        number, judges, header = model.round_number, self._judges(), {"on": "clients"}
        participation = self.config.participation
        rules = Rules(
            whole=judges,
            enough=judges,
            least=least(judges, participation.quorum),
            wait_s=participation.wait_for_sites_s,
        )
        counted = self.counted.read("judged", number, model.digest)
        if counted is not None:
            query = self._query(model, header | {"counted": counted.counted}, judges, None)
            return self._gathered(query, as_counted(counted, rules))
        kind, samples_of = self.config.evaluation.clients, self.membership.judged_samples
        query = self._query(
            model, header, judges, lambda share: samples_of(number, share, judges, kind)
        )
        answers = self._gathered(query, rules)
        if rules.by_clock:
            share = [each for a in answers.all for each in told(a.part.share)]
            about = query.form.about
            self.counted.write("judged", answers, sorted(share), whole=judges, **about)
        return answers

    def _on_test_set(self, model: GlobalModel) -> Answers:
        """Whichever site is there judges the whole test set."""
        samples = np.array([self.test_samples])
        query = self._query(model, {"on": "test"}, 1, lambda share: samples)
        wait_s = self.config.participation.wait_for_sites_s
        part = Part(site=next(iter(self.mediator.membership.sites), ""), moves=(range(1),))
        return self._gathered(query, Rules(whole=1, enough=1, least=1, wait_s=wait_s), [part])

    def _query(
        self,
        model: GlobalModel,
        header: Mapping[str, Any],
        whole: int,
        samples_of: Callable[[Share], Indices] | None,
    ) -> EvaluationQuery:
        form = OrderForm(
            kind=EVALUATION,
            model=model,
            round_number=model.round_number,
            header=header,
            variant=header["on"],
        )
        return EvaluationQuery(
            form=form, whole=whole, orders=self.orders, limits=self.limits, samples_of=samples_of
        )

    def _gathered(
        self, query: EvaluationQuery, rules: Rules, parts: Sequence[Part] | None = None
    ) -> Answers:
        return gather(query, self.mediator, rules, emit=self.emit, clock=self.clock, parts=parts)

    def _judges(self) -> int:
        """How many clients judge a model at the sites."""
        evaluation, population = (
            self.config.evaluation,
            self.mediator.membership.assignment.population,
        )
        match evaluation.clients:
            case "sampled":
                return self.asked
            case "fraction":
                return share_of(population, evaluation.fraction or 1.0)
            case "all":
                return population
