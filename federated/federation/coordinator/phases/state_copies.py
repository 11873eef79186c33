"""StateCopies: has sites copy what their clients keep to other sites, between two rounds.

States pass the coordinator by the digest of their blob, a part of each site's at a time. The site
that gets them saves them as durably as those of its own clients.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NoReturn

from fedpilot.mediator import Payload, Share, SiteUnreachable
from fedpilot.mediator.core.assignment import members, share_of
from fedpilot.mediator.errors import AnswerUnreadable

from ....core.rounds.exchange_costs import crossing_sizes
from ....core.state import State
from ....core.sums.amounts import AnswerRefused
from ...setup.global_model import GlobalModel
from ..run_context import RunContext
from ..site_orders import COPYING, DROPPING, HOLDING, ROOM, OrderForm

PART_BYTES = 64 << 20
"""States that a site gives at a time; at least one client's."""


class CopyFailed(Exception):
    """States cannot be copied now."""


@dataclass(frozen=True, slots=True)
class Copying:
    """Some clients of a site, whose states go to another one."""

    site: str
    to: str
    clients: Share


class StateCopies:
    """Copies of clients' states in one attempt at a run, for one purpose."""

    def __init__(self, run: RunContext, purpose: str) -> None:
        """The bytes that cross are booked under `purpose`."""
        self._run = run
        self._purpose = purpose
        token = secrets.token_hex(4)
        self._variants = (f"{token}.{number}" for number in itertools.count())

    def bytes_of_client(self, model: GlobalModel) -> int:
        """What a client's state has."""
        run = self._run
        return crossing_sizes(model.state, run.roles, pushes=run.config.federation.pushes).state

    def rooms(self, model: GlobalModel, sites: Collection[str]) -> dict[str, int]:
        """The bytes that each of these sites has left; CopyFailed if one is lost."""
        shares = self._shares()
        asked = {site: self._send(ROOM, model, site, shares.get(site, ())) for site in sites}
        found = {}
        for site, answer in asked.items():
            room = self._answer(model, site, answer).header.get("free")
            if type(room) is not int:
                problem = AnswerRefused("`free`", f"{room!r:.60}", "its free bytes")
                self._refuse(model, site, problem)
            found[site] = room
        return found

    def copy(self, model: GlobalModel, copies: Sequence[Copying]) -> None:
        """Copy what the model's round left clients with; CopyFailed if a site is lost meanwhile."""
        at_once = max(1, PART_BYTES // self.bytes_of_client(model))
        for parts in itertools.zip_longest(*(_parts(each, at_once) for each in copies)):
            some = [part for part in parts if part is not None]
            given = [self._send(COPYING, model, part.site, part.clients) for part in some]
            taken = [
                self._send(
                    HOLDING,
                    model,
                    part.to,
                    part.clients,
                    self._answer(model, part.site, each).tensors,
                )
                for part, each in zip(some, given, strict=True)
            ]
            for part, each in zip(some, taken, strict=True):
                said = self._answer(model, part.to, each).header
                if problem := said.get("problem"):
                    wanted = "as they should be"
                    error = AnswerRefused("its clients' states", f"{problem!r:.200}", wanted)
                    self._refuse(model, part.site, error)
                if full := said.get("failed"):
                    raise CopyFailed(f"site {part.to} could not save it: {full!s:.200}")

    def drop(self, model: GlobalModel, before: int) -> None:
        """Have sites drop the states of clients that are not theirs, of the rounds before."""
        shares = self._shares()
        asked = {
            site: self._send(DROPPING, model, site, shares.get(site, ()), before=before)
            for site in self._run.mediator.membership.sites
        }
        for site, answer in asked.items():
            try:
                self._answer(model, site, answer)
            except CopyFailed:
                continue  # the next round waits for that site

    # -- orders -----------------------------------------------------------------------------------

    def _shares(self) -> Mapping[str, Share]:
        return self._run.mediator.membership.assignment.shares

    def _send(
        self,
        kind: str,
        model: GlobalModel,
        site: str,
        clients: Share,
        tensors: State | None = None,
        **more: Any,
    ) -> Future[Payload]:
        form = OrderForm(
            kind=kind,
            model=model,
            round_number=model.round_number,
            header={"journal": str(self._run.folder.journal), **more},
            variant=next(self._variants),
            purpose=self._purpose,
        )
        return self._run.orders.pass_on(form, site, clients, tensors or {})

    def _answer(self, model: GlobalModel, site: str, asked: Future[Payload]) -> Payload:
        try:
            return asked.result()
        except SiteUnreachable as error:
            self._run.mediator.membership.give_up(site, error)
            self._run.orders.tell_changes()
            raise CopyFailed(f"site {site} was lost: {error.reason}") from error
        except AnswerUnreadable as error:
            self._refuse(model, site, error)

    def _refuse(self, model: GlobalModel, site: str, error: Exception) -> NoReturn:
        """Exclude a site whose answer cannot be."""
        number = model.round_number
        self._run.limits.refused(site, error, number)
        self._run.mediator.membership.distrust(site, str(error), round_number=number)
        self._run.orders.tell_changes()
        raise CopyFailed(f"what site {site} gave does not count: {error}") from error


def _parts(whole: Copying, at_once: int) -> Iterator[Copying]:
    clients = members(whole.clients)
    for first in range(0, len(clients), at_once):
        yield Copying(whole.site, whole.to, share_of(clients[first : first + at_once]))
