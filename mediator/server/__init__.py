"""The mediator's process: sites, runs with their coordinators, users. One event loop holds it all.

The store and the disks are worked on in threads; everything else happens between two awaits.
"""

from .connections.connection_watcher import raise_descriptors
from .connections.log_pace import LogPace
from .process import Mediator, Ready
from .settings import ServerSettings

__all__ = ["LogPace", "Mediator", "Ready", "ServerSettings", "raise_descriptors"]
