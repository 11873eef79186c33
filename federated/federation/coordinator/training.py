"""TrainingPhase: has the sites train a round, on a coarser grid until the sum of updates fits.

Where a clock decides who counts, the phase journals that before it uses the sum, and reads it there
when the round is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedpilot.mediator import FederationMediator, Payload, Share

from ...config.schema import RunConfig
from ...core.population.cohort_members import Members, Membership
from ...core.population.shares import packed, unpacked
from ...core.rounds.participation import Rules, least
from ...core.state import Roles
from ...core.sums.partial import COARSER_STEP, COARSEST, Partial, grid
from ...core.sums.partial_check import checked_covered, checked_partial
from ...core.sums.staleness import Late, with_late
from ...errors import FederatedError, NoUsableUpdate
from ..events import Emit
from ..run_folder.folder import RunFolder
from ..setup.global_model import GlobalModel
from ..setup.loaded_config import execution_of
from .gather import Answered, Answers, gather
from .late_orders import LateOrders
from .overflow_proof import partial_of, unproven
from .participation_record import CountedRounds, as_counted
from .site_limits import SiteLimits
from .site_orders import TRAINING, OrderForm, OrderSender


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRules:
    """What a site's part of a round has to keep, all through a run."""

    roles: Roles
    keeps_updates: bool
    """Whether it has every update, and not their sum."""
    membership: Membership
    limits: SiteLimits
    proof_s: float | None
    """How long a site may take to show a sum that leaves the range of its grid."""


