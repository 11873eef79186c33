"""Which site a client belongs to: pure, with a reason for every choice.

A client whose data is at a site stays there. A strategy gives each site a `range` of the others, so
the cost of an assignment does not grow with the population, and no site needs a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .changes.moving import moved, reassigned, rebalanced, shared_out
from .changes.reassigning import MoveVerdict, Reassignment, ReassignmentProblem, reassignment
from .changes.replicas import Holder, ReplicaSite, holders
from .costs import (
    Resource,
    RoundCost,
    SiteLoads,
    cost_of,
    crossing_models,
    places_of,
    round_cost,
)
from .explaining import Explained, Price, explained
from .records import (
    Assignment,
    AssignmentProblem,
    AssignmentStrategy,
    ChosenStrategy,
    ClientMove,
    Division,
    Exchange,
    NotAssignable,
    OwnStrategy,
    RoundWork,
    SiteCapacity,
)
from .shares import Share, joined, members, rest, share_of, size
from .strategies import STRATEGIES


def assign(
    strategy: ChosenStrategy,
    population: int,
    sites: Sequence[SiteCapacity],
    pinned: Mapping[str, Sequence[range]] | None = None,
    exchange: Exchange | None = None,
    work: RoundWork | None = None,
    labels: npt.NDArray[np.int64] | None = None,
) -> Assignment:
    """Assign clients to the sites that hold their data, and the others by a strategy.

    `pinned` maps sites, even absent ones, to contiguous ranges. `exchange` says which clients
    exchange with each other, if not all with the coordinator, and `work` what a round costs.
    `labels` (population, labels) are the clients' samples of each label.
    KeyError for an unknown strategy; ValueError for overlapping or illegal ranges; NotAssignable
    if clients are left out.
    """
    stay = {site: joined(ranges) for site, ranges in sorted((pinned or {}).items()) if ranges}
    free = rest(population, [each for share in stay.values() for each in share])
    problem = AssignmentProblem(
        clients=free, sites=sites, pinned=stay, exchange=exchange, work=work, labels=labels
    )
    divide = strategy.divide if isinstance(strategy, OwnStrategy) else STRATEGIES[strategy]
    division = divide(problem)
    return Assignment(
        strategy=name_of(strategy),
        movable=division.shares,
        pinned=stay,
        given={site: size(share) for site, share in division.shares.items()},
        reason=division.reason,
    )


def name_of(strategy: ChosenStrategy) -> str:
    """The name that users know a strategy by."""
    return strategy.name if isinstance(strategy, OwnStrategy) else strategy


__all__ = [
    "STRATEGIES",
    "Assignment",
    "AssignmentProblem",
    "AssignmentStrategy",
    "ChosenStrategy",
    "ClientMove",
    "Division",
    "Exchange",
    "Explained",
    "Holder",
    "MoveVerdict",
    "NotAssignable",
    "OwnStrategy",
    "Price",
    "Reassignment",
    "ReassignmentProblem",
    "ReplicaSite",
    "Resource",
    "RoundCost",
    "RoundWork",
    "Share",
    "SiteCapacity",
    "SiteLoads",
    "assign",
    "cost_of",
    "crossing_models",
    "explained",
    "holders",
    "joined",
    "members",
    "moved",
    "name_of",
    "places_of",
    "reassigned",
    "reassignment",
    "rebalanced",
    "round_cost",
    "share_of",
    "shared_out",
    "size",
]
