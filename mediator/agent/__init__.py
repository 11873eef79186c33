"""The site agent: joins a mediator, takes its orders, and looks after the runs' runners.

Importing this package imports neither Ray nor torch, and running it does not either.
"""

from .agent import Say, Site, SiteAgent, told_data
from .errors import (
    BadCommand,
    BadHome,
    HomeBusy,
    SessionBroken,
    SiteDismissed,
    SurveyFailed,
)
from .home import SiteHome
from .joining import join, token_for
from .settings import AgentSettings
from .survey import surveyed
from .watchdog import Look, PrivateRay, Watch, Watchdog

__all__ = [
    "AgentSettings",
    "BadCommand",
    "BadHome",
    "HomeBusy",
    "Look",
    "PrivateRay",
    "Say",
    "SessionBroken",
    "Site",
    "SiteAgent",
    "SiteDismissed",
    "SiteHome",
    "SurveyFailed",
    "Watch",
    "Watchdog",
    "join",
    "surveyed",
    "token_for",
    "told_data",
]