@dataclass(frozen=True, kw_only=True)
class TrainingQuery:
    """Asks for the sum of a round's updates, on one grid."""

    form: OrderForm
    whole: int
    """Clients that are asked."""
    orders: OrderSender
    rules: UpdateRules

    @property
    def name(self) -> str:
        return f"round {self.round_number}"

    @property
    def round_number(self) -> int:
        return self.form.round_number

    @property
    def coarser(self) -> int:
        return int(self.form.header["coarser"])

    def send(self, site: str, share: Share) -> Future[Payload]:
        return self.orders.send(self.form, site, share)

    def close(self, site: str, share: Share) -> None:
        self.orders.close(self.form, site, share)

    def check(self, share: Share, answer: Payload) -> None:
        partial = checked_partial(
            answer.header,
            answer.tensors,
            exponents=self._grid,
            model=self.form.model.state,
            roles=self.rules.roles,
            members=self._members(share),
            # Only what a clock may close is answered before all are done.
            all_of_them=not self.form.header.get("tells_covered", False),
            keeps_updates=self.rules.keeps_updates,
        )
        self.rules.limits.check(partial)

    def covered(self, share: Share, answer: Payload) -> int:
        return int(np.count_nonzero(checked_covered(answer.header, self._members(share))))

    def most(self, share: Share) -> int:
        return self._members(share).most

    def review(self, answered: Sequence[Answered]) -> Mapping[str, Exception]:
        if problems := unproven(self, answered, self.rules.proof_s):
            return problems
        parts = [(each.part.site, partial_of(each.payload)) for each in answered]
        return self.rules.limits.exceeded((self.round_number, self.coarser), parts)

    def refused(self, site: str, error: Exception) -> bool:
        return self.rules.limits.refused(site, error, self.round_number)

    def site_changed(self) -> None:
        self.orders.tell_changes()

    def with_header(self, **more: Any) -> TrainingQuery:
        """The same, with more in its orders."""
        return replace(self, form=replace(self.form, header={**self.form.header, **more}))

    def repeated(self, coarser: int, answer: Payload) -> TrainingQuery:
        """The same on a coarser grid, about the clients that an answer counts."""
        header = {**self.form.header, "coarser": coarser}
        if header.pop("tells_covered", False):
            header["counted"] = answer.header["covered"]
        return replace(self, form=replace(self.form, header=header, variant=str(coarser)))

    @cached_property
    def _grid(self) -> Mapping[str, int]:
        return grid(self.form.model.state, self.rules.roles, self.coarser)

    def _members(self, share: Share) -> Members:
        members = self.rules.membership.of(self.round_number, share)
        if counted := self.form.header.get("counted"):
            return members.among(unpacked(counted, len(members.mask)))
        return members


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTraining:
    """What the training of a round came to."""

    total: Partial
    """Over all sites. The late updates in it weigh what they say and stand for nobody."""
    late: Sequence[Late]
    seconds: float
    """That workers spent in the arithmetic of training, all together."""
    by_site: Mapping[str, Any]
    """What each site added, for the round's row; nothing where a sum has left its range."""
    digests: dict[str, dict[str, str]]
    """Of what clients' models became, if the config asks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPhase:
    """The training of a run's rounds."""

    config: RunConfig
    asked: int
    """Clients that a round asks."""
    enough: int
    """As many of them are enough."""
    rules: UpdateRules
    mediator: FederationMediator
    folder: RunFolder
    orders: OrderSender
    counted: CountedRounds
    late: LateOrders
    emit: Emit
    clock: Callable[[], float]

    def train(self, model: GlobalModel) -> RoundTraining:
        """Train the round after this model, on a coarser grid whenever the sum overflows.

        Raises NoUsableUpdate where nobody has trained, FederatedError for a sum beyond all grids.
        """
        number, rules = model.round_number + 1, self._rules()
        counted = self.counted.read("counted", number, model.digest)
        late = self.counted.late(counted)
        for coarser in range(0, COARSEST + 1, COARSER_STEP):
            query, waits_for = self._query(model, coarser), rules
            if counted is not None:
                query = query.with_header(counted=counted.counted)
                waits_for = as_counted(counted, rules)
            elif rules.by_clock:
                query = query.with_header(tells_covered=True, late_for=self.late.rounds)
            answers = gather(query, self.mediator, waits_for, emit=self.emit, clock=self.clock)
            if counted is None and rules.by_clock:
                late = self.late.take(number)
                self.late.expect(query, answers.late)
                covered, about = _covered(answers, self.asked), query.form.about
                counted = self.counted.write(
                    "counted", answers, covered, late=late, whole=self.asked, **about
                )
            by_site = self._by_site(number, answers.all)
            total = _merged([each.payload for each in answers.all])
            trained = total.weight
            if not with_late(total, late).overflowed:
                break
            names = list(total.overflowed)
            self.emit("grid_coarsened", round=number, tensors=names, bits=COARSER_STEP)
        else:
            raise FederatedError(
                f"round {number}: the updates of {', '.join(total.overflowed)} are out of any "
                "range; the training diverged (a smaller `training.learning_rate` usually helps)"
            )
        for client_id in total.refused:
            self.emit("update_refused", round=number, client=client_id, reason="not finite")
        if not trained:
            raise NoUsableUpdate(number, total.refused)
        headers = [each.payload.header for each in answers.all]
        return RoundTraining(
            total=total,
            late=late,
            seconds=sum(header["training_seconds"] for header in headers),
            by_site=by_site,
            digests={k: v for header in headers for k, v in header["digests"].items()},
        )

    def _query(self, model: GlobalModel, coarser: int) -> TrainingQuery:
        header = {
            "coarser": coarser,
            "journal": str(self.folder.journal),
            "execution": execution_of(self.config),
            "oldest_checkpoint": self._oldest_checkpoint(),
        }
        form = OrderForm(
            kind=TRAINING,
            model=model,
            round_number=model.round_number + 1,
            header=header,
            variant=str(coarser),
        )
        return TrainingQuery(form=form, whole=self.asked, orders=self.orders, rules=self.rules)

    def _rules(self) -> Rules:
        participation = self.config.participation
        return Rules(
            whole=self.asked,
            enough=self.enough,
            least=least(self.enough, participation.quorum),
            deadline_s=participation.deadline_s,
            wait_s=participation.wait_for_sites_s,
            closing_s=participation.closing_s,
        )

    def _oldest_checkpoint(self) -> int:
        """The earliest round that a resume could go back to; only clients with memories care."""
        remembers = self.config.training.client_update is not None
        return self.folder.oldest_checkpoint() if remembers else 0

    def _by_site(self, number: int, answers: Sequence[Answered]) -> Mapping[str, Any]:
        parts = [(each.part.site, partial_of(each.payload)) for each in answers]
        if any(partial.overflowed for _, partial in parts):
            return {}
        return self.rules.limits.measure(number, parts)


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
