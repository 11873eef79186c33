"""The queue of runs at a mediator: what a run asks of its sites, and which runs begin. Pure.

`asks` is what a run says of itself when it is submitted; `shares` is whose turn it is among
projects; `decision` orders the runs that wait, and says which of them begin, at which sites, and
what the others wait for.
"""

from .asks import BadAsk, RunAsk
from .decision import (
    Begin,
    QueueDecision,
    RunAtWork,
    RunHolder,
    RunQueueSettings,
    RunWait,
    SiteRoom,
    WaitingRun,
    decide,
)
from .shares import DEFAULT_PROJECT, POOL, ProjectQueues

__all__ = [
    "DEFAULT_PROJECT",
    "POOL",
    "BadAsk",
    "Begin",
    "ProjectQueues",
    "QueueDecision",
    "RunAsk",
    "RunAtWork",
    "RunHolder",
    "RunQueueSettings",
    "RunWait",
    "SiteRoom",
    "WaitingRun",
    "decide",
]
