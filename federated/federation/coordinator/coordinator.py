"""The coordinator: runs a federation's rounds, until they are all done or a rule ends them.

A round: the sites train the model, each answers with one exact Partial, the Partials are merged,
the mean update is applied, the new model is judged. What decides (the model, which round is best,
when to stop) depends on exact sums only, so that a run that was interrupted and resumed ends in the
same bits as one that was not, and so does one that lost sites. Orders have keys that a coordinator
started anew finds again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fedpilot.mediator import FederationMediator

from ...config.schema import RunConfig
from ...core.algorithm import Algorithm, Needs
from ...core.population.cohort_members import Membership
from ...core.population.federated_data.declarations import Told
from ...core.rounds.round_costs import Costs
from ...core.rounds.stopping import Progress
from ...core.state import Roles, State, digest
from ...errors import ModelNotFinite
from ...prepare.budgets import budget_of, judges_of
from ..events import Emit
from ..run_folder.folder import RunFolder
from ..setup.global_model import GlobalModel
from .evaluation import EvaluationPhase
from .late_orders import LateOrders
from .participation_record import CountedRounds
from .round_log import RoundLog
from .site_limits import SiteLimits
from .site_orders import OrderSender
from .traffic_budget import Meter
from .training import TrainingPhase, UpdateRules

GIVEN_BACK = 0.1
"""Part of all movable clients that sites which came back are given in a round, at most."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How the rounds ended."""

    reason: str
    model: GlobalModel
    progress: Progress
    rows: list[dict[str, Any]]


