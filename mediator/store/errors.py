"""What can go wrong with what a mediator remembers."""

from __future__ import annotations

from fedpilot.fabric.exit_codes import BAD_INPUT

from ..errors import MediatorError


class StoreError(MediatorError):
    """The database cannot be opened, read or written."""

    exits_with = BAD_INPUT
