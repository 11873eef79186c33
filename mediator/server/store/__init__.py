"""The database of a mediator: the Store and its records."""

from .engines import StoreAway, StoreError
from .records import AuditEntry, EventRecord, RunRecord, RunState, SiteRecord
from .store import Store

__all__ = [
    "AuditEntry",
    "EventRecord",
    "RunRecord",
    "RunState",
    "SiteRecord",
    "Store",
    "StoreAway",
    "StoreError",
]
