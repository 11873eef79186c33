"""Replication: has sites keep replicas of each other's clients' states, and goes back to them.

Every `participation.replicate_every` rounds each site gives what its clients have to another site.
If a site stays away, its clients go on at that one, and the whole run goes back to the replica's
round. The journal names a replica once all sites have it, and where clients have moved.
"""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fedpilot.mediator import Payload, Share, SiteUnreachable
from fedpilot.mediator.core.assignment import (
    Holder,
    ReplicaSite,
    SiteCapacity,
    holders,
    members,
    share_of,
    size,
)
from fedpilot.mediator.core.reservation import Promise
from fedpilot.mediator.errors import AnswerUnreadable

from ....core.rounds.exchange_costs import crossing_sizes
from ....core.rounds.participation import SiteRefused, TooFewSites
from ....core.rounds.replicas import Copy, Replica, WayBack, is_due, way_back
from ....core.state import State
from ....core.sums.amounts import AnswerRefused
from ...run_folder.folder import replace_text
from ...setup.global_model import GlobalModel
from ..client_sites import record_sites
from ..round_log import RoundLog
from ..run_context import RunContext
from ..site_orders import COPYING, DROPPING, HOLDING, ROOM, OrderForm

PART_BYTES = 64 << 20
"""States that a site gives at a time; at least one client's."""
FILE = "replicas.json"
WENT_BACK = "went_back"
"""The manifest's list of the times that a run went back."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Some clients of a site, whose states go to another site together."""

    site: str
    holder: str
    clients: Share


