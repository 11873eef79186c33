"""Checks a mediator's gang request before the site acts on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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


def _problem(asked: GangRequest) -> str:
    if not isinstance(asked.name, str):
        return "its name is no text"
    given = (asked.workers, asked.at_least)
    counts = (asked.at_most, *(count for count in given if count is not None))
    if any(type(count) is not int or count < 1 for count in counts):
        return "it is not for one vnode or more"
    if (asked.at_least or 1) > asked.at_most:
        return "its least number of vnodes is above its most"
    if None not in given:
        return "it is both for a number of vnodes and for a range"
    for name, amount in asked.resources.items():
        if not _is_number(amount) or not 0 <= amount < math.inf:
            return f"{amount!r:.40} of {name!r:.40} is no amount"
    if not all(_is_number(each) and each > 0 for each in (asked.timeout_s, asked.lease_s)):
        return "its times are not above 0 s"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
