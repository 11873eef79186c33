"""The queue of runs at a mediator: what a run asks of its sites, and which runs begin. Pure.

`asks` is what a run says of itself when it is submitted; `shares` is whose turn it is among
projects; `decision` orders the runs that wait, and says which of them begin, at which sites, and
what the others wait for.
"""

from .asks import BadAsk, RunAsk
from .decision import (
    Begin,
    Holder,
    QueueDecision,
    QueueSettings,
    RunAtWork,
    SiteRoom,
    Wait,
    WaitingRun,
    decide,
)
from .shares import DEFAULT_PROJECT, POOL, ProjectQueues

__all__ = [
    "DEFAULT_PROJECT",
    "POOL",
    "BadAsk",
    "Begin",
    "Holder",
    "ProjectQueues",
    "QueueDecision",
    "QueueSettings",
    "RunAsk",
    "RunAtWork",
    "SiteRoom",
    "Wait",
    "WaitingRun",
    "decide",
]
