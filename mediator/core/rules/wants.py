"""What a run wants of a site, for the site's policy to decide on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The data of a simulation."""

    loader: str
    """A name of fedpilot's own, or `module:function`."""
    reads: tuple[str, ...] = ()
    """The files and folders that its options name, absolute, links followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What a run wants of a site, computed at the site from the run's own spec."""

    user: str = ""
    """As in the certificate that the run was submitted with; empty if unknown."""
    role: str = ""
    datasets: tuple[str, ...] = ()
    """Declared data sets that it trains on; none for a simulation."""
    simulated: Simulated | None = None
    """The data of a simulation; None for declared data, or if unknown."""
    model: str = ""
    code_digest: str = ""
    """SHA-256 of the user modules that are installed at the site; empty if it names none."""
    installed_code: tuple[str, ...] | None = None
    """Names that it uses of those, `module:name`, except harmless ones; None if unknown."""
    brought_code: str = ""
    """SHA-256 of the user modules that come with it; empty if it brings none."""
    vnodes: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    """Of one vnode, in Ray's words."""
    cohort: int | None = None
    """The most clients of this site in one round; None if unknown in advance."""
