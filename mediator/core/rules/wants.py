"""What a run wants of a site: the facts that the site's policy decides on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The data of a simulation."""

    loader: str
    """A name of fedpilot's own, or `module:function`."""
    reads: tuple[str, ...] = ()
    """The files and folders that its options name, as absolute paths with links resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What a run wants of a site, computed at the site from the run's own spec."""

    user: str = ""
    """The name in the submitter's certificate; empty if unknown."""
    role: str = ""
    datasets: tuple[str, ...] = ()
    """The declared data sets that it trains on; none for a simulation."""
    simulated: Simulated | None = None
    """The data of a simulation; None for declared data, or if unknown."""
    model: str = ""
    code_digest: str = ""
    """SHA-256 of the installed user modules that it names; empty if it names none."""
    installed_code: tuple[str, ...] | None = None
    """The names, `module:name`, that it uses from them, except harmless ones; None if unknown."""
    brought_code: str = ""
    """SHA-256 of the user modules that it brings; empty if it brings none."""
    gang: tuple[tuple[int, Mapping[str, float]], ...] = field(default=(), hash=False)
    """The fewest vnodes of each size with which it can do, and what one of them has by Ray's
    names."""
    cohort: int | None = None
    """The most clients of this site in a round; None if unknown in advance."""
    crosses: str = ""
    """What other sites see of single clients, in words; empty if they see sums only."""
