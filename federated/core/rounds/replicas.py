"""Decides when clients' states are replicated, and which replica a run goes back to at a loss.

A replica has the states of all clients that a site has after a round, at one other site. It is of
use for exactly the clients that the site has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from fedpilot.common.text.amounts import listed

from ...errors import FederatedError, RunRefused
from ..population.shares import Share, taken, told

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The states of one site's clients at another site."""

    site: str
    clients: Share
    holder: str
    """Empty if no site could hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """The last replica that is whole."""

    round_number: int
    """The round that left these states."""
    copies: Sequence[Copy]

    def of(self, site: str, clients: Share) -> Copy | None:
        """What was copied of a site, if it had these clients."""
        return next((c for c in self.copies if (c.site, c.clients) == (site, clients)), None)

    def without(self, sites: Collection[str]) -> Self:
        """The same once these sites have neither clients nor copies."""
        left = [c for c in self.copies if not {c.site, c.holder} & set(sites)]
        return replace(self, copies=left)

    def lacking(self, earlier: Self) -> list[str]:
        """The sites of which an earlier replica is still of use, and this one has nothing."""
        if earlier.round_number >= self.round_number:
            return []
        return [
            each.site
            for each in self.copies
            if not each.holder and (old := earlier.of(each.site, each.clients)) and old.holder
        ]

    def to_json(self) -> dict[str, Any]:
        """As in the journal."""
        copies = [
            {"site": each.site, "clients": told(each.clients), "holder": each.holder}
            for each in self.copies
        ]
        return {"format": FORMAT, "round": self.round_number, "copies": copies}

    @classmethod
    def from_json(cls, values: Any, where: str) -> Self:
        """The inverse; RunRefused for a corrupt record or a later format."""
        try:
            if values["format"] > FORMAT:
                raise RunRefused(f"{where} is of format {values['format']}, wanted {FORMAT}")
            copies = [
                Copy(
                    site=str(each["site"]),
                    clients=taken(each["clients"]),
                    holder=str(each["holder"]),
                )
                for each in values["copies"]
            ]
            return cls(round_number=int(values["round"]), copies=copies)
        except (ValueError, KeyError, TypeError, FederatedError) as error:
            if isinstance(error, RunRefused):
                raise
            raise RunRefused(f"{where} does not say where replicas are: {error}") from error


def is_due(
    last: Replica | None, every: int, number: int, rounds: int, shares: Mapping[str, Share]
) -> bool:
    """Whether what clients have after round `number` is replicated before the next one.

    `shares` are the clients of each site that has any. A replica that failed, or that lacks clients
    which have moved since, is due again.
    """
    if not 0 < number < rounds:
        return False
    if last is None:
        return number >= every
    whole = all(last.of(site, share) is not None for site, share in shares.items())
    return not whole or number >= last.round_number + every


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """The replica's round, and the sites from which lost sites' clients go on."""

    round_number: int
    holders: Mapping[str, str]
    """By lost site."""


def way_back(
    last: Replica | None, lost: Mapping[str, Share], there: Collection[str]
) -> WayBack | str:
    """How a run goes on without lost sites, or why it cannot; `lost` are their clients."""
    if last is None:
        return f"no replica was made yet of the clients of {_sites(lost)}"
    found, number = {}, last.round_number
    for site, clients in sorted(lost.items()):
        copy = last.of(site, clients)
        if copy is None or not copy.holder:
            return f"no other site has a replica of the clients of site {site}"
        if copy.holder not in there:
            return (
                f"the replica of site {site} after round {number} is at site {copy.holder}, which "
                "is not there either"
            )
        found[site] = copy.holder
    return WayBack(round_number=number, holders=found)


def _sites(names: Collection[str]) -> str:
    return f"site{'s' * (len(names) > 1)} {listed(sorted(names))}"
