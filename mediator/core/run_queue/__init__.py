"""The queue of runs at a mediator: what a run asks of its sites, and which runs begin. Pure.

`asks` is what a run says of itself when it is submitted; `decision` orders the runs that wait, and
says which of them begin, at which sites, and what the others wait for.
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

__all__ = [
    "BadAsk",
    "Begin",
    "Holder",
    "QueueDecision",
    "QueueSettings",
    "RunAsk",
    "RunAtWork",
    "SiteRoom",
    "Wait",
    "WaitingRun",
    "decide",
]
