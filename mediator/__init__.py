"""Many Ray clusters, one federation: sites, assignment, reservation over sites, traffic.

Importing this package imports neither Ray nor torch.
"""

from .core.assignment import Assignment, AssignmentStrategy, SiteCapacity
from .core.reservation import Promise, Refusal
from .core.traffic import TrafficLedger
from .errors import MediatorError, ReservationRefused, SiteUnreachable, UnknownWorkload
from .mediator import FederationMediator
from .site import GangRequest, InProcessSite, Site
from .workload import Notify, Payload, SiteWorkload, load_workload

__all__ = [
    "Assignment",
    "AssignmentStrategy",
    "FederationMediator",
    "GangRequest",
    "InProcessSite",
    "MediatorError",
    "Notify",
    "Payload",
    "Promise",
    "Refusal",
    "ReservationRefused",
    "Site",
    "SiteCapacity",
    "SiteUnreachable",
    "SiteWorkload",
    "TrafficLedger",
    "UnknownWorkload",
    "load_workload",
]
