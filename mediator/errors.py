"""What can go wrong between sites.

MediatorError
├── ReservationRefused     too few sites could promise their part of the gang      (exit 3)
│   └── RaysUnusable       since none of their Rays can be used at all             (exit 4)
├── SiteUnreachable        a site does not answer                                  (exit 4)
│   └── SiteLost           it was given up while it worked: to be done elsewhere  (exit 1)
│       └── RunnerDied     the run's own process there was killed, or crashed      (exit 1)
│           └── RunnersSpent  so often that it is not started again for this run   (exit 1)
├── WorkFailed             a site's part of a run failed there                     (exit 1)
│   └── AnswerUnreadable   what it answered is no message: it may be broken, or lie (exit 1)
├── UnknownWorkload        no installed package brings that site workload          (exit 2)
├── MediatorUnreachable    the mediator does not answer                            (exit 4)
├── MediatorFailed         it answered that something went wrong in it             (exit 1)
├── QuestionFailed         what a run was asked failed there                       (exit 1)
├── PolicyRefused          a site's own policy forbids it                          (exit 3)
├── NotPermitted           who asks may not do that                                (exit 3)
├── RequestRefused         it was understood, and is not done now                  (exit 3)
├── BadRequest             it makes no sense to the mediator                       (exit 2)
│   ├── NoSuchRun          it knows no such run, or no such file of it             (exit 2)
│   ├── NoSuchSite         it knows no site of that name                           (exit 2)
│   └── RunExists          another run has the id                                  (exit 2)
└── ProfileError           how to reach a mediator is not known, or not rightly    (exit 2)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fedpilot.fabric.host.exit_codes import BAD_INPUT, FAILED, REFUSED, UNREACHABLE


class MediatorError(Exception):
    """Root of this package's errors."""

    exits_with: ClassVar[int] = FAILED
    """What a command ends with that fails by it."""


class ReservationRefused(MediatorError):
    """Too few sites could promise their part of the gang; `refusals` says why, site by site.

    What is of no single site stands under `NO_SITE`.
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
    """No Ray of those that refused can be used at all: nobody is there, or fedpilot is not."""

    exits_with = UNREACHABLE


class SiteUnreachable(MediatorError):
    """A site does not answer."""

    exits_with = UNREACHABLE

    def __init__(self, site: str, reason: str) -> None:
        super().__init__(site, reason)
        self.site, self.reason = site, reason

    def __str__(self) -> str:
        return f"site {self.site} cannot be reached: {self.reason}"


class SiteLost(SiteUnreachable):
    """A site was given up while it had work: whoever waits for that has it done elsewhere."""

    exits_with = FAILED

    def __str__(self) -> str:
        return f"site {self.site} is lost: {self.reason}"


class RunnerDied(SiteLost):
    """The process of a run at a site ended abnormally; what it had not handed over is gone.

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
    """What a site has answered is no payload at all: it is broken, or lies."""


class UnknownWorkload(MediatorError):
    """No installed package brings a site workload of that name."""

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
    """The mediator answered that something went wrong in it; its log tells more."""


class QuestionFailed(MediatorError):
    """What a run was asked, about a VirtualNode for instance, failed there."""

    def __init__(self, run: str, kind: str, message: str) -> None:
        super().__init__(run, kind, message)
        self.run, self.kind, self.message = run, kind, message

    def __str__(self) -> str:
        return f"run {self.run}: {self.kind.rpartition(':')[2]}: {self.message}"


class PolicyRefused(MediatorError):
    """A site's own policy forbids what a run or a command wants of it."""

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
    """Who asks may not do that: the certificate's role, or none that counts."""

    exits_with = REFUSED


class RequestRefused(MediatorError):
    """The mediator has understood, and does not do it in the state that things are in."""

    exits_with = REFUSED


class BadRequest(MediatorError):
    """The request makes no sense to the mediator."""

    exits_with = BAD_INPUT


class NoSuchRun(BadRequest):
    """The mediator knows no such run, or no such file of it."""


class NoSuchSite(BadRequest):
    """The mediator knows no site of that name."""


class RunExists(BadRequest):
    """Another run has the id."""


class ProfileError(MediatorError):
    """How to reach a mediator is not known, or what is known of it is wrong."""

    exits_with = BAD_INPUT
