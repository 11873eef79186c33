"""The coordinator: runs a federation's rounds, until they are all done or a rule ends them.

A round: the model goes to every site, each answers with one exact Partial, the Partials are merged,
the mean update is applied, the new model is judged. What decides (the model, which round is best,
when to stop) depends on exact sums only, so that a run that was interrupted and resumed ends in the
same bits as one that was not, and so does one that lost sites. Orders have keys that a coordinator
started anew finds again. Where a clock decides who counts, that is journaled before it is used, and
read there when the round is run again.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpilot.mediator import FederationMediator, Payload, Share

from .asking import Answers, Asking, Part
from .config.schema import RunConfig
from .core.algorithm import Algorithm, Needs, ServerState
from .core.partial import Partial, Tally, grid
from .core.partial_check import AnswerRefused, checked_partial, checked_tally
from .core.participation import Counted, Rules, least
from .core.sampling import share as share_of
from .core.shares import packed, part_name, told, unpacked
from .core.state import Array, Roles, State, digest
from .core.stopping import Progress
from .errors import FederatedError, NoUsableUpdate, RunRefused
from .run_folder import Checkpoint, RunFolder
from .write_behind import WriteBehind

COARSER_STEP = 8
"""Bits that a grid gives up when a round's sum leaves its range."""
COARSEST = 56
"""Beyond this the updates are no updates any more."""

