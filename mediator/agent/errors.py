"""What can go wrong with a site's agent.

MediatorError
├── HomeBusy         another agent works in the home folder               (exit 2)
├── BadHome          the home folder is not what is wanted                (exit 2)
├── AgentFailed      the agent could not do its part of an order          (exit 1)
├── BadCommand       no command that may come through the mediator        (exit 2)
├── SurveyFailed     a declared data set cannot be read                   (exit 2)
├── SessionBroken    a session with the mediator ended                    (exit 4)
│   └── SessionLeft  the agent itself ended it, to begin another          (exit 4)
└── SiteDismissed    the mediator wants no more of this site              (exit 3)
"""

from __future__ import annotations

from fedpilot.common.host.exit_codes import BAD_INPUT, REFUSED, UNREACHABLE

from ..errors import MediatorError


class HomeBusy(MediatorError):
    """Another agent works in the home folder."""

    exits_with = BAD_INPUT


class BadHome(MediatorError):
    """The home folder is damaged, or belongs to another site or mediator."""

    exits_with = BAD_INPUT


class AgentFailed(MediatorError):
    """A site's agent failed; the site's own log has the details."""

    def __init__(self, site: str, reason: str) -> None:
        super().__init__(site, reason)
        self.site, self.reason = site, reason

    def __str__(self) -> str:
        return f"the agent of site {self.site} failed: {self.reason}"


class BadCommand(MediatorError):
    """The mediator may not run this command at a site."""

    exits_with = BAD_INPUT


class SurveyFailed(MediatorError):
    """A declared data set cannot be read."""

    exits_with = BAD_INPUT


class SessionBroken(MediatorError):
    """A session with the mediator has ended; the agent tries another."""

    exits_with = UNREACHABLE


class SessionLeft(SessionBroken):
    """The agent itself ended a session, to begin another at once."""


class SiteDismissed(MediatorError):
    """The mediator has dismissed this site."""

    exits_with = REFUSED
