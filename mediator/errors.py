"""What can go wrong between sites.

MediatorError
├── ReservationRefused     too few sites could promise their part of the gang      (exit 3)
├── SiteUnreachable        a site does not answer                                  (exit 4)
│   └── SiteLost           it was given up while it worked: to be done elsewhere
├── WorkFailed             a site's part of a run failed there                     (exit 1)
└── UnknownWorkload        no installed package brings that site workload          (exit 2)
"""

from __future__ import annotations

from collections.abc import Mapping


class MediatorError(Exception):
    """Root of this package's errors."""


class ReservationRefused(MediatorError):
    """Too few sites could promise their part of the gang; `refusals` says why, site by site."""

    def __init__(self, refusals: Mapping[str, str]) -> None:
        super().__init__(dict(refusals))
        self.refusals = dict(refusals)

    def __str__(self) -> str:
        return "; ".join(f"site {site}: {reason}" for site, reason in self.refusals.items())


class SiteUnreachable(MediatorError):
    """A site does not answer."""

    def __init__(self, site: str, reason: str) -> None:
        super().__init__(site, reason)
        self.site, self.reason = site, reason

    def __str__(self) -> str:
        return f"site {self.site} cannot be reached: {self.reason}"


class SiteLost(SiteUnreachable):
    """A site was given up while it had work: whoever waits for that has it done elsewhere."""

    def __str__(self) -> str:
        return f"site {self.site} is lost: {self.reason}"


class WorkFailed(MediatorError):
    """A site's part of a run failed there, with an error that has no class here."""

    def __init__(self, site: str, kind: str, message: str) -> None:
        super().__init__(site, kind, message)
        self.site, self.kind, self.message = site, kind, message

    def __str__(self) -> str:
        return f"site {self.site}: {self.kind}: {self.message}"


class UnknownWorkload(MediatorError):
    """No installed package brings a site workload of that name."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return f"no site workload called {self.name!r}; installed are: {', '.join(self.known)}"