GIVEN_BACK = 0.1
"""Part of all movable clients that sites which came back are given in a round, at most."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Orders:
    """The orders of one question to the sites: they differ in the clients that they are about."""

    kind: str
    model: GlobalModel
    number: int
    header: Mapping[str, Any]
    variant: str
    """Tells apart what is asked about one model."""
    whole: int
    """Clients that are asked."""
    coordinator: Coordinator

    @property
    def name(self) -> str:
        return f"round {self.number}" if self.kind == "round" else f"judging round {self.number}"

    @property
    def round_number(self) -> int:
        return self.number

    def send(self, site: str, share: Share) -> Future[Payload]:
        return self.coordinator.send(
            self._order(self.kind, share), site, self._key(share), self.model
        )

    def close(self, site: str, share: Share) -> None:
        order = self._order(f"close_{self.kind}", share)
        self.coordinator.send(order, site, f"close/{self._key(share)}", None)

    def check(self, answer: Payload) -> None:
        if self.kind == "round":
            self.coordinator.check_round(answer, self.model, self.header["coarser"], self.whole)
        else:
            checked_tally(answer.header.get("tally"))

    def covered(self, share: Share, answer: Payload) -> int:
        found = answer.header.get("covered", answer.header.get("clients"))
        try:
            covers = found if isinstance(found, int) else unpacked(str(found), self.whole).sum()
        except ValueError as error:
            raise AnswerRefused("who is covered", f"{found!r:.60}", "a bitmap") from error
        return int(covers)

    def site_changed(self) -> None:
        self.coordinator.tell_changes()

    def _order(self, kind: str, share: Share) -> Payload:
        about = {"round": self.number, "model": self.model.digest, "share": told(share)}
        return Payload(kind=kind, header={**about, **self.header})

    def _key(self, share: Share) -> str:
        part = part_name(share, str(self.header.get("counted", "")))
        return f"{self.kind}/{self.number}/{self.model.digest}/{self.variant}/{part}"


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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`cohort`: the clients that a round asks, and how many of them are enough."""
        self._asked, self._enough = cohort
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
        self._on_grid: tuple[tuple[str, int], Mapping[str, int]] = ("", 0), {}
        """The grid looked up last, and of which model."""
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
        self._mediator.rebalance(GIVEN_BACK, round_number=number)
        self.tell_changes()
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
        rules = self._rules_of_training()
        counted = self._written_down("counted", model, number)
        for coarser in range(0, COARSEST + 1, COARSER_STEP):
            header = {
                "coarser": coarser,
                "journal": str(self._folder.journal),
                "execution": execution_of(self._config),
                "oldest_checkpoint": self._oldest_checkpoint(),
            }
            orders = _Orders(
                kind="round",
                model=model,
                number=number,
                header=header,
                variant=str(coarser),
                whole=self._asked,
                coordinator=self,
            )
            answers = self._ask_all(orders, rules, counted)
            if counted is None and rules.by_clock:
                counted = self._write_down(
                    "counted", orders, answers, _covered(answers, self._asked)
                )
            total = _merged([each.payload for each in answers.all])
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
        headers = [each.payload.header for each in answers.all]
        self._client_digests = {k: v for header in headers for k, v in header["digests"].items()}
        return total, sum(header["training_seconds"] for header in headers)

    def _evaluate(self, model: GlobalModel) -> Tally:
        """Judge a model on the coordinator's test set, or at the sites."""
        at_sites = self._config.evaluation.where == "sites"
        number, on = model.round_number, "clients" if at_sites else "test"
        judges = self._judges() if at_sites else 1
        orders = _Orders(
            kind="evaluate",
            model=model,
            number=number,
            header={"on": on},
            variant=on,
            whole=judges,
            coordinator=self,
        )
        wait_s = self._config.participation.wait_for_sites_s
        if at_sites:
            quorum = self._config.participation.quorum
            rules = Rules(whole=judges, enough=judges, least=least(judges, quorum), wait_s=wait_s)
            judged = self._written_down("judged", model, number)
            answers = self._ask_all(orders, rules, judged)
            if judged is None and rules.by_clock:
                share = [each for a in answers.all for each in told(a.part.share)]
                self._write_down("judged", orders, answers, sorted(share))
        else:
            rules = Rules(whole=1, enough=1, least=1, wait_s=wait_s)
            # Whichever site is there judges the whole test set.
            part = Part(site=next(iter(self._mediator.sites), ""), moves=(range(1),))
            answers = Asking(orders, self._mediator, rules, self._clock).answers([part])
        total = Tally()
        for answer in answers.all:
            total.merge(Tally.from_json(answer.payload.header["tally"]))
        return total

    def check_round(self, answer: Payload, model: GlobalModel, coarser: int, clients: int) -> None:
        """AnswerRefused for what cannot be a site's part of a round."""
        checked_partial(
            answer.header,
            answer.tensors,
            exponents=self._grid(model, coarser),
            model=model.state,
            roles=self._roles,
            clients=clients,
            keeps_updates=self._algorithm.needs is Needs.EVERY_UPDATE,
        )

    def _grid(self, model: GlobalModel, coarser: int) -> Mapping[str, int]:
        """The grid that the answers of a round are on."""
        if self._on_grid[0] != (model.digest, coarser):
            self._on_grid = (model.digest, coarser), grid(model.state, self._roles, coarser)
        return self._on_grid[1]

    def _judges(self) -> int:
        """How many clients judge a model at the sites."""
        evaluation, population = self._config.evaluation, self._mediator.assignment.population
        match evaluation.clients:
            case "sampled":
                return self._asked
            case "fraction":
                return share_of(population, evaluation.fraction or 1.0)
            case "all":
                return population

    def _rules_of_training(self) -> Rules:
        participation = self._config.participation
        return Rules(
            whole=self._asked,
            enough=self._enough,
            least=least(self._enough, participation.quorum),
            deadline_s=participation.deadline_s,
            wait_s=participation.wait_for_sites_s,
            closing_s=participation.closing_s,
        )

    # -- orders -------------------------------------------------------------------------------

    def _ask_all(self, orders: _Orders, rules: Rules, counted: Counted | None) -> Answers:
        """Ask every site about its clients; only about those that counted, once that is known."""
        if counted is not None:
            whole = counted.clients
            rules = Rules(whole=whole, enough=whole, least=whole, wait_s=rules.wait_s)
            orders = replace(orders, header={**orders.header, "counted": counted.counted})
        elif rules.by_clock and orders.kind == "round":
            orders = replace(orders, header={**orders.header, "tells_covered": True})
        answers = Asking(orders, self._mediator, rules, self._clock).answers(self._parts())
        if answers.reason:
            self._emit(
                "round_quorum",
                round=orders.number,
                clients=sum(each.clients for each in answers.all),
                of=rules.whole,
                reason=answers.reason,
            )
        return answers

    def _parts(self) -> list[Part]:
        """Every site's clients: those that stay there whatever happens, and the others."""
        assignment = self._mediator.assignment
        if not self._mediator.replaces:
            return [Part(site=site, stays=share) for site, share in assignment.shares.items()]
        return [
            Part(
                site=site,
                stays=assignment.pinned.get(site, ()),
                moves=assignment.movable.get(site, ()),
            )
            for site in assignment.shares
        ]

    def send(
        self, order: Payload, site: str, key: str, model: GlobalModel | None
    ) -> Future[Payload]:
        """Send an order; the model that it is about goes along unless the site has it already."""
        if model is not None and self._at_sites.get(site) != model.digest:
            self._at_sites[site] = model.digest
            order = replace(order, tensors=model.state)
        purpose = PURPOSES[order.kind.removeprefix("close_")]
        return self._mediator.deliver(
            site, order, round_number=order.header["round"], purpose=purpose, key=key
        )

    def tell_changes(self) -> None:
        """Say which sites were lost or came back; neither has any model."""
        for change in self._mediator.drain_changes():
            self._at_sites.pop(change.site, None)
            if change.lost:
                moved = change.clients
                self._emit("site_lost", site=change.site, reason=change.reason, clients=moved)
            else:
                self._emit("site_returned", site=change.site)

    # -- who counted --------------------------------------------------------------------------

    def _write_down(self, what: str, orders: _Orders, answers: Answers, counted: Any) -> Counted:
        """Write down who counted, before anything comes of it."""
        sites: dict[str, int] = {}
        for each in answers.all:
            sites[each.part.site] = sites.get(each.part.site, 0) + each.clients
        made = Counted(
            round_number=orders.number,
            model=orders.model.digest,
            whole=orders.whole,
            clients=sum(sites.values()),
            counted=counted,
            sites=sites,
            reason=answers.reason,
        )
        path = self._path_of(what, orders.number)
        aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        aside.write_text(json.dumps(made.to_json()) + "\n")
        aside.replace(path)
        return made

    def _written_down(self, what: str, model: GlobalModel, number: int) -> Counted | None:
        """Who counted when this round was run before, if a clock decided that."""
        path = self._path_of(what, number)
        if not path.exists():
            return None
        try:
            values = json.loads(path.read_text())
        except ValueError:
            values = None
        found = Counted.from_json(values, str(path))
        if found.model != model.digest:
            raise RunRefused(
                f"{path} says who counted after model {found.model[:12]}, and this is "
                f"{model.digest[:12]}: the run before this one came to another model"
            )
        return found

    def _path_of(self, what: str, number: int) -> Path:
        return self._folder.journal / f"round-{number:06d}.{what}.json"

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


def _covered(answers: Answers, whole: int) -> str:
    """The clients of all answers, as one bitmap of the cohort."""
    masks = [unpacked(each.payload.header["covered"], whole) for each in answers.all]
    return packed(np.flatnonzero(np.any(masks, axis=0)), whole)


def _merged(answers: Sequence[Payload]) -> Partial:
    partials = [Partial.from_wire(a.header["partial"], a.tensors) for a in answers]
    total = partials[0]
    for other in partials[1:]:
        total.merge(other)
    return total


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
