"""The mediator's process: serves sites, coordinators and users in one event loop.

Store and disk work runs in threads; every other change happens between two awaits.
"""

from .connections.connection_watcher import raise_descriptors
from .connections.rate_limiter import LogPace
from .process import Mediator, Ready
from .settings import ServerSettings

__all__ = ["LogPace", "Mediator", "Ready", "ServerSettings", "raise_descriptors"]
