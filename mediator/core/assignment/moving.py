"""Decide who takes over when a site is lost, and what a site gets back that returns.

Only clients of the site in question change hands, or those that it is given; pinned ones never do.
Both are functions of the assignment and the sites' capacities, so every process decides alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from . import capacity
from .records import Assignment, ClientMove, SiteCapacity
from .shares import Share, dealt, joined, picked, size

MOVES_KEPT = 256
"""Older ones are forgotten, so that a site that flaps for days costs no memory."""


def shared_out(share: Share, sites: Sequence[SiteCapacity]) -> dict[str, Share]:
    """Clients that somebody else has to train, dealt out in proportion to vnodes."""
    return dealt(share, capacity.assign(size(share), sites))


def reassigned(
    assignment: Assignment,
    lost: str,
    capacities: Sequence[SiteCapacity],
    *,
    round_number: int = 0,
    reason: str = "which was lost",
) -> Assignment:
    """The movable clients of a lost site at the other sites; unchanged if there is none."""
    others = [site for site in capacities if site.name != lost and site.vnodes]
    homeless = assignment.movable.get(lost, ())
    if not homeless or not others:
        return assignment
    return _moved(
        assignment,
        [
            ClientMove(
                round_number=round_number, origin=lost, to=to, clients=clients, reason=reason
            )
            for to, clients in shared_out(homeless, others).items()
            if clients
        ],
    )


def rebalanced(
    assignment: Assignment,
    returned: str,
    capacities: Sequence[SiteCapacity],
    at_most: float,
    *,
    round_number: int = 0,
) -> Assignment:
    """Work back for a site that returned: at most this part of all movable clients at a time.

    The others give in proportion to what they have beyond their own part. Unchanged once the site
    has its part.
    """
    movable = {site: size(share) for site, share in assignment.movable.items()}
    everybody = sum(movable.values())
    even = assignment.strategy == "round_robin"
    wanted = capacity.counts(
        everybody, {site.name: 1 if even else site.vnodes for site in capacities}
    )
    lacks = wanted.get(returned, 0) - movable.get(returned, 0)
    spare = {site: max(0, movable.get(site, 0) - wanted[site]) for site in wanted}
    given = min(lacks, max(1, int(everybody * at_most)), sum(spare.values()))
    if given <= 0:
        return assignment
    reason = f"when site {returned} had returned"
    moves = []
    for site, number in capacity.counts(given, spare).items():
        if number:
            its = assignment.movable[site]
            last = picked(its, range(movable[site] - number, movable[site]))
            moves.append(
                ClientMove(
                    round_number=round_number,
                    origin=site,
                    to=returned,
                    clients=last,
                    reason=reason,
                )
            )
    return _moved(assignment, moves)


def _moved(assignment: Assignment, moves: Sequence[ClientMove]) -> Assignment:
    shares: dict[str, Share] = dict(assignment.movable)
    for move in moves:
        shares[move.to] = joined([*shares.get(move.to, ()), *move.clients])
    for origin, gone in _by_origin(moves).items():
        shares[origin] = _without(assignment.movable[origin], gone)
    kept = (*assignment.moves, *moves)[-MOVES_KEPT:]
    return replace(assignment, movable=shares, moves=kept)


def _by_origin(moves: Sequence[ClientMove]) -> Mapping[str, int]:
    gone: dict[str, int] = {}
    for move in moves:
        gone[move.origin] = gone.get(move.origin, 0) + size(move.clients)
    return gone


def _without(share: Share, last: int) -> Share:
    """A share but for its last clients: whoever gives work away gives those, or all."""
    return picked(share, range(size(share) - last))
