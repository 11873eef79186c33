"""Errors of the store.

StoreError             the database cannot be opened, read or written            (exit 2)
└── StoreAway          not now: it does not answer, is full or is busy           (exit 4)
"""

from __future__ import annotations

from fedpilot.fabric.host.exit_codes import BAD_INPUT, UNREACHABLE

from ...errors import MediatorError


class StoreError(MediatorError):
    """The database cannot be opened, read or written."""

    exits_with = BAD_INPUT


class StoreAway(StoreError):
    """The database does not answer, is full or is busy: the same may succeed later."""

    exits_with = UNREACHABLE

    def __init__(self, message: str, why: str = "it does not answer") -> None:
        """`why` is the cause in words that users may see."""
        super().__init__(message)
        self.why = why
