"""What if other sites took part: the sites of `--add-site` and `--remove-site`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

from fedpilot.common.text.amounts import (
    BRIEF_IN_WORDS,
    RATE_IN_WORDS,
    listed,
    rate_of,
    seconds_of,
)
from fedpilot.mediator.core.links import LinkSpeed

from .sites import PlannedSite, in_order

OPTION = "--add-site"
ALLOWED: Mapping[str, str] = MappingProxyType(
    {
        "workers": "a whole number of at least 1",
        "up": RATE_IN_WORDS,
        "down": RATE_IN_WORDS,
        "round_trip": BRIEF_IN_WORDS,
        "pace": f"of a sample: {BRIEF_IN_WORDS}",
    }
)
"""What an added site's specification may say."""
EXAMPLE = "lyon:workers=4,up=100Mbit/s,down=1Gbit/s"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")


class BadWhatIf(ValueError):
    """A site cannot be added or removed as asked; the text says what is allowed."""


def added(text: str) -> PlannedSite:
    """The site of a specification such as `lyon:workers=4,up=100Mbit/s`; raises BadWhatIf."""
    name, colon, spec = text.partition(":")
    if not NAME.fullmatch(name) or not colon or not spec:
        raise BadWhatIf(f"found {text!r}; allowed: NAME:workers=N,..., such as {EXAMPLE}")
    values: dict[str, str] = {}
    for part in spec.split(","):
        key, equals, value = (each.strip() for each in part.partition("="))
        if key not in ALLOWED or not equals:
            near = get_close_matches(key, ALLOWED, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"allowed: {', '.join(ALLOWED)}"
            raise BadWhatIf(f"site {name}: unknown `{part}`; {hint}")
        if key in values:
            raise BadWhatIf(f"site {name}: `{key}` is given twice")
        values[key] = value
    workers = values.get("workers", "")
    if not re.fullmatch(r"[0-9]{1,9}", workers) or not int(workers):
        raise _wrong(name, "workers", workers)
    link = LinkSpeed(
        up=_read(name, values, "up"),
        down=_read(name, values, "down"),
        round_trip_s=_read(name, values, "round_trip"),
    )
    return PlannedSite(
        name=name,
        workers=int(workers),
        seconds_per_sample=_read(name, values, "pace"),
        link=link,
        from_=OPTION,
    )


def with_changes(
    sites: Iterable[PlannedSite], add: Sequence[str], remove: Iterable[str]
) -> tuple[PlannedSite, ...]:
    """The sites without those removed, and with those added; raises BadWhatIf.

    A site may be removed and added again, to see it with other facts.
    """
    there = {site.name: site for site in sites}
    for name in remove:
        if name not in there:
            raise BadWhatIf(f"there is no site {name!r}; there are: {listed(sorted(there), 20)}")
        del there[name]
    for site in map(added, add):
        if site.name in there:
            raise BadWhatIf(f"there is a site {site.name!r} already; --remove-site it, or rename")
        there[site.name] = site
    if not there:
        raise BadWhatIf("no site is left; keep one, or add one")
    return in_order(there.values())


def _read(site: str, values: Mapping[str, str], key: str) -> float | None:
    if key not in values:
        return None
    found = (rate_of if ALLOWED[key] is RATE_IN_WORDS else seconds_of)(values[key])
    if found is None:
        raise _wrong(site, key, values[key])
    return found


def _wrong(site: str, key: str, found: str) -> BadWhatIf:
    given = repr(found) if found else "missing"
    return BadWhatIf(f"site {site}: `{key}` is {given}; allowed: {ALLOWED[key]}")
