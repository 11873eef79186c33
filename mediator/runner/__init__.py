"""Runners: a run's part at one site as a process, and how it is driven.

Importing this package imports no Ray: that is what the process does when it is started.
"""

from .driving import AsyncRunner
from .errors import BadFrame, BadSettings, OutOfOrder, ReservationLapsed, RunnerExists
from .failures import error_of, machine_trouble, told
from .keeping import Keeping
from .link import Outbox, RunnerLink
from .process import RayChoice, RunnerProcess, RunnerSettings

__all__ = [
    "AsyncRunner",
    "BadFrame",
    "BadSettings",
    "Keeping",
    "OutOfOrder",
    "Outbox",
    "RayChoice",
    "ReservationLapsed",
    "RunnerExists",
    "RunnerLink",
    "RunnerProcess",
    "RunnerSettings",
    "error_of",
    "machine_trouble",
    "told",
]