class _Failed(Exception):
    """A replica cannot be made now."""


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
        self._number = 0
        """The round whose replica is being made."""
        token = secrets.token_hex(4)
        self._variants = (f"{token}.{number}" for number in itertools.count())

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
        started, self._number = time.perf_counter(), number
        self._log.hold([*self._held, number])
        self._log.checkpoint(model)
        self._log.flush()
        try:
            chosen = holders(self._sites(model, shares, promises))
            made = _made(number, shares, chosen)
            if self._last is not None and (lacking := made.lacking(self._last)):
                reasons = "; ".join(f"site {site}: {chosen[site].reason}" for site in lacking)
                raise _Failed(f"the one of round {self._last.round_number} has more: {reasons}")
            self._copy(model, shares, chosen)
        except _Failed as error:
            self._log.hold(self._held)
            self._run.emit("replica_missed", round=number, reason=str(error))
            return
        self._record(made)
        self._log.hold(self._held)
        self._drop(model, before=number)
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
        asked = {site: self._send(ROOM, model, site, shares.get(site, ())) for site in promises}
        found = []
        for site, answer in asked.items():
            room = self._answer(site, answer).header.get("free")
            if type(room) is not int:
                self._refuse(site, AnswerRefused("`free`", f"{room!r:.60}", "its free bytes"))
            promise = promises[site]
            capacity = SiteCapacity(site, promise.vnodes, link=promise.link)
            its = size(shares.get(site, ())) * self._bytes_of_client(model)
            found.append(ReplicaSite(capacity=capacity, nbytes=its, room=room))
        return found

    def _bytes_of_client(self, model: GlobalModel) -> int:
        run = self._run
        pushes = run.config.federation.pushes
        return crossing_sizes(model.state, run.roles, pushes=pushes).state

    def _copy(
        self, model: GlobalModel, shares: Mapping[str, Share], chosen: Mapping[str, Holder]
    ) -> None:
        """Pass the states on, a part of each site's at a time."""
        at_once = max(1, PART_BYTES // self._bytes_of_client(model))
        of_sites = [
            _parts(site, each.site, shares[site], at_once)
            for site, each in chosen.items()
            if each.site is not None
        ]
        for parts in itertools.zip_longest(*of_sites):
            some = [part for part in parts if part is not None]
            given = [self._send(COPYING, model, part.site, part.clients) for part in some]
            taken = [
                self._send(
                    HOLDING, model, part.holder, part.clients, self._answer(part.site, each).tensors
                )
                for part, each in zip(some, given, strict=True)
            ]
            for part, each in zip(some, taken, strict=True):
                said = self._answer(part.holder, each).header
                if problem := said.get("problem"):
                    wanted = "as they should be"
                    error = AnswerRefused("its clients' states", f"{problem!r:.200}", wanted)
                    self._refuse(part.site, error)
                if full := said.get("failed"):
                    raise _Failed(f"site {part.holder} could not save it: {full!s:.200}")

    def _drop(self, model: GlobalModel, before: int) -> None:
        """Have sites drop what they hold for others of earlier rounds."""
        shares = self._shares()
        asked = {
            site: self._send(DROPPING, model, site, shares.get(site, ()), before=before)
            for site in self._run.mediator.membership.sites
        }
        for site, answer in asked.items():
            try:
                self._answer(site, answer)
            except _Failed:
                continue  # the next round waits for that site

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

    def end(self, model: GlobalModel) -> None:
        """Free all replicas once the run has all its rounds."""
        self._drop(model, before=model.round_number + 1)
        self._last = None
        self._log.hold(())
        self._path.unlink(missing_ok=True)

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
        for site, holder in found.holders.items():
            reason = f"which was lost: its states of round {number} are at site {holder}"
            membership.hand_over(site, holder, reason, round_number=number + 1)
        record_sites(self._run.mediator, self._run.folder.journal)
        self._record(self._last.without(lost))
        before = self._run.folder.manifest().get(WENT_BACK, [])
        self._run.folder.update_manifest(**{WENT_BACK: [*before, told]})
        return back

    # -- orders -----------------------------------------------------------------------------------

    def _record(self, replica: Replica) -> None:
        self._last = replica
        replace_text(self._path, json.dumps(replica.to_json()) + "\n")

    def _send(
        self,
        kind: str,
        model: GlobalModel,
        site: str,
        clients: Share,
        tensors: State | None = None,
        **more: Any,
    ) -> Future[Payload]:
        header = {"journal": str(self._run.folder.journal), **more}
        form = OrderForm(
            kind=kind,
            model=model,
            round_number=model.round_number,
            header=header,
            variant=next(self._variants),
        )
        return self._run.orders.pass_on(form, site, clients, tensors or {})

    def _answer(self, site: str, asked: Future[Payload]) -> Payload:
        try:
            return asked.result()
        except SiteUnreachable as error:
            self._run.mediator.membership.give_up(site, error)
            self._run.orders.tell_changes()
            raise _Failed(f"site {site} was lost: {error.reason}") from error
        except AnswerUnreadable as error:
            self._refuse(site, error)

    def _refuse(self, site: str, error: Exception) -> NoReturn:
        """Exclude a site whose answer cannot be."""
        number = self._number
        self._run.limits.refused(site, error, number)
        self._run.mediator.membership.distrust(site, str(error), round_number=number)
        self._run.orders.tell_changes()
        raise _Failed(f"what site {site} gave does not count: {error}") from error


def _made(number: int, shares: Mapping[str, Share], chosen: Mapping[str, Holder]) -> Replica:
    copies = [
        Copy(site=site, clients=shares[site], holder=each.site or "")
        for site, each in chosen.items()
    ]
    return Replica(round_number=number, copies=copies)


def _parts(site: str, holder: str, share: Share, at_once: int) -> Iterator[_Part]:
    clients = members(share)
    for first in range(0, len(clients), at_once):
        yield _Part(site, holder, share_of(clients[first : first + at_once]))


def _with(error: TooFewSites | SiteRefused, reason: str) -> TooFewSites | SiteRefused:
    """The error, and why the run cannot go back."""
    lacking = f"{error.lacking}; {reason}"
    if isinstance(error, TooFewSites):
        return TooFewSites(error.what, lacking, error.waited_s)
    return SiteRefused(error.what, lacking, error.advice)
