"""The coordinator: runs a federation's rounds, until they are all done or a rule ends them.

A round: the model goes to every site, each answers with one exact Partial, the Partials are merged,
the mean update is applied, the new model is judged. What decides (the model, which round is best,
when to stop) depends on exact sums only, so that a run that was interrupted and resumed ends in the
same bits as one that was not, and so does one that lost sites. Orders have keys that a coordinator
started anew finds again. Where a clock decides who counts, that is journaled before it is used, and
read there when the round is run again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from fedpilot.mediator import ChangeKind, FederationMediator, Payload, Share
from fedpilot.mediator.core.assignment import size

from ...config.schema import RunConfig
from ...core.algorithm import Algorithm, Needs, ServerState
from ...core.population.cohort_members import Members, Membership
from ...core.population.federated_data.declarations import Told
from ...core.population.sampling import Indices, share as share_of
from ...core.population.shares import packed, part_name, told, unpacked
from ...core.rounds.participation import Counted, Rules, least
from ...core.rounds.round_costs import Costs
from ...core.rounds.stopping import Progress
from ...core.state import Array, Roles, State, digest
from ...core.sums.partial import COARSER_STEP, COARSEST, Partial, Tally, grid
from ...core.sums.partial_check import (
    checked_covered,
    checked_judged,
    checked_judges,
    checked_partial,
)
from ...core.sums.staleness import Late, with_late
from ...errors import FederatedError, ModelNotFinite, NoUsableUpdate
from ...prepare.budgets import budget_of, judges_of
from ..run_folder.folder import Checkpoint, RunFolder
from ..run_folder.write_behind import WriteBehind
from .gather import Answered, Answers, Asking, Part
from .late_orders import LateOrders
from .overflow_proof import partial_of, unproven
from .participation_record import CountedRounds
from .site_limits import SiteLimits
from .traffic_budget import Meter

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

    @property
    def about(self) -> dict[str, Any]:
        """What a record of who counted says of them."""
        return {"round_number": self.number, "model": self.model.digest, "whole": self.whole}

    def send(self, site: str, share: Share) -> Future[Payload]:
        return self.coordinator.send(
            self._order(self.kind, share), site, self._key(share), self.model
        )

    def close(self, site: str, share: Share) -> None:
        order = self._order(f"close_{self.kind}", share)
        self.coordinator.send(order, site, f"close/{self._key(share)}", None)

    def check(self, share: Share, answer: Payload) -> None:
        if self.kind != "round":
            on_test = self.header["on"] == "test"
            samples = None
            if "counted" not in self.header:
                samples = self.coordinator.judged_samples(self.number, share, on_test=on_test)
            checked_judged(answer.header.get("tally"), samples)
            return
        # Only what a clock may close is answered before all are done.
        all_of_them = not self.header.get("tells_covered", False)
        self.coordinator.check_round(
            answer, self.model, self.header["coarser"], self._members(share), all_of_them
        )

    def covered(self, share: Share, answer: Payload) -> int:
        if self.kind != "round":
            return checked_judges(answer.header, self.most(share))
        return int(np.count_nonzero(checked_covered(answer.header, self._members(share))))

    def most(self, share: Share) -> int:
        if self.kind != "round":
            return min(self.whole, size(share))
        return self._members(share).most

    def _members(self, share: Share) -> Members:
        members = self.coordinator.members(self.number, share)
        if counted := self.header.get("counted"):
            return members.among(unpacked(counted, len(members.mask)))
        return members

    def review(self, answered: Sequence[Answered]) -> Mapping[str, Exception]:
        return self.coordinator.review(self, answered) if self.kind == "round" else {}

    def refused(self, site: str, error: Exception) -> bool:
        return self.coordinator.limits.refused(site, error, self.number)

    def site_changed(self) -> None:
        self.coordinator.tell_changes()

    @property
    def coarser(self) -> int:
        return int(self.header["coarser"])

    def repeated(self, coarser: int, answer: Payload) -> _Orders:
        """The same on a coarser grid, about the clients that an answer counts."""
        header = {**self.header, "coarser": coarser}
        if header.pop("tells_covered", False):
            header["counted"] = answer.header["covered"]
        return replace(self, header=header, variant=str(coarser))

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
        membership: Membership,
        test_samples: int = 0,
        told: Callable[[str], Told] = lambda site: Told.EXACT,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`cohort`: the clients that a round asks, and how many of them are enough; `membership`
        says who they are, `told` how a site's part of the samples may be told. The coordinator's
        own test set has so many `test_samples`.
        """
        self._asked, self._enough = cohort
        self._membership, self._test_samples = membership, test_samples
        self.members = membership.of
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
        self._not_finite_at: list[str] = []
        """Sites on whose samples the loss of the model judged last is not finite."""
        self._at_sites: dict[str, str] = {}
        """Digest of the model that each site was sent last."""
        self._counted = CountedRounds(folder.journal)
        self.limits = SiteLimits(config.robustness, folder.journal, emit, told)
        self._late = LateOrders(config.participation, mediator, emit)
        self._meter: Meter | None = None
        """Whom to ask before anything is sent, while a run goes on."""
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
        """The model that an interrupted run continues from; its later metrics are forgotten.

        Sites that were refused repeatedly take no part in what is left of the run either.
        """
        for site, reason in self.limits.out_for_good().items():
            self._mediator.distrust(site, reason)
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
        wire, needs = self._mediator.counts_on_the_wire, self._algorithm.needs
        costs = Costs.of(model.state, self._roles, needs, on_the_wire=wire)
        self._meter = Meter(budget_of(self._config), costs, self._folder)
        self._writes = WriteBehind()
        with closing(self._writes):
            try:
                self._book_traffic()  # of the start
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
        self._ask_for_round(model, model.round_number + 1)
        row, new = self.step(model)
        self._check_finite(row, new)
        if self._client_digests:
            number, digests = new.round_number, self._client_digests
            self._writes.put(partial(self._folder.append_clients, number, digests))
        self._record(row, new)
        return new

    def _check_finite(self, row: Mapping[str, Any], new: GlobalModel) -> None:
        """ModelNotFinite for a model that no round could mend; the one before it stays the last."""
        name = next((n for n, a in new.state.items() if not np.isfinite(a).all()), None)
        if name is None and row.get("loss", 0.0) is not None:
            return
        what = f"{name} is not finite"
        if name is None:
            what = f"its loss is not finite, by the word of {', '.join(self._not_finite_at)}"
        raise ModelNotFinite(new.round_number, what, self.limits.blamed())

    def _ask_for_round(self, model: GlobalModel, number: int) -> None:
        """Have the budget allow all that the round is known to cost; TrafficSpent."""
        if self._meter is None or not self._meter.limited:
            return
        self._writes.flush()  # what the last round cost is in the folder before this one's plan
        self.tell_changes()
        shares = self._mediator.assignment.shares
        self._meter.plan(
            number,
            {site: min(self._asked, size(shares.get(site, ()))) for site in self._mediator.sites},
            having=[site for site, known in self._at_sites.items() if known == model.digest],
            judges=judges_of(self._config, number),
            late=self._late.sites(),
        )

    def step(self, model: GlobalModel) -> tuple[dict[str, Any], GlobalModel]:
        """Train and judge one round, and record nothing of it: its row and its model."""
        number = model.round_number + 1
        self._mediator.rebalance(GIVEN_BACK, round_number=number)
        self.tell_changes()
        self._emit("round_started", round=number, of=self._config.federation.rounds)
        started = self._clock()
        total, late, took, added = self._train(model, number)
        update = self._algorithm.combine(total)
        with np.errstate(over="ignore"):  # whether the model is finite is looked at as a whole
            state, memory = self._algorithm.apply(model.state, self._roles, model.memory, update)
        for name, largest in total.largest.items():
            state[name] = np.maximum(state[name], largest)
        seconds = self._clock() - started
        new = GlobalModel(number, state, memory, digest(state))
        row: dict[str, Any] = {
            "round": number,
            "clients": total.clients,
            "samples": total.weight - sum(each.weight for each in late),
            "refused": len(total.refused),
            **({"late": sum(each.clients for each in late)} if self._late.rounds else {}),
            "train_loss": _number(total.tally.mean_loss),
            "seconds": round(seconds, 6),
            "training_seconds": round(took, 6),
            "clients_per_second": float(f"{total.clients / seconds:.5g}"),
            "model": new.digest,
            **added,
        }
        if self._due(number):
            tally = self._evaluate(new)
            row |= {"accuracy": tally.accuracy, "loss": _number(tally.mean_loss)}
        return row, new

    def _train(
        self, model: GlobalModel, number: int
    ) -> tuple[Partial, list[Late], float, Mapping[str, Any]]:
        """The round's sum over all sites, on a coarser grid whenever it overflows.

        With the late updates in it, which weigh what they say and stand for nobody, the seconds
        that workers spent in the arithmetic of training, all together, and what each site added.
        """
        rules = self._rules_of_training()
        counted = self._counted.read("counted", number, model.digest)
        late = self._counted.late(counted)
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
                late = self._late.take(number)
                self._late.expect(orders, answers.late)
                counted = self._counted.write(
                    "counted", answers, _covered(answers, self._asked), late=late, **orders.about
                )
            added = self._added(number, answers.all)
            total = _merged([each.payload for each in answers.all])
            trained = total.weight
            if not with_late(total, late).overflowed:
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
        if not trained:
            raise NoUsableUpdate(number, total.refused)
        headers = [each.payload.header for each in answers.all]
        self._client_digests = {k: v for header in headers for k, v in header["digests"].items()}
        return total, late, sum(header["training_seconds"] for header in headers), added

    def _added(self, number: int, answers: Sequence[Answered]) -> Mapping[str, Any]:
        """What each site added to a round, for its row; nothing where a sum has left its range."""
        parts = [(each.part.site, partial_of(each.payload)) for each in answers]
        if any(partial.overflowed for _, partial in parts):
            return {}
        return self.limits.measure(number, parts)

    def review(self, orders: _Orders, answered: Sequence[Answered]) -> Mapping[str, Exception]:
        """The sites whose part of a round does not count beside the others', and why."""
        if problems := unproven(orders, answered, self._config.participation.deadline_s):
            return problems
        return self.limits.exceeded(
            (orders.number, orders.coarser),
            [(each.part.site, partial_of(each.payload)) for each in answered],
        )

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
            judged = self._counted.read("judged", number, model.digest)
            answers = self._ask_all(orders, rules, judged)
            if judged is None and rules.by_clock:
                share = [each for a in answers.all for each in told(a.part.share)]
                self._counted.write("judged", answers, sorted(share), **orders.about)
        else:
            rules = Rules(whole=1, enough=1, least=1, wait_s=wait_s)
            # Whichever site is there judges the whole test set.
            part = Part(site=next(iter(self._mediator.sites), ""), moves=(range(1),))
            answers = Asking(orders, self._mediator, rules, self._clock).answers([part])
        total = Tally()
        self._not_finite_at = []
        for answer in answers.all:
            tally = Tally.from_json(answer.payload.header["tally"])
            total.merge(tally)
            if tally.not_finite:
                self._not_finite_at.append(answer.part.site)
        return total

    def check_round(
        self,
        answer: Payload,
        model: GlobalModel,
        coarser: int,
        members: Members,
        all_of_them: bool,
    ) -> None:
        """AnswerRefused for what cannot be a site's part of a round, about these clients."""
        partial = checked_partial(
            answer.header,
            answer.tensors,
            exponents=self._grid(model, coarser),
            model=model.state,
            roles=self._roles,
            members=members,
            all_of_them=all_of_them,
            keeps_updates=self._algorithm.needs is Needs.EVERY_UPDATE,
        )
        self.limits.check(partial)

    def _grid(self, model: GlobalModel, coarser: int) -> Mapping[str, int]:
        """The grid that the answers of a round are on."""
        if self._on_grid[0] != (model.digest, coarser):
            self._on_grid = (model.digest, coarser), grid(model.state, self._roles, coarser)
        return self._on_grid[1]

    def judged_samples(self, number: int, share: Share, *, on_test: bool) -> Indices:
        """How many samples a site judges a model on, of each client; -1 if unknown."""
        if on_test:
            return np.array([self._test_samples])
        kind = self._config.evaluation.clients
        return self._membership.judged_samples(number, share, self._judges(), kind)

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
            more = {"tells_covered": True, "late_for": self._late.rounds}
            orders = replace(orders, header={**orders.header, **more})
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
        if model is not None:
            new = self._at_sites.get(site) != model.digest
            if self._meter is not None:
                clients = _clients_of(order, self._asked) if order.kind == "round" else None
                number = order.header["round"]
                self._meter.ask(number, site, with_model=new, clients=clients)
            if new:
                self._at_sites[site] = model.digest
                order = replace(order, tensors=model.state)
        purpose = PURPOSES[order.kind.removeprefix("close_")]
        return self._mediator.deliver(
            site, order, round_number=order.header["round"], purpose=purpose, key=key
        )

    def tell_changes(self) -> None:
        """Say which sites went or came back; neither has any model."""
        for change in self._mediator.drain_changes():
            self._at_sites.pop(change.site, None)
            went = {"site": change.site, "reason": change.reason, "clients": change.clients}
            match change.kind:
                case ChangeKind.LOST:
                    self._emit("site_lost", **went)
                case ChangeKind.DRAINED:
                    self._emit("site_drained", **went)
                case ChangeKind.RETURNED:
                    self._emit("site_returned", site=change.site)

    # -- what comes of a round ----------------------------------------------------------------

    def _due(self, number: int) -> bool:
        return self._config.evaluation.is_due(number, self._config.federation.rounds)

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
        self._writes.put(partial(self._folder.append_row, row))
        self._book_traffic()
        if model.round_number % self._config.outputs.checkpoint_every == 0:
            self._checkpoint(model)
        fields = {k: v for k, v in row.items() if k != "time"}
        self._emit("round_finished", of=self._config.federation.rounds, **fields)

    def _book_traffic(self) -> None:
        """Record what has crossed since the last time."""
        flows = self._mediator.drain_traffic()
        traffic = [
            (flow.round_number, flow.site, flow.direction, flow.purpose, nbytes)
            for flow, nbytes in flows
        ]
        self._writes.put(partial(self._folder.append_traffic, traffic))
        if self._meter is not None:
            self._meter.book(flows)
            self._writes.put(self._meter.written)

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


def _clients_of(order: Payload, whole: int) -> int:
    """How many of a cohort an order is about, at most."""
    return min(whole, sum(len(range(*each)) for each in order.header["share"]))


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
