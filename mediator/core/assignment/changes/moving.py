"""Moves the clients of a lost site to the others, clients back to a returned site, and any others.

Pinned clients never move. The result depends only on the assignment, the sites' capacities and the
moves, so every process decides alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..proportions import proportional
from ..records import Assignment, ClientMove, SiteCapacity
from ..shares import Share, dealt, joined, members, picked, share_of, size
from ..strategies import in_proportion

MOVES_KEPT = 1024
"""Older moves are dropped, so a flapping site does not use up memory."""


def shared_out(share: Share, sites: Sequence[SiteCapacity]) -> dict[str, Share]:
    """Deal out clients to sites in proportion to their vnodes."""
    return dealt(share, in_proportion(size(share), sites))


def reassigned(
    assignment: Assignment,
    lost: str,
    capacities: Sequence[SiteCapacity],
    *,
    round_number: int = 0,
    reason: str = "which was lost",
) -> Assignment:
    """Move a lost site's movable clients to the other sites with vnodes, if there are any."""
    others = [site for site in capacities if site.name != lost and site.vnodes]
    homeless = assignment.movable.get(lost, ())
    if not homeless or not others:
        return assignment
    moves = [
        ClientMove(round_number=round_number, origin=lost, to=to, clients=clients, reason=reason)
        for to, clients in shared_out(homeless, others).items()
        if clients
    ]
    return _moved(assignment, moves)


def rebalanced(
    assignment: Assignment,
    returned: str,
    capacities: Sequence[SiteCapacity],
    at_most: float,
    *,
    round_number: int = 0,
) -> Assignment:
    """Give a returned site its share, but at most the fraction `at_most` of all movable clients.

    The other sites give in proportion to their surplus over their own shares.
    """
    movable = {site: size(share) for site, share in assignment.movable.items()}
    clients = sum(movable.values())
    even = assignment.strategy == "round_robin"
    weights = {site.name: 1 if even else site.vnodes for site in capacities}
    wanted = proportional(clients, weights)
    lacks = wanted.get(returned, 0) - movable.get(returned, 0)
    spare = {site: max(0, movable.get(site, 0) - wanted[site]) for site in wanted}
    given = min(lacks, max(1, int(clients * at_most)), sum(spare.values()))
    if given <= 0:
        return assignment
    moves = [
        ClientMove(
            round_number=round_number,
            origin=site,
            to=returned,
            clients=picked(assignment.movable[site], range(movable[site] - number, movable[site])),
            reason=f"when site {returned} had returned",
        )
        for site, number in proportional(given, spare).items()
        if number
    ]
    return _moved(assignment, moves)


def moved(assignment: Assignment, moves: Sequence[ClientMove]) -> Assignment:
    """Apply moves of any movable clients, which all are at their move's origin."""
    shares: dict[str, Share] = dict(assignment.movable)
    for move in moves:
        left = np.setdiff1d(members(shares[move.origin]), members(move.clients))
        shares[move.origin] = share_of(left)
        there = members(shares.get(move.to, ()))
        shares[move.to] = share_of(np.union1d(there, members(move.clients)))
    return _with(assignment, shares, moves)


def _moved(assignment: Assignment, moves: Sequence[ClientMove]) -> Assignment:
    """Apply moves; each takes all of its origin's clients, or the last ones."""
    shares: dict[str, Share] = dict(assignment.movable)
    gone: Counter[str] = Counter()
    for move in moves:
        shares[move.to] = joined([*shares.get(move.to, ()), *move.clients])
        gone[move.origin] += size(move.clients)
    for origin, number in gone.items():
        before = assignment.movable[origin]
        shares[origin] = picked(before, range(size(before) - number))
    return _with(assignment, shares, moves)


def _with(
    assignment: Assignment, shares: Mapping[str, Share], moves: Sequence[ClientMove]
) -> Assignment:
    kept = (*assignment.moves, *moves)[-MOVES_KEPT:]
    return replace(assignment, movable=shares, moves=kept)