class Coordinator:
    """Runs rounds through a mediator and keeps their record in a run folder."""

    def __init__(
        self,
        config: RunConfig,
        *,
        roles: Roles,
        algorithm: Algorithm,
        mediator: FederationMediator,
        folder: RunFolder,
        identity: str,
        emit: Emit,
        cohort: tuple[int, int],
        membership: Membership,
        test_samples: int = 0,
        told: Callable[[str], Told] = lambda site: Told.EXACT,
    ) -> None:
        """`cohort`: the clients that a round asks, and how many of them are enough; `membership`
        says who they are, `told` how a site's part of the samples may be told. The coordinator's
        own test set has so many `test_samples`.
        """
        asked, enough = cohort
        self._config = config
        self._roles = roles
        self._algorithm = algorithm
        self._mediator = mediator
        self._folder = folder
        self._emit = emit
        self._client_digests: Mapping[str, Mapping[str, str]] = {}
        """Of the round trained last, if the config asks for them."""
        self._not_finite_at: Sequence[str] = ()
        """Sites on whose samples the loss of the model judged last is not finite."""
        self._log = RoundLog(config, folder, identity)
        self._limits = SiteLimits(config.robustness, folder.journal, emit, told)
        self._late = LateOrders(config.participation, mediator, emit)
        self._orders = OrderSender(mediator, emit, asked)
        counted = CountedRounds(folder.journal)
        self._training = TrainingPhase(
            config=config,
            asked=asked,
            enough=enough,
            rules=UpdateRules(
                roles=roles,
                keeps_updates=algorithm.needs is Needs.EVERY_UPDATE,
                membership=membership,
                limits=self._limits,
                proof_s=config.participation.deadline_s,
            ),
            mediator=mediator,
            folder=folder,
            orders=self._orders,
            counted=counted,
            late=self._late,
            emit=emit,
            clock=time.perf_counter,
        )
        self._evaluation = EvaluationPhase(
            config=config,
            asked=asked,
            test_samples=test_samples,
            membership=membership,
            mediator=mediator,
            orders=self._orders,
            counted=counted,
            limits=self._limits,
            emit=emit,
            clock=time.perf_counter,
        )

    def first(self, initial: State) -> GlobalModel:
        """The model that a new run starts from."""
        return GlobalModel(0, initial, self._algorithm.init(initial), digest(initial))

    def recovered(self, initial: State) -> GlobalModel:
        """The model that an interrupted run continues from; its later metrics are forgotten.

        Sites that were refused repeatedly take no part in what is left of the run either.
        """
        for site, reason in self._limits.out_for_good().items():
            self._mediator.membership.distrust(site, reason)
        checkpoint = self._log.read_back()
        if checkpoint is None:
            return self.first(initial)
        return GlobalModel(
            checkpoint.round_number, checkpoint.model, checkpoint.memory, digest(checkpoint.model)
        )

    def run(self, model: GlobalModel, moved: Callable[[GlobalModel], None]) -> Finished:
        """Run what is left of the rounds; `moved` is told every new model."""
        wire, needs = self._mediator.orders.counts_on_the_wire, self._algorithm.needs
        costs = Costs.of(model.state, self._roles, needs, on_the_wire=wire)
        meter = self._orders.meter = Meter(budget_of(self._config), costs, self._folder)
        with self._log.writing():
            try:
                self._book_traffic(meter)  # of the start
                while (reason := self._reason_to_end(model.round_number)) is None:
                    model = self._round(model, meter)
                    moved(model)
            finally:
                self._log.end(model)
        return Finished(reason, model, self._log.progress, self._log.rows)

    def _reason_to_end(self, done: int) -> str | None:
        early, last = self._log.progress.stop_reason(), self._config.federation.rounds
        if early is not None:
            return early
        return f"all {last} rounds are done" if done >= last else None

    def _round(self, model: GlobalModel, meter: Meter) -> GlobalModel:
        if meter.limited:
            self._log.flush()  # what the last round cost is in the folder before this one's plan
            judges = judges_of(self._config, model.round_number + 1)
            self._orders.plan(meter, model, judges, self._late.sites())
        row, new = self.step(model)
        self._check_finite(row, new)
        if self._client_digests:
            self._log.add_clients(new.round_number, self._client_digests)
        self._record(row, new, meter)
        return new

    def step(self, model: GlobalModel) -> tuple[dict[str, Any], GlobalModel]:
        """Train and judge one round, and record nothing of it: its row and its model."""
        number, of = model.round_number + 1, self._config.federation.rounds
        self._mediator.membership.rebalance(GIVEN_BACK, round_number=number)
        self._orders.tell_changes()
        self._emit("round_started", round=number, of=of)
        started = time.perf_counter()
        trained = self._training.train(model)
        self._client_digests = trained.digests
        total, late = trained.total, trained.late
        update = self._algorithm.combine(total)
        with np.errstate(over="ignore"):  # whether the model is finite is looked at as a whole
            state, memory = self._algorithm.apply(model.state, self._roles, model.memory, update)
        for name, largest in total.largest.items():
            state[name] = np.maximum(state[name], largest)
        seconds = time.perf_counter() - started
        new = GlobalModel(number, state, memory, digest(state))
        row: dict[str, Any] = {
            "round": number,
            "clients": total.clients,
            "samples": total.weight - sum(each.weight for each in late),
            "refused": len(total.refused),
            **({"late": sum(each.clients for each in late)} if self._late.rounds else {}),
            "train_loss": _number(total.tally.mean_loss),
            "seconds": round(seconds, 6),
            "training_seconds": round(trained.seconds, 6),
            "clients_per_second": float(f"{total.clients / seconds:.5g}"),
            "model": new.digest,
            **trained.by_site,
        }
        if self._config.evaluation.is_due(number, of):
            found = self._evaluation.evaluate(new)
            self._not_finite_at = found.not_finite_at
            row |= {"accuracy": found.tally.accuracy, "loss": _number(found.tally.mean_loss)}
        return row, new

    def _check_finite(self, row: Mapping[str, Any], new: GlobalModel) -> None:
        """ModelNotFinite for a model that no round could mend; the one before it stays the last."""
        name = next((n for n, a in new.state.items() if not np.isfinite(a).all()), None)
        if name is None and row.get("loss", 0.0) is not None:
            return
        what = f"{name} is not finite"
        if name is None:
            what = f"its loss is not finite, by the word of {', '.join(self._not_finite_at)}"
        raise ModelNotFinite(new.round_number, what, self._limits.blamed())

    def _record(self, row: dict[str, Any], model: GlobalModel, meter: Meter) -> None:
        row["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._log.add(row, model)
        self._book_traffic(meter)
        if model.round_number % self._config.outputs.checkpoint_every == 0:
            self._log.checkpoint(model)
        fields = {k: v for k, v in row.items() if k != "time"}
        self._emit("round_finished", of=self._config.federation.rounds, **fields)

    def _book_traffic(self, meter: Meter) -> None:
        """Record what has crossed since the last time."""
        flows = self._mediator.orders.drain_traffic()
        meter.book(flows)
        self._log.add_traffic(flows, meter.written)


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
