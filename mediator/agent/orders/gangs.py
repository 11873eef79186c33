"""Checks a mediator's gang request before the site acts on it, and caps it by the site's policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...core.reservation import is_number
from ...core.rules.policy import Policy
from ...core.rules.policy_decision import most_vnodes
from ...federation.site import GangRequest
from ...wire.messages import BadMessage

LONGEST_S = 3_600.0
"""The longest that a site waits for room, or keeps an uncommitted promise."""


def gang_of(header: Mapping[str, Any]) -> GangRequest:
    """Parse a gang request and cap its times; BadMessage if it is invalid."""
    try:
        asked = GangRequest.from_json(header)
        problem = _problem(asked)
        if not problem:
            return replace(
                asked,
                timeout_s=min(asked.timeout_s, LONGEST_S),
                lease_s=min(asked.lease_s, LONGEST_S),
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{error!r:.200}"
    raise BadMessage(f"that is no request for a gang: {problem}")


def capped(asked: GangRequest, policy: Policy) -> GangRequest:
    """The request with no more vnodes than a policy allows that allows its least.

    The first of its classes may grow first.
    """
    counts = [each.least for each in asked.classes]
    made = []
    for at, each in enumerate(asked.classes):
        others = [
            (count, other.resources)
            for i, (count, other) in enumerate(zip(counts, asked.classes, strict=True))
            if i != at
        ]
        most = most_vnodes(policy, each.resources, others)
        if each.workers is None and most is not None:
            each = replace(each, at_most=min(each.at_most, max(each.least, most)))
        if each.at_least is not None:
            counts[at] = each.at_most
        made.append(each)
    if asked.groups:
        return replace(asked, groups=tuple(made))
    return replace(asked, at_most=made[0].at_most)


def _problem(asked: GangRequest) -> str:
    if not isinstance(asked.name, str):
        return "its name is no text"
    names = [each.name for each in asked.classes]
    if len(set(names)) < len(names):
        return "two of its classes have one name"
    for each in asked.classes:
        if problem := each.problem:
            return problem
    if not all(is_number(each) and each > 0 for each in (asked.timeout_s, asked.lease_s)):
        return "its times are not above 0 s"
    return ""
