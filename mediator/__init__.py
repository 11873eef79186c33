"""Many Ray clusters, one federation: sites, assignment, reservation over sites, traffic.

Importing this package imports neither Ray nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpilot.common.host.imports import lazy_names

if TYPE_CHECKING:
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

_HOME = {
    "Assignment": "core.assignment",
    "AssignmentProblem": "core.assignment",
    "AssignmentStrategy": "core.assignment",
    "Change": "federation.membership",
    "ChangeKind": "federation.membership",
    "Division": "core.assignment",
    "Exchange": "core.assignment",
    "FederationMediator": "federation.federation_mediator",
    "GangRequest": "federation.site",
    "InProcessSite": "federation.in_process_site",
    "Link": "federation.linked_site",
    "LinkedSite": "federation.linked_site",
    "MediatorError": "errors",
    "Notify": "workload",
    "Payload": "workload",
    "Promise": "core.reservation",
    "Refusal": "core.reservation",
    "ReservationRefused": "errors",
    "RunnerDied": "errors",
    "RunnersSpent": "errors",
    "Share": "core.assignment",
    "Site": "federation.site",
    "SiteCapacity": "core.assignment",
    "SiteContext": "workload",
    "SiteLost": "errors",
    "SiteUnreachable": "errors",
    "SiteWorkload": "workload",
    "TrafficLedger": "core.traffic",
    "UnknownWorkload": "errors",
    "WorkFailed": "errors",
    "load_workload": "workload",
    "members": "core.assignment",
    "share_of": "core.assignment",
}
"""By public name: its module."""

__getattr__ = lazy_names(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
