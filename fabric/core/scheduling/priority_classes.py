"""The preset priority classes: a higher one goes first."""

from __future__ import annotations

from collections.abc import Mapping

CLASSES: Mapping[str, int] = {
    "inference": 125,
    "build": 100,
    "interactive-preemptible": 75,
    "train": 50,
}
"""The priority classes of seed 003."""
DEFAULT_CLASS = "train"
NON_PREEMPTIBLE_FROM = 100
"""Work of this priority or higher is non-preemptible, unless it says otherwise."""
