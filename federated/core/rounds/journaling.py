"""Decides when unsaved work is worth a write, so that the cost of safety has a known ceiling."""

from __future__ import annotations

SHARE = 0.02
"""Largest share of the training time that saving may take."""

LEAST_S = 0.25
"""Seconds of work below which a write is never worth it."""


def worth_saving(unsaved_s: float, write_s: float) -> bool:
    """Whether `unsaved_s` seconds of training justify a write of `write_s` seconds."""
    return unsaved_s >= LEAST_S and write_s <= SHARE * unsaved_s
