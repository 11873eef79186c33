"""Replication: has sites keep replicas of each other's clients' states, and goes back to them.

Every `participation.replicate_every` rounds each site gives what its clients have to another site.
If a site stays away, its clients go on at that one, and the whole run goes back to the replica's
round. The journal names a replica once all sites have it, and where clients have moved.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from fedpilot.mediator import Share
from fedpilot.mediator.core.assignment import (
    ClientMove,
    Holder,
    ReplicaSite,
    SiteCapacity,
    holders,
    size,
)
from fedpilot.mediator.core.reservation import Promise

from ....core.planning.measured import REPLICA
from ....core.rounds.participation import SiteRefused, TooFewSites
from ....core.rounds.replicas import Copy, Replica, WayBack, is_due, way_back
from ...run_folder.folder import replace_text
from ...setup.global_model import GlobalModel
from ..client_sites import record_sites
from ..round_log import RoundLog
from ..run_context import RunContext
from .state_copies import CopyFailed, Copying, StateCopies

FILE = "replicas.json"
WENT_BACK = "went_back"
"""The manifest's list of the times that a run went back."""


class Replication:
    """The replicas of one attempt at a run."""

    def __init__(self, run: RunContext, log: RoundLog, every: int) -> None:
        self._run = run
        self._log = log
        self._every = every
        self._path: Path = run.folder.journal / FILE
        self._last: Replica | None = None
        self._said: Mapping[str, str] = {}
        """Why no site could hold anything, as reported last."""
        self._copies = StateCopies(run, REPLICA)

    def recover(self) -> None:
        """Read the last replica of a run that is resumed."""
        if not self._path.exists():
            return
        try:
            told = json.loads(self._path.read_text())
        except ValueError:
            told = None
        found = Replica.from_json(told, str(self._path))
        if found.round_number in self._run.folder.checkpoints():
            self._last = found
            self._log.hold([found.round_number])

    # -- making a replica -------------------------------------------------------------------------

    def replicate(self, model: GlobalModel) -> None:
        """Make a replica of what clients have after the model's round, if one is due."""
        shares, promises = self._shares(), self._run.mediator.membership.promises
        number, rounds = model.round_number, self._run.config.federation.rounds
        if not shares.keys() <= promises.keys():
            return  # the next round waits for the others
        if not is_due(self._last, self._every, number, rounds, shares):
            return
        started = time.perf_counter()
        self._log.hold([*self._held, number])
        self._log.checkpoint(model)
        self._log.flush()
        try:
            chosen = holders(self._sites(model, shares, promises))
            made = _made(number, shares, chosen)
            if self._last is not None and (lacking := made.lacking(self._last)):
                reasons = "; ".join(f"site {site}: {chosen[site].reason}" for site in lacking)
                raise CopyFailed(f"the one of round {self._last.round_number} has more: {reasons}")
            copies = [
                Copying(site, each.site, shares[site]) for site, each in chosen.items() if each.site
            ]
            self._copies.copy(model, copies)
        except CopyFailed as error:
            self._log.hold(self._held)
            self._run.emit("replica_missed", round=number, reason=str(error))
            return
        self._record(made)
        self._log.hold(self._held)
        self._copies.drop(model, before=number)
        self._say(number, chosen, time.perf_counter() - started)

    @property
    def _held(self) -> list[int]:
        return [] if self._last is None else [self._last.round_number]

    def _shares(self) -> dict[str, Share]:
        """The clients of each site that has any."""
        shares = self._run.mediator.membership.assignment.shares
        return {site: share for site, share in shares.items() if share}

    def _sites(
        self, model: GlobalModel, shares: Mapping[str, Share], promises: Mapping[str, Promise]
    ) -> list[ReplicaSite]:
        """All sites, with the room that they have."""
        rooms, each = self._copies.rooms(model, promises), self._copies.bytes_of_client(model)
        return [
            ReplicaSite(
                capacity=SiteCapacity(site, promise.vnodes, link=promise.link),
                nbytes=size(shares.get(site, ())) * each,
                room=rooms[site],
            )
            for site, promise in promises.items()
        ]

    def _say(self, number: int, chosen: Mapping[str, Holder], seconds: float) -> None:
        reasons = {site: each.reason for site, each in chosen.items()}
        nowhere = reasons if all(each.site is None for each in chosen.values()) else {}
        if nowhere and nowhere == self._said:
            return
        self._said = nowhere
        self._run.emit(
            "replica_made",
            round=number,
            holders={site: each.site for site, each in chosen.items()},
            reasons=reasons,
            bytes=sum(each.nbytes for each in chosen.values() if each.site is not None),
            seconds=round(seconds, 6),
        )

    def forget(self) -> None:
        """Let the last replica be of no use, as some of its clients move: a new one is due."""
        self._last = None
        self._log.hold(())
        self._path.unlink(missing_ok=True)

    def end(self, model: GlobalModel) -> None:
        """Free all replicas once the run has all its rounds."""
        self._copies.drop(model, before=model.round_number + 1)
        self.forget()

    # -- going back to one ------------------------------------------------------------------------

    def go_back(self, error: TooFewSites | SiteRefused, model: GlobalModel) -> GlobalModel:
        """Have lost sites' clients go on at the holders; returns the model of the replica's round.

        Raises the error, and why there is no way back, if there is none.
        """
        membership = self._run.mediator.membership
        lost = {
            site: share for site, share in self._shares().items() if site not in membership.sites
        }
        liars = membership.distrusted.keys() & lost.keys()
        if liars or membership.lacking() is not None:
            raise error
        if not lost:
            if isinstance(error, TooFewSites):
                return model  # it has come back at the last moment
            raise error
        found = way_back(self._last, lost, membership.sites)
        if not isinstance(found, WayBack):
            raise _with(error, found) from error
        assert self._last is not None
        number = found.round_number
        told = {
            "round": model.round_number + 1,
            "to": number,
            "sites": dict(found.holders),
            "clients": sum(map(size, lost.values())),
            "reasons": {site: membership.why_gone(site) for site in lost},
        }
        self._run.emit("went_back", **told)  # an observer may raise: nothing is changed so far
        back = self._log.go_back(number)
        moves = [
            ClientMove(
                round_number=number + 1,
                origin=site,
                to=holder,
                clients=lost[site],
                reason=f"which was lost: its states of round {number} are at site {holder}",
            )
            for site, holder in found.holders.items()
        ]
        membership.move(moves)
        record_sites(self._run.mediator, self._run.folder.journal)
        self._record(self._last.without(lost))
        before = self._run.folder.manifest().get(WENT_BACK, [])
        self._run.folder.update_manifest(**{WENT_BACK: [*before, told]})
        return back

    def _record(self, replica: Replica) -> None:
        self._last = replica
        replace_text(self._path, json.dumps(replica.to_json()) + "\n")


def _made(number: int, shares: Mapping[str, Share], chosen: Mapping[str, Holder]) -> Replica:
    copies = [
        Copy(site=site, clients=shares[site], holder=each.site or "")
        for site, each in chosen.items()
    ]
    return Replica(round_number=number, copies=copies)


def _with(error: TooFewSites | SiteRefused, reason: str) -> TooFewSites | SiteRefused:
    """The error, and why the run cannot go back."""
    lacking = f"{error.lacking}; {reason}"
    if isinstance(error, TooFewSites):
        return TooFewSites(error.what, lacking, error.waited_s)
    return SiteRefused(error.what, lacking, error.advice)
