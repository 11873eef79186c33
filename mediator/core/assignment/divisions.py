"""Checks what a strategy of the user's own answers: every movable client at one known site."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .records import AssignmentProblem, Division, NotAssignable
from .shares import Share, joined, members, share_of

SHOWN = 60


def checked(division: object, problem: AssignmentProblem) -> Division:
    """The division, in the canonical form of its shares; raises NotAssignable."""
    if not isinstance(division, Division):
        raise NotAssignable(f"it answers with {type(division).__name__:.60}, and not a Division")
    shares, names = division.shares, sorted(site.name for site in problem.sites)
    if not isinstance(shares, Mapping):
        raise NotAssignable(f"its shares are {type(shares).__name__:.60}, and not by site")
    if strangers := [site for site in shares if site not in names]:
        told = f"site {strangers[0]!r:.{SHOWN}}, and there are {', '.join(names)}"
        raise NotAssignable(f"it gives clients to {told}")
    found = {site: _ranges(site, share) for site, share in shares.items()}
    given = np.sort(np.concatenate([np.arange(0), *(members(each) for each in found.values())]))
    twice = given[1:][np.diff(given) == 0]
    if len(twice):
        raise NotAssignable(f"it gives client {int(twice[0])} to two sites")
    wanted = members(problem.clients)
    if len(others := np.setdiff1d(given, wanted)):
        raise NotAssignable(f"client {int(others[0])}, which it gives to a site, cannot move")
    if len(left := np.setdiff1d(wanted, given)):
        more = f" and {len(left) - 1:,} more" if len(left) > 1 else ""
        raise NotAssignable(f"it gives no site client {int(left[0])}{more}")
    # A share of single clients has many ranges, and few once they are in order.
    whole = {name: share_of(members(found.get(name, ()))) for name in names}
    fewest = {name: min((whole[name], found.get(name, ())), key=len) for name in names}
    return Division(shares=fewest, reason=str(division.reason))


def _ranges(site: str, share: object) -> Share:
    """A site's share; raises NotAssignable for anything but ranges of clients."""
    try:
        ranges = list(share)  # type: ignore[call-overload]
    except TypeError:
        ranges = [None]
    for each in ranges:
        if not isinstance(each, range) or (each and min(each) < 0) or each.step < 1:
            raise NotAssignable(
                f"the share of site {site} is {share!r:.{SHOWN}}, and not ranges of clients "
                "(`share_of` makes them of an array)"
            )
    return joined(ranges)
