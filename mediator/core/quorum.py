"""SiteQuorum: how many sites a gang needs, which ones it cannot do without, and what it lacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteQuorum:
    """The sites that a gang needs."""

    to_begin: int
    to_go_on: int = 1
    required: frozenset[str] = frozenset()

    def lacking(
        self, there: Collection[str], *, known: Collection[str], gone: Mapping[str, str]
    ) -> str | None:
        """What keeps the gang from working, in words: a required site, or too few sites.

        `there` are the sites that hold a part of it. `gone` says why others do not.
        """
        if missing := sorted(self.required - set(there)):
            why = gone.get(missing[0], "")
            return f"site {missing[0]} is required and not there{f': {why}' if why else ''}"
        if len(there) < self.to_go_on:
            whys = "".join(f"; site {site} is gone: {why}" for site, why in gone.items())
            return (
                f"at least {self.to_go_on} of {len(known)} sites are needed, "
                f"{len(there)} are there{whys}"
            )
        return None

    def hopeless(self, known: Collection[str], excluded: Collection[str]) -> bool:
        """Whether the known sites cannot make up a gang without the excluded ones."""
        left = [site for site in known if site not in excluded]
        return len(left) < self.to_go_on or not self.required.isdisjoint(excluded)
