"""Warnings of PyTorch that mean nothing in training here, silenced for the whole process.

`warnings.catch_warnings` would swap the filters of all threads for a moment, so that a warning of
another thread is lost, or a filter of its own. A filter that stays has no such moment.
"""

from __future__ import annotations

import warnings

MEANINGLESS = (
    "The given NumPy array is not writable",  # those of Ray's object store are only read
    "There is a performance drop",  # of vmap, which the cost model knows
)
"""How they begin."""


def silence() -> None:
    """Ignore them from now on; may be called again."""
    for beginning in MEANINGLESS:
        warnings.filterwarnings("ignore", beginning, UserWarning)
