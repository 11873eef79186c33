"""Coordinator: runs a federation's rounds until all are done or a rule ends them.

In a round the sites train the model and each answers with one exact Partial. The coordinator merges
the Partials, applies the mean update and has the new model evaluated. The model, the best round and
the end of the run depend on exact sums only, so a run that was interrupted, or lost sites, ends in
the same bits. Orders have keys, so a restarted coordinator finds them again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ...algorithms import learning_rate
from ...core.planning.measured import site_paces
from ...core.rounds.participation import SiteRefused, TooFewSites
from ...core.rounds.round_costs import Costs
from ...core.state import State, averaged, digest
from ...core.topology.mixing import consensus_distance
from ...errors import ModelNotFinite
from ...prepare.costs import budget_of, judges_of
from ..setup.global_model import GlobalModel
from .phases.evaluation import EvaluationPhase
from .phases.graph_adapting import GraphAdaptation
from .phases.graph_rounds import GraphRounds
from .phases.node_evaluation import NodeEvaluationPhase
from .phases.reassignment import ReassignmentPhase
from .phases.replication import Replication
from .phases.training import RoundTraining, TrainingPhase
from .round_log import RoundLog, model_of
from .run_context import RunContext
from .site_limits import out_for_good
from .traffic_budget import TrafficBudget

GIVEN_BACK = 0.1
"""The largest share of all movable clients that returning sites get back per round."""


class Coordinator:
    """Runs rounds through a mediator and keeps their record in a run folder."""

    def __init__(self, run: RunContext, identity: str) -> None:
        """`identity`, for checkpoints: the hash of everything that decides the run's bits."""
        self._run = run
        self._config = run.config
        self._client_digests: Mapping[str, Mapping[str, str]] = {}
        """Of the last trained round, if the config requests them."""
        self._not_finite_at: Sequence[str] = ()
        """Sites whose samples gave the last evaluated model a loss that is not finite."""
        self._log = RoundLog(run.config, run.folder, identity)
        self._evaluation = EvaluationPhase(run=run)
        self._node_evaluation = NodeEvaluationPhase(run)
        graph = None
        if run.config.federation.is_graph:
            rule, nodes = run.adapting, self._node_evaluation
            graph = GraphRounds(run, None if rule is None else GraphAdaptation(run, rule, nodes))
        self._training = TrainingPhase(run=run, graph_rounds=graph)
        every = run.config.participation.replicate_every
        self._replication = None if every is None else Replication(run, self._log, every)
        self._reassignment = None
        if (every := run.config.participation.reassign_every) is not None:
            self._reassignment = ReassignmentPhase(
                run=run, log=self._log, every=every, replication=self._replication
            )

    def first(self, initial: State) -> GlobalModel:
        """The model that a new run starts from."""
        return GlobalModel(0, initial, self._run.algorithm.init(initial), digest(initial))

    def recovered(self, initial: State) -> GlobalModel:
        """The model from which an interrupted run continues; drops the rows of later rounds.

        Sites that were refused repeatedly stay excluded for the rest of the run.
        """
        for site, reason in out_for_good(self._run.limits.refusals).items():
            self._run.mediator.membership.distrust(site, reason)
        self._run.orders.tell_changes_since_resumed()
        if self._replication is not None:
            self._replication.recover()
        checkpoint = self._log.read_back()
        self._know_paces()
        return self.first(initial) if checkpoint is None else model_of(checkpoint)

    def run(self, model: GlobalModel, moved: Callable[[GlobalModel], None]) -> str:
        """Run the remaining rounds and return why they ended. `moved` gets every new model."""
        run = self._run
        wire, needs = run.mediator.orders.counts_on_the_wire, run.algorithm.needs
        costs = Costs.of(model.state, run.roles, needs, on_the_wire=wire)
        if (budget := budget_of(run.config)).limits_anything:
            run.orders.budget = TrafficBudget(budget, costs, run.folder)
        with self._log.writing():
            try:
                self._book_traffic()  # of the start
                while (reason := self._reason_to_end(model.round_number)) is None:
                    model = self._round_or_back(model)
                    moved(model)
                if self._replication is not None or self._reassignment is not None:
                    self._free_copies(model)
                    self._book_traffic()
            finally:
                self._log.end(model)
        return reason

    def _free_copies(self, model: GlobalModel) -> None:
        """Have sites drop the states of clients that are not theirs."""
        if self._replication is not None:
            self._replication.end(model)
        elif self._reassignment is not None:
            self._reassignment.end(model)

    def _reason_to_end(self, done: int) -> str | None:
        early, last = self._log.progress.stop_reason(), self._config.federation.rounds
        if early is not None:
            return early
        return f"all {last} rounds are done" if done >= last else None

    def _round_or_back(self, model: GlobalModel) -> GlobalModel:
        """The next round's model; after the loss of a site, the model of a replica's round."""
        if self._reassignment is not None:
            self._reassignment.reassign(model)
        if self._replication is None:
            return self._round(model)
        self._replication.replicate(model)
        try:
            return self._round(model)
        except (TooFewSites, SiteRefused) as error:
            return self._replication.go_back(error, model)

    def _round(self, model: GlobalModel) -> GlobalModel:
        if (budget := self._run.orders.budget) is not None:
            self._log.flush()  # the last round's traffic is in the folder before this round's plan
            judges = judges_of(self._config, model.round_number + 1)
            self._run.orders.plan(budget, model, judges, self._run.late.sites())
        row, new = self.step(model)
        self._check_finite(row, new)
        if self._client_digests:
            self._log.add_clients(new.round_number, self._client_digests)
        self._record(row, new)
        return new

    def step(self, model: GlobalModel) -> tuple[dict[str, Any], GlobalModel]:
        """Train and evaluate one round without recording it; return its row and model."""
        run, number, of = self._run, model.round_number + 1, self._config.federation.rounds
        run.mediator.membership.rebalance(GIVEN_BACK, round_number=number)
        run.orders.tell_changes()
        run.emit("round_started", round=number, of=of)
        started = time.perf_counter()
        trained = self._training.train(model)
        self._client_digests = trained.digests
        total, late = trained.total, trained.late
        update = run.algorithm.combine(total)
        # _check_finite checks the whole model and the memory
        with np.errstate(over="ignore", invalid="ignore"):
            state, memory = run.algorithm.apply(model.state, run.roles, model.memory, update)
        for name, largest in total.largest.items():
            state[name] = np.maximum(state[name], largest)
        seconds = time.perf_counter() - started
        new = GlobalModel(number, state, memory, digest(state))
        row: dict[str, Any] = {
            "round": number,
            "clients": total.clients,
            "samples": total.tally.samples
            if run.config.federation.is_graph
            else total.weight - sum(each.weight for each in late),
            "refused": len(total.refused),
            **({"late": sum(each.clients for each in late)} if run.late.rounds else {}),
            "train_loss": _number(total.tally.mean_loss),
            **self._learning_rate(number),
            "seconds": round(seconds, 6),
            "training_seconds": round(trained.seconds, 6),
            "clients_per_second": float(f"{total.clients / seconds:.5g}"),
            "model": new.digest,
            **trained.by_site,
        }
        if run.config.federation.is_graph:
            row["consensus_distance"] = self._apart(trained, model.state, state)
        if self._config.evaluation.is_due(number, of):
            tally, self._not_finite_at = self._evaluation.evaluate(new)
            row |= {"accuracy": tally.accuracy, "loss": _number(tally.mean_loss)}
            if (nodes := self._node_evaluation.evaluate(new)) is not None:
                row["node_accuracy"] = _number(nodes.mean)
                row["worst_node_accuracy"] = _number(nodes.worst_tenth)
        return row, new

    def _learning_rate(self, number: int) -> dict[str, float]:
        training = self._run.config.training
        return (
            {} if training.schedule is None else {"learning_rate": learning_rate(training, number)}
        )

    def _apart(self, trained: RoundTraining, before: State, now: State) -> float | None:
        """How far the clients' models on a graph are from their mean."""
        from ...core.sums.distances import squared_distance

        moved = squared_distance(before, now, averaged(self._run.roles))
        return _number(consensus_distance(trained.squares, trained.total.clients, moved))

    def _check_finite(self, row: Mapping[str, Any], new: GlobalModel) -> None:
        """Raise ModelNotFinite for a model or a memory beyond repair; the last ones stay."""
        name = _not_finite(new.state)
        kept = _not_finite(new.memory)  # squares overflow first, and would stop the model
        if name is None and kept is None and row.get("loss", 0.0) is not None:
            return
        what = f"{name} is not finite"
        if name is None and kept is not None:
            what = f"{kept}, in the server's memory, is not finite"
        elif name is None:
            what = f"its loss is not finite, by the word of {', '.join(self._not_finite_at)}"
        raise ModelNotFinite(new.round_number, what, self._run.limits.blamed())

    def _record(self, row: dict[str, Any], model: GlobalModel) -> None:
        row["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._log.add(row, model)
        self._know_paces()
        self._book_traffic()
        if model.round_number % self._config.outputs.checkpoint_every == 0:
            self._log.checkpoint(model)
        fields = {k: v for k, v in row.items() if k != "time"}
        self._run.emit("round_finished", of=self._config.federation.rounds, **fields)

    def _know_paces(self) -> None:
        paces = site_paces(self._log.latest, datetime.now(UTC))
        self._run.mediator.membership.know_paces(paces)

    def _book_traffic(self) -> None:
        flows, budget = self._run.mediator.orders.drain_traffic(), self._run.orders.budget
        if budget is not None:
            budget.book(flows)
        self._log.add_traffic(flows, None if budget is None else budget.written)


def _not_finite(arrays: State) -> str | None:
    """The first tensor that has a number that is not finite."""
    return next((name for name, array in arrays.items() if not np.isfinite(array).all()), None)


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
