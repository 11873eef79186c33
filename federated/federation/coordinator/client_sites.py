"""Where the clients of a run that keep states are: the journal has it from the first round on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedpilot.mediator import FederationMediator, Share
from fedpilot.mediator.core.assignment import Assignment, ClientMove

from ...core.population.shares import taken, told
from ...errors import FederatedError, RunRefused
from ..run_folder.folder import replace_text

FORMAT = 1
FILE = "client_sites.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSites:
    """The sites of the clients whose data does not decide it."""

    shares: Mapping[str, Share]
    given: Mapping[str, int]
    """How many the strategy gave each site at first; empty if that is not known."""
    moves: tuple[ClientMove, ...]
    """The latest, in their order."""

    @classmethod
    def of(cls, assignment: Assignment) -> Self:
        return cls(shares=assignment.movable, given=assignment.given, moves=assignment.moves)

    def to_json(self) -> dict[str, Any]:
        """As in the journal; an earlier version reads the shares and needs no more."""
        moves = [
            {
                "round": move.round_number,
                "from": move.origin,
                "to": move.to,
                "clients": told(move.clients),
                "reason": move.reason,
            }
            for move in self.moves
        ]
        sites = {site: told(share) for site, share in self.shares.items()}
        return {"format": FORMAT, "sites": sites, "given": dict(self.given), "moves": moves}

    @classmethod
    def from_json(cls, values: Any, where: Path) -> Self:
        """The inverse; RunRefused for a corrupt record or a later format."""
        try:
            if values["format"] > FORMAT:
                raise RunRefused(
                    f"{where} is of format {values['format']}; formats up to {FORMAT} fit"
                )
            moves = [
                ClientMove(
                    round_number=int(each["round"]),
                    origin=str(each["from"]),
                    to=str(each["to"]),
                    clients=taken(each["clients"]),
                    reason=str(each["reason"]),
                )
                for each in values.get("moves", ())
            ]
            return cls(
                shares={str(site): taken(share) for site, share in values["sites"].items()},
                given={str(site): int(many) for site, many in values.get("given", {}).items()},
                moves=tuple(moves),
            )
        except (ValueError, KeyError, TypeError, AttributeError, FederatedError) as error:
            if isinstance(error, RunRefused):
                raise
            raise RunRefused(
                f"{where} does not say where this run's clients are: {error}"
            ) from error


def keep_at_their_sites(mediator: FederationMediator, journal: Path) -> None:
    """Give each site the clients that it had in this run before, or record what it has.

    A site's share of the clients follows from its workers, and those may be others by now. Raises
    RunRefused if another set of sites takes part.
    """
    membership, path = mediator.membership, journal / FILE
    if not any(membership.assignment.movable.values()):
        return  # all are where their data is
    if not path.exists():
        record_sites(mediator, journal)
        return
    try:
        found = json.loads(path.read_text())
    except ValueError:
        found = None
    before = ClientSites.from_json(found, path)
    owners = {site for site, share in before.shares.items() if share}
    if not owners <= set(membership.sites):
        raise RunRefused(
            f"this run's clients have their states at {', '.join(sorted(owners))}, and it resumes "
            f"at {', '.join(sorted(membership.sites))}: resume it at the same sites"
        )
    membership.assign_as(before.shares, before.given, before.moves)


def record_sites(mediator: FederationMediator, journal: Path) -> None:
    """Record the clients that each site has now."""
    sites = ClientSites.of(mediator.membership.assignment)
    journal.mkdir(parents=True, exist_ok=True)
    replace_text(journal / FILE, json.dumps(sites.to_json()))
