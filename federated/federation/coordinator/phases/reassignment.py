"""ReassignmentPhase: moves clients to other sites between rounds, where that makes rounds shorter.

The membership decides, by the links and paces as they are now. The states of clients that move are
copied first. The move counts once the journal says where the clients are: if this process dies
before, a resumed run finds their states where they were, and otherwise where they are. A site that
is lost meanwhile ends the move, and the run goes on as it was.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fedpilot.mediator.core.assignment import MoveVerdict, Reassignment, size

from ....core.planning.measured import MOVE
from ...setup.global_model import GlobalModel
from ..client_sites import record_sites
from ..round_log import RoundLog
from ..run_context import RunContext
from .replication import Replication
from .state_copies import CopyFailed, Copying, StateCopies

WINDOW = 3
"""A client that left a site returns to it at the third decision after that at the earliest: a link
that is slow for one decision only shall not have it go back and forth."""


@dataclass(kw_only=True)
class ReassignmentPhase:
    """The moves of one attempt at a run."""

    run: RunContext
    log: RoundLog
    every: int
    replication: Replication | None
    """What has to know that clients move, if the run makes replicas."""
    _said: MoveVerdict = MoveVerdict.MOVE
    """Why clients stayed, as reported last."""
    _copies: StateCopies = field(init=False)

    def __post_init__(self) -> None:
        self._copies = StateCopies(self.run, MOVE)

    def reassign(self, model: GlobalModel) -> None:
        """Move clients after the model's round, if a decision is due and that pays."""
        run, number = self.run, model.round_number
        membership, rounds = run.mediator.membership, run.config.federation.rounds
        if not 0 < number < rounds or number % self.every:
            return
        if any(move.round_number > number for move in membership.assignment.moves):
            return  # clients have moved after this round, and the run was resumed or went back
        try:
            found = membership.reassignment(
                state_bytes=self._copies.bytes_of_client(model),
                round_number=number + 1,
                rounds_left=rounds - number,
                window=WINDOW * self.every,
                room=self._copies.rooms(model, membership.sites),
            )
            if found is None:
                return  # the next round waits for a site
            if found.verdict is MoveVerdict.MOVE:
                self._move(model, found)
            elif found.verdict is not self._said:
                run.emit("assignment_kept", round=number + 1, reason=found.reason)
            self._said = found.verdict
        except CopyFailed as error:
            run.emit("reassignment_missed", round=number + 1, reason=str(error))

    def _move(self, model: GlobalModel, found: Reassignment) -> None:
        started, mediator = time.perf_counter(), self.run.mediator
        # A resumed run begins here: earlier states of these clients stay where they were.
        self.log.checkpoint(model)
        self.log.flush()
        copies = [Copying(move.origin, move.to, move.clients) for move in found.moves]
        self._copies.copy(model, copies)
        if self.replication is not None:
            self.replication.forget()
        mediator.membership.move(found.moves)
        record_sites(mediator, self.run.folder.journal)
        clients = sum(size(move.clients) for move in found.moves)
        self.run.emit(
            "reassigned",
            round=model.round_number + 1,
            clients=clients,
            moves=[
                {"from": move.origin, "to": move.to, "clients": size(move.clients)}
                for move in found.moves
            ],
            reason=found.reason,
            saved_s=round(found.saved_s, 6),
            moving_s=round(found.moving_s, 6),
            bytes=clients * self._copies.bytes_of_client(model),
            seconds=round(time.perf_counter() - started, 6),
        )
        if self.replication is None:  # a replica, which is due now, drops them too
            self._copies.drop(model, before=model.round_number + 1)

    def end(self, model: GlobalModel) -> None:
        """Have sites drop what clients left behind, once the run has all its rounds."""
        if self.run.mediator.membership.assignment.moves:
            self._copies.drop(model, before=model.round_number + 1)
