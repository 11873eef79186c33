"""Many Ray clusters, one federation: sites, assignment, reservation over sites, traffic.

Importing this package imports neither Ray nor torch.
"""

from .core.assignment import (
    Assignment,
    AssignmentProblem,
    AssignmentStrategy,
    Division,
    Exchange,
    Share,
    SiteCapacity,
    members,
    share_of,
)
from .core.reservation import Promise, Refusal
from .core.traffic import TrafficLedger
from .errors import (
    MediatorError,
    ReservationRefused,
    RunnerDied,
    RunnersSpent,
    SiteLost,
    SiteUnreachable,
    UnknownWorkload,
    WorkFailed,
)
from .federation.federation_mediator import FederationMediator
from .federation.in_process_site import InProcessSite
from .federation.linked_site import Link, LinkedSite
from .federation.membership import Change, ChangeKind
from .federation.site import GangRequest, Site
from .workload import Notify, Payload, SiteContext, SiteWorkload, load_workload

__all__ = [
    "Assignment",
    "AssignmentProblem",
    "AssignmentStrategy",
    "Change",
    "ChangeKind",
    "Division",
    "Exchange",
    "FederationMediator",
    "GangRequest",
    "InProcessSite",
    "Link",
    "LinkedSite",
    "MediatorError",
    "Notify",
    "Payload",
    "Promise",
    "Refusal",
    "ReservationRefused",
    "RunnerDied",
    "RunnersSpent",
    "Share",
    "Site",
    "SiteCapacity",
    "SiteContext",
    "SiteLost",
    "SiteUnreachable",
    "SiteWorkload",
    "TrafficLedger",
    "UnknownWorkload",
    "WorkFailed",
    "load_workload",
    "members",
    "share_of",
]
