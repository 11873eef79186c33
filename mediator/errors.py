"""The errors of this package.

MediatorError
├── ReservationRefused     too few sites could promise their part of the gang      (exit 3)
│   ├── RaysUnusable       since none of their Rays can be used at all             (exit 4)
│   └── SitesFull          since others hold their resources for now               (exit 3)
├── SiteUnreachable        a site does not answer                                  (exit 4)
│   └── SiteLost           it was given up, and its work is to be done elsewhere  (exit 1)
│       └── RunnerDied     the run's own process there was killed, or crashed      (exit 1)
│           └── RunnersSpent  too often to be started again for this run           (exit 1)
├── WorkFailed             a site's part of a run failed there                     (exit 1)
│   └── AnswerUnreadable   its answer is malformed: the site may be broken, or lie (exit 1)
├── UnknownWorkload        no installed package provides that site workload        (exit 2)
├── MediatorUnreachable    the mediator does not answer                            (exit 4)
├── MediatorFailed         the mediator itself failed                              (exit 1)
├── QuestionFailed         a question to a run failed there                        (exit 1)
├── PolicyRefused          a site's own policy forbids it                          (exit 3)
├── NotPermitted           the caller may not do that                              (exit 3)
├── RequestRefused         the request is valid, but not in the present state      (exit 3)
├── BadRequest             the request is not valid                                (exit 2)
│   ├── NoSuchRun          the mediator knows no such run, or file of a run        (exit 2)
│   ├── NoSuchSite         the mediator knows no such site                         (exit 2)
│   └── RunExists          another run has the id                                  (exit 2)
└── ProfileError           the profile of a mediator is missing or wrong           (exit 2)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fedpilot.common.host.exit_codes import BAD_INPUT, FAILED, REFUSED, UNREACHABLE


class MediatorError(Exception):
    """Root of this package's errors."""

    exits_with: ClassVar[int] = FAILED
    """The exit code of a command that fails by it."""


class ReservationRefused(MediatorError):
    """Too few sites could promise their part of the gang.

    `refusals` has a reason per site, and under `NO_SITE` a reason of no single site.
    """

    NO_SITE: ClassVar[str] = "-"
    exits_with = REFUSED

    def __init__(self, refusals: Mapping[str, str]) -> None:
        super().__init__(dict(refusals))
        self.refusals = dict(refusals)

    def __str__(self) -> str:
        return "; ".join(
            reason if site == self.NO_SITE else f"site {site}: {reason}"
            for site, reason in self.refusals.items()
        )


class RaysUnusable(ReservationRefused):
    """All sites refused because their Rays cannot be used at all."""

    exits_with = UNREACHABLE


class SitesFull(ReservationRefused):
    """Enough sites could promise their part of the gang once others release what they hold."""


class SiteUnreachable(MediatorError):
    """A site does not answer."""

    exits_with = UNREACHABLE

    def __init__(self, site: str, reason: str) -> None:
        super().__init__(site, reason)
        self.site, self.reason = site, reason

    def __str__(self) -> str:
        return f"site {self.site} cannot be reached: {self.reason}"


class SiteLost(SiteUnreachable):
    """A site was given up while it had work, which is to be done elsewhere."""

    exits_with = FAILED

    def __str__(self) -> str:
        return f"site {self.site} is lost: {self.reason}"


class RunnerDied(SiteLost):
    """The process of a run at a site ended abnormally, with the work that it had not handed over.

    The site may take part in the run again, with another process.
    """


class RunnersSpent(RunnerDied):
    """The processes of a run at a site died so often that none is started again for this run."""


class WorkFailed(MediatorError):
    """A site's part of a run failed there, with an error that has no class here."""

    def __init__(self, site: str, kind: str, message: str) -> None:
        super().__init__(site, kind, message)
        self.site, self.kind, self.message = site, kind, message

    def __str__(self) -> str:
        return f"site {self.site}: {self.kind}: {self.message}"


class AnswerUnreadable(WorkFailed):
    """A site's answer is no valid payload: the site is broken, or lies."""


class UnknownWorkload(MediatorError):
    """No installed package provides a site workload of that name."""

    exits_with = BAD_INPUT

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return f"no site workload called {self.name!r}; installed are: {', '.join(self.known)}"


class MediatorUnreachable(MediatorError):
    """The mediator does not answer, or not in time."""

    exits_with = UNREACHABLE

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason

    def __str__(self) -> str:
        return f"the mediator at {self.address} cannot be reached: {self.reason}"


class MediatorFailed(MediatorError):
    """The mediator itself failed; its log tells more."""


class QuestionFailed(MediatorError):
    """A question to a run, such as one about a VirtualNode, failed there."""

    def __init__(self, run: str, kind: str, message: str) -> None:
        super().__init__(run, kind, message)
        self.run, self.kind, self.message = run, kind, message

    def __str__(self) -> str:
        return f"run {self.run}: {self.kind.rpartition(':')[2]}: {self.message}"


class PolicyRefused(MediatorError):
    """A site's own policy forbids a run or a command."""

    exits_with = REFUSED

    def __init__(self, site: str, rule: str, found: str, allowed: str) -> None:
        super().__init__(site, rule, found, allowed)
        self.site, self.rule, self.found, self.allowed = site, rule, found, allowed

    def __str__(self) -> str:
        return (
            f"the policy of site {self.site} refuses it by the rule {self.rule}: "
            f"found {self.found}; allowed is {self.allowed}"
        )


class NotPermitted(MediatorError):
    """The caller's role may not do that, or its certificate is not valid."""

    exits_with = REFUSED


class RequestRefused(MediatorError):
    """The request is valid, but the mediator does not do it in the present state."""

    exits_with = REFUSED


class BadRequest(MediatorError):
    """The request is not valid."""

    exits_with = BAD_INPUT


class NoSuchRun(BadRequest):
    """The mediator knows no such run, or no such file of a run."""


class NoSuchSite(BadRequest):
    """The mediator knows no site of that name."""


class RunExists(BadRequest):
    """Another run has the id."""


class ProfileError(MediatorError):
    """The profile of a mediator is missing or wrong."""

    exits_with = BAD_INPUT
