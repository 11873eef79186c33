"""The coordinator: runs a federation's rounds, until they are all done or a rule ends them.

A round: the model goes to every site, each answers with one exact Partial, the Partials are merged,
the mean update is applied, the new model is judged. What decides (the model, which round is best,
when to stop) depends on exact sums only, so that a run that was interrupted and resumed ends in the
same bits as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from fedpilot.mediator import FederationMediator, Payload

from .config.schema import RunConfig
from .core.algorithm import Algorithm, ServerState
from .core.partial import Partial, Tally
from .core.state import Array, Roles, State, digest
from .core.stopping import Progress
from .errors import FederatedError, NoUsableUpdate
from .run_folder import Checkpoint, RunFolder
from .write_behind import WriteBehind

COARSER_STEP = 8
"""Bits that a grid gives up when a round's sum leaves its range."""
COARSEST = 56
"""Beyond this the updates are no updates any more."""

PURPOSES = {"round": "training", "evaluate": "evaluation"}
"""What an order's bytes are booked under."""

Emit = Callable[..., None]


@dataclass(frozen=True, slots=True)
class GlobalModel:
    """The federation's model after some round."""

    round_number: int
    state: Mapping[str, Array]
    memory: ServerState
    digest: str


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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = config
        self._roles = roles
        self._algorithm = algorithm
        self._mediator = mediator
        self._folder = folder
        self._identity = identity
        self._emit = emit
        self._clock = clock
        self._rows: list[dict[str, Any]] = []
        self._saved_round = -1
        self._client_digests: dict[str, dict[str, str]] = {}
        """Of the round trained last, if the config asks for them."""
        self._at_sites: dict[str, str] = {}
        """Digest of the model that each site was sent last."""
        stopping = config.evaluation.early_stopping
        self._progress = Progress(
            metric=config.evaluation.metric,
            patience=stopping.patience if stopping else None,
            min_delta=stopping.min_delta if stopping else 0.0,
            target=stopping.target if stopping else None,
        )

    def first(self, initial: State) -> GlobalModel:
        """The model that a new run starts from."""
        return GlobalModel(0, initial, self._algorithm.init(initial), digest(initial))

    def recovered(self, initial: State) -> GlobalModel:
        """The model that an interrupted run continues from; its later metrics are forgotten."""
        checkpoint = self._folder.load_checkpoint()
        if checkpoint is None:
            self._folder.rewind(0)
            return self.first(initial)
        self._rows = self._folder.rewind(checkpoint.round_number)
        for row in self._rows:
            self._judge(row)
        self._saved_round = checkpoint.round_number
        return GlobalModel(
            checkpoint.round_number, checkpoint.model, checkpoint.memory, digest(checkpoint.model)
        )

    def run(self, model: GlobalModel, moved: Callable[[GlobalModel], None]) -> Finished:
        """Run what is left of the rounds; `moved` is told every new model."""
        last = self._config.federation.rounds
        self._writes = WriteBehind()
        with closing(self._writes):
            try:
                while (reason := self._reason_to_end(model.round_number, last)) is None:
                    model = self._round(model)
                    moved(model)
            finally:
                self._checkpoint(model)
                self._writes.put(partial(self._save_model, "model", model))
                self._writes.flush()
        return Finished(reason, model, self._progress, self._rows)

    def _reason_to_end(self, done: int, last: int) -> str | None:
        early = self._progress.stop_reason()
        if early is not None:
            return early
        return f"all {last} rounds are done" if done >= last else None

    def _round(self, model: GlobalModel) -> GlobalModel:
        row, new = self.step(model)
        if self._client_digests:
            number, digests = new.round_number, self._client_digests
            self._writes.put(partial(self._folder.append_clients, number, digests))
        self._record(row, new)
        return new

    def step(self, model: GlobalModel) -> tuple[dict[str, Any], GlobalModel]:
        """Train and judge one round, and record nothing of it: its row and its model."""
        number = model.round_number + 1
        self._emit("round_started", round=number, of=self._config.federation.rounds)
        started = self._clock()
        total, took = self._train(model, number)
        update = self._algorithm.combine(total)
        state, memory = self._algorithm.apply(model.state, self._roles, model.memory, update)
        for name, largest in total.largest.items():
            state[name] = np.maximum(state[name], largest)
        seconds = self._clock() - started
        new = GlobalModel(number, state, memory, digest(state))
        row: dict[str, Any] = {
            "round": number,
            "clients": total.clients,
            "samples": total.weight,
            "refused": len(total.refused),
            "train_loss": _number(total.tally.mean_loss),
            "seconds": round(seconds, 6),
            "training_seconds": round(took, 6),
            "clients_per_second": round(total.clients / seconds, 1),
            "model": new.digest,
        }
        if self._due(number):
            tally = self._evaluate(new)
            row |= {"accuracy": tally.accuracy, "loss": _number(tally.mean_loss)}
        return row, new

    def _train(self, model: GlobalModel, number: int) -> tuple[Partial, float]:
        """The round's sum over all sites, on a coarser grid whenever it overflows.

        With the seconds that workers spent in the arithmetic of training, all together.
        """
        for coarser in range(0, COARSEST + 1, COARSER_STEP):
            header = {
                "coarser": coarser,
                "journal": str(self._folder.journal),
                "execution": execution_of(self._config),
                "oldest_checkpoint": self._oldest_checkpoint(),
            }
            answers = self._ask_all("round", number, model, header)
            total = _merged(answers)
            if not total.overflowed:
                break
            names = list(total.overflowed)
            self._emit("grid_coarsened", round=number, tensors=names, bits=COARSER_STEP)
        else:
            raise FederatedError(
                f"round {number}: the updates of {', '.join(total.overflowed)} are out of any "
                "range; the training diverged (a smaller `training.learning_rate` usually helps)"
            )
        for client_id in total.refused:
            self._emit("update_refused", round=number, client=client_id, reason="not finite")
        if not total.weight:
            raise NoUsableUpdate(number, total.refused)
        self._client_digests = {k: v for a in answers for k, v in a.header["digests"].items()}
        return total, sum(answer.header["training_seconds"] for answer in answers)

    def _evaluate(self, model: GlobalModel) -> Tally:
        """Judge a model on the coordinator's test set, or at the sites."""
        at_sites = self._config.evaluation.where == "sites"
        number, header = model.round_number, {"on": "clients" if at_sites else "test"}
        if at_sites:
            answers = self._ask_all("evaluate", number, model, header)
        else:
            first = self._mediator.sites[0]
            answers = [self._ask(first, "evaluate", number, model, header).result()]
        total = Tally()
        for answer in answers:
            total.merge(Tally.from_json(answer.header["tally"]))
        return total

    def _ask_all(
        self, kind: str, number: int, model: GlobalModel, header: Mapping[str, Any]
    ) -> list[Payload]:
        asked = [self._ask(site, kind, number, model, header) for site in self._mediator.sites]
        return [answer.result() for answer in asked]

    def _ask(
        self, site: str, kind: str, number: int, model: GlobalModel, header: Mapping[str, Any]
    ) -> Future[Payload]:
        """Send an order about a model, which goes along unless the site has it already."""
        known = self._at_sites.get(site) == model.digest
        self._at_sites[site] = model.digest
        order = Payload(
            kind=kind,
            header={"round": number, "model": model.digest, **header},
            tensors={} if known else model.state,
        )
        return self._mediator.deliver(site, order, round_number=number, purpose=PURPOSES[kind])

    def _due(self, number: int) -> bool:
        every, last = self._config.evaluation.every, self._config.federation.rounds
        return number % every == 0 or number == last

    def _judge(self, row: Mapping[str, Any]) -> bool:
        """Take a row's evaluation into account; whether it is the best so far."""
        metric = self._config.evaluation.metric
        if metric not in row:
            return False
        value = math.nan if row[metric] is None else row[metric]
        self._progress = self._progress.after(row["round"], value)
        return self._progress.best_round == int(row["round"])

    def _record(self, row: dict[str, Any], model: GlobalModel) -> None:
        row["time"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        is_best = self._judge(row)
        if self._progress.best_round:
            row |= {"best": self._progress.best, "best_round": self._progress.best_round}
        if is_best:
            self._writes.put(partial(self._save_model, "best", model), instead_of="best")
        self._rows.append(row)
        traffic = [
            (flow.round_number, flow.site, flow.direction, flow.purpose, nbytes)
            for flow, nbytes in self._mediator.drain_traffic()
        ]
        self._writes.put(partial(self._folder.append_row, row))
        self._writes.put(partial(self._folder.append_traffic, traffic))
        if model.round_number % self._config.outputs.checkpoint_every == 0:
            self._checkpoint(model)
        fields = {k: v for k, v in row.items() if k != "time"}
        self._emit("round_finished", of=self._config.federation.rounds, **fields)

    def _checkpoint(self, model: GlobalModel) -> None:
        if model.round_number == self._saved_round:
            return
        checkpoint = Checkpoint(
            model.round_number, self._identity, dict(model.state), dict(model.memory)
        )
        save = partial(self._folder.save_checkpoint, checkpoint)
        self._writes.put(save, instead_of="checkpoint")
        self._saved_round = model.round_number

    def _oldest_checkpoint(self) -> int:
        """The earliest round that a resume could go back to; only clients with memories care."""
        remembers = self._config.training.client_update is not None
        return self._folder.oldest_checkpoint() if remembers else 0

    def _save_model(self, name: str, model: GlobalModel) -> None:
        self._folder.save_model(name, model.state, model.round_number)


def execution_of(config: RunConfig) -> list[Any]:
    """What an order says of how to compute a chunk."""
    return [config.training.execution, config.training.chunk_size]


def _merged(answers: list[Payload]) -> Partial:
    partials = [Partial.from_wire(a.header["partial"], a.tensors) for a in answers]
    total = partials[0]
    for other in partials[1:]:
        total.merge(other)
    return total


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
